//! Carrying a change out: RAM and the disk's queue, under the lock of the key's shard.

use std::sync::Arc;

use bytes::Bytes;
use fonn_codec::{CodecId, Encoding};
use fonn_proto::{Command, Failure, Version};

use super::semantics::Change;
use super::{Acks, Engine, Hot, Job, There};
use crate::ack::Ack;
use crate::entry::{Meta, Space};
use crate::lsm::{DiskObserver, Durability, Write, WriteKind};
use crate::ram::{INLINE_LEN_MAX, NewEntry, ShardGuard, SlotId, StoredIn};

/// The entry that a change is about.
pub(super) struct Target<'a> {
    pub hash: u64,
    pub job: &'a Job<'a>,
    pub there: &'a There<'a>,
    /// The value that is there, where it is shared.
    pub value: Option<&'a Bytes>,
}

/// Why a change was not carried out; nothing was changed then.
pub(super) enum Refused {
    /// The disk's queue has no room for a write of this cost.
    Full(usize),
    /// The disk refuses for another reason, or the value is too large.
    Failed(Failure),
}

/// An entry on its way into RAM.
struct Fresh<'a> {
    hash: u64,
    space: Space,
    key: &'a [u8],
    meta: Meta,
    /// Whether the disk does not have it yet.
    dirty: bool,
}

impl Engine {
    /// Whether RAM takes an entry of this size: about half of its budget.
    pub(super) fn fits_ram(&self, key_len: usize, value_len: usize) -> bool {
        value_len.saturating_add(key_len) <= (self.hot.ram.budget() / 2).saturating_sub(1024)
    }

    /// Carries out a change. Returns whether RAM may have grown.
    ///
    /// # Errors
    /// Why the disk refuses; nothing was changed then.
    pub(super) fn commit(
        &self,
        shard: &mut ShardGuard<'_>,
        target: &Target<'_>,
        change: Change,
        now_s: u32,
        acks: &mut Acks,
    ) -> Result<bool, Refused> {
        let bumps = match target.job.command {
            Command::Get(get) => get.bump,
            _ => true,
        };
        match change {
            Change::Keep | Change::TokenSent => {
                let mut grown = false;
                let slot = match target.there {
                    There::Slot(slot) => Some(*slot),
                    There::Fetched(entry) => {
                        grown = true;
                        let fresh = Fresh {
                            hash: target.hash,
                            space: target.job.space,
                            key: target.job.command.key(),
                            meta: entry.meta,
                            dirty: false,
                        };
                        self.keep_in_ram(shard, fresh, &entry.value, now_s)
                    }
                    There::Nothing(_) => None,
                };
                if let Some(slot) = slot {
                    if change == Change::TokenSent {
                        let meta = Meta {
                            token_sent: true,
                            ..shard.get(slot).meta
                        };
                        // Without room for it, one more client may be told to recache: no harm.
                        let _ = shard.set_meta(slot, &meta);
                    }
                    if bumps {
                        shard.touch_use(slot, now_s);
                    }
                }
                Ok(grown)
            }
            Change::PutRequest(meta) => {
                let value = self.request_value(target.job);
                self.put(shard, target, meta, value, now_s, acks)
            }
            Change::PutBuilt(meta, value) => {
                self.put(shard, target, meta, Bytes::from(value), now_s, acks)
            }
            Change::Meta(meta) => {
                let value = match target.value {
                    Some(value) => value.clone(),
                    None => self.inline_value(shard, target)?,
                };
                self.put(shard, target, meta, value, now_s, acks)
            }
            Change::Remove(version) => self.remove(shard, target, version, acks).map(|()| false),
        }
    }

    /// The value of a store: shared with the connection's buffer where that is worth it.
    fn request_value(&self, job: &Job<'_>) -> Bytes {
        let value = match job.command {
            Command::Store(store) => store.value,
            _ => &[],
        };
        match job.source {
            Some(source) if value.len() > INLINE_LEN_MAX => source.slice_ref(value),
            _ => Bytes::copy_from_slice(value),
        }
    }

