//! The Remote Execution API as a build tool speaks it: one connection, a call after another.

use std::convert::Infallible;
use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use bytes::{Buf as _, Bytes};
use fonn_reapi::messages::{ReadRequest, WriteRequest, WriteResponse};
use fonn_reapi::{Method, frame};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http2::{self, SendRequest};
use hyper::header::{AUTHORIZATION, HeaderValue};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::time::timeout;
use tonic::{Code, Status};

use super::REPLY_LIMIT;

/// Bytes of a blob in one message of a write, and that the server may send before they are read.
/// Bazel's client has them so.
const CHUNK_LEN: usize = 16 << 10;
const WINDOW_LEN: u32 = 1 << 20;

/// Before a message: whether it is compressed, and its length in four bytes.
const HEAD_LEN: usize = 5;

type Messages =
    StreamBody<tokio_stream::Iter<std::vec::IntoIter<Result<Frame<Bytes>, Infallible>>>>;

/// A connection to the HTTP port for build tools.
#[derive(Debug)]
pub struct RemoteClient {
    runtime: Runtime,
    sender: SendRequest<Messages>,
    origin: String,
    login: Option<HeaderValue>,
}

/// How a call ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteAnswer {
    /// The status.
    pub code: Code,
    /// What was answered, encoded.
    pub messages: Vec<Bytes>,
}

impl RemoteAnswer {
    /// The only message of a call that went well.
    ///
    /// # Errors
    /// When the call went otherwise.
    pub fn message<M: Message + Default>(&self) -> Result<M> {
        ensure!(self.code == Code::Ok, "refused with {:?}", self.code);
        let message = self.messages.first().context("no message")?;
        Ok(M::decode(message.clone())?)
    }
}

impl RemoteClient {
    /// Connects.
    ///
    /// # Errors
    /// When the server does not speak HTTP/2 there.
    pub fn connect(addr: SocketAddr) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build()?;
        let sender = runtime.block_on(async {
            let stream = TcpStream::connect(addr).await?;
            stream.set_nodelay(true)?;
            let (sender, connection) = http2::Builder::new(TokioExecutor::new())
                .initial_stream_window_size(WINDOW_LEN)
                .initial_connection_window_size(WINDOW_LEN)
                .handshake(TokioIo::new(stream))
                .await?;
            tokio::spawn(connection);
            anyhow::Ok(sender)
        })?;
        Ok(Self {
            runtime,
            sender,
            origin: format!("http://{addr}"),
            login: None,
        })
    }

    /// Sends `login` as the `authorization` header of all calls.
    ///
    /// # Errors
    /// When it cannot be the value of a header.
    pub fn with_login(mut self, login: &str) -> Result<Self> {
        self.login = Some(HeaderValue::from_str(login)?);
        Ok(self)
    }

    /// Makes a call of some messages.
    ///
    /// # Errors
    /// When there is no answer.
    pub fn call(&self, method: Method, messages: Vec<Bytes>) -> Result<RemoteAnswer> {
        let frames: Vec<_> = messages.into_iter().map(|it| Ok(Frame::data(it))).collect();
        let mut request = Request::post(format!("{}{}", self.origin, method.path()))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(StreamBody::new(tokio_stream::iter(frames)))?;
        if let Some(login) = &self.login {
            request.headers_mut().insert(AUTHORIZATION, login.clone());
        }
        let mut sender = self.sender.clone();
        let answer = async {
            sender.ready().await?;
            answer_of(sender.send_request(request).await?).await
        };
        // The timer is the runtime's own.
        self.runtime
            .block_on(async { timeout(REPLY_LIMIT, answer).await })
            .context("no answer in time")?
    }

    /// Makes a call of one message, which is answered by one.
    ///
    /// # Errors
    /// When it is refused.
    pub fn ask<M: Message + Default>(&self, method: Method, message: &impl Message) -> Result<M> {
        let answer = self.call(method, vec![frame(message)])?;
        answer.message().with_context(|| method.as_str().to_owned())
    }

    /// The blob that a resource names.
    ///
    /// # Errors
    /// When the read does not end well.
    pub fn read(&self, resource: &str) -> Result<Vec<u8>> {
        let request = ReadRequest {
            resource_name: resource.to_owned(),
            ..ReadRequest::default()
        };
        let answer = self.call(Method::Read, vec![frame(&request)])?;
        ensure!(answer.code == Code::Ok, "{resource}: {:?}", answer.code);
        let mut blob = Vec::new();
        for message in answer.messages {
            let part = fonn_reapi::messages::ReadResponse::decode(message)?;
            blob.extend_from_slice(&part.data);
        }
        Ok(blob)
    }

    /// Stores a blob under a resource name.
    ///
    /// # Errors
    /// When the write does not end well.
    pub fn write(&self, resource: &str, blob: &Bytes) -> Result<()> {
        let answer = self.call(Method::Write, write_messages(resource, blob))?;
        let answer: WriteResponse = answer.message().with_context(|| resource.to_owned())?;
        ensure!(answer.committed_size == i64::try_from(blob.len())?);
        Ok(())
    }
}

/// The messages of a write.
#[must_use]
pub fn write_messages(resource: &str, blob: &Bytes) -> Vec<Bytes> {
    let count = blob.len().div_ceil(CHUNK_LEN).max(1);
    let messages = (0..count).map(|index| {
        let from = index * CHUNK_LEN;
        frame(&WriteRequest {
            resource_name: match index {
                0 => resource.to_owned(),
                _ => String::new(),
            },
            write_offset: from as i64,
            finish_write: index + 1 == count,
            data: blob.slice(from..blob.len().min(from + CHUNK_LEN)),
        })
    });
    messages.collect()
}

async fn answer_of(response: Response<Incoming>) -> Result<RemoteAnswer> {
    let head = Status::from_header_map(response.headers());
    let body = response.into_body().collect().await?;
    let status = body.trailers().and_then(Status::from_header_map).or(head);
    let code = status.context("an answer without a status")?.code();
    let (mut bytes, mut messages) = (body.to_bytes(), Vec::new());
    while bytes.has_remaining() {
        ensure!(bytes.len() >= HEAD_LEN, "an answer that ends in a head");
        ensure!(bytes.get_u8() == 0, "a compressed message");
        let len = bytes.get_u32() as usize;
        ensure!(bytes.len() >= len, "an answer that ends in a message");
        messages.push(bytes.split_to(len));
    }
    Ok(RemoteAnswer { code, messages })
}
