//! The names by which the admin port answers over plain HTTP.
//!
//! A page of another site can point its own name at this machine (DNS rebinding). To the browser
//! the port is then a part of that site. So the port answers to addresses, to `localhost`, and to
//! names that the operator gave. Over TLS the client has compared the name with the certificate,
//! and nothing is left to check.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use hyper::header::HOST;
use hyper::http::uri::Authority;

/// Longest name of a host (RFC 1035, section 2.3.4).
const NAME_LEN_MAX: usize = 253;

/// A name by which the port answers: `cache.example.com`, or `*.example.com` for every name below.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostName(String);

impl FromStr for HostName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let name = text.strip_prefix("*.").unwrap_or(text);
        let is_label = |label: &str| {
            let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
            !label.is_empty() && label.bytes().all(is_inner)
        };
        match name.len() <= NAME_LEN_MAX && name.split('.').all(is_label) {
            true => Ok(Self(text.to_ascii_lowercase())),
            false => Err(format!(
                "`{text}` is no name of a host, as in cache.example.com or *.example.com"
            )),
        }
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl HostName {
    /// The name as it was given, in lower case.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The host of HOST:PORT, if it is a name.
    fn of_address(address: &str) -> Option<Self> {
        let (host, _) = address.rsplit_once(':')?;
        host.parse().ok().filter(|_| !is_address(host))
    }

    fn is(&self, host: &str) -> bool {
        match self.0.strip_prefix('*') {
            None => host == self.0,
            Some(suffix) => host.len() > suffix.len() && host.ends_with(suffix),
        }
    }
}

/// All names by which the port answers; clones are the same.
#[derive(Clone, Debug, Default)]
pub struct HostNames(Arc<[HostName]>);

impl HostNames {
    /// The names that were given, and those in the addresses (HOST:PORT) by which others reach this
    /// process.
    #[must_use]
    pub fn new<'a>(given: &[HostName], addresses: impl IntoIterator<Item = &'a str>) -> Self {
        let of_addresses = addresses.into_iter().filter_map(HostName::of_address);
        Self(given.iter().cloned().chain(of_addresses).collect())
    }

    /// Whether the request names this process.
    ///
    /// # Errors
    /// [`ForeignHost`], with the name that it has instead.
    pub fn check<B>(&self, request: &hyper::Request<B>) -> Result<(), ForeignHost> {
        let Some(host) = host_of(request) else {
            // No browser leaves it out.
            return match request.headers().contains_key(HOST) {
                true => Err(ForeignHost(String::new())),
                false => Ok(()),
            };
        };
        let host = host.host().to_ascii_lowercase();
        let host = host.strip_suffix('.').unwrap_or(&host);
        let is_known = host == "localhost" || self.0.iter().any(|name| name.is(host));
        match is_known || is_address(host) {
            true => Ok(()),
            false => Err(ForeignHost(host.to_owned())),
        }
    }
}

/// The request is for another host.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "without TLS this port does not answer for the host `{0}`: call it by its address or as localhost, or start it with \
     --admin-host NAME"
)]
pub struct ForeignHost(String);

/// The host that a request is for, if it says so in a form that can be read.
pub(super) fn host_of<B>(request: &hyper::Request<B>) -> Option<Authority> {
    match request.uri().authority() {
        Some(authority) => Some(authority.clone()),
        None => {
            let host = request.headers().get(HOST)?;
            Authority::try_from(host.as_bytes()).ok()
        }
    }
}

fn is_address(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    bare.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(host: &str) -> hyper::Request<()> {
        let request = hyper::Request::builder().uri("/metrics");
        request.header(HOST, host).body(()).unwrap()
    }

    fn names(given: &[&str], addresses: &[&str]) -> HostNames {
        let given: Vec<HostName> = given.iter().map(|it| it.parse().unwrap()).collect();
        HostNames::new(&given, addresses.iter().copied())
    }

    #[test]
    fn addresses_localhost_and_given_names_are_answered() {
        let names = names(
            &["Cache.example.com", "*.svc.cluster.local"],
            &["node1:11290", "0.0.0.0:1", "[::]:2"],
        );
        for host in [
            "127.0.0.1:11280",
            "[::1]:11280",
            "10.0.0.7",
            "LOCALHOST:1",
            "cache.example.COM:443",
            "cache.example.com.",
            "fonn-0.ns.svc.cluster.local:11280",
            "node1:11280",
        ] {
            assert_eq!(names.check(&request(host)), Ok(()), "{host}");
        }
        assert_eq!(names.check(&hyper::Request::new(())), Ok(()));
    }

    #[test]
    fn the_name_of_another_site_is_not() {
        let names = names(&["*.svc.cluster.local"], &[]);
        for host in [
            "evil.example:11280",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "svc.cluster.local",
            ".svc.cluster.local",
            "xsvc.cluster.local",
            "node1",
            "",
            "a b",
        ] {
            assert!(names.check(&request(host)).is_err(), "{host}");
        }
        let by_authority = hyper::Request::builder().uri("http://evil.example/x");
        assert!(names.check(&by_authority.body(()).unwrap()).is_err());
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for text in [
            "",
            "*",
            "*.",
            "a..b",
            "http://a",
            "a:1",
            "a.*.b",
            "a b",
            &"x".repeat(254),
        ] {
            assert!(text.parse::<HostName>().is_err(), "{text}");
        }
    }
}
