//! One connection: a batch of requests going out, their replies coming in.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Read, Write};
use std::ops::Range;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use mio::net::{TcpStream, UnixStream};
use mio::{Interest, Registry, Token};

use super::dialect::{Head, Operation};
use super::options::{LoadOptions, Target, Verify};
use super::report::Tally;
use super::workload::{Task, Workload, push_key};
use crate::values::ValuePool;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Values up to this length are copied behind their request; longer ones are sent in place.
const COPY_LEN_MAX: usize = 8 << 10;
/// Pieces that go into one vectored write.
const PIECES_PER_WRITE: usize = 64;

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    fn connect(target: &Target) -> Result<Self> {
        let stream = match target {
            Target::Tcp(addr) => {
                let stream = std::net::TcpStream::connect_timeout(addr, CONNECT_TIMEOUT)?;
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                Self::Tcp(TcpStream::from_std(stream))
            }
            Target::Unix(path) => {
                let stream = StdUnixStream::connect(path)?;
                stream.set_nonblocking(true)?;
                Self::Unix(UnixStream::from_std(stream))
            }
        };
        Ok(stream)
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
        }
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write_vectored(pieces),
            Self::Unix(stream) => stream.write_vectored(pieces),
        }
    }
}

/// Bytes of the batch that is being sent: where they are and how far the sending got.
#[derive(Debug, Default)]
struct Outgoing {
    inline: Vec<u8>,
    pieces: Vec<Piece>,
    next_piece: usize,
    sent_of_piece: usize,
}

#[derive(Debug)]
enum Piece {
    Inline(Range<usize>),
    Pool(Range<usize>),
}

impl Outgoing {
    fn clear(&mut self) {
        self.inline.clear();
        self.pieces.clear();
        (self.next_piece, self.sent_of_piece) = (0, 0);
    }

    /// Makes what was appended to `inline` since the last piece a piece.
    fn seal_inline(&mut self) {
        let start = self.pieces.iter().rev().find_map(|piece| match piece {
            Piece::Inline(range) => Some(range.end),
            Piece::Pool(_) => None,
        });
        let start = start.unwrap_or(0);
        if start < self.inline.len() {
            self.pieces.push(Piece::Inline(start..self.inline.len()));
        }
    }

    /// Sends until all is gone (`true`) or the socket takes no more.
    fn send(&mut self, stream: &mut Stream, pool: &[u8]) -> Result<bool> {
        while self.next_piece < self.pieces.len() {
            let mut slices = [IoSlice::new(&[]); PIECES_PER_WRITE];
            let mut count = 0;
            let mut skip = self.sent_of_piece;
            for (slot, piece) in slices.iter_mut().zip(&self.pieces[self.next_piece..]) {
                *slot = IoSlice::new(&self.slice(piece, pool)[skip..]);
                skip = 0;
                count += 1;
            }
            match stream.write_vectored(&slices[..count]) {
                Ok(0) => bail!("the server closed the connection during a request"),
                Ok(sent) => self.advance(sent),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("sending a request"),
            }
        }
        Ok(true)
    }

    fn slice<'bytes>(&'bytes self, piece: &Piece, pool: &'bytes [u8]) -> &'bytes [u8] {
        match piece {
            Piece::Inline(range) => &self.inline[range.clone()],
            Piece::Pool(range) => &pool[range.clone()],
        }
    }

    fn advance(&mut self, mut sent: usize) {
        while let Some(Piece::Inline(range) | Piece::Pool(range)) = self.pieces.get(self.next_piece)
        {
            let left = range.len() - self.sent_of_piece;
            if sent < left {
                self.sent_of_piece += sent;
                return;
            }
            sent -= left;
            self.next_piece += 1;
            self.sent_of_piece = 0;
        }
    }
}

/// The value that is being received.
#[derive(Debug)]
struct Body {
    len: usize,
    /// Bytes of value and tail that were seen.
    seen: usize,
    compare: bool,
}

/// A connection with its batch.
#[derive(Debug)]
pub(super) struct Connection {
    stream: Stream,
    outgoing: Outgoing,
    all_sent: bool,
    sent_at: Instant,
    pending: VecDeque<Task>,
    /// The beginning of a reply whose rest has not arrived.
    partial: Vec<u8>,
    body: Option<Body>,
    key: Vec<u8>,
    replies: u64,
}

