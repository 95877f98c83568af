//! Writes of values over HTTP.

use bytes::Bytes;
use fonn_proto::{Failure, Version};
use fonn_reapi::{Inflater, ZstdError, result_of_json};
use fonn_server::Scope;
use hyper::header::{
    CONTENT_ENCODING, CONTENT_RANGE, CONTENT_TYPE, HeaderName, IF_NONE_MATCH, TRANSFER_ENCODING,
};
use hyper::{HeaderMap, Request, StatusCode};
use tokio::time::timeout;

use super::load::Loaded;
use super::long::{LongWrite, instance_of};
use super::operate::names_json;
use super::packed::{digest_of_stream, kept, with_head};
use super::remote::EMPTY_RESULT;
use super::{Call, Front, Inner};
use crate::answer::Answer;
use crate::artifact;
use crate::long::LONG_LEN_MAX;
use crate::packed::{HEAD_LEN, Packed};
use crate::receive::{Digested, Receipt, ReceiveError, RequestBody, Terms};
use crate::route::{Dialect, Route};
use crate::store::{Form, PutMode, PutOutcome, Store};
use crate::usage::Use;

impl<S: Store> Front<S> {
    /// The answer to a write, and whether the body of the request was read.
    pub(super) async fn write<B: RequestBody>(
        &self,
        request: Request<B>,
        route: &Route,
        scope: Scope,
        call: Call<'_>,
    ) -> (Answer, bool) {
        let refusal = |status, code, line| Answer::refusal(route.dialect, status, code, line);
        let (head, mut body) = request.into_parts();
        if codings(&head.headers, TRANSFER_ENCODING).any(|it| !it.eq_ignore_ascii_case(b"chunked"))
        {
            let line = "of the transfer codings the server takes chunked alone";
            return (
                refusal(StatusCode::NOT_IMPLEMENTED, "encoding", line),
                false,
            );
        }
        // RFC 9110, 14.5: such a body would be taken for the whole value.
        if head.headers.contains_key(CONTENT_RANGE) {
            let line = "a part of a value is not stored: send the whole value";
            return (refusal(StatusCode::BAD_REQUEST, "range", line), false);
        }
        let mode = match route.dialect {
            Dialect::Nx => PutMode::Keep,
            _ if keeps_any(&head.headers) => PutMode::Keep,
            _ => PutMode::Replace,
        };
        let takes_zstd = route.dialect == Dialect::BazelCas;
        let is_packed = match is_zstd(&head.headers) {
            Some(is_zstd) if takes_zstd || !is_zstd => is_zstd,
            _ => {
                let line = "an encoded body would be stored under the name of the plain one";
                let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
                return (refusal(status, "encoding", line), false);
            }
        };
        if is_packed {
            drop(head);
            return self.write_packed(body, route, scope, call, mode).await;
        }
        let prefix = match route.dialect {
            Dialect::Turborepo => artifact::prefix(&head.headers),
            _ => Some(Vec::new()),
        };
        let Some(prefix) = prefix else {
            let line = "the headers of the artifact are too long";
            return (refusal(StatusCode::BAD_REQUEST, "headers", line), false);
        };
        let is_json = route.dialect == Dialect::BazelAc && names_json(&head.headers, CONTENT_TYPE);
        // Nothing more of the head is needed, and the body may take its time.
        drop(head);
        let terms = Terms {
            prefix: &prefix,
            // A result of an action is a document, not a file.
            long_len_max: match route.dialect {
                Dialect::BazelAc => 0,
                _ => LONG_LEN_MAX,
            },
            ..call.terms(self.store())
        };
        let digested = match route.digest {
            Some(_) => Digested::Yes,
            None => Digested::No,
        };
        let received = match terms.receive_from(&mut body, digested).await {
            Ok(Receipt::Whole(received)) => received,
            Ok(Receipt::Long(beginning)) => {
                let long = (scope, instance_of(route), digested);
                let received = self.receive_long(beginning, &mut body, terms, route.dialect, long);
                let (manifest, digest) = match received.await {
                    Ok(received) => received,
                    Err(refused) => return (refused, false),
                };
                if route.digest.is_some_and(|it| it != digest) {
                    return (wrong_digest(route.dialect), true);
                }
                let entry = (manifest.encode().into(), Form::Manifest);
                let put = self.put(entry, manifest.len(), route, scope, call, mode);
                return (put.await, true);
            }
            Err(error) => return (self.not_received(route.dialect, error), false),
        };
        let len = received.value.len();
        self.figures().received(route.dialect, len);
        if route.digest.is_some_and(|digest| digest != received.digest) {
            return (wrong_digest(route.dialect), true);
        }
        // It would decode as the result of an action without outputs.
        if route.dialect == Dialect::BazelAc && len == 0 {
            let line = "an action result is not empty";
            return (refusal(StatusCode::BAD_REQUEST, "empty", line), true);
        }
        // Results are kept in one form, so that every client reads those of every other. What does
        // not read as a result is kept as it came: the path is that of the client.
        let value = match is_json {
            true => {
                let text = received.value.clone();
                let result = self
                    .aside(scope.space, len, move || result_of_json(&text))
                    .await;
                match result {
                    Some(Some(result)) if result.is_empty() => Bytes::from_static(EMPTY_RESULT),
                    Some(Some(result)) => result,
                    Some(None) => received.value,
                    None => return (Answer::write_failed(route.dialect, Failure::Busy), true),
                }
            }
            false => received.value,
        };
        let (entry, len) = ((value, Form::Value), len as u64);
        let put = self.put(entry, len, route, scope, call, mode);
        (put.await, true)
    }

