//! The settings of a node: what can be given, and what follows from it.

mod cluster;
mod cold;
mod live;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::Parser;
use fonn_admin::HostNames;
use fonn_base::config::{self, ConfigError, Early, Origins};
use fonn_base::duration::Span;
use fonn_base::memory;
use fonn_base::size::{Budget, ByteCount};
use fonn_cold_tier::store::Location;
use fonn_disk_tier::Durability;
use fonn_disk_tier::levels::{CodecChoice, Level, LevelSetting};
use fonn_program::{CommonConfig, CommonSettings, HostPort, LogSettings, OrNone, one_or_many};
use fonn_ram_tier::LruMode;
use serde::Deserialize;

use self::cluster::MemberAddr;
use self::cold::{PricesPerMillion, RegionName, Spill};

pub use self::cluster::ClusterConfig;
pub use self::cold::{ColdBudget, ColdConfig};
pub(crate) use self::live::LIVE;

const ABOUT: &str = "A tiered cache for build artifacts: memcached and Redis protocols, RAM over a \
compressed local store that survives restarts";

const AFTER_HELP: &str = "\
Every flag is also an environment variable (--ram-budget is FONN_RAM_BUDGET) and a key of the \
configuration file (ram_budget). A flag wins over the environment, the environment over the file.

SIZE: bytes, or a number with k, m, g or t (1024-based): 512m, 10g.
SIGTERM and SIGINT stop the node within 10 seconds, SIGHUP reads the configuration again.
Exit codes: 0 clean stop, 1 failed while running, 2 bad configuration.

Point sccache at it:
  SCCACHE_MEMCACHED_ENDPOINT=tcp://127.0.0.1:11211   or
  SCCACHE_REDIS_ENDPOINT=redis://127.0.0.1:11211";

/// The command line: flags and environment. The reference of the settings is made of it.
#[derive(Debug, Parser)]
#[command(name = "fonn-node", version, about = ABOUT, after_help = AFTER_HELP, max_term_width = 100)]
pub struct Cli {
    /// Configuration file (TOML).
    #[arg(long, value_name = "FILE", env = "FONN_CONFIG")]
    config: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
}

