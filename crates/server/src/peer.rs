//! A connection of another member or of a router: requests are executed as they come, and answered
//! when they are done.
//!
//! A read that is at hand is answered in passing, as for clients, and so is a write that needs
//! nothing but memory and the queue of the disk ([`passing`]). Everything else becomes a piece of
//! [`work`] that owns its request: it is begun at once, so requests take effect in the order of
//! their arrival, and if it has to wait (for the disk, the bucket, an acknowledgement) those behind
//! it go on. Only commands on a key whose last command is still under way wait for it. A command
//! without a waiting caller is not executed when its turn comes.
//!
//! Bounded: pieces of work and their bytes, then nothing more is parsed, and so it is with unsent
//! replies. A peer that does not read, or asks too much, is read from no more. Work goes on all the
//! same, since others may wait for what it holds. Its replies are counted, and wait for room.

mod passing;
mod work;

#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::future::{Future, poll_fn};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use fonn_proto::peer::hello::{self, Hello, Rejection};
use fonn_proto::peer::{Head, Kind, OVERHEAD_LEN_MAX, Refusal, Reply, Request, Step, next};
use fonn_proto::{Command, Failure, Out, Outcome};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::{Sleep, sleep};

use self::passing::Taken;
use self::work::{Done, Owned, Work};
use super::Shared;
use super::input::{Chunk, Input};
use super::memory::{Reservation, UnsentGuard};
use super::pool::{self, POOLED_LEN};
use super::registry::Connection;
use super::service::{Event, Service};

/// Pieces of work at a time, those that wait for another one of their key and those whose reply
/// waits for room among them. A router or member has no more requests under way on a connection, so
/// slow reads of some of its clients do not delay the requests of others.
const WORKS_MAX: usize = 8192;

/// Bytes of their requests.
const WORK_BYTES_MAX: usize = 32 << 20;

/// With so many bytes unsent nothing more is parsed, and replies wait for room.
const UNSENT_MAX: usize = 1 << 20;

/// Rounds before the other connections of the reactor have their turn.
const ROUNDS_MAX: usize = 16;

/// Serves a connection whose first byte says that it is a peer's.
pub(super) async fn serve<S: Service>(
    shared: &Arc<Shared<S>>,
    connection: &Arc<Connection>,
    input: Input,
) -> io::Result<()> {
    let mut peer = Peer {
        shared,
        connection,
        input,
        need: 1,
        skip: 0,
        reservation: None,
        admission: None,
        out: Out::new(),
        unsent: None,
        scratch: Vec::new(),
        works: FuturesUnordered::new(),
        finished: VecDeque::new(),
        finished_len: 0,
        busy: HashMap::new(),
        hasher: RandomState::new(),
        held: Held::default(),
        lens: None,
        moment: None,
        taken: Taken::default(),
        hits: 0,
        patience: Box::pin(sleep(shared.tuning.stall_max)),
        progress: Instant::now(),
        received: Instant::now(),
        ends: false,
    };
    poll_fn(|cx| peer.poll(cx)).await
}

type Admission<'c, S> = Pin<Box<dyn Future<Output = Option<Reservation<'c, S>>> + Send + 'c>>;

struct Peer<'c, S: Service> {
    shared: &'c Arc<Shared<S>>,
    connection: &'c Arc<Connection>,
    input: Input,
    /// Bytes needed for the next frame.
    need: usize,
    /// Bytes to swallow before it.
    skip: u64,
    /// The memory of a large request that is arriving.
    reservation: Option<Reservation<'c, S>>,
    admission: Option<Admission<'c, S>>,
    out: Out,
    unsent: Option<UnsentGuard<'c, S>>,
    scratch: Vec<u8>,
    works: FuturesUnordered<Work<S>>,
    /// The replies of work that is done, while there is no room for them, and their length.
    finished: VecDeque<Out>,
    finished_len: usize,
    /// Keys with a command under way, by their hash, and the commands that wait for it.
    busy: HashMap<u64, VecDeque<Owned>>,
    hasher: RandomState,
    held: Held,
    /// The longest bodies that we take and that the peer takes, once hellos were exchanged.
    lens: Option<Lens>,
    moment: Option<S::Moment>,
    /// The entries of another member that were taken in passing and not answered yet.
    taken: Taken<S>,
    /// Reads answered in passing and not yet counted.
    hits: u64,
    patience: Pin<Box<Sleep>>,
    /// When bytes were last received or sent.
    progress: Instant,
    /// When bytes were last received.
    received: Instant,
    /// Nothing more is read; the connection ends when all is answered.
    ends: bool,
}

