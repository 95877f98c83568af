//! A member under the control of a test.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::panic,
    reason = "only tests use it"
)]

use fonn_proto::peer::hello::{self, Hello, Rejection};
use fonn_proto::peer::{Head, Kind, Reply, Request, Step, next};
use fonn_proto::{Command, Out};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

pub struct Node(TcpListener);

pub struct Connection {
    stream: TcpStream,
    input: Vec<u8>,
    pub hello: Hello,
}

pub struct Received {
    head: Head,
    body: Vec<u8>,
}

impl Received {
    pub fn id(&self) -> u32 {
        self.head.envelope.id
    }

    pub fn key(&self) -> Vec<u8> {
        match Request::decode(&self.head, &self.body, None).unwrap() {
            Request::Command(Command::Get(get)) => get.key.to_vec(),
            Request::Command(Command::Store(store)) => store.key.to_vec(),
            other => panic!("{other:?}"),
        }
    }
}

impl Node {
    pub async fn bind() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    pub fn address(&self) -> String {
        self.0.local_addr().unwrap().to_string()
    }

    pub async fn accept_silently(&self) -> TcpStream {
        self.0.accept().await.unwrap().0
    }

    pub async fn accept(&self) -> Connection {
        self.answer_hello(Ok(())).await
    }

    pub async fn reject(&self) {
        self.answer_hello(Err(Rejection::NotAllowed)).await;
    }

    async fn answer_hello(&self, verdict: Result<(), Rejection>) -> Connection {
        let mut stream = self.accept_silently().await;
        let mut input = Vec::new();
        let hello = loop {
            if let Ok(hello::Step::Hello { hello, len, .. }) = Hello::decode(&input) {
                input.drain(..len);
                break hello;
            }
            stream.read_buf(&mut input).await.unwrap();
        };
        let mut out = Out::new();
        Hello::new("node", "", 64 << 20).encode(verdict, &mut out);
        stream.write_all(&out.to_vec()).await.unwrap();
        Connection {
            stream,
            input,
            hello,
        }
    }
}

impl Connection {
    /// The next request; None at the end of the stream.
    pub async fn try_request(&mut self) -> Option<Received> {
        loop {
            if let Step::Frame { head, body, len } =
                next(Kind::Request, &self.input, u32::MAX).unwrap()
            {
                let body = body.to_vec();
                self.input.drain(..len);
                return Some(Received { head, body });
            }
            if self.stream.read_buf(&mut self.input).await.ok()? == 0 {
                return None;
            }
        }
    }

    pub async fn request(&mut self) -> Received {
        self.try_request().await.expect("a request")
    }

    pub async fn is_over(&mut self) -> bool {
        self.try_request().await.is_none()
    }

    pub async fn reply(&mut self, to: &Received, reply: &Reply<'_>) {
        self.send(&bytes(to.id(), reply)).await;
    }

    pub async fn part_of_reply(&mut self, to: &Received, reply: &Reply<'_>, len: usize) {
        self.send(&bytes(to.id(), reply)[..len]).await;
    }

    /// The bytes of a reply, to be sent in pieces.
    pub fn bytes_of_reply(&self, to: &Received, reply: &Reply<'_>) -> Vec<u8> {
        bytes(to.id(), reply)
    }

    pub async fn damaged_reply(&mut self, to: &Received, reply: &Reply<'_>) {
        let mut bytes = bytes(to.id(), reply);
        *bytes.last_mut().unwrap() ^= 1;
        self.send(&bytes).await;
    }

    pub async fn stray_reply(&mut self, to: &Received, reply: &Reply<'_>) {
        self.send(&bytes(to.id() ^ 0x8000_0000, reply)).await;
    }

    pub async fn send(&mut self, bytes: &[u8]) {
        // The client may have hung up.
        let _ = self.stream.write_all(bytes).await;
    }
}

fn bytes(id: u32, reply: &Reply<'_>) -> Vec<u8> {
    let mut out = Out::new();
    let envelope = fonn_proto::peer::Envelope {
        id,
        ..Default::default()
    };
    reply.encode(envelope, u32::MAX, &mut out).unwrap();
    out.to_vec()
}
