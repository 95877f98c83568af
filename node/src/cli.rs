//! The life of the process: configuration, start, reload, drain, end.

mod ready;
pub(crate) mod reload;

use std::io::Write as _;
use std::net::ToSocketAddrs as _;
use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use fonn_admin::{Readiness, SettingsService};
use fonn_base::clock::Clock;
use fonn_base::config::InForce;
use fonn_base::events::{Events, Topic};
use fonn_base::metrics::{self, Metrics};
use fonn_base::pool::BlockingPool;
use fonn_base::random::SplitMix64;
pub use fonn_base::release::Release;
use fonn_base::shutdown::{self, ReloadSignals, StopSignals};
use fonn_base::size::ByteCount;
use fonn_base::tasks::{OnShutdown, Tasks};
use fonn_cold_tier::store::{self, Opened, StoreOptions};
use fonn_cold_tier::{ColdOptions, RestoreFrom};
use fonn_disk_tier::levels::{Level, LevelCodec};
use fonn_disk_tier::{COMPACTION_PERCENT, DiskOptions};
use fonn_forward::tell_writers;
use fonn_gateway::{Gateway, ToolsReport, mount};
use fonn_program::{HttpConfig, Prepared};
use fonn_ram_tier::RamOptions;
use fonn_rpc::PeerMetrics;
use fonn_server::{Tuning, connections_max};

use self::ready::Ready;
use self::reload::{Parts, Reload};
use crate::admin::cold::ColdAdmin;
use crate::admin::telemetry::Telemetry;
use crate::admin::{Admin, Node, OfProcess};
use crate::cold::{Cold, ColdSetup};
use crate::config::{self, ColdConfig, Config};
use crate::engine::{Engine, EngineOptions, Settings};
use crate::replication::{self, follow};
use crate::server::{Identity, LiveSettings, Server, Shared, Tiers};
use crate::users::Followed;
use crate::writers::WriterFile;
use fonn_membership::Cluster;
use fonn_membership::view::{self, Views};

/// Threads for calls that block, at most.
const BLOCKING_THREADS: usize = 8;

/// From the signal to stop until the process is gone.
const STOP_GRACE: Duration = Duration::from_secs(10);

/// Of that, what is kept for closing the disk tier.
const CLOSE_RESERVE: Duration = Duration::from_secs(4);

/// Of that, what is kept for bringing into the bucket what is not there yet.
const COLD_RESERVE: Duration = Duration::from_secs(4);

/// For responses of the admin port that are under way at the end.
const ADMIN_GRACE: Duration = Duration::from_millis(200);

/// For what other members are being answered at the end.
const CLUSTER_GRACE: Duration = Duration::from_millis(500);

/// Descriptors that are not client connections: files of the disk tier, listeners, admin port.
const DESCRIPTORS_RESERVED: u64 = 576;

/// Events that the admin service remembers.
const EVENTS_KEPT: usize = 500;

/// What follows from the RAM budget for the tiers below when they are opened, and stays so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sizes {
    /// Writes that wait for the disk.
    disk_queue: usize,
    /// Caches and buffers of the disk tier.
    disk_memory: usize,
    /// Uploads and reads of the cold tier.
    cold_memory: u64,
}

impl Sizes {
    fn of(ram_budget: ByteCount) -> Self {
        let (ram, bytes) = (ram_budget.as_usize(), ram_budget.bytes());
        Self {
            disk_queue: (ram / 8).clamp(4 << 20, 64 << 20),
            disk_memory: (ram / 8).clamp(16 << 20, 512 << 20),
            // Not most of a small budget: a process that is above its own waits before each large
            // request.
            cold_memory: (bytes / 4).clamp((32 << 20).min(bytes / 2), 512 << 20),
        }
    }
}

/// Runs the node; the whole of `main`.
#[must_use]
pub fn main() -> ExitCode {
    main_as(&Release::this())
}

/// The same, as a process that tells other members that it is of that release.
#[must_use]
pub fn main_as(release: &Release) -> ExitCode {
    let config = config::load(std::env::args_os());
    fonn_program::run(
        config,
        |config: &Config| (&config.common, config.ram_budget),
        BLOCKING_THREADS,
        |config, prepared| run(config, prepared, release),
    )
}

