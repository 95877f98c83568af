//! A request that may have to wait, with all that it needs.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fonn_proto::peer::{Envelope, Head, Refusal, Reply, Request};
use fonn_proto::request::ServerOutcome;
use fonn_proto::{Failure, Out, Outcome, ServerCommand, Space};

use super::keep;
use crate::Shared;
use crate::input::Chunk;
use crate::registry::Connection;
use crate::service::{Acks as _, Answered as _, Client, Event, Execution, Job, Service};

/// What remains to be done for a request.
pub(super) type Work<S> = Pin<Box<dyn Future<Output = Done<S>> + Send>>;

/// How far a piece of work got.
pub(super) enum Done<S: Service> {
    /// It was executed. Its reply waits for acknowledgements, if there are any.
    Executed(Executed<S>),
    /// It is done.
    Answered {
        /// The reply.
        reply: Out,
        /// Bytes that the request held.
        bytes: usize,
    },
}

/// A request that was executed.
pub(super) struct Executed<S: Service> {
    /// The hash of its key, if others may wait for it.
    pub(super) key: Option<u64>,
    reply: Out,
    envelope: Envelope,
    acks: S::Acks,
    bytes: usize,
}

/// How long the caller waits for the answer.
fn budget(head: &Head) -> Option<Duration> {
    let budget = Duration::from_millis(head.envelope.budget_ms.into());
    (!budget.is_zero()).then_some(budget)
}

/// Whether the caller has given a request up that came at `received`: what the caller was told
/// since may be newer.
pub(super) fn is_overdue(head: &Head, received: Instant) -> bool {
    budget(head).is_some_and(|budget| received.elapsed() > budget)
}

/// What remains to be done for a store that was carried out, and whose answer comes later. Until
/// then it holds `bytes`.
pub(super) fn later<S: Service>(
    shared: &Arc<Shared<S>>,
    (later, mut acks): (S::Later, S::Acks),
    bytes: usize,
    envelope: Envelope,
    body_len_max: u32,
) -> Work<S> {
    let shared = Arc::clone(shared);
    Box::pin(async move {
        let mut reply = Out::new();
        let answer = later.await;
        match (answer, acks.wait().await.first()) {
            (_, Some((_, failure))) => {
                shared.service.count(Event::of_promise(*failure), 1);
                failed(*failure, envelope, &mut reply);
            }
            (Ok(answer), None) => {
                let answer = Reply::Outcome(answer.outcome());
                encode(&answer, envelope, body_len_max, &mut reply);
            }
            (Err(_), None) => encode(&Reply::WrongOwner, envelope, body_len_max, &mut reply),
        }
        Done::Answered { reply, bytes }
    })
}

/// A request, whole.
pub(super) struct Owned {
    head: Head,
    body: Bytes,
    /// When it came.
    received: Instant,
}

impl Owned {
    /// Keeps a request. A large one that has a chunk to itself is not copied.
    pub(super) fn new(head: Head, body: &[u8], chunk: &Chunk, received: Instant) -> Self {
        Self {
            head,
            body: keep(chunk, body),
            received,
        }
    }

    /// As [`is_overdue`].
    fn is_overdue(&self) -> bool {
        is_overdue(&self.head, self.received)
    }

    /// How much longer the caller waits.
    fn time_left(&self) -> Option<Duration> {
        budget(&self.head).map(|budget| budget.saturating_sub(self.received.elapsed()))
    }

    /// Whether it was sent by an older map than the one gone by here.
    fn is_behind<S: Service>(&self, shared: &Shared<S>) -> bool {
        self.head.envelope.epoch < shared.service.epoch()
    }

    /// Bytes that it holds.
    pub(super) fn bytes(&self) -> usize {
        self.body.len()
    }

    /// What it takes to execute it.
    pub(super) fn work<S: Service>(
        self,
        shared: &Arc<Shared<S>>,
        connection: &Arc<Connection>,
        body_len_max: u32,
        key: Option<u64>,
    ) -> Work<S> {
        let (shared, connection) = (Arc::clone(shared), Arc::clone(connection));
        Box::pin(async move {
            let mut reply = Out::new();
            let mut acks = S::Acks::default();
            let envelope = self.envelope(&shared);
            self.execute(&shared, &connection, &mut acks, |worded| {
                let envelope = match worded {
                    // Its sender may have been replaced before it was taken.
                    Reply::Applied | Reply::NotNewer => self.envelope(&shared),
                    // The caller learns what was known by this map at least.
                    _ => envelope,
                };
                encode(worded, envelope, body_len_max, &mut reply);
            })
            .await;
            Done::Executed(Executed {
                key,
                reply,
                envelope,
                acks,
                bytes: self.bytes(),
            })
        })
    }

    fn envelope<S: Service>(&self, shared: &Shared<S>) -> Envelope {
        self.head.envelope.reply(shared.service.epoch())
    }

