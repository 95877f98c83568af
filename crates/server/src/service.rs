//! The service behind a server: it executes commands, and answers the server's other questions.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use fonn_proto::peer::hello::{Hello, Rejection};
use fonn_proto::peer::{self, Reply};
use fonn_proto::request::ServerOutcome;
use fonn_proto::{Base, Command, Failure, Get, Outcome, Redirects, ServerCommand, Space, WriterId};

use super::{Budget, Shared};

/// What a command is executed with.
#[derive(Clone, Copy)]
pub struct Job<'a> {
    /// Whose key it is.
    pub space: Space,
    /// The command.
    pub command: &'a Command<'a>,
    /// The allocation that the command borrows from, if its value is large and may be shared.
    pub source: Option<&'a Bytes>,
    /// Where a read looks that finds nothing in `space`. Nothing is changed there.
    pub base: Option<Base>,
    /// The epoch of the member or router that sent it here because of the slot, if one did.
    pub routed_by: Option<u64>,
    /// Whether the client wants to be told when another member owns the key, instead of having the
    /// command carried out there. Answered with [`Outcome::Moved`].
    pub redirects: Redirects,
    /// The identity that it is executed for: the writer of what it stores.
    pub writer: WriterId,
}

impl<'a> Job<'a> {
    /// A command that no client, router or other member sent.
    #[must_use]
    pub const fn own(space: Space, command: &'a Command<'a>) -> Self {
        Self {
            space,
            command,
            source: None,
            base: None,
            routed_by: None,
            redirects: Redirects::Never,
            writer: WriterId::NONE,
        }
    }
}

/// The sender of a server command.
#[derive(Clone, Copy, Debug)]
pub struct Client<'c> {
    /// The number of the connection.
    pub id: u64,
    /// The address at the other end.
    pub peer: &'c str,
    /// The address at this end, as the client reached it; None for a Unix socket. Known for
    /// [`ServerCommand::ClusterView`] alone.
    pub local: Option<SocketAddr>,
    /// The keyspace that it is in.
    pub space: Space,
    /// The epoch of the router or other member that sent it to this member, if one did.
    pub routed_by: Option<u64>,
    /// It is told about its own namespace alone, not about the server as a whole.
    pub is_confined: bool,
    /// Where reads look that find nothing in `space`.
    pub base: Option<Base>,
    /// The identity that it is: the writer of what it stores.
    pub writer: WriterId,
}

/// How far the execution of a command got.
pub enum Execution<'v, L> {
    /// It is done; provisional until the acknowledgements that it added have come.
    Done(Outcome<'v>),
    /// The answer comes later. Meanwhile the requests behind it are executed.
    Later(L),
    /// Another member owns the slot, and nothing was done. Only a command that a router or another
    /// member sent comes to this.
    WrongOwner,
}

/// How far a store that another process sent got on the spot.
pub enum Stored<L> {
    /// It takes more than that. Nothing was done.
    No,
    /// It was carried out; provisional until the acknowledgements that it added have come.
    Yes,
    /// It was carried out, and the answer comes later. Until the acknowledgements have come, that
    /// is provisional too. An error says that another member may own the slot.
    Later(L),
}

fonn_base::label! {
    /// What happens on connections, for the counters.
    pub enum Event: "event" {
        /// A connection was accepted.
        Accepted = "accepted",
        /// A connection was closed at once because there were too many.
        Rejected = "rejected",
        /// A connection was cut off because its client stopped in a request, or did not read.
        Stalled = "stalled",
        /// Serving a connection panicked.
        Panicked = "panicked",
        /// A client broke its protocol.
        ProtocolError = "protocol_error",
        /// Bytes were received.
        BytesRead = "bytes_read",
        /// Bytes were sent.
        BytesWritten = "bytes_written",
        /// A value was too large to be received.
        TooLarge = "too_large",
        /// A request was refused because there is no memory for it now, or a queue is full.
        Busy = "busy",
        /// A write that was promised found no room.
        OutOfSpace = "out_of_space",
        /// A write that was promised failed.
        Unavailable = "unavailable",
        /// A write was refused because its user may only read.
        ReadOnly = "read_only",
        /// A request was refused for want of a login.
        AuthRequired = "auth_required",
        /// An attempt to log in was refused.
        AuthFailed = "auth_failed",
    }
}

