//! One connection: reads, has requests executed in order, sends the replies of each batch at once.

mod ahead;
mod company;
mod execution;
mod later;
mod receive;
mod replies;

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fonn_proto::request::{Reply, ServerOutcome};
use fonn_proto::session::{Detection, Dialect, Session, detect};
use fonn_proto::{Body, Command, Failure, Out, Space, Step};

use self::ahead::AHEAD_MAX;
use self::later::{Queue, Window};
use self::receive::Arrival;
use self::replies::{Batch, CROWDED_SEND_LEN, Late};
use super::Shared;
use super::input::{Chunk, Input};
use super::kept::KeptMemory;
use super::peer;
use super::pool::{self, POOLED_LEN};
use super::registry::{Connection, Registered, StartupState};
use super::security::{Credentials, Guard};
use super::service::{Acks as _, Event, Service};

/// Unacknowledged writes of one batch at most.
const ACKS_MAX: usize = 1024;

/// Work that a connection may do before the others of its reactor have their turn, in commands of
/// well under a microsecond or pages received.
const TURN_MAX: usize = 128;

/// Bytes received, or copied into a value that a command makes, that count as one command.
const TURN_BYTES: usize = 4096;

/// Requests of more commands have their parsed form counted, which is many times what was received.
const UNCOUNTED_COMMANDS_MAX: usize = 256;

/// Memory that one parsed command takes, the parser's notes on its arguments included.
const COMMAND_COST: usize = size_of::<Command<'static>>() + 32;

/// What is composed is sent when the next answer takes longer than this.
const SEND_DELAY: Duration = Duration::from_millis(1);

/// Bytes that the task of a connection takes, besides the buffers of one that is not idle.
#[must_use]
pub fn task_len<S: Service>() -> usize {
    fn output_len<A, F>(_: impl Fn(A) -> F) -> usize {
        size_of::<F>()
    }
    output_len(serve::<S>)
}

/// Serves a connection until either side closes it.
pub(super) async fn serve<S: Service>(registered: Registered<S>) {
    let shared = &registered.shared;
    let now = Instant::now();
    let mut driver = Driver {
        shared,
        connection: &registered.connection,
        session: None,
        out: Out::new(),
        acks: S::Acks::default(),
        late: Vec::new(),
        current: Current::default(),
        window: Window::default(),
        scratch: Vec::new(),
        batch: Batch::new(now),
        touch_at: now,
        turn: 0,
        peer: None,
        guard: Guard::new(&shared.security, &registered.connection.peer),
        waits_for_much: false,
        kept: None,
        space: None,
        is_starting: registered.connection.startup() != StartupState::Over,
    };
    let mut result = driver.run().await;
    if let Some(input) = driver.peer.take() {
        drop(driver);
        result = Box::pin(peer::serve(shared, &registered.connection, *input)).await;
    }
    if let Err(error) = result {
        if error.kind() == io::ErrorKind::TimedOut {
            shared.service.count(Event::Stalled, 1);
        }
        tracing::debug!(id = registered.connection.id, %error, "connection ended");
    }
}

struct Driver<'c, S: Service> {
    shared: &'c Shared<S>,
    connection: &'c Arc<Connection>,
    /// Boxed, since it is taken out for each batch and put back.
    session: Option<Box<Session>>,
    out: Out,
    acks: S::Acks,
    late: Vec<Late>,
    current: Current,
    window: Window,
    scratch: Vec<u8>,
    batch: Batch<S::Moment>,
    /// When the connection is noted as used again.
    touch_at: Instant,
    /// Work done since others had their turn.
    turn: usize,
    /// What was received, once it turned out to be from another member of the cluster.
    peer: Option<Box<Input>>,
    guard: Guard,
    /// Whether the kernel wakes the connection for many bytes, instead of any.
    waits_for_much: bool,
    /// Memory for what the session keeps between requests.
    kept: Option<KeptMemory<'c, S>>,
    /// What the last request was about.
    space: Option<Space>,
    /// Whether its start-up is under way.
    is_starting: bool,
}

