//! The last map, for all reactors.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use super::topology::Topology;

/// The last map, for all reactors.
#[derive(Debug)]
pub struct Map {
    topology: watch::Sender<Option<Arc<Topology>>>,
    /// Counts up with each change, so that looking whether there is one costs a load.
    generation: AtomicU64,
}

impl Default for Map {
    fn default() -> Self {
        Self {
            topology: watch::Sender::new(None),
            generation: AtomicU64::new(0),
        }
    }
}

impl Map {
    /// The map, once there is one.
    #[must_use]
    pub fn topology(&self) -> Option<Arc<Topology>> {
        self.topology.borrow().clone()
    }

    /// A number that changes with the map.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Takes a map if it is newer. True if it was.
    pub fn offer(&self, new: Topology) -> bool {
        self.topology.send_if_modified(|topology| {
            let is_newer = topology
                .as_deref()
                .is_none_or(|current| new.is_newer_than(current));
            if is_newer {
                *topology = Some(Arc::new(new));
                // Before anybody is woken, who would go by the old map again.
                self.generation.fetch_add(1, Ordering::AcqRel);
            }
            is_newer
        })
    }

    /// Waits until there is a map of at least this epoch; false if none comes in time.
    pub async fn wait_for(&self, epoch: u64, timeout: Duration) -> bool {
        let mut changes = self.topology.subscribe();
        let wait = changes.wait_for(|topology| {
            topology
                .as_deref()
                .is_some_and(|topology| topology.epoch() >= epoch)
        });
        matches!(tokio::time::timeout(timeout, wait).await, Ok(Ok(_)))
    }
}
