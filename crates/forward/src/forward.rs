//! One command, sent to the owner of its key: the answer, and what to do when there is none.

mod hedge;

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use fonn_base::metrics::striped::Counters;
use fonn_proto::peer::{Envelope, Reply, Request};
use fonn_proto::{Command, Failure, Get, Outcome, Space, StoreMode, placement};
use fonn_rpc::{Answer, CallError, Pending, Timing};
use fonn_server::{Answered, Job, Later};

use super::budget::Budget;
use super::stats::{Event, Events};
use super::upstream::Upstreams;

/// How long a write waits for a map by which a member owns its key, after its owner was gone.
const MAP_WAIT: Duration = Duration::from_secs(3);

/// Between tries while a member has an older map than we have: at first, and after some.
const OLDER_MAP_WAIT: Duration = Duration::from_millis(20);
const OLDER_MAP_WAIT_MAX: Duration = Duration::from_millis(200);

/// Requests for which one is sent once more that was sent already, and how many are from the start:
/// as many as are under way on one connection at most. So what is under way at a member when it
/// ends is tried elsewhere, but where all are slow, or end their connections, again and again, load
/// grows by a tenth and not twofold.
const RETRY_PRICE: u64 = 10;
const RETRY_BURST: u64 = 8192;

/// Tries of one command at most, whatever members answer; where one of them is only behind, the
/// time alone counts: on a machine under load it may be so for seconds.
const TRIES_MAX: u32 = 64;

/// What came of a command.
#[derive(Debug)]
pub enum Came {
    /// The owner's answer: an outcome.
    From(Answer),
    /// What there is to say without it.
    Known(Outcome<'static>),
    /// Nothing: the member that asks has become the owner itself.
    Here,
}

impl Answered for Came {
    fn outcome(&self) -> Outcome<'_> {
        match self {
            Self::From(answer) => match answer.reply() {
                Ok(Reply::Outcome(outcome)) => outcome,
                // It was one when it came.
                _ => Outcome::Failed(Failure::Unavailable),
            },
            // Only members see it.
            Self::Here => Outcome::Failed(Failure::Unavailable),
            Self::Known(Outcome::Miss) => Outcome::Miss,
            Self::Known(Outcome::Failed(failure)) => Outcome::Failed(*failure),
            Self::Known(outcome) => outcome.clone(),
        }
    }
}

/// Why a command was not carried out, or may not have been.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Obstacle {
    /// There is no map, or no member serves the slot by it.
    NoOwner,
    /// The caller is the owner.
    Here,
    /// The asked member has applied another map, of this epoch.
    WrongOwner(u64),
    /// There is nothing in the space; the one below it is looked into next.
    Below,
    /// The answer is too long for the connection of small requests.
    TooLong,
    /// Not sent, or no answer.
    Call(CallError),
    /// Refused as not understood, or a malformed answer.
    Senseless,
    /// The answer is still awaited, for longer than nearly all answers take.
    Late,
}

/// One try of a command.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    /// When the command was begun.
    since: Instant,
    /// The epoch by which it was sent.
    epoch: u64,
    /// A miss is not all that there is to say.
    has_base: bool,
}

/// A command that has to be tried again, or answered without its owner.
#[derive(Debug)]
pub struct Again {
    attempt: Attempt,
    obstacle: Obstacle,
    /// The request, if it is still under way.
    pending: Option<Pending>,
}

impl Again {
    /// A write that its own member executed at `since`, and that is not acknowledged: another
    /// member may have led the slot since that epoch. `now` is the epoch that is applied.
    #[must_use]
    pub fn interrupted(since: Instant, epoch: u64, now: u64) -> Self {
        Self {
            attempt: Attempt {
                since,
                epoch,
                has_base: false,
            },
            obstacle: Obstacle::WrongOwner(now),
            pending: None,
        }
    }
}

/// A command under way.
#[derive(Debug)]
pub struct Forwarded {
    attempt: Attempt,
    pending: Result<Pending, Obstacle>,
    /// From when on another owner may be asked too.
    late_at: Option<Instant>,
    is_awaited: bool,
}

