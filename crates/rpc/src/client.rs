//! The handle that callers have.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use fonn_base::breaker::{Breaker, Position};
use fonn_base::random::SplitMix64;
use fonn_proto::peer::{Envelope, HEAD_LEN, OVERHEAD_LEN_MAX, Refusal, Reply, Request};
use fonn_proto::{BatchStep, Command, ServerCommand};
use parking_lot::Mutex;

use super::answer::Answer;
use super::lane::{Lane, drive};
use super::stats::Stats;
use super::waiters::Ticket;
use super::{CallError, Options};

/// A client of one member, for the callers of one reactor; cheap to clone. The connections end with
/// the last clone.
#[derive(Clone, Debug)]
pub struct Client(Arc<Handle>);

#[derive(Debug)]
struct Handle {
    member: Arc<Member>,
    small: Arc<Lane>,
    large: Arc<Lane>,
    is_closed: AtomicBool,
}

/// What the connections to a member have in common.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) options: Options,
    pub(super) stats: Arc<Stats>,
    breaker: Mutex<(Breaker, SplitMix64)>,
    /// Whether the breaker has something to tell or to forget: spares its lock where all is well.
    is_troubled: AtomicBool,
}

/// When a request is made, and how long its caller waits.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Now. One look at the clock does for all requests of a batch.
    pub now: Instant,
    /// How long from now.
    pub timeout: Duration,
}

/// How a member does.
#[cfg(any(test, feature = "test-util"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Health {
    /// Whether it may be asked.
    pub breaker: Position,
    /// Replies it owes.
    pub in_flight: usize,
}

impl Member {
    /// Some replies came.
    #[inline]
    pub(super) fn succeed(&self) {
        if self.is_troubled.load(Ordering::Relaxed) {
            self.breaker.lock().0.succeed();
            self.is_troubled.store(false, Ordering::Relaxed);
        }
    }

    /// A connection failed, or replies did not come in time. True if the member is not asked from
    /// now on, and was before.
    pub(super) fn fail(&self, now: Instant) -> bool {
        let (breaker, random) = &mut *self.breaker.lock();
        let before = breaker.position();
        breaker.fail(now, random);
        self.is_troubled.store(true, Ordering::Relaxed);
        (before, breaker.position()) == (Position::Closed, Position::Open)
    }

    #[inline]
    fn admits(&self, now: Instant) -> bool {
        !self.is_troubled.load(Ordering::Relaxed) || self.breaker.lock().0.admit(now)
    }
}

