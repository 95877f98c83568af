//! Reading one entry from the bucket: one ranged request for exactly its record.
//!
//! Whoever wants the same record until it is in another tier shares the request. What comes back is believed only
//! after its checksum, its key and its version were compared with what led to it. A failed read is a
//! miss, never an error to a client, and repairs what it can: a segment that is gone is marked, so that
//! its other entries are misses without a request; damaged bytes are read a second time, then the entry
//! is made unreadable.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use fonn_codec::frame::{ErrorKind, is_intact};
use fonn_codec::{Frame, FrameError};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::checkpoint::IndexEntry;
use crate::flight::Held;
use crate::follow::reconcile;
use crate::names::{KeyHash, SegmentName};
use crate::segment::{CopyVersion, Fact, Facts, Record};
use crate::shared::Shared;
use crate::status::Counters;
use crate::store::{Operation, StoreError, StoreErrorKind};

/// Records longer than this are read in parts of this length, in bytes.
const PART_BYTES: u64 = 8 << 20;
/// Parts of one record that are read at the same time.
const PARTS_PARALLEL: usize = 4;
/// Reads whose duration is remembered, to tell when one is unusually slow.
const DURATIONS: usize = 256;

/// No read is sent a second time before that.
const HEDGE_AFTER_MIN: Duration = Duration::from_millis(10);

/// Where a record is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    pub(crate) entry: IndexEntry,
    pub(crate) name: SegmentName,
}

impl Location {
    /// The version of the copy that is there.
    #[must_use]
    pub fn at(&self) -> CopyVersion {
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
    Tombstone(CopyVersion),
    /// It is there.
    At(Location),
}

/// An entry out of the bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColdEntry {
    /// Its version.
    pub at: CopyVersion,
    /// What is known of it besides its bytes.
    pub facts: Facts,
    /// The value, decoded.
    pub value: Bytes,
    /// The value's frame, to be kept in another tier as it is.
    pub frame: Bytes,
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

/// How long reads took lately.
#[derive(Debug, Default)]
pub(crate) struct Durations(Mutex<VecDeque<Duration>>);

impl Durations {
    fn note(&self, took: Duration) {
        let mut last = self.0.lock();
        if last.len() == DURATIONS {
            last.pop_front();
        }
        last.push_back(took);
    }

    /// The time within which 99 of 100 reads were done; None until enough are known.
    fn p99(&self) -> Option<Duration> {
        let mut sorted: Vec<Duration> = self.0.lock().iter().copied().collect();
        if sorted.len() < DURATIONS / 4 {
            return None;
        }
        sorted.sort_unstable();
        sorted.get(sorted.len() * 99 / 100).copied()
    }
}

/// A read that others share as long as it is kept.
#[must_use]
pub struct Reading {
    _held: Option<Arc<Held<(u32, u64), Fetched>>>,
}

impl fmt::Debug for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reading").finish_non_exhaustive()
    }
}

/// Reads an entry.
pub(crate) async fn fetch(
    shared: &Arc<Shared>,
    space: u16,
    key: &[u8],
    location: &Location,
) -> (Fetched, Reading) {
    let Some((runtime, tasks)) = shared.started.get() else {
        return (Fetched::Unavailable, Reading { _held: None });
    };
    let flight = (location.entry.segment, location.entry.offset);
    // What is in a segment never changes.
    let stays_true = |fetched: &Fetched| matches!(fetched, Fetched::Hit(_));
    let (fetched, held) = shared
        .flights
        .join((runtime, tasks), flight, stays_true, || {
            let (shared, location) = (Arc::clone(shared), location.clone());
            let key: Box<[u8]> = key.into();
            async move { lead(&shared, space, &key, &location).await }
        })
        .await;
    let reading = Reading { _held: Some(held) };
    // Two keys never share a record, unless the index is wrong; then it is not this one's value.
    if location.entry.hash != KeyHash::of(space, key) {
        return (Fetched::Damaged, reading);
    }
    (fetched.unwrap_or(Fetched::Unavailable), reading)
}

