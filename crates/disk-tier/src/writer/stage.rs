//! From a write to a record: what is checked before, what is left out, and how it is encoded.

use bytes::Bytes;

use fonn_base::entry::Meta;
use fonn_proto::{Failure, Version};

use super::{Staged, Staging, Writer};
use crate::queue::Carry;
use crate::reader::{Looked, look};
use crate::record::{
    BOUND_FRAME_LEN, ERASED, Fact, HEAD_LEN, IndexKey, KEY_LEN_MAX, Record, index_key, write_head,
};
use crate::stats::add;
use crate::value;
use crate::write::{Write, WriteKind};

/// What a record is to hold.
enum Content {
    Value(Bytes),
    Frame(Bytes),
}

impl Content {
    /// Length of the value; of a frame's, about.
    fn value_len(&self) -> usize {
        match self {
            Self::Value(value) => value.len(),
            Self::Frame(frame) => frame.len().saturating_sub(BOUND_FRAME_LEN),
        }
    }
}

impl Writer<'_> {
    /// Stages what a write needs. `room` is whether values may be written.
    pub(super) fn stage(
        &mut self,
        write: &Write,
        room: Result<(), Failure>,
    ) -> Result<Staging, Failure> {
        if write.key.len() > KEY_LEN_MAX {
            return Err(Failure::TooLarge);
        }
        let key = index_key(write.space, &write.key);
        match &write.kind {
            WriteKind::Put { meta, value } => {
                room?;
                self.stage_put(key, write, *meta, &Content::Value(value.clone()))
            }
            WriteKind::Facts {
                meta,
                of,
                stored,
                framed,
            } => {
                room?;
                let content = match self.frame_on_disk(&key, write, *of) {
                    Some(frame) => Content::Frame(frame),
                    None if *framed => Content::Frame(stored.clone()),
                    None => Content::Value(stored.clone()),
                };
                self.stage_put(key, write, *meta, &content)
            }
            WriteKind::Tombstone { version } => Ok(self.stage_tombstone(key, write, *version)),
        }
    }

    fn stage_put(
        &mut self,
        key: IndexKey,
        write: &Write,
        meta: Meta,
        content: &Content,
    ) -> Result<Staging, Failure> {
        if content.value_len() > self.shared.options.value_len_max {
            return Err(Failure::TooLarge);
        }
        if self.is_superseded(&key, meta.version) {
            return Ok(self.as_staged(&key));
        }
        // The frame comes behind the head, which needs its start: the head goes in between later.
        let start = self.scratch.len();
        self.scratch.resize(start + HEAD_LEN + write.key.len(), 0);
        let frame_start = self.scratch.len();
        let Some((frame_in_all, tail)) = self.append_frame(content) else {
            self.scratch.truncate(start);
            return Err(Failure::TooLarge);
        };
        let record_len = HEAD_LEN + write.key.len() + frame_in_all;
        let (Ok(record_len), Ok(frame_len)) =
            (u32::try_from(record_len), u32::try_from(frame_in_all))
        else {
            return Err(Failure::TooLarge);
        };
        if u64::from(record_len) > self.shared.limits().generation_max {
            self.scratch.truncate(start);
            return Err(Failure::OutOfSpace);
        }
        let fact = Fact::Put(meta);
        let bound = self
            .scratch
            .get(frame_start..frame_start + BOUND_FRAME_LEN)
            .unwrap_or(&[]);
        self.head.clear();
        write_head(
            &mut self.head,
            (write.space, &write.key),
            &fact,
            bound,
            frame_len,
        );
        if let Some(place) = self.scratch.get_mut(start..frame_start) {
            place.copy_from_slice(&self.head);
        }
        let head = start..self.scratch.len();
        self.push(
            key,
            Staged {
                head,
                tail,
                fact,
                record_len,
            },
        );
        Ok(Staging::Record)
    }

    /// Appends the frame of a value, or what precedes its tail, to the scratch buffer. Returns the
    /// length of all of it, and the tail. None if it would be longer than a frame can be.
    fn append_frame(&mut self, content: &Content) -> Option<(usize, Bytes)> {
        let value = match content {
            Content::Frame(frame) => {
                let bound = frame.get(..BOUND_FRAME_LEN)?;
                self.scratch.extend_from_slice(bound);
                return Some((frame.len(), frame.slice(BOUND_FRAME_LEN..)));
            }
            Content::Value(value) => value,
        };
        let fresh = &self.shared.fresh;
        fresh.offer(value);
        let idle = &self.shared.idle_cpus;
        let encoded = value::encode(fresh, value, &mut self.scratch, idle)?;
        add(
            &self.shared.stats.values_shared,
            u64::from(encoded.threads > 1),
        );
        Some((encoded.frame_len, encoded.tail))
    }

    /// The frame that the entry of this version has on disk, intact.
    fn frame_on_disk(&self, key: &IndexKey, write: &Write, of: Version) -> Option<Bytes> {
        if self.newest.contains_key(key) {
            // Staged with this batch: not to be read yet.
            return None;
        }
        let found = self.shared.generations.find(key).ok()??;
        if found.entry.fact.version() != of {
            return None;
        }
        let place = (write.space, &*write.key);
        match look(&found.generation.log, &found.entry, place) {
            Looked::Whole { frame, .. } if value::is_intact(&frame) => Some(frame),
            _ => None,
        }
    }

    /// Whether a newer record of the key is in this batch or in the newest generation. Writes that
    /// overtake each other are close together, so older generations are not asked.
    fn is_superseded(&self, key: &IndexKey, version: u64) -> bool {
        if version == ERASED {
            // It is about what comes before it in the queue.
            return false;
        }
        if let Some(staged) = self.newest.get(key).and_then(|&at| self.staged.get(at)) {
            return staged.fact.version() > version;
        }
        let Some(newest) = self.shared.generations.newest() else {
            return false;
        };
        if self.bounds.are_below(newest.id, key, version) {
            return false;
        }
        let known = newest.index.get(key).ok().flatten();
        known.is_some_and(|known| known.fact.version() > version)
    }

    /// What a write needs that a newer record makes needless. A record of this batch may fail, and
    /// the write must fail with it: otherwise older values are served that it replaced.
    fn as_staged(&self, key: &IndexKey) -> Staging {
        if self.newest.contains_key(key) {
            Staging::Record
        } else {
            Staging::Nothing
        }
    }

    fn stage_tombstone(&mut self, key: IndexKey, write: &Write, version: u64) -> Staging {
        if self.is_superseded(&key, version) {
            return self.as_staged(&key);
        }
        let is_needed = version == ERASED || self.shared.keeps_tombstones();
        if !is_needed && !self.has_value(&key, write) {
            return Staging::Nothing;
        }
        let fact = Fact::Tombstone(version);
        let start = self.scratch.len();
        write_head(&mut self.scratch, (write.space, &write.key), &fact, &[], 0);
        let head = start..self.scratch.len();
        let record_len = u32::try_from(head.len()).unwrap_or(u32::MAX);
        self.push(
            key,
            Staged {
                head,
                tail: Bytes::new(),
                fact,
                record_len,
            },
        );
        Staging::Record
    }

    /// Whether a read might find a value, now or after a restart.
    fn has_value(&self, key: &IndexKey, write: &Write) -> bool {
        if self.newest.contains_key(key) {
            // Its record may fail, and this deletion must fail with it.
            return true;
        }
        let is_put = |fact: &Fact| matches!(fact, Fact::Put(_));
        match self.shared.generations.find(key) {
            Ok(Some(found)) if is_put(&found.entry.fact) => true,
            Ok(_) => self.is_unsure || self.may_be_below(write),
            Err(_) => true,
        }
    }

    fn may_be_below(&self, write: &Write) -> bool {
        let below = self.shared.below.as_ref();
        below.is_some_and(|below| below.may_have(write.space, &write.key))
    }

    /// Stages a copy of an old record, if that is still the newest of its key.
    pub(super) fn stage_carry(&mut self, carry: Carry) {
        let stats = &self.shared.stats;
        let Some(record) = Record::parse(&carry.record) else {
            return;
        };
        let key = index_key(carry.space, record.key);
        let is_newest = !self.newest.contains_key(&key)
            && self
                .shared
                .generations
                .newest()
                .is_some_and(|newest| newest.id != carry.generation)
            && self.shared.generations.find(&key).is_ok_and(|found| {
                found.is_some_and(|found| {
                    found.generation.id == carry.generation && found.entry.fact == carry.fact
                })
            });
        let Ok(record_len) = u32::try_from(carry.record.len()) else {
            return;
        };
        if !is_newest {
            add(&stats.carries_skipped, 1);
            return;
        }
        add(&stats.carried, 1);
        add(&stats.carried_bytes, u64::from(record_len));
        let at = self.scratch.len();
        let (fact, tail) = (record.fact, carry.record.clone());
        self.push(
            key,
            Staged {
                head: at..at,
                tail,
                fact,
                record_len,
            },
        );
    }

    fn push(&mut self, key: IndexKey, staged: Staged) {
        self.newest.insert(key, self.staged.len());
        self.staged.push(staged);
    }
}