async fn run(config: Config, prepared: Prepared, release: &Release) -> anyhow::Result<()> {
    let Prepared {
        security,
        mut files,
        log,
    } = prepared;
    config.origins.warn_of_misspelt();
    let mut stop_signals = StopSignals::install().context("cannot handle signals")?;
    let mut reload_signals = ReloadSignals::install().context("cannot handle signals")?;
    let clock = Clock::system();
    let began_ms = clock.monotonic_ms();
    let metrics = Metrics::new();
    metrics::process::register(&metrics, &clock);
    let readiness = Readiness::new();
    let events = Events::new(clock.clone(), EVENTS_KEPT);
    let (background, admin_tasks) = (Tasks::new(), Tasks::new());
    let (stop_admin, admin_stopped) = shutdown::channel();

    // Addresses first: a port that is taken should not cost a recovery.
    let (listeners, names) = config.common.bind().context("--listen")?;
    let asked_for =
        mount::bind_given(&config.common.http, &config.origins).context("--http-listen")?;
    let settings = InForce::new(config.settings(), config.origins.file());
    let telemetry = Telemetry::new(
        clock.clone(),
        metrics.clone(),
        readiness.clone(),
        events.clone(),
    );
    // While the node drains, too.
    admin_tasks.spawn("telemetry", OnShutdown::Abort, telemetry.clone().sample());
    let users = security.users.clone();
    fonn_auth::metrics::register(&metrics, users.clone());
    fonn_auth::metrics::register_certificate(&metrics, security.tls.clone());
    let told = SettingsService::server(settings.clone(), clock.clone());
    let tools = ToolsReport::new(users.clone());
    let of_process = OfProcess {
        settings: told,
        tools: tools.server(),
    };
    let admin_api = Admin::new(
        readiness.clone(),
        events.clone(),
        telemetry,
        users,
        of_process,
    );
    let routes = fonn_admin::Routes::new()
        .with_standard(metrics.clone(), readiness.clone())
        .with_grpc(admin_api.grpc()?)
        .with_hosts(config.admin_hosts())
        .with_fallback(fonn_admin::dashboard);
    let (address, asks) = (&config.common.admin_listen, security.clone());
    let admin = fonn_admin::Server::start(address, routes, asks, &admin_tasks, admin_stopped)
        .await
        .context("--admin-listen")?;

    let (options, bucket) = engine_options(&config, clock.clone()).await?;
    let engine = {
        let open = tokio::task::spawn_blocking(move || Engine::open(options));
        tokio::select! {
            engine = open => engine.context("opening the store")??,
            // A stop while the store recovers: nothing was served, nothing has to be drained.
            _ = stop_signals.recv() => return Ok(()),
        }
    };
    engine.set_users(|| security.users.as_ref().map(|users| users.directory()));
    if let (Some(users), Some(dir)) = (&security.users, &config.data_dir) {
        let file =
            WriterFile::open(dir, users.writers()).context("reading the names of writers")?;
        background.spawn(
            "writer-names",
            OnShutdown::Abort,
            file.follow(Arc::clone(users)),
        );
    }
    background.spawn("upkeep", OnShutdown::Abort, Arc::clone(&engine).upkeep());
    let quotas = Arc::clone(&engine).enforce_quotas(events.clone());
    background.spawn("quotas", OnShutdown::Abort, quotas);
    let cold_tasks = Tasks::new();
    engine.start_cold(&cold_tasks);
    let cluster_tasks = Tasks::new();
    let tls = security.members_tls();
    let services = admin_api.at_member();
    let mut cluster = None;
    if let Some(mut options) = cluster_options(&config, &names)? {
        options.version = release.version.clone();
        options.events = Some(events.clone());
        options.tls = tls;
        options.services = services;
        options.versions = Some(engine.versions());
        options.device = engine.disk().map(|disk| disk.device());
        options.segments = engine.cold().map(|cold| cold.tier().clone());
        let started = Cluster::start(options, &cluster_tasks).await;
        cluster = Some(started.context("starting the cluster")?);
    }
    let (mut members_part, mut views) = (None, None);
    if let Some(cluster) = &cluster {
        crate::metrics::register_cluster(&metrics, cluster);
        let admission = ready::follow_admission(cluster.refused(), readiness.clone());
        cluster_tasks.spawn("admission", OnShutdown::Abort, admission);
        let followed = Arc::new(Views::new(cluster));
        let follow = view::follow(Arc::clone(&followed));
        cluster_tasks.spawn("cluster-views", OnShutdown::Abort, follow);
        views = Some(followed);
        let peers = PeerMetrics::register(&metrics);
        let peers = follow::Peers {
            version: release.peer_version,
            metrics: peers,
        };
        let started = follow::start(cluster, &engine, clock.clone(), peers, &cluster_tasks);
        replication::metrics::register(&metrics, &started);
        if let Some(users) = security.users.clone() {
            let members = Arc::clone(&started);
            let tell = async move {
                tell_writers(users, || members.forwarder().upstreams()).await;
            };
            cluster_tasks.spawn("writers", OnShutdown::Abort, tell);
        }
        members_part = Some(started);
        if let (Some(users), Some(_)) = (&security.users, cluster.tls()) {
            let followed = Followed::new(Arc::clone(users), Arc::clone(&engine), events.clone());
            followed.begin(cluster);
            let follow = followed.follow(cluster.state());
            cluster_tasks.spawn("cluster-users", OnShutdown::Abort, follow);
        }
    }
    let identity = Identity {
        name: config
            .cluster
            .as_ref()
            .map(|it| it.node_id.clone())
            .unwrap_or_default(),
        is_open: config.common.insecure,
        version: release.peer_version,
    };
    let (live, mut changes) = LiveSettings::new();
    let shared = Shared::with_tuning(
        Arc::new(Tiers {
            engine: Arc::clone(&engine),
            replication: members_part.clone(),
            views,
            identity,
            live: Some(live),
            users: security.users.clone(),
        }),
        settings.clone(),
        connections_max(DESCRIPTORS_RESERVED),
        Tuning::default(),
        security.clone(),
    );
    crate::metrics::register(&metrics, &shared, bucket.clone());
    let front = mount::front(&shared, &config.common, &metrics, &tools);
    // After the listeners of the cluster, which may be at the default address.
    let bound = match asked_for {
        Some(bound) => Some(bound),
        None => {
            mount::bind_default(&config.common.http, &config.origins).context("--http-listen")?
        }
    };
    if bound.is_none() {
        note_no_http(&events, &config.common.http);
    }
    let gateway = bound.map(|bound| Gateway::start(&front, bound, config.common.threads));
    let gateway = gateway.transpose()?;
    let server = Server::start(Arc::clone(&shared), listeners, config.common.threads)
        .context("cannot start the reactors")?;
    admin_api.open(Node {
        shared: Arc::clone(&shared),
        listeners: names.clone(),
        durability: config.durability,
        data_dir: config.data_dir.clone(),
        cold: cold_admin(&config, &engine, bucket, clock.clone()),
        cluster: cluster.clone(),
    });
    let ready = Ready {
        readiness: readiness.clone(),
        events: events.clone(),
        clock,
        began_ms,
    };
    if let Some(tier) = ready.serves(engine.cold().map(Cold::tier)) {
        background.spawn("ready", OnShutdown::Abort, ready.wait(tier.clone()));
    }
    // The banner is for people: it goes out as it is, not as a log line.
    let http = gateway.as_ref().map(Gateway::address);
    let banner = config.banner(&names, http, &admin);
    let _ = writeln!(std::io::stderr(), "{banner}");

    let parts = Parts {
        engine: &engine,
        security: &security,
        log: &log,
        events: &events,
    };
    let mut reload = Reload::new(std::env::args_os(), config, settings, parts);
    let stopped_by = loop {
        tokio::select! {
            signal = stop_signals.recv() => break Ok(signal),
            () = reload_signals.recv() => reload.all(),
            Some(change) = changes.recv() => reload.change(change),
            () = files.changed() => reload.security(),
            task = background.failed() => break Err(task),
            task = cold_tasks.failed() => break Err(task),
            task = cluster_tasks.failed() => break Err(task),
        }
    };

    // Changes that wait are refused at once.
    drop(changes);
    let end = Instant::now() + STOP_GRACE;
    readiness.set_not_ready("draining");
    events.info(Topic::Process, "the node drains and stops");
    tracing::info!(grace_secs = STOP_GRACE.as_secs(), "stopping");
    background.finish(Instant::now()).await;
    let drain = async {
        let clients_end = match engine.cold() {
            // Clients go quickly as a rule; the bucket gets what they leave of the time.
            Some(_) => end - CLOSE_RESERVE - COLD_RESERVE,
            None => end - CLOSE_RESERVE,
        };
        tokio::task::spawn_blocking(move || mount::drain(gateway, server, clients_end)).await?;
        engine.drain_cold(end - CLOSE_RESERVE).await;
        if let Some(cluster) = cluster {
            cluster.stop().await;
            cluster_tasks.finish(Instant::now() + CLUSTER_GRACE).await;
        }
        cold_tasks.finish(Instant::now()).await;
        tokio::task::spawn_blocking(move || {
            let is_written = engine.close(end.saturating_duration_since(Instant::now()));
            if let Some(replication) = members_part.filter(|_| is_written)
                && let Err(error) = replication.note_stop()
            {
                tracing::debug!(%error, "the next start counts as one after a crash");
            }
        })
        .await
    };
    tokio::select! {
        drained = drain => drained.context("draining")?,
        _ = stop_signals.recv() => anyhow::bail!("second signal: left without draining"),
    }
    stop_admin.request(ADMIN_GRACE);
    admin_tasks.finish(Instant::now() + ADMIN_GRACE).await;
    match stopped_by {
        Ok(_) => Ok(()),
        Err(task) => anyhow::bail!("the task `{task}` failed; its panic is above"),
    }
}

