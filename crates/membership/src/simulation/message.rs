//! What simulated members say to each other.

use std::time::Instant;

use fonn_proto::grpc::v1::PingRequest;

use super::log::Entry;
use crate::member::MemberInfo;
use crate::state::Change;
use crate::types::LogId;

#[derive(Clone, Debug)]
pub(super) enum Message {
    PreVote {
        last: Option<LogId>,
    },
    PreVoted {
        granted: bool,
    },
    Vote {
        term: u64,
        last: Option<LogId>,
    },
    Voted {
        term: u64,
        granted: bool,
    },
    Append(Append),
    Appended {
        term: u64,
        matched: Option<usize>,
        sent: Instant,
    },
    Ping {
        sent: Instant,
        question: PingRequest,
    },
    Pong {
        sent: Instant,
        sequence: u64,
    },
    Join(MemberInfo),
    /// A member asks the leader for a change of its own status.
    Propose(Change),
}

/// What a leader adds to the logs of others, behind what they have.
#[derive(Clone, Debug)]
pub(super) struct Append {
    pub(super) term: u64,
    pub(super) previous: usize,
    pub(super) previous_term: u64,
    pub(super) entries: Vec<Entry>,
    pub(super) commit: usize,
}
