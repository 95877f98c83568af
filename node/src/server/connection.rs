//! One connection: reads, has requests executed in order, sends the replies of each batch at once.

mod replies;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use fonn_proto::request::Reply;
use fonn_proto::session::{Detection, Dialect, Session, detect};
use fonn_proto::{Body, Command, Failure, Out, Outcome, Step};
use tokio::time::timeout;

use self::replies::{Batch, Late};
use super::input::{Chunk, Input};
use super::memory::Reservation;
use super::pool::{self, POOLED_LEN};
use super::registry::{Connection, Registered};
use super::{Shared, commands};
use crate::engine::{Acks, Job};
use crate::entry::Space;
use crate::stats::{Counter, Stats};

/// If more than this is missing of a request, its client is not waiting for an acknowledgement.
const ACKNOWLEDGE_LEN_MAX: usize = 64 * 1024;

/// Unacknowledged writes of one batch at most.
const ACKS_MAX: usize = 1024;

/// Work that a connection may do before the others of its reactor have their turn, in commands of
/// well under a microsecond or pages received.
const TURN_MAX: usize = 512;

/// Requests of more commands have their parsed form counted, which is many times what was received.
const UNCOUNTED_COMMANDS_MAX: usize = 256;

/// Memory that one parsed command takes, the parser's notes on its arguments included.
const COMMAND_COST: usize = size_of::<Command<'static>>() + 32;

/// How often a client that memory is reserved for is looked at while it sends nothing.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// What is read and thrown away from a connection that is being closed.
const LINGER_LEN_MAX: usize = 1024 * 1024;

/// Serves a connection until either side closes it.
pub(super) async fn serve(registered: Registered) {
    let shared = &*registered.shared;
    let mut driver = Driver {
        shared,
        connection: &registered.connection,
        session: None,
        out: Out::new(),
        acks: Acks::default(),
        late: Vec::new(),
        current: Current::default(),
        scratch: Vec::new(),
        batch: Batch::new(Instant::now()),
        turn: 0,
    };
    if let Err(error) = driver.run().await {
        if error.kind() == io::ErrorKind::TimedOut {
            shared.engine.stats().count(Counter::ConnectionsStalled);
        }
        tracing::debug!(id = registered.connection.id, %error, "connection ended");
    }
}

struct Driver<'c> {
    shared: &'c Shared,
    connection: &'c Arc<Connection>,
    session: Option<Session>,
    out: Out,
    acks: Acks,
    late: Vec<Late>,
    current: Current,
    scratch: Vec<u8>,
    batch: Batch,
    /// Work done since others had their turn.
    turn: usize,
}

/// The request that is being executed.
#[derive(Default)]
struct Current {
    /// Acknowledgements that the requests before it wait for.
    acks_before: usize,
    /// Whether a part of its reply was sent already.
    is_partly_sent: bool,
}

/// What stopped the parsing of a chunk.
struct Parsed {
    consumed: usize,
    /// Bytes needed for the next request.
    need: usize,
    /// Bytes to swallow before it.
    skip: u64,
    close: bool,
}

/// The memory of a request that is arriving.
#[derive(Default)]
struct Arrival<'c> {
    reservation: Option<Reservation<'c>>,
    since: Option<Instant>,
    bytes: usize,
}

