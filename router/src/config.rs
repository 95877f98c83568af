//! The settings of a router.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Parser;
use fonn_admin::HostNames;
use fonn_base::config::{self, ConfigError, Early, Origins, Setting};
use fonn_base::duration::Span;
use fonn_base::size::{Budget, ByteCount};
use fonn_program::{CommonConfig, CommonSettings, HostPort, LogSettings, one_or_many};
use fonn_proto::member::is_reachable;
use serde::Deserialize;

const ABOUT: &str = "The front of a cluster of fonn nodes: memcached and Redis protocols on one address, \
requests to the node that owns the key";

const AFTER_HELP: &str = "\
Every flag is also an environment variable (--admin-listen is FONN_ADMIN_LISTEN) and a key of the \
configuration file (admin_listen). A flag wins over the environment, the environment over the file.

A router keeps nothing: start as many as you like. It learns the members from any one of --cluster and \
follows them.
SIGTERM and SIGINT stop it within 10 seconds, SIGHUP reads users, certificate and log level again.
Exit codes: 0 clean stop, 1 failed while running, 2 bad configuration.";

const HTTP_LISTEN_HELP: &str = "HOST:PORT of the HTTP port for build tools (WebDAV, Bazel, Gradle, \
Maven, Nx, Turborepo), or none [default: none]";

const ADMIN_LISTEN_HELP: &str =
    "Address of the admin port: /metrics, /healthz, /readyz [default: 127.0.0.1:11281]";

const USERS_FILE_HELP: &str = "Users, their roles and namespaces (TOML): the same file as that of the \
members [default: none]";

const TLS_CERT_HELP: &str = "Certificate of all ports, PEM, with those between it and its authority; \
members see it too [default: none]";

const TLS_CLIENT_CA_HELP: &str = "Authorities of the certificates of members and clients, PEM; members \
are asked under TLS then [default: none]";

/// The command line: flags and environment. Where a router and a node differ in what a common
/// setting does, the help is that of the router.
#[derive(Debug, Parser)]
#[command(name = "fonn-router", version, about = ABOUT, after_help = AFTER_HELP, max_term_width = 100)]
#[command(
    mut_arg("http_listen", |arg| arg.help(HTTP_LISTEN_HELP)),
    mut_arg("admin_listen", |arg| arg.help(ADMIN_LISTEN_HELP)),
    mut_arg("users_file", |arg| arg.help(USERS_FILE_HELP)),
    mut_arg("tls_cert", |arg| arg.help(TLS_CERT_HELP)),
    mut_arg("tls_client_ca", |arg| arg.help(TLS_CLIENT_CA_HELP)),
)]
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
        /// Any members of the cluster, HOST:PORT of their --cluster-listen; may be repeated
        #[arg(long, value_name = "ADDR", env = "FONN_CLUSTER", value_delimiter = ',', help_heading = "Cluster")]
        #[serde(deserialize_with = "one_or_many")]
        pub cluster: Vec<HostPort>,
        /// HOST:PORT at which clients reach this router, told to Redis Cluster clients [default:
        /// the address that the client used]
        #[arg(long, value_name = "ADDR", env = "FONN_ADVERTISE", help_heading = "Cluster")]
        pub advertise: Option<ClientAddr>,
        /// From the arrival of a command to its answer at most; a read is a miss then, a write
        /// refused [default: 5s]
        #[arg(long, value_name = "DURATION", env = "FONN_TIMEOUT", help_heading = "Cluster")]
        pub timeout: Option<Span>,

        /// Listeners, access and threads.
        #[command(flatten)]
        #[serde(skip)]
        pub common: CommonSettings,

        /// Longest value, at most half of --ram-budget; a longer one is refused, and over HTTP
        /// stored in chunks [default: 256m, or that half if it is less]
        #[arg(long, value_name = "SIZE", env = "FONN_MAX_VALUE", help_heading = "Memory")]
        pub max_value: Option<ByteCount>,
        /// Memory for requests that are arriving and replies that clients do not read: SIZE, or N%
        /// of what the process may use (its cgroup's limit, else the host's memory) [default: 50%]
        #[arg(long, value_name = "SIZE|N%", env = "FONN_RAM_BUDGET", help_heading = "Memory")]
        pub ram_budget: Option<Budget>,

        /// Logs.
        #[command(flatten)]
        #[serde(skip)]
        pub logs: LogSettings,
    }
}

/// The address of the router for clients: HOST:PORT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientAddr(pub String);

