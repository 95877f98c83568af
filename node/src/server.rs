//! The client side of a node: what the socket server of `fonn_server` asks of the engine, and of
//! the other members.

mod cluster;
mod commands;
mod keys;
mod live;
mod peer;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::sync::Arc;

use fonn_auth::Authenticator;
use fonn_base::entry::Space;
use fonn_forward::{Again, Came};
use fonn_proto::peer::hello::{Hello, Rejection, cluster_text};
use fonn_proto::peer::{Entry, Reply, Request};
use fonn_proto::request::ServerOutcome;
use fonn_proto::{
    Base, Command, Failure, Get, Moved, Outcome, Redirects, ServerCommand, placement,
};
use fonn_server::{Budget, Client, Event, Execution, Job, Service, Stored};

use crate::engine::{Acks, Engine, Moment};
use crate::replication::{Flush, Later, PageAnswer, Replication};
use crate::stats::Counter;
use fonn_membership::view::Views;

pub(crate) use self::live::RefusedSetting;
pub use self::live::{LiveSettings, SettingsChange};
pub use self::peer::Identity;

/// What all connections of a node share.
pub type Shared = fonn_server::Shared<Tiers>;

/// The running server of a node.
pub type Server = fonn_server::Server<Tiers>;

/// What clients of a node are served from: its tiers, and those of the other members.
pub struct Tiers {
    /// Its own.
    pub engine: Arc<Engine>,
    /// Its part in a cluster, if it is in one.
    pub replication: Option<Arc<Replication>>,
    /// What clients are told of the cluster, if it is in one.
    pub views: Option<Arc<Views>>,
    /// Its member id.
    pub identity: Identity,
    /// Where changes of settings are handed in, if they can be.
    pub live: Option<LiveSettings>,
    /// The names of writers, if there are users.
    pub users: Option<Arc<Authenticator>>,
}

impl Tiers {
    /// Those of a node that is in no cluster.
    #[must_use]
    pub fn alone(engine: Arc<Engine>) -> Arc<Self> {
        Arc::new(Self {
            engine,
            replication: None,
            views: None,
            identity: Identity::default(),
            live: None,
            users: None,
        })
    }

    /// Whether clients may come here for a key: always, outside of a cluster.
    #[must_use]
    pub fn owns(&self, key: &[u8]) -> bool {
        let Some(views) = &self.views else {
            return true;
        };
        let view = views.current();
        let owners = view.owners(placement::slot(key));
        owners.is_some_and(|owners| owners.positions().contains(&view.me()))
    }

    /// Whether this node decides about a key: always, outside of a cluster.
    #[must_use]
    pub fn is_primary_of(&self, key: &[u8]) -> bool {
        let slot = placement::slot(key);
        self.replication
            .as_ref()
            .is_none_or(|it| it.is_primary(slot))
    }

    /// Where a client that goes to the owners of keys itself has to go.
    fn moved(&self, job: &Job<'_>) -> Option<Moved> {
        if job.redirects == Redirects::Never {
            return None;
        }
        let slot = placement::slot(job.command.key());
        let replication = self
            .replication
            .as_ref()
            .filter(|it| !it.is_primary(slot))?;
        // A map that is just coming may say that the slot is here.
        let views = self.views.as_ref().filter(|_| replication.epoch() > 0)?;
        views.current().moved(slot, job.redirects)
    }
}

impl fonn_server::Acks for Acks {
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

    fn try_hold(&self, bytes: usize) -> bool {
        self.try_receive(bytes)
    }

    fn hold(&self, bytes: usize) {
        self.ram().reserve(bytes);
    }

    fn let_go(&self, bytes: usize) {
        self.ram().release(bytes);
    }
}

impl Service for Tiers {
    type Moment = Moment;
    type Acks = Acks;
    type Later = Later;
    type Answer = Came;
    type Again = Again;
    type Budget = Engine;

    fn value_len_max(&self) -> usize {
        self.engine.value_len_max()
    }

    fn budget(&self) -> &Engine {
        &self.engine
    }

    #[inline]
    fn count(&self, event: Event, n: u64) {
        self.engine.stats().add(Counter::from(event), n);
    }

    #[inline]
    fn moment(&self) -> Moment {
        self.engine.moment()
    }

    #[inline]
    fn foresee(&self, space: Space, key: &[u8]) -> Option<u64> {
        self.engine.foresee(space, key)
    }

    fn expect(&self, lookups: &[u64]) {
        self.engine.expect(lookups);
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
        if let Some(replication) = &self.replication
            && !replication.answers(get.key)
        {
            return false;
        }
        self.engine.answer_hit(space, get, moment, scratch, word)
    }

    #[inline]
    fn answer_store(
        &self,
        job: &Job<'_>,
        moment: Moment,
        acks: &mut Acks,
        word: impl FnOnce(&Outcome<'_>),
    ) -> bool {
        // With other owners it is not done by storing it here.
        if self.replication.is_some() {
            return false;
        }
        self.engine.answer_store(job, moment, acks, word)
    }

    fn store_at_once(
        &self,
        job: &Job<'_>,
        moment: Moment,
        acks: &mut Acks,
        word: impl FnOnce(&Outcome<'_>),
    ) -> Stored<Later> {
        match &self.replication {
            Some(replication) => replication.store_at_once(&self.engine, job, moment, acks, word),
            None => Stored::No,
        }
    }

    fn take_at_once(&self, entry: &Entry<'_>, acks: &mut Acks) -> bool {
        let replication = self.replication.as_ref();
        replication.is_some_and(|it| it.take_at_once(&self.engine, entry, acks))
    }

    #[inline]
    fn count_hits(&self, hits: u64) {
        self.engine.count_hits(hits);
    }

    async fn execute<'s>(
        &self,
        job: &Job<'_>,
        acks: &mut Acks,
        scratch: &'s mut Vec<u8>,
    ) -> Execution<'s, Later> {
        if let Some(moved) = self.moved(job) {
            return Execution::Done(Outcome::Moved(moved));
        }
        match &self.replication {
            None => Execution::Done(execute_here(&self.engine, job, acks, scratch).await),
            // Boxed: connections of nodes that are alone do not pay for it with memory.
            Some(replication) => {
                Box::pin(replication.execute(&self.engine, job, acks, scratch)).await
            }
        }
    }

