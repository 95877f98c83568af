//! Carrying a change out: RAM and the disk's queue, under the lock of the key's shard.

use bytes::Bytes;
use fonn_base::ack::Ack;
use fonn_base::entry::{Meta, Space};
use fonn_codec::frame::Header;
use fonn_codec::{CodecId, CodecSpec, Encoding};
use fonn_disk_tier::{DiskEntry, DiskObserver, Durability, Write, WriteKind};
use fonn_proto::{Command, Failure, StoreMode, Version};
use fonn_ram_tier::{INLINE_LEN_MAX, NewEntry, ShardGuard, SlotId, StoredIn};

use super::fetch::From;
use super::semantics::Change;
use super::{Acks, Engine, Hot, Job, There};

/// Longest value of a request that is copied. The queue of the disk tier keeps a longer one where
/// it arrived, and with it the buffer of the connection.
const COPIED_LEN_MAX: usize = 4096;

/// The entry that a change is about.
pub(super) struct Target<'a> {
    pub hash: u64,
    pub job: &'a Job<'a>,
    pub there: &'a There<'a>,
    /// The value to store, where it was made or prepared.
    pub made: Option<Content>,
    /// The form that RAM gives to what was fetched, where it was prepared.
    pub fetched_form: Option<&'a RamForm>,
}

impl Target<'_> {
    /// The form that RAM gives to an entry that was fetched.
    fn form_of(&self, engine: &Engine, entry: &DiskEntry) -> RamForm {
        match self.fetched_form {
            Some(form) => form.clone(),
            None => engine.ram_form(entry.value.clone(), entry.frame.as_ref()),
        }
    }

    /// Whether the command counts as a use of the entry. As in memcached, a refused store or number
    /// does not.
    fn is_use(&self) -> bool {
        match self.job.command {
            Command::Get(get) => get.bump,
            Command::Touch(_) => true,
            _ => false,
        }
    }
}

/// A value as RAM stores it.
#[derive(Clone)]
pub(super) struct RamForm {
    pub stored: Bytes,
    /// Whether that is a frame.
    pub framed: bool,
}

/// A value on its way into both tiers.
#[derive(Clone)]
pub(super) enum Content {
    /// A new one.
    Fresh(Bytes),
    /// A new one, whose form in RAM was made before the shard was locked.
    Formed { value: Bytes, form: RamForm },
    /// The one that the entry of version `of` has. No tier encodes it again.
    Kept { of: Version, form: RamForm },
}

impl Content {
    fn stored_len(&self) -> usize {
        match self {
            Self::Fresh(value) | Self::Formed { value, .. } => value.len(),
            Self::Kept { form, .. } => form.stored.len(),
        }
    }

    fn write(&self, meta: Meta) -> WriteKind {
        match self {
            Self::Fresh(value) | Self::Formed { value, .. } => WriteKind::Put {
                meta,
                value: value.clone(),
            },
            Self::Kept { of, form } => WriteKind::Facts {
                meta,
                of: *of,
                stored: form.stored.clone(),
                framed: form.framed,
            },
        }
    }
}

/// Why a change was not carried out; nothing was changed then.
pub(super) enum Refused {
    /// The disk's queue has no room for a write of this cost.
    Full(usize),
    /// The disk refuses for another reason, or the value is too large.
    Failed(Failure),
}

/// An entry on its way into RAM.
#[derive(Clone, Copy)]
pub(super) struct Fresh<'a> {
    pub(super) hash: u64,
    pub(super) space: Space,
    pub(super) key: &'a [u8],
    pub(super) meta: Meta,
    /// Whether the disk does not have it yet.
    pub(super) dirty: bool,
}

impl Engine {
    /// Whether RAM takes an entry of this size: about half of its budget.
    pub(super) fn fits_ram(&self, key_len: usize, value_len: usize) -> bool {
        value_len.saturating_add(key_len) <= (self.hot.ram.budget() / 2).saturating_sub(1024)
    }

