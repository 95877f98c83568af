//! Reads of copies: those of hot keys, and those that an owner is slow to answer.
//!
//! A read of a hot key is sent to all owners in turn. Others than the first answer it once the first has confirmed that
//! their copy is the newest ([`Request::Copy`]), so it sees what it would have seen there. What comes to nothing is asked
//! of the first owner, and the key is left alone for a while.
//!
//! A read that is not answered for longer than nearly all are is asked of the next owner too (a *hedge*), within a
//! [`Budget`](super::super::budget::Budget); the first hit wins. The other owner looks into memory and disk alone: a read that is slow because
//! of the bucket does not become two of them, and that it finds nothing says nothing.

use std::hash::BuildHasher as _;
use std::time::{Duration, Instant};

use fonn_proto::peer::{Refusal, Reply, Request};
use fonn_proto::{Command, Get, Outcome, placement};
use futures_util::future::{Either, select};

use super::{Again, Forwarded, Forwarder, Obstacle, envelope};
use crate::peer::{Answer, CallError, Pending, Timing};
use crate::route::hot::HotOptions;
use crate::route::stats::Event;
use crate::route::upstream::Target;
use crate::serve::Job;

/// No read is late before this, however fast its owner is: what is shorter, a busy reactor does too.
const LATE_MIN: Duration = Duration::from_millis(10);

/// Every read is late after this, however slow its owner is.
const LATE_MAX: Duration = Duration::from_millis(250);

/// How long an owner that is not the first may take: enough of a read's time is left for the first one.
const COPY_TIMEOUT: Duration = Duration::from_millis(500);

/// Who was asked, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// An owner, which executes the command.
    Owner,
    /// An owner, for its copy.
    Copy,
}

impl Asked {
    /// An answer, if it is one to the command.
    pub(super) fn check(
        self,
        result: Result<Answer, CallError>,
        has_base: bool,
    ) -> Result<Answer, Obstacle> {
        let answer = result.map_err(Obstacle::Call)?;
        match (self, answer.reply()) {
            (Self::Copy, Ok(Reply::Outcome(Outcome::Hit(_)))) => Ok(answer),
            (Self::Copy, Ok(Reply::Outcome(_) | Reply::Unknown)) => Err(Obstacle::NoCopy),
            (_, Ok(Reply::Outcome(Outcome::Miss))) if has_base => Err(Obstacle::Below),
            (_, Ok(Reply::Outcome(_))) => Ok(answer),
            (_, Ok(Reply::WrongOwner)) => Err(Obstacle::WrongOwner(answer.head().envelope.epoch)),
            (_, Ok(Reply::Refused(Refusal::TooLong))) => Err(Obstacle::TooLong),
            _ => Err(Obstacle::Senseless),
        }
    }
}

impl Forwarder {
    /// Sends a read of a hot key to an owner that is not the first, if it is its turn. The slot has several; the
    /// times are when the command came and now.
    #[inline]
    pub(super) fn begin_copy(
        &self,
        job: &Job<'_>,
        hot: HotOptions,
        slot: u16,
        first: &Target,
        [since, now]: [Instant; 2],
    ) -> Option<Forwarded> {
        let get = copied(job.command)?;
        let hash = self.hash(job);
        let turn = self.upstreams.reads(hot, |reads| {
            reads.budget.earn();
            let window = reads.window(now, hot);
            reads.hot.read(hash, window)
        })?;
        let rank = turn % first.owners;
        if rank == 0 {
            return None;
        }
        let target = self.upstreams.owner(slot, rank)?;
        let request = Request::Copy {
            get,
            is_confirmed: true,
        };
        self.events.count(Event::SpreadRead);
        Some(Forwarded {
            pending: self.ask(&target, &request, job, now, COPY_TIMEOUT),
            asked: Asked::Copy,
            late_at: self.late_at(job.command, first, now),
            is_awaited: false,
            has_base: job.base.is_some(),
            since,
            epoch: target.epoch,
        })
    }