    async fn again(&self, job: &Job<'_>, again: Again) -> Came {
        match &self.replication {
            Some(replication) => {
                Box::pin(replication.execute_again(&self.engine, job, again)).await
            }
            // A node that is alone answers at once.
            None => Came::Known(Outcome::Failed(Failure::Unavailable)),
        }
    }

    fn greet(&self, _: &Hello, from: &str) -> (Hello, Result<(), Rejection>) {
        let cluster = self.replication.as_ref().map_or(0, |it| it.cluster());
        let cluster = cluster_text(cluster);
        peer::greet(&self.identity, &cluster, self.engine.value_len_max(), from)
    }

    fn epoch(&self) -> u64 {
        self.replication
            .as_ref()
            .map_or(0, |replication| replication.epoch())
    }

    fn serves(&self, slot: u16, is_write: bool) -> bool {
        let replication = self.replication.as_ref();
        replication.is_none_or(|replication| replication.serves(slot, is_write))
    }

    async fn execute_peer(
        &self,
        space: Space,
        request: &Request<'_>,
        acks: &mut Acks,
        word: impl FnOnce(&Reply<'_>) + Send,
    ) {
        match (request, &self.replication) {
            (Request::Put { entry, again }, Some(replication)) => {
                match replication.take(&self.engine, entry, *again, acks).await {
                    None => word(&Reply::WrongOwner),
                    Some(Ok(true)) => word(&Reply::Applied),
                    Some(Ok(false)) => word(&Reply::NotNewer),
                    Some(Err(error)) => word(&peer::refused(error)),
                }
            }
            (
                Request::FetchSlots {
                    slots,
                    after,
                    cursor,
                    len_max,
                },
                Some(replication),
            ) => {
                let len_max = (*len_max as usize).min(peer::PAGE_LEN_MAX);
                let page = replication.page(&self.engine, slots, *after, (cursor, len_max));
                match page.await {
                    Ok(PageAnswer::Page(found)) => {
                        word(&Reply::Page(found.entries.page(&found.next)));
                    }
                    Ok(PageAnswer::Incomplete(slots)) => word(&Reply::Incomplete(slots)),
                    Ok(PageAnswer::NotPrimary) => word(&Reply::WrongOwner),
                    Err(error) => word(&peer::refused(error)),
                }
            }
            (Request::Writers { names }, _) => {
                if let Some(users) = &self.users {
                    names.iter().for_each(|name| users.writers().learn(name));
                }
                word(&Reply::Applied);
            }
            (Request::Flushes, _) => {
                word(&Reply::Flushes(self.engine.known_flushes()));
            }
            (
                Request::Flush {
                    all_databases,
                    cutoff,
                    purge,
                },
                Some(replication),
            ) => {
                let flush = Flush {
                    space,
                    all_databases: *all_databases,
                    purge: *purge,
                };
                match replication.flush_own(&self.engine, &flush, *cutoff).await {
                    Ok(cutoff) => word(&Reply::Version(cutoff)),
                    Err(Failure::Busy) => word(&Reply::WrongOwner),
                    Err(failure) => word(&Reply::Outcome(Outcome::Failed(failure))),
                }
            }
            (Request::Copy { get }, Some(replication)) => {
                let read = replication.read_copy(&self.engine, space, get, acks, word);
                read.await;
            }
            _ => peer::execute(&self.engine, space, request, word).await,
        }
    }

    async fn execute_server(
        &self,
        server: &Shared,
        client: Client<'_>,
        command: &ServerCommand<'_>,
        acks: &mut Acks,
    ) -> ServerOutcome {
        match &self.replication {
            Some(replication) => cluster::execute(server, replication, client, command, acks).await,
            None => commands::execute(server, client, command, acks).await,
        }
    }
}

/// Executes a command on the tiers of this node.
pub(crate) async fn execute_here<'s>(
    engine: &Engine,
    job: &Job<'_>,
    acks: &mut Acks,
    scratch: &'s mut Vec<u8>,
) -> Outcome<'s> {
    if let (Some(base), Command::Get(get)) = (job.base, job.command) {
        return engine.read_through(job, get, base, acks, scratch).await;
    }
    engine.execute(job, acks, scratch).await
}

impl Engine {
    /// Reads an entry of a namespace that lies over `base`. What the read would change besides is
    /// changed in the upper one alone.
    async fn read_through<'s>(
        &self,
        job: &Job<'_>,
        get: &Get<'_>,
        base: Base,
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
            ..Get::new(base.key(get.key))
        });
        for (space, command) in [(job.space, &own), (base.space, &plain)] {
            let read = Job {
                space,
                command,
                source: None,
                base: None,
                routed_by: None,
                redirects: job.redirects,
                writer: job.writer,
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
