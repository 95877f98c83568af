//! An S3 server in the process of a test: real HTTP, real signatures, on a port of its own.
//!
//! It is `s3s` over `s3s-fs`, in a temporary directory. Where that differs from S3, it is put right
//! here: conditional writes are checked and made in one step, a suffix longer than the object is
//! cut to it, a directory is no object, and a bucket does not come to be by a write. Uploads in
//! parts are answered 501.
//!
//! The server can also be told to answer otherwise ([`S3Server::answer`]): to fail, or to break the
//! connection.

#![allow(clippy::unwrap_used)] // For tests alone.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
pub use hyper::Method;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use s3s::auth::SimpleAuth;
use s3s::dto::*;
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{HttpError, S3, S3Request, S3Response, S3Result, s3_error};
use s3s_fs::FileSystem;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};

use super::s3::{S3Credentials, S3Options};

/// The bucket that there is.
pub const BUCKET: &str = "bucket";

/// A server; it ends with this handle.
#[derive(Debug)]
pub struct S3Server {
    address: SocketAddr,
    control: Arc<Control>,
    task: JoinHandle<()>,
    dir: TempDir,
}

#[derive(Debug, Default)]
struct Control {
    requests: AtomicU64,
    /// Requests that got to where they hang for ever.
    hanging: AtomicU64,
    answers: Mutex<VecDeque<Answer>>,
    /// Objects with that in their path may not be read.
    denied: Mutex<Option<String>>,
}

/// An answer that the server gives instead of its own.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Requests that it is for; all of them if `None`.
    pub method: Option<Method>,
    /// How many times it is given.
    pub times: u64,
    /// What it is.
    pub reply: Reply,
}

