//! Every method over a real socket, with a store on disk and a bucket in a directory.

mod admin;
mod cold;
mod logins;
mod settings;
mod telemetry;
mod warm;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fonn_admin::{Channel, Options, Readiness, Routes, Server, SettingsService};
use fonn_auth::{Authenticator, Security};
use fonn_base::clock::Clock;
use fonn_base::config::InForce;
use fonn_base::entry::Space;
use fonn_base::events::Events;
use fonn_base::metrics::Metrics;
use fonn_base::shutdown::{self, ShutdownTrigger};
use fonn_base::size::{Budget, ByteCount};
use fonn_base::tasks::Tasks;
use fonn_base::telemetry::LogFormat;
use fonn_cold_tier::store::fault::FaultStore;
use fonn_cold_tier::store::{ObjectStore, Opened};
use fonn_gateway::ToolsReport;
use fonn_program::CommonSettings;
use fonn_proto::grpc::v1::admin_client::AdminClient;
use fonn_proto::grpc::v1::cold_client::ColdClient;
use fonn_proto::{Command, ExpirySpec, Redirects, Store, WriterId};
use tempfile::TempDir;
use tokio::sync::mpsc;

use super::telemetry::Telemetry;
use super::{Admin, Node, OfProcess};
use crate::cli::cold_admin;
use crate::cli::reload::{Parts, Reload};
use crate::config::{self, Settings};
use crate::engine::{Acks, Engine, Job};
use crate::server::{Identity, LiveSettings, SettingsChange, Shared, Tiers};

const GRACE: Duration = Duration::from_secs(30);

/// Applies changes of settings, as the process does.
async fn change_settings(
    engine: Arc<Engine>,
    config: config::Config,
    settings: InForce,
    events: Events,
    mut changes: mpsc::Receiver<SettingsChange>,
) {
    let (filter, format) = (&config.common.log, LogFormat::Text);
    let (_, log) = fonn_base::telemetry::build(filter, format, false, std::io::sink);
    let parts = Parts {
        engine: &engine,
        security: &Security::default(),
        log: &log,
        events: &events,
    };
    let args = ["fonn-node", "--data-dir", "none"].map(OsString::from);
    let mut reload = Reload::new(args, config, settings, parts);
    while let Some(change) = changes.recv().await {
        reload.change(change);
    }
}

/// A node's admin port.
struct Rig {
    admin: Admin,
    engine: Arc<Engine>,
    bucket: Option<Opened>,
    /// The bucket as the cold tier sees it.
    faults: Option<Arc<FaultStore>>,
    tasks: Tasks,
    config: config::Config,
    settings: InForce,
    readiness: Readiness,
    metrics: Metrics,
    telemetry: Telemetry,
    events: Events,
    addr: SocketAddr,
    _dir: TempDir,
    _stop: ShutdownTrigger,
}

impl Rig {
    /// A node whose store is open.
    async fn open() -> Self {
        let rig = Self::starting(true).await;
        rig.open_store();
        rig
    }

