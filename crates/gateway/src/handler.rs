//! Answers requests: admits the client, routes the request, carries it out, and counts the
//! response.

mod actions;
mod admission;
mod aside;
mod exchange;
mod load;
mod long;
mod operate;
mod packed;
mod remote;
mod write;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use fonn_admin::HostNames;
use fonn_auth::{Security, Source};
use fonn_base::metrics::Metrics;
use fonn_oidc::Verifier;
use fonn_server::{Scope, Strangers, StrangersMax};
use hyper::header::{CONTENT_LENGTH, HeaderValue, USER_AGENT};
use hyper::{HeaderMap, Request, Response, StatusCode};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use self::admission::{Admitted, REVOKED};
use crate::answer::Answer;
use crate::life::{Active, Life, Times};
use crate::metrics::{Figures, LostRead, Operation};
use crate::outstanding::{Counted, Outstanding, Reader};
use crate::payload::Payload;
use crate::receive::{RequestBody, Terms};
use crate::route::{self, Dialect, Route, RouteError};
use crate::server::wide_places;
use crate::store::Store;
use crate::tool::Tool;
use crate::turns::Turns;
use crate::uploads::Uploads;
use crate::usage::{ToolUse, Use};

/// Operations of the store that are under way at once; beyond that a read is a miss and a write is
/// refused.
const OPERATIONS_MAX: usize = 4096;

/// How many of them may ask for the presence of blobs, of which one call asks for thousands. The
/// others wait, and leave room for reads and writes.
const PROBES_MAX: usize = OPERATIONS_MAX / 2;

/// Connections on probation: their clients have to log in or to speak TLS, and have not done so.
/// Each may hold the head of a request and a window of HTTP/2, 112 KiB. Wide windows are bounded by
/// themselves.
const PROBATION_MAX: StrangersMax = StrangersMax {
    of_source: 128,
    of_all: 512,
};

/// Shorter bodies of responses are not counted: connections hold as much besides.
const COUNTED_LEN_MIN: usize = 4096;

/// How requests are answered.
#[derive(Clone, Debug)]
pub struct Options {
    /// A read that takes longer is a miss.
    pub deadline: Duration,
    /// The host names that the port answers to on a listener without users and without TLS.
    pub hosts: HostNames,
    /// Connections at most.
    pub connections_max: usize,
    /// How patient the server is with a connection.
    pub times: Times,
}

/// The client of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// Its address.
    pub address: IpAddr,
    /// Whether it speaks TLS.
    pub is_encrypted: bool,
}

/// Answers the requests of build tools from a store. Clones are the same front.
pub struct Front<S: Store>(Arc<Inner<S>>);

struct Inner<S: Store> {
    store: S,
    security: Security,
    options: Options,
    outstanding: Arc<Outstanding>,
    /// Lists of chunks whose values are being read.
    manifests: Arc<Outstanding>,
    figures: Figures,
    operations: Arc<Semaphore>,
    /// Those of them that ask for the presence of blobs alone.
    probes: Semaphore,
    /// Connections of HTTP/2 with wide windows.
    wide_windows: Semaphore,
    exchanges: Arc<Semaphore>,
    /// Blobs that are split or spliced.
    reworks: Turns,
    /// Long trees that are looked into.
    trees: Turns,
    /// Lists of chunks that are looked at.
    lists: Semaphore,
    /// Long messages that are read or written by threads of their own.
    messages: Turns,
    uploads: Uploads,
    verifier: Arc<Verifier>,
    probation: Strangers<Arc<Life>>,
    last_on_probation: AtomicU64,
}

impl<S: Store> Clone for Front<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: Store> fmt::Debug for Front<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Front")
            .field("options", &self.0.options)
            .finish_non_exhaustive()
    }
}

/// What is known of a request when it is answered.
#[derive(Clone, Copy)]
struct Call<'r> {
    peer: Peer,
    life: &'r Arc<Life>,
}

impl Call<'_> {
    fn source(&self) -> Source {
        Source::of(Some(self.peer.address))
    }
}

impl<'r> Call<'r> {
    /// The terms on which a body of this call becomes a value of `store`.
    fn terms<'t, S: Store>(&self, store: &'t S) -> Terms<'t, S>
    where
        'r: 't,
    {
        Terms {
            store,
            life: self.life,
            source: self.source(),
            prefix: &[],
            len_max: store.value_len_max(),
            long_len_max: 0,
        }
    }
}

impl<S: Store> Front<S> {
    /// A front of `store`, which lets in the clients that `security` says.
    #[must_use]
    pub fn new(store: S, security: Security, options: Options) -> Self {
        Self(Arc::new(Inner {
            wide_windows: Semaphore::new(wide_places(&store)),
            store,
            security,
            options,
            outstanding: Outstanding::new(1),
            manifests: Outstanding::new(long::MANIFEST_SHARES),
            figures: Figures::default(),
            probation: Strangers::new(PROBATION_MAX),
            last_on_probation: AtomicU64::new(0),
            operations: Arc::new(Semaphore::new(OPERATIONS_MAX)),
            probes: Semaphore::new(PROBES_MAX),
            exchanges: Arc::new(Semaphore::new(exchange::EXCHANGES_MAX)),
            reworks: Turns::new(remote::REWORKS_MAX),
            trees: Turns::new(remote::TREES_MAX),
            lists: Semaphore::new(long::LISTS_MAX),
            messages: Turns::new(aside::MESSAGES_MAX),
            uploads: Uploads::default(),
            verifier: Arc::default(),
        }))
    }

