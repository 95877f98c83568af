//! Calls of the Remote Execution API: the same admission, memory and deadlines as requests over
//! HTTP.
//!
//! Invariant: a read that fails is NOT_FOUND, or a blob that is missing. Only a write says that the
//! server is busy.

mod blobs;
mod chunks;
mod health;
mod inbound;
mod reply;
mod results;
mod sink;
mod streams;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fonn_proto::Failure;
use fonn_reapi::status::{Code, Refusal};
use fonn_reapi::{Digest, Hasher, Instance, Method, capabilities};
use fonn_server::{Event, Scope};
use futures_util::future::join_all;
use futures_util::stream::StreamExt as _;
use http_body_util::Empty;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE};
use hyper::{HeaderMap, Request, Response, StatusCode, Version};
use tokio::time::{Instant, timeout_at};

pub(super) use self::chunks::REWORKS_MAX;
use self::inbound::Inbound;
use self::reply::Reply;
pub(super) use self::results::{EMPTY_RESULT, TREES_MAX};
use super::admission::REVOKED;
use super::load::Loaded;
use super::long::Long;
use super::{COUNTED_LEN_MIN, Call, Front, Peer};
use crate::answer::Answer;
use crate::charged::Charged;
use crate::life::Life;
use crate::long::{LONG_LEN_MAX, chunk_len_avg};
use crate::metrics::LostRead;
use crate::outstanding::{Counted, Reader};
use crate::packed::Packed;
use crate::payload::Payload;
use crate::receive::RequestBody;
use crate::route::Dialect;
use crate::store::{Form, Found, PutMode, PutOutcome, Store};
use crate::tool::Tool;
use crate::usage::Use;

/// A blob may take longer than `--http-deadline`: a build that was told of a result needs its
/// blobs.
const BLOB_DEADLINE: Duration = Duration::from_secs(10);

/// Blobs that are looked for at once, and how long all of one call may take. What is left then is
/// missing.
const PRESENCE_STEP: usize = 256;
const PRESENCE_DEADLINE: Duration = Duration::from_secs(10);

/// Longest blob that is put together in memory: a tree, or one of a batch.
const WHOLE_LEN_MAX: u64 = 64 << 20;

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
    life: &'c Arc<Life>,
    may_write: bool,
}

/// A blob that was found.
enum Blob<S: Store> {
    Whole(Bytes),
    Packed(Packed),
    Long(Long<S>),
}

/// A blob that was found for a reply.
struct FoundBlob<S: Store> {
    blob: Blob<S>,
    /// The reader of the reply.
    reader: Arc<Reader<S>>,
    /// What is counted for it, besides a manifest.
    counted: Option<Counted<S>>,
}

/// What a call holds until its reply is sent: what it is charged, and what of its reply is counted.
type Held<'h, S> = (Charged<'h, S>, Option<Counted<S>>);

impl<S: Store> Front<S> {
    /// Answers a call.
    pub(super) async fn answer_call<B: RequestBody>(
        &self,
        request: Request<B>,
        peer: Peer,
        life: &Arc<Life>,
    ) -> Response<Payload<S>> {
        let (active, begun) = (life.begin(), Instant::now());
        let method = fonn_reapi::method(request.uri().path());
        let mut held = None;
        let call = Call { peer, life };
        let replied = self.reply(request, method, call, &mut held).await;
        let mut reply = replied.unwrap_or_else(Reply::refused);
        // What the call was charged is given back once its reply is counted.
        let (charged, counted) = held.unzip();
        let mut counted = counted.flatten();
        if reply.len() >= COUNTED_LEN_MIN && counted.is_none() {
            let left = BLOB_DEADLINE.saturating_sub(begun.elapsed());
            let reader = self.reader(life);
            counted = self.count_unread(&reader, reply.len(), left).await;
            if counted.is_none() {
                reply = Reply::refused(Refusal::missing());
            }
        }
        drop(charged);
        let figures = &self.figures().remote;
        let (code, sent_len) = (reply.code(), reply.sent_len());
        figures.answered(method, code, sent_len, begun.elapsed());
        reply.into_response(counted, active)
    }