fonn_base::layer! {
    /// One layer of settings; see `--help` for their meaning.
    #[derive(Clone, Debug, Default, clap::Args, Deserialize)]
    #[serde(default)]
    pub struct Settings {
        /// Listeners, access and threads.
        #[command(flatten)]
        #[serde(skip)]
        pub common: CommonSettings,

        /// Memory for entries: SIZE, or N% of what the process may use (its cgroup's limit, else
        /// the host's memory) [default: 25%]
        #[arg(long, value_name = "SIZE", env = "FONN_RAM_BUDGET", help_heading = "RAM")]
        pub ram_budget: Option<Budget>,
        /// Longest value, at most half of the RAM budget; a longer one is refused, and over HTTP
        /// stored in chunks [default: 256m]
        #[arg(long, value_name = "SIZE", env = "FONN_MAX_VALUE", help_heading = "RAM")]
        pub max_value: Option<ByteCount>,
        /// Recency of entries: approximate or strict [default: approximate]
        #[arg(long, value_name = "MODE", env = "FONN_LRU", help_heading = "RAM")]
        pub lru: Option<Lru>,

        /// Directory of the disk tier, or none for RAM only [default: $XDG_CACHE_HOME/fonn]
        #[arg(long, value_name = "DIR", env = "FONN_DATA_DIR", help_heading = "Disk")]
        pub data_dir: Option<PathBuf>,
        /// Bytes in the data directory, everything counted [default: 10g]
        #[arg(long, value_name = "SIZE", env = "FONN_DISK_BUDGET", help_heading = "Disk")]
        pub disk_budget: Option<ByteCount>,
        /// When a write is acknowledged. none: from RAM. batched: when the journal has reached the
        /// kernel (survives kill -9; synced at least every 100 ms). fsync: when it is on the disk
        /// (survives power loss) [default: batched]
        #[arg(long, value_name = "MODE", env = "FONN_DURABILITY", help_heading = "Disk")]
        pub durability: Option<DurabilityMode>,

        /// Bucket that outlives the node: s3://BUCKET/PREFIX or file:///DIR [default: none]
        #[arg(long, value_name = "URL", env = "FONN_COLD_TIER", help_heading = "Cold tier")]
        pub cold_tier: Option<OrNone<Location>>,
        /// Bytes in the bucket under the prefix, of all regions; each gives up its own that was
        /// read least recently. At least 512m is sensible [default: unlimited]
        #[arg(long, value_name = "SIZE", env = "FONN_COLD_BUDGET", help_heading = "Cold tier")]
        pub cold_budget: Option<ColdBudget>,
        /// When entries go to the bucket. on-evict: when the disk gives them up.
        /// write-behind:DURATION: at most about so long after they were written [default:
        /// write-behind:5s]
        #[arg(long, value_name = "MODE", env = "FONN_SPILL", help_heading = "Cold tier")]
        pub spill: Option<Spill>,
        /// Name of this cluster in a shared bucket [default: local]
        #[arg(long, value_name = "NAME", env = "FONN_REGION", help_heading = "Cold tier")]
        pub region: Option<RegionName>,
        /// After this a read from the bucket is a miss [default: 1s]
        #[arg(long, value_name = "DURATION", env = "FONN_COLD_READ_TIMEOUT", help_heading = "Cold tier")]
        pub cold_read_timeout: Option<Span>,
        /// How often other nodes and regions are asked for new segments [default: 10s]
        #[arg(long, value_name = "DURATION", env = "FONN_COLD_FOLLOW", help_heading = "Cold tier")]
        pub cold_follow: Option<Span>,
        /// Prices for the cost estimate: dollars a million PUT and LIST / GET and HEAD requests
        /// [default: 5/0.4]
        #[arg(long, value_name = "WRITE/READ", env = "FONN_COLD_PRICES", help_heading = "Cold tier")]
        pub cold_prices: Option<PricesPerMillion>,
        /// URL of an S3-compatible server [default: AWS_ENDPOINT_URL, else AWS]
        #[arg(long, value_name = "URL", env = "FONN_S3_ENDPOINT", help_heading = "Cold tier")]
        pub s3_endpoint: Option<String>,
        /// Region of the bucket [default: AWS_REGION, else the profile's]
        #[arg(long, value_name = "NAME", env = "FONN_S3_REGION", help_heading = "Cold tier")]
        pub s3_region: Option<String>,

        /// Codec of a level, LEVEL=CODEC; may be repeated. LEVEL: ram, fresh (new data on disk),
        /// compacted (older data on disk), cold (the bucket). CODEC: none, lz4, snappy, zlib[:1-9],
        /// zstd[:-7..22], auto (by data and load) [default: ram=none, fresh=lz4, compacted=zstd:3,
        /// cold=zstd:9]
        #[arg(long, value_name = "LEVEL=CODEC", env = "FONN_CODEC", value_delimiter = ',', help_heading = "Compression")]
        #[serde(deserialize_with = "one_or_many")]
        pub codec: Vec<LevelSetting>,
        /// Values below this are stored verbatim [default: 256]
        #[arg(long, value_name = "SIZE", env = "FONN_CODEC_MIN_BYTES", help_heading = "Compression")]
        pub codec_min_bytes: Option<ByteCount>,

        /// Name of this node in its cluster, for good: its slots depend on it [default: none]
        #[arg(long, value_name = "NAME", env = "FONN_NODE_ID", help_heading = "Cluster")]
        pub node_id: Option<String>,
        /// Address for other members and routers, HOST:PORT; with it the node is in a cluster
        /// [default: none]
        #[arg(long, value_name = "ADDR", env = "FONN_CLUSTER_LISTEN", help_heading = "Cluster")]
        pub cluster_listen: Option<OrNone<HostPort>>,
        /// HOST:PORT at which others reach --cluster-listen, where that is not what they see
        /// [default: none]
        #[arg(long, value_name = "ADDR", env = "FONN_ADVERTISE", help_heading = "Cluster")]
        pub advertise: Option<OrNone<MemberAddr>>,
        /// HOST:PORT at which routers, other members and Redis Cluster clients reach the first
        /// --listen that is not loopback, where they do not see it so [default: none]
        #[arg(long, value_name = "ADDR", env = "FONN_ADVERTISE_CLIENT", help_heading = "Cluster")]
        pub advertise_client: Option<OrNone<MemberAddr>>,
        /// Members to join at, HOST:PORT of their --cluster-listen; any that answers will do
        /// [default: none]
        #[arg(long, value_name = "ADDR", env = "FONN_JOIN", value_delimiter = ',', help_heading = "Cluster")]
        #[serde(deserialize_with = "one_or_many")]
        pub join: Vec<OrNone<MemberAddr>>,
        /// Form a cluster of this node alone, for others to join; a node that is in one already
        /// stays there
        #[arg(long, env = "FONN_BOOTSTRAP", num_args = 0..=1, default_missing_value = "true", value_name = "BOOL", help_heading = "Cluster")]
        pub bootstrap: Option<bool>,
        /// Failure zone: the owners of a slot are spread over zones [default: default]
        #[arg(long, value_name = "NAME", env = "FONN_ZONE", help_heading = "Cluster")]
        pub zone: Option<String>,
        /// Share of the slots relative to other members, 0 to 65535; 0 owns none [default: 100]
        #[arg(long, value_name = "N", env = "FONN_WEIGHT", help_heading = "Cluster")]
        pub weight: Option<u16>,
        /// Silence after which a member is down; what the member that forms the cluster says holds
        /// for all. Longer where machines stand still at times, 1s to 1m [default: 1500ms]
        #[arg(long, value_name = "DURATION", env = "FONN_DOWN_AFTER", help_heading = "Cluster")]
        pub down_after: Option<Span>,

        /// Logs.
        #[command(flatten)]
        #[serde(skip)]
        pub logs: LogSettings,
    }
}

