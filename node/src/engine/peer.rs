//! Entries from and for other members: replicas and hand-over.
//!
//! They come with the version that their owner gave them. One is kept only if it is newer than all
//! that RAM, disk and the bucket's index know of its key, tombstones among it; so the order in
//! which they arrive does not matter, nor does their repetition. The clock is moved past every
//! version that is kept, and the version is used only below the ceiling that is on disk, as with
//! own writes.
//!
//! What was dropped with an old generation is known nowhere, unless there is a bucket: a key that
//! is not known is taken only with a version above those.
//!
//! A version above all that is known of a stripe of keys (`Hot::floor`) is newer without a look at
//! the disk. Without a disk, a key that RAM gave up is forgotten with its version: what comes for
//! such a key is kept only if its version is above that floor.

mod again;
pub(super) mod feed;
mod hide;

use std::time::Instant;

use bytes::Bytes;
use fonn_base::entry::{Meta, Space};
use fonn_codec::Frame;
use fonn_cold_tier::Location;
use fonn_disk_tier::{DiskEntry, DiskFound, DiskProbed, DiskTier, ERASED, Fact, Reach};
use fonn_proto::command::RESP_KEY_LEN_MAX;
use fonn_proto::outcome::Value;
use fonn_proto::overlay::OVERLAY_PREFIX_LEN;
use fonn_proto::peer::{self, SlotSet};
use fonn_proto::placement::slot;
use fonn_proto::{Failure, Version};
use fonn_ram_tier::Found;
use thiserror::Error;

use super::commit::{self, Content, RamForm, Refused};
use super::newest::Newest;
use super::{Acks, EVICTIONS_MAX, Engine, FETCHES_MAX, ROOM_WAIT, Ticket};

/// Keys that one page may name.
const PAGE_KEYS_MAX: usize = 4096;

/// Without a disk: RAM slots that one step looks at, and steps of one page.
const RAM_SCAN_SLOTS: usize = 64;
const RAM_SCAN_STEPS: usize = 256;

const BAD_CURSOR: PutError = PutError::Malformed("its cursor is none of ours");

/// Values above this length are named in a page, and fetched by themselves.
const PAGE_VALUE_LEN_MAX: usize = 64 * 1024;

/// Why an entry of another member was not taken.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum PutError {
    /// It is malformed: its version is more than a year ahead, its space does not exist, its
    /// frame is damaged.
    #[error("the entry is malformed: {0}")]
    Malformed(&'static str),
    /// It could not be written.
    #[error("the entry could not be kept")]
    Failed(Failure),
}

impl From<Failure> for PutError {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// An entry for another member.
#[derive(Clone, Debug, PartialEq)]
pub struct Transfer {
    /// Its facts; of a tombstone only the version.
    pub meta: Meta,
    /// Its value; None for a tombstone.
    pub content: Option<(Bytes, Framing)>,
}

/// How a value is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// As the client gave it.
    Plain,
    /// As a frame of the codec crate.
    Framed,
}

/// What disk and bucket know of a key.
#[derive(Clone)]
enum BelowRam {
    /// Its newest entry or tombstone.
    Known(Transfer),
    /// The bucket has its newest entry, and the log has nothing that counts.
    InBucket(Location),
    /// It was evicted, or never there.
    Unknown,
}

/// Some entries of some slots.
#[derive(Debug, Default)]
pub struct SlotEntries {
    /// The entries.
    pub entries: peer::PageBuilder,
    /// Where to go on; empty at the end.
    pub next: Vec<u8>,
}

/// What one try of a put came to.
enum Try {
    Kept,
    NotNewer,
    /// The disk has to be asked about the key.
    Look(Ticket),
    Room(usize),
    Failed(Failure),
}

impl Transfer {
    fn tombstone(version: Version) -> Self {
        Self {
            meta: Meta::new(version, 0, 0),
            content: None,
        }
    }

    /// An entry with a value as its client gave it.
    pub(crate) fn plain(meta: Meta, value: Bytes) -> Self {
        Self {
            meta,
            content: Some((value, Framing::Plain)),
        }
    }