    /// The reply to a call, and what is `held` of it until it is sent.
    async fn reply<'h, B: RequestBody>(
        &'h self,
        request: Request<B>,
        method: Option<Method>,
        call: Call<'h>,
        held: &mut Option<Held<'h, S>>,
    ) -> Result<Reply, Refusal> {
        if let Some(refused) = self.refuses_origin(&request, call.peer) {
            return Err(refusal_of(&refused));
        }
        // They tell nothing of entries, and Bazel 2.1 asks for them without the credentials that it
        // has.
        if method == Some(Method::GetCapabilities) {
            let may_update = self.is_told_updates(request.headers(), call).await;
            let chunk_len = chunk_len_avg(self.store().value_len_max());
            let can = capabilities::of_cache(LONG_LEN_MAX, chunk_len, may_update);
            return Ok(Reply::message(&can));
        }
        // Load balancers have no credentials.
        if method == Some(Method::HealthCheck) {
            return health::check(request.into_body(), call.life).await;
        }
        if method == Some(Method::HealthWatch) {
            return Err(health::unwatched());
        }
        let admitted = self.admit_connection(request.headers(), call).await;
        let admitted = admitted.map_err(|refused| refusal_of(&refused))?;
        let (scope, role, login) = (admitted.scope, admitted.role, admitted.login);
        let Some(method) = method else {
            let line = "the server is a cache: it has no such call";
            return Err(Refusal::new(Code::Unimplemented, line));
        };
        if method.is_write() && !role.may_write() {
            self.store().count(Event::ReadOnly, 1);
            return Err(failed(Failure::ReadOnly));
        }
        let caller = Caller {
            front: self,
            scope,
            life: call.life,
            may_write: role.may_write(),
        };
        let terms = call.terms(self.store());
        let lookup_deadline = (!method.is_write()).then_some(self.options().deadline);
        let body = request.into_body();
        let mut inbound = Inbound::new(terms, body, self.figures(), lookup_deadline);
        // An operation of the store that is under way ends by itself.
        let replied = tokio::select! {
            biased;
            () = login.clone().revoked() => return Err(revoked()),
            replied = caller.carry_out(method, &mut inbound) => replied,
        };
        *held = Some(inbound.into_held());
        replied.map(|reply| reply.until(login.revoked(), revoked))
    }

    /// Whether a client is told that it may store results: all but identities that are configured
    /// otherwise. A client without the right credentials hears of it at its next call.
    async fn is_told_updates(&self, headers: &HeaderMap, call: Call<'_>) -> bool {
        if !headers.contains_key(AUTHORIZATION) {
            return true;
        }
        let admitted = self.admit_connection(headers, call).await;
        admitted.map_or(true, |it| it.update_enabled)
    }

    /// Whether a value of the action cache is served over HTTP: an action result only if all that
    /// it refers to is there. A value that is no action result, such as one of ccache, is served as
    /// it is.
    pub(super) async fn is_servable(
        &self,
        scope: Scope,
        key: &[u8],
        value: &Bytes,
        call: Call<'_>,
    ) -> bool {
        let Some(instance) = Instance::of_key(key, "ac") else {
            return true;
        };
        let caller = Caller {
            front: self,
            scope,
            life: call.life,
            may_write: false,
        };
        let (terms, body) = (call.terms(self.store()), Empty::<Bytes>::new());
        let deadline = Some(self.options().deadline);
        let mut inbound = Inbound::new(terms, body, self.figures(), deadline);
        caller
            .is_complete(&instance, 0, value, &mut inbound)
            .await
            .unwrap_or(true)
    }
}

