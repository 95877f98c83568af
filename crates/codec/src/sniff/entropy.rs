//! Judges from a sample whether bytes look random.
//!
//! The measure is how many different byte values 128 bytes hold. Random bytes hold 100.9 on
//! average, with a standard deviation of 3.7; base64 56, C sources 33 and never over 54, object
//! files 31 in the median. Unlike an entropy it needs no counts: marking a value is one store, so
//! 128 bytes cost some 40 ns.
//!
//! There are two steps, because one look is enough for nearly all values. First a glance: 128 bytes
//! from four places together, which are plainly random (24 of 25 random values are), plainly not,
//! or neither. Then, if neither, a window of 128 bytes at each of the places, all of which must
//! look random. There are 4 to 32 places, about one in each 128 KiB. A compressible stretch of
//! twice their distance has one in it for sure, and leaves the value to the codec; text in no more
//! than a quarter of a value that is random otherwise does so three times in four.
//!
//! Bytes can be spread evenly and be compressible all the same, if they repeat. So a run of the
//! value's first bytes is looked for at short distances and at powers of two.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

/// Bytes in a window, and in a glance.
const WINDOW_LEN: usize = 128;

/// Places that share a glance.
const PLACES_PER_GLANCE: usize = 4;

/// Fewer different values than this in a glance are not random: 4.5 standard deviations from the
/// mean. (Random bytes from half of the places, and text from the others, have 77.)
const GLANCE_MIN: u32 = 84;
/// So many are random: bytes spread evenly over 158 values (7.3 bits each, of which an entropy
/// coder could save 9 %) have as many once in twenty times.
const GLANCE_RANDOM: u32 = 94;

/// Fewer or more different values than this in a window are not random: 6 standard deviations from
/// the mean. (Each of 128 bytes different from all others is a ramp or a permutation.)
const DISTINCT_MIN: u32 = 78;
const DISTINCT_MAX: u32 = 122;

/// The least mean over all windows. It corresponds to bytes spread evenly over 180 values: 7.5
/// bits each, of which an entropy coder could save 6 %. With two windows it is 3.4 standard
/// deviations below the mean of random bytes, with four or more at least 4.7.
const DISTINCT_MEAN_MIN: u32 = 92;

/// Below this length there is too little to judge, and little to save.
const LEN_MIN: usize = 2 * WINDOW_LEN;

/// One place for so many bytes, within [`PLACES_MIN`] and [`PLACES_MAX`].
const BYTES_PER_PLACE: usize = 128 << 10;
const PLACES_MIN: usize = 4;
const PLACES_MAX: usize = 32;

/// How many bytes must come again to count as a repetition. Random bytes do so by chance once in
/// 2^64 comparisons.
const REPEAT_LEN: usize = 8;

/// The longest distance at which every position is looked at for a repetition.
const REPEAT_SCAN_MAX: usize = 4 << 10;

/// Whether no codec is likely to save more than a few percent of `raw`, judged from at most 8 KiB
/// of it, half of that spread over the whole. Deterministic; takes 0.1 us, 0.5 us for a value of
/// some MiB, and 0.3 to 1.5 us for one value in 25.
#[must_use]
pub fn looks_random(raw: &[u8]) -> bool {
    if raw.len() < LEN_MIN {
        return false;
    }
    let places = Places::of(raw);
    places.look_random_at_a_glance() && !repeats(raw)
}

/// Where to look, spread over a value.
struct Places<'a> {
    raw: &'a [u8],
    /// 2, or a multiple of [`PLACES_PER_GLANCE`].
    count: usize,
    /// Bytes from one to the next; at least [`WINDOW_LEN`], by the choice of the count.
    stride: usize,
}

#[allow(clippy::arithmetic_side_effects)] // Lengths of slices, over constants.
impl<'a> Places<'a> {
    fn of(raw: &'a [u8]) -> Self {
        let count = if raw.len() < PLACES_MIN * LEN_MIN {
            2
        } else {
            let count = (raw.len() / BYTES_PER_PLACE).clamp(PLACES_MIN, PLACES_MAX);
            count - count % PLACES_PER_GLANCE
        };
        Self {
            raw,
            count,
            stride: raw.len() / count,
        }
    }

    /// The first `N` bytes there; at most [`WINDOW_LEN`].
    fn at<const N: usize>(&self, index: usize) -> &'a [u8; N] {
        // It differs from part to part, or a stride of the sample could fall in step with one of
        // the data. Scaled by a product, which takes less time than a remainder.
        let slack = (self.stride - WINDOW_LEN) as u64;
        let part = (index as u32)
            .wrapping_mul(0x9E37_79B9)
            .wrapping_add(0x85EB_CA6B);
        let offset = ((u64::from(part) * (slack + 1)) >> 32) as usize;
        let place = self.raw.get(index * self.stride + offset..);
        place.and_then(<[u8]>::first_chunk).unwrap_or(&[0; N])
    }

    fn look_random_at_a_glance(&self) -> bool {
        let mut is_plain = true;
        for first in (0..self.count).step_by(PLACES_PER_GLANCE) {
            let mut seen = Seen::default();
            let places = first..(first + PLACES_PER_GLANCE).min(self.count);
            if places.len() == PLACES_PER_GLANCE {
                places.for_each(|at| seen.mark::<{ WINDOW_LEN / PLACES_PER_GLANCE }>(self.at(at)));
            } else {
                places.for_each(|at| seen.mark::<{ WINDOW_LEN / 2 }>(self.at(at)));
            }
            match seen.count() {
                ..GLANCE_MIN => return false,
                GLANCE_RANDOM..=DISTINCT_MAX => {}
                _ => is_plain = false,
            }
        }
        is_plain || self.look_random()
    }

    #[cold]
    fn look_random(&self) -> bool {
        let mut total: u32 = 0;
        for index in 0..self.count {
            let mut seen = Seen::default();
            seen.mark::<WINDOW_LEN>(self.at(index));
            let distinct = seen.count();
            if !(DISTINCT_MIN..=DISTINCT_MAX).contains(&distinct) {
                return false;
            }
            total += distinct;
        }
        total >= DISTINCT_MEAN_MIN * self.count as u32
    }
}

