//! What the disk tier is told at its start, and what follows from it.

use std::path::PathBuf;
use std::time::Duration;

use super::error::DiskError;
use super::index::IndexMemory;
use crate::levels::CodecChoice;

/// The smallest budget in bytes: below it the fixed cost of the indexes would be most of it.
pub const BUDGET_BYTES_MIN: u64 = 16 << 20;

/// The longest value that a record can hold, in bytes.
pub const VALUE_LEN_LIMIT: usize = 1 << 30;

/// Generations that share the budget.
const GENERATIONS: u64 = 8;

/// Percent of one core that compaction uses at most, unless there is a reason for another share.
pub const COMPACTION_PERCENT: u32 = 25;

/// When a write is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// At once, by the tier above; the disk is written when it is, and never synced for it.
    None,
    /// When the kernel has it, which survives a kill of the process; synced every 100 ms.
    Batched,
    /// After a sync that it shares with others, which survives a loss of power.
    Fsync,
}

/// Options of the disk tier.
#[derive(Clone, Debug)]
pub struct DiskOptions {
    /// The data directory; made if it is missing.
    pub dir: PathBuf,
    /// Bytes that everything in the directory may take, at least [`BUDGET_BYTES_MIN`].
    pub budget_bytes: u64,
    /// When a write is acknowledged.
    pub durability: Durability,
    /// The codec of values that are written.
    pub fresh: CodecChoice,
    /// The codec `compacted`.
    pub compacted: CodecChoice,
    /// Values shorter than this are stored verbatim.
    pub codec_min_bytes: usize,
    /// The longest value in bytes, at most [`VALUE_LEN_LIMIT`].
    pub value_len_max: usize,
    /// Bytes of keys and values that may wait to be written. One write always may.
    pub queue_bytes_max: usize,
    /// RAM in bytes that the indexes may use for memtables and caches.
    pub memory_bytes: usize,
    /// Threads that read. Records above 1 MiB have threads of their own, half as many.
    pub read_threads: usize,
    /// Percent of its time that the compaction thread works at most; 0 to compact nothing.
    pub compaction_percent: u32,
    /// Bytes a second that are written to value logs at most, as if the device were as slow: for
    /// benchmarks.
    pub write_bytes_per_sec_max: Option<u64>,
    /// How long a write waits for room before it is refused, [`ROOM_WAIT`] as a rule.
    pub room_wait: Duration,
}

/// The [`DiskOptions::room_wait`] of a node.
pub const ROOM_WAIT: Duration = Duration::from_secs(3);

impl DiskOptions {
    /// Checks the ranges.
    ///
    /// # Errors
    /// [`DiskError::Options`] says which option is wrong and what would be accepted.
    pub fn validate(&self) -> Result<(), DiskError> {
        let wrong = |what: String| Err(DiskError::Options(what));
        if self.budget_bytes < BUDGET_BYTES_MIN {
            return wrong(format!(
                "a disk budget of {} bytes is too small, at least {BUDGET_BYTES_MIN} are needed",
                self.budget_bytes
            ));
        }
        if self.value_len_max > VALUE_LEN_LIMIT {
            return wrong(format!(
                "values of up to {} bytes cannot be stored on disk, at most {VALUE_LEN_LIMIT}",
                self.value_len_max
            ));
        }
        if self.read_threads == 0 || self.queue_bytes_max == 0 {
            return wrong("the disk tier needs a read thread and a queue".to_owned());
        }
        Ok(())
    }

    /// Parts the memory between memtables and the block cache.
    pub(crate) fn index_memory(&self) -> IndexMemory {
        let memory = self.memory_bytes as u64;
        // Up to three of the newest index exist at a time, and an entry takes about twice what is
        // accounted for it.
        IndexMemory::new(
            (memory / 16).clamp(256 << 10, 8 << 20),
            (memory / 2).max(1 << 20),
        )
    }
}

/// Bytes at which things happen, from the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// The budget. Entries that are carried over may lead up to it.
    pub(crate) total_max: u64,
    /// No write may lead past it.
    pub(crate) writes_max: u64,
    /// Above it the oldest generation is dropped.
    pub(crate) total_high: u64,
    /// At which size a generation is followed by the next one.
    pub(crate) generation: u64,
    /// At which size it is waited for the next one. No record is larger.
    pub(crate) generation_max: u64,
}

impl Limits {
    /// Of a generation that is dropped, at most half may be carried over, and as much again may be
    /// written meanwhile.
    pub(crate) fn of_budget(budget: u64) -> Self {
        let generation = budget / GENERATIONS;
        Self {
            total_max: budget,
            writes_max: budget - generation / 2,
            total_high: budget - generation,
            generation,
            generation_max: generation + generation / 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_the_smallest_budget_leave_room_to_drop_a_generation() {
        let limits = Limits::of_budget(BUDGET_BYTES_MIN);
        assert!(limits.generation_max < limits.total_high);
        assert!(limits.total_high < limits.writes_max && limits.writes_max < limits.total_max);
    }
}