/// Records that the HTTP port is not served, unless it is not wanted. The log says so once; events
/// still show it later.
fn note_no_http(events: &Events, http: &HttpConfig) {
    if let Some(address) = http.address() {
        let message = format!(
            "HTTP is not served: the default address {address} is taken; choose another \
             --http-listen, or none"
        );
        events.warning(Topic::Process, message);
    }
}

/// What the settings mean for the node's part in its cluster, if it is to be in one.
fn cluster_options(
    config: &Config,
    listening: &[String],
) -> anyhow::Result<Option<fonn_membership::Options>> {
    let (Some(cluster), Some(dir)) = (&config.cluster, &config.data_dir) else {
        return Ok(None);
    };
    let resolved = cluster
        .listen
        .to_socket_addrs()
        .ok()
        .and_then(|mut addrs| addrs.next());
    let listen = resolved.with_context(|| {
        format!(
            "--cluster-listen {}: the name has no address",
            cluster.listen
        )
    })?;
    let client_address = cluster.client_address(listening);
    let (id, start) = (&cluster.node_id, cluster.start.clone());
    let mut options =
        fonn_membership::Options::new(id, start, listen, &client_address, dir.join("raft"));
    options.advertise = cluster.advertise.clone();
    options.zone = cluster.zone.clone();
    options.weight = cluster.weight;
    options.down_after = cluster.down_after.get();
    Ok(Some(options))
}