/// Which byte values there were.
struct Seen([u8; 256]);

impl Default for Seen {
    fn default() -> Self {
        Self([0; 256])
    }
}

impl Seen {
    #[allow(clippy::indexing_slicing)] // A byte indexes 256 places.
    fn mark<const N: usize>(&mut self, bytes: &[u8; N]) {
        for &byte in bytes {
            self.0[usize::from(byte)] = 1;
        }
    }

    fn count(&self) -> u32 {
        // At most 128 are marked, so bytes can hold the sum, of which the compiler adds 16 at a
        // time.
        u32::from(self.0.iter().fold(0u8, |sum, &mark| sum.wrapping_add(mark)))
    }
}

/// Whether the first bytes come again at a distance of a few KiB, or of a power of two.
fn repeats(raw: &[u8]) -> bool {
    let Some((needle, rest)) = raw.split_first_chunk::<REPEAT_LEN>() else {
        return false;
    };
    // `rest` begins at distance REPEAT_LEN. A longer value affords a longer search.
    let scan = rest
        .get(..(raw.len() / 128).clamp(LEN_MIN, REPEAT_SCAN_MAX))
        .unwrap_or(rest);
    let [first, ..] = *needle;
    let is_again = |at: usize| rest.get(at..).is_some_and(|tail| tail.starts_with(needle));
    memchr::memchr_iter(first, scan).any(is_again)
        || (9..usize::BITS - 1)
            .map(|shift| (1usize << shift).saturating_sub(REPEAT_LEN))
            .take_while(|&at| at < rest.len())
            .any(is_again)
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)]
mod tests {
    use super::*;

    /// SplitMix64: deterministic, and random enough for any sniffing.
    fn noise(seed: u64, len: usize) -> Vec<u8> {
        let mut state = seed;
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            bytes.extend_from_slice(&(z ^ (z >> 31)).to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }

    #[test]
    fn noise_looks_random_at_nearly_every_seed() {
        for len in [256, 300, 1024, 4096, 16 << 10, 128 << 10, 1 << 20] {
            let seeds = 400;
            let missed = (0..seeds)
                .filter(|&seed| !looks_random(&noise(seed, len)))
                .count();
            assert!(missed <= 2, "{missed} of {seeds} at {len}");
        }
    }

    #[test]
    fn what_is_too_short_is_not_judged() {
        assert!(!looks_random(&[]));
        assert!(!looks_random(&noise(1, 255)));
    }

    #[test]
    fn bytes_of_a_small_alphabet_do_not_look_random() {
        for alphabet in [1, 2, 16, 64, 100, 128, 150] {
            for len in [256, 2000, 16 << 10, 200_000] {
                let bytes: Vec<u8> = noise(7, len)
                    .iter()
                    .map(|&byte| (u32::from(byte) * alphabet / 256) as u8)
                    .collect();
                assert!(!looks_random(&bytes), "alphabet {alphabet}, {len}");
            }
        }
    }

    #[test]
    fn noise_with_structure_does_not_look_random() {
        // Floats in one binade, and words of which one byte is constant.
        for keep in [[0xFF, 0xFF, 0x7F, 0], [0xFF, 0xFF, 0xFF, 0]] {
            let words: Vec<u8> = noise(3, 64 << 10)
                .iter()
                .zip(keep.iter().cycle())
                .map(|(b, k)| b & k)
                .collect();
            assert!(!looks_random(&words));
        }
    }

    #[test]
    fn one_compressible_stretch_is_enough_for_an_attempt() {
        for (len, stretch) in [(2000, 1000), (64 << 10, 32 << 10), (1 << 20, 256 << 10)] {
            for place in 0..16 {
                let mut bytes = noise(place, len);
                let start = (len - stretch) * place as usize / 15;
                bytes[start..start + stretch].fill(b'x');
                assert!(!looks_random(&bytes), "{len} {place}");
            }
        }
    }

    #[test]
    fn ramps_and_repetitions_do_not_look_random() {
        for period in [8, 13, 251, 256, 257, 1000, 4096] {
            let bytes: Vec<u8> = noise(5, period)
                .iter()
                .copied()
                .cycle()
                .take(256 << 10)
                .collect();
            assert!(!looks_random(&bytes), "{period}");
        }
        for shift in 9..17 {
            let period = 1 << shift;
            let bytes: Vec<u8> = noise(5, period)
                .iter()
                .copied()
                .cycle()
                .take(2 * period)
                .collect();
            assert!(!looks_random(&bytes), "{period}");
        }
        let ramp: Vec<u8> = (0..64u32 << 10).map(|i| i as u8).collect();
        assert!(!looks_random(&ramp));
        let ramp: Vec<u8> = (0..64u32 << 10).map(|i| (i * 7 + (i >> 8)) as u8).collect();
        assert!(!looks_random(&ramp));
    }
}
