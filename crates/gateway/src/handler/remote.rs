//! Calls of the Remote Execution API: the same admission, memory and deadlines as requests over
//! HTTP.
//!
//! Invariant: a read that fails is NOT_FOUND, or a blob that is missing. Only a write says that the
//! server is busy.

mod blobs;
mod inbound;
mod reply;
mod results;
mod streams;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fonn_proto::Failure;
use fonn_reapi::status::{Code, Refusal};
use fonn_reapi::{Digest, Hasher, Instance, Method, capabilities};
use fonn_runtime::serve::{Event, Scope};
use futures_util::future::join_all;
use http_body::Body;
use hyper::header::CONTENT_TYPE;
use hyper::{HeaderMap, Request, Response, StatusCode, Version};
use tokio::time::Instant;

use self::inbound::Inbound;
use self::reply::Reply;
pub(super) use self::results::EMPTY_RESULT;
use super::{COUNTED_LEN_MIN, Call, Front, Peer};
use crate::answer::Answer;
use crate::life::Life;
use crate::metrics::LostRead;
use crate::payload::Payload;
use crate::store::{PutMode, Store};
use crate::usage::{Tool, Use};

/// A blob may take longer than `--http-deadline`: a build that was told of a result needs its
/// blobs.
const BLOB_DEADLINE: Duration = Duration::from_secs(10);

/// Blobs that are looked for at once, and how long all of one call may take. What is left then is
/// missing.
const PRESENCE_STEP: usize = 256;
const PRESENCE_DEADLINE: Duration = Duration::from_secs(10);

/// Whether a request is a call of gRPC. Trailers, which gRPC needs, are those of HTTP/2.
pub(super) fn is_call<B>(request: &Request<B>) -> bool {
    let kind = request.headers().get(CONTENT_TYPE);
    let rest = kind.and_then(|kind| kind.as_bytes().strip_prefix(b"application/grpc"));
    request.version() == Version::HTTP_2
        && rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
}

/// The client of a call, and where its keys are.
struct Caller<'c, S: Store> {
    front: &'c Front<S>,
    scope: Scope,
}

impl<S: Store> Front<S> {
    /// Answers a call.
    pub(super) async fn answer_call<B>(
        &self,
        request: Request<B>,
        peer: Peer,
        life: &Arc<Life>,
    ) -> Response<Payload<S>>
    where
        B: Body<Data: Send> + Unpin + Send,
    {
        let (active, begun) = (life.begin(), Instant::now());
        let method = fonn_reapi::method(request.uri().path());
        let replied = self.reply(request, method, Call { peer, life }).await;
        let mut reply = replied.unwrap_or_else(Reply::refused);
        let mut counted = None;
        if reply.len() >= COUNTED_LEN_MIN {
            let left = BLOB_DEADLINE.saturating_sub(begun.elapsed());
            counted = self.count_body(life, reply.len(), left).await;
            if counted.is_none() {
                self.figures().lost(LostRead::Unread);
                reply = Reply::refused(Refusal::missing());
            }
        }
        let figures = &self.figures().remote;
        figures.answered(method, reply.code(), reply.len());
        reply.into_response(counted, active)
    }

    async fn reply<B>(
        &self,
        request: Request<B>,
        method: Option<Method>,
        call: Call<'_>,
    ) -> Result<Reply, Refusal>
    where
        B: Body<Data: Send> + Unpin + Send,
    {
        if let Some(refused) = self.refuses_origin(&request, call.peer) {
            return Err(refusal_of(&refused));
        }
        // They tell nothing of entries, and Bazel 2.1 asks for them without the credentials that it
        // has.
        if method == Some(Method::GetCapabilities) {
            let can = capabilities::of_cache(self.store().value_len_max());
            return Ok(Reply::message(&can));
        }
        // Load balancers have no credentials.
        if method == Some(Method::HealthCheck) {
            return Ok(Reply::serving());
        }
        let admitted = self.admit_connection(request.headers(), call).await;
        let (scope, role) = admitted.map_err(|refused| refusal_of(&refused))?;
        let Some(method) = method else {
            let line = "the server is a cache: it has no such call";
            return Err(Refusal::new(Code::Unimplemented, line));
        };
        if method.is_write() && !role.may_write() {
            self.store().count(Event::ReadOnly, 1);
            return Err(failed(Failure::ReadOnly));
        }
        let caller = Caller { front: self, scope };
        let terms = call.terms(self.store());
        let mut inbound = Inbound::new(terms, request.into_body(), &self.figures().remote);
        match method {
            Method::GetCapabilities | Method::HealthCheck => Ok(Reply::serving()),
            Method::GetActionResult => caller.get_action_result(&mut inbound).await,
            Method::UpdateActionResult => caller.update_action_result(&mut inbound).await,
            Method::FindMissingBlobs => caller.find_missing_blobs(&mut inbound).await,
            Method::BatchUpdateBlobs => caller.batch_update_blobs(&mut inbound).await,
            Method::BatchReadBlobs => caller.batch_read_blobs(&mut inbound).await,
            Method::GetTree => caller.get_tree(&mut inbound).await,
            Method::Read => caller.read(&mut inbound).await,
            Method::Write => caller.write(&mut inbound).await,
            Method::QueryWriteStatus => caller.query_write_status(&mut inbound).await,
        }
    }

