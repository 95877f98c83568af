//! One connection to a member: the state that callers share with it, and the task that drives it.
//!
//! The task owns socket and receive buffer. Callers and task share a [`State`] under a lock that is
//! held for the time of a copy, never while waiting or in a system call. Where all are on one
//! reactor, no thread ever waits for it.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::BytesMut;
use fonn_proto::Out;
use fonn_proto::out::SHARE_LEN_MIN;
use fonn_proto::peer::hello::{self, Hello, HelloError, Rejection};
use fonn_proto::peer::{FrameError, HEAD_LEN, Kind, Step, next};
use parking_lot::Mutex;
use thiserror::Error;
use tokio::task::yield_now;
use tokio::time::{Sleep, sleep, timeout};

use super::CallError;
use super::answer::Answer;
use super::client::Member;
use super::link::Link;
use super::waiters::Waiters;

/// The receive buffer while no large reply comes in.
const INPUT_LEN: usize = 64 * 1024;

/// What is read of a reply first that is most likely a large one: its head, to know how much memory
/// it needs. What is read more than that is copied there. As much room is behind each large reply:
/// the head of the next one comes with its end, and a read that leaves room has emptied the socket,
/// so that it is not asked once more in vain.
const LARGE_HEAD_LEN: usize = 2 * 1024;

/// Behind a large reply so many are read head first: one that is read into the buffer for small
/// ones is copied, which costs more than a second read, and acknowledgements come between large
/// values.
const EXPECTED_LARGE: u8 = 16;

/// A buffer for requests that grew beyond this is given back when it is empty.
const OUTPUT_KEPT: usize = 256 * 1024;

/// Reads before requests are sent and the other tasks of the reactor have their turn. After a large
/// reply they have it at once: its caller passes it on while the processor's cache has it,
/// and gives back the memory that the next one comes into.
pub(super) const READS_MAX: usize = 16;

/// What callers and the task share.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) state: Mutex<State>,
    /// The place of its gauge in [`Stats::in_flight`](super::Stats).
    pub(super) gauge: usize,
    /// The longest reply on this connection, in bytes.
    pub(super) body_len_max: u32,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) waiters: Waiters<Answer>,
    /// Requests that are written down and not taken by the task.
    pub(super) out: Out,
    /// Counts the buffers that the task took.
    pub(super) batch: u64,
    /// Bytes of requests without an answer.
    pub(super) bytes: usize,
    /// What the member takes, once it said so.
    pub(super) peer_len_max: u32,
    /// The task, while it waits.
    task: Option<Waker>,
    /// Set once the lane takes no more requests: the error that callers get whose requests were
    /// sent.
    pub(super) closed: Option<CallError>,
}

impl Lane {
    pub(super) fn new(gauge: usize, requests_max: usize, body_len_max: u32) -> Self {
        Self {
            gauge,
            state: Mutex::new(State {
                waiters: Waiters::new(requests_max),
                out: Out::new(),
                batch: 1,
                bytes: 0,
                peer_len_max: u32::MAX,
                task: None,
                closed: None,
            }),
            body_len_max,
        }
    }

    /// Ends the connection and its task. Callers whose requests were sent get `error`, the others
    /// [`CallError::Unavailable`]. The error of the first call stays.
    pub(super) fn close(&self, error: CallError) {
        let mut state = self.state.lock();
        state.closed.get_or_insert(error);
        let task = state.task.take();
        drop(state);
        if let Some(task) = task {
            task.wake();
        }
    }
}

impl State {
    /// The task to wake so that what was written is sent: the task, once for all that gathers
    /// until it runs.
    #[inline]
    pub(super) fn task_to_wake(&mut self) -> Option<Waker> {
        self.task.take()
    }

    /// Lets the task be woken from now on.
    fn register(&mut self, cx: &Context<'_>) {
        match &self.task {
            Some(task) if task.will_wake(cx.waker()) => {}
            _ => self.task = Some(cx.waker().clone()),
        }
    }
}