/// `--lru`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Lru {
    /// In shards, nearly in order.
    Approximate,
    /// One exact order.
    Strict,
}

/// `--durability`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DurabilityMode {
    /// Acknowledged from RAM.
    None,
    /// Acknowledged by the kernel.
    Batched,
    /// Acknowledged by the disk.
    Fsync,
}

/// The settings in force: every default filled in, every share resolved.
#[derive(Clone, Debug)]
pub struct Config {
    /// Listeners, access, threads and logs.
    pub common: CommonConfig,
    /// Bytes of RAM for entries.
    pub ram_budget: ByteCount,
    /// What the RAM budget was said to be, and what it is a share of, for the banner.
    pub ram_budget_source: String,
    /// Longest value.
    pub max_value: ByteCount,
    /// Recency.
    pub lru: LruMode,
    /// The data directory; None for RAM only.
    pub data_dir: Option<PathBuf>,
    /// Bytes on disk.
    pub disk_budget: ByteCount,
    /// When a write is acknowledged.
    pub durability: Durability,
    /// The cold tier, if there is one.
    pub cold: Option<ColdConfig>,
    /// How the node takes part in a cluster, if it does.
    pub cluster: Option<ClusterConfig>,
    /// Codecs of the levels, in the order of [`Level::ALL`].
    pub codec_of_level: [CodecChoice; Level::ALL.len()],
    /// Shorter values are stored verbatim.
    pub codec_min_bytes: usize,
    /// Where all that comes from.
    pub origins: Origins,
}

/// Smallest disk budget: journals and tables have a least size of their own.
const DISK_BUDGET_MIN: ByteCount = ByteCount::mib(64);