impl FromStr for ClientAddr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match is_reachable(text) {
            true => Ok(Self(text.to_owned())),
            false => Err(format!(
                "`{text}` is no HOST:PORT at which clients reach this router, as in 10.0.0.9:11211"
            )),
        }
    }
}

fonn_program::from_text!(ClientAddr);

/// The settings in force: every default filled in.
#[derive(Clone, Debug)]
pub struct Config {
    /// The members to ask for the map.
    pub cluster: Vec<String>,
    /// Where clients reach the router, if that was said.
    pub advertise: Option<String>,
    /// From the arrival of a command to its answer at most.
    pub timeout: Duration,
    /// Listeners, access, threads and logs.
    pub common: CommonConfig,
    /// Longest value.
    pub max_value: ByteCount,
    /// Memory for requests and replies.
    pub ram_budget: ByteCount,
    /// Where all that comes from.
    pub origins: Origins,
}

/// The settings that a reload applies; the rest takes a restart.
const LIVE: [&str; 1] = ["log"];

/// The default budget, in percent of the memory that the process may use: the rest is for
/// connections.
const RAM_BUDGET_PERCENT: u8 = 50;

/// Reads flags, environment and file, and fills in the defaults.
///
/// # Errors
/// For `--help` and `--version`, and for anything that cannot be used.
pub fn load<I>(args: I) -> Result<Config, Early>
where
    I: IntoIterator<Item: Into<std::ffi::OsString> + Clone>,
{
    let set = Settings::default();
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
    if settings.cluster.is_empty() {
        let expected = "HOST:PORT of the --cluster-listen of any member, as in 10.0.0.5:11290";
        return Err(ConfigError::invalid("--cluster", "is not given", expected));
    }
    let (common, logs) = (&settings.common, &settings.logs);
    let common = CommonConfig::resolve(common, logs, "127.0.0.1:11281", None)?;
    let timeout = settings.timeout.map_or(Duration::from_secs(5), Span::get);
    if timeout < Duration::from_millis(10) || timeout > Duration::from_secs(60) {
        let given = format!("{timeout:?}");
        return Err(ConfigError::invalid("--timeout", given, "10ms to 60s"));
    }
    let given = settings.ram_budget;
    let (_, ram_budget) = fonn_program::ram_budget(given, RAM_BUDGET_PERCENT)?;
    let max_value = max_value(settings.max_value, ram_budget)?;
    Ok(Config {
        cluster: settings.cluster.into_iter().map(|it| it.0).collect(),
        advertise: settings.advertise.map(|it| it.0),
        timeout,
        common,
        max_value,
        ram_budget,
        origins: Origins::default(),
    })
}

/// The longest value of a router with such a budget. Two of them have to fit into it: one that
/// arrives, and one that a client reads.
fn max_value(given: Option<ByteCount>, ram_budget: ByteCount) -> Result<ByteCount, ConfigError> {
    let half = ByteCount::new(ram_budget.bytes() / 2);
    let max_value = fonn_program::max_value(given)?;
    match given {
        Some(_) if max_value > half => {
            let expected = format!("at most {half}, half of --ram-budget");
            Err(ConfigError::invalid("--max-value", max_value, expected))
        }
        _ => Ok(max_value.min(half)),
    }
}

impl Config {
    /// All names by which the admin port answers without TLS.
    #[must_use]
    pub fn admin_hosts(&self) -> HostNames {
        self.common.admin_hosts(self.advertise.as_deref())
    }

    /// Names and values of what is in force.
    #[must_use]
    pub fn pairs(&self) -> Vec<(String, String)> {
        [
            ("cluster", self.cluster.join(",")),
            ("advertise", self.advertise.clone().unwrap_or_default()),
            ("timeout", format!("{:?}", self.timeout)),
            ("max_value", self.max_value.to_string()),
            ("ram_budget", self.ram_budget.to_string()),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .chain(self.common.pairs())
        .collect()
    }

    /// The settings as they are in force, in the order of `--help`.
    #[must_use]
    pub fn settings(&self) -> Vec<Setting> {
        self.settings_before(self)
    }

    /// The same, with what a restart would make of them by `new`.
    #[must_use]
    pub fn settings_before(&self, new: &Self) -> Vec<Setting> {
        Setting::all::<Settings>(self.pairs(), &new.pairs(), &LIVE, &self.origins)
    }

    /// Takes over what `new` has of the settings that change while the router runs.
    pub fn adopt(&mut self, new: &Self) {
        self.common.log = new.common.log.clone();
        self.origins.take_over(&LIVE, &new.origins);
    }

    /// What is told at the start.
    #[must_use]
    pub fn banner(&self, listening: &[String], http: Option<&str>, admin: &str) -> String {
        let scheme = self.common.security.scheme();
        let http = http.map_or_else(|| "none".to_owned(), |http| format!("{scheme}://{http}/"));
        format!(
            "fonn-router {}\n  cluster {}\n  clients {} ({} threads)\n  http    {http}\n  serves  {}\n  admin   {scheme}://{admin}/",
            env!("CARGO_PKG_VERSION"),
            self.cluster.join(", "),
            listening.join(", "),
            self.common.threads,
            self.common.security.describe(self.common.insecure),
        )
    }
}

#[cfg(test)]
mod tests {
    use fonn_base::memory;