/// Why no more is read for now.
enum Received {
    /// A large reply came; its caller comes first.
    Large,
    /// All that is there was read, or as much as may be at a time.
    All,
}

/// Why a connection ended.
#[derive(Debug, Error)]
enum Ended {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Frame(#[from] FrameError),
    #[error("{0}")]
    Hello(#[from] HelloError),
    #[error("{0}")]
    Rejected(#[from] Rejection),
    #[error("it was closed by the member")]
    Closed,
    #[error("it was not made in time")]
    Connecting,
    #[error("the member sent a reply of {0} bytes, more than was asked for")]
    TooLong(u64),
    #[error("the member answered request {0}, which is not under way")]
    UnknownId(u32),
    #[error("the member owes an answer for too long")]
    Owing,
}

impl Ended {
    /// What to tell those whose requests were sent. A peer that ends a connection executes nothing
    /// more that came on it; if we give it up, what was sent may still arrive.
    fn of_sent(&self) -> CallError {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
        match self {
            Self::Closed => CallError::Closed,
            Self::Io(error) => match error.kind() {
                BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof => {
                    CallError::Closed
                }
                _ => CallError::Lost,
            },
            _ => CallError::Lost,
        }
    }
}

/// The task of a lane: connects when there is something to send, and as often as it takes.
pub(super) async fn drive(member: Arc<Member>, lane: Arc<Lane>) {
    let mut driver = Driver {
        member,
        lane,
        sending: Out::new(),
        input: BytesMut::new(),
        spare: BytesMut::new(),
        is_gathering: false,
        expected_large: 0,
        reads: 0,
        tick: Box::pin(sleep(std::time::Duration::ZERO)),
        is_ticking: false,
        heard: Instant::now(),
        wakers: Vec::new(),
    };
    while driver.wait_for_work().await {
        let error = driver.serve().await;
        if driver.lane.state.lock().closed.is_some() {
            return;
        }
        let member = &driver.member;
        member.stats.failures.inc();
        if member.fail(Instant::now()) {
            tracing::warn!(member = %member.options.address, %error, "a member is not asked for a while");
        } else {
            tracing::debug!(member = %member.options.address, %error, "connection to a member ended");
        }
        driver.end(error.of_sent());
    }
}

struct Driver {
    member: Arc<Member>,
    lane: Arc<Lane>,
    /// Requests on their way into the socket.
    sending: Out,
    input: BytesMut,
    /// The buffer for small replies while a large one comes into the other; without capacity else.
    spare: BytesMut,
    /// Whether requests are written down that are sent when the task runs next.
    is_gathering: bool,
    /// How many more replies are read head first, since one before them got an allocation of its
    /// own.
    expected_large: u8,
    /// Reads since requests were sent, or nothing was left to read.
    reads: usize,
    tick: Pin<Box<Sleep>>,
    is_ticking: bool,
    /// When something came from the member, or nothing was owed.
    heard: Instant,
    wakers: Vec<Waker>,
}

impl Driver {
    /// Waits until there is something to send. False if the client was closed.
    async fn wait_for_work(&mut self) -> bool {
        poll_fn(|cx| {
            let mut state = self.lane.state.lock();
            if state.closed.is_some() {
                return Poll::Ready(false);
            }
            if !state.out.is_empty() {
                return Poll::Ready(true);
            }
            state.register(cx);
            Poll::Pending
        })
        .await
    }

    /// Makes a connection and serves it until it ends.
    async fn serve(&mut self) -> Ended {
        self.heard = Instant::now();
        let member = Arc::clone(&self.member);
        let connecting = connect(&member, self.lane.body_len_max);
        let mut connecting = Box::pin(timeout(member.options.connect_timeout, connecting));
        let connected = poll_fn(|cx| {
            if self.poll_closed(cx) {
                return Poll::Ready(Err(Ended::Closed));
            }
            // Callers do not wait longer than they said for a connection either.
            if let Poll::Ready(Err(error)) = self.poll_ticks(cx) {
                return Poll::Ready(Err(error));
            }
            match connecting.as_mut().poll(cx) {
                Poll::Ready(Ok(connected)) => Poll::Ready(connected),
                Poll::Ready(Err(_)) => Poll::Ready(Err(Ended::Connecting)),
                Poll::Pending => Poll::Pending,
            }
        })
        .await;
        drop(connecting);
        let (stream, peer_len_max, rest) = match connected {
            Ok(connected) => connected,
            Err(error) => return error,
        };
        self.member.stats.connections.inc();
        self.lane.state.lock().peer_len_max = peer_len_max;
        self.input = rest;
        self.heard = Instant::now();
        match poll_fn(|cx| self.poll_stream(&stream, cx)).await {
            Ok(never) => match never {},
            Err(error) => error,
        }
    }

    fn poll_closed(&self, cx: &Context<'_>) -> bool {
        let mut state = self.lane.state.lock();
        state.register(cx);
        state.closed.is_some()
    }

    /// Receives, sends and watches the time. Ends with the connection.
    fn poll_stream(
        &mut self,
        stream: &Link,
        cx: &mut Context<'_>,
    ) -> Poll<Result<std::convert::Infallible, Ended>> {
        match self.receive(stream, cx) {
            Err(error) => return Poll::Ready(Err(error)),
            Ok(Received::Large) => return Poll::Pending,
            Ok(Received::All) => self.reads = 0,
        }
        if self.gathers(cx) {
            return Poll::Pending;
        }
        if let Err(error) = self.send(stream, cx) {
            return Poll::Ready(Err(error));
        }
        match self.poll_ticks(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Pending,
        }
    }

    fn receive(&mut self, stream: &Link, cx: &mut Context<'_>) -> Result<Received, Ended> {
        while self.reads < READS_MAX {
            match stream.poll_read_ready(cx) {
                Poll::Ready(ready) => ready?,
                Poll::Pending => return Ok(Received::All),
            }
            self.reads += 1;
            let len_max = self.prepare_input();
            self.member.stats.reads.inc();
            match stream.try_read(&mut self.input, len_max) {
                Ok(0) => return Err(Ended::Closed),
                Ok(count) => {
                    self.heard = Instant::now();
                    self.member.stats.received_bytes.add(count as u64);
                    if self.deliver()? {
                        cx.waker().wake_by_ref();
                        return Ok(Received::Large);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
        cx.waker().wake_by_ref();
        Ok(Received::All)
    }

    /// Makes room for a read; returns how much of it is to be read.
    fn prepare_input(&mut self) -> usize {
        let is_inside_large = self.spare.capacity() > 0;
        if self.expected_large > 0 && !is_inside_large && self.input.len() < LARGE_HEAD_LEN {
            let more = LARGE_HEAD_LEN - self.input.len();
            if self.input.capacity() < LARGE_HEAD_LEN {
                self.input.reserve(INPUT_LEN);
            }
            return more;
        }
        if self.input.capacity() == self.input.len() {
            self.input.reserve(INPUT_LEN);
        }
        usize::MAX
    }

    /// Gives all whole replies in the receive buffer to their callers. Whether a large one was
    /// among them.
    fn deliver(&mut self) -> Result<bool, Ended> {
        let stats = &self.member.stats;
        let now = self.heard;
        let mut count = 0_u64;
        let mut is_large = false;
        let mut state = self.lane.state.lock();
        let result = loop {
            match next(Kind::Reply, &self.input, self.lane.body_len_max) {
                Err(error) => break Err(error.into()),
                Ok(Step::TooLong { len, .. }) => break Err(Ended::TooLong(len)),
                Ok(Step::Need { total }) => {
                    make_room(&mut self.input, &mut self.spare, total);
                    break Ok(is_large);
                }
                Ok(Step::Frame { head, body, len }) => {
                    let id = head.envelope.id;
                    self.expected_large = match len > INPUT_LEN {
                        true => EXPECTED_LARGE,
                        false => self.expected_large.saturating_sub(1),
                    };
                    is_large |= len > INPUT_LEN;
                    let answer =
                        if body.len() < SHARE_LEN_MIN || body.len() < self.input.capacity() / 2 {
                            let answer = Answer::copied(head, body);
                            bytes::Buf::advance(&mut self.input, len);
                            answer
                        } else {
                            let frame = self.input.split_to(len).freeze();
                            if len > INPUT_LEN {
                                // What came behind it does not keep its memory.
                                self.spare.extend_from_slice(&self.input);
                                self.input = std::mem::take(&mut self.spare);
                            }
                            Answer::shared(head, frame.slice(HEAD_LEN..))
                        };
                    let Ok(delivered) = state.waiters.reply(id, || answer) else {
                        break Err(Ended::UnknownId(id));
                    };
                    state.bytes = state.bytes.saturating_sub(delivered.bytes);
                    let ns = now.saturating_duration_since(delivered.started).as_nanos() as u64;
                    stats.replied(ns);
                    if delivered.is_wanted {
                        stats.latency.record_ns(ns);
                        count += 1;
                        self.wakers.extend(delivered.waker);
                    } else {
                        stats.late.inc();
                    }
                }
            }
        };
        stats.in_flight[self.lane.gauge].set(state.waiters.owed() as u64);
        drop(state);
        if count > 0 {
            stats.replies.add(count);
            self.member.succeed();
        }
        self.wakers.drain(..).for_each(Waker::wake);
        if self.input.is_empty()
            && self.input.capacity() < INPUT_LEN / 2
            && self.expected_large == 0
        {
            // Back to the start of the allocation, if no answer holds it.
            self.input.reserve(INPUT_LEN);
        }
        result
    }

    /// Whether what is written down is sent a little later: once all of the reactor that can run
    /// now has run, and all tasks with news of the kernel, since they may have more to say to the
    /// member. A request does not wait if no other one is under way.
    fn gathers(&mut self, cx: &mut Context<'_>) -> bool {
        let was_gathering = std::mem::take(&mut self.is_gathering);
        if was_gathering || !self.sending.is_empty() {
            return false;
        }
        let state = self.lane.state.lock();
        self.is_gathering = !state.out.is_empty() && state.waiters.owed() > 1;
        drop(state);
        // A task that yields is woken behind tasks that can run, and behind a look at the kernel's
        // events.
        self.is_gathering && pin!(yield_now()).poll(cx).is_pending()
    }

    fn send(&mut self, stream: &Link, cx: &mut Context<'_>) -> Result<(), Ended> {
        loop {
            if self.sending.is_empty() {
                if self.sending.capacity() > OUTPUT_KEPT {
                    drop(self.sending.take_back());
                }
                let mut state = self.lane.state.lock();
                if state.closed.is_some() {
                    return Err(Ended::Closed);
                }
                if state.out.is_empty() {
                    state.register(cx);
                    return Ok(());
                }
                std::mem::swap(&mut state.out, &mut self.sending);
                state.batch += 1;
            }
            match stream.poll_write_ready(cx) {
                Poll::Ready(ready) => ready?,
                Poll::Pending if self.poll_closed(cx) => return Err(Ended::Closed),
                Poll::Pending => return Ok(()),
            }
            match stream.try_write(&self.sending) {
                Ok(count) => {
                    self.sending.advance(count);
                    self.member.stats.writes.inc();
                    self.member.stats.sent_bytes.add(count as u64);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Looks at the deadlines, as long as something is owed.
    fn poll_ticks(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Ended>> {
        loop {
            if !self.is_ticking {
                if self.lane.state.lock().waiters.owed() == 0 {
                    return Poll::Pending;
                }
                self.is_ticking = true;
                let at = tokio::time::Instant::now() + self.member.options.tick;
                self.tick.as_mut().reset(at);
            }
            if self.tick.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            self.is_ticking = false;
            let now = Instant::now();
            let mut state = self.lane.state.lock();
            let expired = state.waiters.expire(now, &mut self.wakers);
            let is_owed = state.waiters.owed() > 0;
            drop(state);
            self.wakers.drain(..).for_each(Waker::wake);
            if expired.count > 0 {
                self.member.stats.timed_out.add(expired.count as u64);
                if self.member.fail(now) {
                    tracing::warn!(
                        member = %self.member.options.address,
                        "a member does not answer in time and is not asked for a while"
                    );
                }
            }
            let options = &self.member.options;
            if !is_owed {
                self.heard = now;
                if self.input.is_empty() {
                    // What is idle holds no memory.
                    (self.input, self.spare) = (BytesMut::new(), BytesMut::new());
                }
            } else if expired.owing_max > options.owing_max
                || expired.owing_max > options.silence_max
                    && now.saturating_duration_since(self.heard) > options.silence_max
            {
                return Poll::Ready(Err(Ended::Owing));
            }
        }
    }

    /// After the end of a connection: no caller waits for it, and nothing of it is left. `of_sent`
    /// is what those are told whose requests may have been sent.
    fn end(&mut self, of_sent: CallError) {
        self.sending = Out::new();
        (self.input, self.spare) = (BytesMut::new(), BytesMut::new());
        let mut state = self.lane.state.lock();
        // What was taken may have been sent; what is still in the callers' buffer was not.
        let taken = state.batch - 1;
        state.waiters.fail_all(taken, of_sent, &mut self.wakers);
        state.out = Out::new();
        state.batch += 1;
        state.bytes = 0;
        drop(state);
        self.member.stats.in_flight[self.lane.gauge].set(0);
        self.wakers.drain(..).for_each(Waker::wake);
    }
}

impl Drop for Driver {
    /// Resolves all requests under way; later ones are refused.
    fn drop(&mut self) {
        let mut state = self.lane.state.lock();
        let error = *state.closed.get_or_insert(CallError::Lost);
        drop(state);
        self.end(error);
    }
}

/// Connects and exchanges hellos. Returns how long a request may be, and what came behind the
/// hello.
async fn connect(member: &Member, body_len_max: u32) -> Result<(Link, u32, BytesMut), Ended> {
    let options = &member.options;
    let stream = Link::connect(options).await?;
    let ours = Hello {
        version: options.version,
        ..Hello::new(&options.name, &options.cluster, body_len_max)
    };
    let mut out = Out::new();
    ours.encode(Ok(()), &mut out);
    while !out.is_empty() {
        stream.writable().await?;
        match stream.try_write(&out) {
            Ok(count) => out.advance(count),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
    let mut input = BytesMut::with_capacity(INPUT_LEN);
    loop {
        if let hello::Step::Hello {
            hello,
            verdict,
            len,
        } = Hello::decode(&input)?
        {
            verdict?;
            ours.agree(&hello)?;
            bytes::Buf::advance(&mut input, len);
            return Ok((stream, hello.body_len_max, input));
        }
        stream.readable().await?;
        match stream.try_read(&mut input, usize::MAX) {
            Ok(0) => return Err(Ended::Closed),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Makes room for a reply of `total` bytes that begins in `input`, in an allocation of its own if
/// it is a large one: its value is then shared from there. `spare` gets the buffer that it began
/// in.
fn make_room(input: &mut BytesMut, spare: &mut BytesMut, total: usize) {
    if total <= input.capacity() {
        return;
    }
    if total <= INPUT_LEN {
        input.reserve(INPUT_LEN - input.len());
        return;
    }
    let mut large = BytesMut::with_capacity(total.saturating_add(LARGE_HEAD_LEN));
    large.extend_from_slice(input);
    *spare = std::mem::replace(input, large);
    spare.clear();
}
