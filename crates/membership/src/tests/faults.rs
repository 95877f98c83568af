//! Links between members that a test cuts: what is sent over one never arrives.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::world::PATIENCE;

/// All links of a test.
#[derive(Clone, Debug, Default)]
pub(crate) struct Links(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    cut: Mutex<HashSet<String>>,
    dropped: watch::Sender<HashMap<String, u64>>,
}

impl Links {
    /// Cuts everything from and to an address.
    pub(crate) fn isolate(&self, address: &str) {
        self.0.cut.lock().insert(address.to_owned());
    }

    pub(crate) fn heal(&self) {
        self.0.cut.lock().clear();
    }

    /// Waits until so many more calls from an address were dropped.
    pub(crate) async fn dropped(&self, from: &str, more: u64) {
        let mut dropped = self.0.dropped.subscribe();
        let count = |all: &HashMap<String, u64>| all.get(from).copied().unwrap_or(0);
        let enough = count(&dropped.borrow()) + more;
        let dropped = dropped.wait_for(|all| count(all) >= enough);
        tokio::time::timeout(PATIENCE, dropped)
            .await
            .unwrap()
            .unwrap();
    }

    /// The links of one member.
    pub(crate) fn from(&self, address: &str) -> Faults {
        Faults {
            links: self.clone(),
            from: address.to_owned(),
        }
    }
}

/// The links of one member.
#[derive(Clone, Debug)]
pub(crate) struct Faults {
    links: Links,
    from: String,
}

impl Faults {
    /// Lets a call through, or never.
    pub(crate) async fn pass(&self, to: &str) {
        let is_cut = {
            let cut = self.links.0.cut.lock();
            cut.contains(&self.from) || cut.contains(to)
        };
        if is_cut {
            let dropped = &self.links.0.dropped;
            dropped.send_modify(|all| *all.entry(self.from.clone()).or_default() += 1);
            std::future::pending().await
        }
    }
}
