//! About how often each of many keys was seen lately, in memory that does not grow with them: pure.
//!
//! A count-min sketch (Cormode and Muthukrishnan, "An improved data stream summary", 2005) with conservative
//! update (Estan and Varghese, "New directions in traffic measurement", 2002): an estimate is never below the
//! truth, and above it only by what other keys added to all of its cells. Whoever has the clock halves the
//! counts from time to time, so that what was seen long ago does not count.

/// Cells that each key has.
const ROWS: usize = 4;

/// Cells of a row; a power of two.
const WIDTH: usize = 4096;

/// Estimates by the hash of a key: 64 KiB.
#[derive(Clone, Debug)]
pub struct Sketch {
    cells: Box<[u32]>,
    total: u64,
}

impl Default for Sketch {
    fn default() -> Self {
        Self {
            cells: vec![0; ROWS * WIDTH].into(),
            total: 0,
        }
    }
}

impl Sketch {
    /// Counts a key; returns about how often it was seen.
    #[inline]
    pub fn add(&mut self, hash: u64) -> u32 {
        self.total = self.total.saturating_add(1);
        let count = self.estimate(hash).saturating_add(1);
        for at in cells(hash) {
            if let Some(cell) = self.cells.get_mut(at) {
                *cell = (*cell).max(count);
            }
        }
        count
    }

    /// About how often a key was seen; never less than it was.
    #[inline]
    #[must_use]
    pub fn estimate(&self, hash: u64) -> u32 {
        let counts = cells(hash).filter_map(|at| self.cells.get(at).copied());
        counts.min().unwrap_or(0)
    }

    /// How often any key was seen.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// From now on what was seen so far counts half.
    pub fn halve(&mut self) {
        self.cells.iter_mut().for_each(|cell| *cell /= 2);
        self.total /= 2;
    }
}

/// Where the cells of a key are: one in each row, each from bits of the hash of its own, so that keys share all
/// of them only if they share 48 bits.
#[inline]
fn cells(hash: u64) -> impl Iterator<Item = usize> {
    (0..ROWS).map(move |row| {
        let column = (hash >> (row as u32 * WIDTH.ilog2())) as usize % WIDTH;
        row * WIDTH + column
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::random::SplitMix64;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn an_estimate_is_never_below_the_truth_nor_above_all_there_is(
            seed: u64, keys in vec(0_u64..300, 1..3000),
        ) {
            // Hashes as they come, bad ones among them: neighbors that share cells.
            let hash = |key: u64| if seed.is_multiple_of(2) { key } else { SplitMix64::new(seed ^ key).next_u64() };
            let mut sketch = Sketch::default();
            let mut truth: HashMap<u64, u32> = HashMap::new();
            for key in &keys {
                *truth.entry(*key).or_default() += 1;
                let estimate = sketch.add(hash(*key));
                prop_assert_eq!(estimate, sketch.estimate(hash(*key)));
            }
            prop_assert_eq!(sketch.total(), keys.len() as u64);
            for (key, count) in truth {
                let estimate = sketch.estimate(hash(key));
                prop_assert!(estimate >= count, "{} of {}", estimate, count);
                prop_assert!(u64::from(estimate) <= sketch.total());
            }
        }

        /// Far more keys than cells: what is wrong about an estimate is a small share of all that was counted.
        #[test]
        fn many_rare_keys_make_nobody_seem_frequent(seed: u64) {
            const KEYS: u64 = 100_000;
            let mut sketch = Sketch::default();
            let mut random = SplitMix64::new(seed);
            for _ in 0..KEYS {
                sketch.add(random.next_u64());
            }
            for _ in 0..1000 {
                let estimate = u64::from(sketch.estimate(random.next_u64()));
                // The bound is e / width of the total for all but 2 of 100 keys; twice that for all.
                prop_assert!(estimate * (WIDTH as u64) < 2 * 3 * KEYS, "{}", estimate);
            }
        }

        #[test]
        fn what_is_not_seen_any_more_is_forgotten(seed: u64, count in 1_u32..5000, halvings in 1_u32..20) {
            let mut sketch = Sketch::default();
            let hash = SplitMix64::new(seed).next_u64();
            (0..count).for_each(|_| { sketch.add(hash); });
            (0..halvings).for_each(|_| sketch.halve());
            prop_assert_eq!(sketch.estimate(hash), count >> halvings);
            prop_assert_eq!(sketch.total(), u64::from(count >> halvings));
        }
    }
}