/// What the server answers.
#[derive(Clone, Copy, Debug)]
pub enum Reply {
    /// Its own answer: another one comes only afterwards.
    Own,
    /// Success, although nothing takes place.
    Pretend,
    /// An error of S3 with that status and code.
    Error(u16, &'static str),
    /// No answer: the connection is closed.
    Disconnect,
    /// The request takes place, and then the connection is closed.
    LostAnswer,
    /// Nothing takes place, and there is never an answer.
    Hang,
    /// The request takes place, and there is never an answer.
    HangAfter,
}

impl S3Server {
    /// Starts a server with one empty bucket.
    ///
    /// # Errors
    /// When there is no directory or no port to be had.
    pub async fn start() -> io::Result<Self> {
        let dir = tempfile::tempdir()?;
        std::fs::create_dir(dir.path().join(BUCKET))?;
        let files =
            FileSystem::new(dir.path()).map_err(|error| io::Error::other(format!("{error:?}")))?;
        let mut service = S3ServiceBuilder::new(PutRight {
            root: dir.path().to_owned(),
            files,
            conditional_write: tokio::sync::Mutex::default(),
        });
        service.set_auth(SimpleAuth::from_single(KEY_ID, SECRET));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let control = Arc::new(Control::default());
        let task = tokio::spawn(serve(listener, service.build(), Arc::clone(&control)));
        Ok(Self {
            address,
            control,
            task,
            dir,
        })
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its URL.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Credentials that it accepts.
    #[must_use]
    pub fn credentials(&self) -> S3Credentials {
        S3Credentials {
            key_id: KEY_ID.to_owned(),
            secret: SECRET.to_owned(),
            session_token: None,
        }
    }

    /// The options for its bucket.
    #[must_use]
    pub fn options(&self) -> S3Options {
        S3Options {
            endpoint: Some(self.endpoint()),
            region: Some("us-east-1".to_owned()),
            credentials: Some(self.credentials()),
            // The client is in this process, on a machine that may be busy.
            timeout: Duration::from_secs(60),
            ..S3Options::new(BUCKET)
        }
    }

    /// Takes back what [`S3Server::answer`] asked for and was not used yet.
    pub fn answer_itself(&self) {
        self.control.answers.lock().clear();
    }

    /// Has it answer otherwise; answers are used up in the order in which they were given.
    pub fn answer(&self, answer: Answer) {
        self.control.answers.lock().push_back(answer);
    }

    /// From now on the objects whose key contains `part` may not be read; None: all may.
    pub fn deny(&self, part: Option<&str>) {
        *self.control.denied.lock() = part.map(str::to_owned);
    }

    /// Requests so far that will never be answered.
    #[must_use]
    pub fn hanging(&self) -> u64 {
        self.control.hanging.load(Ordering::Relaxed)
    }

    /// The directory with a file for each object, by its key.
    #[must_use]
    pub fn directory(&self) -> PathBuf {
        self.dir.path().join(BUCKET)
    }

    /// Requests so far.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.control.requests.load(Ordering::Relaxed)
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        // With it go the connections, which it owns.
        self.task.abort();
    }
}

const KEY_ID: &str = "TESTKEYID";
const SECRET: &str = "test-secret-access-key";

async fn serve(listener: TcpListener, service: S3Service, control: Arc<Control>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        // Head and body go out apart: the second must not wait for the first's acknowledgement.
        let _ = stream.set_nodelay(true);
        let (service, control) = (service.clone(), Arc::clone(&control));
        connections.spawn(async move {
            let service =
                service_fn(move |request| answer(service.clone(), Arc::clone(&control), request));
            // A client that goes away is no failure.
            let _ = http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn answer(
    service: S3Service,
    control: Arc<Control>,
    request: Request<Incoming>,
) -> Result<Response<s3s::Body>, HttpError> {
    control.requests.fetch_add(1, Ordering::Relaxed);
    let closed = || Err(HttpError::new(Box::new(io::Error::other("closed"))));
    let is_denied = request.method() == Method::GET
        && (control.denied.lock().as_deref())
            .is_some_and(|part| request.uri().path().contains(part));
    let reply = match is_denied {
        true => Some(Reply::Error(403, "AccessDenied")),
        false => control.next(request.method()),
    };
    match reply {
        None | Some(Reply::Own) => Service::call(&service, request).await,
        Some(Reply::Pretend) => Ok(Response::new(s3s::Body::empty())),
        Some(Reply::Error(status, code)) => {
            let text = format!(
                "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>{code}</Code>\
                 <Message>as the test wants it</Message></Error>"
            );
            let mut response = Response::new(s3s::Body::from(text));
            *response.status_mut() = StatusCode::from_u16(status).unwrap();
            Ok(response)
        }
        Some(Reply::Disconnect) => closed(),
        Some(Reply::LostAnswer) => {
            Service::call(&service, request).await?;
            closed()
        }
        Some(Reply::Hang) => control.hang().await,
        Some(Reply::HangAfter) => {
            Service::call(&service, request).await?;
            control.hang().await
        }
    }
}

impl Control {
    async fn hang<T>(&self) -> T {
        self.hanging.fetch_add(1, Ordering::Relaxed);
        std::future::pending().await
    }

    fn next(&self, method: &Method) -> Option<Reply> {
        let mut answers = self.answers.lock();
        let is_for = |answer: &Answer| answer.method.as_ref().is_none_or(|only| only == method);
        let index = answers.iter().position(is_for)?;
        let answer = answers.get_mut(index)?;
        let reply = answer.reply;
        answer.times = answer.times.saturating_sub(1);
        if answer.times == 0 {
            answers.remove(index);
        }
        Some(reply)
    }
}

/// The file system, with what differs from S3 put right.
struct PutRight {
    root: PathBuf,
    files: FileSystem,
    conditional_write: tokio::sync::Mutex<()>,
}

impl PutRight {
    fn check_bucket(&self, bucket: &str) -> S3Result<()> {
        if self.root.join(bucket).is_dir() {
            Ok(())
        } else {
            Err(s3_error!(NoSuchBucket))
        }
    }

    fn check_object(&self, bucket: &str, key: &str) -> S3Result<()> {
        if self.root.join(bucket).join(key).is_dir() {
            Err(s3_error!(NoSuchKey))
        } else {
            Ok(())
        }
    }
}

#[async_trait]
impl S3 for PutRight {
    async fn put_object(
        &self,
        request: S3Request<PutObjectInput>,
    ) -> S3Result<S3Response<PutObjectOutput>> {
        self.check_bucket(&request.input.bucket)?;
        if request.input.if_none_match.is_some() {
            let _alone = self.conditional_write.lock().await;
            return self.files.put_object(request).await;
        }
        self.files.put_object(request).await
    }

    async fn get_object(
        &self,
        mut request: S3Request<GetObjectInput>,
    ) -> S3Result<S3Response<GetObjectOutput>> {
        self.check_object(&request.input.bucket, &request.input.key)?;
        if let Some(Range::Suffix { length }) = &mut request.input.range {
            let head = HeadObjectInput {
                bucket: request.input.bucket.clone(),
                key: request.input.key.clone(),
                ..HeadObjectInput::default()
            };
            let head = S3Request {
                input: head,
                method: Method::HEAD,
                uri: request.uri.clone(),
                headers: request.headers.clone(),
                extensions: request.extensions.clone(),
                credentials: request.credentials.clone(),
                region: request.region.clone(),
                service: request.service.clone(),
                trailing_headers: None,
            };
            let size = self.files.head_object(head).await?.output.content_length;
            let size = size.and_then(|size| u64::try_from(size).ok()).unwrap_or(0);
            *length = size.min(*length);
        }
        self.files.get_object(request).await
    }

    async fn head_object(
        &self,
        request: S3Request<HeadObjectInput>,
    ) -> S3Result<S3Response<HeadObjectOutput>> {
        self.check_object(&request.input.bucket, &request.input.key)?;
        self.files.head_object(request).await
    }

    async fn delete_object(
        &self,
        request: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        let (bucket, key) = (&request.input.bucket, &request.input.key);
        if self.check_object(bucket, key).is_err() {
            return Ok(S3Response::new(DeleteObjectOutput::default()));
        }
        self.files.delete_object(request).await
    }

    async fn list_objects_v2(
        &self,
        request: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        self.files.list_objects_v2(request).await
    }
}