impl<S: Store> Caller<'_, S> {
    /// Carries out a call.
    async fn carry_out<B: RequestBody>(
        &self,
        method: Method,
        inbound: &mut Inbound<'_, S, B>,
    ) -> Result<Reply, Refusal> {
        match method {
            // They were answered before the login.
            Method::GetCapabilities | Method::HealthCheck | Method::HealthWatch => {
                Err(health::unwatched())
            }
            Method::GetActionResult => self.get_action_result(inbound).await,
            Method::UpdateActionResult => self.update_action_result(inbound).await,
            Method::FindMissingBlobs => self.find_missing_blobs(inbound).await,
            Method::BatchUpdateBlobs => self.batch_update_blobs(inbound).await,
            Method::BatchReadBlobs => self.batch_read_blobs(inbound).await,
            Method::GetTree => self.get_tree(inbound).await,
            Method::SplitBlob => self.split_blob(inbound).await,
            Method::SpliceBlob => self.splice_blob(inbound).await,
            Method::Read => self.read(inbound).await,
            Method::Write => self.write(inbound).await,
            Method::QueryWriteStatus => self.query_write_status(inbound).await,
        }
    }

    /// A blob; `None` if it is missing, or cannot be had in time.
    async fn find(&self, instance: &Instance, digest: &Digest) -> Option<Blob<S>> {
        let found = self.find_for_reply(instance, digest, |_| 0).await;
        found.map(|it| it.blob)
    }

    /// The same for a reply with the blob, of which `len_of` bytes are counted for its reader.
    async fn find_for_reply(
        &self,
        instance: &Instance,
        digest: &Digest,
        len_of: impl Fn(&Found) -> usize + Send,
    ) -> Option<FoundBlob<S>> {
        if Hasher::names_empty(digest) {
            return Some(FoundBlob {
                blob: Blob::Whole(Bytes::new()),
                reader: self.front.reader(self.life),
                counted: None,
            });
        }
        let key = Bytes::from(digest.blob_key(instance));
        let deadline = BLOB_DEADLINE.max(self.front.options().deadline);
        let loaded = self
            .front
            .load(self.scope, key, self.life, deadline, len_of);
        let Loaded {
            found,
            reader,
            mut counted,
        } = loaded.await?;
        let (blob, len) = match found.form {
            Form::Value => {
                let len = found.bytes.len() as u64;
                (Blob::Whole(found.bytes), len)
            }
            Form::Manifest => {
                let instance = instance.clone();
                let (scope, counted) = (self.scope, counted.take());
                let long = self
                    .front
                    .parse_long(scope, instance, &found.bytes, counted)?;
                let len = long.manifest.len();
                (Blob::Long(long), len)
            }
            Form::Packed => {
                let packed = self.front.parse_packed(&found.bytes)?;
                let len = packed.len();
                (Blob::Packed(packed), len)
            }
        };
        if len != digest.len() {
            self.front.figures().lost(LostRead::Malformed);
            return None;
        }
        Some(FoundBlob {
            blob,
            reader,
            counted,
        })
    }

    /// The bytes of a blob of at most [`WHOLE_LEN_MAX`] bytes.
    async fn blob(&self, instance: &Instance, digest: &Digest) -> Option<Bytes> {
        let blob = self.find(instance, digest).await?;
        self.bytes_of(blob).await
    }

    /// As [`Caller::blob`], of a blob that was found.
    async fn bytes_of(&self, blob: Blob<S>) -> Option<Bytes> {
        match blob {
            Blob::Whole(bytes) => Some(bytes),
            Blob::Packed(packed) if packed.len() > WHOLE_LEN_MAX => None,
            Blob::Packed(packed) => self.front.unpack(&packed).await,
            Blob::Long(long) => {
                let len = long.manifest.len();
                if len > WHOLE_LEN_MAX {
                    return None;
                }
                let mut chunks = self.front.chunks(long, 0..len, self.life);
                let mut bytes = Vec::new();
                while let Some(chunk) = chunks.next().await {
                    bytes.extend_from_slice(&chunk);
                }
                (bytes.len() as u64 == len).then(|| Bytes::from(bytes))
            }
        }
    }

    /// Which blobs are there. Asking counts as a use of each, and moves no values.
    async fn present(&self, instance: &Instance, digests: &[Digest]) -> Vec<bool> {
        let until = Instant::now() + PRESENCE_DEADLINE;
        // Equal ones side by side, each with the place of its answer.
        let mut there = vec![false; digests.len()];
        let mut asked: Vec<_> = digests.iter().zip(&mut there).collect();
        asked.sort_unstable_by_key(|(digest, _)| *digest);
        let mut equal: Vec<_> = asked.chunk_by_mut(|one, next| one.0 == next.0).collect();
        for part in equal.chunks_mut(PRESENCE_STEP) {
            if Instant::now() >= until {
                self.front.figures().lost(LostRead::Deadline);
                break;
            }
            let digests: Vec<&Digest> = part
                .iter()
                .flat_map(|it| it.first())
                .map(|it| it.0)
                .collect();
            let found = self.present_together(instance, &digests, until).await;
            for (equal, is_there) in part.iter_mut().zip(found) {
                equal.iter_mut().for_each(|(_, answer)| **answer = is_there);
            }
            // Other calls have their turn.
            tokio::task::yield_now().await;
        }
        there
    }

    /// Which of a few blobs are there. What cannot be told at once is asked for together. Of long
    /// blobs the list of chunks is looked at, of one after another: a list may take megabytes.
    async fn present_together(
        &self,
        instance: &Instance,
        digests: &[&Digest],
        until: Instant,
    ) -> Vec<bool> {
        let keys = digests
            .iter()
            .map(|digest| digest.blob_key(instance).into());
        let keys: Vec<Bytes> = keys.collect();
        let told = self.front.store().probe_at_once(self.scope, &keys);
        let mut found = vec![true; digests.len()];
        let mut slow = Vec::new();
        let blobs = digests.iter().zip(&keys).zip(told);
        for (is_there, ((&digest, key), told)) in found.iter_mut().zip(blobs) {
            match told {
                Some(it) if it.form == Form::Value => *is_there = it.len as u64 == digest.len(),
                Some(it) if it.form == Form::Packed => {}
                _ if Hasher::names_empty(digest) => {}
                _ => slow.push((is_there, digest, key)),
            }
        }
        let probes = slow.iter().map(|(_, _, key)| {
            let probe = self.front.store().clone();
            let probe = probe.probe(self.scope, Bytes::clone(key));
            async move {
                let turn = timeout_at(until, self.front.0.probes.acquire()).await;
                let Ok(Ok(_turn)) = turn else {
                    self.front.figures().lost(LostRead::Busy);
                    return None;
                };
                self.front.look(probe).await
            }
        });
        let probed = join_all(probes).await;
        for ((is_there, digest, key), probed) in slow.into_iter().zip(probed) {
            *is_there = match probed {
                None => false,
                Some(it) => match it.form {
                    Form::Value => it.len as u64 == digest.len(),
                    // The digest of its bytes was verified, and their length is not worth a move
                    // of them.
                    Form::Packed => true,
                    Form::Manifest if Instant::now() >= until => {
                        self.front.figures().lost(LostRead::Deadline);
                        false
                    }
                    Form::Manifest => {
                        let (instance, key) = (instance.clone(), key.clone());
                        let long = self.front.whole_long(self.scope, instance, key).await;
                        long.is_some_and(|it| it.manifest.len() == digest.len())
                    }
                },
            };
        }
        found
    }

    /// Counts what the client did.
    fn count_use(&self, what: Use) {
        let usage = &self.front.figures().usage;
        usage.count(Tool::RemoteExecution, &self.scope, what);
    }

    /// Stores a value.
    async fn put(&self, key: Vec<u8>, value: Bytes) -> Result<PutOutcome, Refusal> {
        let len = value.len();
        let entry = (value, Form::Value);
        self.put_entry(key.into(), entry, len).await
    }

    /// Stores the entry of a blob that was verified.
    async fn put_blob(
        &self,
        instance: &Instance,
        digest: &Digest,
        entry: (Bytes, Form),
    ) -> Result<(), Refusal> {
        let len = usize::try_from(digest.len()).unwrap_or(usize::MAX);
        let key = Bytes::from(digest.blob_key(instance));
        let put = self.put_entry(key, entry, len).await?;
        // The namespace keeps first values. The client must not rely on one that lost a chunk.
        match put == PutOutcome::Kept && self.present(instance, &[*digest]).await != [true] {
            true => Err(failed(Failure::ReadOnly)),
            false => Ok(()),
        }
    }

    /// Stores what an entry has of a value of `len` bytes.
    async fn put_entry(
        &self,
        key: Bytes,
        (bytes, form): (Bytes, Form),
        len: usize,
    ) -> Result<PutOutcome, Refusal> {
        let (store, stored_len) = (self.front.store().clone(), bytes.len());
        let put = store.put(self.scope, key, bytes, form, PutMode::Replace);
        let put = self.front.change(put).await;
        if put == Ok(PutOutcome::Stored) {
            self.count_use(Use::stored(len));
            if form == Form::Packed {
                self.front.figures().remote.packed(stored_len, len);
            }
        }
        put.map_err(failed)
    }
}

/// The refusal of a call whose identity is no longer in force.
fn revoked() -> Refusal {
    refusal_of(&Answer::unauthorized(REVOKED))
}

/// The refusal of a write that failed.
fn failed(failure: Failure) -> Refusal {
    refusal_of(&Answer::write_failed(Dialect::Generic, failure))
}

/// The refusal of what is refused so over HTTP.
fn refusal_of(answer: &Answer) -> Refusal {
    let code = match answer.status {
        StatusCode::INSUFFICIENT_STORAGE => Code::ResourceExhausted,
        StatusCode::PAYLOAD_TOO_LARGE => Code::InvalidArgument,
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
