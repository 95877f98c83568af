//! The first content of a local index.
//!
//! There is no way back to a blank index once entries were written, so all parts of a checkpoint
//! are checked before. They wait in a file that has no name; in memory is one part at a time, as it
//! is in the bucket and decoded, within the memory for uploads: nothing is uploaded before there is
//! an index.

mod spool;

use std::collections::HashMap;
use std::sync::Arc;

use crate::checkpoint::{Manifest, PartFacts, ROW_LEN, decode_part};
use crate::error::ColdError;
use crate::follow::reconcile;
use crate::index::{Cursor, IndexError};
use crate::names::{CHECKPOINTS, CheckpointName, CheckpointObject, WriterKey};
use crate::options::RestoreFrom;
use crate::segment::FlushMark;
use crate::shared::Shared;
use crate::store::ObjectMeta;
use spool::Spool;

/// How often a checkpoint is tried that a slow or busy bucket lists and does not give.
const TRIES_MAX: u32 = 20;

/// How often each checkpoint could not be read.
pub(crate) type Failures = HashMap<CheckpointName, u32>;

/// Makes the index complete: from a checkpoint, if it is blank and that is wanted, and with every
/// segment that a full list shows. To be called until it succeeds, with the same `failures`: a
/// checkpoint that cannot be read at all is passed over then.
pub(crate) async fn run(shared: &Arc<Shared>, failures: &mut Failures) -> Result<(), ColdError> {
    let is_wanted = shared.options.restore == RestoreFrom::Checkpoint && shared.index.is_blank();
    // Tombstones of lost copies: no checkpoint is read in vain, at each try.
    let has_entries = is_wanted
        && shared
            .blocking(|shared| Ok(shared.index.has_entries()?))
            .await?;
    if is_wanted && !has_entries {
        for name in checkpoints(shared).await? {
            match restore(shared, &name).await {
                Ok(Some(entries)) => {
                    tracing::info!(entries, "index of the cold tier restored from a checkpoint");
                    break;
                }
                Ok(None) => {
                    tracing::info!("no checkpoint: the index has tombstones of lost copies");
                    break;
                }
                Err(error @ ColdError::Checkpoint(_)) => {
                    tracing::warn!(%error, "checkpoint skipped");
                }
                // Deleted since it was listed.
                Err(error) if error.is_not_found() => {}
                Err(ColdError::Store(error)) => {
                    let tries = failures.entry(name).or_default();
                    *tries = tries.saturating_add(1);
                    if error.is_retryable() && *tries < TRIES_MAX {
                        return Err(error.into());
                    }
                    tracing::warn!(%error, tries, "checkpoint cannot be read, an older one or the segments are");
                }
                Err(error) => return Err(error),
            }
        }
    }
    shared.crash_point("restored").await;
    reconcile::run(shared).await?;
    shared
        .blocking(|shared| Ok(shared.index.set_complete()?))
        .await?;
    shared
        .progress
        .send_modify(|progress| progress.is_ready = true);
    Ok(())
}

/// Checkpoints with a manifest: those of the own region first, and the newest of each region first.
async fn checkpoints(shared: &Shared) -> Result<Vec<CheckpointName>, ColdError> {
    let mut names: Vec<CheckpointName> = checkpoint_objects(shared)
        .await?
        .into_iter()
        .filter(|(_, object)| *object == CheckpointObject::Manifest)
        .map(|(name, _)| name)
        .collect();
    let own = &shared.options.region;
    names.sort_by(|a, b| {
        let is_foreign = |name: &CheckpointName| name.region != *own;
        let order = is_foreign(a).cmp(&is_foreign(b));
        order.then(b.id.cmp(&a.id))
    });
    Ok(names)
}

/// All objects of checkpoints.
pub(crate) async fn checkpoint_objects(
    shared: &Shared,
) -> Result<Vec<(CheckpointName, CheckpointObject)>, ColdError> {
    let parse = |object: ObjectMeta| CheckpointName::parse(object.key.as_str());
    Ok(shared.list_all(CHECKPOINTS, parse).await?)
}

/// How many entries came from a checkpoint; None if the index takes none any more.
async fn restore(shared: &Arc<Shared>, name: &CheckpointName) -> Result<Option<u64>, ColdError> {
    let key = name.key(CheckpointObject::Manifest);
    let bytes = shared.bucket().get(&key).await?;
    let manifest = Manifest::decode(&bytes).map_err(ColdError::Checkpoint)?;
    drop(bytes);
    let part_bytes = manifest.parts.iter().map(bytes_in_memory).max();
    let _held = shared.uploads.hold(part_bytes.unwrap_or(0)).await;
    let mut spool = blocking_io(shared, |shared| Spool::create(&shared.options.dir)).await?;
    for (index, facts) in manifest.parts.iter().enumerate() {
        let part = u32::try_from(index).unwrap_or(u32::MAX);
        let key = name.key(CheckpointObject::Part(part));
        let bytes = shared.bucket().get(&key).await?;
        let facts = *facts;
        let checked = shared
            .blocking(move |_| {
                decode_part(&bytes, &facts).map_err(ColdError::Checkpoint)?;
                Ok(bytes)
            })
            .await?;
        spool = blocking_io(shared, move |_| spool.append(&checked)).await?;
    }
    shared.crash_point("before-ingest").await;
    shared
        .blocking(move |shared| ingest(shared, &manifest, &spool))
        .await
}

/// Bytes that a part takes in memory while it is checked or its entries are read.
fn bytes_in_memory(facts: &PartFacts) -> u64 {
    facts.len + u64::from(facts.entries) * ROW_LEN as u64
}

/// Work on the spool. Its failure is not one of the index, which is as it was.
async fn blocking_io<T: Send + 'static>(
    shared: &Arc<Shared>,
    work: impl FnOnce(&Shared) -> std::io::Result<T> + Send + 'static,
) -> Result<T, ColdError> {
    let done = shared.blocking(move |shared| Ok(work(shared))).await?;
    done.map_err(|error| IndexError::Io(error).into())
}

fn ingest(shared: &Shared, manifest: &Manifest, spool: &Spool) -> Result<Option<u64>, ColdError> {
    let decoded = manifest.parts.iter().enumerate().map(|(index, facts)| {
        let bytes = spool.read(index)?;
        decode_part(&bytes, facts).map_err(|error| IndexError::Broken(error.to_string()))
    });
    let entries = decoded.flat_map(|part| {
        let (entries, error) = match part {
            Ok(entries) => (Some(entries), None),
            Err(error) => (None, Some(Err(error))),
        };
        error
            .into_iter()
            .chain(entries.into_iter().flatten().map(Ok))
    });
    let cursors: Vec<(WriterKey, Cursor)> = manifest
        .cursors
        .iter()
        .map(|(key, next_seq)| {
            let cursor = Cursor {
                next_seq: *next_seq,
                last_new_ms: manifest.created_ms,
            };
            (key.clone(), cursor)
        })
        .collect();
    let marks = manifest.flush_marks.iter().copied();
    let marks: Vec<FlushMark> = marks.filter(|mark| shared.observer.flushed(mark)).collect();
    let index = &shared.index;
    Ok(index.restore(&manifest.segments, &cursors, &marks, entries)?)
}