    /// The same, with a cold tier.
    async fn over_a_bucket() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("file://{}/bucket", dir.path().display());
        let settings = Settings {
            cold_tier: Some(url.parse().unwrap()),
            // Nothing goes there but by `spill`.
            spill: Some("write-behind:3600s".parse().unwrap()),
            ..Self::settings(dir.path().join("data"))
        };
        let rig = Self::made(dir, settings, None).await;
        rig.engine.start_cold(&rig.tasks);
        rig.open_store();
        rig
    }

    /// A node whose store is not.
    async fn starting(has_disk: bool) -> Self {
        Self::guarded(has_disk, None).await
    }

    /// The same, with users.
    async fn guarded(has_disk: bool, users: Option<Arc<Authenticator>>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = match has_disk {
            true => dir.path().to_owned(),
            false => "none".into(),
        };
        let mut settings = Self::settings(data_dir);
        settings.common.users_file = users.as_ref().map(|_| "users.toml".into());
        Self::made(dir, settings, users).await
    }

    fn settings(data_dir: PathBuf) -> Settings {
        Settings {
            data_dir: Some(data_dir),
            ram_budget: Some(Budget::Bytes(ByteCount::mib(16))),
            disk_budget: Some(ByteCount::mib(256)),
            common: CommonSettings {
                threads: Some(1),
                ..CommonSettings::default()
            },
            ..Settings::default()
        }
    }

    async fn made(dir: TempDir, settings: Settings, users: Option<Arc<Authenticator>>) -> Self {
        let config = config::resolve(settings).unwrap();
        let opened = crate::cli::engine_options(&config, Clock::system()).await;
        let (mut options, bucket) = opened.unwrap();
        let faults = options.cold.as_mut().map(|cold| {
            let faults = Arc::new(FaultStore::new(Arc::clone(&cold.store), 1));
            cold.store = Arc::clone(&faults) as Arc<dyn ObjectStore>;
            faults
        });
        let engine = Engine::open(options).unwrap();
        let readiness = Readiness::new();
        let (clock, metrics) = (Clock::system(), Metrics::new());
        let events = Events::new(clock.clone(), 100);
        let telemetry = Telemetry::new(clock, metrics.clone(), readiness.clone(), events.clone());
        let settings = InForce::new(config.settings(), config.origins.file());
        let told = SettingsService::server(settings.clone(), Clock::system());
        let admin = Admin::new(
            readiness.clone(),
            events.clone(),
            telemetry.clone(),
            users.clone(),
            OfProcess {
                settings: told,
                tools: ToolsReport::new(None).server(),
            },
        );
        let routes = Routes::new().with_grpc(admin.grpc().unwrap());
        let server = Server::bind(([127, 0, 0, 1], 0).into(), routes, Options::default());
        let server = server.await.unwrap().with_security(Security {
            users,
            ..Security::default()
        });
        let addr = server.local_addr();
        let (stop, stopped) = shutdown::channel();
        tokio::spawn(server.run(stopped));
        Self {
            admin,
            engine,
            bucket,
            faults,
            tasks: Tasks::new(),
            config,
            settings,
            readiness,
            metrics,
            telemetry,
            events,
            addr,
            _dir: dir,
            _stop: stop,
        }
    }

    fn open_store(&self) {
        let (live, changes) = LiveSettings::new();
        tokio::spawn(change_settings(
            Arc::clone(&self.engine),
            self.config.clone(),
            self.settings.clone(),
            self.events.clone(),
            changes,
        ));
        let tiers = Tiers {
            engine: Arc::clone(&self.engine),
            replication: None,
            views: None,
            identity: Identity::default(),
            live: Some(live),
            users: None,
        };
        self.admin.open(Node {
            shared: Shared::new(Arc::new(tiers), self.settings.clone(), 100),
            listeners: vec!["127.0.0.1:11211".to_owned()],
            durability: self.config.durability,
            data_dir: self.config.data_dir.clone(),
            cold: cold_admin(
                &self.config,
                &self.engine,
                self.bucket.clone(),
                Clock::system(),
            ),
            cluster: None,
        });
        self.readiness.set_ready();
    }

    async fn channel(&self) -> Channel {
        Channel::connect(&self.addr.to_string(), GRACE)
            .await
            .unwrap()
    }

    async fn admin(&self) -> AdminClient<Channel> {
        let channel = self.channel().await;
        let origin = channel.origin();
        AdminClient::with_origin(channel, origin)
    }

    async fn cold(&self) -> ColdClient<Channel> {
        let channel = self.channel().await;
        let origin = channel.origin();
        ColdClient::with_origin(channel, origin)
    }

    /// Executes a command and waits for its acknowledgement.
    async fn execute(&self, space: Space, command: &Command<'_>, source: Option<&Bytes>) {
        let job = Job {
            space,
            command,
            source,
            base: None,
            routed_by: None,
            redirects: Redirects::Never,
            writer: WriterId::NONE,
        };
        let (mut acks, mut scratch) = (Acks::default(), Vec::new());
        self.engine.execute(&job, &mut acks, &mut scratch).await;
        assert!(acks.wait().await.is_empty());
    }

    async fn set(&self, space: Space, key: &[u8], value: &[u8], expiry: ExpirySpec) {
        let value = Bytes::copy_from_slice(value);
        let store = Command::Store(Store::set(key, &value, 7, expiry));
        self.execute(space, &store, Some(&value)).await;
    }

    /// Brings into the bucket what is not there yet.
    async fn spill(&self) {
        self.engine.drain_cold(Instant::now() + GRACE).await;
    }
}
