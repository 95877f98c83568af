//! What comes of a request that is let in.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fonn_proto::Failure;
use fonn_reapi::{JSON_RESULT_LEN_MAX, result_to_json};
use fonn_server::{Event, Scope};
use hyper::header::{
    ACCEPT, ACCEPT_RANGES, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_REQUEST_HEADERS, ALLOW,
    CONTENT_TYPE, HeaderName, HeaderValue, RANGE,
};
use hyper::{HeaderMap, Request, StatusCode};
use ring::digest::{SHA256, digest};
use tokio::time::timeout;

use super::load::Loaded;
use super::long::{Long, instance_of, ranged};
use super::packed::{packed_memory_len, takes_stream};
use super::{Call, Front, Inner};
use crate::answer::Answer;
use crate::dav::{self, Resource};
use crate::metrics::LostRead;
use crate::outstanding::{Counted, Reader};
use crate::receive::{Digested, ReceiveError, RequestBody, Terms};
use crate::route::{Dialect, Operation, Route};
use crate::store::{Form, Found, Store};
use crate::unbroken::Unbroken;
use crate::usage::Use;
use crate::{artifact, events};

/// A write that takes longer is refused; it may still be carried out.
const WRITE_DEADLINE: Duration = Duration::from_secs(30);

/// Longest body of a request that is not a value.
const DOCUMENT_LEN_MAX: usize = 64 << 10;

/// What an action result takes that is sent as JSON, in multiples of its bytes.
const JSON_COPIES: usize = 4;

const METHODS: HeaderValue =
    HeaderValue::from_static("GET, HEAD, PUT, DELETE, OPTIONS, PROPFIND, MKCOL");

/// The answer to OPTIONS. Turborepo sends its credentials only if it is told here that it may. A
/// browser learns nothing: no origin is allowed.
pub(super) fn methods<B>(request: &Request<B>) -> Answer {
    let mut answer = Answer::empty(StatusCode::OK).with(ALLOW, METHODS).with(
        HeaderName::from_static("dav"),
        HeaderValue::from_static("1"),
    );
    if request
        .headers()
        .contains_key(ACCESS_CONTROL_REQUEST_HEADERS)
    {
        let allowed = HeaderValue::from_static(
            "Authorization, Content-Type, User-Agent, x-artifact-duration, x-artifact-tag, x-artifact-sha, \
             x-artifact-dirty-hash, x-artifact-client-ci, x-artifact-client-interactive",
        );
        answer.set(ACCESS_CONTROL_ALLOW_HEADERS, allowed);
    }
    answer
}

impl<S: Store> Front<S> {
    /// The answer, and whether the body of the request was read. What a read returns is `counted`.
    pub(super) async fn operate<B: RequestBody>(
        &self,
        request: Request<B>,
        route: Route,
        scope: Scope,
        call: Call<'_>,
        counted: &mut Option<Counted<S>>,
    ) -> (Answer, bool) {
        if route.dialect == Dialect::Actions {
            return self.actions(request, &route, scope, call).await;
        }
        let answer = match route.operation {
            Operation::Write => return self.write(request, &route, scope, call).await,
            Operation::TakeEvents => return self.take_events(request, call).await,
            Operation::Describe => return self.describe(request, &route, scope, call).await,
            Operation::Read => {
                let read = self.read(request.headers(), &route, scope, call, counted);
                let answer = self.in_time(read).await;
                self.count_read(&route, &scope, &answer);
                answer
            }
            Operation::Probe => {
                let probe = self.probe(request.headers(), &route, scope, call);
                self.in_time(probe).await
            }
            Operation::Remove => self.remove(&route, scope).await,
            Operation::MakeCollection => Answer::empty(StatusCode::CREATED),
            Operation::TellEnabled => {
                Answer::json(StatusCode::OK, "{\"status\":\"enabled\"}".to_owned())
            }
            Operation::TellStatus => {
                let status = serde_json::json!({
                    "server": "fonn",
                    "version": env!("CARGO_PKG_VERSION"),
                    "value_len_max_bytes": self.store().value_len_max(),
                });
                Answer::json(StatusCode::OK, status.to_string())
            }
            // They were answered before: without a login, or by their dialect.
            Operation::TellMethods
            | Operation::ExchangeToken
            | Operation::ReserveEntry
            | Operation::PublishEntry
            | Operation::FindEntry => Answer::miss(),
        };
        (answer, false)
    }

