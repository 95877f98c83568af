//! Whether a browser calls on behalf of another site.
//!
//! The admin port asks nobody on the same machine for a password, and the browser of somebody who has a
//! node on a laptop can reach it too. Pages of other sites must not use it: browsers tell where a script
//! comes from (Fetch standard, section 3.2, `Origin`), and programs that are no browser do not send it.

use std::net::IpAddr;

use hyper::header::{HOST, ORIGIN};
use hyper::http::uri::Authority;

/// Whether the request comes from a page that was not loaded from here. With `loopback` (the port is
/// bound to the machine itself) a page whose host is a name other than localhost is not from here either:
/// somebody pointed that name at this machine (DNS rebinding).
pub(super) fn is_foreign<B>(request: &hyper::Request<B>, loopback: bool) -> bool {
    let Some(origin) = request.headers().get(ORIGIN) else {
        return false;
    };
    let host = match request.uri().authority() {
        Some(authority) => Some(authority.clone()),
        None => request
            .headers()
            .get(HOST)
            .and_then(|host| Authority::try_from(host.as_bytes()).ok()),
    };
    let origin = origin
        .to_str()
        .ok()
        .and_then(|origin| origin.split_once("://"))
        .and_then(|(_, authority)| Authority::try_from(authority).ok());
    match (origin, host) {
        (Some(origin), Some(host)) => origin != host || (loopback && !is_local(host.host())),
        // `Origin: null`, or no host to compare with.
        _ => true,
    }
}

fn is_local(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost") || bare.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn foreign(host: &str, origin: &str, loopback: bool) -> bool {
        let request = hyper::Request::builder()
            .uri("/fonn.v1.Admin/Flush")
            .header(HOST, host)
            .header(ORIGIN, origin)
            .body(())
            .unwrap();
        is_foreign(&request, loopback)
    }

    #[test]
    fn pages_from_here_and_programs_may_call() {
        for host in ["127.0.0.1:11280", "localhost:11280", "[::1]:11280"] {
            assert!(!foreign(host, &format!("http://{host}"), true), "{host}");
        }
        let name = "node-1.example:11280";
        assert!(!foreign(name, &format!("https://{name}"), false));
        assert!(!is_foreign(&hyper::Request::new(()), true));
        let by_authority = hyper::Request::builder()
            .uri("http://127.0.0.1:1/x")
            .header(ORIGIN, "http://127.0.0.1:1")
            .body(())
            .unwrap();
        assert!(!is_foreign(&by_authority, true));
    }

    #[test]
    fn pages_from_elsewhere_may_not() {
        for origin in [
            "http://evil.example",
            "http://127.0.0.1:8080",
            "null",
            "",
            "http://",
        ] {
            assert!(foreign("127.0.0.1:11280", origin, true), "{origin}");
        }
        let rebound = "evil.example:11280";
        assert!(foreign(rebound, &format!("http://{rebound}"), true));
    }
}
