//! The health service of gRPC, version 1. Load balancers ask it without a login.
//!
//! `Watch` is not offered: each of its calls would stay open for a client without a login. Clients
//! take a server without it for healthy, as the service's description demands.

use std::sync::Arc;
use std::time::Duration;

use bytes::Buf as _;
use fonn_reapi::messages::{HealthCheckRequest, HealthCheckResponse};
use fonn_reapi::status::{Code, Refusal};
use fonn_reapi::{Deframer, Method};
use http_body_util::BodyExt as _;
use prost::Message as _;
use tokio::time::timeout;

use super::reply::Reply;
use crate::life::Life;
use crate::receive::RequestBody;

/// Longest request, with its head. The longest service has a name of 57 bytes.
const REQUEST_LEN_MAX: usize = 256;

/// How long the request may take.
const REQUEST_WAIT: Duration = Duration::from_secs(2);

/// The value of a server that serves.
const SERVING: i32 = 1;

/// Tells that a service is served.
///
/// # Errors
/// NOT_FOUND for a service that the server does not have.
pub(super) async fn check<B: RequestBody>(body: B, life: &Arc<Life>) -> Result<Reply, Refusal> {
    let awaiting = life.await_stranger();
    let request = timeout(REQUEST_WAIT, receive(body)).await;
    drop(awaiting);
    let late = |_| Refusal::new(Code::DeadlineExceeded, "the request did not come in time");
    let HealthCheckRequest { service } = request.map_err(late)??;
    if !is_served(&service) {
        let line = "the server has no service of that name";
        return Err(Refusal::new(Code::NotFound, line));
    }
    Ok(Reply::message(&HealthCheckResponse { status: SERVING }))
}

/// The answer to what is not offered.
pub(super) fn unwatched() -> Refusal {
    Refusal::new(Code::Unimplemented, "ask with Check: there is no Watch")
}

/// Whether the server has a service; the empty name is that of the whole server.
fn is_served(service: &str) -> bool {
    let calls = Method::ALL.iter().map(|it| it.path());
    let mut services = calls.filter_map(|path| path.strip_prefix('/')?.split_once('/'));
    service.is_empty() || services.any(|(name, _)| name == service)
}

async fn receive<B: RequestBody>(mut body: B) -> Result<HealthCheckRequest, Refusal> {
    let (mut deframer, mut len) = (Deframer::default(), 0);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Refusal::invalid("the request cannot be read"))?;
        let Ok(mut data) = frame.into_data() else {
            continue;
        };
        len += data.remaining();
        if len > REQUEST_LEN_MAX {
            return Err(Refusal::invalid("the request is too long"));
        }
        deframer.push(&data.copy_to_bytes(data.remaining()));
    }
    match deframer.pull().map_err(Refusal::invalid)? {
        Some(message) => HealthCheckRequest::decode(message)
            .map_err(|error| Refusal::invalid(format!("malformed message: {error}"))),
        None => Err(Refusal::invalid("the call has no message")),
    }
}