    use super::*;

    fn load_from(args: &[&str]) -> Result<Config, String> {
        let args = ["fonn-router"].iter().chain(args).copied();
        load(args).map_err(|early| match early {
            Early::Bad(error) => error.to_string(),
            Early::Info(text) => text.to_string(),
        })
    }

    #[test]
    fn members_have_to_be_given_and_the_rest_has_defaults() {
        let error = load_from(&[]).unwrap_err();
        assert!(error.contains("--cluster"), "{error}");
        let config = load_from(&["--cluster", "a:1,b:2", "--cluster", "c:3"]).unwrap();
        assert_eq!(config.cluster, ["a:1", "b:2", "c:3"]);
        assert_eq!(config.common.admin_listen, "127.0.0.1:11281");
        assert_eq!(config.timeout, Duration::from_secs(5));
    }

    #[test]
    fn the_budget_is_half_of_the_memory_and_the_longest_value_half_of_that_at_most() {
        let load = |more: &[&str]| load_from(&[&["--cluster", "a:1"], more].concat());
        let available = memory::available();
        let half = Budget::percent(50).unwrap().resolve(available);
        let config = load(&[]).unwrap();
        assert_eq!(config.ram_budget, half);
        assert!(config.max_value.bytes() <= half.bytes() / 2);
        let budget = |config: Config| (config.ram_budget, config.max_value);
        let mib = ByteCount::mib;
        let loaded = load(&["--ram-budget", "256m"]).map(budget);
        assert_eq!(loaded, Ok((mib(256), mib(128))));
        let loaded = load(&["--ram-budget", "2g"]).map(budget);
        assert_eq!(loaded, Ok((mib(2048), mib(256))));
        let loaded = load(&["--ram-budget", "64m", "--max-value", "32m"]).map(budget);
        assert_eq!(loaded, Ok((mib(64), mib(32))));
        let error = load(&["--ram-budget", "64m", "--max-value", "33m"]).unwrap_err();
        assert!(
            error.contains("--max-value 33m") && error.contains("at most 32m"),
            "{error}"
        );
        let quarter = Budget::percent(25).unwrap().resolve(available);
        let loaded = load(&["--ram-budget", "25%"]).map(|config| config.ram_budget);
        assert_eq!(loaded, Ok(quarter));
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        for (args, flag) in [
            (&["--cluster", "unix:/x"][..], "--cluster"),
            (&["--cluster", "a:1", "--listen", "0.0.0.0:1"], "--listen"),
            (&["--cluster", "a:1", "--timeout", "1ms"], "--timeout"),
            (
                &["--cluster", "a:1", "--advertise", "0.0.0.0:1"],
                "--advertise",
            ),
            (&["--cluster", "a:1", "--advertise", "host"], "--advertise"),
            (&["--cluster", "a:1", "--threads", "0"], "--threads"),
            (&["--cluster", "a:1", "--ram-budget", "1m"], "--ram-budget"),
            (&["--cluster", "a:1", "--max-value", "2g"], "--max-value"),
        ] {
            let error = load_from(args).unwrap_err();
            assert!(error.contains(flag), "{error}");
        }
        let open = ["--cluster", "a:1", "--listen", "0.0.0.0:1"];
        let users = ["--users-file", "users.toml"];
        let members = ["--tls-cert", "c", "--tls-key", "k", "--tls-client-ca", "ca"];
        let encrypted = [&users[..], &members[..4]].concat();
        for protection in [&["--insecure"][..], &encrypted, &members] {
            assert!(load_from(&[&open[..], protection].concat()).is_ok());
        }
        let clear = load_from(&[&open[..], &users].concat()).unwrap_err();
        assert!(
            clear.contains("--listen") && clear.contains("in the clear"),
            "{clear}"
        );
        assert!(
            load_from(&[&open[..], &members[..4]].concat()).is_err(),
            "nobody is asked"
        );
    }
}
