//! Cluster membership: the members and the owners of slots. Raft agrees on these and on nothing
//! else.
//!
//! A [`Cluster`] is one member's part in it. It keeps the last [`map::Map`] that the members agreed
//! on, and follows the next. Without a quorum the map stays as it is, and only changes wait. The
//! parts are:
//!
//! - the state and its changes ([`state`]), and the map that is made from it ([`map`]);
//! - raft (openraft 0.9, nowhere outside of this module) with its log, vote and snapshot in a file;
//! - pure decisions: which members are up (`detector`), which vote (`voters`), and when to stand
//!   for election (`election`);
//! - the tasks that act on these.
//!
//! Invariants:
//! - A participant that voted or acknowledged an entry remembers it, or does not come back under
//!   the same raft id.
//! - A member that is cut off raises no term. If it is the leader, it declares no member down.
//! - Every call of another member has a deadline; every message has a bound.

mod announce;
mod belonging;
mod campaign;
mod detector;
mod election;
mod enter;
mod events;
mod file_error;
mod health;
mod identity;
mod journal;
mod lease;
mod listen;
mod log_store;
pub mod map;
pub mod member;
pub mod minor_version;
mod network;
mod participant;
mod peers;
pub mod placing;
mod reconcile;
mod reports;
mod service;
#[cfg(test)]
mod simulation;
pub mod state;
mod state_machine;
#[cfg(test)]
mod storage_tests;
#[cfg(any(test, feature = "test-util"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod types;
pub mod users;
pub mod view;
mod voters;

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use openraft::SnapshotPolicy;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::Routes;
use tonic::transport::Server;

use fonn_auth::tls::Tls;
use fonn_base::boxed::BoxFuture;
use fonn_base::device::DeviceWatch;
use fonn_base::events::Events;
use fonn_base::hlc::{Hlc, VersionRange};
use fonn_base::listen::cannot_listen;
use fonn_base::pool::{BlockingPool, PoolError, run_blocking};
use fonn_base::random::SplitMix64;
use fonn_base::tasks::{OnShutdown, Tasks};
use fonn_cold_tier::ColdTier;
use fonn_proto::grpc::v1::members_server::MembersServer;

use detector::Detector;
use identity::Identity;
use journal::Journal;
use lease::{Grants, Role};
use log_store::LogStore;
use map::Map;
use member::{Member, MemberInfo};
use minor_version::MinorVersion;
use network::Network;
use participant::{Participant, leads};
use peers::{MAP_LEN_MAX, MESSAGE_LEN_MAX, Peers};
use reports::Reports;
use service::Service;
use state::{Change, State};
use state_machine::StateMachine;
use types::{Raft, RaftId};

pub use belonging::Belonging;
pub use file_error::FileError;

/// Entries behind the last snapshot when the next is made.
const SNAPSHOT_ENTRIES: u64 = 1000;
/// Entries that stay in the log though a snapshot has them, for members that are a little behind.
const KEPT_ENTRIES: u64 = 200;
/// Bytes of one piece of a snapshot.
const SNAPSHOT_PIECE_LEN: u64 = 256 << 10;
/// How long a piece of a snapshot may take.
const SNAPSHOT_DEADLINE: Duration = Duration::from_secs(5);
/// Blocking work of one member that may wait: raft has a few writes under way at most.
const POOL_QUEUE_MAX: usize = 256;
/// Requests that one connection may have under way, streams of the map included.
const STREAMS_MAX: u32 = 256;
/// A leader that was not heard for so long is not named any more; members are told something of it
/// several times a second.
const LEADER_FRESH: Duration = Duration::from_secs(3);

/// How a member comes into a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// It forms a cluster of one, unless its disk says that it belongs to one.
    Bootstrap,
    /// It asks these members (host and port) to be taken in, and those it knows from its disk.
    /// Without any, its disk has to name its cluster.
    Join(Vec<String>),
}

