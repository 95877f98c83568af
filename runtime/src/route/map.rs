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
    /// The highest epoch that some member was seen to go by.
    wanted: watch::Sender<u64>,
}

impl Default for Map {
    fn default() -> Self {
        Self {
            topology: watch::Sender::new(None),
            generation: AtomicU64::new(0),
            wanted: watch::Sender::new(0),
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

    /// A member was seen that goes by a map of this epoch.
    pub fn want(&self, epoch: u64) {
        self.wanted.send_if_modified(|wanted| {
            let is_more = epoch > *wanted;
            *wanted = epoch.max(*wanted);
            is_more
        });
    }

    /// Waits until a map is wanted that does not come for so long: whoever tells the map is behind.
    pub async fn behind(&self, patience: Duration) {
        let mut wanted = self.wanted.subscribe();
        let mut told = self.topology.subscribe();
        let epoch = |it: &Option<Arc<Topology>>| it.as_deref().map_or(0, Topology::epoch);
        loop {
            let known = epoch(&told.borrow_and_update());
            // The sender is here.
            let newest = *wanted.borrow_and_update();
            if newest <= known {
                let _ = wanted.changed().await;
                continue;
            }
            let comes = told.wait_for(|it| epoch(it) >= newest);
            if tokio::time::timeout(patience, comes).await.is_err() {
                return;
            }
        }
    }
}