impl<'c> Driver<'c> {
    async fn run(&mut self) -> io::Result<()> {
        let mut input = Input::default();
        let mut need = 1usize;
        let mut skip = 0u64;
        let mut arrival = Arrival::default();
        loop {
            let inside = !input.is_empty() || skip > 0;
            if !inside
                && self
                    .shared
                    .drains_longer_than(self.shared.tuning.drain_busy)
            {
                self.linger().await;
                return Ok(());
            }
            let read = match input.read(&self.connection.socket)? {
                Some(0) => return Ok(()),
                Some(read) => read,
                None => {
                    self.turn = 0;
                    self.give_back_buffers();
                    if !inside {
                        if !self.wait_idle().await? {
                            return Ok(());
                        }
                        continue;
                    }
                    input.settle(need);
                    if self.admit(&mut arrival, &mut input, 0).await {
                        let missing = need.saturating_sub(input.len());
                        self.wait_inside(missing, &arrival).await?;
                    } else {
                        (need, skip) = self.refuse(&mut input).await?;
                        arrival = Arrival::default();
                    }
                    continue;
                }
            };
            self.stats().add(Counter::BytesRead, read as u64);
            self.turn += 1 + read / 4096;
            if skip > 0 {
                let chunk = input.take();
                let here = usize::try_from(skip)
                    .unwrap_or(usize::MAX)
                    .min(chunk.as_slice().len());
                skip -= here as u64;
                input.restore(chunk, here);
            }
            if skip > 0 || input.len() < need || input.is_empty() {
                self.breathe().await;
                continue;
            }

            self.take_buffers();
            self.batch = Batch::new(Instant::now());
            let chunk = input.take();
            let parsed = self.process(&chunk).await?;
            input.restore(chunk, parsed.consumed);
            if parsed.consumed > 0 {
                arrival = Arrival::default();
            }
            self.send().await?;
            if parsed.close {
                self.linger().await;
                return Ok(());
            }
            (need, skip) = (parsed.need, parsed.skip);
            // A request that does not fit a pooled buffer is received once there is memory for it.
            while need > POOLED_LEN
                && skip == 0
                && !self.admit(&mut arrival, &mut input, need).await
            {
                (need, skip) = self.refuse(&mut input).await?;
                arrival = Arrival::default();
            }
            input.make_room(need);
            self.breathe().await;
        }
    }

