//! What a router answers: commands by the owners of their keys, the rest from what all members say.

use std::sync::Arc;

use fonn_base::metrics::Label as _;
use fonn_base::metrics::striped::Counters;
use fonn_forward::{Again, Came, Event, Events, Forwarded, Forwarder, Map};
use fonn_proto::ServerCommand;
use fonn_proto::request::ServerOutcome;
use fonn_server::{Client, Execution, FixedBudget, Job, NoAcks, Service};

use crate::address::Address;
use crate::check::Checks;
use crate::gather;

/// What all connections of a router share.
pub type Shared = fonn_server::Shared<Router>;

/// The running server of a router.
pub type Server = fonn_server::Server<Router>;

/// The service of a router.
#[derive(Debug)]
pub struct Router {
    forwarder: Forwarder,
    address: Address,
    checks: Checks,
    connections: Counters<{ fonn_server::Event::ALL.len() }>,
    budget: FixedBudget,
    value_len_max: usize,
}

impl Router {
    /// A router that holds up to `budget_bytes` of requests and replies for its clients.
    #[must_use]
    pub fn new(
        forwarder: Forwarder,
        address: Address,
        budget_bytes: usize,
        value_len_max: usize,
    ) -> Arc<Self> {
        Arc::new(Self {
            forwarder,
            address,
            checks: Checks::default(),
            connections: Counters::default(),
            budget: FixedBudget::new(budget_bytes),
            value_len_max,
        })
    }

    /// The sender of commands to members.
    #[must_use]
    pub fn forwarder(&self) -> &Forwarder {
        &self.forwarder
    }

    /// Where clients reach it.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The map it goes by.
    #[must_use]
    pub fn map(&self) -> &Map {
        self.forwarder.upstreams().map()
    }

    /// How often an event happened on connections of clients, or its bytes.
    #[must_use]
    pub fn connection_total(&self, event: fonn_server::Event) -> u64 {
        self.connections.total(event as usize)
    }

    /// What happened to commands.
    #[must_use]
    pub fn events(&self) -> &Events {
        self.forwarder.events()
    }
}

impl Service for Router {
    type Moment = ();
    type Acks = NoAcks;
    type Later = Forwarded;
    type Answer = Came;
    type Again = Again;
    type Budget = FixedBudget;

    fn value_len_max(&self) -> usize {
        self.value_len_max
    }

    fn budget(&self) -> &FixedBudget {
        &self.budget
    }

    #[inline]
    fn count(&self, event: fonn_server::Event, n: u64) {
        self.connections.add(event as usize, n);
    }

    #[inline]
    fn moment(&self) {}

    async fn execute<'s>(
        &self,
        job: &Job<'_>,
        _: &mut NoAcks,
        _: &'s mut Vec<u8>,
    ) -> Execution<'s, Forwarded> {
        if let Some(outcome) = self.checks.execute(job.space, job.command) {
            self.events().count(Event::Local);
            return Execution::Done(outcome);
        }
        Execution::Later(self.forwarder.begin(job))
    }

    async fn again(&self, job: &Job<'_>, again: Again) -> Came {
        self.forwarder.again(job, again).await
    }

    async fn execute_server(
        &self,
        server: &Shared,
        client: Client<'_>,
        command: &ServerCommand<'_>,
        _: &mut NoAcks,
    ) -> ServerOutcome {
        gather::execute(server, client, command).await
    }
}