/// Options of a member.
#[derive(Clone, Debug)]
pub struct Options {
    /// Its name: 1–64 letters, digits, `.`, `_`, `-`.
    pub id: String,
    /// How it comes in.
    pub start: Start,
    /// Where it listens for other members and routers.
    pub listen: SocketAddr,
    /// Host and port at which others reach that; none if it is what it listens on.
    pub advertise: Option<String>,
    /// Host and port for clients.
    pub client_address: String,
    /// Failure zone.
    pub zone: String,
    /// Share of the slots relative to others; 0 owns none.
    pub weight: u16,
    /// Version of the software.
    pub version: String,
    /// The directory of raft's files. A few MB.
    pub dir: PathBuf,
    /// Silence after which a member is down, if this member forms the cluster.
    pub down_after: Duration,
    /// When a member that was down is up again.
    detector: detector::Options,
    /// Silence after which another member votes in the place of one that is down.
    replace_voter_after: Duration,
    /// Where what happens to members is told, besides the log.
    pub events: Option<Events>,
    /// The certificate by which members know each other, and their authority; with it no client
    /// without one is answered. It has to be one to call others with ([`Tls::client`]).
    pub tls: Option<Arc<Tls>>,
    /// What is served to other members besides.
    pub services: Routes,
    /// The clock of the versions that the member gives. None if it gives none.
    pub versions: Option<Arc<Hlc>>,
    /// The disk of the member's entries. The member refuses probes while a write to it does not
    /// return. None if it has none.
    pub device: Option<Arc<DeviceWatch>>,
    /// The bucket of the member: members tell each other which segments they have brought there.
    /// None if it has none.
    pub segments: Option<ColdTier>,
    /// Which links are cut.
    #[cfg(test)]
    faults: tests::faults::Links,
}

impl Options {
    /// Options of a member with the default times, in the zone `default` and of weight 100.
    #[must_use]
    pub fn new(
        id: &str,
        start: Start,
        listen: SocketAddr,
        client_address: &str,
        dir: PathBuf,
    ) -> Self {
        Self {
            id: id.to_owned(),
            start,
            listen,
            advertise: None,
            client_address: client_address.to_owned(),
            zone: "default".to_owned(),
            weight: 100,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            dir,
            down_after: detector::DOWN_AFTER,
            detector: detector::Options::default(),
            replace_voter_after: Duration::from_secs(30),
            events: None,
            tls: None,
            services: Routes::default(),
            versions: None,
            device: None,
            segments: None,
            #[cfg(test)]
            faults: tests::faults::Links::default(),
        }
    }
}

/// Why a member does not start.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The directory is not to be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// The address cannot be listened on.
    #[error("--cluster-listen: {0}")]
    Listen(#[source] io::Error),
    /// Others cannot reach the address that would be told to them.
    #[error("others cannot reach {0}: set --advertise to a host and port that they can")]
    Unreachable(SocketAddr),
    /// No cluster is known, and none is to be formed.
    #[error(
        "this node is in no cluster yet: start it with --bootstrap if it is the first one, else \
         with --join HOST:PORT of a member"
    )]
    NoCluster,
    /// An option is not allowed.
    #[error("{0}")]
    Options(String),
    /// The threads for blocking work do not start, or fail.
    #[error("blocking work of the cluster: {0}")]
    Pool(#[from] PoolError),
    /// The operating system refused.
    #[error("starting the cluster: {0}")]
    Io(#[from] io::Error),
    /// Raft does not start.
    #[error("raft does not start: {0}")]
    Raft(String),
}

/// Why a change did not happen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// It cannot be, however often it is tried.
    #[error("refused: {0}")]
    Refused(String),
    /// It was made for a state that has passed; another one can be made for the state as it is.
    #[error("refused: {0}")]
    Stale(String),
    /// It was not agreed on in time. It may or may not happen yet; it can be tried again.
    #[error("not agreed on: {0}")]
    Unavailable(String),
}

impl ChangeError {
    fn no_leader() -> Self {
        Self::Unavailable("the cluster has no leader at the moment".to_owned())
    }
}

impl From<ChangeError> for tonic::Status {
    fn from(error: ChangeError) -> Self {
        match error {
            ChangeError::Refused(why) => Self::failed_precondition(why),
            ChangeError::Stale(why) => Self::aborted(why),
            ChangeError::Unavailable(why) => Self::unavailable(why),
        }
    }
}

/// How a member stands in its cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The cluster; 0 before it belongs to one.
    pub cluster: u64,
    /// The term of raft.
    pub term: u64,
    /// The name of the leader it follows, if there is one that it heard a moment ago.
    pub leader: Option<String>,
    /// The names of the voters; a raft id where the name is not known.
    pub voters: Vec<String>,
    /// Whether it leads, and a majority follows.
    pub is_leading: bool,
    /// How long ago it heard a leader; zero if it leads, since its start if it never heard one.
    pub leader_silence: Duration,
}

/// Whether a member may answer for its slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// How long ago it heard a leader; zero if it leads.
    pub leader_silence: Duration,
    /// For how long it does not count as down yet, whatever happens.
    pub lease: Duration,
    /// Whether the cluster refuses it: it was removed, the cluster was formed anew, or another
    /// process has its name. Without a lease it is not cut off then, and has to stop.
    pub is_refused: bool,
}