impl Event {
    /// That a write failed which was promised.
    pub(crate) fn of_promise(failure: Failure) -> Self {
        match failure {
            Failure::Busy => Self::Busy,
            Failure::OutOfSpace => Self::OutOfSpace,
            _ => Self::Unavailable,
        }
    }
}

/// The writes of one batch of requests that are not durable yet. Their replies are composed
/// already, and are sent when [`Acks::wait`] returned.
pub trait Acks: Default + Send + Sync {
    /// How many writes wait.
    fn count(&self) -> usize;

    /// Waits for all of them; tells which failed, by the count at which they were added. Afterwards
    /// there are none.
    ///
    /// # Cancel safety
    /// The writes go on. What became of them is not known any more.
    fn wait(&mut self) -> impl Future<Output = Vec<(usize, Failure)>> + Send;
}

/// For services whose outcomes are final.
#[derive(Debug, Default)]
pub struct NoAcks;

impl Acks for NoAcks {
    fn count(&self) -> usize {
        0
    }

    async fn wait(&mut self) -> Vec<(usize, Failure)> {
        Vec::new()
    }
}

/// An answer that came later.
pub trait Answered: Send + Sync {
    /// What it says.
    fn outcome(&self) -> Outcome<'_>;
}

/// An answer that comes later, or why the command has to be executed again.
pub trait Later: Future + Unpin + Send {
    /// As `poll`, before the turn of the answer: others go to the client first. It does not give
    /// the answer up because it is late.
    fn poll_ahead(&mut self, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(self).poll(cx)
    }
}