/// Reads flags, environment and file, and fills in the defaults.
///
/// # Errors
/// For `--help` and `--version`, and for anything that cannot be used.
pub fn load<I>(args: I) -> Result<Config, Early>
where
    I: IntoIterator<Item: Into<std::ffi::OsString> + Clone>,
{
    load_below(args, Settings::default())
}

/// As [`load`], below what an administrator has set while the node runs.
///
/// # Errors
/// As [`load`].
pub fn load_below<I>(args: I, set: Settings) -> Result<Config, Early>
where
    I: IntoIterator<Item: Into<std::ffi::OsString> + Clone>,
{
    let (settings, origins) =
        config::load_layers(args, set, |args: Cli| (args.config, args.settings))?;
    Ok(Config {
        origins,
        ..resolve(settings)?
    })
}

/// Fills in the defaults and checks what only shows when all is known.
///
/// # Errors
/// A sentence that names the flag, the value and what would be accepted.
pub fn resolve(settings: Settings) -> Result<Config, ConfigError> {
    let has_disk = settings.data_dir.as_deref() != Some(Path::new("none"));
    let cold = cold::resolve(&settings, has_disk)?;
    let (common, logs) = (&settings.common, &settings.logs);
    let http_listen = Some("127.0.0.1:11290");
    let common = CommonConfig::resolve(common, logs, "127.0.0.1:11280", http_listen)?;
    let cluster = cluster::resolve(&settings, &common, has_disk)?;
    let (share, ram_budget) = fonn_program::ram_budget(settings.ram_budget, 25)?;
    let disk_budget = settings.disk_budget.unwrap_or(ByteCount::mib(10 << 10));
    let data_dir = match settings.data_dir {
        Some(dir) if dir == Path::new("none") => None,
        Some(dir) if dir.as_os_str().is_empty() => {
            return Err(ConfigError::invalid(
                "--data-dir",
                "``",
                "a directory, or none",
            ));
        }
        Some(dir) => Some(dir),
        None => Some(default_data_dir()?),
    };
    if data_dir.is_some() && disk_budget < DISK_BUDGET_MIN {
        let least = format!("at least {DISK_BUDGET_MIN}, or --data-dir none");
        return Err(ConfigError::invalid("--disk-budget", disk_budget, least));
    }
    let max_value = fonn_program::max_value(settings.max_value)?;
    let codec_min_bytes = settings
        .codec_min_bytes
        .unwrap_or(ByteCount::new(256))
        .as_usize();
    let codec = |level: Level| {
        let given = settings.codec.iter().rev().find(|it| it.level == level);
        given.map_or_else(|| CodecChoice::Fixed(level.default_codec()), |it| it.codec)
    };
    Ok(Config {
        common,
        ram_budget,
        ram_budget_source: match share {
            Budget::Bytes(_) => String::new(),
            Budget::Percent(_) => {
                format!("{share} of {}", memory::available().human())
            }
        },
        max_value,
        lru: match settings.lru {
            Some(Lru::Strict) => LruMode::Strict,
            Some(Lru::Approximate) | None => LruMode::Approximate,
        },
        data_dir,
        disk_budget,
        durability: match settings.durability {
            Some(DurabilityMode::None) => Durability::None,
            Some(DurabilityMode::Fsync) => Durability::Fsync,
            Some(DurabilityMode::Batched) | None => Durability::Batched,
        },
        cold,
        cluster,
        codec_of_level: Level::ALL.map(codec),
        codec_min_bytes,
        origins: Origins::default(),
    })
}

/// `$XDG_CACHE_HOME/fonn`, else `~/.cache/fonn` (XDG base directory specification).
fn default_data_dir() -> Result<PathBuf, ConfigError> {
    let dir = |name: &str| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|dir| dir.is_absolute())
    };
    dir("XDG_CACHE_HOME")
        .or_else(|| dir("HOME").map(|home| home.join(".cache")))
        .map(|cache| cache.join("fonn"))
        .ok_or_else(|| {
            ConfigError::invalid(
                "--data-dir",
                "is not given",
                "a directory, or none, since neither XDG_CACHE_HOME nor HOME is set",
            )
        })
}

