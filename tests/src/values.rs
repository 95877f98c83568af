//! Values that can be recomputed from a number and a length.
//!
//! A value is an eight-byte stamp that is different for every number, followed by a window of a
//! fixed pool. So a million distinct values cost one pool of memory, sending one copies nothing,
//! checking one is a comparison with the pool, and a value that belongs to another key, or a
//! mixture of two, never passes.

use anyhow::{Result, bail, ensure};

use crate::rng::{Rng, mix};

/// Bytes at the start of a value that name its number.
pub const STAMP_LEN: usize = 8;

/// How far apart the windows of two values may lie in the pool.
const SPREAD: usize = 1 << 20;

/// What the bytes of the values look like to a compressor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Content {
    /// Nothing to gain, as with the zstd streams of a compile cache.
    Random,
    /// Words and line breaks, about a third when compressed.
    Text,
}

/// The memory that all values are windows of.
#[derive(Debug)]
pub struct ValuePool {
    bytes: Vec<u8>,
    len_max: usize,
}

/// One value, in the two parts that it is sent in.
#[derive(Clone, Copy, Debug)]
pub struct Value<'pool> {
    stamp: [u8; STAMP_LEN],
    stamp_len: usize,
    /// Where the window starts in [`ValuePool::bytes`].
    pub window_start: usize,
    window: &'pool [u8],
}

impl ValuePool {
    /// Makes a pool for values of up to `len_max` bytes; costs `len_max` + 1 MiB of memory.
    #[must_use]
    pub fn new(content: Content, len_max: usize) -> Self {
        let len = len_max + SPREAD;
        let mut rng = Rng::new(0x666f_6e6e);
        let mut bytes = Vec::with_capacity(len + 16);
        while bytes.len() < len {
            match content {
                Content::Random => bytes.extend_from_slice(&rng.next_u64().to_le_bytes()),
                Content::Text => push_word(&mut rng, &mut bytes),
            }
        }
        bytes.truncate(len);
        Self { bytes, len_max }
    }

    /// The whole pool, for senders that address windows by their offset.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The value of `number` with `len` bytes, at most the `len_max` of the pool.
    #[must_use]
    pub fn value(&self, number: u64, len: usize) -> Value<'_> {
        let len = len.min(self.len_max);
        let stamp_len = len.min(STAMP_LEN);
        let window_start = (mix(number ^ 0x7761_6c6b) as usize) % SPREAD;
        let window_end = window_start + (len - stamp_len);
        Value {
            stamp: mix(number).to_le_bytes(),
            stamp_len,
            window_start,
            window: self.bytes.get(window_start..window_end).unwrap_or_default(),
        }
    }
}

impl<'pool> Value<'pool> {
    /// The bytes that name the number.
    #[must_use]
    pub fn stamp(&self) -> &[u8] {
        &self.stamp[..self.stamp_len]
    }

    /// The bytes after the stamp.
    #[must_use]
    pub const fn window(&self) -> &'pool [u8] {
        self.window
    }

    /// Length of the whole value in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.stamp_len + self.window.len()
    }

    /// Whether the value has no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The value in one piece.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        [self.stamp(), self.window].concat()
    }

    /// Whether `chunk` is what the value holds from `offset` on.
    #[must_use]
    pub fn matches_at(&self, offset: usize, chunk: &[u8]) -> bool {
        let from_stamp = self.stamp_len.saturating_sub(offset).min(chunk.len());
        let (head, rest) = chunk.split_at(from_stamp);
        let stamp_ok = from_stamp == 0 || self.stamp[offset..offset + from_stamp] == *head;
        let window_from = (offset + from_stamp).saturating_sub(self.stamp_len);
        stamp_ok && self.window.get(window_from..window_from + rest.len()) == Some(rest)
    }

    /// Compares a whole value that came back, and tells where it differs.
    ///
    /// # Errors
    /// When the length or a byte differs.
    pub fn check(&self, got: &[u8]) -> Result<()> {
        ensure!(
            got.len() == self.len(),
            "value has {} bytes, expected {}",
            got.len(),
            self.len()
        );
        if !self.matches_at(0, got) {
            let want = self.stamp().iter().chain(self.window);
            let differs = got.iter().zip(want).position(|(got, want)| got != want);
            bail!("value of {} bytes differs at {differs:?}", got.len());
        }
        Ok(())
    }
}

fn push_word(rng: &mut Rng, out: &mut Vec<u8>) {
    const SYLLABLES: [&str; 16] = [
        "sn", "o", "fon", "ne", "bre", "is", "ka", "l", "vin", "ter", "stor", "m", "fje", "ll",
        "re", "st",
    ];
    let bits = rng.next_u64();
    for part in 0..1 + (bits & 3) {
        let pick = (bits >> (4 + 4 * part)) & 15;
        out.extend_from_slice(SYLLABLES[pick as usize].as_bytes());
    }
    out.push(if bits >> 60 == 0 { b'\n' } else { b' ' });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_checks_out_against_itself_in_chunks_of_any_size() {
        let pool = ValuePool::new(Content::Random, 1000);
        for len in [0, 1, 7, 8, 9, 100, 1000] {
            let value = pool.value(42, len);
            let bytes = value.to_vec();
            assert_eq!(bytes.len(), len);
            value.check(&bytes).unwrap();
            for size in 1..=len {
                let mut offset = 0;
                for chunk in bytes.chunks(size) {
                    assert!(
                        value.matches_at(offset, chunk),
                        "len {len} size {size} at {offset}"
                    );
                    offset += chunk.len();
                }
            }
        }
    }

    #[test]
    fn any_changed_byte_is_found() {
        let pool = ValuePool::new(Content::Text, 64);
        let value = pool.value(1, 64);
        for at in 0..64 {
            let mut bytes = value.to_vec();
            bytes[at] ^= 1;
            assert!(!value.matches_at(0, &bytes));
            assert!(value.check(&bytes).is_err());
        }
    }

    #[test]
    fn another_number_or_length_does_not_pass() {
        let pool = ValuePool::new(Content::Random, 200);
        let value = pool.value(1, 100);
        assert!(!value.matches_at(0, &pool.value(2, 100).to_vec()));
        assert!(value.check(&pool.value(1, 101).to_vec()).is_err());
        assert!(!value.matches_at(0, &pool.value(1, 101).to_vec()));
    }
}