    /// The same for a blob whose body is compressed with zstd. Its stream is kept, unless the blob
    /// is longer than an entry may be.
    async fn write_packed<B: RequestBody>(
        &self,
        body: B,
        route: &Route,
        scope: Scope,
        call: Call<'_>,
        mode: PutMode,
    ) -> (Answer, bool) {
        let (dialect, len_max) = (route.dialect, self.store().value_len_max());
        let terms = Terms {
            prefix: &[0; HEAD_LEN],
            ..call.terms(self.store())
        };
        let mut received = match terms.receive(body, Digested::No).await {
            Ok(received) => received,
            Err(error) => return (self.not_received(dialect, error), false),
        };
        let no_memory = || (self.not_received(dialect, ReceiveError::NoMemory), true);
        let stream = received.value.slice(HEAD_LEN..);
        self.figures().received(dialect, stream.len());
        if !received.charged.grow(Inflater::memory_len(len_max)).await {
            return no_memory();
        }
        let (digest, len) = match digest_of_stream(&stream, LONG_LEN_MAX).await {
            Ok(digested) => digested,
            Err(ZstdError::TooLong) => {
                return (Answer::write_failed(dialect, Failure::TooLarge), true);
            }
            Err(error) => {
                let line = error.to_string();
                let status = StatusCode::BAD_REQUEST;
                return (Answer::refusal(dialect, status, "encoding", &line), true);
            }
        };
        if route.digest != Some(digest) {
            return (wrong_digest(dialect), true);
        }
        drop(stream);
        let entry = with_head(received.value, len);
        if len > len_max as u64 {
            let long = LongWrite::new(self, scope, instance_of(route), Bytes::new());
            if !received.charged.grow(long.memory_len(len_max)).await {
                return no_memory();
            }
            let Some(packed) = Packed::parse(&entry) else {
                return (wrong_digest(dialect), true);
            };
            let manifest = match self.cut_packed(&packed, long).await {
                Ok(Some(manifest)) => manifest,
                Ok(None) => return (wrong_digest(dialect), true),
                Err(failure) => return (Answer::write_failed(dialect, failure), true),
            };
            let entry = (manifest.encode().into(), Form::Manifest);
            let put = self.put(entry, len, route, scope, call, mode);
            return (put.await, true);
        }
        let blob_len = usize::try_from(len).unwrap_or(usize::MAX);
        // The blob itself is held only if its stream is longer.
        if entry.len() >= blob_len && !received.charged.grow(blob_len).await {
            return no_memory();
        }
        let kept = match kept(entry).await {
            Ok(kept) => kept,
            Err(_) => return (wrong_digest(dialect), true),
        };
        if kept.1 == Form::Packed {
            self.figures().remote.packed(kept.0.len(), blob_len);
        }
        let put = self.put(kept, len, route, scope, call, mode);
        (put.await, true)
    }

