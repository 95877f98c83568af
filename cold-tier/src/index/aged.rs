//! An index as if time had passed: for tests of what depends on how long a writer was idle.

use std::path::Path;
use std::time::Duration;

use super::database::{Batch, IndexError};
use super::{Cursor, Index, follow_key, rows};

/// RAM of each part of the database while it is open here.
const MEMORY_BYTES: u64 = 1 << 20;

/// Makes the index in `dir`, of a node that does not run, say that the last segment of every writer
/// is older by `by`.
///
/// # Errors
/// [`IndexError`]: the index cannot be opened or written, for instance because its node runs.
pub fn age_writers(dir: &Path, by: Duration) -> Result<(), IndexError> {
    let index = Index::open(dir, MEMORY_BYTES, MEMORY_BYTES)?;
    let by_ms = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
    let mut batch = Batch::default();
    for (key, cursor) in index.cursors() {
        let aged = Cursor {
            last_new_ms: cursor.last_new_ms.saturating_sub(by_ms),
            ..cursor
        };
        batch.put_meta(follow_key(&key), rows::encode_cursor(&aged));
    }
    index.database.commit(batch)
}