/// The request that is being executed.
#[derive(Default)]
struct Current {
    /// Acknowledgements that the requests before it wait for.
    acks_before: usize,
    /// Where its reply begins.
    reply_start: u64,
    /// Whether its reply is worded aside, since requests before it wait for answers.
    is_aside: bool,
    /// Whether it waits for answers itself.
    is_late: bool,
    /// Whether no other request came behind it.
    is_last: bool,
    /// Whether the memory of its commands was counted when their arguments arrived.
    is_counted: bool,
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

impl<'c, S: Service> Driver<'c, S> {
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
            let mut limit = usize::MAX;
            // A request that does not fit a pooled buffer is received as there is memory for it.
            if need > POOLED_LEN && skip == 0 {
                if self.lacks_memory(&arrival, &input)
                    && !self.admit(&mut arrival, &mut input, need).await
                {
                    (need, skip) = self.refuse(&mut input).await?;
                    arrival = Arrival::default();
                    continue;
                }
                limit = arrival.limit;
            }
            let read = match input.read(&self.connection.socket, limit)? {
                Some(0) => return Ok(()),
                Some(read) => read,
                None => {
                    self.turn = 0;
                    if self.is_starting {
                        self.shared.count_handshake(self.connection);
                    }
                    pool::reclaim(&mut self.out, &mut self.scratch);
                    if !inside {
                        if !self.wait_idle().await? {
                            return Ok(());
                        }
                        continue;
                    }
                    input.settle(need);
                    if need > POOLED_LEN || self.admit_waiting(&mut arrival, &mut input, need).await
                    {
                        let missing = need.saturating_sub(input.len());
                        self.wait_inside(input.len(), missing, &mut arrival).await?;
                    } else {
                        (need, skip) = self.refuse(&mut input).await?;
                        arrival = Arrival::default();
                    }
                    continue;
                }
            };
            self.count(Event::BytesRead, read as u64);
            // What is read of a TLS connection was sent after the handshake.
            if self.is_starting && self.guard.is_open() {
                self.end_startup()?;
                self.is_starting = false;
            }
            self.turn += 1 + read / TURN_BYTES;
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

