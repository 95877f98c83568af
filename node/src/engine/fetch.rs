//! What RAM does not know: the disk, and the bucket below it.

use std::time::Instant;

use bytes::Bytes;
use fonn_base::entry::{Meta, Space};
use fonn_cold_tier::Fetched as ColdFetched;
use fonn_cold_tier::{ColdEntry, Location, Reading};
use fonn_disk_tier::{DiskEntry, DiskFound};
use fonn_proto::{Command, Failure, Outcome, WriterId};

use super::{Engine, Ticket};
use crate::stats::Counter;

/// The tier that an entry was fetched from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum From {
    Disk,
    Cold,
}

/// What the tiers below RAM said about a key, and whether it still holds.
pub(super) struct Fetched {
    pub ticket: Ticket,
    pub entry: Option<DiskEntry>,
    pub from: From,
    #[expect(dead_code, reason = "it is kept until the entry is in RAM")]
    pub reading: Option<Reading>,
}

/// Why the state of a key is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unknown {
    /// The disk cannot be read.
    Disk,
    /// The bucket did not answer in time.
    Deadline,
    /// The bucket fails.
    Bucket,
}

/// How much of an entry is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    Value,
    /// Whether there is one, its version and expiry. The bucket is not asked for these.
    Existence,
}

impl Need {
    /// What a command needs of the entry that it meets.
    pub(super) fn of(command: &Command<'_>) -> Self {
        match command {
            Command::Delete(delete)
                if delete.compare.is_none() && !delete.mark_stale && !delete.keep_entry =>
            {
                Self::Existence
            }
            _ => Self::Value,
        }
    }
}

impl Engine {
    /// Asks the disk, and the bucket if the disk says so.
    ///
    /// # Cancel safety
    /// Cancelling it loses nothing.
    pub(super) async fn fetch(
        &self,
        space: Space,
        key: &[u8],
        need: Need,
        ticket: Ticket,
    ) -> Result<Fetched, Unknown> {
        let Some(disk) = &self.disk else {
            return Err(Unknown::Disk);
        };
        if let Some(cold) = &self.cold {
            // What is here may be older than what a lost owner had brought into the bucket.
            cold.takeovers().wait(key).await;
        }
        let start = Instant::now();
        let found = disk.find(space, key).await;
        self.disk_get_latency
            .record(start.elapsed().as_nanos() as u64, 1);
        let mut reading = None;
        let (entry, from) = match found {
            Ok(DiskFound::Entry(entry)) => (Some(entry), From::Disk),
            Ok(DiskFound::Absent) => (None, From::Disk),
            // The index of the bucket does not say what was purged.
            Ok(DiskFound::Below(location))
                if need == Need::Existence && !self.hot.flushes.has_purges() =>
            {
                (Some(existence(&location)), From::Cold)
            }
            // Another read brought it meanwhile: it is looked for in RAM again.
            Ok(DiskFound::Below(_)) if self.is_in_ram(space, key) => {
                return Ok(Fetched {
                    ticket: Ticket::VOID,
                    entry: None,
                    from: From::Cold,
                    reading,
                });
            }
            Ok(DiskFound::Below(location)) => {
                // Boxed: few connections need the room, and all would have it.
                let read = Box::pin(self.fetch_cold(space, key, &location, &mut reading));
                (read.await?, From::Cold)
            }
            Err(error) => {
                tracing::debug!(%error, "disk read failed");
                return Err(Unknown::Disk);
            }
        };
        Ok(Fetched {
            ticket,
            entry,
            from,
            reading,
        })
    }

    fn is_in_ram(&self, space: Space, key: &[u8]) -> bool {
        let ram = &self.hot.ram;
        let hash = ram.hash(space, key);
        ram.lock(hash).find(hash, space, key).is_some()
    }

    /// `reading` is to be kept until the entry is in RAM.
    pub(super) async fn fetch_cold(
        &self,
        space: Space,
        key: &[u8],
        location: &Location,
        reading: &mut Option<Reading>,
    ) -> Result<Option<DiskEntry>, Unknown> {
        let Some(cold) = &self.cold else {
            return Ok(None);
        };
        let start = Instant::now();
        let (fetched, shared) = cold.tier().fetch(space.0, key, location).await;
        *reading = Some(shared);
        self.cold_get_latency
            .record(start.elapsed().as_nanos() as u64, 1);
        match fetched {
            ColdFetched::Hit(entry) => {
                let mut entry = entry_of(entry);
                // RAM does not take it: it counts as long as its bytes are in use, until the last
                // reply is sent.
                if !self.fits_ram(key.len(), entry.value.len())
                    && let Some(reading) = reading.take()
                {
                    let value = entry.value;
                    entry.value = Bytes::from_owner(Counted {
                        value,
                        _reading: reading,
                    });
                }
                Ok(Some(entry))
            }
            // The index knows better by now, or this build cannot decode it.
            ColdFetched::Gone | ColdFetched::Damaged | ColdFetched::Unsupported => Ok(None),
            ColdFetched::Deadline => Err(Unknown::Deadline),
            ColdFetched::Unavailable => Err(Unknown::Bucket),
        }
    }

    /// A read of an unknown state is a miss; anything that depends on what is there cannot be
    /// done.
    pub(super) fn unreadable(&self, command: &Command<'_>, why: Unknown) -> Outcome<'static> {
        match command {
            Command::Get(get) if !command.is_write() && !get.delete => {
                self.hot.stats.count(match why {
                    Unknown::Disk => Counter::MissesError,
                    Unknown::Deadline => Counter::MissesDeadline,
                    Unknown::Bucket => Counter::MissesUnavailable,
                });
                Outcome::Miss
            }
            _ => Outcome::Failed(Failure::Unavailable),
        }
    }
}

/// A value that no tier keeps, with the memory that was taken for it.
struct Counted {
    value: Bytes,
    _reading: Reading,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.value
    }
}

fn entry_of(entry: ColdEntry) -> DiskEntry {
    DiskEntry {
        frame: entry.frame,
        meta: Meta {
            version: entry.at,
            cas_override: entry.facts.cas_override,
            flags: entry.facts.flags,
            expires_at_ms: entry.facts.expires_at_ms,
            stale: entry.facts.stale,
            token_sent: entry.facts.token_sent,
            writer: WriterId::new(entry.facts.writer),
        },
        value: entry.value,
    }
}

/// An entry of which only the index was asked.
fn existence(location: &Location) -> DiskEntry {
    DiskEntry {
        meta: Meta::new(location.at(), 0, location.expires_at_ms()),
        value: Bytes::new(),
        frame: None,
    }
}