    /// Carries out a change. Returns whether RAM may have grown.
    ///
    /// # Errors
    /// Why the disk refuses; nothing was changed then. A set of a value that is too large has
    /// removed what it should have replaced: the client may find that no more.
    pub(super) fn commit(
        &self,
        shard: &mut ShardGuard<'_>,
        target: &Target<'_>,
        change: Change,
        now_s: u32,
        acks: &mut Acks,
    ) -> Result<bool, Refused> {
        // A change of the facts or of a number is put as a new entry, which would not be marked as
        // fetched.
        let keeps_mark =
            matches!(change, Change::Meta(_)) || matches!(target.job.command, Command::Arith(_));
        let was_fetched = match target.there {
            There::Slot(slot) => keeps_mark && shard.get(*slot).fetched,
            _ => false,
        };
        let is_put = change.version().is_some() && !matches!(change, Change::Remove(_));
        let replaces = match (target.job.command, &change) {
            (Command::Store(store), Change::PutRequest(meta))
                if store.mode == StoreMode::Set && store.compare.is_none() =>
            {
                Some(meta.version)
            }
            _ => None,
        };
        let carried_out = self.carry_out(shard, target, change, now_s, acks);
        if let (Err(Refused::Failed(Failure::TooLarge)), Some(version)) = (&carried_out, replaces) {
            self.carry_out(shard, target, Change::Remove(version), now_s, acks)?;
        }
        let grown = carried_out?;
        if is_put && (target.is_use() || was_fetched) {
            let (space, key) = (target.job.space, target.job.command.key());
            if let Some(slot) = shard.find(target.hash, space, key) {
                shard.touch_use(slot, now_s);
            }
        }
        Ok(grown)
    }

    fn carry_out(
        &self,
        shard: &mut ShardGuard<'_>,
        target: &Target<'_>,
        change: Change,
        now_s: u32,
        acks: &mut Acks,
    ) -> Result<bool, Refused> {
        match change {
            Change::Keep | Change::TokenSent => {
                let mut grown = false;
                let slot = match target.there {
                    There::Slot(slot) => Some(*slot),
                    There::Fetched(entry, from) => {
                        grown = true;
                        if *from == From::Cold {
                            let (space, key) = (target.job.space, target.job.command.key());
                            self.keep_on_disk(space, key, entry);
                        }
                        let fresh = Fresh {
                            hash: target.hash,
                            space: target.job.space,
                            key: target.job.command.key(),
                            meta: entry.meta,
                            dirty: false,
                        };
                        let form = target.form_of(self, entry);
                        self.keep_in_ram(shard, fresh, form, now_s)
                    }
                    There::Facts(_) | There::Nothing(_) => None,
                };
                if let Some(slot) = slot {
                    if change == Change::TokenSent {
                        shard.set_token_sent(slot);
                    }
                    if target.is_use() {
                        shard.touch_use(slot, now_s);
                    }
                }
                Ok(grown)
            }
            Change::PutRequest(meta) => {
                let request = || Content::Fresh(self.request_value(target.job));
                let content = target.made.clone().unwrap_or_else(request);
                self.put_content(shard, target, meta, content, now_s, acks)
            }
            Change::PutGrown(meta) => {
                let made = target.made.clone();
                let content = made.ok_or(Refused::Failed(Failure::Unavailable))?;
                self.put_content(shard, target, meta, content, now_s, acks)
            }
            Change::PutBuilt(meta, value) => {
                let content = Content::Fresh(Bytes::from(value));
                self.put_content(shard, target, meta, content, now_s, acks)
            }
            Change::Meta(meta) => {
                let content = self.kept_content(shard, target)?;
                self.put_content(shard, target, meta, content, now_s, acks)
            }
            Change::Remove(version) => {
                let at = (target.hash, target.job.space, target.job.command.key());
                self.remove_key(shard, at, version, acks).map(|()| false)
            }
        }
    }

    /// Has the disk keep what came from the bucket. It is not there yet when RAM gives it up again,
    /// or not at all when the queue is full: then the bucket is asked once more.
    pub(super) fn keep_on_disk(&self, space: Space, key: &[u8], entry: &DiskEntry) {
        let Some(disk) = &self.disk else { return };
        let kind = WriteKind::Put {
            meta: entry.meta,
            value: entry.value.clone(),
        };
        let len = key.len() + entry.value.len();
        if disk.try_write(Write::new(space, key, kind)).is_ok() {
            self.hot.namespaces.charge(space, len);
        }
    }

    /// The value of a store: shared with the connection's buffer where that is worth it, and with
    /// a buffer that holds nothing else.
    pub(crate) fn request_value(&self, job: &Job<'_>) -> Bytes {
        let value = match job.command {
            Command::Store(store) => store.value,
            _ => &[],
        };
        match job.source {
            Some(source) if value.len() > COPIED_LEN_MAX || value.len() == source.len() => {
                source.slice_ref(value)
            }
            _ => Bytes::copy_from_slice(value),
        }
    }

    /// The value that is there, as it is stored there: for changes of the facts alone.
    fn kept_content(
        &self,
        shard: &ShardGuard<'_>,
        target: &Target<'_>,
    ) -> Result<Content, Refused> {
        let (of, form) = match target.there {
            There::Slot(slot) => {
                let found = shard.get(*slot);
                let (stored, framed) = (found.stored.to_bytes(), found.framed);
                (found.meta.version, RamForm { stored, framed })
            }
            There::Fetched(entry, _) => (entry.meta.version, target.form_of(self, entry)),
            There::Facts(_) | There::Nothing(_) => {
                return Err(Refused::Failed(Failure::Unavailable));
            }
        };
        Ok(Content::Kept { of, form })
    }