impl Config {
    /// The longest value in bytes.
    #[must_use]
    pub fn value_len_max(&self) -> usize {
        self.max_value.as_usize()
    }

    /// All names by which the admin port answers without TLS.
    #[must_use]
    pub fn admin_hosts(&self) -> HostNames {
        let cluster = self.cluster.as_ref();
        let advertised = cluster.and_then(|it| it.advertise.as_deref());
        self.common.admin_hosts(advertised)
    }

    /// Names and values of what is in force.
    #[must_use]
    pub fn pairs(&self) -> Vec<(String, String)> {
        let data_dir = self
            .data_dir
            .as_ref()
            .map_or("none".to_owned(), |dir| dir.display().to_string());
        let min_bytes = ByteCount::new(self.codec_min_bytes as u64);
        [
            ("ram_budget", self.ram_budget.to_string()),
            ("max_value", self.max_value.to_string()),
            ("lru", format!("{:?}", self.lru).to_lowercase()),
            ("data_dir", data_dir),
            ("disk_budget", self.disk_budget.to_string()),
            (
                "durability",
                format!("{:?}", self.durability).to_lowercase(),
            ),
            ("codec", self.codecs()),
            ("codec_min_bytes", min_bytes.to_string()),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .chain(self.common.pairs())
        .chain(match &self.cold {
            Some(cold) => cold.pairs(),
            None => vec![none("cold_tier")],
        })
        .chain(match &self.cluster {
            Some(cluster) => cluster.pairs(),
            None => vec![none("cluster_listen")],
        })
        .collect()
    }

    /// The codecs of all levels, as in `--codec`.
    #[must_use]
    pub fn codecs(&self) -> String {
        Level::ALL
            .map(|level| format!("{level}={}", self.codec(level)))
            .join(",")
    }

    /// What is said at the start: version, tiers with budgets, codecs, durability, listeners.
    #[must_use]
    pub fn banner(&self, listening: &[String], http: Option<&str>, admin: &str) -> String {
        let mut text = format!("fonn-node {}\n", env!("CARGO_PKG_VERSION"));
        let share = match self.ram_budget_source.as_str() {
            "" => String::new(),
            source => format!(" ({source})"),
        };
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "  ram     {}{share}, codec {}",
            self.ram_budget.human(),
            self.codec(Level::Ram)
        );
        let _ = match &self.data_dir {
            Some(dir) => writeln!(
                text,
                "  disk    {} in {}, fresh {}, compacted {}, durability {}",
                self.disk_budget.human(),
                dir.display(),
                self.codec(Level::Fresh),
                self.codec(Level::Compacted),
                format!("{:?}", self.durability).to_lowercase()
            ),
            None => writeln!(text, "  disk    none: everything is forgotten at the end"),
        };
        let cold = self.cold.as_ref().map(ColdConfig::describe);
        let _ = writeln!(text, "  cold    {}", cold.as_deref().unwrap_or("none"));
        let _ = writeln!(
            text,
            "  clients {} ({} threads)",
            listening.join(", "),
            self.common.threads
        );
        if let Some(cluster) = &self.cluster {
            let _ = writeln!(text, "  cluster {}", cluster.describe());
        }
        let who = self.common.security.describe(self.common.insecure);
        let _ = writeln!(text, "  serves  {who}");
        let scheme = self.common.security.scheme();
        let _ = match http {
            Some(http) => writeln!(text, "  http    {scheme}://{http}/"),
            None => writeln!(text, "  http    none"),
        };
        let _ = write!(text, "  admin   {scheme}://{admin}/");
        text
    }
}

fn none(key: &str) -> (String, String) {
    (key.to_owned(), "none".to_owned())
}

#[cfg(test)]
mod tests;
