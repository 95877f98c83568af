//! What simulated members say to each other.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::data::Held;
use super::log::Entry;
use crate::cluster::lease::Question;
use crate::cluster::member::MemberInfo;
use crate::cluster::types::{LogId, RaftId};

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
        question: Question,
        version: u64,
    },
    Pong {
        sent: Instant,
        sequence: u64,
        version: u64,
    },
    Join(MemberInfo),
    /// The new owner of the slot asks what others have of it.
    Fetch {
        epoch: u64,
    },
    Fetched {
        epoch: u64,
        held: Option<Held>,
        cutoff: u64,
        missing: BTreeSet<RaftId>,
    },
    /// What there is is flushed, or what is below a cutoff.
    Flush {
        number: u64,
        epoch: u64,
        cutoff: Option<u64>,
    },
    Flushed {
        number: u64,
        cutoff: u64,
    },
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

impl Message {
    /// How late it may come, where others may come so late. Every other flush is quick: clocks have
    /// not been told again by then.
    pub(super) fn late_max(&self, late_max: Duration) -> Duration {
        match self {
            Self::Flush { number, .. } | Self::Flushed { number, .. } if number % 2 == 0 => {
                late_max / 40
            }
            _ => late_max,
        }
    }
}
