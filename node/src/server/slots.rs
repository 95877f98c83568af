//! How many entries a slot has.

use fonn_proto::placement;

use crate::engine::Engine;
use crate::entry::Space;
use fonn_proto::Failure;

/// Keys that are looked at for one answer; of more, so many stand for all.
const LOOKED_AT_MAX: u64 = 200_000;

/// Keys of one step.
const STEP: usize = 10_000;

/// The number of entries of a slot in a space: exact up to some hundred thousand entries in the space,
/// estimated above. There is no index by slot, so all keys are looked at.
///
/// # Errors
/// [`Failure::Unavailable`] if the disk cannot be read, [`Failure::Busy`] if too many iterations go on.
pub(super) async fn count(engine: &Engine, space: Space, slot: u16) -> Result<u64, Failure> {
    let (mut found, mut seen, mut cursor) = (0, 0, 0);
    loop {
        let page = engine.scan(space, cursor, STEP).await;
        let (next, keys) = page.ok_or(Failure::Busy)??;
        seen += keys.len() as u64;
        found += keys.iter().filter(|it| placement::slot(it) == slot).count() as u64;
        if next == 0 {
            return Ok(found);
        }
        if seen >= LOOKED_AT_MAX {
            let all = u128::from(engine.count_entries(space).await?.max(seen));
            let estimate = u128::from(found) * all / u128::from(seen);
            return Ok(u64::try_from(estimate).unwrap_or(u64::MAX));
        }
        cursor = next;
    }
}