/// Opens the bucket; it is not asked for anything.
async fn open_bucket(cold: &ColdConfig) -> anyhow::Result<Opened> {
    let pool = BlockingPool::new("bucket", NonZeroUsize::MIN.saturating_add(1), 1024)
        .context("cannot start the threads of the cold tier")?;
    let options = StoreOptions {
        endpoint: cold.endpoint.clone(),
        region: cold.s3_region.clone(),
        prices: cold.prices,
        ..StoreOptions::default()
    };
    let opened = store::open(&cold.location, options, &pool).await;
    opened.with_context(|| format!("--cold-tier {}", cold.location))
}

/// What the settings mean for the cold tier.
fn cold_setup(config: &Config, cold: &ColdConfig, bucket: &Opened, clock: Clock) -> ColdSetup {
    let dir = config.data_dir.clone().unwrap_or_default();
    let memory_bytes = Sizes::of(config.ram_budget).cold_memory;
    let options = ColdOptions {
        budget_bytes: cold.budget.map(ByteCount::bytes),
        read_timeout: cold.read_timeout,
        spill_age: cold.spill,
        follow_interval: cold.follow,
        value_len_max: config.value_len_max(),
        memory_bytes,
        // A node that has entries must learn by name which of them others have overwritten.
        restore: if fonn_disk_tier::has_entries(&dir) {
            RestoreFrom::Footers
        } else {
            RestoreFrom::Checkpoint
        },
        clock,
        health: bucket.meter.health(),
        ..ColdOptions::new(dir.join("cold"), cold.region.clone())
    };
    let codec = LevelCodec::new(
        Level::Cold,
        config.codec(Level::Cold),
        config.codec_min_bytes,
    );
    ColdSetup {
        options,
        codec: Arc::new(codec),
        store: Arc::clone(&bucket.store),
    }
}

