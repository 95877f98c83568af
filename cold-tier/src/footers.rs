//! Reading the footers of segments.

use std::sync::Arc;

use tokio::task::JoinSet;

use crate::error::ColdError;
use crate::names::SegmentName;
use crate::segment::{Footer, SegmentError, TAIL_LEN_GUESS, Tail, decode_tail};
use crate::shared::Shared;
use crate::store::{Operation, StoreErrorKind};

/// Footers that are read at the same time when many are.
const PARALLEL: usize = 16;

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
    let mut suffix_len = TAIL_LEN_GUESS;
    let mut damage = None;
    for _ in 0..READS_MAX {
        match read_tail(shared, name, suffix_len).await? {
            Ok((Tail::Complete(footer), size)) if footer.header.name() == *name => {
                return Ok((footer, size));
            }
            Ok((Tail::Complete(_), _)) => {
                damage = Some(SegmentError::Field {
                    part: "footer",
                    field: "name",
                });
            }
            Ok((Tail::NeedMore { suffix_len: more }, _)) => {
                suffix_len = more;
                match read_tail(shared, name, suffix_len).await? {
                    Ok((Tail::Complete(footer), size)) if footer.header.name() == *name => {
                        return Ok((footer, size));
                    }
                    Ok(_) => {
                        damage = Some(SegmentError::Field {
                            part: "trailer",
                            field: "length",
                        });
                    }
                    Err(error) => damage = Some(error),
                }
            }
            // Another release's: it stays so.
            Err(error @ SegmentError::Format { .. }) => {
                damage = Some(error);
                break;
            }
            Err(error) => damage = Some(error),
        }
    }
    Err(ColdError::Segment {
        name: name.clone(),
        source: damage.unwrap_or(SegmentError::NotASegment { part: "trailer" }),
    })
}

async fn read_tail(
    shared: &Shared,
    name: &SegmentName,
    suffix_len: u64,
) -> Result<Result<(Tail, u64), SegmentError>, ColdError> {
    let key = name.key();
    let call = shared.store.get_suffix(&key, suffix_len);
    let about = (Operation::GetSuffix, key.as_str(), suffix_len);
    let suffix = match shared.call(about, call).await {
        // An object without a single byte is there, and is no segment.
        Err(error) if error.kind == StoreErrorKind::OutOfRange => {
            return Ok(Err(SegmentError::NotASegment { part: "trailer" }));
        }
        suffix => suffix?,
    };
    let size = suffix.object_size_bytes;
    Ok(decode_tail(&suffix.bytes, size).map(|tail| (tail, size)))
}

/// Reads many footers, several at a time, and gives them to `each` in the order of the names.
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
                let result = read(&shared, &name).await;
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
            each(name, result).await?;
        }
    }
}
