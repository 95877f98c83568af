//! Reproducible pseudo-random numbers and the key distributions of the load generator.
//!
//! Everything is a pure function of a seed, so that a run can be repeated from the seed it
//! printed. Not for secrets.

/// Mixes 64 bits so that each input bit changes about half of the output bits.
///
/// A bijection (the finalizer of SplitMix64; Steele, Lea, Flood 2014): different inputs never
/// give the same output.
#[must_use]
pub const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// A SplitMix64 generator.
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// Starts the sequence that belongs to `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next 64 bits.
    pub const fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// A number in `0..bound`; 0 when `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The high half of the product: no division, a bias below 2^-32 for our bounds.
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// A number in `0.0..1.0` with 53 bits.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// True with probability `share`.
    pub fn chance(&mut self, share: f64) -> bool {
        self.unit() < share
    }
}

/// Which of `0..count` the next operation touches.
#[derive(Clone, Debug)]
pub enum Distribution {
    /// Each with the same probability.
    Uniform {
        /// How many numbers there are.
        count: u64,
    },
    /// Number `i` with a probability proportional to `1 / (i + 1)^theta`.
    Zipf(Zipf),
}

impl Distribution {
    /// Draws the next number.
    pub fn sample(&self, rng: &mut Rng) -> u64 {
        match self {
            Self::Uniform { count } => rng.below(*count),
            Self::Zipf(zipf) => zipf.sample(rng),
        }
    }
}

/// Zipf's law by the closed approximation of Gray et al., "Quickly generating billion-record
/// synthetic databases" (SIGMOD 1994): O(count) once, O(1) per sample.
#[derive(Clone, Debug)]
pub struct Zipf {
    count: u64,
    alpha: f64,
    zeta: f64,
    eta: f64,
    second: f64,
}

impl Zipf {
    /// Prepares sampling from `0..count` with exponent `theta` in `0.0..1.0`.
    #[must_use]
    pub fn new(count: u64, theta: f64) -> Self {
        let zeta: f64 = (1..=count).map(|rank| (rank as f64).powf(-theta)).sum();
        let second = 0.5_f64.powf(theta);
        let eta = (1.0 - (2.0 / count as f64).powf(1.0 - theta)) / (1.0 - (1.0 + second) / zeta);
        Self {
            count,
            alpha: 1.0 / (1.0 - theta),
            zeta,
            eta,
            second,
        }
    }

    fn sample(&self, rng: &mut Rng) -> u64 {
        let unit = rng.unit();
        let scaled = unit * self.zeta;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < 1.0 + self.second {
            return 1.min(self.count - 1);
        }
        let rank = self.count as f64 * (self.eta * unit - self.eta + 1.0).powf(self.alpha);
        (rank as u64).min(self.count - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_sequence() {
        let (mut one, mut two) = (Rng::new(7), Rng::new(7));
        assert!((0..100).all(|_| one.next_u64() == two.next_u64()));
    }

    #[test]
    fn zipf_prefers_low_ranks_and_stays_in_range() {
        let (zipf, mut rng) = (Zipf::new(1000, 0.99), Rng::new(1));
        let mut counts = vec![0_u32; 1000];
        for _ in 0..100_000 {
            counts[zipf.sample(&mut rng) as usize] += 1;
        }
        // The probability of rank 0 is 1/zeta(1000, 0.99), about 0.13.
        assert!((11_000..15_000).contains(&counts[0]), "{}", counts[0]);
        assert!(counts[0] > counts[9] && counts[9] > counts[99]);
        assert!(counts[500..].iter().sum::<u32>() > 1000);
    }

    #[test]
    fn uniform_numbers_cover_their_range_evenly() {
        let (uniform, mut rng) = (Distribution::Uniform { count: 10 }, Rng::new(3));
        let mut counts = [0_u32; 10];
        for _ in 0..10_000 {
            counts[uniform.sample(&mut rng) as usize] += 1;
        }
        assert!(
            counts.iter().all(|&count| (850..1150).contains(&count)),
            "{counts:?}"
        );
    }
}
