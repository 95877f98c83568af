//! Writing the local index into the bucket, so that a node without one need not read every footer.

use std::sync::Arc;

use crate::checkpoint::{Manifest, PartBuilder, PartFacts, ROW_LEN};
use crate::error::ColdError;
use crate::index::Frozen;
use crate::names::{CheckpointName, CheckpointObject, KeyHash};
use crate::restore;
use crate::shared::Shared;
use crate::status::Counters;

/// Entries that are read from the index at a time.
const PAGE: usize = 16 << 10;
/// Bytes of an entry in a part.
const ROW_BYTES: u64 = ROW_LEN as u64;
/// Most bytes of entries in a part, before it is packed.
const PART_BYTES_MAX: u64 = 8 << 20;
/// Share of the memory for transfers that the entries of a part take: packed and unpacked, they fit
/// into that for uploads where they are read again.
const PART_SHARE: u64 = 8;
/// Checkpoints of a region that are kept.
const KEPT: usize = 2;
/// New entries that make a checkpoint due, as a share of all: one in so many.
const NEW_SHARE: u64 = 10;
/// But not for so few segments.
const SEGMENTS_MIN: u64 = 8;

/// Whether a checkpoint is due.
pub(crate) fn is_due(shared: &Shared) -> bool {
    let merged = shared.index.merged();
    let many = shared.options.checkpoint_segments;
    let is_share = merged.entries > shared.index.entries_approx() / NEW_SHARE
        && merged.segments >= SEGMENTS_MIN.min(many);
    merged.segments > many || is_share
}

/// Writes a checkpoint, unless there are lost copies that the bucket does not know of yet.
pub(crate) async fn run(shared: &Arc<Shared>) -> Result<(), ColdError> {
    let freeze = |shared: &Shared| {
        let is_visible = |space, at| shared.is_visible(space, at);
        Ok(shared.index.freeze(&is_visible)?)
    };
    let frozen = shared.blocking(freeze).await?;
    let Some(frozen) = frozen.map(Arc::new) else {
        tracing::info!("no checkpoint before the bucket has the tombstones of lost entries");
        return Ok(());
    };
    let name = next_name(shared).await?;
    let created_ms = shared.wall_ms();
    let parts = write_parts(shared, &name, &frozen).await?;
    shared.crash_point("parts-written").await;
    let manifest = Manifest {
        name: name.clone(),
        created_ms,
        segments: frozen.segments.clone(),
        cursors: frozen
            .cursors
            .iter()
            .map(|(key, cursor)| (key.clone(), cursor.next_seq))
            .collect(),
        flush_marks: frozen.marks.clone(),
        parts,
    };
    let bytes = manifest.encode().map_err(ColdError::Checkpoint)?;
    let key = name.key(CheckpointObject::Manifest);
    shared.bucket().put(&key, bytes.into()).await?;
    shared.crash_point("manifest-written").await;
    let merged = frozen.merged;
    shared
        .blocking(move |shared| Ok(shared.index.checkpointed(merged)?))
        .await?;
    Counters::add(&shared.counters.checkpoints, 1);
    Ok(())
}

/// A name above those of the region's checkpoints in the bucket, also where the clock was set back:
/// what [`remove_old`] keeps are the highest names.
async fn next_name(shared: &Shared) -> Result<CheckpointName, ColdError> {
    let region = &shared.options.region;
    let objects = restore::checkpoint_objects(shared).await?;
    let own = objects.iter().filter(|(name, _)| name.region == *region);
    let after_ms = own.map(|(name, _)| name.id.started_ms() + 1).max();
    let at_ms = shared.wall_ms().max(after_ms.unwrap_or(0));
    Ok(CheckpointName {
        region: region.clone(),
        id: shared.mint_id(at_ms),
    })
}

async fn write_parts(
    shared: &Arc<Shared>,
    name: &CheckpointName,
    frozen: &Arc<Frozen>,
) -> Result<Vec<PartFacts>, ColdError> {
    let part_bytes = (shared.options.transfer_bytes() / PART_SHARE).min(PART_BYTES_MAX);
    let rows_max = (part_bytes / ROW_BYTES).max(1024);
    let rows_max = usize::try_from(rows_max).unwrap_or(usize::MAX);
    let mut parts = Vec::new();
    let mut after: Option<KeyHash> = None;
    loop {
        // Rows, their packed form, and the page at hand.
        let _held = shared.uploads.hold(rows_max as u64 * ROW_BYTES * 2).await;
        let scanned = Arc::clone(frozen);
        let from = after;
        let (built, last) = shared
            .blocking(move |_| build_part(&scanned, from, rows_max))
            .await?;
        let Some((bytes, facts)) = built else {
            return Ok(parts);
        };
        after = last;
        let part = u32::try_from(parts.len()).unwrap_or(u32::MAX);
        let key = name.key(CheckpointObject::Part(part));
        shared.bucket().put(&key, bytes.into()).await?;
        parts.push(facts);
    }
}

type Built = (Option<(Vec<u8>, PartFacts)>, Option<KeyHash>);

fn build_part(
    frozen: &Frozen,
    mut after: Option<KeyHash>,
    rows_max: usize,
) -> Result<Built, ColdError> {
    let mut part = PartBuilder::new();
    while part.entries() < rows_max {
        let page = frozen
            .scan
            .page(after, PAGE.min(rows_max - part.entries()))?;
        if page.is_empty() {
            break;
        }
        for entry in &page {
            part.push(entry).map_err(ColdError::Checkpoint)?;
            after = Some(entry.hash);
        }
    }
    Ok((part.finish(), after))
}

/// Deletes the objects of all checkpoints of the region but the newest, and what is left of some
/// that were never finished.
pub(crate) async fn remove_old(shared: &Shared) -> Result<(), ColdError> {
    let objects = restore::checkpoint_objects(shared).await?;
    let own = &shared.options.region;
    let mut complete: Vec<&CheckpointName> = objects
        .iter()
        .filter(|(name, object)| name.region == *own && *object == CheckpointObject::Manifest)
        .map(|(name, _)| name)
        .collect();
    complete.sort();
    let Some(oldest_kept) = complete.iter().rev().nth(KEPT - 1) else {
        return Ok(());
    };
    // Manifests first: what has one must be whole.
    let is_old = |name: &CheckpointName| name.region == *own && name < *oldest_kept;
    let mut old: Vec<_> = objects.iter().filter(|(name, _)| is_old(name)).collect();
    old.sort_by_key(|(_, object)| *object);
    for (name, object) in old {
        shared.bucket().delete(&name.key(*object)).await?;
        shared.crash_point("checkpoint-removed").await;
    }
    Ok(())
}
