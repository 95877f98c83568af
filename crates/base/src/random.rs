//! A small random source for jitter and sampling. Not for secrets.

use std::hash::{BuildHasher, RandomState};

/// The SplitMix64 generator (Steele, Lea, Flood: "Fast splittable pseudorandom number
/// generators", OOPSLA 2014): 8 bytes of state, equal seeds give equal sequences.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// The sequence of that seed, for tests that must be repeatable.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A sequence that differs between processes and between calls.
    #[must_use]
    pub fn from_entropy() -> Self {
        // The standard library keys its hashers from the operating system's random source.
        Self(RandomState::new().hash_one(0x666f_6e6e_u64))
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound` (0 when `bound` is 0). The bias is below `bound` / 2^64.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_values_are_those_of_the_published_generator() {
        let mut random = SplitMix64::new(1_234_567);
        assert_eq!(random.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(random.next_u64(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn bounded_values_stay_below_the_bound_and_reach_all_of_it() {
        let mut random = SplitMix64::new(1);
        let mut seen = [0u32; 7];
        for _ in 0..7000 {
            seen[random.below(7) as usize] += 1;
        }
        assert!(
            seen.iter().all(|&count| (800..1200).contains(&count)),
            "{seen:?}"
        );
        assert_eq!(random.below(0), 0);
    }

    #[test]
    fn entropy_gives_different_sequences() {
        let (mut a, mut b) = (SplitMix64::from_entropy(), SplitMix64::from_entropy());
        assert_ne!(a.next_u64(), b.next_u64());
    }
}