/// One member's part in its cluster; cheap to clone.
#[derive(Clone, Debug)]
pub struct Cluster {
    participant: Arc<Participant>,
}

impl Cluster {
    /// Opens the directory, listens, and starts what the member does; it enters its cluster in the
    /// background, and until then and without a quorum the map is the last one it had.
    ///
    /// # Errors
    /// [`ClusterError`]; nothing runs then.
    ///
    /// # Cancel safety
    /// Not to be cancelled: a part of it may run on.
    pub fn start(options: Options, tasks: &Tasks) -> BoxFuture<'_, Result<Self, ClusterError>> {
        Box::pin(Self::started(options, tasks))
    }

    async fn started(options: Options, tasks: &Tasks) -> Result<Self, ClusterError> {
        let pool = BlockingPool::new("raft", NonZeroUsize::MIN, POOL_QUEUE_MAX)?;
        let listener = listen(options.listen).await?;
        let address = listener.local_addr()?;
        let (dir, id, store_pool) = (options.dir.clone(), options.id.clone(), pool.clone());
        let version = MinorVersion::of(&options.version);
        let is_return = options.start == Start::Join(Vec::new());
        let open = move || -> Result<_, ClusterError> {
            let identity = Identity::open(&dir, &id)?;
            match identity.belonging().cluster() {
                0 if is_return => return Err(ClusterError::NoCluster),
                0 => {}
                _ => Journal::require(&dir)?,
            }
            let log = LogStore::open(&dir, store_pool)?;
            let machine = StateMachine::open(&dir, log.clone(), version)?;
            Ok((identity, log, machine))
        };
        let (identity, log, machine) = run_blocking(&pool, open).await??;
        let info = info(&options, identity.belonging().raft_id(), address)?;
        let peers = Peers::new(
            options.tls.clone(),
            #[cfg(test)]
            options.faults.from(&info.cluster_address),
        );
        let network = Network {
            peers: peers.clone(),
            belonging: identity.belonging().clone(),
        };
        let (states, past) = (machine.subscribe(), machine.past());
        let config = Arc::new(raft_config()?);
        let begun = Instant::now();
        let raft = Raft::new(info.raft_id, config, network, log.clone(), machine)
            .await
            .map_err(|error| ClusterError::Raft(error.to_string()))?;
        let state = Arc::clone(&states.borrow());
        let map = run_blocking(&pool, move || Map::new(&state)).await?;
        let (maps_in, maps) = watch::channel(Arc::new(map));
        let participant = Arc::new(Participant {
            detector: Mutex::new(Detector::new(options.detector)),
            grants: Mutex::new(Grants::new(SplitMix64::from_entropy().next_u64())),
            lease: Mutex::default(),
            reports: Mutex::new(Reports::new(raft.metrics(), begun)),
            options,
            info,
            identity,
            raft,
            log,
            pool,
            states,
            maps,
            past,
            peers,
            // It may have voted, or acknowledged, a moment ago: the leader it heard then has its
            // vote for as long as if that was now.
            heard: watch::Sender::new(Instant::now()),
            is_refused: watch::Sender::new(false),
            closing: watch::Sender::new(false),
        });
        let it = || Arc::clone(&participant);
        participant.run(tasks, "cluster-map", follow_maps(it(), maps_in));
        participant.run(tasks, "cluster-events", events::run(it()));
        participant.run(tasks, "cluster-campaign", campaign::run(it()));
        participant.run(tasks, "cluster-ask", health::ask(it()));
        participant.run(tasks, "cluster-decide", health::decide(it()));
        participant.run(tasks, "cluster-reconcile", reconcile::run(it()));
        tasks.spawn("cluster-enter", OnShutdown::Wait, enter::run(it()));
        if let Some(tier) = &participant.options.segments {
            let announce = announce::run(it(), tier.clone());
            participant.run(tasks, "cluster-announce", announce);
        }
        let (accepted, incoming) = mpsc::channel(1);
        let tls = participant.options.tls.clone();
        let accept = listen::accept(listener, tls, listen::Limits::default(), accepted);
        tasks.spawn("cluster-accept", OnShutdown::Abort, accept);
        let incoming = ReceiverStream::new(incoming);
        tasks.spawn("cluster-serve", OnShutdown::Wait, serve(it(), incoming));
        Ok(Self { participant })
    }

    /// Its name.
    #[must_use]
    pub fn node_id(&self) -> &str {
        &self.participant.info.id
    }

    /// The cluster that it belongs to, as it is known at any time.
    #[must_use]
    pub fn belonging(&self) -> Belonging {
        self.participant.identity.belonging().clone()
    }

    /// Its raft id.
    #[must_use]
    pub fn raft_id(&self) -> RaftId {
        self.participant.raft_id()
    }

    /// HOST:PORT of the cluster port of a member, this one among them.
    ///
    /// # Errors
    /// NOT_FOUND if there is none of that name.
    pub fn address_of(&self, member: &str) -> Result<String, tonic::Status> {
        let map = self.participant.maps.borrow().clone();
        let known = map.member(member).ok_or_else(|| {
            let names: Vec<&str> = map.members.iter().map(|it| it.id.as_str()).collect();
            let names = names.join(", ");
            tonic::Status::not_found(format!("there is no member `{member}`; there are: {names}"))
        })?;
        Ok(known.cluster_address.clone())
    }

    /// The certificate by which it knows other members, if they have any.
    #[must_use]
    pub fn tls(&self) -> Option<Arc<Tls>> {
        self.participant.options.tls.clone()
    }

    /// The silence after which a member is down (`--down-after` of this process).
    #[must_use]
    pub fn down_after(&self) -> Duration {
        self.participant.options.down_after
    }

    /// The directory of what it has agreed to.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.participant.options.dir
    }

    /// Host and port for clients.
    #[must_use]
    pub fn client_address(&self) -> &str {
        &self.participant.info.client_address
    }

    /// The map that was agreed on last, and each newer one. Of epoch 0 before the member has
    /// entered.
    #[must_use]
    pub fn map(&self) -> watch::Receiver<Arc<Map>> {
        self.participant.maps.clone()
    }

    /// What was agreed on at the epochs from one on and before another one, in order, as far as
    /// that is known: a caller that waits for the newest map may miss maps in between. After a
    /// start it is what the disk knew.
    #[must_use]
    pub fn states_between(&self, from: u64, before: u64) -> Vec<Arc<State>> {
        self.participant.past.between(from, before)
    }

    /// All that was agreed on: the map's source, namespaces and users.
    #[must_use]
    pub fn state(&self) -> watch::Receiver<Arc<State>> {
        self.participant.states.clone()
    }

    /// Changes what members agree on, through the leader, wherever it is. Returns the epoch behind
    /// the change; this member's own map may be a moment behind.
    ///
    /// # Errors
    /// [`ChangeError::Refused`] for good; [`ChangeError::Unavailable`] if it was not agreed on
    /// within `deadline`.
    ///
    /// # Cancel safety
    /// Cancelling it loses the answer; the change may happen. Changes can be made twice.
    pub fn propose(
        &self,
        change: Change,
        deadline: Duration,
    ) -> BoxFuture<'_, Result<u64, ChangeError>> {
        Box::pin(self.participant.propose(change, deadline))
    }

    /// How it stands.
    #[must_use]
    pub fn status(&self) -> Status {
        let participant = &self.participant;
        let metrics = participant.metrics();
        let state = participant.state();
        let name = |id: RaftId| {
            let member = state.by_raft_id(id);
            member.map_or_else(|| format!("{id:x}"), |member| member.info.id.clone())
        };
        let membership = metrics.membership_config.membership();
        let leader_silence = participant.heard(&metrics).elapsed();
        Status {
            cluster: participant.identity.belonging().cluster(),
            term: metrics.current_term,
            // raft forgets its leader when another term begins, and there is none without a
            // majority.
            leader: metrics
                .current_leader
                .filter(|_| leader_silence < LEADER_FRESH)
                .map(name),
            voters: membership.voter_ids().map(name).collect(),
            is_leading: leads(&metrics),
            leader_silence,
        }
    }

    /// The range of versions of an epoch, if that is the newest one that this member knows.
    #[must_use]
    pub fn versions_of(&self, epoch: u64) -> Option<VersionRange> {
        let state = self.participant.states.borrow();
        (state.epoch == epoch).then_some(state.versions)
    }

    /// Whether it may answer for its slots, if it has applied the map of `epoch`; to be asked
    /// often.
    #[must_use]
    pub fn standing(&self, epoch: u64) -> Standing {
        let (participant, now) = (&self.participant, Instant::now());
        let metrics = participant.metrics();
        let role = Role::of(&metrics);
        let heard = participant.heard(&metrics).elapsed();
        let mut lease = participant.lease.lock();
        // Read under the lock: a leader that is to be removed is declared down when the lease that
        // it granted itself is over.
        let state = participant.state();
        let member = state.by_raft_id(participant.raft_id());
        let is_leaving = member.is_some_and(Member::is_leaving);
        if role.leads.is_some() {
            lease.lead();
        }
        if let Some(left) = role.own_lease().filter(|_| !is_leaving) {
            // No other leader is elected before, and declares it down.
            let since = member.map_or(state.epoch, |member| member.sync.since.0);
            lease.promise(since, now + left, now);
        }
        Standing {
            leader_silence: lease.silence(now).map_or(heard, |it| it.min(heard)),
            lease: lease.left(epoch, now),
            is_refused: *participant.is_refused.borrow(),
        }
    }

    /// Whether the cluster refuses it ([`Standing::is_refused`]), as it is known at any time.
    #[must_use]
    pub fn refused(&self) -> watch::Receiver<bool> {
        self.participant.is_refused.subscribe()
    }

    /// Stops, to be called before the tasks are finished: streams end, calls are refused, raft
    /// writes what it has begun. The map stays readable.
    pub fn stop(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            self.participant.closing.send_replace(true);
            if let Err(error) = self.participant.raft.shutdown().await {
                tracing::error!(%error, "raft did not stop in order");
            }
        })
    }
}

