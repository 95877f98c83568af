//! Whether a browser calls on behalf of another site.
//!
//! The admin port asks no client on the same machine for a password, and a browser on a laptop with
//! a node can reach it too. Pages of other sites must not use it. Browsers tell where a script
//! comes from (Fetch standard, section 3.2, `Origin`), and programs that are no browser do not send
//! it.

use hyper::header::ORIGIN;
use hyper::http::uri::Authority;

use super::hosts::host_of;

/// Whether the request comes from a page that was not loaded from here. Whether a name is one of
/// this process is for [`HostNames`](super::HostNames) to say.
#[must_use]
pub fn is_foreign<B>(request: &hyper::Request<B>) -> bool {
    let Some(origin) = request.headers().get(ORIGIN) else {
        return false;
    };
    let origin = origin
        .to_str()
        .ok()
        .and_then(|origin| origin.split_once("://"))
        .and_then(|(_, authority)| Authority::try_from(authority).ok());
    match (origin, host_of(request)) {
        (Some(origin), Some(host)) => origin != host,
        // `Origin: null`, or no host to compare with.
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use hyper::header::HOST;

    use super::*;

    fn foreign(host: &str, origin: &str) -> bool {
        let request = hyper::Request::builder()
            .uri("/fonn.v1.Admin/Flush")
            .header(HOST, host)
            .header(ORIGIN, origin)
            .body(())
            .unwrap();
        is_foreign(&request)
    }

    #[test]
    fn pages_from_here_and_programs_may_call() {
        for host in ["127.0.0.1:11280", "localhost:11280", "[::1]:11280"] {
            assert!(!foreign(host, &format!("http://{host}")), "{host}");
        }
        let name = "node-1.example:11280";
        assert!(!foreign(name, &format!("https://{name}")));
        assert!(!is_foreign(&hyper::Request::new(())));
        let by_authority = hyper::Request::builder()
            .uri("http://127.0.0.1:1/x")
            .header(ORIGIN, "http://127.0.0.1:1")
            .body(())
            .unwrap();
        assert!(!is_foreign(&by_authority));
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
            assert!(foreign("127.0.0.1:11280", origin), "{origin}");
        }
    }
}
