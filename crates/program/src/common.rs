//! The settings that node and router have in common: listeners, access, threads and logs.

use std::io;
use std::path::PathBuf;

use fonn_admin::{HostName, HostNames};
use fonn_base::config::ConfigError;
use fonn_base::duration::Span;
use fonn_base::telemetry::{LogFilter, LogFormat};
use fonn_server::{ListenAddr, Listener};
use serde::Deserialize;

use crate::fields::{HostPort, OrNone, one_or_many, threads};
use crate::http::HttpConfig;
use crate::security::SecurityConfig;

fonn_base::layer! {
    /// One layer of the common settings but those of logs. The help is that of a node. A router
    /// words some of it anew by `mut_arg`.
    #[derive(Clone, Debug, Default, clap::Args, Deserialize)]
    #[serde(default)]
    pub struct CommonSettings {
        /// Address of the client protocols, HOST:PORT or unix:PATH; may be repeated [default:
        /// 127.0.0.1:11211]
        #[arg(long, value_name = "ADDR", env = "FONN_LISTEN", value_delimiter = ',', help_heading = "Listeners")]
        #[serde(deserialize_with = "one_or_many")]
        pub listen: Vec<ListenAddr>,
        /// HOST:PORT of the HTTP port for build tools (WebDAV, Bazel, Gradle, Maven, Nx,
        /// Turborepo), or none; if the default is taken, the node serves without it [default:
        /// 127.0.0.1:11290]
        #[arg(long, value_name = "ADDR", env = "FONN_HTTP_LISTEN", help_heading = "Listeners")]
        pub http_listen: Option<OrNone<HostPort>>,
        /// From the arrival of a read over HTTP to its answer at most; a read that takes longer is
        /// a miss [default: 2s]
        #[arg(long, value_name = "DURATION", env = "FONN_HTTP_DEADLINE", help_heading = "Listeners")]
        pub http_deadline: Option<Span>,
        /// Address of the admin port: status page, /metrics, /healthz, /readyz [default:
        /// 127.0.0.1:11280]
        #[arg(long, value_name = "ADDR", env = "FONN_ADMIN_LISTEN", help_heading = "Listeners")]
        pub admin_listen: Option<HostPort>,
        /// Name by which the admin port answers without TLS, besides addresses, localhost and the
        /// names in --admin-listen and --advertise; *.NAME for all below; may be repeated [default:
        /// none]
        #[arg(long, value_name = "NAME", env = "FONN_ADMIN_HOST", value_delimiter = ',', help_heading = "Listeners")]
        #[serde(deserialize_with = "one_or_many")]
        pub admin_host: Vec<HostName>,
        /// Serve addresses that other machines can reach, although clients need no login or there
        /// is no TLS
        #[arg(long, env = "FONN_INSECURE", num_args = 0..=1, default_missing_value = "true", value_name = "BOOL", help_heading = "Listeners")]
        pub insecure: Option<bool>,
        /// Users, their roles and namespaces (TOML); `fonnctl user hash` makes the hashes [default:
        /// none]
        #[arg(long, value_name = "FILE", env = "FONN_USERS_FILE", help_heading = "Security")]
        pub users_file: Option<PathBuf>,
        /// Certificate of all ports, PEM, with those between it and its authority [default: none]
        #[arg(long, value_name = "FILE", env = "FONN_TLS_CERT", help_heading = "Security")]
        pub tls_cert: Option<PathBuf>,
        /// Private key of the certificate, PEM [default: none]
        #[arg(long, value_name = "FILE", env = "FONN_TLS_KEY", help_heading = "Security")]
        pub tls_key: Option<PathBuf>,
        /// Authorities of the certificates of members, routers and clients, PEM; without users a
        /// client from another machine has to show one [default: none]
        #[arg(long, value_name = "FILE", env = "FONN_TLS_CLIENT_CA", help_heading = "Security")]
        pub tls_client_ca: Option<PathBuf>,
        /// Certificates that these authorities have revoked, PEM; connections that show one end
        /// [default: none]
        #[arg(long, value_name = "FILE", env = "FONN_TLS_CLIENT_CRL", help_heading = "Security")]
        pub tls_client_crl: Option<PathBuf>,

        /// Threads that serve clients [default: the number of cores]
        #[arg(long, value_name = "N", env = "FONN_THREADS", help_heading = "Listeners")]
        pub threads: Option<usize>,
    }

    /// One layer of the settings of logs, which are the last in `--help`.
    #[derive(Clone, Debug, Default, clap::Args, Deserialize)]
    #[serde(default)]
    pub struct LogSettings {
        /// What is logged: error, warn, info, debug, trace, or MODULE=LEVEL parts [default: info]
        #[arg(long, value_name = "LEVEL", env = "FONN_LOG", help_heading = "Logs")]
        pub log: Option<LogFilter>,
        /// Form of log lines: text or json [default: text]
        #[arg(long, value_name = "FORMAT", env = "FONN_LOG_FORMAT", help_heading = "Logs")]
        pub log_format: Option<LogFormat>,
    }
}

