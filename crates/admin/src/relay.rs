//! Calls that are for another process than the one that received them.
//!
//! The header `fonn-member` names the member of the cluster that a gRPC call is for. A process that
//! receives a call for another member forwards it by [`Relay`], with its login. The target checks
//! the login itself, so it need not trust the relay.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use fonn_auth::tls::Tls;
use fonn_base::boxed::BoxFuture;
use hyper::header::{
    AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, TE, USER_AGENT,
};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, Uri, Version};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service as _;

use super::Channel;
use super::body::guard;

/// Until a connection to a member stands.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// The header with the name of a member: in a request the target, in a response the answering
/// member.
pub const MEMBER: HeaderName = HeaderName::from_static("fonn-member");

/// The header of a response that a router had a member make: for callers that want all members
/// then.
pub const ROUTER: HeaderName = HeaderName::from_static("fonn-router");

/// The part of a request's head that matters to its target. All else is between the two next to
/// each other.
const PASSED: [HeaderName; 8] = [
    AUTHORIZATION,
    MEMBER,
    CONTENT_TYPE,
    TE,
    USER_AGENT,
    HeaderName::from_static("grpc-timeout"),
    HeaderName::from_static("grpc-encoding"),
    HeaderName::from_static("grpc-accept-encoding"),
];

/// What comes of a call that was sent on.
pub type Relayed = BoxFuture<'static, Result<Response<Body>, Status>>;

/// The way to the members of a cluster.
pub trait Relay: Send + Sync + 'static {
    /// The name by which this process is asked for itself; none if it is no member.
    fn own_name(&self) -> Option<String>;

    /// Has a member answer a call: the one of that name, or without one any. The answer
    /// says in the header [`MEMBER`] its member.
    fn relay(&self, member: Option<String>, call: Request<Body>) -> Relayed;
}

/// The target of a request, if it names one.
///
/// # Errors
/// INVALID_ARGUMENT if that cannot be a name.
pub(super) fn member_of(headers: &HeaderMap) -> Result<Option<String>, Status> {
    let Some(value) = headers.get(MEMBER) else {
        return Ok(None);
    };
    match value.to_str() {
        Ok("") => Ok(None),
        Ok(name) => Ok(Some(name.to_owned())),
        Err(_) => Err(Status::invalid_argument(
            "the header `fonn-member` is not the name of a member",
        )),
    }
}

/// The request as it is sent on.
pub(super) fn passed_on(head: &Parts, body: Body) -> Request<Body> {
    let mut request = Request::new(body);
    *request.method_mut() = Method::POST;
    *request.version_mut() = Version::HTTP_2;
    let path = head.uri.path().parse::<Uri>();
    *request.uri_mut() = path.unwrap_or_default();
    for name in PASSED {
        if let Some(mut value) = head.headers.get(&name).cloned() {
            // Never in a log or in HTTP/2's table of headers.
            value.set_sensitive(name == AUTHORIZATION);
            request.headers_mut().insert(name, value);
        }
    }
    request
}

/// Has the first of these members that accepts a connection answer a call. Each is a name, and
/// HOST:PORT.
///
/// The connection is the call's own, and lives as long as the answer: an unread one holds
/// up no other.
///
/// # Errors
/// UNAVAILABLE if none accepts, or the connection ends before an answer.
pub async fn ask(
    members: Vec<(String, String)>,
    tls: Option<&Arc<Tls>>,
    call: Request<Body>,
) -> Result<Response<Body>, Status> {
    let mut why = Status::unavailable("there is no member");
    for (name, address) in members {
        match Channel::connect_to_member(&address, tls, CONNECT_TIMEOUT).await {
            Ok(channel) => return send_on(channel, call, &name).await,
            Err(error) => {
                why =
                    Status::unavailable(format!("`{name}` at {address} does not answer: {error}"));
            }
        }
    }
    Err(why)
}

/// Has the other end of a connection answer a call.
async fn send_on(
    mut channel: Channel,
    mut call: Request<Body>,
    member: &str,
) -> Result<Response<Body>, Status> {
    let unreachable = |error| Status::unavailable(format!("`{member}` does not answer: {error}"));
    let mut target = channel.origin().into_parts();
    target.path_and_query = call.uri().path_and_query().cloned();
    let target = Uri::from_parts(target);
    *call.uri_mut() = target.map_err(|error| Status::internal(error.to_string()))?;
    poll_fn(|cx| channel.poll_ready(cx))
        .await
        .map_err(unreachable)?;
    let answer = channel.call(call).await.map_err(unreachable)?;
    let mut answer = answer.map(Body::new);
    sign(&mut answer, member);
    Ok(guard(answer, channel))
}

/// Says in the head of a response whose it is.
pub fn sign<B>(response: &mut Response<B>, member: &str) {
    if let Ok(value) = HeaderValue::try_from(member) {
        response.headers_mut().insert(MEMBER, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_on_has_the_login_and_nothing_of_the_browser() {
        let request = Request::post("http://here:1/fonn.v1.Admin/Status?x=1")
            .header("authorization", "Basic eDp5")
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("cookie", "secret")
            .header("origin", "http://here:1")
            .header("host", "here")
            .header("fonn-member", "n2")
            .body(());
        let (head, ()) = request.unwrap().into_parts();
        assert_eq!(member_of(&head.headers).unwrap().as_deref(), Some("n2"));
        let request = passed_on(&head, Body::empty());
        assert_eq!(request.uri(), "/fonn.v1.Admin/Status");
        let names = request.headers().keys().map(HeaderName::as_str);
        let mut names: Vec<&str> = names.collect();
        names.sort_unstable();
        // And its target: an address may be another member's by now.
        assert_eq!(
            names,
            ["authorization", "content-type", "fonn-member", "te"]
        );
        assert!(request.headers()["authorization"].is_sensitive());
    }

    #[test]
    fn a_name_that_is_none_is_refused() {
        let mut headers = HeaderMap::new();
        assert_eq!(member_of(&headers).unwrap(), None);
        headers.insert(MEMBER, HeaderValue::from_static(""));
        assert_eq!(member_of(&headers).unwrap(), None);
        headers.insert(MEMBER, HeaderValue::from_bytes(b"\xff").unwrap());
        assert_eq!(
            member_of(&headers).unwrap_err().code(),
            tonic::Code::InvalidArgument
        );
    }
}
