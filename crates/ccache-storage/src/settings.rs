//! What ccache tells the helper, in variables of its environment.
//!
//! `CRSH_IPC_ENDPOINT` is the socket, `CRSH_URL` the server, `CRSH_IDLE_TIMEOUT` the seconds until
//! an idle helper ends (0: never). `CRSH_NUM_ATTR`, `CRSH_ATTR_KEY_i` and `CRSH_ATTR_VALUE_i` are
//! the attributes that the user wrote as `@key=value`.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fonn_http_client::{Client, NoAuthority, Server, ServerError, trusting};

/// Attributes that are read at most.
const ATTRIBUTES_MAX: usize = 64;

/// The port of a URL that names none.
const DEFAULT_PORT: u16 = 11290;

/// A request to the server that takes longer has failed, unless `@deadline` says otherwise. ccache
/// itself waits for ten seconds.
const DEFAULT_DEADLINE: Duration = Duration::from_secs(5);

/// What ccache does when it names no idle timeout.
const DEFAULT_IDLE_TIMEOUT: Duration = Duration::from_secs(600);

/// Longest token in bytes.
const TOKEN_LEN_MAX: u64 = 8 << 10;

/// What the helper is told.
#[derive(Debug)]
pub(crate) struct Settings {
    /// The socket.
    pub(crate) endpoint: PathBuf,
    /// For how long the helper waits for requests; none to wait for ever.
    pub(crate) idle_timeout: Option<Duration>,
    /// The server, or what is wrong with its settings.
    pub(crate) target: Result<Target, SettingsError>,
}

/// Where the server is and how it is called, before files are read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// HOST:PORT.
    pub(crate) addr: String,
    prefix: String,
    tls: Tls,
    token: Token,
    deadline: Duration,
}

#[derive(Debug, PartialEq, Eq)]
enum Tls {
    None,
    /// The authority is in the file, or is one of the machine.
    Trusting(Option<PathBuf>),
}

#[derive(PartialEq, Eq)]
enum Token {
    None,
    Text(String),
    File(PathBuf),
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Text(_) => "a secret",
            Self::File(_) => "a file",
        })
    }
}

