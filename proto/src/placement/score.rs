//! How much a slot wants a member: weighted rendezvous hashing.
//!
//! Thaler and Ravishankar, "Using name-based mappings to increase hit rates" (1998), with the
//! weights of Schindelhauer and Schomaker, "Weighted distributed hash tables" (2005): each pair
//! draws an exponential time with the weight as its rate, and the least time wins. Computed in
//! integers, since all parties must come to the same result on every machine.

use super::Placed;
use crate::hash::{fnv1a, mix};

/// Fractional bits of a logarithm.
const LOG_BITS: u32 = 32;

/// What a slot compares members by: the lower, the more it wants the member.
///
/// The second field decides between equal times, which a weight can bring about.
pub(super) type Score = (u64, u64);

/// The hash of a member's name that its scores are made of.
pub(super) fn seed(id: &str) -> u64 {
    // Names differ in few bits.
    mix(fnv1a(id.as_bytes()))
}

/// How much a slot wants a member; [`u64::MAX`] in front if it does not at all.
pub(super) fn score(slot: u16, seed: u64, member: &Placed<'_>) -> Score {
    let hash = mix(seed ^ mix(u64::from(slot) + 1));
    match u64::from(member.weight) {
        0 => (u64::MAX, hash),
        weight => (exponential(hash) / weight, hash),
    }
}

/// `-log2((hash + 1) / 2^64)` with [`LOG_BITS`] fractional bits, scaled so that dividing it by a
/// weight of up to 2^16 loses nothing that matters.
fn exponential(hash: u64) -> u64 {
    // Never 0, so that there is a logarithm.
    let uniform = hash | 1;
    let zeros = uniform.leading_zeros();
    // In [1, 2) with 63 fractional bits; each squaring gives one more bit of its logarithm.
    let mut mantissa = uniform << zeros;
    let mut fraction = 0_u64;
    for _ in 0..LOG_BITS {
        let square = (u128::from(mantissa) * u128::from(mantissa)) >> 63;
        let carry = (square >> 64) as u64;
        mantissa = (square >> carry) as u64;
        fraction = (fraction << 1) | carry;
    }
    let log = (u64::from(63 - zeros) << LOG_BITS) | fraction;
    ((64 << LOG_BITS) - log) << 16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponential_times_are_negative_binary_logarithms() {
        let unit = f64::from(1 << 16) * 2_f64.powi(LOG_BITS as i32);
        for hash in [
            0,
            1,
            2,
            12_345,
            u64::MAX / 3,
            u64::MAX / 2,
            u64::MAX - 1,
            u64::MAX,
        ] {
            let expected = 64.0 - ((hash | 1) as f64).log2();
            let got = exponential(hash) as f64 / unit;
            assert!((got - expected).abs() < 1e-8, "{hash}: {got} {expected}");
        }
    }

    #[test]
    fn a_larger_hash_waits_no_longer() {
        let mut state = 7;
        for _ in 0..10_000 {
            state = mix(state);
            assert!(exponential(state) >= exponential(state.saturating_add(state >> 20)));
        }
    }
}