    /// The decoded value of an entry in RAM, copied: for changes of the facts alone.
    fn inline_value(&self, shard: &ShardGuard<'_>, target: &Target<'_>) -> Result<Bytes, Refused> {
        let garbled = Refused::Failed(Failure::Unavailable);
        let There::Slot(slot) = target.there else {
            return Err(garbled);
        };
        let mut value = Vec::new();
        super::read(
            &shard.get(*slot),
            true,
            self.settings.value_len_max,
            &mut value,
        )
        .map(|read| read.shared.unwrap_or_else(|| Bytes::from(value)))
        .ok_or(garbled)
    }

    pub(super) fn put(
        &self,
        shard: &mut ShardGuard<'_>,
        target: &Target<'_>,
        meta: Meta,
        value: Bytes,
        now_s: u32,
        acks: &mut Acks,
    ) -> Result<bool, Refused> {
        let (space, key) = (target.job.space, target.job.command.key());
        self.put_entry(shard, target.hash, space, key, meta, value, now_s, acks)?;
        Ok(true)
    }

    /// Writes an entry to both tiers.
    #[expect(clippy::too_many_arguments, reason = "an entry and where it goes")]
    pub(super) fn put_entry(
        &self,
        shard: &mut ShardGuard<'_>,
        hash: u64,
        space: Space,
        key: &[u8],
        meta: Meta,
        value: Bytes,
        now_s: u32,
        acks: &mut Acks,
    ) -> Result<(), Refused> {
        if !self.fits_ram(key.len(), value.len()) {
            return Err(Refused::Failed(Failure::TooLarge));
        }
        let dirty = self.disk.is_some();
        if dirty {
            let kind = WriteKind::Put {
                meta,
                value: value.clone(),
            };
            let key = Bytes::copy_from_slice(key);
            self.enqueue(
                Write {
                    space,
                    key,
                    kind,
                    ack: None,
                },
                acks,
            )?;
        }
        self.hot.mutated(hash);
        let fresh = Fresh {
            hash,
            space,
            key,
            meta,
            dirty,
        };
        if self.keep_in_ram(shard, fresh, &value, now_s).is_some() {
            return Ok(());
        }
        // The entry takes more than it was thought to, or the budget has shrunk since.
        if dirty {
            // The disk may still have an older value, so nothing is found until it has the new one.
            bury(shard, hash, space, key, meta.version);
            return Ok(());
        }
        Err(Refused::Failed(Failure::OutOfSpace))
    }

    /// Puts an entry into RAM alone, in the form of the RAM level's codec. None if RAM refuses it; what
    /// it had of the key is gone then.
    fn keep_in_ram(
        &self,
        shard: &mut ShardGuard<'_>,
        fresh: Fresh<'_>,
        value: &Bytes,
        now_s: u32,
    ) -> Option<SlotId> {
        let Fresh {
            hash,
            space,
            key,
            meta,
            dirty,
        } = fresh;
        let (spec, min_bytes) = *self.ram_codec.read();
        let mut frame = Vec::new();
        let framed = spec.id() != CodecId::NONE
            && value.len() >= min_bytes
            && fonn_codec::encode(spec, min_bytes, value, &mut frame)
                .is_ok_and(|encoded| matches!(encoded.encoding, Encoding::Compressed(_)));
        let stored = match framed {
            true if frame.len() > INLINE_LEN_MAX => {
                frame.shrink_to_fit();
                StoredIn::Shared(Bytes::from(frame))
            }
            true => StoredIn::Slice(&frame),
            false => StoredIn::Shared(value.clone()),
        };
        let entry = NewEntry {
            space,
            key,
            stored,
            meta,
            framed,
            dirty,
        };
        match shard.insert(hash, entry, now_s) {
            Ok(slot) => Some(slot),
            Err(_) => {
                // What RAM has is older.
                if let Some(slot) = shard.find(hash, space, key) {
                    shard.remove(slot);
                }
                None
            }
        }
    }

