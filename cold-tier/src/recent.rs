//! What was read lately, within bounds: two sets, of which the older is dropped when the newer is
//! full.

use std::collections::HashMap;
use std::hash::Hash;

/// Keys with the time of their last read.
#[derive(Debug)]
pub(crate) struct Recent<K> {
    young: HashMap<K, u64>,
    old: HashMap<K, u64>,
    len_max: usize,
}

impl<K: Eq + Hash> Recent<K> {
    /// Remembers between `len_max` and twice as many keys.
    pub(crate) fn new(len_max: usize) -> Self {
        Self {
            young: HashMap::new(),
            old: HashMap::new(),
            len_max,
        }
    }

    pub(crate) fn note(&mut self, key: K, now_ms: u64) {
        if self.young.len() >= self.len_max {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, now_ms);
    }

    /// When it was read last: Unix time in milliseconds; 0 if that is not known.
    pub(crate) fn last_ms(&self, key: &K) -> u64 {
        let found = self.young.get(key).or_else(|| self.old.get(key));
        found.copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_are_remembered_and_the_number_is_bounded() {
        let mut recent = Recent::new(10);
        for key in 0..1000u32 {
            recent.note(key, u64::from(key) + 1);
            assert!(recent.young.len() + recent.old.len() <= 20);
        }
        assert_eq!(recent.last_ms(&999), 1000);
        assert_eq!(recent.last_ms(&990), 991);
        assert_eq!(recent.last_ms(&5), 0);
    }
}
