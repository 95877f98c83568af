//! What is counted of each command.

use fonn_base::entry::Space;
use fonn_proto::{Command, Failure, Get, Outcome};

use super::fetch::From;
use super::{Absence, Engine, There};
use crate::namespaces::Asked;
use crate::stats::Counter;

impl Engine {
    /// Counts reads that [`Engine::answer_hit`] answered.
    pub fn count_hits(&self, hits: u64) {
        self.hot.stats.add(Counter::HitsRam, hits);
        self.hot.stats.add(Counter::CmdGet, hits);
    }

    pub(super) fn count_get(&self, get: &Get<'_>, space: Space, there: &There<'_>) {
        let stats = &self.hot.stats;
        stats.count(match there {
            There::Slot(_) => Counter::HitsRam,
            There::Fetched(_, From::Disk) | There::Facts(_) => Counter::HitsDisk,
            There::Fetched(_, From::Cold) => Counter::HitsCold,
            There::Nothing(Absence::Absent) => Counter::MissesAbsent,
            There::Nothing(Absence::Expired) => Counter::MissesExpired,
            There::Nothing(Absence::Flushed) => Counter::MissesFlushed,
        });
        stats.count(Counter::CmdGet);
        let asked = match there {
            There::Nothing(_) => Asked::Miss,
            There::Slot(_) | There::Fetched(..) | There::Facts(_) => Asked::Hit,
        };
        self.hot.namespaces.count(space, asked);
        if get.touch.is_some() {
            stats.count(Counter::CmdTouch);
        }
    }

    /// Counts what came of everything but gets.
    pub(super) fn count(&self, space: Space, command: &Command<'_>, outcome: &Outcome<'_>) {
        let stats = &self.hot.stats;
        if let Outcome::Failed(failure) = outcome {
            match failure {
                Failure::Busy => stats.count(Counter::Busy),
                Failure::OutOfSpace => stats.count(Counter::StoreNoSpace),
                Failure::TooLarge => stats.count(Counter::StoreTooLarge),
                Failure::Unavailable => stats.count(Counter::Unavailable),
                Failure::ReadOnly | Failure::AuthRequired => {}
            }
        }
        let missed = matches!(outcome, Outcome::NotFound);
        match command {
            Command::Get(_) => {}
            Command::Store(store) => {
                stats.count(Counter::CmdSet);
                self.hot.namespaces.count(space, Asked::Store);
                match outcome {
                    _ if store.compare.is_none() => {}
                    Outcome::Stored(_) => stats.count(Counter::CasHits),
                    Outcome::NotFound => stats.count(Counter::CasMisses),
                    Outcome::Exists => stats.count(Counter::CasBadval),
                    _ => {}
                }
            }
            Command::SetRange(_) | Command::SetBit(_) => {
                stats.count(Counter::CmdSet);
                self.hot.namespaces.count(space, Asked::Store);
            }
            Command::Delete(_) if missed => stats.count(Counter::DeleteMisses),
            Command::Delete(_) => stats.count(Counter::DeleteHits),
            Command::Arith(arith) => {
                let down = matches!(arith.op, fonn_proto::ArithOp::Decrement(_));
                stats.count(match (down, missed) {
                    (false, false) => Counter::IncrHits,
                    (false, true) => Counter::IncrMisses,
                    (true, false) => Counter::DecrHits,
                    (true, true) => Counter::DecrMisses,
                });
            }
            Command::Touch(_) => {
                stats.count(Counter::CmdTouch);
                stats.count(if missed {
                    Counter::TouchMisses
                } else {
                    Counter::TouchHits
                });
            }
        }
    }
}