    /// Whether a value of the action cache is served over HTTP: an action result only if all that
    /// it refers to is there. A value that is no action result, such as one of ccache, is served as
    /// it is.
    pub(super) async fn is_servable(&self, scope: Scope, key: &[u8], value: &[u8]) -> bool {
        let Some(instance) = Instance::of_key(key, "ac") else {
            return true;
        };
        let caller = Caller { front: self, scope };
        caller
            .is_complete(&instance, 0, value)
            .await
            .unwrap_or(true)
    }
}

impl<S: Store> Caller<'_, S> {
    /// A blob; `None` if it is missing, or cannot be had in time.
    async fn blob(&self, instance: &Instance, digest: &Digest) -> Option<Bytes> {
        if Hasher::names_empty(digest) {
            return Some(Bytes::new());
        }
        let key = Bytes::from(digest.blob_key(instance));
        let get = self.front.store().clone().get(self.scope, key);
        let deadline = BLOB_DEADLINE.max(self.front.options().deadline);
        let value = self.front.look_within(deadline, get).await?;
        if value.len() as u64 != digest.len() {
            self.front.figures().lost(LostRead::Malformed);
            return None;
        }
        Some(value)
    }

    /// Which blobs are there. Asking counts as a use of each, and moves no values; the requests to
    /// each owner go out together.
    async fn present(&self, instance: &Instance, digests: &[Digest]) -> Vec<bool> {
        let (store, until) = (self.front.store(), Instant::now() + PRESENCE_DEADLINE);
        let look = async |digest: &Digest| {
            if Hasher::names_empty(digest) {
                return true;
            }
            let key = Bytes::from(digest.blob_key(instance));
            let len = self.front.look(store.clone().probe(self.scope, key)).await;
            len.is_some_and(|len| len as u64 == digest.len())
        };
        let mut found = Vec::with_capacity(digests.len());
        for part in digests.chunks(PRESENCE_STEP) {
            if Instant::now() >= until {
                self.front.figures().lost(LostRead::Deadline);
                break;
            }
            found.extend(join_all(part.iter().map(look)).await);
        }
        found.resize(digests.len(), false);
        let missing = found.iter().filter(|it| !**it).count();
        self.front.figures().remote.checked(digests.len(), missing);
        found
    }

    /// Counts what the client did.
    fn count_use(&self, what: Use) {
        let usage = &self.front.figures().usage;
        usage.count(Tool::RemoteExecution, &self.scope, what);
    }

    /// Stores a value.
    async fn put(&self, key: Vec<u8>, value: Bytes) -> Result<(), Refusal> {
        let (store, len) = (self.front.store().clone(), value.len());
        let put = store.put(self.scope, Bytes::from(key), value, PutMode::Replace);
        let put = self.front.change(put).await;
        if put.is_ok() {
            self.count_use(Use::stored(len));
        }
        put.map(|_| ()).map_err(failed)
    }
}

/// The refusal of a write that failed.
fn failed(failure: Failure) -> Refusal {
    let (code, line) = match failure {
        Failure::Busy => (Code::Unavailable, "too many requests wait: try again"),
        Failure::Unavailable => {
            let line = "the owner of the key cannot be reached: try again";
            (Code::Unavailable, line)
        }
        Failure::OutOfSpace => (Code::ResourceExhausted, "there is no room for the value"),
        Failure::TooLarge => (
            Code::InvalidArgument,
            "the value is longer than --max-value",
        ),
        Failure::ReadOnly => (
            Code::PermissionDenied,
            "this user may only read entries, or the namespace is write-once",
        ),
        Failure::AuthRequired => (Code::Unauthenticated, "a login is needed"),
    };
    Refusal::new(code, line)
}

/// The refusal of a client that is not admitted over HTTP.
fn refusal_of(answer: &Answer) -> Refusal {
    let code = match answer.status {
        StatusCode::UNAUTHORIZED => Code::Unauthenticated,
        StatusCode::FORBIDDEN | StatusCode::MISDIRECTED_REQUEST => Code::PermissionDenied,
        _ => Code::Unavailable,
    };
    Refusal::new(code, String::from_utf8_lossy(&answer.body).trim_end())
}

/// The headers that a refusal is told by.
fn told(refusal: &Refusal) -> HeaderMap {
    use prost::Message as _;

    let status = refusal.status();
    let details = match status.details.is_empty() {
        true => Bytes::new(),
        false => Bytes::from(status.encode_to_vec()),
    };
    let code = tonic::Code::from_i32(status.code);
    let mut headers = HeaderMap::new();
    let status = tonic::Status::with_details(code, status.message, details);
    if status.add_header(&mut headers).is_err() {
        // It has no bytes that a header cannot have.
        tracing::debug!(%status, "a status cannot be told");
    }
    headers
}
