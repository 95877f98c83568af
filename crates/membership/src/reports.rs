//! What raft reports of itself, and how old that is at most.
//!
//! Raft counts the time since a majority answered when it reports. While it waits for its journal
//! it reports nothing, and others may elect another leader meanwhile. So the age of the report
//! counts too: a leader that took an old report for a new one would keep its lease for ever. The
//! only voter is its own majority: no other member is elected while it waits.

use std::time::Instant;

use tokio::sync::watch;

use super::types::Metrics;

/// The reports of one participant.
#[derive(Debug)]
pub(super) struct Reports {
    reports: watch::Receiver<Metrics>,
    /// When they were looked at last.
    looked: Instant,
    /// The newest one was made after this.
    since: Instant,
}

impl Reports {
    pub(super) const fn new(reports: watch::Receiver<Metrics>, now: Instant) -> Self {
        Self {
            reports,
            looked: now,
            since: now,
        }
    }

    /// The newest report, as of `now`, a time that is not in the future.
    pub(super) fn look(&mut self, now: Instant) -> Metrics {
        let report = self.reports.borrow_and_update();
        if report.has_changed() {
            self.since = self.looked;
        }
        let mut metrics = report.clone();
        drop(report);
        self.looked = now;
        let (own, membership) = (metrics.id, metrics.membership_config.membership());
        let has_other = membership.voter_ids().any(|id| id != own);
        if has_other && let Some(acked) = &mut metrics.millis_since_quorum_ack {
            let age = now.saturating_duration_since(self.since).as_millis();
            *acked = acked.saturating_add(u64::try_from(age).unwrap_or(u64::MAX));
        }
        metrics
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::time::Duration;

    use openraft::{BasicNode, Membership};

    use super::*;
    use crate::types::{RaftId, StoredMembership};

    /// What the first of some voters reports.
    fn report(voters: &[RaftId], acked: Option<u64>) -> Metrics {
        let nodes = voters.iter().map(|id| (*id, BasicNode::new("h:1")));
        let nodes: BTreeMap<RaftId, BasicNode> = nodes.collect();
        let voters = Membership::new(vec![voters.iter().copied().collect()], nodes);
        let mut metrics = Metrics::new_initial(1);
        metrics.membership_config = Arc::new(StoredMembership::new(None, voters));
        metrics.millis_since_quorum_ack = acked;
        metrics
    }

    #[test]
    fn a_report_of_the_only_voter_does_not_grow_old() {
        let (_raft, reports) = watch::channel(report(&[1], Some(50)));
        let start = Instant::now();
        let mut reports = Reports::new(reports, start);
        let metrics = reports.look(start + Duration::from_secs(9));
        assert_eq!(metrics.millis_since_quorum_ack, Some(50));
    }

    #[test]
    fn a_report_grows_old_while_raft_makes_no_other_one() {
        let ms = Duration::from_millis;
        let acked = |millis| report(&[1, 2, 3], millis);
        let (raft, reports) = watch::channel(acked(None));
        let start = Instant::now();
        let mut reports = Reports::new(reports, start);
        let mut look = |after| reports.look(start + ms(after)).millis_since_quorum_ack;
        assert_eq!(look(100), None);
        raft.send(acked(Some(50))).unwrap();
        // It may have been made just after the last look.
        assert_eq!(look(150), Some(100));
        assert_eq!(look(160), Some(110));
        assert_eq!(look(9160), Some(9110));
        raft.send(acked(Some(20))).unwrap();
        assert_eq!(look(9170), Some(30));
    }
}
