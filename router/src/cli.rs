//! The life of the process: configuration, start, drain, end.

use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use fonn_admin::Readiness;
use fonn_auth::Security;
use fonn_base::clock::Clock;
use fonn_base::config::{Early, InForce, Setting};
use fonn_base::metrics::{self, Metrics};
pub use fonn_base::release::Release;
use fonn_base::shutdown::{self, ReloadSignals, StopSignals};
use fonn_base::tasks::{OnShutdown, Tasks};
use fonn_base::telemetry::LogControl;
use fonn_forward::{Forwarder, Map, Upstreams, tell_writers};
use fonn_gateway::{Gateway, ToolsReport, mount};
use fonn_program::Prepared;
use fonn_rpc::{Options, PeerMetrics};
use fonn_server::{Tuning, connections_max};
use tokio::time::timeout;

use crate::address::Address;
use crate::admin;
use crate::config::{self, Config};
use crate::follow::Follower;
use crate::service::{Router, Server, Shared};

/// How long clients of a router that starts are not accepted for want of a map and of users.
const START_WAIT: Duration = Duration::from_secs(2);
/// How often it is looked at whether the router is still one of its members' cluster.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// What `/readyz` tells when it is not.
const OTHER_CLUSTER: &str =
    "the members of --cluster belong to another cluster now: restart this router";
/// Threads for calls that block, at most.
const BLOCKING_THREADS: usize = 4;

/// From the signal to stop until the process is gone.
const STOP_GRACE: Duration = Duration::from_secs(10);

/// Of that, what is kept for all but clients.
const END_RESERVE: Duration = Duration::from_secs(1);

/// For responses of the admin port that are under way at the end.
const ADMIN_GRACE: Duration = Duration::from_millis(200);

/// Descriptors that are not client connections: connections to members, listeners, admin port.
const DESCRIPTORS_RESERVED: u64 = 576;

/// Runs the router; the whole of `main`.
#[must_use]
pub fn main() -> ExitCode {
    main_as(&Release::this())
}

/// The same, as a process that tells members that it is of that release.
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
    let metrics = Metrics::new();
    metrics::process::register(&metrics, &Clock::system());
    fonn_auth::metrics::register(&metrics, security.users.clone());
    fonn_auth::metrics::register_certificate(&metrics, security.tls.clone());
    let readiness = Readiness::new();
    let (background, admin_tasks) = (Tasks::new(), Tasks::new());
    let (stop_admin, admin_stopped) = shutdown::channel();

    let (listeners, names) = config.common.bind().context("--listen")?;
    let bound = mount::bind_given(&config.common.http, &config.origins).context("--http-listen")?;
    let map = Arc::new(Map::default());
    let follower = Follower::new(
        Arc::clone(&map),
        config.cluster.clone(),
        security.members_tls(),
        security.users.clone(),
    );
    let told = Arc::clone(&map);
    let settings = InForce::new(config.settings(), config.origins.file());
    let tools = ToolsReport::new(security.users.clone());
    let routes = admin::routes(
        metrics.clone(),
        readiness.clone(),
        told,
        Arc::clone(&follower),
        &security,
        settings.clone(),
        &tools,
    )?
    .with_hosts(config.admin_hosts());
    let (address, asks) = (&config.common.admin_listen, security.clone());
    let admin = fonn_admin::Server::start(address, routes, asks, &admin_tasks, admin_stopped)
        .await
        .context("--admin-listen")?;

    let shared = shared(
        &config,
        settings.clone(),
        release,
        security.clone(),
        &map,
        &metrics,
    );
    crate::metrics::register(&metrics, &shared, &follower);
    let front = mount::front(&shared, &config.common, &metrics, &tools);
    let followed = Arc::clone(&follower);
    background.spawn("topology", OnShutdown::Abort, follower.run());
    wait_at_start(&map).await;
    let server = Server::start(Arc::clone(&shared), listeners, config.common.threads)
        .context("cannot start the reactors")?;
    let gateway = bound.map(|bound| Gateway::start(&front, bound, config.common.threads));
    let gateway = gateway.transpose()?;
    if let Some(users) = security.users.clone() {
        let members = Arc::clone(&shared);
        let tell = async move {
            tell_writers(users, || members.service.forwarder().upstreams()).await;
        };
        background.spawn("writers", OnShutdown::Abort, tell);
    }
    let ready = {
        let (map, readiness) = (Arc::clone(&map), readiness.clone());
        async move {
            until_known(&map).await;
            readiness.set_ready();
            watch_cluster(&followed, &readiness).await;
        }
    };
    background.spawn("ready", OnShutdown::Abort, ready);
    // The banner is for people: it goes out as it is, not as a log line.
    let http = gateway.as_ref().map(Gateway::address);
    let banner = config.banner(&names, http, &admin);
    let _ = writeln!(std::io::stderr(), "{banner}");

    let mut config = config;
    let stopped_by = loop {
        tokio::select! {
            signal = stop_signals.recv() => break Ok(signal),
            () = reload_signals.recv() => reload(&mut config, &settings, &security, &log),
            () = files.changed() => reload_security(&config, &security),
            task = background.failed() => break Err(task),
        }
    };
    let end = Instant::now() + STOP_GRACE;
    readiness.set_not_ready("draining");
    tracing::info!(grace_secs = STOP_GRACE.as_secs(), "stopping");
    let clients_end = end - END_RESERVE;
    let drain = tokio::task::spawn_blocking(move || mount::drain(gateway, server, clients_end));
    tokio::select! {
        drained = drain => drained.context("draining")?,
        _ = stop_signals.recv() => anyhow::bail!("second signal: left without draining"),
    }
    background.finish(Instant::now()).await;
    stop_admin.request(ADMIN_GRACE);
    admin_tasks.finish(Instant::now() + ADMIN_GRACE).await;
    match stopped_by {
        Ok(_) => Ok(()),
        Err(task) => anyhow::bail!("the task `{task}` failed; its panic is above"),
    }
}

