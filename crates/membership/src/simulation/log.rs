//! The log of a simulated member, and what is on its disk besides.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use openraft::BasicNode;

use crate::state::Change;
use crate::types::RaftId;

/// Voters and followers.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Config {
    pub(super) voters: Vec<BTreeSet<RaftId>>,
    pub(super) nodes: BTreeMap<RaftId, BasicNode>,
}

impl Config {
    /// Whether each set of voters has a majority without any one of them.
    pub(super) fn bears_a_loss(&self) -> bool {
        !self.voters.is_empty() && self.voters.iter().all(|voters| voters.len() >= 3)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Payload {
    Blank,
    Change(Change),
    Config(Arc<Config>),
}

#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) term: u64,
    /// When the leader made it.
    pub(super) made: Instant,
    pub(super) leader: RaftId,
    pub(super) payload: Payload,
}

impl Entry {
    pub(super) fn config(&self) -> Option<&Arc<Config>> {
        match &self.payload {
            Payload::Config(config) => Some(config),
            _ => None,
        }
    }
}

/// What is on its disk.
#[derive(Clone, Debug, Default)]
pub(super) struct Disk {
    pub(super) term: u64,
    pub(super) voted: Option<RaftId>,
    pub(super) log: Vec<Entry>,
}

impl Disk {
    /// Where the newest configuration stands in the log, and the one before it; 1 is the first
    /// entry.
    pub(super) fn configs(&self) -> (Option<usize>, Option<usize>) {
        let is_config = |at: &usize| self.log[at - 1].config().is_some();
        let mut configs = (1..=self.log.len()).rev().filter(is_config);
        (configs.next(), configs.next())
    }

    /// The newest in the log, agreed on or not.
    pub(super) fn config(&self) -> Arc<Config> {
        let newest = self.log.iter().rev().find_map(Entry::config);
        newest.cloned().unwrap_or_default()
    }
}
