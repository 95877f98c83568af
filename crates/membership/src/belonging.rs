//! The cluster to which a participant belongs, and the check of its callers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tonic::Status;

use fonn_proto::grpc::v1::RaftEnds;

use super::types::RaftId;

/// Raft id and cluster; clones are the same.
#[derive(Clone, Debug)]
pub struct Belonging {
    raft_id: RaftId,
    cluster: Arc<AtomicU64>,
}

impl Belonging {
    pub(super) fn new(raft_id: RaftId, cluster: u64) -> Self {
        Self {
            raft_id,
            cluster: Arc::new(AtomicU64::new(cluster)),
        }
    }

    pub(super) const fn raft_id(&self) -> RaftId {
        self.raft_id
    }

    /// The cluster; 0 for none yet.
    #[must_use]
    pub fn cluster(&self) -> u64 {
        self.cluster.load(Ordering::Acquire)
    }

    pub(super) fn set_cluster(&self, cluster: u64) {
        self.cluster.store(cluster, Ordering::Release);
    }

    /// The ends of a message to `target`.
    pub(super) fn ends(&self, target: RaftId) -> RaftEnds {
        RaftEnds {
            cluster: self.cluster(),
            source: self.raft_id,
            target,
        }
    }

    /// Refuses what is meant for another: a message of another cluster, or to a member that had
    /// this address before.
    pub(super) fn check(&self, ends: Option<&RaftEnds>) -> Result<(), Status> {
        let Some(ends) = ends else {
            return Err(Status::invalid_argument("a message without its ends"));
        };
        self.check_cluster(ends.cluster)?;
        if ends.target != self.raft_id {
            let why = format!(
                "raft id {:x} is not here, {:x} is",
                ends.target, self.raft_id
            );
            return Err(Status::failed_precondition(why));
        }
        Ok(())
    }

    /// The cluster of this node, which the caller has to name, or 0 for any.
    pub(super) fn check_wanted(&self, cluster: u64) -> Result<u64, Status> {
        let own = self.cluster();
        self.check_cluster(if cluster == 0 { own } else { cluster })?;
        Ok(own)
    }

    /// Refuses what is meant for another cluster.
    pub(super) fn check_cluster(&self, cluster: u64) -> Result<(), Status> {
        match self.cluster() {
            0 => Err(Status::unavailable(
                "this node has not joined a cluster yet",
            )),
            own if own == cluster => Ok(()),
            own => {
                let why = format!("this node belongs to cluster {own:x}, not to {cluster:x}");
                Err(Status::failed_precondition(why))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[test]
    fn only_messages_for_this_participant_of_this_cluster_pass() {
        let belonging = Belonging::new(7, 0);
        let ends = |cluster, target| RaftEnds {
            cluster,
            source: 1,
            target,
        };
        let code = |ends: Option<&RaftEnds>| belonging.check(ends).map_err(|it| it.code());
        assert_eq!(code(Some(&ends(0, 7))), Err(Code::Unavailable));
        belonging.set_cluster(9);
        assert_eq!(code(Some(&ends(9, 7))), Ok(()));
        assert_eq!(code(Some(&ends(9, 8))), Err(Code::FailedPrecondition));
        assert_eq!(code(Some(&ends(8, 7))), Err(Code::FailedPrecondition));
        assert_eq!(code(None), Err(Code::InvalidArgument));
    }
}