/// What all connections of a thread share.
#[derive(Debug)]
pub(super) struct Shared<'run> {
    pub(super) options: &'run LoadOptions,
    pub(super) pool: &'run ValuePool,
    pub(super) workload: Workload,
    pub(super) tally: Tally,
    pub(super) buffer: Vec<u8>,
}

impl Connection {
    pub(super) fn connect(target: &Target, registry: &Registry, token: Token) -> Result<Self> {
        let mut stream = Stream::connect(target).context("connecting")?;
        let interest = Interest::READABLE | Interest::WRITABLE;
        match &mut stream {
            Stream::Tcp(stream) => registry.register(stream, token, interest)?,
            Stream::Unix(stream) => registry.register(stream, token, interest)?,
        }
        Ok(Self {
            stream,
            outgoing: Outgoing::default(),
            all_sent: true,
            sent_at: Instant::now(),
            pending: VecDeque::new(),
            partial: Vec::new(),
            body: None,
            key: Vec::new(),
            replies: 0,
        })
    }

    /// Takes the next batch from the workload and starts to send it; without one the connection
    /// stays idle.
    pub(super) fn start_batch(&mut self, shared: &mut Shared<'_>) -> Result<()> {
        self.outgoing.clear();
        let options = shared.options;
        for _ in 0..options.pipeline.get() {
            let Some(task) = shared.workload.next() else {
                break;
            };
            self.push_request(task, options, shared.pool);
            self.pending.push_back(task);
        }
        if self.pending.is_empty() {
            return Ok(());
        }
        self.outgoing.seal_inline();
        self.sent_at = Instant::now();
        self.all_sent = self.outgoing.send(&mut self.stream, shared.pool.bytes())?;
        Ok(())
    }

    fn push_request(&mut self, task: Task, options: &LoadOptions, pool: &ValuePool) {
        self.key.clear();
        push_key(task.number, options.key_size, &mut self.key);
        let out = &mut self.outgoing;
        if task.operation == Operation::Get {
            options.protocol.push_get(&self.key, &mut out.inline);
            return;
        }
        let value = pool.value(task.number, options.value_size.of(task.number));
        options
            .protocol
            .push_set(&self.key, value.len(), &mut out.inline);
        out.inline.extend_from_slice(value.stamp());
        if value.len() <= COPY_LEN_MAX {
            out.inline.extend_from_slice(value.window());
        } else {
            out.seal_inline();
            let start = value.window_start;
            out.pieces
                .push(Piece::Pool(start..start + value.window().len()));
        }
        out.inline.extend_from_slice(options.protocol.set_tail());
    }

    /// Whether a batch is under way.
    pub(super) fn is_active(&self) -> bool {
        !self.all_sent || !self.pending.is_empty()
    }

    /// The socket takes bytes again.
    pub(super) fn on_writable(&mut self, shared: &mut Shared<'_>) -> Result<()> {
        if self.all_sent {
            return Ok(());
        }
        self.all_sent = self.outgoing.send(&mut self.stream, shared.pool.bytes())?;
        self.continue_when_answered(shared)
    }

    /// Starts the next batch once the batch is sent and answered; a server may refuse a large
    /// set before it has seen all of it.
    fn continue_when_answered(&mut self, shared: &mut Shared<'_>) -> Result<()> {
        if self.is_active() {
            return Ok(());
        }
        ensure!(
            self.partial.is_empty(),
            "the server sent more than was asked for"
        );
        self.start_batch(shared)
    }