    fn put_content(
        &self,
        shard: &mut ShardGuard<'_>,
        target: &Target<'_>,
        meta: Meta,
        content: Content,
        now_s: u32,
        acks: &mut Acks,
    ) -> Result<bool, Refused> {
        let (space, key) = (target.job.space, target.job.command.key());
        let len = key.len().saturating_add(content.stored_len());
        let admitted = self.hot.namespaces.admit(space, len);
        admitted.map_err(Refused::Failed)?;
        let fresh = self.fresh(target.hash, space, key, meta);
        self.put_entry(shard, fresh, content, now_s, acks)?;
        Ok(true)
    }

    /// An entry that is new to both tiers.
    pub(super) fn fresh<'k>(
        &self,
        hash: u64,
        space: Space,
        key: &'k [u8],
        meta: Meta,
    ) -> Fresh<'k> {
        Fresh {
            hash,
            space,
            key,
            meta,
            dirty: self.disk.is_some(),
        }
    }

    /// Writes an entry to both tiers.
    pub(super) fn put_entry(
        &self,
        shard: &mut ShardGuard<'_>,
        fresh: Fresh<'_>,
        content: Content,
        now_s: u32,
        acks: &mut Acks,
    ) -> Result<(), Refused> {
        let len = content.stored_len();
        self.put_on_disk(&fresh, len, || content.write(fresh.meta), acks)?;
        let form = match content {
            Content::Fresh(value) => self.ram_form(value, None),
            Content::Formed { form, .. } | Content::Kept { form, .. } => form,
        };
        let kept = self.keep_in_ram(shard, fresh, form, now_s);
        self.put_in_ram(shard, &fresh, kept)
    }

    /// As [`Engine::put_entry`], for the value of a request on the short way. `plain` is that
    /// value, if it was copied already.
    pub(super) fn put_request(
        &self,
        shard: &mut ShardGuard<'_>,
        fresh: Fresh<'_>,
        (job, value, plain): (&Job<'_>, &[u8], Option<&Bytes>),
        now_s: u32,
        acks: &mut Acks,
    ) -> Result<(), Refused> {
        let len = fresh.key.len().saturating_add(value.len());
        if let Some(failure) = self.hot.namespaces.refusal(fresh.space, len) {
            return Err(Refused::Failed(failure));
        }
        let (spec, min_bytes) = self.ram_codec.active();
        let is_offered = value.len() >= min_bytes;
        let is_encoded = is_offered && spec.id() != CodecId::NONE;
        if value.len() > INLINE_LEN_MAX || is_encoded {
            let made = || self.request_value(job);
            let content = Content::Fresh(plain.cloned().unwrap_or_else(made));
            return self.put_entry(shard, fresh, content, now_s, acks);
        }
        // RAM copies a short value. Without a disk it is copied nowhere else.
        let copied = || Bytes::copy_from_slice(value);
        let write = || WriteKind::Put {
            meta: fresh.meta,
            value: plain.cloned().unwrap_or_else(copied),
        };
        self.put_on_disk(&fresh, value.len(), write, acks)?;
        if is_offered {
            self.ram_codec.offer(value);
        }
        let kept = enter(shard, fresh, StoredIn::Slice(value), false, now_s);
        self.put_in_ram(shard, &fresh, kept)
    }

    /// The first half of a put: has the disk write the entry, if there is a disk.
    fn put_on_disk(
        &self,
        fresh: &Fresh<'_>,
        value_len: usize,
        kind: impl FnOnce() -> WriteKind,
        acks: &mut Acks,
    ) -> Result<(), Refused> {
        let &Fresh {
            hash, space, key, ..
        } = fresh;
        if !self.fits_ram(key.len(), value_len) {
            return Err(Refused::Failed(Failure::TooLarge));
        }
        if fresh.dirty {
            self.enqueue(Write::new(space, key, kind()), acks)?;
            self.hot.namespaces.charge(space, key.len() + value_len);
        }
        self.hot.mutated(hash);
        self.hot.raise_floor(hash, fresh.meta.version);
        Ok(())
    }

    /// The second half of a put: what RAM has `kept`.
    fn put_in_ram(
        &self,
        shard: &mut ShardGuard<'_>,
        fresh: &Fresh<'_>,
        kept: Option<SlotId>,
    ) -> Result<(), Refused> {
        if kept.is_some() {
            return Ok(());
        }
        // The entry takes more than it was thought to, or the budget has shrunk since.
        if fresh.dirty {
            // The disk may still have an older value, so nothing is found until it has the new one.
            bury(
                shard,
                fresh.hash,
                fresh.space,
                fresh.key,
                fresh.meta.version,
            );
            return Ok(());
        }
        Err(Refused::Failed(Failure::OutOfSpace))
    }

    /// Puts an entry into RAM alone. None if RAM refuses it; what it had of the key is gone then.
    pub(super) fn keep_in_ram(
        &self,
        shard: &mut ShardGuard<'_>,
        fresh: Fresh<'_>,
        form: RamForm,
        now_s: u32,
    ) -> Option<SlotId> {
        let RamForm { stored, framed } = form;
        enter(shard, fresh, StoredIn::Shared(stored), framed, now_s)
    }

    /// A value in the form of the RAM level's codec. `frame` is the one that it has on disk, which
    /// is taken as it is if it has the same codec.
    pub(super) fn ram_form(&self, value: Bytes, frame: Option<&Bytes>) -> RamForm {
        let (spec, min_bytes) = self.ram_codec.active();
        if value.len() >= min_bytes {
            self.ram_codec.offer(&value);
            if spec.id() != CodecId::NONE
                && let Some(stored) = self.ram_frame(&value, frame, spec)
            {
                return RamForm {
                    stored,
                    framed: true,
                };
            }
        }
        RamForm {
            stored: value,
            framed: false,
        }
    }

    /// The frame of a value; None if it does not shrink.
    fn ram_frame(&self, value: &[u8], frame: Option<&Bytes>, spec: CodecSpec) -> Option<Bytes> {
        let is_same = |frame: &&Bytes| {
            Header::parse(frame, usize::MAX)
                .is_ok_and(|header| header.encoding() == Encoding::Compressed(spec))
        };
        if let Some(frame) = frame.filter(is_same) {
            return Some(frame.clone());
        }
        let mut frame = Vec::new();
        let attempt = |spec| self.ram_codec.attempt(spec, value, 1, &mut frame);
        if let Err(reason) = self.ram_codec.plan(value).and_then(attempt) {
            self.ram_codec.left(reason, value.len());
            return None;
        }
        frame.shrink_to_fit();
        Some(Bytes::from(frame))
    }

    /// Removes a key from both tiers.
    pub(super) fn remove_key(
        &self,
        shard: &mut ShardGuard<'_>,
        (hash, space, key): (u64, Space, &[u8]),
        version: Version,
        acks: &mut Acks,
    ) -> Result<(), Refused> {
        if self.disk.is_some() {
            let kind = WriteKind::Tombstone { version };
            self.enqueue(Write::new(space, key, kind), acks)?;
            self.hot.mutated(hash);
            self.hot.raise_floor(hash, version);
            bury(shard, hash, space, key, version);
            return Ok(());
        }
        self.hot.raise_floor(hash, version);
        if let Some(slot) = shard.find(hash, space, key) {
            shard.remove(slot);
        }
        Ok(())
    }

    /// Hands a write to the disk, with an acknowledgement if the durability mode asks for one. A
    /// disk that has refused too many writes gets none.
    pub(super) fn enqueue(&self, mut write: Write, acks: &mut Acks) -> Result<(), Refused> {
        let Some(disk) = &self.disk else {
            return Ok(());
        };
        if self.hot.unsettled.is_full() {
            return Err(Refused::Failed(Failure::Unavailable));
        }
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

/// Writes an entry into RAM. None if RAM refuses it; what it had of the key is gone then.
fn enter(
    shard: &mut ShardGuard<'_>,
    fresh: Fresh<'_>,
    stored: StoredIn<'_>,
    framed: bool,
    now_s: u32,
) -> Option<SlotId> {
    let Fresh {
        hash,
        space,
        key,
        meta,
        dirty,
    } = fresh;
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
                // The set is refused, and what the disk held before must not come back: as
                // memcached does when it runs out of memory, the key is gone. The tombstone stays
                // in RAM until the disk has one too. A copy out of the bucket is not dirty: there
                // it is all the same.
                let newest = shard.find(hash, space, key).map(|slot| shard.get(slot));
                let newest = newest.filter(|it| it.dirty && it.meta.version == version);
                if let Some(is_tombstone) = newest.map(|it| it.tombstone) {
                    // A member that sends the value again must not hear that it is known.
                    let hidden = version - u64::from(!is_tombstone && version > 0);
                    self.bury_unsettled(&mut shard, hash, space, key, hidden);
                }
            }
        }
    }

    fn keep(&self, space: Space, key: &[u8], meta: &Meta) -> bool {
        let now_ms = self.clock.wall_ms();
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