/// What work holds.
#[derive(Default)]
struct Held {
    works: usize,
    bytes: usize,
}

#[derive(Clone, Copy)]
struct Lens {
    ours: u32,
    theirs: u32,
}

impl<'c, S: Service> Peer<'c, S> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        for _ in 0..ROUNDS_MAX {
            let mut has_moved = self.finish_works(cx);
            has_moved |= self.process(cx)?;
            has_moved |= self.send(cx)?;
            has_moved |= self.receive(cx)?;
            if has_moved {
                continue;
            }
            if self.has_ended() {
                return Poll::Ready(Ok(()));
            }
            return self.poll_patience(cx);
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Whether nothing is left to do and nothing will come.
    fn has_ended(&mut self) -> bool {
        let is_settled = self.held.works == 0 && self.out.is_empty();
        if is_settled && self.ends {
            return true;
        }
        let is_idle = is_settled && self.input.is_empty() && self.skip == 0;
        self.connection
            .at_boundary
            .store(is_idle, Ordering::Relaxed);
        if !is_idle {
            return false;
        }
        pool::reclaim(&mut self.out, &mut self.scratch);
        // Either this sees that the server drains, or the drain sees that the connection is idle.
        fence(Ordering::SeqCst);
        self.shared.is_draining()
    }

    /// Ends a connection that stops inside a frame or does not read.
    fn poll_patience(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // What waits for us is not the peer's fault.
        let waits_for_us = self.has_much_to_do() || self.admission.is_some();
        let is_inside = self.skip > 0 || !self.input.is_empty();
        if self.out.is_empty() && (waits_for_us || !is_inside) {
            self.progress = Instant::now();
            return Poll::Pending;
        }
        let stall_max = self.shared.tuning.stall_max;
        loop {
            let left = stall_max.saturating_sub(self.progress.elapsed());
            if left.is_zero() {
                return Poll::Ready(Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "a peer stopped in the middle of a frame, or does not read",
                )));
            }
            if self.patience.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            let at = tokio::time::Instant::now() + left;
            self.patience.as_mut().reset(at);
        }
    }

    fn has_much_to_do(&self) -> bool {
        self.held.works >= WORKS_MAX || self.held.bytes >= WORK_BYTES_MAX
    }

    fn is_full(&self) -> bool {
        self.has_much_to_do() || self.out.len() >= UNSENT_MAX
    }

    /// Takes the results of work that is done.
    fn finish_works(&mut self, cx: &mut Context<'_>) -> bool {
        let mut has_moved = false;
        while self.out.len() < UNSENT_MAX
            && let Some(reply) = self.finished.pop_front()
        {
            self.finished_len -= reply.len();
            self.append(reply);
            has_moved = true;
        }
        while let Poll::Ready(Some(done)) = self.works.poll_next_unpin(cx) {
            self.finish(done, cx);
            has_moved = true;
        }
        has_moved
    }

    /// Puts the reply of a piece of work behind the others.
    fn append(&mut self, mut reply: Out) {
        self.held.works -= 1;
        pool::lend(&mut self.out, &mut self.scratch);
        self.out.append(&mut reply);
    }

    fn finish(&mut self, done: Done<S>, cx: &mut Context<'_>) {
        match done {
            Done::Executed(executed) => {
                let key = executed.key;
                match executed.durable(self.shared) {
                    Ok(done) => self.finish(done, cx),
                    Err(work) => self.works.push(work),
                }
                if let Some(key) = key {
                    self.release_key(key, cx);
                }
            }
            Done::Answered { reply, bytes } => {
                self.held.bytes -= bytes;
                if let Some(unsent) = &self.unsent {
                    unsent.grow(reply.len());
                }
                if self.out.len() < UNSENT_MAX {
                    self.append(reply);
                } else {
                    self.finished_len += reply.len();
                    self.finished.push_back(reply);
                }
            }
        }
    }

    /// The command on a key was executed: the next one that waited for it goes on.
    fn release_key(&mut self, key: u64, cx: &mut Context<'_>) {
        while let Some(waiting) = self.busy.get_mut(&key) {
            let Some(owned) = waiting.pop_front() else {
                self.busy.remove(&key);
                return;
            };
            if !self.begin(owned, Some(key), cx) {
                return;
            }
        }
    }

    /// Begins a piece of work; true if it was executed at once.
    fn begin(&mut self, owned: Owned, key: Option<u64>, cx: &mut Context<'_>) -> bool {
        let theirs = self.lens.map_or(0, |lens| lens.theirs);
        let mut work = owned.work(self.shared, self.connection, theirs, key);
        match work.as_mut().poll(cx) {
            Poll::Ready(Done::Executed(mut executed)) => {
                // The work that began it goes on with the next of the key.
                executed.key = None;
                self.finish(Done::Executed(executed), cx);
                true
            }
            Poll::Ready(done) => {
                self.finish(done, cx);
                true
            }
            Poll::Pending => {
                self.works.push(work);
                false
            }
        }
    }

    /// Reads frames out of what was received, until one is not whole or there is too much to do.
    fn process(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        let mut has_moved = false;
        while !self.ends
            && self.admission.is_none()
            && self.skip == 0
            && self.input.len() >= self.need
            && !self.input.is_empty()
            && !self.is_full()
        {
            pool::lend(&mut self.out, &mut self.scratch);
            let chunk = self.input.take();
            self.moment = None;
            let consumed = match self.lens {
                Some(lens) => self.process_frames(&chunk, lens, cx),
                None => self.process_hello(chunk.as_slice()),
            };
            self.count_hits();
            self.answer_taken();
            match consumed {
                Ok(consumed) => self.input.restore(chunk, consumed),
                Err(error) => {
                    self.shared.service.count(Event::ProtocolError, 1);
                    return Err(error);
                }
            }
            has_moved = true;
            self.make_room();
        }
        Ok(has_moved)
    }

    fn count_hits(&mut self) {
        if self.hits > 0 {
            self.shared.service.count_hits(self.hits);
            self.hits = 0;
            self.connection.touch(Instant::now());
        }
    }

    fn process_hello(&mut self, data: &[u8]) -> io::Result<usize> {
        let hello::Step::Hello { hello, len, .. } = Hello::decode(data).map_err(broken)? else {
            self.need = data.len() + 1;
            return Ok(0);
        };
        let (ours, verdict) = self.shared.service.greet(&hello, &self.connection.peer);
        // A peer with a certificate has proved what an address cannot tell.
        let verdict = match verdict {
            Err(Rejection::NotAllowed) if self.connection.socket.is_certified() => Ok(()),
            verdict => verdict,
        };
        let verdict = verdict.and_then(|()| ours.agree(&hello).map(|_| ()));
        ours.encode(verdict, &mut self.out);
        match verdict {
            Ok(()) => {
                self.lens = Some(Lens {
                    ours: u32::try_from(self.shared.service.value_len_max())
                        .unwrap_or(u32::MAX)
                        .saturating_add(OVERHEAD_LEN_MAX as u32),
                    theirs: hello.body_len_max,
                });
            }
            Err(rejection) => {
                tracing::warn!(
                    name = hello.name,
                    from = self.connection.peer,
                    %rejection,
                    "a peer was refused"
                );
                self.ends = true;
            }
        }
        self.need = 1;
        Ok(len)
    }

    /// Executes the whole frames of a chunk. Returns how much of it was consumed.
    fn process_frames(
        &mut self,
        chunk: &Chunk,
        lens: Lens,
        cx: &mut Context<'_>,
    ) -> io::Result<usize> {
        let data = chunk.as_slice();
        let mut consumed = 0;
        self.need = 1;
        while consumed < data.len() && !self.is_full() {
            let rest = data.get(consumed..).unwrap_or_default();
            match next(Kind::Request, rest, lens.ours).map_err(broken)? {
                Step::Need { total } => {
                    self.need = total;
                    break;
                }
                Step::TooLong { head, len } => {
                    self.shared.service.count(Event::TooLarge, 1);
                    self.answer(&head, &Reply::Refused(Refusal::TooLong));
                    let here = usize::try_from(len).unwrap_or(usize::MAX).min(rest.len());
                    consumed += here;
                    self.skip = len - here as u64;
                    break;
                }
                Step::Frame { head, body, len } => {
                    consumed += len;
                    self.request(head, body, chunk, cx);
                    // What was reserved was for this request.
                    self.reservation = None;
                }
            }
        }
        Ok(consumed)
    }

    #[inline]
    fn request(&mut self, head: Head, body: &[u8], chunk: &Chunk, cx: &mut Context<'_>) {
        let request = match Request::decode(&head, body, None) {
            Ok(request) => request,
            Err(error) => {
                self.shared.service.count(Event::ProtocolError, 1);
                tracing::debug!(%error, "a peer's request was refused");
                return self.answer(&head, &Reply::Refused(error.into()));
            }
        };
        let key = match &request {
            Request::Command(command) => {
                let service = &self.shared.service;
                if !service.serves(head.envelope.slot, command.is_write()) {
                    return self.answer(&head, &Reply::WrongOwner);
                }
                let key = (!self.busy.is_empty()).then(|| self.key(&head, command.key()));
                let waiting = key.and_then(|key| self.busy.get_mut(&key));
                if let Some(waiting) = waiting {
                    let owned = Owned::new(head, body, chunk, self.received);
                    self.held.works += 1;
                    self.held.bytes += owned.bytes();
                    waiting.push_back(owned);
                    return;
                }
                let is_answered = match command {
                    Command::Get(get) => self.answer_hit(&head, get),
                    Command::Store(store) => {
                        let source = chunk.source(store.value.len());
                        self.answer_store(&head, command, (source, body.len()), cx)
                    }
                    _ => false,
                };
                if is_answered {
                    return;
                }
                Some(key.unwrap_or_else(|| self.key(&head, command.key())))
            }
            Request::Ping => return self.answer(&head, &Reply::Pong),
            // Both have to mean the same topology.
            Request::Put { .. } | Request::FetchSlots { .. }
                if head.envelope.epoch != self.shared.service.epoch() =>
            {
                return self.answer(&head, &Reply::WrongOwner);
            }
            Request::Put {
                entry,
                again: false,
            } if self.take(&head, entry) => return,
            _ => None,
        };
        let owned = Owned::new(head, body, chunk, self.received);
        self.held.works += 1;
        self.held.bytes += owned.bytes();
        let is_executed = self.begin(owned, key, cx);
        if let (Some(key), false) = (key, is_executed) {
            self.busy.insert(key, VecDeque::new());
        }
    }

    fn key(&self, head: &Head, key: &[u8]) -> u64 {
        self.hasher.hash_one((head.envelope.space, key))
    }

    fn answer(&mut self, head: &Head, reply: &Reply<'_>) {
        let epoch = self.shared.service.epoch();
        let theirs = self.lens.map_or(0, |lens| lens.theirs);
        work::encode(reply, head.envelope.reply(epoch), theirs, &mut self.out);
    }

    /// Makes room for the next frame; a large one is received once there is memory for it.
    fn make_room(&mut self) {
        if self.need <= POOLED_LEN || self.skip > 0 || self.reservation.is_some() {
            self.input.make_room(self.need);
            return;
        }
        let shared: &'c Shared<S> = self.shared;
        let bytes = self.input.capacity_for(self.need);
        self.reservation = Reservation::try_make(shared, None, bytes);
        if self.reservation.is_some() {
            self.input.make_room(self.need);
        } else {
            self.input.shrink();
            let held = self.input.len();
            self.admission = Some(Box::pin(Reservation::make(shared, None, bytes, held)));
        }
    }

    /// Waits for the memory of a large frame; refuses it if there is none.
    fn poll_admission(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(admission) = &mut self.admission else {
            return true;
        };
        let Poll::Ready(admitted) = admission.as_mut().poll(cx) else {
            return false;
        };
        self.admission = None;
        self.progress = Instant::now();
        if admitted.is_some() {
            self.reservation = admitted;
            self.input.make_room(self.need);
            return true;
        }
        self.shared.service.count(Event::Busy, 1);
        let chunk = self.input.take();
        // Its head is there: only that makes a frame large.
        if let Ok(Step::TooLong { head, len }) = next(Kind::Request, chunk.as_slice(), 0) {
            self.answer(&head, &Reply::Outcome(Outcome::Failed(Failure::Busy)));
            self.skip = len;
        }
        self.input.restore(chunk, 0);
        self.swallow();
        self.need = 1;
        true
    }

    /// Drops what is to be swallowed of what was received.
    fn swallow(&mut self) {
        if self.skip > 0 && !self.input.is_empty() {
            let chunk = self.input.take();
            let len = chunk.as_slice().len();
            let here = usize::try_from(self.skip).unwrap_or(usize::MAX).min(len);
            self.skip -= here as u64;
            self.input.restore(chunk, here);
        }
    }

    fn receive(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        let drain_busy = self.shared.tuning.drain_busy;
        if self.shared.drains_longer_than(drain_busy) {
            self.ends = true;
        }
        if self.ends || self.is_full() || !self.poll_admission(cx) {
            return Ok(false);
        }
        // What is there already comes first.
        if self.skip == 0 && !self.input.is_empty() && self.input.len() >= self.need {
            return Ok(true);
        }
        match pin!(self.connection.socket.readable()).poll(cx) {
            Poll::Ready(ready) => ready?,
            Poll::Pending => {
                self.input.settle(self.need);
                return Ok(false);
            }
        }
        match self.input.read(&self.connection.socket, usize::MAX)? {
            Some(0) => {
                // What was asked is still answered: a peer may only have ended its side.
                self.ends = true;
            }
            Some(count) => {
                self.shared.service.count(Event::BytesRead, count as u64);
                self.connection.at_boundary.store(false, Ordering::Relaxed);
                self.progress = Instant::now();
                self.received = self.progress;
                self.swallow();
            }
            None => {}
        }
        Ok(true)
    }

    fn send(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        let mut has_moved = false;
        while !self.out.is_empty() {
            match pin!(self.connection.socket.writable()).poll(cx) {
                Poll::Ready(ready) => ready?,
                Poll::Pending => {
                    self.hold_unsent();
                    return Ok(has_moved);
                }
            }
            match self.connection.socket.try_write(&self.out) {
                Ok(count) => {
                    self.out.advance(count);
                    self.shared.service.count(Event::BytesWritten, count as u64);
                    self.progress = Instant::now();
                    has_moved = true;
                    // What is left counts anew, behind all connections that made no progress
                    // meanwhile.
                    self.unsent = None;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(has_moved)
    }

    /// Counts what the peer does not read, until it has read some of it.
    fn hold_unsent(&mut self) {
        let shared: &'c Shared<S> = self.shared;
        let bytes = self.out.len() + self.finished_len;
        let hold = || shared.memory.hold_unsent(shared, self.connection, bytes);
        self.unsent.get_or_insert_with(hold);
    }
}

fn broken(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// The part of a chunk that a frame lies in, to be kept.
fn keep(chunk: &Chunk, body: &[u8]) -> Bytes {
    match chunk.source(body.len()) {
        Some(source) => source.slice_ref(body),
        None => Bytes::copy_from_slice(body),
    }
}