/// Why the settings cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SettingsError {
    #[error("CRSH_IPC_ENDPOINT is not set: ccache starts this program by itself")]
    NoEndpoint,
    #[error("malformed URL; expected fonn://HOST:PORT/PREFIX")]
    Url,
    #[error("a login in the URL is not read; use @bearer-token=NAME:PASSWORD")]
    Login,
    #[error("the URL has the scheme {0}; expected fonn, or http or https with helper=")]
    Scheme(String),
    #[error("unknown attribute @{0}; expected bearer-token, token-file, tls, ca or deadline")]
    Attribute(String),
    #[error("malformed @{0}; expected {1}")]
    Value(&'static str, &'static str),
    #[error("cannot read the file of @{0}: {1}")]
    File(&'static str, io::ErrorKind),
    #[error(transparent)]
    Authority(#[from] NoAuthority),
    #[error(transparent)]
    Server(#[from] ServerError),
}

impl Settings {
    /// The settings in variables.
    ///
    /// # Errors
    /// If there is no socket. What is wrong beyond that is told over the socket.
    pub(crate) fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Self, SettingsError> {
        let endpoint = variable("CRSH_IPC_ENDPOINT").filter(|it| !it.is_empty());
        let idle = variable("CRSH_IDLE_TIMEOUT").and_then(|it| it.parse().ok());
        let idle = idle.map_or(DEFAULT_IDLE_TIMEOUT, Duration::from_secs);
        let count = variable("CRSH_NUM_ATTR").and_then(|it| it.parse().ok());
        let attributes = (0..count.unwrap_or(0).min(ATTRIBUTES_MAX)).filter_map(|number| {
            let key = variable(&format!("CRSH_ATTR_KEY_{number}"))?;
            let value = variable(&format!("CRSH_ATTR_VALUE_{number}"))?;
            Some((key, value))
        });
        Ok(Self {
            endpoint: endpoint.ok_or(SettingsError::NoEndpoint)?.into(),
            idle_timeout: (!idle.is_zero()).then_some(idle),
            target: Target::parse(&variable("CRSH_URL").unwrap_or_default(), attributes),
        })
    }
}

impl Target {
    /// The server that a URL and attributes name.
    ///
    /// # Errors
    /// If one of them is malformed or unknown.
    pub(crate) fn parse(
        url: &str,
        attributes: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, SettingsError> {
        let (scheme, rest) = url.split_once("://").ok_or(SettingsError::Url)?;
        let (default_port, is_https) = match scheme {
            "fonn" => (DEFAULT_PORT, false),
            "http" => (80, false),
            "https" => (443, true),
            other => return Err(SettingsError::Scheme(other.to_owned())),
        };
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        if host.contains('@') {
            return Err(SettingsError::Login);
        }
        let has_port = host.rsplit_once(':').is_some_and(|(_, end)| {
            // The last part of an IPv6 address in brackets is no port.
            !end.is_empty() && end.bytes().all(|byte| byte.is_ascii_digit())
        });
        let mut target = Self {
            addr: match has_port {
                true => host.to_owned(),
                false => format!("{host}:{default_port}"),
            },
            prefix: path.trim_end_matches('/').to_owned(),
            tls: match is_https {
                true => Tls::Trusting(None),
                false => Tls::None,
            },
            token: Token::None,
            deadline: DEFAULT_DEADLINE,
        };
        if host.is_empty() || url.contains(['?', '#']) {
            return Err(SettingsError::Url);
        }
        for (key, value) in attributes {
            target.set(&key, value)?;
        }
        Ok(target)
    }

    fn set(&mut self, key: &str, value: String) -> Result<(), SettingsError> {
        match key {
            "bearer-token" => self.token = Token::Text(value),
            "token-file" => self.token = Token::File(value.into()),
            "ca" => self.tls = Tls::Trusting(Some(value.into())),
            "tls" => match (value.as_str(), &self.tls) {
                ("true", Tls::None) => self.tls = Tls::Trusting(None),
                ("true", Tls::Trusting(_)) => (),
                ("false", _) => self.tls = Tls::None,
                _ => return Err(SettingsError::Value("tls", "true or false")),
            },
            "deadline" => {
                let expected = SettingsError::Value("deadline", "a time as in 500ms or 5s");
                self.deadline = duration(&value).ok_or(expected)?;
            }
            other => return Err(SettingsError::Attribute(other.to_owned())),
        }
        Ok(())
    }

    /// The client of the server. It reads the files of the token and of the authority.
    ///
    /// # Errors
    /// If a file cannot be read, or the client cannot be made.
    pub(crate) fn client(self) -> Result<Client, SettingsError> {
        let tls = match &self.tls {
            Tls::None => None,
            Tls::Trusting(ca) => Some(Arc::new(trusting(ca.as_deref())?)),
        };
        let token = match self.token {
            Token::None => None,
            Token::Text(text) => Some(text),
            Token::File(path) => {
                let text =
                    read(&path).map_err(|it| SettingsError::File("token-file", it.kind()))?;
                Some(text.trim().to_owned())
            }
        };
        Ok(Client::new(Server {
            addr: self.addr,
            tls,
            token: token.filter(|it| !it.is_empty()),
            agent: concat!("fonn-ccache-storage/", env!("CARGO_PKG_VERSION")),
            prefix: self.prefix,
            deadline: self.deadline,
        })?)
    }
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?
        .take(TOKEN_LEN_MAX)
        .read_to_string(&mut text)?;
    Ok(text)
}

/// A time of milliseconds, seconds or minutes, above zero.
fn duration(text: &str) -> Option<Duration> {
    let units = [("ms", 1), ("s", 1000), ("m", 60_000)];
    let (number, unit_ms) = units
        .iter()
        .find_map(|(unit, ms)| Some((text.strip_suffix(unit)?, ms)))?;
    let number: u32 = number.parse().ok().filter(|it| *it > 0)?;
    Some(Duration::from_millis(u64::from(number) * unit_ms))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn parse(url: &str, attributes: &[(&str, &str)]) -> Result<Target, SettingsError> {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        Target::parse(url, attributes.iter().map(owned))
    }

    fn plain(addr: &str, prefix: &str) -> Target {
        Target {
            addr: addr.to_owned(),
            prefix: prefix.to_owned(),
            tls: Tls::None,
            token: Token::None,
            deadline: DEFAULT_DEADLINE,
        }
    }

    #[test]
    fn variables_name_the_socket_the_server_and_its_attributes() {
        let variables = HashMap::from([
            ("CRSH_IPC_ENDPOINT", "/run/s"),
            ("CRSH_URL", "fonn://cache:1/a/b/"),
            ("CRSH_IDLE_TIMEOUT", "7"),
            ("CRSH_NUM_ATTR", "2"),
            ("CRSH_ATTR_KEY_0", "ca"),
            ("CRSH_ATTR_VALUE_0", "/ca.pem"),
            ("CRSH_ATTR_KEY_1", "deadline"),
            ("CRSH_ATTR_VALUE_1", "500ms"),
            ("CRSH_ATTR_KEY_2", "not counted"),
            ("CRSH_ATTR_VALUE_2", ""),
        ]);
        let settings = Settings::read(|name| variables.get(name).map(|it| (*it).to_owned()));
        let settings = settings.unwrap();
        assert_eq!(settings.endpoint, Path::new("/run/s"));
        assert_eq!(settings.idle_timeout, Some(Duration::from_secs(7)));
        let expected = Target {
            tls: Tls::Trusting(Some("/ca.pem".into())),
            deadline: Duration::from_millis(500),
            ..plain("cache:1", "a/b")
        };
        assert_eq!(settings.target, Ok(expected));
        assert_eq!(
            Settings::read(|_| None).unwrap_err(),
            SettingsError::NoEndpoint
        );
    }

    #[test]
    fn urls_name_host_port_and_prefix() {
        for (url, addr, prefix) in [
            ("fonn://h", "h:11290", ""),
            ("fonn://h/", "h:11290", ""),
            ("fonn://h:7/ccache", "h:7", "ccache"),
            ("fonn://[::1]/c", "[::1]:11290", "c"),
            ("fonn://[::1]:7/c", "[::1]:7", "c"),
            ("http://h/c", "h:80", "c"),
        ] {
            assert_eq!(parse(url, &[]), Ok(plain(addr, prefix)), "{url}");
        }
        let secured = Target {
            tls: Tls::Trusting(None),
            ..plain("h:443", "c")
        };
        assert_eq!(parse("https://h/c", &[]), Ok(secured));
        for url in ["", "fonn:h", "fonn:///c", "fonn://h/a?b", "fonn://h/#a"] {
            assert_eq!(parse(url, &[]), Err(SettingsError::Url), "{url}");
        }
        let other = parse("redis://h", &[]);
        assert_eq!(other, Err(SettingsError::Scheme("redis".to_owned())));
        assert_eq!(parse("fonn://a:b@h", &[]), Err(SettingsError::Login));
    }

    #[test]
    fn attributes_that_cannot_be_are_refused() {
        let refused = |key: &str, value: &str| {
            let target = parse("fonn://h/c", &[(key, value)]);
            target.and_then(|it| it.client().map(drop)).unwrap_err()
        };
        let unknown = SettingsError::Attribute("layout".to_owned());
        assert_eq!(refused("layout", "flat"), unknown);
        assert!(matches!(
            refused("tls", "yes"),
            SettingsError::Value("tls", _)
        ));
        for value in ["", "5", "0s", "s", "-1s", "99999999999s"] {
            let error = refused("deadline", value);
            assert!(
                matches!(error, SettingsError::Value("deadline", _)),
                "{value}"
            );
        }
        let error = SettingsError::File("token-file", io::ErrorKind::NotFound);
        assert_eq!(refused("token-file", "/does/not/exist"), error);
        let error = SettingsError::Authority(NoAuthority);
        assert_eq!(refused("ca", "/does/not/exist"), error);
        let error = SettingsError::Server(ServerError::Token);
        assert_eq!(refused("bearer-token", "a\nb"), error);
        let target = parse("fonn://h/c", &[("bearer-token", "secret")]);
        assert!(!format!("{target:?}").contains("\"secret\""));
    }

    proptest! {
        #[test]
        fn any_text_is_a_target_or_an_error(url in ".{0,60}", key in ".{0,20}", value in ".{0,20}") {
            let _ = Target::parse(&url, [(key, value)]);
            let _ = Target::parse(&format!("fonn://{url}"), []).and_then(Target::client);
        }
    }
}
