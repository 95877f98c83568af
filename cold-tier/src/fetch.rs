//! Reading one entry from the bucket: one ranged request for exactly its record, which is checked
//! and decoded while it arrives ([`read`]).
//!
//! All clients that want the same record share the request, until the record is in another tier.
//! The node compares checksum, key and version with the index before it uses the record. A failed
//! read is a miss, never an error to a client. It also repairs the index. If a segment is gone, it
//! is marked, so that its other entries are misses without a request. Damaged bytes are read a
//! second time, then the entry is made unreadable.

mod read;

use std::fmt;
use std::sync::Arc;

use tokio::time::Instant;

use crate::checkpoint::IndexEntry;
use crate::flight;
use crate::follow::reconcile;
use crate::memory;
use crate::names::{KeyHash, SegmentName};
use crate::segment::{ColdEntry, StreamError, Version, Wanted};
use crate::shared::Shared;
use crate::status::Counters;
use crate::store::StoreErrorKind;

/// Where a record is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    pub(crate) entry: IndexEntry,
    pub(crate) name: SegmentName,
}

impl Location {
    /// The version of the copy that is there.
    #[must_use]
    pub fn at(&self) -> Version {
        self.entry.at
    }

    /// When the copy expires: Unix time in milliseconds, 0 never.
    #[must_use]
    pub fn expires_at_ms(&self) -> u64 {
        self.entry.expires_at_ms
    }

    /// Bytes that a read of it moves.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        u64::from(self.entry.len)
    }
}

/// What a lookup in the index gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// The bucket does not have it, or not any more.
    Absent,
    /// It was deleted at that version, or dropped from the bucket.
    Tombstone(Version),
    /// It is there.
    At(Location),
}

/// What a read gives; all but a hit are misses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fetched {
    /// The entry.
    Hit(ColdEntry),
    /// Its segment is not in the bucket any more.
    Gone,
    /// Its bytes are not those that were written.
    Damaged,
    /// It is in order, and in a form that this build cannot decode.
    Unsupported,
    /// There was no answer within the read timeout.
    Deadline,
    /// The bucket fails, or the breaker is open.
    Unavailable,
}

/// The result of a read, for all callers that share it.
#[derive(Clone, Debug)]
pub(crate) struct Landed {
    fetched: Fetched,
    /// What the value takes of the memory for reads, until it is in a tier that counts it.
    _memory: Option<Arc<memory::Held>>,
}

impl Landed {
    /// Of what is not a hit.
    fn without(fetched: Fetched) -> Self {
        Self {
            fetched,
            _memory: None,
        }
    }
}

/// A read that others share as long as it is kept, and the memory of its value.
#[must_use]
pub struct Reading {
    _held: Option<Arc<flight::Held<(u32, u64), Landed>>>,
}

impl fmt::Debug for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reading").finish_non_exhaustive()
    }
}

/// Reads an entry.
pub(crate) async fn fetch(
    shared: &Arc<Shared>,
    space: u32,
    key: &[u8],
    location: &Location,
) -> (Fetched, Reading) {
    let Some(running) = shared.running.get() else {
        return (Fetched::Unavailable, Reading { _held: None });
    };
    let on = (&running.runtime, &running.tasks);
    let flight = (location.entry.segment, location.entry.offset);
    // What is in a segment never changes.
    let stays_true = |landed: &Landed| matches!(landed.fetched, Fetched::Hit(_));
    let (landed, held) = shared
        .flights
        .join(on, flight, stays_true, || {
            let (shared, location) = (Arc::clone(shared), location.clone());
            let key: Box<[u8]> = key.into();
            async move { lead(&shared, space, &key, &location).await }
        })
        .await;
    let reading = Reading { _held: Some(held) };
    // Two keys never share a record, unless the index is wrong; then it is another key's value.
    if location.entry.hash != KeyHash::of(space, key) {
        return (Fetched::Damaged, reading);
    }
    let fetched = landed.map_or(Fetched::Unavailable, |landed| landed.fetched);
    (fetched, reading)
}

/// The one read for all callers that wait.
async fn lead(shared: &Arc<Shared>, space: u32, key: &[u8], location: &Location) -> Landed {
    let deadline = Instant::now() + shared.options.read_timeout;
    let counters = &shared.counters;
    if !shared.breaker.lock().admit(shared.monotonic()) {
        Counters::add(&counters.unavailable, 1);
        return Landed::without(Fetched::Unavailable);
    }
    let wanted = Wanted {
        space,
        key,
        at: location.entry.at,
        record_len: location.entry.len as usize,
        value_len_max: shared.options.value_len_max,
    };
    let mut landed = attempt(shared, wanted, location, deadline).await;
    if landed.fetched == Fetched::Damaged {
        // Maybe only on its way.
        landed = attempt(shared, wanted, location, deadline).await;
    }
    let fetched = &landed.fetched;
    match fetched {
        Fetched::Hit(_) | Fetched::Gone | Fetched::Damaged | Fetched::Unsupported => {
            shared.breaker.lock().succeed();
        }
        Fetched::Deadline | Fetched::Unavailable => {
            let mut breaker = shared.breaker.lock();
            breaker.fail(shared.monotonic(), &mut shared.random.lock());
        }
    }
    let counter = match fetched {
        Fetched::Hit(_) => {
            let now_ms = shared.wall_ms();
            shared
                .index
                .table()
                .note_read(location.entry.segment, now_ms);
            // Only a budget gives up entries that were not read lately.
            if shared.budget.lock().is_some() {
                shared.recent.lock().note(location.entry.hash, now_ms);
            }
            &counters.hits
        }
        Fetched::Gone => {
            // The answer does not wait for the repair, nor depend on it.
            let _ = reconcile::gone(shared, location.entry.segment).await;
            &counters.gone
        }
        Fetched::Damaged => {
            let entry = location.entry;
            tracing::error!(name = %location.name, offset = entry.offset, "a record in the bucket is damaged");
            let _ = shared
                .blocking(move |shared| Ok(shared.index.make_hole(&entry)?))
                .await;
            &counters.damaged
        }
        // It stays for builds that can.
        Fetched::Unsupported => &counters.unsupported,
        Fetched::Deadline => &counters.deadline,
        Fetched::Unavailable => &counters.unavailable,
    };
    Counters::add(counter, 1);
    landed
}

async fn attempt(
    shared: &Arc<Shared>,
    wanted: Wanted<'_>,
    location: &Location,
    deadline: Instant,
) -> Landed {
    let read = read::read(shared, wanted, location);
    let error = match tokio::time::timeout_at(deadline, read).await {
        Err(_) => return Landed::without(Fetched::Deadline),
        Ok(Ok(Ok((entry, memory)))) => {
            return Landed {
                fetched: Fetched::Hit(entry),
                _memory: Some(Arc::new(memory)),
            };
        }
        Ok(Ok(Err(StreamError::Damaged))) => return Landed::without(Fetched::Damaged),
        Ok(Ok(Err(StreamError::Foreign(reason)))) => {
            shared.warn_of_unsupported(reason);
            return Landed::without(Fetched::Unsupported);
        }
        Ok(Err(error)) => error,
    };
    shared.watched.note_error(&error);
    Landed::without(match error.kind {
        StoreErrorKind::NotFound => Fetched::Gone,
        // The object is shorter than the index says. Whatever else is answered, such as that there
        // is no such bucket or that it is elsewhere, says nothing about the record.
        StoreErrorKind::OutOfRange => Fetched::Damaged,
        StoreErrorKind::Timeout => Fetched::Deadline,
        _ => Fetched::Unavailable,
    })
}
