//! Reading the footers of segments.

use std::sync::Arc;

use bytes::Bytes;
use tokio::task::JoinSet;

use crate::error::ColdError;
use crate::format::FormatError;
use crate::names::SegmentName;
use crate::segment::{Footer, TAIL_LEN_GUESS, Tail, decode_tail, decoded_len};
use crate::shared::Shared;
use crate::store::{StoreErrorKind, Suffix};

/// Footers that are read at the same time when many are.
const PARALLEL: usize = 16;

/// A footer that is longer than this when it is decoded, in bytes, is not read beside others. So
/// what all footers take that are read at the same time is a multiple of 32 MiB, whatever is in the
/// bucket.
const PARALLEL_LEN_MAX: u64 = 1 << 20;

/// How many times a footer is read again that seems damaged: it may have been so on its way.
const READS_MAX: u32 = 3;

/// A footer, and the size of its segment in bytes.
pub(crate) type Read = (Footer, u64);

/// Reads the footer of a segment, with one request if it is not long.
///
/// # Errors
/// [`ColdError::Store`], among them that there is no such segment; [`ColdError::Segment`] if it is
/// damaged or of another format.
pub(crate) async fn read(shared: &Shared, name: &SegmentName) -> Result<Read, ColdError> {
    let end = fetch(shared, name, TAIL_LEN_GUESS).await;
    read_from(shared, name, end).await
}

/// As [`read`]. None for a footer that is not to be read beside others.
async fn read_if_short(shared: &Shared, name: &SegmentName) -> Option<Result<Read, ColdError>> {
    let end = fetch(shared, name, TAIL_LEN_GUESS).await;
    if let Ok(end) = &end
        && decoded_len(&end.bytes, end.object_size_bytes) > Some(PARALLEL_LEN_MAX)
    {
        return None;
    }
    Some(read_from(shared, name, end).await)
}

/// Reads a footer, of whose segment the end was fetched first.
async fn read_from(
    shared: &Shared,
    name: &SegmentName,
    mut end: Result<Suffix, ColdError>,
) -> Result<Read, ColdError> {
    let wrong = |part, field| FormatError::Field { part, field };
    let mut reads = 1;
    loop {
        let mut decoded = decode(&end?);
        if let Ok((Tail::NeedMore { suffix_len }, _)) = decoded {
            decoded = decode(&fetch(shared, name, suffix_len).await?);
        }
        let damage = match decoded {
            Ok((Tail::Complete(footer), size)) if footer.header.name() == *name => {
                return Ok((footer, size));
            }
            Ok((Tail::Complete(_), _)) => wrong("footer", "name"),
            Ok((Tail::NeedMore { .. }, _)) => wrong("trailer", "length"),
            Err(error) => error,
        };
        // Another release's stays so.
        if reads == READS_MAX || matches!(damage, FormatError::Version { .. }) {
            return Err(ColdError::Segment {
                name: name.clone(),
                source: damage,
            });
        }
        reads += 1;
        end = fetch(shared, name, TAIL_LEN_GUESS).await;
    }
}

/// The last `suffix_len` bytes of a segment. An object without a single byte is there, and is no
/// segment.
async fn fetch(shared: &Shared, name: &SegmentName, suffix_len: u64) -> Result<Suffix, ColdError> {
    match shared.bucket().get_suffix(&name.key(), suffix_len).await {
        Err(error) if error.kind == StoreErrorKind::OutOfRange => Ok(Suffix {
            bytes: Bytes::new(),
            object_size_bytes: 0,
        }),
        suffix => Ok(suffix?),
    }
}

fn decode(end: &Suffix) -> Result<(Tail, u64), FormatError> {
    let size = end.object_size_bytes;
    decode_tail(&end.bytes, size).map(|tail| (tail, size))
}

/// Reads many footers, several at a time unless they are long, and gives them to `each` in the
/// order of the names.
///
/// # Errors
/// The first of `each`. A footer that cannot be read is given as the error.
pub(crate) async fn read_many<F>(
    shared: &Arc<Shared>,
    names: Vec<SegmentName>,
    mut each: impl FnMut(SegmentName, Result<Read, ColdError>) -> F,
) -> Result<(), ColdError>
where
    F: Future<Output = Result<(), ColdError>>,
{
    let mut waiting = names.into_iter().enumerate();
    let mut reads = JoinSet::new();
    let mut done = std::collections::BTreeMap::new();
    let mut next = 0;
    loop {
        // What is read and waits for its turn counts too: memory is bounded.
        while reads.len() + done.len() < PARALLEL {
            let Some((index, name)) = waiting.next() else {
                break;
            };
            let shared = Arc::clone(shared);
            reads.spawn(async move {
                let result = read_if_short(&shared, &name).await;
                (index, name, result)
            });
        }
        match reads.join_next().await {
            None => return Ok(()),
            Some(Ok((index, name, result))) => {
                done.insert(index, (name, result));
            }
            Some(Err(_)) => return Err(ColdError::Stopping),
        }
        while let Some((name, result)) = done.remove(&next) {
            next += 1;
            let result = match result {
                Some(result) => result,
                None => read(shared, &name).await,
            };
            each(name, result).await?;
        }
    }
}