impl Client {
    /// A client whose connections are driven by the calling thread's runtime, and made when they
    /// are needed.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn start(options: Options, stats: Arc<Stats>) -> Self {
        let small_len_max = options.small_len_max.min(options.body_len_max);
        let requests_max = options.requests_max;
        let lane = |gauge, len_max| Arc::new(Lane::new(gauge, requests_max, len_max));
        let handle = Handle {
            small: lane(0, small_len_max),
            large: lane(1, options.body_len_max),
            is_closed: AtomicBool::new(false),
            member: Arc::new(Member {
                breaker: Mutex::new((Breaker::new(options.breaker), SplitMix64::from_entropy())),
                is_troubled: AtomicBool::new(false),
                options,
                stats,
            }),
        };
        for lane in handle.lanes() {
            // Owned by the handle: it ends when the last clone of the client goes.
            tokio::spawn(drive(Arc::clone(&handle.member), Arc::clone(lane)));
        }
        Self(Arc::new(handle))
    }

    /// Writes a request down; it is sent when the calling task next waits. `envelope.id` and
    /// `envelope.budget_ms` are filled in. Large values that lie in `source` are not copied.
    ///
    /// On the connection for small requests a reply that is too long for it comes back as
    /// [`Refusal::TooLong`], with nothing done: [`Client::begin_large`] then gets it. Requests that
    /// must not be repeated never go there.
    ///
    /// # Errors
    /// If the request cannot be made now, or never. Nothing was sent then.
    #[inline]
    pub fn begin(
        &self,
        request: &Request<'_>,
        envelope: Envelope,
        source: Option<&Bytes>,
        timing: Timing,
    ) -> Result<Pending, CallError> {
        let len = value_len(request);
        let handle = &*self.0;
        let is_small = !answers_once_only(request)
            && len.saturating_add(OVERHEAD_LEN_MAX) <= handle.member.options.small_len_max as usize;
        let lane = match is_small {
            true => &handle.small,
            false => &handle.large,
        };
        self.begin_on(lane, request, envelope, source, timing)
    }

    /// As [`Client::begin`], on the connection for large values.
    ///
    /// # Errors
    /// As [`Client::begin`].
    pub fn begin_large(
        &self,
        request: &Request<'_>,
        envelope: Envelope,
        source: Option<&Bytes>,
        timing: Timing,
    ) -> Result<Pending, CallError> {
        self.begin_on(&self.0.large, request, envelope, source, timing)
    }

    /// Makes a request and waits for its answer, wherever it fits.
    ///
    /// # Errors
    /// If there is none.
    ///
    /// # Cancel safety
    /// If the future is dropped the request may have been executed, or will be.
    pub async fn call(
        &self,
        request: &Request<'_>,
        envelope: Envelope,
        source: Option<&Bytes>,
        timeout: Duration,
    ) -> Result<Answer, CallError> {
        let now = Instant::now();
        let answer = self
            .begin(request, envelope, source, Timing { now, timeout })?
            .await?;
        if !matches!(answer.reply(), Ok(Reply::Refused(Refusal::TooLong))) {
            return Ok(answer);
        }
        let rest = Timing {
            now: Instant::now(),
            timeout: timeout.saturating_sub(now.elapsed()),
        };
        self.begin_large(request, envelope, source, rest)?.await
    }

    #[inline]
    fn begin_on(
        &self,
        lane: &Arc<Lane>,
        request: &Request<'_>,
        envelope: Envelope,
        source: Option<&Bytes>,
        timing: Timing,
    ) -> Result<Pending, CallError> {
        let member = &self.0.member;
        let refused = |error| {
            member.stats.refused(error);
            Err(error)
        };
        let mut state = lane.state.lock();
        if state.closed.is_some() {
            return refused(CallError::Unavailable);
        }
        let about = value_len(request).saturating_add(HEAD_LEN);
        let is_full =
            state.bytes > 0 && state.bytes.saturating_add(about) > member.options.bytes_max;
        if is_full {
            return refused(CallError::Busy);
        }
        // Asked last: an admitted request has to go.
        let bytes = about.saturating_add(key_len(request));
        let ticket = Ticket {
            started: timing.now,
            deadline: timing.now + timing.timeout,
            batch: state.batch,
            bytes,
        };
        let Some(id) = state.waiters.begin(ticket) else {
            return refused(CallError::Busy);
        };
        if !member.admits(timing.now) {
            state.waiters.cancel(id);
            return refused(CallError::Unavailable);
        }
        let envelope = Envelope {
            id,
            budget_ms: u32::try_from(timing.timeout.as_millis())
                .unwrap_or(u32::MAX)
                .max(1),
            ..envelope
        };
        let len_max = state.peer_len_max.min(member.options.body_len_max);
        if request
            .encode(envelope, len_max, source, &mut state.out)
            .is_err()
        {
            state.waiters.cancel(id);
            return Err(CallError::TooLong);
        }
        state.bytes += bytes;
        let task = state.task_to_wake();
        member.stats.requests.inc();
        member.stats.in_flight[lane.gauge].set(state.waiters.owed() as u64);
        drop(state);
        if let Some(task) = task {
            task.wake();
        }
        Ok(Pending {
            lane: Arc::clone(lane),
            id,
            is_over: false,
        })
    }

    /// How the member does, as seen from here.
    #[cfg(any(test, feature = "test-util"))]
    #[must_use]
    pub fn health(&self) -> Health {
        let handle = &*self.0;
        let owed = |lane: &Arc<Lane>| lane.state.lock().waiters.owed();
        Health {
            breaker: handle.member.breaker.lock().0.position(),
            in_flight: handle.lanes().map(owed).iter().sum(),
        }
    }

    /// What about 19 of 20 replies took less than lately; zero before the first one.
    #[inline]
    #[must_use]
    pub fn latency_high(&self) -> Duration {
        Duration::from_nanos(self.0.member.stats.latency_high_ns.get())
    }

    /// Slots of requests in use, and bytes held for them.
    #[cfg(test)]
    pub(super) fn usage(&self) -> (usize, usize) {
        self.0.lanes().iter().fold((0, 0), |(slots, bytes), lane| {
            let state = lane.state.lock();
            (slots + state.waiters.used(), bytes + state.bytes)
        })
    }

    #[cfg(test)]
    pub(super) fn stats(&self) -> &Stats {
        &self.0.member.stats
    }

    /// Ends the connections and resolves every request under way: callers whose requests were sent
    /// get `error`, the others [`CallError::Unavailable`]. Later requests are refused with the
    /// latter.
    pub fn close(&self, error: CallError) {
        self.0.close(error);
    }

    /// Whether it was closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.0.is_closed.load(Ordering::Acquire)
    }

    /// A handle by which another thread closes the client, and that does not keep its connections
    /// alive.
    #[must_use]
    pub fn downgrade(&self) -> WeakClient {
        WeakClient(Arc::downgrade(&self.0))
    }
}