    fn stats(&self) -> &'c Stats {
        self.shared.engine.stats()
    }

    fn take_buffers(&mut self) {
        if self.out.capacity() == 0 {
            self.out.lend(pool::take());
            self.scratch = pool::take_scratch();
        }
    }

    fn give_back_buffers(&mut self) {
        if let Some(buf) = self.out.take_back() {
            pool::give_back(buf);
            pool::give_back_scratch(std::mem::take(&mut self.scratch));
        }
    }

    /// Lets the other connections of the reactor have their turn, if this one had a long one.
    #[inline]
    async fn breathe(&mut self) {
        if self.turn >= TURN_MAX {
            self.turn = 0;
            tokio::task::yield_now().await;
        }
    }

    /// Waits for the first byte of a request, as long as it takes. False if the node is shutting down.
    async fn wait_idle(&self) -> io::Result<bool> {
        let at_boundary = &self.connection.at_boundary;
        at_boundary.store(true, Ordering::Relaxed);
        // Either this sees that the server drains, or the drain sees that the connection is idle.
        fence(Ordering::SeqCst);
        if self.shared.is_draining() {
            return Ok(false);
        }
        let result = self.connection.socket.readable().await;
        at_boundary.store(false, Ordering::Relaxed);
        result.map(|()| true)
    }

    /// Waits for more of a request of which `missing` bytes are still to come.
    async fn wait_inside(&self, missing: usize, arrival: &Arrival<'_>) -> io::Result<()> {
        // In the middle of a large body the peer's window is full of data and acknowledgements come by
        // themselves; near its end, and in a head, the peer may be waiting for one.
        if missing <= ACKNOWLEDGE_LEN_MAX {
            self.connection.socket.acknowledge_now();
        }
        let stall_max = self.shared.tuning.stall_max;
        let Some(since) = arrival.since else {
            return match timeout(stall_max, self.connection.socket.readable()).await {
                Ok(result) => result,
                Err(_) => Err(stalled("the client stopped in the middle of a request")),
            };
        };
        let start = Instant::now();
        loop {
            let now = Instant::now();
            if now - since > self.time_allowed(arrival.bytes) {
                return Err(stalled(
                    "a request arrives too slowly to hold memory for it",
                ));
            }
            let left = stall_max.saturating_sub(now - start);
            if left.is_zero() {
                return Err(stalled("the client stopped in the middle of a request"));
            }
            let look = left.min(LOOK_INTERVAL);
            if let Ok(result) = timeout(look, self.connection.socket.readable()).await {
                return result;
            }
        }
    }

    /// How long a request may take to arrive that holds so much memory.
    fn time_allowed(&self, bytes: usize) -> Duration {
        let tuning = &self.shared.tuning;
        let at = |rate: u64| Duration::from_millis(bytes as u64 * 1000 / rate.max(1));
        match self.shared.memory.is_contended() {
            true => tuning.contended_grace + at(tuning.contended_rate_min),
            false => tuning.stall_max + at(tuning.rate_min),
        }
    }

    /// Reserves memory for a request that is arriving: what it holds, and what it takes to receive
    /// `need` bytes of it. Waits a while for it. False if there is none.
    async fn admit(&mut self, arrival: &mut Arrival<'c>, input: &mut Input, need: usize) -> bool {
        let bytes = input.capacity_for(need).max(input.held());
        let more = bytes.saturating_sub(arrival.bytes);
        if more == 0 {
            return true;
        }
        let mut added = Reservation::try_make(self.shared, more);
        if added.is_none() {
            // It waits with as little as possible.
            self.give_back_buffers();
            input.shrink();
            let held = match arrival.bytes {
                0 => input.len(),
                _ => 0,
            };
            added = Box::pin(Reservation::make(self.shared, more, held)).await;
        }
        let Some(added) = added else {
            return false;
        };
        match &mut arrival.reservation {
            Some(reservation) => reservation.merge(added),
            None => arrival.reservation = Some(added),
        }
        arrival.bytes = bytes;
        arrival.since.get_or_insert_with(Instant::now);
        true
    }

    /// Refuses the request at the front of `input` as busy; returns what to wait for and what to swallow.
    ///
    /// # Errors
    /// If the request is none that could be swallowed: the connection has to be closed.
    async fn refuse(&mut self, input: &mut Input) -> io::Result<(usize, u64)> {
        self.stats().count(Counter::Busy);
        if let Some(session) = &mut self.session {
            session.refuse(Failure::Busy);
            self.take_buffers();
            self.batch = Batch::new(Instant::now());
            let chunk = input.take();
            let parsed = Box::pin(self.process(&chunk)).await?;
            input.restore(chunk, parsed.consumed);
            self.send().await?;
            if parsed.consumed > 0 && !parsed.close {
                return Ok((parsed.need, parsed.skip));
            }
        }
        Err(io::Error::new(
            io::ErrorKind::OutOfMemory,
            "there is no memory to receive a request",
        ))
    }

    /// Ends a connection without losing its last reply: says that nothing more comes, and reads until
    /// the client has closed too, or for a moment.
    async fn linger(&mut self) {
        let socket = &self.connection.socket;
        socket.end_writing();
        let mut buf = pool::take();
        let mut left = LINGER_LEN_MAX;
        let _ = Box::pin(timeout(self.shared.tuning.linger, async {
            while left > 0 {
                buf.clear();
                match socket.try_read(&mut buf) {
                    Ok(0) => return,
                    Ok(count) => left = left.saturating_sub(count),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        if socket.readable().await.is_err() {
                            return;
                        }
                    }
                    Err(_) => return,
                }
            }
        }))
        .await;
        pool::give_back(buf);
    }

    /// Executes all complete requests of a chunk.
    async fn process(&mut self, chunk: &Chunk) -> io::Result<Parsed> {
        let data = chunk.as_slice();
        let mut parsed = Parsed {
            consumed: 0,
            need: 1,
            skip: 0,
            close: false,
        };
        if self.session.is_none() && !self.detect(data, &mut parsed) {
            return Ok(parsed);
        }
        let Some(mut session) = self.session.take() else {
            return Ok(parsed);
        };
        while parsed.consumed < data.len() {
            let rest = &data[parsed.consumed..];
            match session.parse(rest) {
                Step::Need { total } => {
                    parsed.need = total;
                    break;
                }
                Step::Skip { len } => {
                    if len > self.shared.engine.value_len_max() as u64 {
                        // The parser words the refusal; the engine never hears of the value.
                        self.stats().count(Counter::StoreTooLarge);
                    }
                    let here = usize::try_from(len).unwrap_or(usize::MAX).min(rest.len());
                    parsed.consumed += here;
                    parsed.skip = len - here as u64;
                    if parsed.skip > 0 {
                        break;
                    }
                }
                Step::Request { request, len } => {
                    parsed.consumed += len;
                    self.batch.requests += 1;
                    parsed.close = matches!(request.body, Body::Close | Body::Broken);
                    if matches!(request.body, Body::Broken) {
                        self.stats().count(Counter::ProtocolErrors);
                    }
                    let mut reply = request.reply;
                    let space = Space::new(0, request.database);
                    if !self.answer_read(&request.body, &mut reply, space) {
                        self.begin_request();
                        let reply_start = self.out.position();
                        self.execute(request.body, &mut reply, space, chunk).await?;
                        self.end_request(reply_start, &reply);
                    }
                    if parsed.close {
                        break;
                    }
                    if self.is_time_to_send() || self.acks.count() >= ACKS_MAX {
                        self.send().await?;
                    }
                    self.turn += 1;
                    self.breathe().await;
                }
            }
        }
        self.session = Some(session);
        Ok(parsed)
    }

    /// Finds out which dialect is spoken. False if more bytes are needed, or none is.
    fn detect(&mut self, data: &[u8], parsed: &mut Parsed) -> bool {
        match detect(data) {
            Detection::Need { total } => {
                parsed.need = total;
                false
            }
            Detection::Refused(_) => {
                self.stats().count(Counter::ProtocolErrors);
                parsed.close = true;
                false
            }
            Detection::Found(dialect) => {
                let session = Session::new(dialect, self.shared.limits(), self.connection.id);
                let number = dialect_index(dialect) as u8 + 1;
                self.connection.dialect.store(number, Ordering::Relaxed);
                self.session = Some(session);
                true
            }
        }
    }

    /// Answers a request for one entry that RAM has. False if it is none: nothing was done then.
    #[inline]
    fn answer_read(&mut self, body: &Body<'_>, reply: &mut Reply<'_>, space: Space) -> bool {
        let Body::Data(commands) = body else {
            return false;
        };
        let is_answered = match commands.as_slice() {
            [command] => self.answer_hit(command, reply, space),
            _ => false,
        };
        if is_answered {
            reply.finish(&mut self.out);
        }
        is_answered
    }

    /// Answers one command, if it reads an entry that RAM has.
    #[inline]
    fn answer_hit(&mut self, command: &Command<'_>, reply: &mut Reply<'_>, space: Space) -> bool {
        let Command::Get(get) = command else {
            return false;
        };
        let engine = &self.shared.engine;
        let moment = *self.batch.moment.get_or_insert_with(|| engine.moment());
        let out = &mut self.out;
        let word = |outcome: &Outcome<'_>| reply.each(command, outcome, out);
        let is_hit = engine.answer_hit(space, get, moment, &mut self.scratch, word);
        self.batch.hits += u64::from(is_hit);
        is_hit
    }

    async fn execute(
        &mut self,
        body: Body<'_>,
        reply: &mut Reply<'_>,
        space: Space,
        chunk: &Chunk,
    ) -> io::Result<()> {
        match body {
            Body::Data(commands) => {
                let shared = self.shared;
                let mut _parsed = None;
                if commands.len() > UNCOUNTED_COMMANDS_MAX {
                    let cost = commands.len() * COMMAND_COST;
                    if cost > shared.engine.inflight_max() {
                        self.stats().count(Counter::Busy);
                        reply.late().failure(Failure::Busy, &mut self.out);
                        return Ok(());
                    }
                    _parsed = Some(shared.memory.hold_unsent(shared, self.connection, cost));
                }
                let is_for_many = commands.len() > 1;
                for command in &commands {
                    if !(is_for_many && self.answer_hit(command, reply, space)) {
                        self.execute_command(command, reply, space, chunk).await;
                    }
                    if is_for_many {
                        // The replies to one request for many keys are no reason to gather them all.
                        if self.is_time_to_send() {
                            self.relieve().await?;
                        }
                        self.turn += 1;
                        self.breathe().await;
                    }
                }
                reply.finish(&mut self.out);
            }
            Body::Server(command) => {
                self.count_hits();
                let outcome = Box::pin(commands::execute(
                    self.shared,
                    self.connection,
                    space,
                    &command,
                    &mut self.acks,
                ))
                .await;
                reply.server(&command, &outcome, &mut self.out);
            }
            Body::Answer | Body::Close | Body::Broken => reply.finish(&mut self.out),
        }
        Ok(())
    }

    /// Has one command of any kind executed.
    async fn execute_command(
        &mut self,
        command: &Command<'_>,
        reply: &mut Reply<'_>,
        space: Space,
        chunk: &Chunk,
    ) {
        let value_len = match command {
            Command::Store(store) => store.value.len(),
            _ => 0,
        };
        let job = Job {
            space,
            command,
            source: chunk.source(value_len),
        };
        let engine = &self.shared.engine;
        let outcome = engine
            .execute(&job, &mut self.acks, &mut self.scratch)
            .await;
        reply.each(command, &outcome, &mut self.out);
        // It may have waited long.
        self.batch.moment = None;
    }
}

fn stalled(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, what)
}

/// The place of a dialect in tables.
fn dialect_index(dialect: Dialect) -> usize {
    match dialect {
        Dialect::Text => 0,
        Dialect::Binary => 1,
        Dialect::Resp => 2,
    }
}