/// The one read for all who wait.
async fn lead(shared: &Arc<Shared>, space: u16, key: &[u8], location: &Location) -> Fetched {
    let deadline = Instant::now() + shared.options.read_timeout;
    let counters = &shared.counters;
    if !shared
        .breaker
        .lock()
        .admit(shared.options.clock.monotonic_ms())
    {
        Counters::add(&counters.unavailable, 1);
        return Fetched::Unavailable;
    }
    let mut fetched = attempt(shared, space, key, location, deadline).await;
    if fetched == Fetched::Damaged {
        // Maybe only on its way.
        fetched = attempt(shared, space, key, location, deadline).await;
    }
    let now_ms = shared.options.clock.monotonic_ms();
    match &fetched {
        Fetched::Hit(_) | Fetched::Gone | Fetched::Damaged | Fetched::Unsupported => {
            shared.breaker.lock().succeeded()
        }
        Fetched::Deadline | Fetched::Unavailable => shared.breaker.lock().failed(now_ms),
    }
    let counter = match &fetched {
        Fetched::Hit(_) => {
            let now_ms = shared.wall_ms();
            shared
                .index
                .table()
                .note_read(location.entry.segment, now_ms);
            shared.recent.lock().note(location.entry.hash, now_ms);
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
    fetched
}

async fn attempt(
    shared: &Arc<Shared>,
    space: u16,
    key: &[u8],
    location: &Location,
    deadline: Instant,
) -> Fetched {
    let read = async {
        let _held = shared.reads.hold(location.len_bytes()).await;
        let started = Instant::now();
        let result = read_hedged(shared, location).await;
        if result.is_ok() {
            shared.read_durations.note(started.elapsed());
        }
        result
    };
    let bytes = match tokio::time::timeout_at(deadline, read).await {
        Err(_) => return Fetched::Deadline,
        Ok(Ok(bytes)) => bytes,
        Ok(Err(error)) => {
            shared.counters.note_error(&error, shared.wall_ms());
            return match error.kind {
                StoreErrorKind::NotFound => Fetched::Gone,
                // The object is shorter than the index says. Whatever else is answered, such as that there is
                // no such bucket or that it is elsewhere, says nothing about the record.
                StoreErrorKind::OutOfRange => Fetched::Damaged,
                StoreErrorKind::Timeout => Fetched::Deadline,
                _ => Fetched::Unavailable,
            };
        }
    };
    Counters::add(&shared.counters.read_bytes, bytes.len() as u64);
    let at = location.entry.at;
    match decode(&bytes, (space, key), at, shared.options.value_len_max) {
        Ok(entry) => Fetched::Hit(entry),
        Err(None) => Fetched::Damaged,
        Err(Some(reason)) => {
            shared.warn_of_unsupported(reason);
            Fetched::Unsupported
        }
    }
}

/// Reads a record, and sends the request a second time if it takes unusually long, as far as memory and
/// the share of such reads allow: a bucket that is slow as a whole must not get twice as many.
async fn read_hedged(shared: &Arc<Shared>, location: &Location) -> Result<Bytes, StoreError> {
    let slow = shared
        .options
        .hedge
        .then(|| shared.read_durations.p99())
        .flatten()
        .filter(|_| location.len_bytes() <= PART_BYTES);
    let Some(slow) = slow else {
        return read(shared, location).await;
    };
    let first = read(shared, location);
    tokio::pin!(first);
    tokio::select! {
        biased;
        result = &mut first => return result,
        () = tokio::time::sleep(slow.max(HEDGE_AFTER_MIN)) => {}
    }
    let counters = &shared.counters;
    let is_allowed = counters.may_hedge();
    let Some(_held) = shared
        .reads
        .try_hold(location.len_bytes())
        .filter(|_| is_allowed)
    else {
        return first.await;
    };
    Counters::add(&counters.hedged, 1);
    let second = read(shared, location);
    tokio::pin!(second);
    // What failed says nothing of the other one, unless both did.
    tokio::select! {
        result = &mut first => match result {
            Err(error) if error.is_retryable() => second.await,
            result => result,
        },
        result = &mut second => {
            if result.is_ok() {
                Counters::add(&counters.hedges_won, 1);
            }
            match result {
                Err(error) if error.is_retryable() => first.await,
                result => result,
            }
        }
    }
}

async fn read(shared: &Arc<Shared>, location: &Location) -> Result<Bytes, StoreError> {
    let key = location.name.key();
    let start = location.entry.offset;
    let end = start + location.len_bytes();
    if end - start <= PART_BYTES {
        return shared.store.get_range(&key, start..end).await;
    }
    let mut reads = tokio::task::JoinSet::new();
    let mut next = start;
    let mut buffer = BytesMut::zeroed(usize::try_from(end - start).unwrap_or(0));
    loop {
        while next < end && reads.len() < PARTS_PARALLEL {
            let range = next..(next + PART_BYTES).min(end);
            next = range.end;
            let (store, key) = (Arc::clone(&shared.store), key.clone());
            reads.spawn(async move {
                let from = range.start;
                store.get_range(&key, range).await.map(|part| (from, part))
            });
        }
        let Some(joined) = reads.join_next().await else {
            return Ok(buffer.freeze());
        };
        let failed = || {
            StoreError::new(
                Operation::GetRange,
                key.as_str(),
                StoreErrorKind::Unavailable,
            )
        };
        let (from, part) = joined.map_err(|_| failed())??;
        let from = usize::try_from(from - start).unwrap_or(usize::MAX);
        // A part that is too short leaves zeros, which the checksum finds.
        if let Some(place) = buffer.get_mut(from..from.saturating_add(part.len())) {
            place.copy_from_slice(&part);
        }
    }
}

/// The entry in a record, if it is the one that was asked for and every byte is right. Else, if it is in
/// order, why this build cannot decode it.
fn decode(
    bytes: &Bytes,
    (space, key): (u16, &[u8]),
    at: CopyVersion,
    value_len_max: usize,
) -> Result<ColdEntry, Option<FrameError>> {
    let record = Record::decode(bytes).map_err(|_| None)?;
    if (record.space, record.key, record.at) != (space, key, at) {
        return Err(None);
    }
    let Fact::Put { facts, frame } = record.fact else {
        return Err(None);
    };
    let parsed = Frame::parse(frame, value_len_max).map_err(|error| {
        let is_foreign = error.kind() == ErrorKind::Unsupported && is_intact(frame);
        is_foreign.then_some(error)
    })?;
    parsed.verify().map_err(|_| None)?;
    let frame = bytes.slice_ref(frame);
    let value = match parsed.verbatim() {
        Some(range) => frame.slice(range),
        None => {
            let mut value = Vec::new();
            parsed.decode_into(&mut value).map_err(|_| None)?;
            value.into()
        }
    };
    Ok(ColdEntry {
        at,
        facts,
        value,
        frame,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(key: &[u8], version: u64, value: &[u8]) -> Bytes {
        let mut frame = Vec::new();
        fonn_codec::encode("zstd".parse().unwrap(), 16, value, &mut frame).unwrap();
        let mut out = Vec::new();
        Record {
            space: 3,
            key,
            at: CopyVersion { epoch: 1, version },
            fact: Fact::Put {
                facts: Facts::default(),
                frame: &frame,
            },
        }
        .encode_into(&mut out);
        out.into()
    }

    #[test]
    fn only_the_record_that_was_asked_for_is_taken() {
        let bytes = record(b"key", 7, &[9; 5000]);
        let at = CopyVersion {
            epoch: 1,
            version: 7,
        };
        let entry = decode(&bytes, (3, b"key"), at, 1 << 20).unwrap();
        assert_eq!(entry.value, vec![9; 5000]);
        assert_eq!(decode(&bytes, (3, b"yek"), at, 1 << 20), Err(None));
        assert_eq!(decode(&bytes, (2, b"key"), at, 1 << 20), Err(None));
        let other = CopyVersion { version: 8, ..at };
        assert_eq!(decode(&bytes, (3, b"key"), other, 1 << 20), Err(None));
        assert_eq!(decode(&bytes, (3, b"key"), at, 4999), Err(None));
        for index in 0..bytes.len() {
            let mut damaged = bytes.to_vec();
            damaged[index] ^= 4;
            assert_eq!(decode(&damaged.into(), (3, b"key"), at, 1 << 20), Err(None));
        }
        assert_eq!(
            decode(&bytes.slice(..bytes.len() - 1), (3, b"key"), at, 1 << 20),
            Err(None)
        );
    }

    #[test]
    fn what_is_in_order_and_cannot_be_decoded_is_not_damage() {
        // A codec id that nobody has, in a frame and a record that are in order.
        let mut frame = vec![0xF1, 0xEE, 0, 0, 200, 0, 0, 0, 100, 0, 0, 0];
        let payload = [7; 100];
        let checksum = crc32c::crc32c_append(crc32c::crc32c(&frame), &payload);
        frame.extend_from_slice(&checksum.to_le_bytes());
        frame.extend_from_slice(&payload);
        let at = CopyVersion {
            epoch: 1,
            version: 7,
        };
        let encode = |frame: &[u8]| -> Bytes {
            let facts = Facts::default();
            let (space, key) = (3, b"key".as_slice());
            let fact = Fact::Put { facts, frame };
            let mut out = Vec::new();
            Record {
                space,
                key,
                at,
                fact,
            }
            .encode_into(&mut out);
            out.into()
        };
        let decoded = decode(&encode(&frame), (3, b"key"), at, 1 << 20);
        assert_eq!(decoded, Err(Some(FrameError::UnknownCodec { id: 0xEE })));
        // The same with a wrong byte is damage, whatever the record's checksum says.
        frame[40] ^= 1;
        assert_eq!(decode(&encode(&frame), (3, b"key"), at, 1 << 20), Err(None));
    }

    #[test]
    fn the_slowest_of_a_hundred_is_known_after_some_reads() {
        let durations = Durations::default();
        assert_eq!(durations.p99(), None);
        for ms in 0..1000 {
            durations.note(Duration::from_millis(ms));
        }
        assert_eq!(durations.p99(), Some(Duration::from_millis(744 + 253)));
        assert_eq!(durations.0.lock().len(), DURATIONS);
    }
}
