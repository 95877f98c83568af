//! Hedged reads: a read that an owner is slow to answer is asked of the next owner too.
//!
//! A read is late when it takes longer than nearly all reads of its member. The extra request is
//! paid for by a [`Budget`](crate::budget::Budget), and the first hit wins. The second owner
//! looks into memory and disk alone, so a read that is slow because of the bucket does not become
//! two of them. A miss of the second owner says nothing.

use std::pin::pin;
use std::time::{Duration, Instant};

use fonn_proto::peer::{Refusal, Reply, Request};
use fonn_proto::{Command, Get, Outcome, placement};
use fonn_rpc::{Answer, CallError, Pending, Timing};
use fonn_server::Job;
use futures_util::future::{Either, select};

use super::{Again, Attempt, Forwarder, Lane, Obstacle, envelope};
use crate::stats::Event;
use crate::upstream::Target;

/// No read is late before this, however fast its owner is: what is shorter, a busy reactor does
/// too.
const LATE_MIN: Duration = Duration::from_millis(10);

/// Every read is late after this, however slow its owner is.
const LATE_MAX: Duration = Duration::from_millis(250);

/// Reads that another owner might help, for which one is hedged, and how many are from the start: a
/// process that has just started is not slower to help.
pub(super) const PRICE: u64 = 20;
pub(super) const BURST: u64 = 32;

/// The answer of an owner that executed the command, if it is one.
pub(super) fn executed(
    result: Result<Answer, CallError>,
    has_base: bool,
) -> Result<Answer, Obstacle> {
    let answer = result.map_err(Obstacle::Call)?;
    match answer.reply() {
        Ok(Reply::Outcome(Outcome::Miss)) if has_base => Err(Obstacle::Below),
        Ok(Reply::Outcome(_)) => Ok(answer),
        Ok(Reply::WrongOwner) => Err(Obstacle::WrongOwner(answer.head().envelope.epoch)),
        Ok(Reply::Refused(Refusal::TooLong)) => Err(Obstacle::TooLong),
        _ => Err(Obstacle::Senseless),
    }
}

impl Forwarder {
    /// When a command is late at an owner, if another owner could help.
    #[inline]
    pub(super) fn late_at(
        &self,
        command: &Command<'_>,
        target: &Target,
        now: Instant,
    ) -> Option<Instant> {
        if !self.is_hedging || target.owners < 2 || hedged(command).is_none() {
            return None;
        }
        self.helpable.add(0, 1);
        let high = target.client.latency_high();
        Some(now + high.clamp(LATE_MIN, LATE_MAX))
    }

    /// Waits for the answer to a request that is late, and asks the next owner meanwhile.
    pub(super) async fn hedge(&self, job: &Job<'_>, again: &mut Again) -> Result<Answer, Obstacle> {
        let Some(first) = again.pending.take() else {
            return Err(Obstacle::Senseless);
        };
        let Attempt {
            since, has_base, ..
        } = again.attempt;
        let Some(second) = self.ask_next(job, since, Lane::Any) else {
            return executed(first.await, has_base);
        };
        let second = pin!(self.shown(job, since, second));
        match select(first, second).await {
            Either::Left((result, second)) => match executed(result, has_base) {
                // The first owner is lost; the second one may have a copy.
                Err(Obstacle::Call(error)) => match second.await {
                    Some(answer) => Ok(self.won(answer)),
                    None => Err(Obstacle::Call(error)),
                },
                result => result,
            },
            Either::Right((shown, first)) => match shown {
                Some(answer) => Ok(self.won(answer)),
                None => executed(first.await, has_base),
            },
        }
    }

    fn won(&self, answer: Answer) -> Answer {
        self.events.count(Event::HedgeWon);
        answer
    }

    /// The copy that the next owner shows, if it has one. A copy that is too long for the
    /// connection of small requests is asked for once more.
    async fn shown(&self, job: &Job<'_>, since: Instant, pending: Pending) -> Option<Answer> {
        let mut answer = pending.await.ok()?;
        if matches!(answer.reply(), Ok(Reply::Refused(Refusal::TooLong))) {
            answer = self.ask_next(job, since, Lane::Large)?.await.ok()?;
        }
        let is_hit = matches!(answer.reply(), Ok(Reply::Outcome(Outcome::Hit(_))));
        is_hit.then_some(answer)
    }

    /// Asks the next owner for its copy. The budget pays once, for the connection that is tried
    /// first.
    fn ask_next(&self, job: &Job<'_>, since: Instant, lane: Lane) -> Option<Pending> {
        let get = hedged(job.command)?;
        let slot = placement::slot(get.key);
        let target = self.upstreams.owner(slot, 1)?;
        if lane == Lane::Any && !self.hedges.spend(self.helpable.total(0)) {
            self.events.count(Event::HedgeDenied);
            return None;
        }
        let now = Instant::now();
        let timing = Timing {
            now,
            timeout: self.timeout.saturating_sub(now - since),
        };
        let envelope = envelope(slot, job.space, target.epoch).of(job.writer);
        let request = Request::Copy { get };
        let client = &target.client;
        match lane {
            Lane::Any => {
                let pending = client.begin(&request, envelope, None, timing).ok()?;
                self.events.count(Event::Hedged);
                Some(pending)
            }
            Lane::Large => client.begin_large(&request, envelope, None, timing).ok(),
        }
    }
}

/// The read that any owner may answer: it changes nothing, and no owner but the first has to know
/// of it.
#[inline]
fn hedged<'a>(command: &Command<'a>) -> Option<Get<'a>> {
    match command {
        Command::Get(get) if !get.changes_entry() => Some(Get {
            // The first owner says which client recaches a stale entry; the others do not show
            // stale entries.
            claim: false,
            new_version: None,
            ..get.clone()
        }),
        _ => None,
    }
}
