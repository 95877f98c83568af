//! How many frames a client of HTTP/2 may send besides its requests.
//!
//! PING, SETTINGS, PRIORITY, WINDOW_UPDATE, RST_STREAM and empty frames of data cost a processor
//! time, and a client may send them at any time, also before its login. h2 bounds what streams are
//! reset and how long heads are. It bounds no rate of frames.
//!
//! A connection has credit, and each such frame costs some. Credit comes with time, with requests
//! and with the bytes of responses, for which clients widen windows. Until a first request was let
//! in, every frame costs some, and no credit comes.
//!
//! [`Frames`] is pure: bytes and times are passed in. [`FrameLimited`] is a stream that asks it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

/// The preface of a client (RFC 9113, section 3.4).
const PREFACE_LEN: usize = 24;

/// The head of a frame (RFC 9113, section 4.1): a length of three bytes, then the type.
const HEAD_LEN: usize = 9;

const TYPE_DATA: u8 = 0;
const TYPE_HEADERS: u8 = 1;
const TYPE_CONTINUATION: u8 = 9;

/// What a frame costs. A client widens its windows once for this many bytes, or less often.
const FRAME_COST: u64 = 1024;

/// Credit of a new connection: its first upload comes in frames of 4 KiB or more.
const CREDIT: u64 = 512 * FRAME_COST;

/// Credit that a connection has at most: for the response that a client has read, and widens its
/// windows for after that.
const CREDIT_MAX: u64 = 64 << 20;

/// Credit that comes with each request, and with each second.
const CREDIT_FOR_REQUEST: u64 = 8 * FRAME_COST;
const CREDIT_FOR_SECOND: u64 = 1000 * FRAME_COST;

/// The frames of one connection.
#[derive(Debug)]
pub struct Frames {
    /// Bytes that belong to no head: of the preface, then of a payload.
    skip: usize,
    head: [u8; HEAD_LEN],
    head_len: usize,
    credit: u64,
    credited_at: Instant,
    /// The client has sent too many, and credit that comes later changes nothing.
    is_exhausted: bool,
}

impl Frames {
    /// The frames of a connection that was opened at `now`.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            skip: PREFACE_LEN,
            head: [0; HEAD_LEN],
            head_len: 0,
            credit: CREDIT,
            credited_at: now,
            is_exhausted: false,
        }
    }

    /// Notes bytes that the client sent. False if it has sent too many frames: the connection has
    /// to end, and none of what it sends from then on is read. No request of a `is_stranger` was
    /// let in yet.
    #[must_use]
    pub fn note_read(&mut self, mut bytes: &[u8], is_stranger: bool, now: Instant) -> bool {
        if self.is_exhausted {
            return false;
        }
        if !is_stranger {
            let since = now.saturating_duration_since(self.credited_at);
            self.earn(credit_for(since));
        }
        self.credited_at = now;
        while !bytes.is_empty() {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = bytes.get(skipped..).unwrap_or_default();
            let missing = HEAD_LEN - self.head_len;
            let (head, rest) = bytes.split_at(missing.min(bytes.len()));
            if let Some(room) = self.head.get_mut(self.head_len..self.head_len + head.len()) {
                room.copy_from_slice(head);
            }
            self.head_len += head.len();
            bytes = rest;
            if self.head_len == HEAD_LEN && !self.begin_frame(is_stranger) {
                self.is_exhausted = true;
                return false;
            }
        }
        true
    }

    /// Pays for the frame whose head is complete. False if there is no credit left.
    fn begin_frame(&mut self, is_stranger: bool) -> bool {
        let [high, middle, low, kind, ..] = self.head;
        let len = u32::from_be_bytes([0, high, middle, low]) as usize;
        self.head_len = 0;
        self.skip = len;
        let is_of_request = len > 0 && matches!(kind, TYPE_DATA | TYPE_HEADERS | TYPE_CONTINUATION);
        if is_of_request && !is_stranger {
            if kind == TYPE_HEADERS {
                self.earn(CREDIT_FOR_REQUEST);
            }
            return true;
        }
        let left = self.credit.checked_sub(FRAME_COST);
        self.credit = left.unwrap_or(self.credit);
        left.is_some()
    }

    /// Notes bytes that were sent to the client.
    pub fn note_written(&mut self, len: usize, is_stranger: bool) {
        if !is_stranger {
            self.earn(len as u64);
        }
    }

    fn earn(&mut self, credit: u64) {
        self.credit = self.credit.saturating_add(credit).min(CREDIT_MAX);
    }
}

fn credit_for(time: Duration) -> u64 {
    let credit = time.as_millis() * u128::from(CREDIT_FOR_SECOND) / 1000;
    u64::try_from(credit).unwrap_or(u64::MAX)
}

/// The stream of a connection that speaks HTTP/2. Its reads fail when the client has sent too many
/// frames, which ends it. Each client has the credit of one that was let in.
#[derive(Debug)]
pub(crate) struct FrameLimited<S> {
    stream: S,
    frames: Frames,
}

