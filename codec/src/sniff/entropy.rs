//! Judges from a sample whether bytes look random.
//!
//! The measure is how many different byte values a window of 128 bytes holds. Random bytes hold
//! 100.9 on average, with a standard deviation of 3.7; base64 56, C sources 33 and never over 54,
//! object files 31 in the median. Unlike an entropy it needs no counts: marking a value is one store,
//! so a window costs some 40 ns. *Every* window must look random: there is one in each 128 KiB
//! (and 4 to 32 in all), so a compressible stretch of twice that distance is always seen and leaves
//! the value to the codec.
//!
//! Bytes can be spread evenly and be compressible all the same, if they repeat. So a run of the
//! value's first bytes is looked for at short distances and at powers of two.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

/// Bytes in a window.
const WINDOW_LEN: usize = 128;

/// Fewer or more different values than this are not random: 6 standard deviations from the mean.
/// (Each of 128 bytes different from all others is a ramp or a permutation.)
const DISTINCT_MIN: u32 = 78;
const DISTINCT_MAX: u32 = 122;

/// The least mean over all windows. It corresponds to bytes spread evenly over 180 values: 7.5
/// bits each, of which an entropy coder could save 6 %. With two windows it is 3.4 standard
/// deviations below the mean of random bytes, with four or more at least 4.7.
const DISTINCT_MEAN_MIN: u32 = 92;

/// Below this length there is too little to judge, and little to save.
const LEN_MIN: usize = 2 * WINDOW_LEN;

/// One window for so many bytes, within [`WINDOWS_MIN`] and [`WINDOWS_MAX`].
const BYTES_PER_WINDOW: usize = 128 << 10;
const WINDOWS_MIN: usize = 4;
const WINDOWS_MAX: usize = 32;

/// How many bytes must come again to count as a repetition. Random bytes do so by chance once in
/// 2^64 comparisons.
const REPEAT_LEN: usize = 8;

/// The longest distance at which every position is looked at for a repetition.
const REPEAT_SCAN_MAX: usize = 4 << 10;

/// Whether no codec is likely to save more than a few percent of `raw`, judged from at most 8 KiB
/// of it, half of that spread over the whole. Deterministic; takes 0.2 to 1.5 us.
#[must_use]
pub fn looks_random(raw: &[u8]) -> bool {
    raw.len() >= LEN_MIN && windows_look_random(raw) && !repeats(raw)
}

#[allow(clippy::arithmetic_side_effects)] // Lengths of slices, over constants.
fn windows_look_random(raw: &[u8]) -> bool {
    let count = if raw.len() < WINDOWS_MIN * LEN_MIN {
        2
    } else {
        (raw.len() / BYTES_PER_WINDOW).clamp(WINDOWS_MIN, WINDOWS_MAX)
    };
    // At least a window's length, by the choice of `count`.
    let stride = raw.len() / count;
    let mut total: u32 = 0;
    for (index, part) in raw.chunks_exact(stride).take(count).enumerate() {
        // A place that differs from part to part, or a stride of the sample could fall in step with
        // one of the data.
        let slack = stride - WINDOW_LEN;
        let offset = index.wrapping_mul(0x9E37_79B9).wrapping_add(0x85EB) % (slack + 1);
        let Some(window) = part.get(offset..).and_then(<[u8]>::first_chunk) else {
            return false;
        };
        let distinct = distinct_values(window);
        if !(DISTINCT_MIN..=DISTINCT_MAX).contains(&distinct) {
            return false;
        }
        total += distinct;
    }
    total >= DISTINCT_MEAN_MIN * count as u32
}

#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)] // A byte indexes 256 places.
fn distinct_values(window: &[u8; WINDOW_LEN]) -> u32 {
    let mut seen = [0u8; 256];
    for &byte in window {
        seen[usize::from(byte)] = 1;
    }
    // At most 128, so bytes can hold the sum, of which the compiler adds 16 at a time.
    u32::from(seen.iter().fold(0u8, |sum, &mark| sum.wrapping_add(mark)))
}

/// Whether the first bytes come again at a distance of a few KiB, or of a power of two.
fn repeats(raw: &[u8]) -> bool {
    let Some((needle, rest)) = raw.split_first_chunk::<REPEAT_LEN>() else {
        return false;
    };
    // `rest` begins at distance REPEAT_LEN. A longer value affords a longer search.
    let scan = rest
        .get(..(raw.len() / 64).clamp(LEN_MIN, REPEAT_SCAN_MAX))
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