async fn listen(address: SocketAddr) -> Result<TcpListener, ClusterError> {
    let listener = TcpListener::bind(address).await;
    listener.map_err(|error| ClusterError::Listen(cannot_listen(address, &error)))
}

fn info(
    options: &Options,
    raft_id: RaftId,
    address: SocketAddr,
) -> Result<MemberInfo, ClusterError> {
    let cluster_address = match &options.advertise {
        Some(advertised) => advertised.clone(),
        None if address.ip().is_unspecified() => return Err(ClusterError::Unreachable(address)),
        None => address.to_string(),
    };
    let info = MemberInfo {
        id: options.id.clone(),
        raft_id,
        client_address: options.client_address.clone(),
        cluster_address,
        zone: options.zone.clone(),
        weight: options.weight,
        version: options.version.clone(),
    };
    info.validate().map_err(ClusterError::Options)?;
    Ok(info)
}

fn raft_config() -> Result<openraft::Config, ClusterError> {
    let millis = |duration: Duration| duration.as_millis() as u64;
    let lease = millis(election::LEASE);
    let config = openraft::Config {
        cluster_name: "fonn".to_owned(),
        heartbeat_interval: millis(election::HEARTBEAT),
        // The upper one is the lease that a leader has of its followers. Neither starts an
        // election: that is `campaign`'s part.
        election_timeout_min: lease.saturating_sub(1),
        election_timeout_max: lease,
        enable_elect: false,
        snapshot_policy: SnapshotPolicy::LogsSinceLast(SNAPSHOT_ENTRIES),
        max_in_snapshot_log_to_keep: KEPT_ENTRIES,
        snapshot_max_chunk_size: SNAPSHOT_PIECE_LEN,
        install_snapshot_timeout: millis(SNAPSHOT_DEADLINE),
        ..openraft::Config::default()
    };
    let valid = config.validate();
    valid.map_err(|error| ClusterError::Options(error.to_string()))
}