    /// An entry that was received. It has no content if its value is only named.
    #[must_use]
    pub fn received(entry: &peer::Entry<'_>) -> Self {
        let content = match &entry.content {
            peer::Content::Tombstone | peer::Content::Omitted { .. } => None,
            peer::Content::Value(value) => Some((owned(value), Framing::Plain)),
            peer::Content::Frame(frame) => Some((owned(frame), Framing::Framed)),
        };
        Self {
            meta: Meta {
                version: entry.version,
                cas_override: entry.cas,
                flags: entry.flags,
                expires_at_ms: entry.expires_at_ms.unwrap_or(0),
                stale: entry.is_stale,
                token_sent: entry.is_token_given,
                writer: entry.writer,
            },
            content,
        }
    }

    /// An entry as the disk or the bucket stores it.
    fn stored(entry: DiskEntry) -> Self {
        Self {
            meta: entry.meta,
            content: Some(match entry.frame {
                Some(frame) => (frame, Framing::Framed),
                None => (entry.value, Framing::Plain),
            }),
        }
    }

    /// The entry as it is sent. A value longer than `value_len_max` is only named.
    #[must_use]
    pub fn entry<'e>(
        &'e self,
        space: Space,
        key: &'e [u8],
        value_len_max: usize,
    ) -> peer::Entry<'e> {
        let content = match &self.content {
            None => peer::Content::Tombstone,
            Some((bytes, _)) if bytes.len() > value_len_max => peer::Content::Omitted {
                len: bytes.len() as u64,
            },
            Some((bytes, Framing::Plain)) => peer::Content::Value(Value::Shared(bytes.clone())),
            Some((bytes, Framing::Framed)) => peer::Content::Frame(Value::Shared(bytes.clone())),
        };
        peer::Entry {
            flags: self.meta.flags,
            expires_at_ms: (self.meta.expires_at_ms != 0).then_some(self.meta.expires_at_ms),
            cas: self.meta.cas_override,
            is_stale: self.meta.stale,
            is_token_given: self.meta.token_sent,
            writer: self.meta.writer,
            content,
            ..peer::Entry::tombstone(space.0, key, self.meta.version)
        }
    }
}

impl Engine {
    /// Has tombstones kept even of keys that are not known here: other members may still send older
    /// copies. For a node that belongs to a cluster.
    pub fn keep_tombstones(&self) {
        if let Some(disk) = &self.disk {
            disk.keep_tombstones();
        }
    }

    /// Keeps an entry or tombstone of another member if it is newer than what is known of its key.
    /// False if it is not. Until `acks` are waited for, the answer is provisional.
    ///
    /// # Errors
    /// If it cannot be kept; what was there before still is.
    pub async fn put_of_peer(
        &self,
        entry: &peer::Entry<'_>,
        acks: &mut Acks,
    ) -> Result<bool, PutError> {
        self.put_incoming(entry, None, acks).await
    }

    /// As [`Engine::put_of_peer`]. A copy of a slot that was hidden up to `hidden_to` may be older
    /// than what was forgotten here.
    async fn put_incoming(
        &self,
        entry: &peer::Entry<'_>,
        hidden_to: Option<Version>,
        acks: &mut Acks,
    ) -> Result<bool, PutError> {
        let incoming = self.check_incoming(entry)?;
        let (space, key) = (Space(entry.space), entry.key);
        let at = (self.hot.ram.hash(space, key), space, key);
        let version = entry.version;
        // The entry may have come from another region. Later versions of this member are above
        // its version, once their range contains it.
        self.ledger.hlc.hear(version).map_err(|_| {
            PutError::Malformed("its version is more than a year ahead of this member's clock")
        })?;
        let room_deadline = Instant::now() + ROOM_WAIT;
        let mut known = None;
        for _ in 0..FETCHES_MAX {
            if version >= self.ledger.ceiling() {
                self.reserve_versions().await?;
            }
            match self.try_put(at, &incoming, known, hidden_to, acks) {
                Try::Kept => return Ok(true),
                Try::NotNewer => return Ok(false),
                Try::Failed(failure) => return Err(failure.into()),
                Try::Look(ticket) => {
                    known = Some((ticket, self.newest_below(space, key).await?));
                }
                Try::Room(cost) => {
                    if !self.wait_for_room(cost, room_deadline).await {
                        return Err(Failure::Busy.into());
                    }
                }
            }
        }
        Err(Failure::Busy.into())
    }