impl Future for Forwarded {
    type Output = Result<Came, Again>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let it = &mut *self;
        let mut late = None;
        let result = match &mut it.pending {
            Err(obstacle) => Err(*obstacle),
            Ok(pending) => match Pin::new(&mut *pending).poll(cx) {
                Poll::Ready(result) => hedge::executed(result, it.attempt.has_base),
                Poll::Pending => {
                    let Some(late_at) = it.late_at else {
                        return Poll::Pending;
                    };
                    if Instant::now() < late_at {
                        if !std::mem::replace(&mut it.is_awaited, true) {
                            pending.nudge(late_at);
                        }
                        return Poll::Pending;
                    }
                    late = std::mem::replace(&mut it.pending, Err(Obstacle::Late)).ok();
                    Err(Obstacle::Late)
                }
            },
        };
        Poll::Ready(result.map(Came::From).map_err(|obstacle| Again {
            attempt: it.attempt,
            obstacle,
            pending: late,
        }))
    }
}

impl Later for Forwarded {
    /// Another owner is asked at its turn, if it is late then.
    fn poll_ahead(&mut self, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let late_at = self.late_at.take();
        let polled = Pin::new(&mut *self).poll(cx);
        self.late_at = late_at;
        polled
    }
}

/// Sends commands to the owners of their keys.
#[derive(Debug)]
pub struct Forwarder {
    upstreams: Upstreams,
    events: Events,
    retries: Budget,
    /// For hedged reads, and the reads that another owner might help.
    hedges: Budget,
    helpable: Counters<1>,
    /// From the arrival of a command to its answer at most.
    timeout: Duration,
    /// Whether a read that is late is asked of the next owner too.
    is_hedging: bool,
}

impl Forwarder {
    /// Sends to the members that `upstreams` knows; a command is answered after `timeout` at the
    /// latest.
    #[must_use]
    pub fn new(upstreams: Upstreams, timeout: Duration) -> Self {
        Self {
            upstreams,
            events: Events::default(),
            retries: Budget::new(RETRY_PRICE, RETRY_BURST),
            hedges: Budget::new(hedge::PRICE, hedge::BURST),
            helpable: Counters::default(),
            timeout,
            is_hedging: false,
        }
    }

    /// Asks the next owner too for reads that an owner is slow to answer.
    #[must_use]
    pub fn with_hedges(self) -> Self {
        Self {
            is_hedging: true,
            ..self
        }
    }

    /// The members.
    #[must_use]
    pub fn upstreams(&self) -> &Upstreams {
        &self.upstreams
    }

    /// What happened to commands.
    #[must_use]
    pub fn events(&self) -> &Events {
        &self.events
    }

    /// From the arrival of a command to its answer at most.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Sends a command to the owner of its key.
    pub fn begin(&self, job: &Job<'_>) -> Forwarded {
        let now = Instant::now();
        self.events.count(Event::Forwarded);
        self.try_begin(job, now, now, (0, Lane::Any))
    }

    /// A command that was not sent.
    fn stopped(&self, since: Instant, obstacle: Obstacle) -> Forwarded {
        Forwarded {
            attempt: Attempt {
                since,
                epoch: self.upstreams.map().epoch(),
                has_base: false,
            },
            pending: Err(obstacle),
            late_at: None,
            is_awaited: false,
        }
    }

    /// Whether another owner comes behind the one of that rank.
    fn has_next(&self, job: &Job<'_>, rank: usize) -> bool {
        let slot = placement::slot(job.command.key());
        self.upstreams.owner(slot, rank + 1).is_some()
    }

    /// Whether a command may be sent once more after `error`. A request that a live member received
    /// is repeated within a budget. A request that was not sent, or whose member is down, is
    /// repeated once for each topology at most, so it needs none.
    fn may_retry(&self, error: CallError) -> bool {
        let needs_budget = match error {
            CallError::Busy | CallError::Down | CallError::Unavailable | CallError::TooLong => {
                false
            }
            CallError::Closed | CallError::Lost | CallError::TimedOut => true,
        };
        let may = !needs_budget || self.retries.spend(self.events.total(Event::Forwarded));
        if !may {
            self.events.count(Event::RetryDenied);
        }
        may
    }

