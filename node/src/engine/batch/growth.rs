//! The bytes of long values that a batch would make under its locks, and the bytes of values that
//! it would return, as upper bounds.
//!
//! A step that grows a value which a step before it made cannot be prepared ahead
//! ([`super::ahead`]). All shards of the batch stay locked while it copies that value. So a batch
//! is refused if its steps would copy too much there. Reads cost nothing there: what a step has
//! made is at hand.

use fonn_proto::command::StoreMode;
use fonn_proto::{BatchStep, Command};

use super::super::prepare::SHORT_LEN_MAX;
use super::super::semantics::{self, Rules};

/// Bytes of long values that a batch makes under its locks at most: less than a millisecond of
/// copying and encoding.
pub(super) const GROWN_UNDER_LOCKS_MAX: usize = 256 * 1024;

/// A key of a batch, as its index in the plan.
pub(super) type KeyIndex = usize;

/// What the steps before have made of the keys.
#[derive(Debug)]
pub(super) struct Growth {
    rules: Rules,
    /// The longest value that a key may have, in bytes, of each key that a step has written.
    made: Vec<Option<usize>>,
    /// Bytes that are made under the locks.
    bytes: usize,
    /// Bytes of values that are returned.
    returned: usize,
}

impl Growth {
    /// Before the first step of a batch with so many keys.
    pub(super) fn new(rules: Rules, keys: usize) -> Self {
        Self {
            rules,
            made: vec![None; keys],
            bytes: 0,
            returned: 0,
        }
    }

    /// Notes a step. `key` is the one that it writes or reads, `from` the source of a transfer;
    /// `stored_len` tells the length of the value that a key had before the batch.
    pub(super) fn note(
        &mut self,
        step: &BatchStep<'_>,
        (key, from): (KeyIndex, Option<KeyIndex>),
        mut stored_len: impl FnMut(KeyIndex) -> usize,
    ) {
        let made = self.made(key);
        let mut len_of = |key, made: Option<usize>| made.unwrap_or_else(|| stored_len(key));
        match step {
            BatchStep::Transfer(_) => {
                let Some(from) = from else {
                    return;
                };
                let len = len_of(from, self.made(from));
                // It may do nothing, and leave what is there.
                self.set(key, len.max(len_of(key, made)));
            }
            BatchStep::Command(command) if semantics::grows(command) => {
                let grown = semantics::grown_len(command, len_of(key, made), self.rules);
                let Some(len) = grown else {
                    return;
                };
                if made.is_some() && len > SHORT_LEN_MAX {
                    self.bytes = self.bytes.saturating_add(len);
                }
                self.set(key, len);
            }
            BatchStep::Command(Command::Store(store)) => {
                let len = match store.mode == StoreMode::Set && store.compare.is_none() {
                    true => store.value.len(),
                    // It may do nothing, and leave what is there.
                    false => store.value.len().max(len_of(key, made)),
                };
                self.set(key, len);
            }
            BatchStep::Command(_) => {}
        }
    }

    /// Notes that the next step returns the value that a key has before it.
    pub(super) fn note_returned(
        &mut self,
        key: KeyIndex,
        stored_len: impl FnOnce(KeyIndex) -> usize,
    ) {
        let len = self.made(key).unwrap_or_else(|| stored_len(key));
        self.returned = self.returned.saturating_add(len);
    }

    fn made(&self, key: KeyIndex) -> Option<usize> {
        self.made.get(key).copied().flatten()
    }

    fn set(&mut self, key: KeyIndex, len: usize) {
        if let Some(made) = self.made.get_mut(key) {
            *made = Some(len);
        }
    }

    /// Bytes of values that the steps return.
    pub(super) fn returned_len(&self) -> usize {
        self.returned
    }

    /// Whether the steps would make too much under the locks.
    pub(super) fn is_too_much(&self) -> bool {
        self.bytes > GROWN_UNDER_LOCKS_MAX
    }
}

#[cfg(test)]
mod tests {
    use fonn_proto::{ExpirySpec, Get, SetRange, Store, Transfer};

    use super::*;

    /// What the values of all keys have before the batch.
    const STORED: usize = 100_000;

    static LONG: [u8; 100_000] = [b'v'; 100_000];

    fn store(mode: StoreMode, value: &[u8]) -> BatchStep<'_> {
        let store = Store::set(b"k", value, 0, ExpirySpec::Never);
        BatchStep::Command(Command::Store(Store { mode, ..store }))
    }

    fn range(value: &[u8]) -> BatchStep<'_> {
        let (key, offset) = (&b"k"[..], 0);
        BatchStep::Command(Command::SetRange(SetRange { key, offset, value }))
    }

    fn get() -> BatchStep<'static> {
        BatchStep::Command(Command::Get(Get::new(b"k")))
    }

    fn copy() -> BatchStep<'static> {
        BatchStep::Transfer(Transfer {
            from: b"k",
            to: b"l",
            database: 0,
            removes: false,
            replaces: true,
        })
    }

    /// The bytes that the steps make under the locks. All are about one key, which a transfer
    /// copies to another.
    fn grown(steps: &[BatchStep<'_>]) -> usize {
        let rules = Rules {
            now_ms: 0,
            value_len_max: 64 << 20,
            ttl_ms_max: None,
        };
        let mut growth = Growth::new(rules, 2);
        for step in steps {
            let keys = match step {
                BatchStep::Command(_) => (0, None),
                BatchStep::Transfer(_) => (1, Some(0)),
            };
            growth.note(step, keys, |_| STORED);
        }
        assert_eq!(growth.is_too_much(), growth.bytes > GROWN_UNDER_LOCKS_MAX);
        growth.bytes
    }

    #[test]
    fn what_is_prepared_ahead_or_at_hand_is_not_made_under_the_locks() {
        for steps in [
            &[store(StoreMode::Append, b"x"), get()][..],
            &[get(), range(b"x")],
            &[store(StoreMode::Set, &LONG), get()],
            &[copy(), get()],
            &[store(StoreMode::Set, &LONG), store(StoreMode::Set, &LONG)],
            &[store(StoreMode::Set, b"short"), range(b"x"), range(b"x")],
        ] {
            assert_eq!(grown(steps), 0, "{steps:?}");
        }
    }

    #[test]
    fn what_grows_again_is_made_under_the_locks() {
        let append = || store(StoreMode::Append, b"x");
        for (steps, bytes) in [
            (&[append(), append()][..], STORED + 2),
            (&[append(), append(), append()], 2 * STORED + 5),
            (&[store(StoreMode::Set, &LONG), range(b"x")], LONG.len()),
            (&[store(StoreMode::Add, b"short"), range(b"x")], STORED),
            (&[range(b"x"), get(), get(), range(b"x")], STORED),
        ] {
            assert_eq!(grown(steps), bytes, "{steps:?}");
        }
        let many: Vec<_> = (0..1024).map(|_| range(b"x")).collect();
        assert_eq!(grown(&many), 1023 * STORED);
    }
}