    fn check_incoming(&self, entry: &peer::Entry<'_>) -> Result<Transfer, PutError> {
        if entry.version == 0 {
            return Err(PutError::Malformed("it has no version"));
        }
        if entry.key.len() > RESP_KEY_LEN_MAX + OVERLAY_PREFIX_LEN {
            return Err(PutError::Malformed("its key is too long"));
        }
        if matches!(entry.content, peer::Content::Omitted { .. }) {
            return Err(PutError::Malformed("its value is not there"));
        }
        let value_len_max = self.settings.value_len_max;
        let Transfer { meta, content } = Transfer::received(entry);
        let content = match content {
            Some((frame, Framing::Framed)) => Some(opened(frame, value_len_max)?),
            content => content,
        };
        if let Some((bytes, Framing::Plain)) = &content
            && bytes.len() > value_len_max
        {
            return Err(Failure::TooLarge.into());
        }
        Ok(Transfer { meta, content })
    }

    /// The newest version that disk and bucket know of a key.
    async fn newest_below(&self, space: Space, key: &[u8]) -> Result<Option<Version>, Failure> {
        let Some(disk) = &self.disk else {
            return Ok(None);
        };
        let newest = disk.newest(space, key, Reach::Below).await;
        newest.map_err(|error| {
            tracing::debug!(%error, "disk read failed");
            Failure::Unavailable
        })
    }

    fn try_put(
        &self,
        (hash, space, key): (u64, Space, &[u8]),
        incoming: &Transfer,
        known: Option<(Ticket, Option<Version>)>,
        hidden_to: Option<Version>,
        acks: &mut Acks,
    ) -> Try {
        let hot = &*self.hot;
        let meta = incoming.meta;
        let mut shard = hot.ram.lock(hash);
        let newest = match shard.find(hash, space, key) {
            Some(slot) => Some(shard.get(slot).meta.version),
            None => {
                let floor = hot.floor(hash);
                // Whatever else was known of it, and is forgotten, was hidden.
                let unless_hidden =
                    |version: Version| Some(version).filter(|it| Some(*it) > hidden_to);
                match known {
                    // Most entries are as new as the moment: neither disk nor bucket can have a
                    // newer one, and need not be asked.
                    _ if meta.version > floor => Some(floor),
                    _ if self.disk.is_none() => unless_hidden(floor),
                    // An unknown key may have been dropped with all that is as old.
                    Some((ticket, newest)) if ticket == hot.ticket(hash) => newest.or_else(|| {
                        let forgotten = self.disk.as_ref().map(DiskTier::forgotten);
                        forgotten.and_then(unless_hidden)
                    }),
                    _ => return Try::Look(hot.ticket(hash)),
                }
            }
        };
        // What a flush has hidden is not kept either.
        if newest >= Some(meta.version) || self.has_flushed(space, meta.version) {
            return Try::NotNewer;
        }
        let now_s = hot.now_s();
        // What was purged is deleted, so that nothing older comes back in its place.
        let content = incoming.content.as_ref();
        let content = content.filter(|_| !self.has_purged(space, &meta));
        let result = match content {
            None => self.remove_key(&mut shard, (hash, space, key), meta.version, acks),
            Some((bytes, framing)) => {
                let content = match framing {
                    Framing::Plain => Content::Fresh(bytes.clone()),
                    Framing::Framed => Content::Kept {
                        of: meta.version,
                        form: RamForm {
                            stored: bytes.clone(),
                            framed: true,
                        },
                    },
                };
                let fresh = self.fresh(hash, space, key, meta);
                self.put_entry(&mut shard, fresh, content, now_s, acks)
            }
        };
        drop(shard);
        match result {
            Ok(()) => {
                hot.ram.evict_to_budget(Some(hash), now_s, EVICTIONS_MAX);
                self.evict_to_quota(hash, space);
                Try::Kept
            }
            Err(Refused::Full(cost)) => Try::Room(cost),
            Err(Refused::Failed(failure)) => Try::Failed(failure),
        }
    }

    /// Whether a flush has hidden a version. While a flush draws its cutoff it hides all of its
    /// space here, also what is newer than the cutoff: that must not be refused or deleted.
    fn has_flushed(&self, space: Space, version: Version) -> bool {
        let cutoff = self.hot.flushes.cutoff(space);
        cutoff != Version::MAX && version < cutoff
    }

    /// As [`Engine::has_flushed`], of a purge. Waits for a cutoff that is being drawn.
    fn has_purged(&self, space: Space, meta: &Meta) -> bool {
        let flushes = &self.hot.flushes;
        flushes.is_purged(space, meta)
            && flushes.purges().iter().any(|(purge, cutoff)| {
                meta.version < *cutoff && purge.covers(space, meta.writer, meta.version)
            })
    }

