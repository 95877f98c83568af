//! The short way of a read: from the shard into the reply, under the shard's lock.
//!
//! Most requests ask for the value of an entry that is in RAM and change nothing. They need no
//! future, no version and no acknowledgement, and their value is copied once. Whatever is not that
//! simple is declined here, before anything was done, and goes through [`Engine::execute`], which
//! answers a plain read with the same words.

use fonn_base::entry::Space;
use fonn_codec::Frame;
use fonn_proto::outcome::Value;
use fonn_proto::{Get, Hit, Outcome};
use fonn_ram_tier::Stored;

use super::Engine;
use super::prepare::SHORT_LEN_MAX;
use super::semantics::{self, Present};
use crate::namespaces::Asked;

/// The time that short requests of one batch are judged by. A batch is answered in one turn of
/// the reactor, which looks at the clock once.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    pub(super) now_ms: u64,
    pub(super) now_s: u32,
}

impl Engine {
    /// The time for [`Engine::answer_hit`].
    #[must_use]
    pub fn moment(&self) -> Moment {
        Moment {
            now_ms: self.hot.clock.wall_ms(),
            now_s: self.hot.now_s(),
        }
    }

    /// A number for the lookup of a key, for [`Engine::expect`]; `None` if RAM is in the
    /// processor's cache anyway.
    #[inline]
    #[must_use]
    pub fn foresee(&self, space: Space, key: &[u8]) -> Option<u64> {
        let ram = &self.hot.ram;
        ram.is_worth_prefetching().then(|| ram.hash(space, key))
    }

    /// Has the processor fetch what RAM has for some lookups, all at a time.
    pub fn expect(&self, lookups: &[u64]) {
        for &hash in lookups {
            self.hot.prefetch_floor(hash);
        }
        self.hot.ram.prefetch(lookups);
    }

    /// Answers a read that changes nothing, if RAM has a visible entry: `word` gets the hit and
    /// puts it into words, as a rule while the shard is locked, so it must not block. `scratch` is
    /// for values that have to be decoded.
    ///
    /// Returns false if it takes more than that; nothing was done then. The caller counts what was
    /// answered with [`Engine::count_hits`].
    #[inline]
    pub fn answer_hit(
        &self,
        space: Space,
        get: &Get<'_>,
        moment: Moment,
        scratch: &mut Vec<u8>,
        word: impl FnOnce(&Outcome<'_>),
    ) -> bool {
        if get.changes_entry() {
            return false;
        }
        let hot = &*self.hot;
        let hash = hot.ram.hash(space, get.key);
        let mut shard = hot.ram.lock(hash);
        let Some(slot) = shard.find(hash, space, get.key) else {
            return false;
        };
        let found = shard.get(slot);
        let meta = found.meta;
        if found.tombstone
            || hot.absence(space, &meta, moment.now_ms).is_some()
            // The recache token may have to be given out.
            || get.claim && (meta.stale || meta.token_sent)
        {
            return false;
        }
        let present = Present {
            meta,
            value: &[],
            shared: None,
            value_len: 0,
            fetched: found.fetched,
            idle_s: moment.now_s.saturating_sub(found.last_used_s),
        };
        if found.framed {
            let value_len_max = self.settings.value_len_max;
            let Ok(frame) = Frame::parse(found.stored.as_slice(), value_len_max) else {
                return false;
            };
            let len = frame.original_len();
            if !get.want_value {
                word(&hit(&present, len, Value::Copied(&[]), moment));
            } else if len <= SHORT_LEN_MAX {
                let value = room(scratch, len);
                if frame.decode_to(value).is_err() {
                    return false;
                }
                word(&hit(&present, len, Value::Copied(value), moment));
            } else {
                // To decode it takes a while, for which the shard is not locked.
                let stored = found.stored.to_bytes();
                if get.bump {
                    shard.touch_use(slot, moment.now_s);
                }
                drop(shard);
                let value = room(scratch, len);
                let decoded = Frame::parse(&stored, value_len_max)
                    .is_ok_and(|frame| frame.decode_to(value).is_ok());
                if !decoded {
                    return false;
                }
                hot.namespaces.count(space, Asked::Hit);
                word(&hit(&present, len, Value::Copied(value), moment));
                return true;
            }
        } else {
            let len = found.stored.as_slice().len();
            let value = match found.stored {
                _ if !get.want_value => Value::Copied(&[]),
                Stored::Inline(bytes) => Value::Copied(bytes),
                Stored::Shared(bytes) => Value::Shared(bytes.clone()),
            };
            word(&hit(&present, len, value, moment));
        }
        hot.namespaces.count(space, Asked::Hit);
        if get.bump {
            shard.touch_use(slot, moment.now_s);
        }
        true
    }
}

/// A hit with its value, of `value_len` bytes.
#[inline]
fn hit<'v>(
    present: &Present<'_>,
    value_len: usize,
    value: Value<'v>,
    moment: Moment,
) -> Outcome<'v> {
    let present = Present {
        value_len,
        ..*present
    };
    Outcome::Hit(Hit {
        value,
        ..semantics::hit(&present, moment.now_ms)
    })
}

/// The first `len` bytes of `scratch`, to be overwritten. It never gets shorter: what LZ4 and
/// Snappy decode into has to be initialized, and would be filled with zeros each time.
fn room(scratch: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if scratch.capacity() < len {
        // What it holds need not move.
        *scratch = vec![0; len];
    } else if scratch.len() < len {
        scratch.resize(len, 0);
    }
    scratch.split_at_mut(len).0
}
