//! The bytes of one record on their way: as one stream or as concurrent parts, decoded as they
//! arrive.
//!
//! A read holds the decoded value and a window of encoded bytes in memory. It reserves both at the
//! gate for reads first. The record's first bytes tell the length of the value. If there is no room
//! for it, the request is dropped, and repeated when there is. So no read waits for more memory
//! while it holds some.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::mpsc::Receiver;
use tokio::task::JoinSet;

use super::Location;
use crate::memory::Held;
use crate::segment::{ColdEntry, RecordStream, StreamError, Wanted};
use crate::shared::Shared;
use crate::store::pieces::PIECE_LEN;
use crate::store::{ObjectKey, Operation, Piece, Pieces, StoreError, StoreErrorKind};

/// Records longer than this are read in parts of this length, in bytes, where there is memory for
/// some.
const PART_BYTES: u64 = 8 << 20;
/// Parts of one record that are read at the same time.
const PARTS_PARALLEL: u64 = 4;
/// Share of the memory for reads that the parts of one record may take.
const PARTS_SHARE: u64 = 2;
/// What one stream has of a record beside its value: two pieces that wait, one at hand, and a
/// block.
const STREAM_BYTES: u64 = 4 * PIECE_LEN as u64;

/// What came, and the memory that it takes.
pub(super) type Came = Result<(ColdEntry, Held), StreamError>;

/// Why a read ends early.
enum Stop {
    Store(StoreError),
    Record(StreamError),
    /// The value and what is still encoded take so many bytes, which are not to be had now.
    Memory(u64),
}

/// How many parts of a record are read at the same time; 1: it is one stream.
fn parts(shared: &Shared, location: &Location) -> u64 {
    if location.len_bytes() <= PART_BYTES {
        return 1;
    }
    let fit = shared.reads.capacity_bytes() / PARTS_SHARE / PART_BYTES;
    fit.clamp(1, PARTS_PARALLEL)
}

/// Bytes that are in memory of a record beside its value while it comes.
fn window(shared: &Shared, location: &Location) -> u64 {
    match parts(shared, location) {
        1 => STREAM_BYTES.min(location.len_bytes()),
        parts => parts * PART_BYTES,
    }
}

/// Reads a record, as soon as there is memory for it.
pub(super) async fn read(
    shared: &Arc<Shared>,
    wanted: Wanted<'_>,
    location: &Location,
) -> Result<Came, StoreError> {
    let mut bytes = location.len_bytes() + window(shared, location);
    loop {
        let mut held = shared.reads.hold(bytes).await;
        match pass(shared, wanted, location, &mut held).await {
            Ok(entry) => {
                let kept = entry.frame.as_ref().map_or(0, Bytes::len);
                held.shrink((entry.value.len() + kept) as u64);
                return Ok(Ok((entry, held)));
            }
            Err(Stop::Record(error)) => return Ok(Err(error)),
            Err(Stop::Store(error)) => return Err(error),
            // What it holds goes before it waits for more.
            Err(Stop::Memory(needed)) => bytes = needed,
        }
    }
}

/// Reads a record once.
async fn pass(
    shared: &Arc<Shared>,
    wanted: Wanted<'_>,
    location: &Location,
    held: &mut Held,
) -> Result<ColdEntry, Stop> {
    let (to, pieces) = Pieces::channel();
    let decoding = decode(wanted, pieces, (held, window(shared, location)));
    let reading = async move {
        let key = location.name.key();
        let start = location.entry.offset;
        let range = start..start + location.len_bytes();
        let read = match parts(shared, location) {
            1 => shared.store.stream_range(&key, range, &to).await.map(drop),
            parts => read_parts(shared, &key, range, parts, &to).await,
        };
        read.map_err(Stop::Store)
    };
    let (received, ()) = tokio::try_join!(decoding, reading)?;
    Ok(received)
}

/// Reads a long record in parts, `parts` of which are asked for or wait for their turn at a time.
async fn read_parts(
    shared: &Arc<Shared>,
    key: &ObjectKey,
    range: Range<u64>,
    parts: u64,
    to: &Pieces,
) -> Result<(), StoreError> {
    let mut reads = JoinSet::new();
    let mut early = BTreeMap::new();
    let (mut asked, mut at) = (range.start, range.start);
    to.begin(key).await?;
    while at < range.end {
        while asked < range.end && ((reads.len() + early.len()) as u64) < parts {
            let part = asked..(asked + PART_BYTES).min(range.end);
            asked = part.end;
            let (store, key) = (Arc::clone(&shared.store), key.clone());
            reads.spawn(async move {
                let from = part.start;
                store.get_range(&key, part).await.map(|bytes| (from, bytes))
            });
        }
        let joined = reads.join_next().await;
        let (from, bytes) = joined.and_then(Result::ok).ok_or_else(|| {
            let kind = StoreErrorKind::Unavailable;
            StoreError::new(Operation::GetRange, key.as_str(), kind)
        })??;
        early.insert(from, bytes);
        while let Some(bytes) = early.remove(&at) {
            // One that is too short leaves the record too short, which the decoder finds.
            at = (at + PART_BYTES).min(range.end);
            to.bytes(key, bytes).await?;
        }
    }
    Ok(())
}

/// Takes the pieces of a record until the last; `held` is extended by what the value takes beyond
/// the `window` and the record's own length.
async fn decode(
    wanted: Wanted<'_>,
    mut pieces: Receiver<Piece>,
    (held, window): (&mut Held, u64),
) -> Result<ColdEntry, Stop> {
    let mut record = RecordStream::new(wanted);
    let mut is_sized = false;
    while let Some(piece) = pieces.recv().await {
        let Piece::Bytes(bytes) = piece else {
            (record, is_sized) = (RecordStream::new(wanted), false);
            continue;
        };
        // What tells the value's length comes first, alone.
        let (start, rest) = bytes.split_at(record.start_missing().min(bytes.len()));
        record.feed(start).map_err(Stop::Record)?;
        if let (false, Some(len)) = (is_sized, record.value_len()) {
            is_sized = true;
            let bytes = len as u64 + window;
            if !held.try_extend(bytes) {
                return Err(Stop::Memory(bytes));
            }
        }
        record.feed(rest).map_err(Stop::Record)?;
        // A piece may have taken most of a millisecond.
        tokio::task::yield_now().await;
    }
    record.finish().map_err(Stop::Record)
}