/// Clients are served without a map too: what they read is a miss then, and users of the cluster
/// are refused. So they are kept waiting a moment.
async fn wait_at_start(map: &Map) {
    let _ = timeout(START_WAIT, until_known(map)).await;
}

/// Waits until the map is known. The users that members agree on are known before.
async fn until_known(map: &Map) {
    while !map.wait_for(0, Duration::from_secs(3600)).await {}
}

/// Has the router not ready while its members belong to another cluster. For ever.
async fn watch_cluster(follower: &Follower, readiness: &Readiness) {
    loop {
        let is_disowned = follower.is_disowned();
        readiness.set_obstacle(is_disowned.then_some(OTHER_CLUSTER));
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Reads the configuration again and applies what can change in a running router.
fn reload(config: &mut Config, settings: &InForce, security: &Security, log: &LogControl) {
    let new = match config::load(std::env::args_os()) {
        Ok(new) => new,
        Err(Early::Bad(error)) => {
            tracing::error!(%error, "the configuration was not reloaded");
            return;
        }
        Err(Early::Info(_)) => return,
    };
    log.set(&new.common.log);
    config.adopt(&new);
    let told = config.settings_before(&new);
    let fixed = Setting::awaiting_restart(&told);
    if !fixed.is_empty() {
        let settings = fixed.join(" ");
        tracing::warn!(settings, "these settings change only with a restart");
    }
    settings.reload(told, Clock::system().wall_ms());
    reload_security(config, security);
    tracing::info!(log = %new.common.log, "configuration reloaded");
}

/// Reads users and certificate again.
fn reload_security(config: &Config, security: &Security) {
    // It logs what became of them.
    let _ = config.common.security.reload(security);
}

/// What all connections of a router share. The router has these settings, and sends commands by
/// `map`.
#[must_use]
pub fn shared(
    config: &Config,
    settings: InForce,
    release: &Release,
    security: Security,
    map: &Arc<Map>,
    metrics: &Metrics,
) -> Arc<Shared> {
    let name = format!("router-{}", std::process::id());
    let options = Options {
        tls: security.members_tls(),
        version: release.peer_version,
        ..Options::new("", name)
    };
    let upstreams = Upstreams::new(Arc::clone(map), options, PeerMetrics::register(metrics));
    let forwarder = Forwarder::new(upstreams, config.timeout).with_hedges();
    let router = Router::new(
        forwarder,
        Address::new(config.advertise.as_deref()),
        config.ram_budget.as_usize(),
        config.max_value.as_usize(),
    );
    Shared::with_tuning(
        router,
        settings,
        connections_max(DESCRIPTORS_RESERVED),
        Tuning::default(),
        security,
    )
}

#[cfg(test)]
mod tests {
    use fonn_proto::grpc::v1::{ClusterMap, ClusterMember, MemberState};
    use fonn_proto::placement::{Owners, SLOT_COUNT, rows};
    use tokio::time::{Instant, sleep};

    use super::*;
    use crate::follow::topology;

    fn cluster_of_one() -> ClusterMap {
        ClusterMap {
            epoch: 1,
            replicas: 1,
            members: vec![ClusterMember {
                id: "a".to_owned(),
                client_address: "127.0.0.1:1".to_owned(),
                share: 100,
                weight: 100,
                state: MemberState::Active.into(),
                ..ClusterMember::default()
            }],
            owners: rows::encode((0..SLOT_COUNT).map(|_| Owners::new(&[0]))),
            ..ClusterMap::default()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn first_clients_wait_for_the_map_but_not_for_ever() {
        for (map_ms, waited_ms) in [(0, 0), (700, 700), (1900, 1900), (60_000, 2000)] {
            let map = Map::default();
            let begun = Instant::now();
            let tell = async {
                sleep(Duration::from_millis(map_ms)).await;
                assert!(map.offer(topology(&cluster_of_one()).unwrap()));
                std::future::pending::<()>().await;
            };
            tokio::select! {
                () = wait_at_start(&map) => {}
                () = tell => {}
            }
            let (found, waited) = (begun.elapsed(), Duration::from_millis(waited_ms));
            // The timer counts in milliseconds.
            let is_so = (waited..=waited + Duration::from_millis(2)).contains(&found);
            assert!(is_so, "{map_ms} ms: {found:?}");
        }
    }
}