    pub(super) fn remove(
        &self,
        shard: &mut ShardGuard<'_>,
        target: &Target<'_>,
        version: Version,
        acks: &mut Acks,
    ) -> Result<(), Refused> {
        let (space, key) = (target.job.space, target.job.command.key());
        if self.disk.is_some() {
            let write = Write {
                space,
                key: Bytes::copy_from_slice(key),
                kind: WriteKind::Tombstone { version },
                ack: None,
            };
            self.enqueue(write, acks)?;
            self.hot.mutated(target.hash);
            bury(shard, target.hash, space, key, version);
        } else if let There::Slot(slot) = target.there {
            shard.remove(*slot);
        } else if let Some(slot) = shard.find(target.hash, space, key) {
            shard.remove(slot);
        }
        Ok(())
    }

    /// Hands a write to the disk, with an acknowledgement if the durability mode asks for one.
    fn enqueue(&self, mut write: Write, acks: &mut Acks) -> Result<(), Refused> {
        let Some(disk) = &self.disk else {
            return Ok(());
        };
        if self.settings.durability != Durability::None {
            write.ack = Some(acks.next());
        }
        disk.try_write(write).map_err(|(mut write, failure)| {
            acks.take_back(write.ack.take());
            match failure {
                Failure::Busy => Refused::Full(write.cost()),
                other => Refused::Failed(other),
            }
        })
    }
}

impl Acks {
    /// Withdraws the acknowledgement that was made last: its write was not taken.
    fn take_back(&mut self, ack: Option<Ack>) {
        if let Some(ack) = ack {
            self.count -= 1;
            ack.complete(Ok(()));
        }
    }
}

impl DiskObserver for Hot {
    fn written(&self, space: Space, key: &[u8], version: Version, result: Result<(), Failure>) {
        let hash = self.ram.hash(space, key);
        let mut shard = self.ram.lock(hash);
        match result {
            Ok(()) => {
                shard.clear_dirty_if_version(hash, space, key, version);
            }
            Err(_) => {
                // The set is refused, and what the disk held before must not come back: as memcached
                // does when it runs out of memory, the key is gone. The tombstone stays in RAM until
                // the disk has one too.
                let newest = shard
                    .find(hash, space, key)
                    .is_some_and(|slot| shard.get(slot).meta.version == version);
                if newest {
                    self.bury_unsettled(&mut shard, hash, space, key, version);
                }
            }
        }
    }

    fn keep(&self, space: Space, key: &[u8], meta: &Meta) -> bool {
        let now_ms = self.clock.coarse_wall_ms();
        if self.absence(space, meta, now_ms).is_some() {
            return false;
        }
        let hash = self.ram.hash(space, key);
        let shard = self.ram.lock(hash);
        shard
            .find(hash, space, key)
            .is_some_and(|slot| shard.get(slot).meta.version == meta.version)
    }
}

impl Hot {
    /// Hides a key behind a tombstone in RAM, which the disk shall get as soon as it takes it.
    pub(super) fn bury_unsettled(
        &self,
        shard: &mut ShardGuard<'_>,
        hash: u64,
        space: Space,
        key: &[u8],
        version: Version,
    ) {
        self.mutated(hash);
        bury(shard, hash, space, key, version);
        let key = Bytes::copy_from_slice(key);
        self.unsettled.lock().push((space, key, version));
    }
}

/// Puts a tombstone into RAM.
pub(super) fn bury(
    shard: &mut ShardGuard<'_>,
    hash: u64,
    space: Space,
    key: &[u8],
    version: Version,
) {
    let buried = shard.insert_tombstone(hash, space, key, version);
    debug_assert!(buried.is_ok(), "parsers let no key pass that RAM refuses");
}

/// The observer for the disk tier.
pub(super) fn observer(hot: &Arc<Hot>) -> Arc<dyn DiskObserver> {
    Arc::clone(hot) as Arc<dyn DiskObserver>
}