    /// Counts a read for the tool of the client. A blob of Bazel is no lookup of its own: an action
    /// result has referred to it.
    fn count_read(&self, route: &Route, scope: &Scope, answer: &Answer) {
        let is_lookup = route.dialect != Dialect::BazelCas;
        let what = match answer.status {
            StatusCode::OK | StatusCode::PARTIAL_CONTENT => Use {
                hits: is_lookup.into(),
                served_bytes: answer.told_len.unwrap_or(answer.body.len()) as u64,
                ..Use::default()
            },
            StatusCode::NOT_FOUND if is_lookup => Use::lookup(false),
            _ => return,
        };
        self.count_use(route.tool, scope, what);
    }

    /// The answer to a read, up to the first bytes of its body: a miss if it takes too long. It may
    /// be many looks, for example of an action result with its trees.
    async fn in_time(&self, read: impl Future<Output = Answer>) -> Answer {
        match timeout(self.options().deadline, read).await {
            Ok(answer) => answer,
            Err(_) => {
                self.figures().lost(LostRead::Deadline);
                Answer::miss()
            }
        }
    }

    /// Carries out a read. What fails is a miss.
    pub(super) fn look<T: Send + 'static>(
        &self,
        read: impl Future<Output = Result<Option<T>, Failure>> + Send + 'static,
    ) -> impl Future<Output = Option<T>> + Send {
        self.look_within(self.options().deadline, read)
    }

    /// Carries out a read that may take so long. It ends with its caller: a client that goes leaves
    /// nothing behind that takes the place of other reads.
    pub(super) fn look_within<T: Send + 'static>(
        &self,
        deadline: Duration,
        read: impl Future<Output = Result<Option<T>, Failure>> + Send + 'static,
    ) -> impl Future<Output = Option<T>> + Send {
        // Boxed: a call may have hundreds.
        let read = Box::pin(read);
        async move {
            let Ok(_permit) = self.0.operations.try_acquire() else {
                self.figures().lost(LostRead::Busy);
                return None;
            };
            match timeout(deadline, read).await {
                Ok(Ok(found)) => found,
                Ok(Err(failure)) => {
                    self.figures().lost(failure.into());
                    None
                }
                Err(_) => {
                    self.figures().lost(LostRead::Deadline);
                    None
                }
            }
        }
    }

    async fn read(
        &self,
        headers: &HeaderMap,
        route: &Route,
        scope: Scope,
        call: Call<'_>,
        counted: &mut Option<Counted<S>>,
    ) -> Answer {
        if is_empty_blob(route) {
            return Answer::value(StatusCode::OK, Bytes::new());
        }
        let has_body = route.operation == Operation::Read;
        let len_of = |found: &Found| match found.form {
            _ if !has_body => 0,
            Form::Packed => packed_memory_len(&found.bytes, takes_stream(headers)),
            _ if becomes_json(headers, route, &found.bytes) => JSON_COPIES * found.bytes.len(),
            _ => found.bytes.len(),
        };
        let (key, deadline) = (Inner::<S>::key(route), self.options().deadline);
        let Some(mut loaded) = self.load(scope, key, call.life, deadline, len_of).await else {
            return Answer::miss();
        };
        // The manifest of a long value is counted as long as its chunks are read.
        if loaded.found.form != Form::Manifest {
            *counted = loaded.counted.take();
        }
        self.answer_found(loaded, headers, route, scope, call).await
    }

    /// The answer to a read that found an entry: a miss if not all of its value is there.
    pub(super) async fn answer_found(
        &self,
        loaded: Loaded<S>,
        headers: &HeaderMap,
        route: &Route,
        scope: Scope,
        call: Call<'_>,
    ) -> Answer {
        let is_get = route.operation == Operation::Read;
        let range = headers.get(RANGE).filter(|_| is_get);
        let Loaded {
            found,
            reader,
            counted,
        } = loaded;
        if found.form == Form::Manifest {
            let long = self.parse_long(scope, instance_of(route), &found.bytes, counted);
            return self.read_long(long, range, route, call).await;
        }
        if found.form == Form::Packed {
            let entry = found.bytes;
            return self.read_packed(&entry, headers, route, reader).await;
        }
        let value = found.bytes;
        if route.dialect == Dialect::Turborepo {
            return self.artifact(&value);
        }
        if route.dialect == Dialect::BazelAc {
            let is_servable = self.is_servable(scope, &route.key, &value, call);
            if !reader.working(is_servable).await {
                return Answer::miss();
            }
        }
        if becomes_json(headers, route, &value) {
            let result = value.clone();
            let json = self.aside(scope.space, value.len(), move || result_to_json(&result));
            match reader.working(json).await {
                Some(Some(json)) => return Answer::json(StatusCode::OK, json),
                // A value that is no action result is served as it is.
                Some(None) => {}
                None => return Answer::miss(),
            }
        }
        let (mut answer, part) = ranged(range, value.len());
        if let Some(part) = part {
            answer.body = value.slice(part);
        }
        answer
    }

    /// The answer to a read of a blob that came compressed.
    async fn read_packed(
        &self,
        entry: &Bytes,
        headers: &HeaderMap,
        route: &Route,
        reader: Arc<Reader<S>>,
    ) -> Answer {
        let packed = self.parse_packed(entry);
        match packed.filter(|_| route.dialect == Dialect::BazelCas) {
            Some(packed) => self.answer_packed(&packed, headers, reader).await,
            None => Answer::miss(),
        }
    }

    /// The answer to a read of a long value.
    async fn read_long(
        &self,
        long: Option<Long<S>>,
        range: Option<&HeaderValue>,
        route: &Route,
        call: Call<'_>,
    ) -> Answer {
        let Some(long) = long.filter(|_| route.dialect != Dialect::BazelAc) else {
            return Answer::miss();
        };
        let has_body = route.operation == Operation::Read;
        if route.dialect != Dialect::Turborepo {
            return self.answer_long(long, range, has_body, call.life).await;
        }
        let head = self.artifact(long.manifest.head());
        if head.status != StatusCode::OK {
            return head;
        }
        let mut answer = self.answer_long(long, None, has_body, call.life).await;
        if answer.status == StatusCode::OK {
            answer.headers = head.headers;
        }
        answer
    }

    fn artifact(&self, value: &Bytes) -> Answer {
        let Some((headers, body)) = artifact::parse(value) else {
            self.figures().lost(LostRead::Malformed);
            return Answer::miss();
        };
        let mut answer = Answer::value(StatusCode::OK, body);
        for (name, value) in headers {
            answer.set(name, value);
        }
        answer
    }

    async fn probe(
        &self,
        headers: &HeaderMap,
        route: &Route,
        scope: Scope,
        call: Call<'_>,
    ) -> Answer {
        let found = |len| Answer {
            told_len: Some(len),
            ..Answer::value(StatusCode::OK, Bytes::new())
        };
        if is_empty_blob(route) {
            return found(0);
        }
        // The length of an artifact, or of a result as JSON, is not that of its value. A result
        // refers to blobs, which have to be there.
        if matches!(route.dialect, Dialect::Turborepo | Dialect::BazelAc) {
            let read = self.read(headers, route, scope, call, &mut None).await;
            return read.without_body();
        }
        match self.len_of(route, scope).await {
            Some(len) => found(len).with(ACCEPT_RANGES, HeaderValue::from_static("bytes")),
            None => Answer::miss(),
        }
    }

    /// The length of a value that is there with all its chunks.
    async fn len_of(&self, route: &Route, scope: Scope) -> Option<usize> {
        let (store, key) = (self.store().clone(), Inner::<S>::key(route));
        let probed = self.look(store.clone().probe(scope, key.clone())).await?;
        let len = match probed.form {
            Form::Value => return Some(probed.len),
            Form::Packed => {
                let found = self.look(store.get(scope, key)).await?;
                self.parse_packed(&found.bytes)?.len()
            }
            Form::Manifest => {
                let long = self.whole_long(scope, instance_of(route), key).await?;
                long.manifest.len()
            }
        };
        usize::try_from(len).ok()
    }

    /// Carries out a change.
    pub(super) async fn change<T: Send + 'static>(
        &self,
        change: impl Future<Output = Result<T, Failure>> + Send + 'static,
    ) -> Result<T, Failure> {
        let Ok(permit) = self.0.operations.clone().try_acquire_owned() else {
            self.store().count(Event::Busy, 1);
            return Err(Failure::Busy);
        };
        let change = Unbroken::new(async move {
            let changed = change.await;
            drop(permit);
            changed
        });
        match timeout(WRITE_DEADLINE, change).await {
            Ok(changed) => changed,
            Err(_) => Err(Failure::Unavailable),
        }
    }

    async fn remove(&self, route: &Route, scope: Scope) -> Answer {
        let store = self.store().clone();
        match self
            .change(store.delete(scope, Inner::<S>::key(route)))
            .await
        {
            Ok(true) => Answer::empty(StatusCode::NO_CONTENT),
            Ok(false) => Answer::miss(),
            Err(failure) => Answer::write_failed(route.dialect, failure),
        }
    }

    pub(super) fn not_received(&self, dialect: Dialect, error: ReceiveError) -> Answer {
        let line = error.to_string();
        match error {
            ReceiveError::TooLong { .. } => {
                self.store().count(Event::TooLarge, 1);
                Answer::write_failed(dialect, Failure::TooLarge)
            }
            ReceiveError::NoMemory => {
                self.store().count(Event::Busy, 1);
                Answer::write_failed(dialect, Failure::Busy)
            }
            ReceiveError::TooSlow => {
                self.store().count(Event::Stalled, 1);
                Answer::line(StatusCode::REQUEST_TIMEOUT, &line)
            }
            ReceiveError::Broken => Answer::line(StatusCode::BAD_REQUEST, &line),
        }
    }

    /// Receives a body that is not a value.
    async fn document<B: RequestBody>(&self, body: B, call: Call<'_>) -> Result<Bytes, Answer> {
        self.document_of(body, call, DOCUMENT_LEN_MAX).await
    }

    /// A body of at most `len_max` bytes that is not a value.
    pub(super) async fn document_of<B: RequestBody>(
        &self,
        body: B,
        call: Call<'_>,
        len_max: usize,
    ) -> Result<Bytes, Answer> {
        let terms = Terms {
            len_max,
            ..call.terms(self.store())
        };
        match terms.receive(body, Digested::No).await {
            Ok(received) => Ok(received.value),
            Err(error) => Err(match error {
                ReceiveError::TooLong { .. } => {
                    Answer::line(StatusCode::PAYLOAD_TOO_LARGE, &error.to_string())
                }
                error => self.not_received(Dialect::Generic, error),
            }),
        }
    }

    async fn take_events<B: RequestBody>(
        &self,
        request: Request<B>,
        call: Call<'_>,
    ) -> (Answer, bool) {
        match self.document(request.into_body(), call).await {
            Ok(body) => match events::parse(&body) {
                Some(events) => {
                    self.figures().reported(&events);
                    (Answer::empty(StatusCode::OK), true)
                }
                None => {
                    let (status, line) = (StatusCode::BAD_REQUEST, "malformed list of events");
                    let answer = Answer::refusal(Dialect::Turborepo, status, "malformed", line);
                    (answer, true)
                }
            },
            Err(refused) => (refused, false),
        }
    }

    async fn describe<B: RequestBody>(
        &self,
        request: Request<B>,
        route: &Route,
        scope: Scope,
        call: Call<'_>,
    ) -> (Answer, bool) {
        let path = request.uri().path().to_owned();
        // It says which properties are wanted; those that there are fit every wish.
        if let Err(refused) = self.document(request.into_body(), call).await {
            return (refused, false);
        }
        let resource = match route.key.is_empty() || route.key.ends_with(b"/") {
            true => Some(Resource::Collection),
            false => {
                let found = self.len_of(route, scope).await;
                found.map(|len| Resource::Entry { len })
            }
        };
        let answer = match resource {
            None => Answer::miss(),
            Some(resource) => {
                let document = dav::multistatus(&path, resource);
                let kind = HeaderValue::from_static("application/xml; charset=utf-8");
                Answer::value(StatusCode::MULTI_STATUS, Bytes::from(document))
                    .with(CONTENT_TYPE, kind)
            }
        };
        (answer, true)
    }
}

/// Whether the client wants an action result as JSON, and it is not too long for that.
fn becomes_json(headers: &HeaderMap, route: &Route, value: &Bytes) -> bool {
    let is_short = value.len() <= JSON_RESULT_LEN_MAX;
    is_short && route.dialect == Dialect::BazelAc && names_json(headers, ACCEPT)
}

/// Whether a header has JSON among its media types.
pub(super) fn names_json(headers: &HeaderMap, name: HeaderName) -> bool {
    let values = headers.get_all(name);
    let mut types = values
        .iter()
        .flat_map(|it| it.as_bytes().split(|byte| *byte == b','));
    types.any(|it| {
        let media = it.split(|byte| *byte == b';').next().unwrap_or_default();
        media.trim_ascii().eq_ignore_ascii_case(b"application/json")
    })
}

/// Whether the route names the empty value by its content, which every client takes to be there.
fn is_empty_blob(route: &Route) -> bool {
    let empty = || digest(&SHA256, b"");
    route
        .digest
        .is_some_and(|it| it.as_slice() == empty().as_ref())
}
