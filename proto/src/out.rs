//! The reply buffer: copied bytes and shared values in the order in which they go to the socket.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes, BytesMut};

/// Values from this length on are sent from where they are; below it a copy is cheaper than one
/// more element in the vectored write.
pub const SHARE_LEN_MIN: usize = 16 * 1024;

/// Bytes to send, in order.
///
/// Copied bytes gather in `tail`; a shared value closes the tail as a chunk of its own. Positions
/// ([`Out::position`]) count all bytes ever put in, so that a reply which turns out to be wrong
/// before it was sent can be replaced ([`Out::replace`]).
#[derive(Debug, Default)]
pub struct Out {
    chunks: VecDeque<Bytes>,
    tail: BytesMut,
    /// Bytes that were put in and taken out, in total.
    sent: u64,
    /// Bytes in `chunks`.
    chunks_len: usize,
}

impl Out {
    /// An empty buffer.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes not yet sent.
    #[must_use]
    pub fn len(&self) -> usize {
        self.chunks_len + self.tail.len()
    }

    /// Whether nothing is left to send.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that the buffer for copied bytes has room for.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.tail.capacity()
    }

    /// Gathers copied bytes in the allocation of `buf` from here on. What `buf` holds is lost, and
    /// nothing is done while there are unsent bytes in an allocation of its own.
    pub fn lend(&mut self, mut buf: BytesMut) {
        if self.tail.is_empty() {
            buf.clear();
            self.tail = buf;
        }
    }

    /// Gives the allocation for copied bytes away, if there is one and nothing is left to send:
    /// what is idle holds no memory.
    #[must_use]
    pub fn take_back(&mut self) -> Option<BytesMut> {
        (self.is_empty() && self.tail.capacity() > 0).then(|| std::mem::take(&mut self.tail))
    }

    /// The position behind the last byte put in.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.sent + self.len() as u64
    }

    /// Copies bytes in.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) {
        self.tail.extend_from_slice(bytes);
    }

    /// Writes a decimal number.
    #[inline]
    pub fn put_decimal(&mut self, number: impl itoa::Integer) {
        self.put(itoa::Buffer::new().format(number).as_bytes());
    }

    /// Puts a value in: shared if it is large, copied otherwise.
    pub fn put_shared(&mut self, bytes: &Bytes) {
        if bytes.len() < SHARE_LEN_MIN {
            self.put(bytes);
            return;
        }
        self.seal_tail();
        self.chunks_len += bytes.len();
        self.chunks.push_back(bytes.clone());
    }

    /// Puts the bytes of an outcome's value in.
    #[inline]
    pub fn put_value(&mut self, value: &crate::outcome::Value<'_>) {
        match value {
            crate::outcome::Value::Copied(bytes) => self.put(bytes),
            crate::outcome::Value::Shared(bytes) => self.put_shared(bytes),
        }
    }

    /// Moves all that `other` has to send behind what is here. Large shared values are not copied.
    pub fn append(&mut self, other: &mut Self) {
        other.seal_tail();
        for chunk in other.chunks.drain(..) {
            self.put_shared(&chunk);
        }
        other.sent += other.chunks_len as u64;
        other.chunks_len = 0;
    }

    /// Replaces the unsent bytes from position `start` to `end` by others.
    ///
    /// For the rare case that a reply was composed before it turned out to be false. Costs a copy
    /// of all that is unsent and not shared.
    ///
    /// # Panics
    /// If the range was sent already or does not exist.
    pub fn replace(&mut self, start: u64, end: u64, with: &[u8]) {
        assert!(
            self.sent <= start && start <= end && end <= self.position(),
            "range to replace is not in the buffer"
        );
        self.seal_tail();
        let (mut skip, mut cut) = ((start - self.sent) as usize, (end - start) as usize);
        let mut rebuilt = VecDeque::with_capacity(self.chunks.len() + 2);
        let mut placed = false;
        for mut chunk in std::mem::take(&mut self.chunks) {
            if skip > 0 {
                let before = chunk.split_to(skip.min(chunk.len()));
                skip -= before.len();
                rebuilt.push_back(before);
            }
            if skip == 0 {
                if !placed && !chunk.is_empty() {
                    rebuilt.push_back(Bytes::copy_from_slice(with));
                    placed = true;
                }
                let cut_here = cut.min(chunk.len());
                chunk.advance(cut_here);
                cut -= cut_here;
                if !chunk.is_empty() {
                    rebuilt.push_back(chunk);
                }
            }
        }
        if !placed {
            rebuilt.push_back(Bytes::copy_from_slice(with));
        }
        rebuilt.retain(|chunk| !chunk.is_empty());
        self.chunks_len = rebuilt.iter().map(Bytes::len).sum();
        self.chunks = rebuilt;
    }

    /// Fills `slices` for one vectored write and returns how many were filled.
    pub fn io_slices<'s>(&'s self, slices: &mut [IoSlice<'s>]) -> usize {
        let parts = self
            .chunks
            .iter()
            .map(|chunk| chunk.as_ref())
            .chain((!self.tail.is_empty()).then_some(self.tail.as_ref()));
        let mut count = 0;
        for (slot, part) in slices.iter_mut().zip(parts) {
            *slot = IoSlice::new(part);
            count += 1;
        }
        count
    }

    /// The unsent bytes if they are in one piece, for a plain write.
    #[must_use]
    pub fn single(&self) -> Option<&[u8]> {
        self.chunks.is_empty().then_some(self.tail.as_ref())
    }

    /// Drops `count` bytes from the front: they were sent.
    pub fn advance(&mut self, mut count: usize) {
        self.sent += count as u64;
        if self.chunks.is_empty() && count == self.tail.len() {
            // Cleared rather than moved on, so that the allocation keeps its start.
            self.tail.clear();
            return;
        }
        while count > 0 {
            let Some(front) = self.chunks.front_mut() else {
                self.tail.advance(count);
                break;
            };
            let step = count.min(front.len());
            front.advance(step);
            self.chunks_len -= step;
            count -= step;
            if front.is_empty() {
                self.chunks.pop_front();
            }
        }
        if self.is_empty() {
            // Back to the start of the allocation, which `advance` moved away from.
            self.tail.clear();
        }
    }

    /// How many bytes were taken out so far.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Moves the first `count` unsent bytes, or as many as there are, behind those of `to`.
    pub fn move_to(&mut self, to: &mut Self, count: usize) {
        let mut left = count.min(self.len());
        self.sent += left as u64;
        while left > 0 {
            let Some(front) = self.chunks.front_mut() else {
                to.put(&self.tail.split_to(left));
                break;
            };
            let part = front.split_to(left.min(front.len()));
            self.chunks_len -= part.len();
            left -= part.len();
            to.put_shared(&part);
            if front.is_empty() {
                self.chunks.pop_front();
            }
        }
    }

    /// Everything unsent as one vector: for tests and small replies.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut all = Vec::with_capacity(self.len());
        self.chunks
            .iter()
            .for_each(|chunk| all.extend_from_slice(chunk));
        all.extend_from_slice(&self.tail);
        all
    }

    /// The buffer for copied bytes, for an encoder that fills in a length behind itself. It may
    /// only append, or write over what it appended since it last put a shared value in.
    pub(crate) fn tail_mut(&mut self) -> &mut BytesMut {
        &mut self.tail
    }

    fn seal_tail(&mut self) {
        if !self.tail.is_empty() {
            self.chunks_len += self.tail.len();
            self.chunks.push_back(self.tail.split().freeze());
        }
    }
}
