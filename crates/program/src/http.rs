//! The settings of the HTTP port for build tools.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use fonn_base::config::ConfigError;
use fonn_base::duration::Span;
use fonn_server::ListenAddr;

/// How long a read may take if nothing else is said.
const DEADLINE: Duration = Duration::from_secs(2);

/// `--http-listen`: HOST:PORT, or `none`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HttpAddr {
    /// The port is not served.
    None,
    /// It is, at this address.
    At(String),
}

impl FromStr for HttpAddr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self::None);
        }
        match text.parse()? {
            ListenAddr::Tcp(text) => Ok(Self::At(text)),
            ListenAddr::Unix(_) => Err("HTTP is served on HOST:PORT, or none".to_owned()),
        }
    }
}

crate::from_text!(HttpAddr);

impl fmt::Display for HttpAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::At(address) => address,
        })
    }
}

/// The HTTP port as it is in force.
#[derive(Clone, Debug)]
pub struct HttpConfig {
    /// Where build tools connect.
    pub listen: HttpAddr,
    /// A read that takes longer is a miss.
    pub deadline: Duration,
}

impl HttpConfig {
    /// Fills in the defaults.
    ///
    /// # Errors
    /// If the deadline is out of range.
    pub fn resolve(
        listen: Option<HttpAddr>,
        default: HttpAddr,
        deadline: Option<Span>,
    ) -> Result<Self, ConfigError> {
        let deadline = deadline.map_or(DEADLINE, Span::get);
        if deadline < Duration::from_millis(10) || deadline > Duration::from_secs(60) {
            let given = format!("{deadline:?}");
            return Err(ConfigError::invalid(
                "--http-deadline",
                given,
                "10ms to 60s",
            ));
        }
        Ok(Self {
            listen: listen.unwrap_or(default),
            deadline,
        })
    }

    /// The address, if there is one.
    #[must_use]
    pub fn address(&self) -> Option<&str> {
        match &self.listen {
            HttpAddr::None => None,
            HttpAddr::At(address) => Some(address),
        }
    }

    /// Names and values of what is in force.
    #[must_use]
    pub fn pairs(&self) -> [(&'static str, String); 2] {
        [
            ("http_listen", self.listen.to_string()),
            ("http_deadline", format!("{:?}", self.deadline)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_host_and_port_or_none() {
        let at = |text: &str| Ok(HttpAddr::At(text.to_owned()));
        assert_eq!("none".parse(), Ok(HttpAddr::None));
        assert_eq!("127.0.0.1:11290".parse(), at("127.0.0.1:11290"));
        for text in ["unix:/x", "11290", "", "None"] {
            assert!(text.parse::<HttpAddr>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_deadline_has_bounds() {
        let resolve = |text: &str| {
            let deadline = text.parse().ok();
            HttpConfig::resolve(None, HttpAddr::None, deadline).map(|it| it.deadline)
        };
        assert_eq!(resolve("500ms").unwrap(), Duration::from_millis(500));
        assert_eq!(resolve("").unwrap(), DEADLINE);
        for text in ["1ms", "61s"] {
            assert!(
                resolve(text)
                    .unwrap_err()
                    .to_string()
                    .contains("--http-deadline")
            );
        }
    }
}
