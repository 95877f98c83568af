//! The entry by which sccache finds out whether its cache works.
//!
//! It is read and written at every start of sccache, under this name behind any prefix. If the read
//! fails the build fails, and if the write fails sccache only reads from then on; so a router
//! answers both itself, whatever has become of the members.

use std::collections::VecDeque;

use bytes::Bytes;
use fonn_proto::outcome::{Stored, Value};
use fonn_proto::{Command, Hit, Outcome, Space, StoreMode};
use parking_lot::Mutex;

/// How the keys end.
const NAME: &[u8] = b".sccache_check";

/// Entries kept, one a prefix; the oldest goes first.
const ENTRIES_MAX: usize = 256;

/// Longest value kept, in bytes; sccache writes 13.
const VALUE_LEN_MAX: usize = 1024;

/// What was written under such names.
#[derive(Debug, Default)]
pub struct Checks(Mutex<VecDeque<Entry>>);

#[derive(Debug)]
struct Entry {
    space: Space,
    key: Vec<u8>,
    value: Bytes,
    flags: u32,
}

impl Checks {
    /// Answers a plain read, write or delete of such a key; None for any other command.
    #[inline]
    pub fn execute(&self, space: Space, command: &Command<'_>) -> Option<Outcome<'static>> {
        if !command.key().ends_with(NAME) {
            return None;
        }
        let mut entries = self.0.lock();
        let at = entries
            .iter()
            .position(|entry| entry.space == space && entry.key == command.key());
        match command {
            Command::Get(get) if !get.changes_entry() => {
                let Some(entry) = at.and_then(|at| entries.get(at)) else {
                    return Some(Outcome::Miss);
                };
                Some(Outcome::Hit(Hit {
                    value: match get.want_value {
                        true => Value::Shared(entry.value.clone()),
                        false => Value::Copied(&[]),
                    },
                    value_len: entry.value.len(),
                    flags: entry.flags,
                    version: 1,
                    ttl_ms: None,
                    expires_at_ms: None,
                    idle_s: 0,
                    fetched_before: true,
                    stale: false,
                    won: false,
                    lost: false,
                }))
            }
            Command::Store(store)
                if store.mode == StoreMode::Set
                    && store.compare.is_none()
                    && store.value.len() <= VALUE_LEN_MAX =>
            {
                let previous = at.and_then(|at| entries.remove(at)).map(|it| it.value);
                if entries.len() >= ENTRIES_MAX {
                    entries.pop_front();
                }
                entries.push_back(Entry {
                    space,
                    key: store.key.to_vec(),
                    value: Bytes::copy_from_slice(store.value),
                    flags: store.flags,
                });
                Some(Outcome::Stored(Stored {
                    version: 1,
                    value_len: store.value.len(),
                    previous: previous.filter(|_| store.want_previous),
                }))
            }
            Command::Delete(delete) if delete.compare.is_none() && !delete.mark_stale => {
                Some(match at.and_then(|at| entries.remove(at)) {
                    Some(_) => Outcome::Deleted { version: 0 },
                    None => Outcome::NotFound,
                })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use fonn_proto::{ExpirySpec, Get, Store};

    use super::*;

    const SPACE: Space = Space(0);

    fn get(checks: &Checks, key: &[u8]) -> Option<Bytes> {
        match checks.execute(SPACE, &Command::Get(Get::new(key))) {
            Some(Outcome::Hit(hit)) => Some(Bytes::copy_from_slice(hit.value.as_slice())),
            _ => None,
        }
    }

    fn set(checks: &Checks, key: &[u8], value: &[u8]) -> Option<Outcome<'static>> {
        let store = Store::set(key, value, 0, ExpirySpec::Never);
        checks.execute(SPACE, &Command::Store(store))
    }

    #[test]
    fn what_was_written_is_read_under_every_prefix_and_nowhere_else() {
        let checks = Checks::default();
        let plain = Command::Get(Get::new(b".sccache_check"));
        assert_eq!(checks.execute(SPACE, &plain), Some(Outcome::Miss));
        assert!(matches!(
            set(&checks, b"/ci/.sccache_check", b"Hello, World!"),
            Some(Outcome::Stored(_))
        ));
        assert_eq!(checks.execute(SPACE, &plain), Some(Outcome::Miss));
        assert_eq!(
            get(&checks, b"/ci/.sccache_check").as_deref(),
            Some(&b"Hello, World!"[..])
        );
        assert_eq!(checks.execute(Space(1), &plain), Some(Outcome::Miss));
        assert!(set(&checks, b"key", b"v").is_none());
        assert!(set(&checks, b".sccache_check", &[0; 2000]).is_none());
    }

    #[test]
    fn the_number_of_prefixes_is_bounded() {
        let checks = Checks::default();
        for number in 0..1000 {
            set(&checks, format!("{number}/.sccache_check").as_bytes(), b"v");
        }
        assert_eq!(checks.0.lock().len(), ENTRIES_MAX);
        assert!(get(&checks, b"999/.sccache_check").is_some());
        assert!(get(&checks, b"0/.sccache_check").is_none());
    }
}
