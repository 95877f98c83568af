//! Which keys are read so much that their reads are spread over all owners: pure.
//!
//! Time comes as the number of a window (of a second, say). A key is hot that is read often enough in a window,
//! both as such and as a share of all reads: one that is a small part of them burdens no member much. It stays
//! hot until a window in which it was read less than half as much. There are never more hot keys than the share
//! allows, whatever is read.

use std::time::Duration;

use super::sketch::Sketch;

/// After so many windows nothing counts any more.
const WINDOWS_MAX: u64 = 32;

/// What makes a key hot.
#[derive(Clone, Copy, Debug)]
pub struct HotOptions {
    /// Reads of it in a window, at least.
    pub reads_min: u32,
    /// One of so many reads has to be its, at least.
    pub share: u16,
    /// How long a window is, at least a millisecond.
    pub window: Duration,
}

impl Default for HotOptions {
    fn default() -> Self {
        Self {
            reads_min: 1000,
            share: 64,
            window: Duration::from_secs(1),
        }
    }
}

/// The hot keys among those that are read.
#[derive(Debug)]
pub struct HotKeys {
    options: HotOptions,
    sketch: Sketch,
    hot: Vec<Hot>,
    window: u64,
}

#[derive(Clone, Copy, Debug)]
struct Hot {
    hash: u64,
    /// Counts its reads, for the owners to take turns.
    turn: usize,
    /// Until the next window nobody but the first owner is asked.
    rests: bool,
}

impl HotKeys {
    /// No key is hot yet.
    #[must_use]
    pub fn new(options: HotOptions) -> Self {
        Self {
            options,
            sketch: Sketch::default(),
            hot: Vec::new(),
            window: 0,
        }
    }

    /// A key is read, by its hash, in a window that is not before the last one. If it is hot, the number of the read: it says whose turn it is.
    #[inline]
    pub fn read(&mut self, hash: u64, window: u64) -> Option<usize> {
        if window > self.window {
            self.go_on(window);
        }
        let count = self.sketch.add(hash);
        if count < self.options.reads_min || !self.is_share(count) {
            // One that was hot at the beginning of the window takes its turns until the end.
            return self.turn(hash);
        }
        let turn = self.turn(hash);
        let is_known = turn.is_some() || self.hot.iter().any(|it| it.hash == hash);
        if !is_known && self.hot.len() < usize::from(self.options.share) {
            self.hot.push(Hot {
                hash,
                turn: 0,
                rests: false,
            });
        }
        turn
    }

    #[inline]
    fn turn(&mut self, hash: u64) -> Option<usize> {
        let hot = self.hot.iter_mut().find(|it| it.hash == hash)?;
        hot.turn = hot.turn.wrapping_add(1);
        (!hot.rests).then_some(hot.turn)
    }

    fn is_share(&self, count: u32) -> bool {
        u64::from(count) * u64::from(self.options.share) >= self.sketch.total()
    }

    fn go_on(&mut self, window: u64) {
        for _ in 0..(window - self.window).min(WINDOWS_MAX) {
            self.sketch.halve();
        }
        self.window = window;
        let least = self.options.reads_min / 2;
        let mut hot = std::mem::take(&mut self.hot);
        hot.retain(|it| {
            let count = self.sketch.estimate(it.hash);
            // Both have just been halved.
            count >= least.max(1) && self.is_share(count.saturating_mul(2))
        });
        hot.iter_mut().for_each(|it| it.rests = false);
        self.hot = hot;
    }

    /// Another owner had no copy of a hot key to show: until the next window the first one is asked.
    pub fn rest(&mut self, hash: u64) {
        if let Some(hot) = self.hot.iter_mut().find(|it| it.hash == hash) {
            hot.rests = true;
        }
    }

    /// How many keys are hot.
    #[cfg(test)]
    fn count(&self) -> usize {
        self.hot.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::random::SplitMix64;

    const OPTIONS: HotOptions = HotOptions {
        reads_min: 200,
        share: 16,
        window: Duration::from_secs(1),
    };

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// A few keys have a third of the reads, each at least a tenth; all others are read once in a while.
        #[test]
        fn hot_are_those_that_are_read_most_and_nobody_else(seed: u64, hot in 1_u64..4) {
            let mut random = SplitMix64::new(seed);
            let mut keys = HotKeys::new(OPTIONS);
            let name = |key: u64| SplitMix64::new(seed ^ key).next_u64();
            let mut spread = vec![0_u32; hot as usize];
            for window in 0..4 {
                for _ in 0..20_000 {
                    let key = match random.below(3) {
                        0 => random.below(hot),
                        _ => hot + random.below(1 << 20),
                    };
                    let turn = keys.read(name(key), window);
                    if let Some(spread) = spread.get_mut(key as usize) {
                        *spread += u32::from(turn.is_some());
                    } else {
                        prop_assert_eq!(turn, None, "key {}", key);
                    }
                }
            }
            prop_assert_eq!(keys.count() as u64, hot);
            let all = 4 * 20_000 / 3 / hot as u32;
            for spread in spread {
                prop_assert!(spread > all * 7 / 10, "{} of {}", spread, all);
            }
        }

        #[test]
        fn there_are_never_more_than_the_share_allows_and_none_when_nothing_is_read(
            seed: u64, keys in 1_u64..200, reads in 1_u64..30_000,
        ) {
            let mut random = SplitMix64::new(seed);
            let mut hot = HotKeys::new(HotOptions { reads_min: 1, ..OPTIONS });
            for read in 0..reads {
                let hash = SplitMix64::new(random.below(keys)).next_u64();
                let _ = hot.read(hash, read / 1000);
                prop_assert!(hot.count() <= 16);
            }
            let _ = hot.read(seed, reads + 64);
            prop_assert!(hot.count() <= 1, "only what is read now");
        }
    }

    #[test]
    fn owners_take_turns_until_one_has_nothing_to_show() {
        let mut hot = HotKeys::new(OPTIONS);
        for _ in 0..OPTIONS.reads_min {
            assert_eq!(hot.read(7, 0), None);
        }
        assert_eq!([1, 2, 3].map(|_| hot.read(7, 0)), [1, 2, 3].map(Some));
        hot.rest(7);
        assert_eq!(hot.read(7, 0), None);
        assert!(hot.read(7, 1).is_some(), "another window");
    }

    #[test]
    fn a_key_that_is_read_less_is_hot_no_more() {
        let mut hot = HotKeys::new(OPTIONS);
        for _ in 0..1000 {
            let _ = hot.read(7, 0);
        }
        assert_eq!(hot.count(), 1);
        for window in 1..10 {
            let _ = hot.read(7, window);
        }
        assert_eq!(hot.count(), 0);
        assert_eq!(hot.read(7, 10), None);
    }
}