    /// Reads what is there; starts the next batch when the batch is answered.
    pub(super) fn on_readable(&mut self, shared: &mut Shared<'_>) -> Result<()> {
        loop {
            let kept = self.partial.len();
            let mut buffer = std::mem::take(&mut shared.buffer);
            buffer[..kept].copy_from_slice(&self.partial);
            let room = buffer.len() - kept;
            let outcome = self.stream.read(&mut buffer[kept..]);
            let got = match outcome {
                Ok(0) => bail!("the server closed the connection"),
                Ok(got) => got,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    shared.buffer = buffer;
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                    shared.buffer = buffer;
                    continue;
                }
                Err(error) => return Err(error).context("reading a reply"),
            };
            let used = self.take_replies(&buffer[..kept + got], shared)?;
            self.partial.clear();
            self.partial.extend_from_slice(&buffer[used..kept + got]);
            shared.buffer = buffer;
            if self.pending.is_empty() {
                return self.continue_when_answered(shared);
            }
            // A short read has emptied the socket (epoll(7)); the next bytes raise an event.
            if got < room {
                return Ok(());
            }
        }
    }

    /// Consumes whole replies and parts of values; returns how many bytes.
    fn take_replies(&mut self, input: &[u8], shared: &mut Shared<'_>) -> Result<usize> {
        let mut used = 0;
        let mut latency = None;
        while let Some(&task) = self.pending.front() {
            let rest = &input[used..];
            if let Some(body) = &mut self.body {
                let (taken, done) = body.take(rest, task, shared)?;
                used += taken;
                if !done {
                    break;
                }
                self.body = None;
            } else {
                let head = shared.options.protocol.parse_head(task.operation, rest)?;
                match head {
                    Head::Incomplete => break,
                    Head::Value { used: taken, len } => {
                        used += taken;
                        self.body = Some(Body::begin(task, len, self.replies, shared));
                        continue;
                    }
                    Head::Miss { used: taken } => {
                        used += taken;
                        shared.tally.unexpected_misses += u64::from(task.present);
                    }
                    Head::Stored { used: taken } => {
                        used += taken;
                        shared.tally.value_bytes +=
                            shared.options.value_size.of(task.number) as u64;
                    }
                    Head::Refused {
                        used: taken,
                        message,
                    } => {
                        used += taken;
                        shared.tally.refused += 1;
                        shared.tally.note(|| message);
                    }
                }
            }
            self.pending.pop_front();
            self.replies += 1;
            match task.operation {
                Operation::Get => shared.tally.gets += 1,
                Operation::Set => shared.tally.sets += 1,
            }
            // One look at the clock for all replies of a read.
            shared
                .tally
                .record(*latency.get_or_insert_with(|| self.sent_at.elapsed()));
        }
        Ok(used)
    }
}

impl Body {
    fn begin(task: Task, len: usize, replies: u64, shared: &mut Shared<'_>) -> Self {
        let expected = shared.options.value_size.of(task.number);
        shared.tally.hits += 1;
        shared.tally.value_bytes += len as u64;
        let right = task.present && len == expected;
        if !right && shared.options.verify != Verify::None {
            shared.tally.wrong += 1;
            shared
                .tally
                .note(|| format!("key {}: {len} bytes, expected {expected}", task.number));
        }
        let compare = right
            && match shared.options.verify {
                Verify::None => false,
                Verify::Sample => replies.is_multiple_of(16),
                Verify::All => true,
            };
        Self {
            len,
            seen: 0,
            compare,
        }
    }

    /// Consumes bytes of the value and its tail; says how many and whether it is complete.
    fn take(&mut self, input: &[u8], task: Task, shared: &mut Shared<'_>) -> Result<(usize, bool)> {
        let from_value = self.len.saturating_sub(self.seen).min(input.len());
        let check_stamp = self.seen == 0 && shared.options.verify == Verify::Sample && task.present;
        if from_value > 0 && (self.compare || check_stamp) {
            let value = shared.pool.value(task.number, self.len);
            let checked = if self.compare {
                from_value
            } else {
                from_value.min(value.stamp().len())
            };
            if !value.matches_at(self.seen, &input[..checked]) {
                self.compare = false;
                shared.tally.wrong += 1;
                shared
                    .tally
                    .note(|| format!("key {}: wrong bytes", task.number));
            }
        }
        self.seen += from_value;
        let tail = shared.options.protocol.value_tail();
        let tail_seen = self.seen.saturating_sub(self.len);
        let after = &input[from_value..];
        let from_tail = if self.seen < self.len {
            0
        } else {
            (tail.len() - tail_seen).min(after.len())
        };
        ensure!(
            tail[tail_seen..tail_seen + from_tail] == after[..from_tail],
            "the value of key {} does not end where its length says",
            task.number
        );
        self.seen += from_tail;
        Ok((from_value + from_tail, self.seen == self.len + tail.len()))
    }
}