    /// Executes the request; `word` gets its reply.
    async fn execute<S: Service>(
        &self,
        shared: &Shared<S>,
        connection: &Connection,
        acks: &mut S::Acks,
        word: impl FnOnce(&Reply<'_>) + Send,
    ) {
        let service = &shared.service;
        let space = Space(self.head.envelope.space);
        match Request::decode(&self.head, &self.body, Some(&self.body)) {
            Ok(Request::Command(_)) if self.is_overdue() => {
                service.count(Event::Busy, 1);
                word(&Reply::Outcome(Outcome::Failed(Failure::Busy)));
            }
            Ok(Request::Server(_)) if self.is_overdue() => {
                service.count(Event::Busy, 1);
                word(&Reply::Server(ServerOutcome::Failed(Failure::Busy)));
            }
            Ok(Request::Command(command)) => {
                let job = Job {
                    source: Some(&self.body),
                    routed_by: Some(self.head.envelope.epoch),
                    writer: self.head.envelope.writer,
                    // Members carry out for each other what clients are not redirected for.
                    ..Job::own(space, &command)
                };
                let mut scratch = Vec::new();
                match service.execute(&job, acks, &mut scratch).await {
                    Execution::Done(outcome) => word(&Reply::Outcome(outcome)),
                    Execution::WrongOwner => word(&Reply::WrongOwner),
                    Execution::Later(later) => {
                        let answer = match later.await {
                            Ok(answer) => answer,
                            Err(again) => service.again(&job, again).await,
                        };
                        word(&Reply::Outcome(answer.outcome()));
                    }
                }
            }
            Ok(Request::Flush { .. }) if self.is_overdue() => {
                service.count(Event::Busy, 1);
                word(&Reply::Outcome(Outcome::Failed(Failure::Busy)));
            }
            // A caller that gave it up by a newer map may have done it since without this member:
            // what was written then has to stay.
            Ok(Request::Flush { .. } | Request::Server(ServerCommand::Flush { .. }))
                if self.is_behind(shared) =>
            {
                word(&Reply::WrongOwner);
            }
            // A member with an older map may not have asked all members: one that came
            // since, and that was told by this member before, would never know.
            Ok(request @ Request::Flush { .. }) => {
                let word = |reply: &Reply<'_>| match self.is_behind(shared) {
                    true => word(&Reply::WrongOwner),
                    false => word(reply),
                };
                service.execute_peer(space, &request, acks, word).await;
            }
            Ok(Request::Server(command)) => {
                let is_flush = matches!(command, ServerCommand::Flush { .. });
                let client = Client {
                    id: connection.id,
                    peer: &connection.peer,
                    // Only clients ask about addresses.
                    local: None,
                    space,
                    routed_by: Some(self.head.envelope.epoch),
                    is_confined: false,
                    base: None,
                    writer: self.head.envelope.writer,
                };
                let ends_with_client = command.ends_with_client();
                let executed = service.execute_server(shared, client, &command, acks);
                let outcome = match self.time_left().filter(|_| ends_with_client) {
                    None => executed.await,
                    // The caller waits no longer.
                    Some(left) => match tokio::time::timeout(left, executed).await {
                        Ok(outcome) => outcome,
                        Err(_) => {
                            service.count(Event::Busy, 1);
                            // A write may have been carried out.
                            ServerOutcome::Failed(Failure::Unavailable)
                        }
                    },
                };
                match is_flush && self.is_behind(shared) {
                    true => word(&Reply::WrongOwner),
                    false => word(&Reply::Server(outcome)),
                }
            }
            Ok(Request::Ping) => word(&Reply::Pong),
            Ok(request) => service.execute_peer(space, &request, acks, word).await,
            Err(error) => word(&Reply::Refused(error.into())),
        }
    }
}

impl<S: Service> Executed<S> {
    /// A store that was carried out in passing.
    pub(super) fn stored(reply: Out, envelope: Envelope, acks: S::Acks) -> Self {
        Self {
            key: None,
            reply,
            envelope,
            acks,
            bytes: 0,
        }
    }

    /// Its reply, or what has to be waited for until it may be sent.
    pub(super) fn durable(self, shared: &Arc<Shared<S>>) -> Result<Done<S>, Work<S>> {
        let Self {
            reply,
            envelope,
            mut acks,
            bytes,
            ..
        } = self;
        if acks.count() == 0 {
            return Ok(Done::Answered { reply, bytes });
        }
        let shared = Arc::clone(shared);
        Err(Box::pin(async move {
            let failures = acks.wait().await;
            let reply = match failures.first() {
                None => reply,
                Some((_, failure)) => {
                    shared.service.count(Event::of_promise(*failure), 1);
                    let mut reply = Out::new();
                    failed(*failure, envelope, &mut reply);
                    reply
                }
            };
            Done::Answered { reply, bytes }
        }))
    }
}

pub(super) fn failed(failure: Failure, envelope: Envelope, out: &mut Out) {
    let reply = Reply::Outcome(Outcome::Failed(failure));
    encode(&reply, envelope, u32::MAX, out);
}

/// Writes a reply. One that is longer than the peer takes is refused instead: it asks again where
/// it takes more.
pub(super) fn encode(reply: &Reply<'_>, envelope: Envelope, body_len_max: u32, out: &mut Out) {
    if reply.encode(envelope, body_len_max, out).is_err() {
        let refused = Reply::Refused(Refusal::TooLong).encode(envelope, u32::MAX, out);
        debug_assert!(refused.is_ok(), "it has no body");
    }
}
