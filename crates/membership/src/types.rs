//! What openraft calls by type parameters, with our types in their places.

use std::io::Cursor;

use super::state::{Change, Outcome};

/// Names one raft participant, drawn at random when a data directory is first used: a member that
/// returns with an empty disk is another one to raft, so none votes twice.
pub type RaftId = u64;

openraft::declare_raft_types!(
    /// The types of our raft group.
    pub TypeConfig:
        D = Change,
        R = Outcome,
        NodeId = RaftId,
        Node = openraft::BasicNode,
        Entry = openraft::Entry<TypeConfig>,
        SnapshotData = Cursor<Vec<u8>>,
        AsyncRuntime = openraft::TokioRuntime,
);

/// A running participant.
pub type Raft = openraft::Raft<TypeConfig>;
/// An entry of the log.
pub type Entry = openraft::Entry<TypeConfig>;
/// The position of an entry and the term of the leader that made it.
pub type LogId = openraft::LogId<RaftId>;
/// Term and candidate.
pub type Vote = openraft::Vote<RaftId>;
/// Voters and learners, and the entry that made them so.
pub type StoredMembership = openraft::StoredMembership<RaftId, openraft::BasicNode>;
/// What a snapshot covers.
pub type SnapshotMeta = openraft::SnapshotMeta<RaftId, openraft::BasicNode>;
/// A snapshot with its bytes.
pub type Snapshot = openraft::Snapshot<TypeConfig>;
/// An error of the log or the state machine; raft stops at it.
pub type StorageError = openraft::StorageError<RaftId>;
/// State of the participant as raft reports it.
pub type Metrics = openraft::RaftMetrics<RaftId, openraft::BasicNode>;
