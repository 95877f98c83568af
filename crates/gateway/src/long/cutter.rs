//! Cuts a value into chunks where its content says, so that an insertion moves few borders.
//!
//! Source: Xia et al., "The Design of Fast Content-Defined Chunking for Data Deduplication Based
//! Storage Systems" (2020), as `FAST_CDC_2020` of the Remote Execution API: normalization level 2,
//! seed 0, chunks between a quarter and four times the average.

use bytes::{Buf as _, Bytes, BytesMut};
use fastcdc::v2020::{FastCDC, MAXIMUM_MIN};

use super::CHUNK_LEN_MAX;

/// The longest chunk has so many times the average length, and the shortest one such a part of it.
const SPREAD: usize = 4;

/// Longest chunk in bytes where values have at most `value_len_max`.
pub(crate) const fn chunk_len_max(value_len_max: usize) -> usize {
    let len = match value_len_max < CHUNK_LEN_MAX {
        true => value_len_max,
        false => CHUNK_LEN_MAX,
    };
    // The library takes even lengths: of the longest chunk, of a quarter and of a sixteenth of it.
    let even = len - len % (2 * SPREAD * SPREAD);
    match even < MAXIMUM_MIN {
        true => MAXIMUM_MIN,
        false => even,
    }
}

/// Length of a chunk in bytes on average.
pub(crate) const fn chunk_len_avg(value_len_max: usize) -> usize {
    chunk_len_max(value_len_max) / SPREAD
}

/// Cuts a value into chunks as it arrives.
#[derive(Debug)]
pub(crate) struct Cutter {
    len_max: usize,
    buffer: BytesMut,
}

impl Cutter {
    /// For a store whose values have at most `value_len_max` bytes.
    pub(crate) fn new(value_len_max: usize) -> Self {
        Self {
            len_max: chunk_len_max(value_len_max),
            buffer: BytesMut::new(),
        }
    }

    /// Bytes that a cutter holds after it took `more`, together with the chunk which it gives then.
    pub(crate) fn memory_len(&self, more: usize) -> usize {
        2 * self.buffer.len().saturating_add(more).min(self.len_max)
    }

    /// Takes the next bytes, and returns those for which there is no room before [`Cutter::next`].
    pub(crate) fn take<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let room = self.len_max.saturating_sub(self.buffer.len());
        let (taken, rest) = bytes.split_at(bytes.len().min(room));
        if self.buffer.is_empty() {
            self.buffer.reserve(taken.len());
        }
        self.buffer.extend_from_slice(taken);
        rest
    }

    /// The next chunk, if the bytes that came say where it ends.
    pub(crate) fn next(&mut self) -> Option<Bytes> {
        match self.buffer.len() < self.len_max {
            true => None,
            false => self.cut(),
        }
    }

    /// The next chunk of what is left, when no more bytes come.
    pub(crate) fn last(&mut self) -> Option<Bytes> {
        match self.buffer.is_empty() {
            true => None,
            false => self.cut(),
        }
    }

    fn cut(&mut self) -> Option<Bytes> {
        let avg = self.len_max / SPREAD;
        let cutter = FastCDC::with_level(
            &self.buffer,
            avg / SPREAD,
            avg,
            self.len_max,
            fastcdc::v2020::Normalization::Level2,
        );
        let (_, end) = cutter.cut(0, self.buffer.len());
        // A chunk of its own: the store keeps it longer than this buffer.
        let chunk = Bytes::copy_from_slice(self.buffer.get(..end)?);
        self.buffer.advance(end);
        (end > 0).then_some(chunk)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bytes that look random.
    fn noise(len: usize, seed: u64) -> Vec<u8> {
        let mut state = seed;
        let mut step = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) as u8
        };
        (0..len).map(|_| step()).collect()
    }

    fn chunks(value: &[u8], step: usize, value_len_max: usize) -> Vec<Bytes> {
        let mut cutter = Cutter::new(value_len_max);
        let mut chunks = Vec::new();
        for mut bytes in value.chunks(step.max(1)) {
            while !bytes.is_empty() {
                bytes = cutter.take(bytes);
                while let Some(chunk) = cutter.next() {
                    chunks.push(chunk);
                }
            }
        }
        while let Some(chunk) = cutter.last() {
            chunks.push(chunk);
        }
        chunks
    }

    #[test]
    fn an_insertion_changes_few_chunks() {
        let before = noise(1 << 20, 1);
        let mut after = before.clone();
        after.splice(300_000..300_000, noise(77, 2));
        let (before, after) = (
            chunks(&before, 4096, 64 << 10),
            chunks(&after, 999, 64 << 10),
        );
        let shared = after.iter().filter(|it| before.contains(it)).count();
        assert!(before.len() > 30, "{}", before.len());
        assert!(shared + 4 >= after.len(), "{shared} of {}", after.len());
    }

    #[test]
    fn chunks_are_as_long_as_build_tools_are_told() {
        assert_eq!(chunk_len_avg(256 << 20), 1 << 20);
        assert_eq!(chunk_len_max(256 << 20), 4 << 20);
        // A short limit of values is one of chunks too.
        assert!(chunk_len_max(1_000_000) <= 1_000_000);
        assert_eq!(chunk_len_max(0), MAXIMUM_MIN);
    }

    proptest! {
        #[test]
        fn chunks_make_the_value_however_it_arrives(
            len in 0usize..200_000, step in 1usize..70_000, seed: u64, value_len_max in 1024usize..100_000,
        ) {
            let value = noise(len, seed);
            let cut = chunks(&value, step, value_len_max);
            let longest = chunk_len_max(value_len_max);
            prop_assert!(cut.iter().all(|it| !it.is_empty() && it.len() <= longest));
            prop_assert_eq!(cut.concat(), value.clone());
            prop_assert_eq!(cut, chunks(&value, usize::MAX, value_len_max));
        }
    }
}