/// Executes the commands of clients.
///
/// The server is compiled for each service, so that nothing of this is called through a pointer.
pub trait Service: Send + Sync + Sized + 'static {
    /// The time that the reads of a batch are judged by.
    type Moment: Copy + Send + Sync;
    /// Writes that are not durable yet.
    type Acks: Acks;
    /// An answer that comes later, or why the command has to be executed again. Dropped when the
    /// client has gone.
    type Later: Later<Output = Result<Self::Answer, Self::Again>>;
    /// An answer that came later.
    type Answer: Answered;
    /// What is to be known for another try.
    type Again: Send;
    /// What the memory that clients hold is counted against.
    type Budget: Budget;

    /// Longest value in bytes that is received.
    fn value_len_max(&self) -> usize;

    /// The memory that clients may hold.
    fn budget(&self) -> &Self::Budget;

    /// Counts an event, or its bytes.
    fn count(&self, event: Event, n: u64);

    /// The time for [`Service::answer_hit`].
    fn moment(&self) -> Self::Moment;

    /// A number for what the next request looks up, if [`Service::expect`] makes use of it.
    #[inline]
    fn foresee(&self, _space: Space, _key: &[u8]) -> Option<u64> {
        None
    }

    /// Tells which lookups come next: a hint, for what takes less time for several of them
    /// together.
    fn expect(&self, _lookups: &[u64]) {}

    /// Answers a read that can be answered on the spot: `word` gets the hit and puts it into words.
    /// Returns false otherwise; nothing was done then. `scratch` is for values that have to be
    /// decoded.
    #[inline]
    fn answer_hit(
        &self,
        _space: Space,
        _get: &Get<'_>,
        _moment: Self::Moment,
        _scratch: &mut Vec<u8>,
        _word: impl FnOnce(&Outcome<'_>),
    ) -> bool {
        false
    }

    /// Carries out a store on the spot, if that is possible: `word` gets the outcome and puts it
    /// into words. Returns false otherwise; nothing was done then. The outcome is provisional until
    /// the acknowledgements that were added have come.
    fn answer_store(
        &self,
        _job: &Job<'_>,
        _moment: Self::Moment,
        _acks: &mut Self::Acks,
        _word: impl FnOnce(&Outcome<'_>),
    ) -> bool {
        false
    }

    /// Counts reads that [`Service::answer_hit`] answered.
    fn count_hits(&self, _hits: u64) {}

    /// Executes a command. The outcome may borrow from `scratch`.
    fn execute<'s>(
        &self,
        job: &Job<'_>,
        acks: &mut Self::Acks,
        scratch: &'s mut Vec<u8>,
    ) -> impl Future<Output = Execution<'s, Self::Later>> + Send;

    /// Executes a command that was begun and came to nothing, as [`Service::Later`] said.
    fn again(&self, job: &Job<'_>, again: Self::Again)
    -> impl Future<Output = Self::Answer> + Send;

    /// Answers the hello of another member or a router, which connects from `from`: what we say of
    /// ourselves, and whether we talk to it; [`Rejection::NotAllowed`] does not count for a peer
    /// that has shown a certificate of an authority that we trust. A service that does not say
    /// otherwise talks to none.
    fn greet(&self, _hello: &Hello, _from: &str) -> (Hello, Result<(), Rejection>) {
        (Hello::new("", "", 0), Err(Rejection::NotAllowed))
    }

    /// The epoch of the cluster's map that the service goes by.
    fn epoch(&self) -> u64 {
        0
    }

    /// Whether the service executes the commands on a slot that another member sends: all, or reads
    /// only.
    fn serves(&self, _slot: u16, _is_write: bool) -> bool {
        true
    }

    /// Carries out a store that another process sent, if that is possible on the spot: `word` gets
    /// the outcome, unless it comes later.
    fn store_at_once(
        &self,
        _job: &Job<'_>,
        _moment: Self::Moment,
        _acks: &mut Self::Acks,
        _word: impl FnOnce(&Outcome<'_>),
    ) -> Stored<Self::Later> {
        Stored::No
    }

    /// Takes an entry of another member ([`peer::Request::Put`]), if it is newer than what is known
    /// of its key and that is possible on the spot. Provisional until the acknowledgements that it
    /// added have come. Returns false otherwise; nothing was done then.
    fn take_at_once(&self, _entry: &peer::Entry<'_>, _acks: &mut Self::Acks) -> bool {
        false
    }

    /// Answers what only members ask of each other ([`peer::Request::Put`],
    /// [`peer::Request::Fetch`], [`peer::Request::FetchSlots`], [`peer::Request::Flush`] …): gives
    /// the reply to `word`, once. It is provisional until the acknowledgements that were added have
    /// come.
    fn execute_peer(
        &self,
        _space: Space,
        _request: &peer::Request<'_>,
        _acks: &mut Self::Acks,
        word: impl FnOnce(&Reply<'_>) + Send,
    ) -> impl Future<Output = ()> + Send {
        word(&Reply::Refused(peer::Refusal::Unsupported));
        std::future::ready(())
    }

    /// Executes a command about many keys or about the server, after all that came before it.
    ///
    /// # Cancel safety
    /// Dropped when the client has gone, if the command [ends with its
    /// client](ServerCommand::ends_with_client).
    fn execute_server(
        &self,
        server: &Shared<Self>,
        client: Client<'_>,
        command: &ServerCommand<'_>,
        acks: &mut Self::Acks,
    ) -> impl Future<Output = ServerOutcome> + Send;
}

/// Has a service execute a command that came on no connection, and waits until its outcome is
/// final.
pub async fn carry_out<S: Service>(service: &S, job: &Job<'_>) -> Outcome<'static> {
    let (mut acks, mut scratch) = (S::Acks::default(), Vec::new());
    let outcome = match service.execute(job, &mut acks, &mut scratch).await {
        Execution::Done(outcome) => outcome.into_owned(),
        Execution::Later(later) => {
            let answer = match later.await {
                Ok(answer) => answer,
                Err(again) => service.again(job, again).await,
            };
            answer.outcome().into_owned()
        }
        // A client's command is forwarded instead.
        Execution::WrongOwner => Outcome::Failed(Failure::Unavailable),
    };
    if acks.count() > 0
        && let Some((_, failure)) = acks.wait().await.first()
    {
        return Outcome::Failed(*failure);
    }
    outcome
}