    /// Places for connections with wide windows.
    pub(crate) fn wide_windows(&self) -> &Semaphore {
        &self.0.wide_windows
    }

    /// Publishes what is counted.
    pub fn register(&self, metrics: &Metrics) {
        let front = self.clone();
        metrics.on_scrape(move |snapshot| {
            front.0.figures.publish(snapshot);
            front.0.outstanding.publish(snapshot);
        });
    }

    /// What each identity did with each tool since the process started.
    #[must_use]
    pub fn tool_uses(&self) -> Vec<ToolUse> {
        self.figures().usage.rows()
    }

    /// Counts what a client did with a tool.
    pub(crate) fn count_use(&self, tool: Option<Tool>, scope: &Scope, what: Use) {
        if let Some(tool) = tool {
            self.figures().usage.count(tool, scope, what);
        }
    }

    pub(crate) fn store(&self) -> &S {
        &self.0.store
    }

    pub(crate) fn security(&self) -> &Security {
        &self.0.security
    }

    pub(crate) fn options(&self) -> &Options {
        &self.0.options
    }

    /// Turns of calls that hash a blob.
    pub(crate) fn reworks(&self) -> &Turns {
        &self.0.reworks
    }

    pub(crate) fn figures(&self) -> &Figures {
        &self.0.figures
    }

    /// Answers a request of a connection.
    pub(crate) async fn answer<B: RequestBody>(
        &self,
        request: Request<B>,
        peer: Peer,
        life: &Arc<Life>,
    ) -> Response<Payload<S>> {
        if remote::is_call(&request) {
            return self.answer_call(request, peer, life).await;
        }
        let (active, begun) = (life.begin(), Instant::now());
        let routed = route::route(
            request.method().as_str(),
            request.uri().path(),
            request.uri().query(),
        );
        let agent = request.headers().get(USER_AGENT);
        let routed = routed.map(|route| route.of_agent(agent.map_or(b"", HeaderValue::as_bytes)));
        let dialect = routed.as_ref().map_or(Dialect::Generic, |it| it.dialect);
        let operation = Operation::of(request.method());
        let is_head = request.method() == hyper::Method::HEAD;
        let has_body = !request.body().is_end_stream();
        let call = Call { peer, life };
        let mut counted = None;
        let (mut answer, is_read) = self.respond(request, routed, call, &mut counted).await;
        if dialect == Dialect::Actions {
            answer = answer.into_twirp_error();
        }
        if is_head && answer.told_len.is_none() {
            answer = answer.without_body();
        }
        if has_body && !is_read {
            life.leave_unread();
        }
        // JSON may be longer than what was counted for it.
        let counted_len = counted.as_ref().map_or(0, Counted::bytes);
        if answer.body.len() >= COUNTED_LEN_MIN && answer.body.len() > counted_len {
            drop(counted.take());
            let left = self.options().deadline.saturating_sub(begun.elapsed());
            let reader = self.reader(life);
            counted = self.count_unread(&reader, answer.body.len(), left).await;
            if counted.is_none() {
                answer = Answer::miss();
            }
        }
        let sent_len = match (&answer.stream, answer.told_len) {
            (Some(_), Some(len)) => len,
            _ => answer.body.len(),
        };
        self.figures().answered(dialect, answer.status, sent_len);
        self.figures().took(operation, begun.elapsed());
        complete(answer, counted, active)
    }

    /// The reader of a response on a connection.
    fn reader(&self, life: &Arc<Life>) -> Arc<Reader<S>> {
        self.0.outstanding.reader(&self.0.store, life)
    }

    /// Counts bytes of a response as unread; `None` if there is no room for them in time.
    async fn count_unread(
        &self,
        reader: &Arc<Reader<S>>,
        bytes: usize,
        wait_max: Duration,
    ) -> Option<Counted<S>> {
        let counted = timeout(wait_max, reader.count(bytes)).await.ok();
        if counted.is_none() {
            self.figures().lost(LostRead::Unread);
        }
        counted
    }