/// Makes a map of each state that has a new one.
async fn follow_maps(participant: Arc<Participant>, maps: watch::Sender<Arc<Map>>) {
    let mut states = participant.states.clone();
    loop {
        let state = Arc::clone(&states.borrow_and_update());
        let known = maps.borrow().epoch;
        if state.epoch != known {
            // Not on the thread of the journal, where it would pass for a disk that stalls.
            match tokio::task::spawn_blocking(move || Map::new(&state)).await {
                Ok(map) => drop(maps.send_replace(Arc::new(map))),
                Err(error) => tracing::error!(%error, "making the map failed"),
            }
        }
        if states.changed().await.is_err() {
            return;
        }
    }
}

async fn serve(
    participant: Arc<Participant>,
    incoming: ReceiverStream<io::Result<listen::Guarded>>,
) {
    let members = MembersServer::new(Service(Arc::clone(&participant)))
        .max_decoding_message_size(MESSAGE_LEN_MAX)
        .max_encoding_message_size(MAP_LEN_MAX);
    let routes = participant.options.services.clone().add_service(members);
    let served = Server::builder()
        .max_concurrent_streams(STREAMS_MAX)
        .http2_keepalive_interval(Some(listen::TEST_PERIOD))
        .http2_keepalive_timeout(Some(listen::TEST_PERIOD))
        .add_routes(routes)
        .serve_with_incoming_shutdown(incoming, participant.closed())
        .await;
    if let Err(error) = served {
        tracing::error!(%error, "serving members ended");
    }
}
