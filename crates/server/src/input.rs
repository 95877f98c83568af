//! The receive side of a connection: small requests in a pooled buffer, a large one in an
//! allocation of its own.
//!
//! A connection without unconsumed bytes holds no buffer, and one that waits for the rest of a
//! small request holds a small one. A request that does not fit the pooled buffer gets an
//! allocation of exactly the length that its parser asks for: the value in it is then shared with
//! the tiers as it is, without another copy. A request whose length shows only bit by bit grows by
//! halves, so that receiving it takes time in proportion to its length.

use std::io;

use bytes::{Buf, Bytes, BytesMut};
use zeroize::Zeroize as _;

use super::pool::{self, POOLED_LEN};
use super::socket::Socket;

/// Room behind a large request for what its parser could not foresee (options after a RESP value).
const LARGE_SLACK: usize = 512;

/// What waits for the rest of a request this small is not counted as memory held.
pub const SMALL_LEN: usize = 1024;

/// Received and not yet consumed bytes of one connection.
#[derive(Debug, Default)]
pub struct Input {
    buf: BytesMut,
    large: bool,
    /// The last request was a large one, and so is the next, most likely: no more than its head is
    /// read into the pooled buffer, since what lies there is copied when its own allocation is
    /// there.
    follows_large: bool,
}

/// Bytes to parse.
#[derive(Debug)]
pub enum Chunk {
    /// Of the pooled buffer; goes back with [`Input::restore`].
    Pooled(BytesMut),
    /// A whole large request, perhaps with the start of the next: may be shared.
    Large {
        /// What was received.
        bytes: Bytes,
        /// The length of the allocation it is in.
        capacity: usize,
    },
}

impl Chunk {
    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Self::Pooled(buf) => buf,
            Self::Large { bytes, .. } => bytes,
        }
    }

    /// Overwrites the first `len` bytes, among which a password was. A large request is too long
    /// for one.
    pub fn wipe(&mut self, len: usize) {
        if let Self::Pooled(buf) = self {
            let len = len.min(buf.len());
            buf[..len].zeroize();
        }
    }

    /// The allocation, if a value of `value_len` bytes in it may be shared: a small part would keep
    /// the whole of it alive, uncounted.
    pub fn source(&self, value_len: usize) -> Option<&Bytes> {
        match self {
            Self::Large { bytes, capacity }
                if capacity.saturating_sub(value_len) <= capacity / 8 + 2 * LARGE_SLACK =>
            {
                Some(bytes)
            }
            _ => None,
        }
    }
}

impl Input {
    /// Bytes that wait.
    pub fn len(&self) -> usize {
        self.buf.len()
    }

    /// Whether none wait.
    pub fn is_empty(&self) -> bool {
        self.buf.is_empty()
    }

    /// Bytes of memory that count as held for the request that waits.
    pub fn held(&self) -> usize {
        match self.buf.capacity() {
            ..=SMALL_LEN => 0,
            capacity => capacity,
        }
    }

    /// The capacity that [`Input::make_room`] takes for a request of `total` bytes.
    pub fn capacity_for(&self, total: usize) -> usize {
        let capacity = self.buf.capacity();
        if total <= capacity {
            capacity
        } else if !self.large && total <= POOLED_LEN {
            POOLED_LEN
        } else {
            let grown = if self.large {
                capacity + capacity / 2
            } else {
                0
            };
            total.saturating_add(LARGE_SLACK).max(grown)
        }
    }

    /// Makes room for a request of `total` bytes, counted from the first one that waits.
    pub fn make_room(&mut self, total: usize) {
        let capacity = self.capacity_for(total);
        if self.buf.is_empty() && capacity <= POOLED_LEN || total <= self.buf.capacity() {
            return;
        }
        self.move_to(if capacity <= POOLED_LEN {
            pool::take()
        } else {
            BytesMut::with_capacity(capacity)
        });
        self.large = capacity > POOLED_LEN;
    }

    /// Prepares for a wait for the rest of a request of `total` bytes.
    pub fn settle(&mut self, total: usize) {
        if !self.large && total <= SMALL_LEN && self.buf.capacity() > SMALL_LEN {
            self.move_to(BytesMut::with_capacity(SMALL_LEN));
        }
    }

    /// Keeps no more than twice the room that a request of `total` bytes takes. The room is a power
    /// of two, so that a request whose length shows bit by bit is not copied for each.
    pub fn fit(&mut self, total: usize) {
        let needed = total.max(self.buf.len()).max(SMALL_LEN);
        let len = needed.next_power_of_two();
        if !self.large && self.buf.capacity() > len {
            self.move_to(BytesMut::with_capacity(len));
        }
    }

