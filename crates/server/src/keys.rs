//! What `KEYS` gathers: the pages of an iteration, up to a bound.

use std::collections::HashSet;

use fonn_proto::Failure;
use fonn_proto::request::ServerOutcome;

/// Keys that are found at most.
const KEYS_MAX: usize = 100_000;

/// Bytes of these keys at most.
const KEYS_LEN_MAX: usize = 8 * 1024 * 1024;

/// Pages that are read at most.
const PAGES_MAX: usize = 1_000;

/// Keys of one page, about.
pub const KEYS_PAGE: usize = 1_000;

/// Gathers keys; each is told once.
#[derive(Debug, Default)]
pub struct KeyGatherer {
    keys: HashSet<Vec<u8>>,
    len: usize,
    pages: usize,
}

impl KeyGatherer {
    /// Adds a page.
    ///
    /// # Errors
    /// [`Failure::TooLarge`] if there are more keys than `KEYS` may tell or visit.
    pub fn add(&mut self, page: Vec<Vec<u8>>) -> Result<(), Failure> {
        self.pages += 1;
        for key in page {
            let len = key.len();
            if self.keys.insert(key) {
                self.len += len;
            }
        }
        let is_too_much =
            self.keys.len() > KEYS_MAX || self.len > KEYS_LEN_MAX || self.pages > PAGES_MAX;
        match is_too_much {
            true => Err(Failure::TooLarge),
            false => Ok(()),
        }
    }

    /// The answer, once there is no other page.
    #[must_use]
    pub fn finish(self) -> ServerOutcome {
        ServerOutcome::Scan {
            cursor: 0,
            keys: self.keys.into_iter().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(from: usize, count: usize) -> Vec<Vec<u8>> {
        (from..from + count)
            .map(|n| n.to_string().into_bytes())
            .collect()
    }

    #[test]
    fn a_key_of_several_pages_is_told_once() {
        let mut keys = KeyGatherer::default();
        assert_eq!(keys.add(page(0, 3)), Ok(()));
        assert_eq!(keys.add(page(1, 3)), Ok(()));
        let ServerOutcome::Scan {
            cursor: 0,
            mut keys,
        } = keys.finish()
        else {
            panic!("no keys");
        };
        keys.sort();
        assert_eq!(keys, page(0, 4));
    }

    #[test]
    fn too_many_keys_bytes_or_pages_are_refused() {
        let refused = Err(Failure::TooLarge);
        assert_eq!(KeyGatherer::default().add(page(0, KEYS_MAX + 1)), refused);
        let long = vec![vec![b'k'; KEYS_LEN_MAX + 1]];
        assert_eq!(KeyGatherer::default().add(long), refused);
        let mut keys = KeyGatherer::default();
        for _ in 0..PAGES_MAX {
            assert_eq!(keys.add(Vec::new()), Ok(()));
        }
        assert_eq!(keys.add(Vec::new()), refused);
    }
}