    /// Sends a command to the owner of its key of that rank among those that serve.
    fn try_begin(
        &self,
        job: &Job<'_>,
        since: Instant,
        now: Instant,
        (rank, lane): (usize, Lane),
    ) -> Forwarded {
        let slot = placement::slot(job.command.key());
        let Some(target) = self.upstreams.owner(slot, rank) else {
            return self.stopped(
                since,
                match self.upstreams.is_own(slot) {
                    true => Obstacle::Here,
                    false => Obstacle::NoOwner,
                },
            );
        };
        let timing = Timing {
            now,
            timeout: self.timeout.saturating_sub(now - since),
        };
        let envelope = envelope(slot, job.space, target.epoch).of(job.writer);
        // The commands of clients borrow; a clone copies no value.
        let (command, has_base) = match (job.command, job.base) {
            // What is missing is made in the upper space alone, and only if the lower has nothing
            // either.
            (Command::Get(get), Some(_)) => {
                let own = Get {
                    vivify: None,
                    ..get.clone()
                };
                (Command::Get(own), true)
            }
            (command, _) => (command.clone(), false),
        };
        let request = Request::Command(command);
        let client = &target.client;
        let pending = match lane {
            Lane::Any => client.begin(&request, envelope, job.source, timing),
            Lane::Large => client.begin_large(&request, envelope, job.source, timing),
        };
        let late_at = match (rank, lane) {
            (0, Lane::Any) => self.late_at(job.command, &target, now),
            _ => None,
        };
        Forwarded {
            attempt: Attempt {
                since,
                epoch: target.epoch,
                has_base,
            },
            pending: pending.map_err(Obstacle::Call),
            late_at,
            is_awaited: false,
        }
    }

    /// Finds an answer for a command that came to nothing.
    pub async fn again(&self, job: &Job<'_>, mut again: Again) -> Came {
        let mut rank = 0;
        let mut lane = Lane::Any;
        let is_read = !job.command.is_write();
        let mut map_deadline = None;
        let (mut tries, mut older_wait) = (0, OLDER_MAP_WAIT);
        while tries < TRIES_MAX {
            tries += 1;
            let Attempt { since, epoch, .. } = again.attempt;
            let left = self.timeout.saturating_sub(since.elapsed());
            match again.obstacle {
                Obstacle::Here => return Came::Here,
                Obstacle::Below => return self.read_below(job, since).await,
                Obstacle::Late => match self.hedge(job, &mut again).await {
                    Ok(answer) => return Came::From(answer),
                    Err(obstacle) => {
                        again.obstacle = obstacle;
                        continue;
                    }
                },
                _ if left.is_zero() => break,
                Obstacle::TooLong if lane == Lane::Any => lane = Lane::Large,
                Obstacle::TooLong => return self.refuse(job, Failure::TooLarge),
                Obstacle::Senseless => break,
                Obstacle::WrongOwner(applied) => {
                    self.events.count(Event::WrongOwner);
                    rank = 0;
                    if applied > epoch {
                        let map = self.upstreams.map();
                        map.want(applied);
                        map.wait_for(applied, left.min(MAP_WAIT)).await;
                    } else {
                        // The member will have heard of the newer map in a moment.
                        tokio::time::sleep(older_wait.min(left)).await;
                        older_wait = (2 * older_wait).min(OLDER_MAP_WAIT_MAX);
                        tries -= 1;
                    }
                }
                Obstacle::Call(CallError::Busy) => {
                    self.events.count(Event::Busy);
                    return Came::Known(Outcome::Failed(Failure::Busy));
                }
                Obstacle::Call(CallError::TooLong) => return self.refuse(job, Failure::TooLarge),
                // The next in rank, as far as there are any; else it is a miss, at once.
                Obstacle::NoOwner if is_read => break,
                Obstacle::Call(error) if is_read => {
                    if self.has_next(job, rank) && !self.may_retry(error) {
                        break;
                    }
                    self.events.count(Event::ReplicaRead);
                    // By a newer map another one is the first.
                    let map = self.upstreams.map().topology();
                    rank = match map.is_some_and(|map| map.epoch() > epoch) {
                        true => 0,
                        false => rank + 1,
                    };
                }
                // It may still be carried out, behind what others write after a second try was
                // answered.
                Obstacle::Call(CallError::Lost | CallError::TimedOut) => break,
                Obstacle::Call(CallError::Closed | CallError::Down)
                    if !is_repeatable(job.command) =>
                {
                    break;
                }
                Obstacle::Call(error) if !self.may_retry(error) => break,
                Obstacle::NoOwner | Obstacle::Call(_) => {
                    let now = Instant::now();
                    let deadline = *map_deadline.get_or_insert(now + MAP_WAIT);
                    let wait = left.min(deadline.saturating_duration_since(now));
                    if wait.is_zero() {
                        break;
                    }
                    self.events.count(Event::MapWait);
                    // The next map names the new owner; the same member may come back as well.
                    let next = epoch.saturating_add(1);
                    let pause = wait.min(Duration::from_millis(200));
                    self.upstreams.map().wait_for(next, pause).await;
                }
            }
            let begun = self.try_begin(job, since, Instant::now(), (rank, lane));
            match begun.await {
                Ok(came) => return came,
                Err(next) => again = next,
            }
        }
        self.events.count(Event::Unanswered);
        match is_read {
            true => Came::Known(Outcome::Miss),
            false => self.refuse(job, Failure::Busy),
        }
    }