    /// The newest version that is known of a key, of an entry or a tombstone.
    ///
    /// # Errors
    /// If the disk cannot be read.
    pub async fn newest(&self, space: Space, key: &[u8]) -> Result<Option<Version>, Failure> {
        match self.hot.fact(space, key).map(|fact| fact.version()) {
            Some(ERASED) => Ok(None),
            Some(version) => Ok(Some(version)),
            None => self.newest_below(space, key).await,
        }
    }

    /// Hides what memory and disk have of a key, if its version is `up_to` or lower; for good, as
    /// if it had been evicted. A copy with the same version stays.
    ///
    /// # Errors
    /// If the disk cannot be read.
    pub async fn hide_copy(&self, space: Space, key: &[u8], up_to: Version) -> Result<(), Failure> {
        let at = (self.hot.ram.hash(space, key), space, key);
        let ask = || self.newest_below(space, key);
        self.act_on_newest(at, ask, |shard, newest: Newest<&Option<Version>>| {
            let newest = match newest {
                Newest::InRam(slot) => {
                    let found = shard.get(slot);
                    (!found.tombstone).then_some(found.meta.version)
                }
                Newest::Below(newest) => *newest,
            };
            if let Some(version) = newest.filter(|version| *version <= up_to) {
                match &self.disk {
                    Some(disk) => self.hot.bury_now(shard, disk, at, version),
                    None => {
                        self.hot.mutated(at.0);
                        commit::bury(shard, at.0, space, key, version);
                    }
                }
            }
            Ok(())
        })
        .await
    }

    /// The version of the entry that memory or disk have of a key, unless it was deleted or
    /// flushed. The bucket is not asked.
    pub async fn copy_version(&self, space: Space, key: &[u8]) -> Option<Version> {
        let visible = |meta: &Meta| {
            let is_visible = self.hot.flushes.shows(space, meta);
            is_visible.then_some(meta.version)
        };
        match self.hot.fact(space, key) {
            Some(Fact::Put(meta)) => return visible(&meta),
            Some(Fact::Tombstone(_)) => return None,
            None => {}
        }
        // What is written from here on need not be seen, as by a get.
        match self.disk.as_ref()?.find_facts(space, key).await {
            Ok(DiskProbed::Found(DiskFound::Entry(entry))) => visible(&entry.meta),
            Ok(DiskProbed::Facts(facts)) => visible(&facts.meta),
            _ => None,
        }
    }

    /// What is known of a key: its newest entry, a tombstone, or nothing. It does not count as a
    /// use.
    ///
    /// # Errors
    /// If disk or bucket cannot be read.
    pub async fn fetch_for_peer(
        &self,
        space: Space,
        key: &[u8],
    ) -> Result<Option<Transfer>, Failure> {
        let at = (self.hot.ram.hash(space, key), space, key);
        let ask = || self.fetch_below_for_peer(space, key);
        self.act_on_newest(at, ask, |shard, newest: Newest<&Option<Transfer>>| {
            let transfer = match newest {
                Newest::InRam(slot) => {
                    let found = shard.get(slot);
                    (found.meta.version != ERASED).then(|| in_ram(&found))
                }
                Newest::Below(transfer) => transfer.clone(),
            };
            Ok(transfer.map(|transfer| self.hidden_or(space, transfer)))
        })
        .await
    }

    /// What a flush or purge has hidden was deleted, as far as others are concerned.
    fn hidden_or(&self, space: Space, transfer: Transfer) -> Transfer {
        let meta = &transfer.meta;
        if self.has_flushed(space, meta.version) || self.has_purged(space, meta) {
            Transfer::tombstone(meta.version)
        } else {
            transfer
        }
    }

    async fn fetch_below_for_peer(
        &self,
        space: Space,
        key: &[u8],
    ) -> Result<Option<Transfer>, Failure> {
        let location = match self.find_below(space, key).await? {
            BelowRam::Known(transfer) => return Ok(Some(transfer)),
            BelowRam::InBucket(location) => location,
            BelowRam::Unknown => return Ok(None),
        };
        let at = (space, key);
        let fetched = self.fetch_cold(at, &location, &mut None, &mut None).await;
        match fetched.map_err(|_| Failure::Unavailable)? {
            Some(entry) => Ok(Some(Transfer::stored(entry))),
            None => self.tombstone_below(space, key).await,
        }
    }