    /// The answer, and whether the body of the request was read. The body of the answer may be
    /// `counted` already.
    async fn respond<B: RequestBody>(
        &self,
        request: Request<B>,
        routed: Result<route::Route, RouteError>,
        call: Call<'_>,
        counted: &mut Option<Counted<S>>,
    ) -> (Answer, bool) {
        if let Some(refused) = self.refuses_origin(&request, call.peer) {
            return (refused, false);
        }
        // It tells nothing, and Turborepo asks it without credentials.
        if let Ok(route) = &routed
            && route.operation == route::Operation::TellMethods
        {
            return (operate::methods(&request), false);
        }
        if let Ok(route) = &routed
            && route.operation == route::Operation::ExchangeToken
        {
            return self.exchange_token(request, call).await;
        }
        let login = match &routed {
            Ok(route) if route.dialect == Dialect::Actions && route.digest.is_some() => {
                actions::login_of(request.uri().query())
            }
            _ => None,
        };
        let headers = login.as_ref().unwrap_or_else(|| request.headers());
        let admitted = match self.admit_connection(headers, call).await {
            Ok(admitted) => admitted,
            Err(refused) => return (as_miss(refused, &routed), false),
        };
        let (scope, role, login) = (admitted.scope, admitted.role, admitted.login);
        let route = match routed {
            Ok(route) => route,
            Err(error) => return (malformed(error), false),
        };
        if let Some(refused) = self.refuses_role(&route, role) {
            return (refused, false);
        }
        // An operation of the store that is under way ends by itself.
        let (mut answer, is_read) = tokio::select! {
            biased;
            () = login.clone().revoked() => return (Answer::unauthorized(REVOKED), false),
            operated = self.operate(request, route, scope, call, counted) => operated,
        };
        let stream = answer.stream.take();
        answer.stream = stream.map(|parts| parts.until(login.revoked()));
        (answer, is_read)
    }
}

/// The refusal of a login. A read that cannot be admitted now is a miss: a build tool goes on after
/// a miss, and some give up after an error of the server.
fn as_miss(refused: Answer, routed: &Result<Route, RouteError>) -> Answer {
    match routed {
        Ok(route)
            if refused.status == StatusCode::SERVICE_UNAVAILABLE && route.operation.is_read() =>
        {
            Answer::miss()
        }
        _ => refused,
    }
}

fn complete<S: Store>(
    answer: Answer,
    counted: Option<Counted<S>>,
    active: Active,
) -> Response<Payload<S>> {
    let Answer {
        status,
        mut headers,
        body,
        told_len,
        stream,
    } = answer;
    let len = told_len.unwrap_or(body.len());
    if status != StatusCode::NO_CONTENT {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(len));
    }
    let payload = match stream {
        Some(parts) => Payload::streamed(parts, counted, active),
        None => Payload::new(body, counted, active),
    };
    let mut response = Response::new(payload);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

fn malformed(error: RouteError) -> Answer {
    let status = match error {
        RouteError::Path(_) => StatusCode::BAD_REQUEST,
        RouteError::TooLong => StatusCode::URI_TOO_LONG,
        RouteError::Method => StatusCode::METHOD_NOT_ALLOWED,
    };
    Answer::line(status, &error.to_string())
}

impl<S: Store> Inner<S> {
    fn key(route: &route::Route) -> Bytes {
        Bytes::copy_from_slice(&route.key)
    }
}

impl<S: Store> Front<S> {
    /// Counts a connection, if there may be another one.
    pub(crate) fn take_place(&self) -> bool {
        let figures = self.figures();
        let connections = figures.connections.fetch_add(1, Ordering::AcqRel);
        if connections < self.options().connections_max && self.store().take_place() {
            figures.accepted.fetch_add(1, Ordering::Relaxed);
            return true;
        }
        figures.connections.fetch_sub(1, Ordering::AcqRel);
        figures.rejected.fetch_add(1, Ordering::Relaxed);
        false
    }

    /// The keyspace and the role of the client of a connection. While its credentials are checked
    /// the connection gives way to no newer one: the line of checks is bounded.
    async fn admit_connection(
        &self,
        headers: &HeaderMap,
        call: Call<'_>,
    ) -> Result<Admitted, Answer> {
        self.forget(call.life);
        let admitted = self.admit(headers, call.peer).await;
        match admitted {
            Ok(_) => {
                call.life.accept();
                // Another request of the connection may have failed meanwhile.
                self.forget(call.life);
            }
            Err(_) if call.life.is_on_probation() => self.suspect(call.peer.address, call.life),
            Err(_) => {}
        }
        admitted
    }

    /// Puts a connection on probation. Cuts the oldest one there, if there are too many.
    pub(crate) fn suspect(&self, address: IpAddr, life: &Arc<Life>) {
        let source = Source::of(Some(address));
        let number = self.0.last_on_probation.fetch_add(1, Ordering::Relaxed) + 1;
        let oldest = self.0.probation.begin(number, source, Arc::clone(life));
        // Two requests of a connection may fail side by side.
        self.0.probation.end(life.set_number(number));
        if let Some((_, oldest)) = oldest {
            oldest.cut();
        }
    }

    /// A connection is among those on probation no longer.
    pub(crate) fn forget(&self, life: &Life) {
        self.0.probation.end(life.number());
    }

    /// Counts a connection no longer.
    pub(crate) fn give_back_place(&self) {
        self.figures().connections.fetch_sub(1, Ordering::AcqRel);
        self.store().give_back_place();
    }
}