impl<S> FrameLimited<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self {
            stream,
            frames: Frames::new(Instant::now()),
        }
    }

    fn note_written(&mut self, polled: &Poll<io::Result<usize>>) {
        if let Poll::Ready(Ok(len)) = polled {
            self.frames.note_written(*len, false);
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for FrameLimited<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let it = self.get_mut();
        let before = buf.filled().len();
        ready!(Pin::new(&mut it.stream).poll_read(cx, buf))?;
        let bytes = buf.filled().get(before..).unwrap_or_default();
        let is_within = it.frames.note_read(bytes, false, Instant::now());
        let error = || io::Error::other("the client sent too many frames besides its requests");
        Poll::Ready(is_within.then_some(()).ok_or_else(error))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for FrameLimited<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let it = self.get_mut();
        let polled = Pin::new(&mut it.stream).poll_write(cx, buf);
        it.note_written(&polled);
        polled
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let it = self.get_mut();
        let polled = Pin::new(&mut it.stream).poll_write_vectored(cx, bufs);
        it.note_written(&polled);
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRANGER: bool = true;
    const FRAMES: u64 = CREDIT / FRAME_COST;

    fn frame(kind: u8, len: usize) -> Vec<u8> {
        let [.., high, middle, low] = len.to_be_bytes();
        let head = [high, middle, low, kind, 0, 0, 0, 0, 1];
        [&head[..], &vec![7; len]].concat()
    }

    struct Connection {
        frames: Frames,
        now: Instant,
    }

    impl Connection {
        fn new() -> Self {
            let now = Instant::now();
            let mut frames = Frames::new(now);
            assert!(frames.note_read(&[7; PREFACE_LEN], STRANGER, now));
            Self { frames, now }
        }

        /// How many of so many frames are taken.
        fn takes(&mut self, frame: &[u8], is_stranger: bool, count: u64) -> u64 {
            let taken =
                (0..count).take_while(|_| self.frames.note_read(frame, is_stranger, self.now));
            taken.count() as u64
        }
    }

    #[test]
    fn a_stranger_sends_some_frames_of_whatever_kind() {
        for kind in 0..=u8::MAX {
            for len in [0, 8] {
                let mut connection = Connection::new();
                let frame = frame(kind, len);
                assert_eq!(connection.takes(&frame, STRANGER, FRAMES), FRAMES);
                connection.now += Duration::from_secs(1000);
                connection.frames.note_written(1 << 20, STRANGER);
                assert_eq!(connection.takes(&frame, STRANGER, 1), 0, "{kind}, {len}");
            }
        }
    }

    #[test]
    fn frames_are_counted_however_they_come() {
        let bytes = frame(6, 8).repeat(600);
        for len in [1, 2, 9, 16, 17, 18, 1000, bytes.len()] {
            let mut connection = Connection::new();
            let mut taken = 0;
            for part in bytes.chunks(len) {
                if connection.takes(part, STRANGER, 1) == 0 {
                    break;
                }
                taken += part.len();
            }
            assert!(taken as u64 <= FRAMES * 17 + 9, "{len}: {taken}");
            assert!(taken as u64 + len as u64 > FRAMES * 17, "{len}: {taken}");
        }
    }

    #[test]
    fn a_client_that_was_let_in_pays_for_frames_that_belong_to_no_request() {
        let paid = [
            (TYPE_DATA, 0),
            (TYPE_HEADERS, 0),
            (TYPE_CONTINUATION, 0),
            (6, 8),
            (4, 6),
            (8, 4),
        ];
        for (kind, len) in paid {
            let mut connection = Connection::new();
            let frame = frame(kind, len);
            assert_eq!(connection.takes(&frame, !STRANGER, FRAMES), FRAMES);
            // A thousand are earned in a second.
            connection.now += Duration::from_secs(1);
            assert_eq!(connection.takes(&frame, !STRANGER, 10_000), 1000);
        }
        let mut connection = Connection::new();
        let frame = frame(TYPE_DATA, 1);
        assert_eq!(connection.takes(&frame, !STRANGER, 10_000), 10_000);
    }

    #[test]
    fn nothing_more_is_taken_of_a_client_that_sent_too_many_frames() {
        let mut connection = Connection::new();
        let ping = frame(6, 8);
        assert_eq!(connection.takes(&ping, !STRANGER, FRAMES + 1), FRAMES);
        connection.now += Duration::from_secs(1000);
        connection.frames.note_written(1 << 20, !STRANGER);
        assert_eq!(connection.takes(&ping, !STRANGER, 1), 0);
    }

    #[test]
    fn a_client_that_reads_long_responses_may_widen_its_windows() {
        let mut connection = Connection::new();
        for _ in 0..1000 {
            connection.frames.note_written(64 << 10, !STRANGER);
            assert_eq!(connection.takes(&frame(8, 4), !STRANGER, 32), 32);
        }
        // As does a client that ends many requests.
        for _ in 0..10_000 {
            assert_eq!(connection.takes(&frame(TYPE_HEADERS, 20), !STRANGER, 1), 1);
            assert_eq!(connection.takes(&frame(3, 4), !STRANGER, 1), 1);
        }
        connection.frames.note_written(1 << 40, !STRANGER);
        assert_eq!(connection.frames.credit, CREDIT_MAX);
    }
}
