//! Which function answers which path.

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use fonn_base::metrics::{self, Metrics};
use hyper::header::{
    ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HeaderValue, IF_NONE_MATCH,
    REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Method, StatusCode};

use super::{Grpc, HostNames, Readiness};

/// A request, without its body.
pub type Request = hyper::Request<()>;

const TEXT: &str = "text/plain; charset=utf-8";

/// A complete response.
#[derive(Clone, Debug)]
pub struct Response {
    /// Status.
    pub status: StatusCode,
    /// Media type of the body.
    pub content_type: &'static str,
    /// The body.
    pub body: Bytes,
    /// An entity tag with its quotes (RFC 9110, section 8.8.3). With one the response may be kept
    /// and asked for again, and a request that has it already gets 304; without one it must not be
    /// kept.
    pub etag: Option<String>,
    /// The URL names these very bytes: with an entity tag, they need not be asked for again.
    pub immutable: bool,
    /// What the page may load and do (Content Security Policy, level 3).
    pub content_security_policy: Option<&'static str>,
}

impl Response {
    /// 200 with a body.
    pub fn ok(content_type: &'static str, body: impl Into<Bytes>) -> Self {
        Self {
            status: StatusCode::OK,
            content_type,
            body: body.into(),
            etag: None,
            immutable: false,
            content_security_policy: None,
        }
    }

    /// A status with one line of text.
    pub fn text(status: StatusCode, line: &str) -> Self {
        Self {
            status,
            content_type: TEXT,
            body: format!("{line}\n").into(),
            etag: None,
            immutable: false,
            content_security_policy: None,
        }
    }

    fn into_http(self, request: &Request) -> hyper::Response<Bytes> {
        let known = |etag: &String| {
            let sent = request.headers().get_all(IF_NONE_MATCH).iter();
            let mut tags = sent
                .filter_map(|value| value.to_str().ok())
                .flat_map(|v| v.split(','));
            tags.any(|tag| matches!(tag.trim(), "*") || tag.trim().trim_start_matches("W/") == etag)
        };
        let unchanged = self.status == StatusCode::OK && self.etag.as_ref().is_some_and(known);
        let mut response = hyper::Response::new(if unchanged { Bytes::new() } else { self.body });
        *response.status_mut() = if unchanged {
            StatusCode::NOT_MODIFIED
        } else {
            self.status
        };
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(self.content_type));
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        let etag = self.etag.and_then(|etag| HeaderValue::try_from(etag).ok());
        let caching = match (&etag, self.immutable) {
            (Some(_), true) => "public, max-age=31536000, immutable",
            (Some(_), false) => "no-cache",
            (None, _) => "no-store",
        };
        if let Some(policy) = self.content_security_policy {
            headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
            headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
        }
        headers.insert(CACHE_CONTROL, HeaderValue::from_static(caching));
        if let Some(etag) = etag {
            headers.insert(ETAG, etag);
        }
        response
    }
}

/// The file of the dashboard at a path, for [`Routes::with_fallback`].
#[must_use]
pub fn dashboard(request: &Request) -> Option<Response> {
    let asset = fonn_dashboard::serve(request.uri().path(), request.uri().query())?;
    Some(Response {
        etag: Some(asset.etag.to_owned()),
        immutable: asset.immutable,
        content_security_policy: Some(fonn_dashboard::CONTENT_SECURITY_POLICY),
        ..Response::ok(asset.content_type, asset.bytes)
    })
}

/// The clients that may have a page, where there are users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Audience {
    /// Whatever looks whether the program is well, a load balancer for example: also without TLS.
    Probes,
    /// Every client, before its login.
    Everybody,
    /// Users, except for programs on the same machine.
    Users,
}

type Handler = Box<dyn Fn(&Request) -> Response + Send + Sync>;
type Fallback = Box<dyn Fn(&Request) -> Option<Response> + Send + Sync>;

/// The table of paths. Handlers see GET and HEAD; other methods get 405.
#[derive(Default)]
pub struct Routes {
    exact: BTreeMap<&'static str, (Audience, Handler)>,
    fallback: Option<Fallback>,
    pub(super) grpc: Option<Grpc>,
    pub(super) hosts: HostNames,
}

impl fmt::Debug for Routes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.exact.keys()).finish()
    }
}

impl Routes {
    /// No paths at all.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// `/metrics`, `/healthz` (the process answers) and `/readyz` (it takes traffic).
    #[must_use]
    pub fn with_standard(self, metrics: Metrics, readiness: Readiness) -> Self {
        self.with_page("/metrics", Audience::Users, move |_| {
            match metrics.render() {
                Ok(text) => Response::ok(metrics::CONTENT_TYPE, text),
                Err(error) => {
                    tracing::error!(%error, "rendering metrics");
                    Response::text(
                        StatusCode::INTERNAL_SERVER_ERROR,
                        "metrics cannot be rendered",
                    )
                }
            }
        })
        .with_page("/healthz", Audience::Probes, |_| {
            Response::text(StatusCode::OK, "ok")
        })
        .with_page("/readyz", Audience::Probes, move |_| {
            let (is_ready, words) = readiness.told();
            let status = match is_ready {
                true => StatusCode::OK,
                false => StatusCode::SERVICE_UNAVAILABLE,
            };
            Response::text(status, words)
        })
    }

    /// Answers exactly `path`.
    pub(super) fn with_page(
        mut self,
        path: &'static str,
        audience: Audience,
        handler: impl Fn(&Request) -> Response + Send + Sync + 'static,
    ) -> Self {
        self.exact.insert(path, (audience, Box::new(handler)));
        self
    }

    /// The clients that may have the page at a path.
    pub(super) fn audience(&self, path: &str) -> Audience {
        let page = self.exact.get(path);
        page.map_or(Audience::Everybody, |(audience, _)| *audience)
    }

    /// Answers what no other handler does; `None` means 404.
    #[must_use]
    pub fn with_fallback(
        mut self,
        handler: impl Fn(&Request) -> Option<Response> + Send + Sync + 'static,
    ) -> Self {
        self.fallback = Some(Box::new(handler));
        self
    }

    /// Answers by these names, too, over plain HTTP: besides addresses and `localhost`.
    #[must_use]
    pub fn with_hosts(mut self, hosts: HostNames) -> Self {
        self.hosts = hosts;
        self
    }

    /// Answers gRPC and gRPC-web.
    #[must_use]
    pub fn with_grpc(mut self, grpc: Grpc) -> Self {
        self.grpc = Some(grpc);
        self
    }

    pub(super) fn answer(&self, request: &Request) -> hyper::Response<Bytes> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let response = Response::text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD");
            let mut response = response.into_http(request);
            response
                .headers_mut()
                .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return response;
        }
        let response = match self.exact.get(request.uri().path()) {
            Some((_, handler)) => Some(handler(request)),
            None => self.fallback.as_ref().and_then(|handler| handler(request)),
        };
        let response =
            response.unwrap_or_else(|| Response::text(StatusCode::NOT_FOUND, "no such page"));
        response.into_http(request)
    }
}
