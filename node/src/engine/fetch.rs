//! What RAM does not know: the disk, and the bucket below it.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use fonn_base::entry::{Meta, Space};
use fonn_cold_tier::Fetched as ColdFetched;
use fonn_cold_tier::{ColdEntry, Location, Reading};
use fonn_disk_tier::{DiskEntry, DiskFacts, DiskFound, DiskProbed};
use fonn_proto::outcome::Value;
use fonn_proto::{Command, Failure, Outcome, WriterId};
use tokio::time::{Instant as Deadline, timeout_at};

use super::semantics::{self, Change, Present};
use super::{Absence, Engine, Hot, Job, There, Ticket};
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
    /// In its place, if the disk has it and its value was not read. No tier can keep that.
    pub facts: Option<DiskFacts>,
    pub from: From,
    /// What the value takes of the memory for reads from the bucket. It is kept until the entry is
    /// in RAM.
    pub reading: Option<Arc<Reading>>,
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
    /// All but the value. The disk reads no large value for that; the bucket has to be asked.
    Facts,
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
            // A recache token is given out in RAM.
            Command::Get(get) if !get.want_value && !get.claim && !command.is_write() => {
                Self::Facts
            }
            _ => Self::Value,
        }
    }
}

impl Hot {
    /// What a command meets of what was fetched.
    pub(super) fn there<'f>(&self, space: Space, fetched: &'f Fetched, now_ms: u64) -> There<'f> {
        let (meta, there) = match (&fetched.entry, fetched.facts) {
            (Some(entry), _) => (entry.meta, There::Fetched(entry, fetched.from)),
            (None, Some(facts)) => (facts.meta, There::Facts(facts)),
            (None, None) => return There::Nothing(Absence::Absent),
        };
        match self.absence(space, &meta, now_ms) {
            Some(absence) => There::Nothing(absence),
            None => there,
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
        self.fetch_by((space, key), need, ticket, &mut None).await
    }

    /// As [`Engine::fetch`]. The bucket has to answer by `deadline`, which the first read from it
    /// sets.
    pub(super) async fn fetch_by(
        &self,
        (space, key): (Space, &[u8]),
        need: Need,
        ticket: Ticket,
        deadline: &mut Option<Deadline>,
    ) -> Result<Fetched, Unknown> {
        let Some(disk) = &self.disk else {
            return Err(Unknown::Disk);
        };
        if let Some(cold) = &self.cold {
            // What is here may be older than what a lost owner had brought into the bucket.
            cold.takeovers().wait(key).await;
        }
        let start = Instant::now();
        let found = match need {
            Need::Value => disk.find(space, key).await,
            Need::Facts | Need::Existence => match disk.find_facts(space, key).await {
                Ok(DiskProbed::Facts(facts)) => {
                    return Ok(Fetched {
                        ticket,
                        entry: (need == Need::Existence).then(|| without_value(facts.meta)),
                        facts: (need == Need::Facts).then_some(facts),
                        from: From::Disk,
                        reading: None,
                    });
                }
                Ok(DiskProbed::Found(found)) => Ok(found),
                Err(error) => Err(error),
            },
        };
        let mut reading = None;
        let (entry, from) = match found {
            Ok(DiskFound::Entry(entry)) => {
                self.disk_get_latency.took(start.elapsed());
                (Some(entry), From::Disk)
            }
            Ok(DiskFound::Absent) => (None, From::Disk),
            // The index of the bucket does not say what was purged.
            Ok(DiskFound::Below(location))
                if need == Need::Existence && !self.hot.flushes.has_purges() =>
            {
                let meta = Meta::new(location.at(), 0, location.expires_at_ms());
                (Some(without_value(meta)), From::Cold)
            }
            // Another read brought it meanwhile: it is looked for in RAM again.
            Ok(DiskFound::Below(_)) if self.hot.fact(space, key).is_some() => {
                return Ok(Fetched {
                    ticket: Ticket::VOID,
                    entry: None,
                    facts: None,
                    from: From::Cold,
                    reading: None,
                });
            }
            Ok(DiskFound::Below(location)) => {
                // Boxed: few connections need the room, and all would have it.
                let read = self.fetch_cold((space, key), &location, &mut reading, deadline);
                (Box::pin(read).await?, From::Cold)
            }
            Err(error) => {
                tracing::debug!(%error, "disk read failed");
                return Err(Unknown::Disk);
            }
        };
        Ok(Fetched {
            ticket,
            entry,
            facts: None,
            from,
            reading: reading.map(Arc::new),
        })
    }

    /// Answers a read from what was fetched, although a write of the stripe came since. None if the
    /// command may change the entry, or nothing is known. To be called under the lock of the shard,
    /// while RAM does not know the key.
    ///
    /// The answer is that of a moment since the ticket was taken. At that moment RAM did not know
    /// the key, so the newest version was below. The fetch returned that version, or one that was
    /// written later. Either was the newest one for a time within the command. Another version may
    /// be the newest now, so no tier keeps the entry. What was flushed, purged or has expired by
    /// now is a miss, which a cache may always answer.
    pub(super) fn answer_voided(
        &self,
        job: &Job<'_>,
        voided: &Fetched,
    ) -> Option<Outcome<'static>> {
        let Command::Get(get) = job.command else {
            return None;
        };
        if job.command.is_write() || voided.ticket == Ticket::VOID {
            return None;
        }
        let now_ms = self.hot.clock.wall_ms();
        let there = self.hot.there(job.space, voided, now_ms);
        let entry = match there {
            There::Fetched(entry, _) => Some(entry),
            There::Slot(_) | There::Facts(_) | There::Nothing(_) => None,
        };
        let present = match there {
            There::Facts(facts) => Some((facts.meta, facts.value_len)),
            _ => entry.map(|entry| (entry.meta, entry.value.len())),
        };
        let present = present.map(|(meta, value_len)| Present {
            meta,
            value: entry.map_or(&[][..], |entry| &entry.value[..]),
            shared: entry.map(|entry| &entry.value),
            value_len,
            fetched: false,
            idle_s: 0,
        });
        let rules = self.rules_at(job.space, now_ms);
        let fresh = || self.ledger.hlc.next();
        let (change, mut outcome) = semantics::apply(job.command, present, rules, fresh);
        if change != Change::Keep {
            // The recache token is given out in RAM.
            return None;
        }
        if let (Outcome::Hit(hit), Some(entry)) = (&mut outcome, entry)
            && get.want_value
        {
            let value = entry.value.clone();
            hit.value = Value::Shared(match &voided.reading {
                Some(reading) => counted(value, Arc::clone(reading)),
                None => value,
            });
        }
        self.count_get(get, job.space, &there);
        Some(outcome)
    }

    /// `reading` is to be kept until the entry is in RAM. Sets the deadline if there is none.
    pub(super) async fn fetch_cold(
        &self,
        (space, key): (Space, &[u8]),
        location: &Location,
        reading: &mut Option<Reading>,
        deadline: &mut Option<Deadline>,
    ) -> Result<Option<DiskEntry>, Unknown> {
        let Some(cold) = &self.cold else {
            return Ok(None);
        };
        let start = Deadline::now();
        let deadline = *deadline.get_or_insert_with(|| start + cold.read_timeout());
        let read = timeout_at(deadline, cold.tier().fetch(space.0, key, location));
        let Ok((fetched, shared)) = read.await else {
            return Err(Unknown::Deadline);
        };
        *reading = Some(shared);
        match fetched {
            ColdFetched::Hit(entry) => {
                self.cold_get_latency
                    .record(start.elapsed().as_nanos() as u64, 1);
                let mut entry = entry_of(entry);
                // RAM does not take it: it counts as long as its bytes are in use, until the last
                // reply is sent.
                if !self.fits_ram(key.len(), entry.value.len())
                    && let Some(reading) = reading.take()
                {
                    entry.value = counted(entry.value, Arc::new(reading));
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
    _reading: Arc<Reading>,
}

fn counted(value: Bytes, reading: Arc<Reading>) -> Bytes {
    Bytes::from_owner(Counted {
        value,
        _reading: reading,
    })
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

/// An entry of which only the existence is needed.
fn without_value(meta: Meta) -> DiskEntry {
    DiskEntry {
        meta,
        value: Bytes::new(),
        frame: None,
    }
}