/// A [`Client`] that may be gone.
#[derive(Clone, Debug)]
pub struct WeakClient(Weak<Handle>);

impl WeakClient {
    /// Closes the client as [`Client::close`] does, if it is still there.
    pub fn close(&self, error: CallError) {
        if let Some(handle) = self.0.upgrade() {
            handle.close(error);
        }
    }

    /// Whether the client is gone.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.0.strong_count() == 0
    }
}

impl Handle {
    fn close(&self, error: CallError) {
        self.is_closed.store(true, Ordering::Release);
        self.lanes().iter().for_each(|lane| lane.close(error));
    }

    fn lanes(&self) -> [&Arc<Lane>; 2] {
        [&self.small, &self.large]
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.close(CallError::Lost);
    }
}

/// A request under way. Dropping it gives the answer up; the request is executed all the same.
#[derive(Debug)]
#[must_use]
pub struct Pending {
    lane: Arc<Lane>,
    id: u32,
    is_over: bool,
}

impl Pending {
    /// Has the task that polls it woken once without an answer, soon after `at`: at the next tick.
    pub fn nudge(&self, at: Instant) {
        if !self.is_over {
            self.lane.state.lock().waiters.nudge(self.id, at);
        }
    }
}

impl Future for Pending {
    type Output = Result<Answer, CallError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.is_over {
            return Poll::Ready(Err(CallError::Lost));
        }
        let result = self.lane.state.lock().waiters.poll(self.id, cx.waker());
        self.is_over = result.is_ready();
        result
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if !self.is_over {
            self.lane.state.lock().waiters.abandon(self.id);
        }
    }
}

/// Bytes of the values in a request.
#[inline]
fn value_len(request: &Request<'_>) -> usize {
    match request {
        Request::Command(Command::Store(store)) => store.value.len(),
        Request::Command(Command::SetRange(range)) => range.value.len(),
        Request::Command(_)
        | Request::Fetch { .. }
        | Request::Copy { .. }
        | Request::Flushes
        | Request::Flush { .. }
        | Request::Ping => 0,
        Request::Put { entry, .. } => entry.content.len(),
        Request::Writers { names } => names.iter().map(|name| name.len()).sum(),
        Request::FetchSlots { cursor, .. } => {
            fonn_proto::peer::SlotSet::LEN.saturating_add(cursor.len())
        }
        Request::Server(ServerCommand::Atomic(batch)) => {
            let len = |step: &BatchStep<'_>| match step {
                BatchStep::Command(Command::Store(store)) => store.value.len(),
                BatchStep::Command(Command::SetRange(range)) => range.value.len(),
                BatchStep::Command(_) | BatchStep::Transfer(_) => 0,
            };
            let keys = batch.keys().map(<[u8]>::len);
            keys.sum::<usize>() + batch.steps.iter().map(len).sum::<usize>()
        }
        Request::Server(_) => 0,
    }
}

fn key_len(request: &Request<'_>) -> usize {
    match request {
        Request::Command(command) => command.key().len(),
        Request::Put { entry, .. } => entry.key.len(),
        Request::Fetch { key } => key.len(),
        Request::Copy { get, .. } => get.key.len(),
        Request::Server(_)
        | Request::FetchSlots { .. }
        | Request::Flushes
        | Request::Flush { .. }
        | Request::Writers { .. }
        | Request::Ping => 0,
    }
}

/// Whether a request changes something and answers with a value, or may answer with much: what
/// cannot be repeated because its reply was too long.
#[inline]
fn answers_once_only(request: &Request<'_>) -> bool {
    match request {
        Request::Command(command) => command.answers_once_only(),
        Request::Server(_) | Request::FetchSlots { .. } | Request::Flushes => true,
        Request::Put { .. }
        | Request::Fetch { .. }
        | Request::Copy { .. }
        | Request::Flush { .. }
        | Request::Writers { .. }
        | Request::Ping => false,
    }
}
