//! The settings of the HTTP port for build tools.

use std::time::Duration;

use fonn_base::config::ConfigError;
use fonn_base::duration::Span;

use crate::fields::{HostPort, OrNone};

/// How long a read may take if nothing else is said.
const DEADLINE: Duration = Duration::from_secs(2);

/// The HTTP port as it is in force.
#[derive(Clone, Debug)]
pub struct HttpConfig {
    /// Where build tools connect; None if the port is not served.
    pub listen: Option<String>,
    /// A read that takes longer is a miss.
    pub deadline: Duration,
}

impl HttpConfig {
    /// Fills in the defaults.
    ///
    /// # Errors
    /// If the deadline is out of range.
    pub fn resolve(
        listen: Option<OrNone<HostPort>>,
        default: Option<&str>,
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
            listen: match listen {
                Some(given) => given.0.map(|it| it.0),
                None => default.map(str::to_owned),
            },
            deadline,
        })
    }

    /// The address, if there is one.
    #[must_use]
    pub fn address(&self) -> Option<&str> {
        self.listen.as_deref()
    }

    /// Names and values of what is in force.
    #[must_use]
    pub fn pairs(&self) -> [(&'static str, String); 2] {
        [
            ("http_listen", self.address().unwrap_or("none").to_owned()),
            ("http_deadline", format!("{:?}", self.deadline)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_host_and_port_or_none() {
        let at = |text: &str| Ok(OrNone(Some(HostPort(text.to_owned()))));
        assert_eq!("none".parse(), Ok(OrNone::<HostPort>(None)));
        assert_eq!("127.0.0.1:11290".parse(), at("127.0.0.1:11290"));
        for text in ["unix:/x", "11290", "", "None", "http://h:1"] {
            assert!(text.parse::<OrNone<HostPort>>().is_err(), "{text}");
        }
        let why = "unix:/x".parse::<OrNone<HostPort>>().unwrap_err();
        for part in ["`unix:/x`", "HOST:PORT", "none"] {
            assert!(why.contains(part), "{why}");
        }
    }

    #[test]
    fn the_deadline_has_bounds() {
        let resolve = |text: &str| {
            let deadline = text.parse().ok();
            HttpConfig::resolve(None, None, deadline).map(|it| it.deadline)
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