    /// Gives up the room behind what was received: its request has to wait for memory.
    pub fn shrink(&mut self) {
        if !self.large {
            self.move_to(BytesMut::with_capacity(self.buf.len().max(1)));
        }
    }

    fn move_to(&mut self, mut buf: BytesMut) {
        buf.extend_from_slice(&self.buf);
        let before = std::mem::replace(&mut self.buf, buf);
        pool::give_back(before);
    }

    /// Reads what there is, until `limit` bytes wait, which is more than there are. `Ok(None)` if
    /// there is nothing now, `Ok(Some(0))` at the end of the stream.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn read(&mut self, socket: &Socket, limit: usize) -> io::Result<Option<usize>> {
        if self.buf.capacity() == 0 {
            self.buf = pool::take();
        } else if self.buf.len() == self.buf.capacity() {
            // Not met as long as `make_room` is told what the parser needs; a read of no bytes
            // would look like the end of the stream.
            self.buf.reserve(SMALL_LEN);
        }
        let len_max = match self.follows_large && !self.large && self.buf.len() < SMALL_LEN {
            true => SMALL_LEN - self.buf.len(),
            false => limit.saturating_sub(self.buf.len()).max(1),
        };
        match socket.try_read(&mut self.buf, len_max) {
            Ok(count) => Ok(Some(count)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.release_if_empty();
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Takes all that waits, to parse it.
    pub fn take(&mut self) -> Chunk {
        let buf = std::mem::take(&mut self.buf);
        if std::mem::take(&mut self.large) {
            Chunk::Large {
                capacity: buf.capacity(),
                bytes: buf.freeze(),
            }
        } else {
            Chunk::Pooled(buf)
        }
    }

    /// Puts back what was not consumed: all but the first `consumed` bytes.
    pub fn restore(&mut self, chunk: Chunk, consumed: usize) {
        match chunk {
            Chunk::Pooled(mut buf) => {
                self.follows_large &= consumed == 0;
                if consumed == buf.len() {
                    // The allocation is kept for the next read, from its start; a wait gives it
                    // back.
                    buf.clear();
                    self.buf = buf;
                    if self.buf.capacity() < POOLED_LEN && !self.buf.try_reclaim(POOLED_LEN) {
                        self.release_if_empty();
                    }
                    return;
                }
                buf.advance(consumed);
                self.buf = buf;
                if consumed > 0 && self.buf.capacity() < POOLED_LEN {
                    // `advance` moved the start: move the rest to the front of its allocation
                    // again.
                    self.buf.reserve(POOLED_LEN - self.buf.len());
                }
            }
            Chunk::Large { mut bytes, .. } => {
                self.follows_large |= consumed > 0;
                bytes.advance(consumed);
                if bytes.is_empty() {
                    return;
                }
                // What was not consumed of a large request that is not complete yet is still alone.
                match bytes.try_into_mut() {
                    Ok(buf) if consumed == 0 => {
                        self.buf = buf;
                        self.large = true;
                    }
                    Ok(buf) => self.copy_in(&buf),
                    Err(bytes) => self.copy_in(&bytes),
                }
            }
        }
    }

    fn copy_in(&mut self, rest: &[u8]) {
        self.large = rest.len() >= POOLED_LEN;
        self.buf = match self.large {
            true => BytesMut::with_capacity(rest.len() + LARGE_SLACK),
            false => pool::take(),
        };
        self.buf.extend_from_slice(rest);
    }

    fn release_if_empty(&mut self) {
        if self.buf.is_empty() {
            pool::give_back(std::mem::take(&mut self.buf));
            self.large = false;
        }
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        self.buf.clear();
        self.release_if_empty();
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    fn large(value_len: usize, capacity: usize) -> Chunk {
        Chunk::Large {
            bytes: Bytes::from(vec![0; value_len]),
            capacity,
        }
    }

    #[test]
    fn an_allocation_is_shared_only_with_a_value_that_fills_it() {
        assert!(large(1 << 20, (1 << 20) + 600).source(1 << 20).is_some());
        assert!(large(1 << 20, 1 << 20).source(5000).is_none());
        assert!(large(1 << 20, 3 << 20).source(1 << 20).is_none());
        let pooled = Chunk::Pooled(BytesMut::zeroed(16_000));
        assert!(pooled.source(15_900).is_none());
    }

    #[test]
    fn a_password_is_overwritten_and_what_follows_it_stays() {
        let received = &b"AUTH hunter2\r\nGET k\r\n"[..];
        let mut chunk = Chunk::Pooled(BytesMut::from(received));
        chunk.wipe(14);
        assert_eq!(chunk.as_slice(), [&[0; 14][..], b"GET k\r\n"].concat());
        chunk.wipe(received.len() + 1);
        assert_eq!(chunk.as_slice(), vec![0; received.len()]);
    }

    #[test]
    fn a_request_of_known_length_gets_what_it_needs_and_an_unknown_one_grows_by_halves() {
        let mut input = Input::default();
        input.buf.extend_from_slice(b"start");
        input.make_room(1 << 20);
        assert!(input.held() < (1 << 20) + 1024 && &input.buf[..] == b"start");

        let mut moves = 0;
        let mut total = 1 << 20;
        while total < 256 << 20 {
            let before = input.held();
            let announced = input.capacity_for(total);
            input.buf.resize(before.min(total - 1), 0);
            input.make_room(total);
            assert_eq!(
                input.held(),
                announced,
                "what was reserved is what it takes"
            );
            moves += usize::from(input.held() != before);
            total += 100 * 1024;
        }
        assert!(moves < 20, "copied {moves} times");
    }

    #[test]
    fn what_waits_for_the_rest_of_a_small_request_is_small() {
        let mut input = Input {
            buf: pool::take(),
            ..Input::default()
        };
        input.buf.extend_from_slice(b"get k");
        input.settle(6);
        assert_eq!((input.held(), &input.buf[..]), (0, &b"get k"[..]));
        // More than expected comes: it is counted again.
        input.make_room(5000);
        assert_eq!((input.held(), &input.buf[..]), (POOLED_LEN, &b"get k"[..]));
    }

    #[test]
    fn what_waits_for_the_rest_of_a_request_can_be_kept_in_little_room() {
        let mut input = Input {
            buf: pool::take(),
            ..Input::default()
        };
        input.buf.extend_from_slice(b"get k");
        let mut lens = Vec::new();
        for total in 6..=16 * 1024 {
            input.make_room(total);
            input.fit(total);
            assert_eq!(&input.buf[..], b"get k");
            lens.push(input.buf.capacity());
        }
        lens.dedup();
        assert_eq!(lens, [1024, 2048, 4096, 8192, 16 * 1024]);
    }

    #[test]
    fn the_rest_behind_a_large_request_is_kept() {
        let mut input = Input::default();
        input.make_room(100_000);
        input.buf.extend_from_slice(&[b'x'; 100_000]);
        input.buf.extend_from_slice(b"next");
        let chunk = input.take();
        let shared = chunk.source(100_000).cloned();
        input.restore(chunk, 100_000);
        assert_eq!((&input.buf[..], input.large), (&b"next"[..], false));
        assert_eq!(shared.map(|it| it.len()), Some(100_004));
    }

    #[tokio::test]
    async fn behind_a_large_request_no_more_than_a_head_is_read_ahead_until_a_small_one_came() {
        let (ours, mut theirs) = tokio::net::UnixStream::pair().unwrap();
        let socket = Socket::Unix(ours);
        let mut input = Input::default();
        input.make_room(100_000);
        input.buf.extend_from_slice(&[b'x'; 100_000]);
        let chunk = input.take();
        input.restore(chunk, 100_000);

        theirs.write_all(&[b'y'; 9_000]).await.unwrap();
        socket.readable().await.unwrap();
        assert_eq!(input.read(&socket, usize::MAX).unwrap(), Some(SMALL_LEN));
        let chunk = input.take();
        input.restore(chunk, 0);
        // Now its length is known: the rest goes where it belongs.
        input.make_room(8_000);
        assert_eq!(
            input.read(&socket, usize::MAX).unwrap(),
            Some(9_000 - SMALL_LEN)
        );
        let chunk = input.take();
        input.restore(chunk, 9_000);

        theirs.write_all(&[b'z'; 9_000]).await.unwrap();
        socket.readable().await.unwrap();
        assert_eq!(input.read(&socket, usize::MAX).unwrap(), Some(9_000));
    }

    #[tokio::test]
    async fn of_a_head_that_began_behind_a_large_request_no_more_is_read_ahead_either() {
        let (ours, mut theirs) = tokio::net::UnixStream::pair().unwrap();
        let socket = Socket::Unix(ours);
        let mut input = Input::default();
        input.make_room(100_000);
        input.buf.extend_from_slice(&[b'x'; 100_000]);
        input.buf.extend_from_slice(&[b'y'; 300]);
        let chunk = input.take();
        input.restore(chunk, 100_000);

        theirs.write_all(&[b'y'; 59_700]).await.unwrap();
        socket.readable().await.unwrap();
        assert_eq!(
            input.read(&socket, usize::MAX).unwrap(),
            Some(SMALL_LEN - 300)
        );
        let chunk = input.take();
        input.restore(chunk, 0);
        // The rest goes where it belongs, in one piece, as much as there is of it.
        input.make_room(60_000);
        assert_eq!(
            input.read(&socket, usize::MAX).unwrap(),
            Some(60_000 - SMALL_LEN)
        );
        assert!(input.buf[..] == [b'y'; 60_000]);
    }
}