/// The cold tier for the admin services.
pub(crate) fn cold_admin(
    config: &Config,
    engine: &Engine,
    bucket: Option<Opened>,
    clock: Clock,
) -> Option<ColdAdmin> {
    let (cold, settings) = (engine.cold()?, config.cold.as_ref()?);
    Some(ColdAdmin {
        tier: cold.tier().clone(),
        bucket: bucket?,
        location: settings.location.clone(),
        region: settings.region.to_string(),
        clock,
    })
}

/// What the settings mean for the tiers, and the bucket if there is one. It is not asked for
/// anything.
///
/// # Errors
/// What the bucket cannot be opened for.
pub async fn engine_options(
    config: &Config,
    clock: Clock,
) -> anyhow::Result<(EngineOptions, Option<Opened>)> {
    let bucket = match &config.cold {
        Some(cold) => Some(open_bucket(cold).await?),
        None => None,
    };
    let cold = config.cold.as_ref().zip(bucket.as_ref());
    let cold = cold.map(|(cold, bucket)| cold_setup(config, cold, bucket, clock.clone()));
    let (ram, sizes) = (config.ram_budget, Sizes::of(config.ram_budget));
    let mut random = SplitMix64::from_entropy();
    let options = EngineOptions {
        settings: Settings {
            value_len_max: config.value_len_max(),
            durability: config.durability,
        },
        ram: RamOptions {
            budget_bytes: ram.as_usize(),
            lru: config.lru,
            hash_seed: random.next_u64(),
        },
        disk: config.data_dir.as_ref().map(|dir| DiskOptions {
            dir: dir.clone(),
            budget_bytes: config.disk_budget.bytes(),
            durability: config.durability,
            fresh: config.codec(Level::Fresh),
            compacted: config.codec(Level::Compacted),
            codec_min_bytes: config.codec_min_bytes,
            value_len_max: config.value_len_max(),
            queue_bytes_max: sizes.disk_queue,
            memory_bytes: sizes.disk_memory,
            read_threads: (2 * config.common.threads).clamp(2, 16),
            compaction_percent: COMPACTION_PERCENT,
            write_bytes_per_sec_max: None,
            room_wait: fonn_disk_tier::ROOM_WAIT,
        }),
        cold,
        ram_codec: (config.codec(Level::Ram), config.codec_min_bytes),
        clock,
    };
    Ok((options, bucket))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_http_port_that_is_not_served_is_an_event_unless_none_was_asked_for() {
        for listen in [None, Some("h:1")] {
            let events = Events::new(Clock::system(), 10);
            let http = HttpConfig {
                listen: listen.map(str::to_owned),
                deadline: Duration::from_secs(2),
            };
            note_no_http(&events, &http);
            let recent = events.after(0);
            assert_eq!(recent.len(), usize::from(listen.is_some()));
            if let Some(address) = listen {
                assert!(recent[0].message.contains(address), "{}", recent[0].message);
            }
        }
    }
}