    async fn find_below(&self, space: Space, key: &[u8]) -> Result<BelowRam, Failure> {
        let Some(disk) = &self.disk else {
            return Ok(BelowRam::Unknown);
        };
        let found = disk.find(space, key).await.map_err(|error| {
            tracing::debug!(%error, "disk read failed");
            Failure::Unavailable
        })?;
        Ok(match found {
            DiskFound::Entry(entry) => BelowRam::Known(Transfer::stored(entry)),
            DiskFound::Below(location) => BelowRam::InBucket(location),
            DiskFound::Absent => match self.tombstone_below(space, key).await? {
                Some(tombstone) => BelowRam::Known(tombstone),
                None => BelowRam::Unknown,
            },
        })
    }

    /// A tombstone for a key that was deleted, or whose entry is damaged: older copies must stay
    /// hidden either way.
    async fn tombstone_below(&self, space: Space, key: &[u8]) -> Result<Option<Transfer>, Failure> {
        let newest = self.newest_below(space, key).await?;
        Ok(newest.map(Transfer::tombstone))
    }

    /// A page without a disk; the cursor is RAM's.
    async fn add_from_ram(
        &self,
        page: &mut SlotEntries,
        slots: &SlotSet,
        cursor: &[u8],
        len_max: usize,
    ) -> Result<(), PutError> {
        let mut at = match cursor {
            [] => 0,
            _ => u64::from_le_bytes(cursor.try_into().map_err(|_| BAD_CURSOR)?),
        };
        let mut steps = 0;
        while page.entries.len() < len_max && steps < RAM_SCAN_STEPS {
            let mut keys = Vec::new();
            at = self.hot.ram.scan(at, RAM_SCAN_SLOTS, |found| {
                if slots.contains(slot(found.key)) {
                    keys.push((found.space, found.key.to_vec()));
                }
            });
            for (space, key) in keys {
                self.add_to(page, space, &key).await?;
            }
            if at == 0 {
                return Ok(());
            }
            steps += 1;
        }
        page.next = at.to_le_bytes().to_vec();
        Ok(())
    }

    /// Adds what is known of a key. What cannot be read is named by its version all the same: a
    /// member that takes the page may have an older copy, and must not show it.
    async fn add_to(
        &self,
        page: &mut SlotEntries,
        space: Space,
        key: &[u8],
    ) -> Result<(), Failure> {
        let found = self.fetch_for_peer(space, key).await;
        let pushed = match &found {
            Ok(None) => return Ok(()),
            Ok(Some(transfer)) => {
                let entry = transfer.entry(space, key, PAGE_VALUE_LEN_MAX);
                page.entries.push(&entry)
            }
            Err(_) => {
                let Some(version) = self.newest(space, key).await? else {
                    return Ok(());
                };
                let gone = peer::Entry::tombstone(space.0, key, version);
                let content = match self.has_flushed(space, version) {
                    true => peer::Content::Tombstone,
                    false => peer::Content::Omitted { len: 0 },
                };
                page.entries.push(&peer::Entry { content, ..gone })
            }
        };
        debug_assert!(pushed.is_ok(), "no key is so long, and no value");
        Ok(())
    }
}

/// A cursor over the disk: space and key.
fn position(space: Space, key: &[u8]) -> Vec<u8> {
    [&space.0.to_be_bytes(), key].concat()
}

fn owned(value: &Value<'_>) -> Bytes {
    match value {
        Value::Copied(bytes) => Bytes::copy_from_slice(bytes),
        Value::Shared(bytes) => bytes.clone(),
    }
}

/// Checks a frame; one that is not compressed becomes a plain value.
fn opened(frame: Bytes, value_len_max: usize) -> Result<(Bytes, Framing), PutError> {
    const DAMAGED: PutError = PutError::Malformed("its frame is damaged or of an unknown codec");
    let parsed = Frame::parse(&frame, value_len_max).map_err(|_| DAMAGED)?;
    parsed.verify().map_err(|_| DAMAGED)?;
    match parsed.verbatim() {
        Some(range) => Ok((frame.slice(range), Framing::Plain)),
        None => Ok((frame, Framing::Framed)),
    }
}

/// What a slot of RAM holds.
fn in_ram(found: &Found<'_>) -> Transfer {
    if found.tombstone {
        return Transfer::tombstone(found.meta.version);
    }
    let framing = if found.framed {
        Framing::Framed
    } else {
        Framing::Plain
    };
    Transfer {
        meta: found.meta,
        content: Some((found.stored.to_bytes(), framing)),
    }
}

#[cfg(test)]
pub(super) mod tests;