/// The common settings in force: every default filled in.
#[derive(Clone, Debug)]
pub struct CommonConfig {
    /// Where clients connect.
    pub listen: Vec<ListenAddr>,
    /// The HTTP port for build tools.
    pub http: HttpConfig,
    /// Where the admin port is.
    pub admin_listen: String,
    /// By which names the admin port answers without TLS, as given.
    pub admin_host: Vec<HostName>,
    /// Whether others than this machine may connect without a login.
    pub insecure: bool,
    /// Users, if clients have to log in, and certificate, if the program speaks TLS.
    pub security: SecurityConfig,
    /// Reactors.
    pub threads: usize,
    /// What is logged.
    pub log: LogFilter,
    /// How.
    pub log_format: LogFormat,
}

impl CommonConfig {
    /// Fills in the defaults, of which `admin_listen` and `http_listen` are those of the program,
    /// and checks what only shows when all is known.
    ///
    /// # Errors
    /// A sentence that names the flag, the value and what would be accepted.
    pub fn resolve(
        settings: &CommonSettings,
        log: &LogSettings,
        admin_listen: &str,
        http_listen: Option<&str>,
    ) -> Result<Self, ConfigError> {
        let security = SecurityConfig::resolve(settings)?;
        let listen = match settings.listen.is_empty() {
            true => vec![ListenAddr::Tcp("127.0.0.1:11211".to_owned())],
            false => settings.listen.clone(),
        };
        let admin_listen = match &settings.admin_listen {
            Some(given) => given.0.clone(),
            None => admin_listen.to_owned(),
        };
        let given = settings.http_listen.clone();
        let http = HttpConfig::resolve(given, http_listen, settings.http_deadline)?;
        let insecure = settings.insecure.unwrap_or(false);
        if !insecure {
            security.check_addresses(&listen, &admin_listen, http.address())?;
        }
        // `none` stands for no name.
        let is_name = |name: &&HostName| name.as_str() != "none";
        Ok(Self {
            listen,
            http,
            admin_listen,
            admin_host: settings
                .admin_host
                .iter()
                .filter(is_name)
                .cloned()
                .collect(),
            insecure,
            security,
            threads: threads(settings.threads)?,
            log: log.log.clone().unwrap_or_default(),
            log_format: log.log_format.unwrap_or_default(),
        })
    }

    /// Binds the listeners of the client protocols, and tells their names.
    ///
    /// # Errors
    /// If an address cannot be had, with the address in the message.
    pub fn bind(&self) -> io::Result<(Vec<Listener>, Vec<String>)> {
        let listeners = self.listen.iter().map(Listener::bind);
        let listeners = listeners.collect::<io::Result<Vec<_>>>()?;
        let names = listeners.iter().map(Listener::local_name).collect();
        Ok((listeners, names))
    }

    /// All names by which the admin port answers without TLS; `advertised` is where the program
    /// says that it is reached.
    #[must_use]
    pub fn admin_hosts(&self, advertised: Option<&str>) -> HostNames {
        let addresses = [&*self.admin_listen].into_iter().chain(advertised);
        HostNames::new(&self.admin_host, addresses)
    }

    /// All names by which the HTTP port answers without TLS where no login is needed.
    #[must_use]
    pub fn http_hosts(&self) -> HostNames {
        HostNames::new(&self.admin_host, self.http.address())
    }

    /// Names and values of what is in force.
    #[must_use]
    pub fn pairs(&self) -> Vec<(String, String)> {
        let listen: Vec<String> = self.listen.iter().map(ToString::to_string).collect();
        let admin_host: Vec<String> = self.admin_host.iter().map(ToString::to_string).collect();
        let log_format = format!("{:?}", self.log_format).to_lowercase();
        [
            ("listen", listen.join(",")),
            ("admin_listen", self.admin_listen.clone()),
            ("admin_host", admin_host.join(",")),
            ("insecure", self.insecure.to_string()),
            ("threads", self.threads.to_string()),
            ("log", self.log.to_string()),
            ("log_format", log_format),
        ]
        .into_iter()
        .chain(self.http.pairs())
        .map(|(name, value)| (name.to_owned(), value))
        .chain(self.security.pairs())
        .collect()
    }
}
