//! Counts what an identity wrote, in steps: for the operator that is about to purge it.
//!
//! Memory and disk are counted. What the bucket alone has is not: its index does not know writers.

use fonn_base::entry::{Meta, Space};
use fonn_disk_tier::PageLimits;
use fonn_proto::{Failure, PurgeScope};

use super::Engine;

/// A step looks at about so many keys.
const STEP_KEYS: usize = 4096;

/// A step holds so many bytes of keys.
const STEP_KEY_BYTES: usize = 1 << 20;

/// Where a count goes on.
#[derive(Clone, Debug, Default)]
pub struct WrittenCursor {
    /// The place among the spaces to look at.
    space: usize,
    /// The last key on disk that was looked at.
    after: Option<Vec<u8>>,
    /// The place in memory, where there is no disk.
    in_ram: u64,
}

/// What one step found.
#[derive(Clone, Debug, Default)]
pub struct WrittenStep {
    /// Keys that were looked at.
    pub visited: u64,
    /// Those of them that the purge would hide and that clients see now.
    pub entries: u64,
    /// Where the next step begins; None at the end.
    pub next: Option<WrittenCursor>,
}

impl Engine {
    /// The spaces that a purge is about: all databases of its namespace, or of all known ones.
    #[must_use]
    pub fn spaces_of(&self, purge: PurgeScope) -> Vec<Space> {
        let known = self.hot.namespaces.known();
        let mut namespaces: Vec<u32> = match purge.namespace {
            Some(namespace) => vec![namespace],
            None => known.iter().map(|it| it.number).chain([0]).collect(),
        };
        namespaces.sort_unstable();
        namespaces.dedup();
        let spaces = namespaces.into_iter().flat_map(Space::of_namespace);
        spaces.collect()
    }

    /// About how many keys a count of all spaces looks at.
    #[must_use]
    pub fn keys_approx(&self) -> u64 {
        match &self.disk {
            Some(disk) => disk.usage().entries_approx,
            None => self.hot.ram.len() as u64,
        }
    }

    /// Has the disk hold what memory alone holds, so that a count finds it.
    pub async fn before_count(&self) {
        if let Some(disk) = &self.disk {
            disk.barrier().await;
        }
    }

    /// One step of a count of what `purge` would hide in `spaces`. Only keys that `is_counted`
    /// count.
    ///
    /// # Errors
    /// [`Failure::Busy`] or [`Failure::Unavailable`] if the disk cannot be read.
    pub async fn count_written(
        &self,
        purge: PurgeScope,
        spaces: &[Space],
        mut cursor: WrittenCursor,
        is_counted: impl Fn(&[u8]) -> bool,
    ) -> Result<WrittenStep, Failure> {
        let now_ms = self.hot.clock.wall_ms();
        let mut step = WrittenStep::default();
        let hides = |space: Space, key: &[u8], meta: &Meta| {
            purge.covers(space, meta.writer, meta.version)
                && self.hot.absence(space, meta, now_ms).is_none()
                && is_counted(key)
        };
        let Some(disk) = &self.disk else {
            cursor.in_ram = self.hot.ram.scan(cursor.in_ram, STEP_KEYS, |found| {
                step.visited += 1;
                let is_there = !found.tombstone && spaces.contains(&found.space);
                if is_there && hides(found.space, found.key, &found.meta) {
                    step.entries += 1;
                }
            });
            step.next = (cursor.in_ram != 0).then_some(cursor);
            return Ok(step);
        };
        let Some(&space) = spaces.get(cursor.space) else {
            return Ok(step);
        };
        let limits = PageLimits {
            keys: STEP_KEYS,
            key_bytes: STEP_KEY_BYTES,
        };
        let page = disk.page(space, cursor.after, limits).await;
        let page = page.map_err(|error| {
            tracing::warn!(%error, "a count of what an identity wrote failed");
            Failure::Unavailable
        })?;
        for (key, on_disk) in &page.entries {
            step.visited += 1;
            let meta = self.hot.newest_meta(space, key, on_disk);
            if meta.is_some_and(|meta| hides(space, key, &meta)) {
                step.entries += 1;
            }
        }
        step.next = Some(match page.last {
            Some(last) => WrittenCursor {
                after: Some(last),
                ..cursor
            },
            None => WrittenCursor {
                space: cursor.space + 1,
                ..WrittenCursor::default()
            },
        });
        Ok(step)
    }

    /// Whether what these facts are of was purged.
    #[must_use]
    pub fn is_purged(&self, space: Space, meta: &Meta) -> bool {
        self.hot.flushes.is_purged(space, meta)
    }
}