    /// When a command is late at an owner, if another one could help.
    #[inline]
    pub(super) fn late_at(
        &self,
        command: &Command<'_>,
        target: &Target,
        now: Instant,
    ) -> Option<Instant> {
        if self.hot.is_none() || target.owners < 2 || copied(command).is_none() {
            return None;
        }
        let high = target.client.latency_high();
        Some(now + high.clamp(LATE_MIN, LATE_MAX))
    }

    /// Until the next window a hot key is read from its first owner alone.
    pub(super) fn let_rest(&self, job: &Job<'_>) {
        if let Some(hot) = self.hot {
            let hash = self.hash(job);
            self.upstreams.reads(hot, |reads| reads.hot.rest(hash));
        }
    }

    /// Waits for the answer to a request that is late, and asks another owner meanwhile.
    pub(super) async fn hedge(&self, job: &Job<'_>, again: &mut Again) -> Result<Answer, Obstacle> {
        let Some(first) = again.pending.take() else {
            return Err(Obstacle::Senseless);
        };
        let has_base = again.has_base;
        let asked = again.asked;
        let (other, second) = match self.begin_hedge(job, again) {
            Some(begun) => begun,
            None => return asked.check(first.await, has_base),
        };
        let (obstacle, left) = match select(first, second).await {
            Either::Left((result, second)) => match asked.check(result, has_base) {
                // Whoever was asked first has no answer; the other one may.
                Err(obstacle @ (Obstacle::Call(_) | Obstacle::NoCopy)) => (obstacle, second),
                result => return result,
            },
            Either::Right((result, first)) => match other.check(result, has_base) {
                Ok(answer) => return Ok(self.won(answer)),
                Err(Obstacle::Below) => {
                    again.asked = other;
                    return Err(Obstacle::Below);
                }
                Err(_) => return asked.check(first.await, has_base),
            },
        };
        match other.check(left.await, has_base) {
            Ok(answer) => Ok(self.won(answer)),
            Err(Obstacle::Below) => {
                again.asked = other;
                Err(Obstacle::Below)
            }
            Err(_) => Err(obstacle),
        }
    }

    fn won(&self, answer: Answer) -> Answer {
        self.events.count(Event::HedgeWon);
        answer
    }

    fn begin_hedge(&self, job: &Job<'_>, again: &Again) -> Option<(Asked, Pending)> {
        let get = copied(job.command)?;
        let slot = placement::slot(get.key);
        let (other, rank) = match again.asked {
            Asked::Owner => (Asked::Copy, 1),
            Asked::Copy => (Asked::Owner, 0),
        };
        let target = self.upstreams.owner(slot, rank)?;
        if !self
            .upstreams
            .reads(self.hot?, |reads| reads.budget.spend())
        {
            self.events.count(Event::HedgeDenied);
            return None;
        }
        let request = match other {
            Asked::Copy => Request::Copy {
                get,
                is_confirmed: false,
            },
            Asked::Owner => Request::Command(Command::Get(get)),
        };
        let now = Instant::now();
        let left = self.timeout.saturating_sub(now - again.since);
        let pending = self.ask(&target, &request, job, now, left).ok()?;
        self.events.count(Event::Hedged);
        Some((other, pending))
    }

    fn ask(
        &self,
        target: &Target,
        request: &Request<'_>,
        job: &Job<'_>,
        now: Instant,
        timeout: Duration,
    ) -> Result<Pending, Obstacle> {
        let slot = placement::slot(job.command.key());
        let envelope = envelope(slot, job.space, target.epoch);
        let timeout = timeout.min(self.timeout);
        let timing = Timing { now, timeout };
        let begun = target.client.begin(request, envelope, None, timing);
        begun.map_err(Obstacle::Call)
    }

    fn hash(&self, job: &Job<'_>) -> u64 {
        self.hasher.hash_one((job.space.0, job.command.key()))
    }
}

/// The read that a copy may answer as well: it changes nothing, and no owner but the first has to know of it.
#[inline]
fn copied<'a>(command: &Command<'a>) -> Option<Get<'a>> {
    match command {
        Command::Get(get) if !get.changes_entry() => Some(Get {
            // Who is to recache a stale entry is for the first owner to say; others do not show such.
            claim: false,
            new_version: None,
            ..get.clone()
        }),
        _ => None,
    }
}