            self.expect(1);
            let mut chunk = input.take();
            let foreseen = self.look_around(chunk.as_slice()).await;
            pool::lend(&mut self.out, &mut self.scratch);
            self.batch = Batch::new(Instant::now());
            // Members log in nowhere: where there are users, only clients with a certificate may
            // speak for all.
            let is_new = self.session.is_none();
            let takes_peers = || self.guard.is_open() || self.connection.socket.is_certified();
            if is_new && takes_peers() && detect(chunk.as_slice()) == Detection::Peer {
                input.restore(chunk, 0);
                pool::reclaim(&mut self.out, &mut self.scratch);
                self.end_startup()?;
                self.peer = Some(Box::new(input));
                return Ok(());
            }
            let parsed = self.process(&chunk, foreseen).await?;
            if self.guard.took_password() {
                chunk.wipe(parsed.consumed);
            }
            self.hold_kept();
            input.restore(chunk, parsed.consumed);
            if parsed.consumed > 0 {
                arrival = Arrival::default();
            }
            self.gather().await;
            self.send(None).await?;
            if parsed.close {
                self.linger().await;
                return Ok(());
            }
            (need, skip) = (parsed.need, parsed.skip);
            if need <= POOLED_LEN {
                input.make_room(need);
            }
            self.breathe().await;
        }
    }

    #[inline]
    fn count(&self, event: Event, n: u64) {
        self.shared.service.count(event, n);
    }

    /// Counts what the session keeps between requests. Has it given up if there is no memory for
    /// it: the client is told when it asks for it.
    fn hold_kept(&mut self) {
        let Some(session) = &mut self.session else {
            return;
        };
        let kept_len = session.kept_len();
        if kept_len == self.kept.as_ref().map_or(0, KeptMemory::bytes) {
            return;
        }
        self.kept = None;
        if kept_len == 0 {
            return;
        }
        self.kept = KeptMemory::try_hold(self.shared, self.connection.source, kept_len);
        if self.kept.is_none() {
            session.forget_kept();
            self.count(Event::Busy, 1);
        }
    }

    /// Lets the other connections of the reactor have their turn, if its own turn was long.
    #[inline]
    async fn breathe(&mut self) {
        if self.turn >= TURN_MAX {
            self.turn = 0;
            // Buffers would be held, and counted by nothing, for the turns of all others.
            let is_lent = self.out.capacity() > 0;
            pool::reclaim(&mut self.out, &mut self.scratch);
            if self.scratch.capacity() > POOLED_LEN {
                self.scratch = Vec::new();
            }
            tokio::task::yield_now().await;
            if is_lent {
                pool::lend(&mut self.out, &mut self.scratch);
            }
            // The turns of the others took their time.
            self.batch.moment = None;
        }
    }

    /// Executes all complete requests of a chunk. The service was told of the first `foreseen`.
    async fn process(&mut self, chunk: &Chunk, foreseen: usize) -> io::Result<Parsed> {
        let data = chunk.as_slice();
        let mut parsed = Parsed {
            consumed: 0,
            need: 1,
            skip: 0,
            close: false,
        };
        if self.session.is_none() && !self.detect(data, &mut parsed) {
            if parsed.close && !self.guard.is_admitted() {
                Box::pin(self.delay_stranger()).await;
            }
            return Ok(parsed);
        }
        let Some(mut session) = self.session.take() else {
            return Ok(parsed);
        };
        if self.guard.is_revoked() {
            return Err(revoked());
        }
        let dialect = session.dialect();
        let mut queue = Queue::new();
        let mut was_admitted = self.guard.is_admitted();
        // Requests up to the next look ahead.
        let mut unseen = foreseen.max(1);
        while parsed.consumed < data.len() {
            let rest = &data[parsed.consumed..];
            match session.parse(rest) {
                Step::Need { total } => {
                    parsed.need = total;
                    break;
                }
                Step::Skip { len } => {
                    if len > self.shared.value_len_max() as u64 {
                        // The parser words the refusal; the service never hears of the value.
                        self.count(Event::TooLarge, 1);
                    }
                    let here = usize::try_from(len).unwrap_or(usize::MAX).min(rest.len());
                    parsed.consumed += here;
                    parsed.skip = len - here as u64;
                    if parsed.skip > 0 {
                        break;
                    }
                }
                Step::Request { mut request, len } => {
                    parsed.consumed += len;
                    self.batch.requests += 1;
                    unseen -= 1;
                    if !self.guard.is_open() {
                        self.guard.confine(&mut request.body);
                    }
                    let is_broken = matches!(request.body, Body::Broken);
                    parsed.close = matches!(request.body, Body::Close) || is_broken;
                    if is_broken {
                        self.count(Event::ProtocolError, 1);
                    }
                    let mut reply = request.reply;
                    let is_computed = reply.is_computed();
                    let space = self.guard.space(request.database);
                    self.space = Some(space);
                    // Whether it was about the login, or was refused.
                    let is_answered = !self.guard.is_open()
                        && Box::pin(self.admit_request(&request.body, &mut reply, &mut queue))
                            .await?;
                    if !is_answered
                        && !self.answer_read(&request.body, &mut reply, space, &mut queue)
                    {
                        self.begin_request(&mut queue);
                        if !self.answer_store(&request.body, &mut reply, space, (chunk, &queue)) {
                            self.current.is_last = parsed.consumed == data.len();
                            self.current.is_counted = dialect == Dialect::Resp
                                && matches!(chunk, Chunk::Large { .. })
                                && parsed.consumed == len
                                && rest.starts_with(b"*");
                            self.execute(request.body, &mut reply, space, chunk, &mut queue)
                                .await?;
                        }
                        self.end_request(&reply, &mut queue);
                    }
                    let is_stranger = !was_admitted && !self.guard.is_admitted();
                    if is_stranger {
                        let goes_on = Box::pin(self.delay_stranger()).await;
                        parsed.close |= !goes_on || self.is_overdue();
                    }
                    if parsed.close {
                        break;
                    }
                    if queue.aside_len() >= CROWDED_SEND_LEN {
                        self.settle(&mut queue).await?;
                    }
                    self.turn += if is_computed { TURN_MAX } else { 1 };
                    // The answers to a stranger are sent one by one: gathered, they would be held
                    // for the delays of all its requests.
                    if is_stranger || self.is_time_to_send() || self.acks.count() >= ACKS_MAX {
                        if self.acks.count() > 0 {
                            self.settle(&mut queue).await?;
                        }
                        self.send(Some(&mut queue)).await?;
                    }
                    self.breathe().await;
                    if unseen == 0 {
                        self.look_ahead(dialect, space, &data[parsed.consumed..]);
                        unseen = AHEAD_MAX;
                    }
                }
            }
            // A login and a logout are effective for the next request.
            if was_admitted != self.guard.is_admitted() {
                was_admitted = !was_admitted;
                session.set_authenticated(was_admitted);
            }
        }
        if queue.is_unused() {
            // It owns nothing: its drop is not worth a look at all its parts.
            std::mem::forget(queue);
        } else {
            self.settle(&mut queue).await?;
        }
        self.session = Some(session);
        Ok(parsed)
    }

    /// Logs the client in, or refuses what it may not do. True if the request is answered by that.
    async fn admit_request(
        &mut self,
        body: &Body<'_>,
        reply: &mut Reply<'_>,
        queue: &mut Queue<'_, S::Later>,
    ) -> io::Result<bool> {
        if matches!(body, Body::LogOut) {
            // Requests before it are still those of the user.
            self.settle(queue).await?;
            self.guard.log_out();
            return Ok(false);
        }
        let credentials = self.guard.credentials(body, reply);
        let failure = match credentials {
            Some(_) => None,
            None => self.guard.refuses(body),
        };
        if credentials.is_none() && failure.is_none() {
            return Ok(false);
        }
        self.count_hits();
        self.settle(queue).await?;
        if let Some(credentials) = credentials {
            let outcome = self.log_in(credentials).await?;
            if outcome != ServerOutcome::Done {
                self.count(Event::AuthFailed, 1);
            }
            reply.server(&credentials.command(), &outcome, &mut self.out);
            // Whatever waited meanwhile is judged anew.
            self.batch.moment = None;
        }
        if let Some(failure) = failure {
            self.count(
                match failure {
                    Failure::AuthRequired => Event::AuthRequired,
                    _ => Event::ReadOnly,
                },
                1,
            );
            reply.late().failure(failure, &mut self.out);
        }
        Ok(true)
    }

    /// Checks a name and a password. Meanwhile a start-up is not ended, nor is it counted: what
    /// waits for the check is bounded by the [`Authenticator`](fonn_auth::Authenticator).
    ///
    /// # Errors
    /// As [`Driver::end_startup`].
    async fn log_in(&mut self, credentials: Credentials<'_>) -> io::Result<ServerOutcome> {
        if self.is_starting {
            self.connection.set_startup(StartupState::Held);
            self.shared.startups.end(self.connection.id);
        }
        let outcome = self.guard.log_in(credentials).await;
        if self.is_starting {
            if outcome == ServerOutcome::Done {
                self.end_startup()?;
                self.is_starting = false;
            } else {
                self.connection.set_startup(StartupState::UnderWay);
                self.shared.count_startup(self.connection);
            }
        }
        Ok(outcome)
    }

    /// Whether the client has used up its time to log in.
    fn is_overdue(&self) -> bool {
        self.is_starting && self.connection.age() > self.shared.tuning.startup_max
    }

    /// Finds out which dialect is spoken. False if more bytes are needed, or none is.
    fn detect(&mut self, data: &[u8], parsed: &mut Parsed) -> bool {
        match detect(data) {
            Detection::Need { total } => {
                parsed.need = total;
                false
            }
            Detection::Peer | Detection::Refused => {
                self.count(Event::ProtocolError, 1);
                parsed.close = true;
                false
            }
            Detection::Found(dialect) => {
                let mut session = Session::new(dialect, self.shared.limits(), self.connection.id);
                session.set_authenticated(self.guard.is_admitted());
                let number = dialect as u8 + 1;
                self.connection.dialect.store(number, Ordering::Relaxed);
                self.session = Some(Box::new(session));
                true
            }
        }
    }
}

fn revoked() -> io::Error {
    io::Error::new(
        io::ErrorKind::PermissionDenied,
        "its user or token was removed, was changed, or has expired",
    )
}

fn stalled(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, what)
}
