//! What tests of memory share: a node that writes nothing, and the memory of the process.

use fonn_base::boxed::BoxFuture;
use fonn_cold_tier::segment::FlushMark;
use fonn_cold_tier::{
    Backlog, ColdObserver, CopyRef, SpillBatch, SpillCursor, SpillSource, SpillSourceError,
};

/// A source without records, and an observer that does nothing.
pub struct Nothing;

impl SpillSource for Nothing {
    fn read(&self, from: &SpillCursor, _: usize) -> Result<SpillBatch, SpillSourceError> {
        Ok(SpillBatch {
            records: Vec::new(),
            end: from.clone(),
        })
    }

    fn acknowledge(&self, _: &SpillCursor) {}

    fn backlog(&self, _: &SpillCursor) -> Backlog {
        Backlog::default()
    }

    fn wait(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::pending())
    }
}

impl ColdObserver for Nothing {
    fn superseded(&self, _: &[CopyRef<'_>]) {}

    fn flushed(&self, _: &FlushMark) -> bool {
        true
    }

    fn is_visible(&self, _: u32, _: u64) -> bool {
        true
    }
}

/// A field of the process's status, in bytes.
pub fn process_bytes(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux tells the status");
    let line = status.lines().find(|line| line.starts_with(field));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kib.expect("the status has the field, in KiB") << 10
}