    /// Reads an entry that its space does not have in the one below it, where nothing is changed.
    async fn read_below(&self, job: &Job<'_>, since: Instant) -> Came {
        let (Some(base), Command::Get(get)) = (job.base, job.command) else {
            return Came::Known(Outcome::Miss);
        };
        let plain = Command::Get(Get {
            want_value: get.want_value,
            bump: get.bump,
            ..Get::new(base.key(get.key))
        });
        let below = Job {
            space: base.space,
            command: &plain,
            source: None,
            base: None,
            ..*job
        };
        let came = self.carry_out(&below, since).await;
        if get.vivify.is_none() || !matches!(came.outcome(), Outcome::Miss) {
            return came;
        }
        self.carry_out(&Job { base: None, ..*job }, since).await
    }

    /// Sends a command that was begun at `since`, and finds an answer.
    async fn carry_out(&self, job: &Job<'_>, since: Instant) -> Came {
        let begun = self.try_begin(job, since, Instant::now(), (0, Lane::Any));
        match begun.await {
            Ok(came) => came,
            Err(again) => Box::pin(self.again(job, again)).await,
        }
    }

    fn refuse(&self, job: &Job<'_>, failure: Failure) -> Came {
        match (job.command, failure) {
            // A value that does not fit is one that is not there.
            (Command::Get(get), Failure::TooLarge) if !get.changes_entry() => {
                Came::Known(Outcome::Miss)
            }
            _ => Came::Known(Outcome::Failed(failure)),
        }
    }
}

/// The connections on which a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    Any,
    Large,
}

/// The envelope of a request about a slot.
#[must_use]
pub fn envelope(slot: u16, space: Space, epoch: u64) -> Envelope {
    Envelope {
        slot,
        space: space.0,
        epoch,
        ..Envelope::default()
    }
}

/// Whether carrying the command out twice is the same as once: it may have been, unseen, by a
/// member that is gone.
#[must_use]
pub fn is_repeatable(command: &Command<'_>) -> bool {
    match command {
        Command::Get(get) => !get.changes_entry(),
        Command::Store(store) => {
            store.mode == StoreMode::Set && store.compare.is_none() && !store.want_previous
        }
        Command::Delete(delete) => delete.compare.is_none(),
        Command::Touch(_) | Command::SetRange(_) => true,
        // Twice, it would tell the bit that the first time set.
        Command::SetBit(_) => false,
        Command::Arith(_) => false,
    }
}

#[cfg(test)]
mod tests;
