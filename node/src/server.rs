//! The client side of a node: what the socket server of `fonn_runtime` asks of the engine.

mod commands;
mod peer;
mod slots;
#[cfg(test)]
mod tests;

use std::future::Future;

use fonn_proto::peer::hello::{Hello, Rejection};
use fonn_proto::peer::{Reply, Request};
use fonn_proto::request::ServerOutcome;
use fonn_proto::{Command, Failure, Get, Outcome, ServerCommand};
use fonn_runtime::serve::{self, Budget, Client, Event, Execution, Job, Never, Service};

use crate::engine::{Acks, Engine, Moment};
use crate::entry::Space;
use crate::stats::Counter;

pub use self::peer::Identity;

/// What all connections of a node share.
pub type Shared = serve::Shared<Engine>;

/// The running server of a node.
pub type Server = serve::Server<Engine>;

impl serve::Acks for Acks {
    fn count(&self) -> usize {
        Self::count(self)
    }

    fn wait(&mut self) -> impl Future<Output = Vec<(usize, Failure)>> + Send {
        Self::wait(self)
    }
}

impl Budget for Engine {
    fn bytes_max(&self) -> usize {
        self.inflight_max()
    }

    fn reserved(&self) -> usize {
        self.inflight()
    }

    fn reserve(&self, bytes: usize) -> bool {
        self.reserve_inflight(bytes).is_ok()
    }

    fn release(&self, bytes: usize) {
        self.release_inflight(bytes);
    }

    fn hold(&self, bytes: usize) {
        self.ram().reserve(bytes);
    }

    fn let_go(&self, bytes: usize) {
        self.ram().release(bytes);
    }
}

impl Service for Engine {
    type Moment = Moment;
    type Acks = Acks;
    type Later = Never;
    type Answer = Never;
    type Again = Never;
    type Budget = Self;

    const ANSWERS_LATER: bool = false;

    fn value_len_max(&self) -> usize {
        Self::value_len_max(self)
    }

    fn budget(&self) -> &Self {
        self
    }

    #[inline]
    fn count(&self, event: Event, n: u64) {
        self.stats().add(Counter::from(event), n);
    }

    #[inline]
    fn moment(&self) -> Moment {
        Self::moment(self)
    }

    #[inline]
    fn answer_hit(
        &self,
        space: Space,
        get: &Get<'_>,
        moment: Moment,
        scratch: &mut Vec<u8>,
        word: impl FnOnce(&Outcome<'_>),
    ) -> bool {
        Self::answer_hit(self, space, get, moment, scratch, word)
    }

    #[inline]
    fn count_hits(&self, hits: u64) {
        Self::count_hits(self, hits);
    }

    async fn execute<'s>(
        &self,
        job: &Job<'_>,
        acks: &mut Acks,
        scratch: &'s mut Vec<u8>,
    ) -> Execution<'s, Never> {
        if let (Some(base), Command::Get(get)) = (job.base, job.command) {
            return Execution::Done(self.read_through(job, get, base, acks, scratch).await);
        }
        Execution::Done(Self::execute(self, job, acks, scratch).await)
    }

    async fn again(&self, _: &Job<'_>, again: Never) -> Never {
        again.never()
    }

    fn greet(&self, _: &Hello, from: &str) -> (Hello, Result<(), Rejection>) {
        peer::greet(self, from)
    }

    async fn execute_peer(
        &self,
        space: Space,
        request: &Request<'_>,
        acks: &mut Acks,
        word: impl FnOnce(&Reply<'_>) + Send,
    ) {
        peer::execute(self, space, request, acks, word).await;
    }

    async fn execute_server(
        &self,
        server: &Shared,
        client: Client<'_>,
        command: &ServerCommand<'_>,
        acks: &mut Acks,
    ) -> ServerOutcome {
        commands::execute(server, client, command, acks).await
    }
}

impl Engine {
    /// Reads an entry of a namespace that lies over `base`. What the read would change besides is changed
    /// in the upper one alone.
    async fn read_through<'s>(
        &self,
        job: &Job<'_>,
        get: &Get<'_>,
        base: Space,
        acks: &mut Acks,
        scratch: &'s mut Vec<u8>,
    ) -> Outcome<'s> {
        let own = Command::Get(Get {
            vivify: None,
            ..get.clone()
        });
        let plain = Command::Get(Get {
            want_value: get.want_value,
            bump: get.bump,
            ..Get::new(get.key)
        });
        for (space, command) in [(job.space, &own), (base, &plain)] {
            let read = Job {
                space,
                command,
                source: None,
                base: None,
                redirects: job.redirects,
            };
            let outcome = Self::execute(self, &read, acks, scratch).await;
            if !matches!(outcome, Outcome::Miss) {
                return outcome.into_owned();
            }
        }
        match get.vivify {
            None => Outcome::Miss,
            Some(_) => Self::execute(self, job, acks, scratch).await,
        }
    }
}