    /// Stores the entry of a value of `len` bytes.
    async fn put(
        &self,
        (bytes, form): (Bytes, Form),
        len: u64,
        route: &Route,
        scope: Scope,
        call: Call<'_>,
        mode: PutMode,
    ) -> Answer {
        let (store, key) = (self.store(), Inner::<S>::key(route));
        let put = store
            .clone()
            .put(scope, key.clone(), bytes.clone(), form, mode);
        let mut put = self.change(put).await;
        // An entry that no read returns does not keep its place. A namespace that keeps first
        // values refuses the change, and the client is told so.
        if put == Ok(PutOutcome::Kept) {
            let lost = self.lost_version(route, scope, call);
            if let Ok(Some(version)) = timeout(self.options().deadline, lost).await {
                let over = PutMode::Over(version);
                let over = store.clone().put(scope, key, bytes, form, over);
                put = self.change(over).await;
            }
        }
        if put == Ok(PutOutcome::Stored) {
            let len = usize::try_from(len).unwrap_or(usize::MAX);
            self.count_use(route.tool, &scope, Use::stored(len));
        }
        match put {
            Ok(PutOutcome::Kept) if mode == PutMode::Keep => {
                let line = "there is an entry of this hash, which stays";
                let status = match route.dialect {
                    Dialect::Nx => StatusCode::CONFLICT,
                    _ => StatusCode::PRECONDITION_FAILED,
                };
                Answer::refusal(route.dialect, status, "exists", line)
            }
            // A namespace that keeps first values does not tell.
            Ok(_) if route.dialect == Dialect::Turborepo => {
                Answer::json(StatusCode::OK, "{\"urls\":[]}".to_owned())
            }
            Ok(_) => Answer::empty(StatusCode::OK),
            Err(failure) => Answer::write_failed(route.dialect, failure),
        }
    }

    /// The version of the entry of a route that reads answer as a miss, since a chunk of it or an
    /// output is lost.
    async fn lost_version(&self, route: &Route, scope: Scope, call: Call<'_>) -> Option<Version> {
        let (store, key) = (self.store(), Inner::<S>::key(route));
        let probed = self.look(store.clone().probe(scope, key.clone())).await?;
        if probed.form != Form::Manifest && route.dialect != Dialect::BazelAc {
            return None;
        }
        let found = self.look(store.clone().get(scope, key)).await?;
        let (version, headers) = (found.version, HeaderMap::new());
        let loaded = Loaded {
            found,
            reader: self.reader(call.life),
            counted: None,
        };
        let read = self.answer_found(loaded, &headers, route, scope, call);
        (read.await.status != StatusCode::OK).then_some(version)
    }
}

/// The codings that a header names.
fn codings(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = &[u8]> {
    let lines = headers.get_all(name).into_iter();
    let codings = lines.flat_map(|it| it.as_bytes().split(|byte| *byte == b','));
    codings.map(<[u8]>::trim_ascii).filter(|it| !it.is_empty())
}

/// Whether a body is a stream of zstd; `None` if it is encoded in another way.
fn is_zstd(headers: &HeaderMap) -> Option<bool> {
    let encodings = codings(headers, CONTENT_ENCODING);
    let mut encodings = encodings.filter(|it| !it.eq_ignore_ascii_case(b"identity"));
    match (encodings.next(), encodings.next()) {
        (None, _) => Some(false),
        (Some(one), None) if one.eq_ignore_ascii_case(b"zstd") => Some(true),
        _ => None,
    }
}

/// Whether a write is to keep an entry that is there, whatever its value is.
fn keeps_any(headers: &HeaderMap) -> bool {
    let mut lines = headers.get_all(IF_NONE_MATCH).iter();
    lines.any(|it| it.as_bytes().trim_ascii() == b"*")
}

fn wrong_digest(dialect: Dialect) -> Answer {
    let line = "the SHA-256 of the body is not the one in the path";
    Answer::refusal(dialect, StatusCode::BAD_REQUEST, "digest", line)
}
