//! Which operation comes next.

use super::dialect::Operation;
use super::options::{KeyDistribution, LoadOptions};
use crate::rng::{Distribution, Rng, Zipf, mix};

/// Part of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Sets every key once.
    Fill,
    /// The operations that are counted.
    Measure,
}

/// One operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Task {
    pub(super) operation: Operation,
    /// Number of the key; absent keys are numbered from the key count on.
    pub(super) number: u64,
    /// Whether a get may find something.
    pub(super) present: bool,
}

/// The operations of one client thread.
#[derive(Debug)]
pub(super) struct Workload {
    phase: Phase,
    keys: u64,
    next_fill: u64,
    stride: u64,
    left: Option<u64>,
    get_ratio: f64,
    hit_ratio: f64,
    distribution: Distribution,
    rng: Rng,
    stopped: bool,
}

impl Workload {
    /// The share of thread `index`.
    pub(super) fn new(options: &LoadOptions, phase: Phase, index: usize) -> Self {
        let threads = options.client_threads.get() as u64;
        let index = index as u64;
        let share = |all: u64| all / threads + u64::from(index < all % threads);
        let distribution = match options.distribution {
            KeyDistribution::Zipf(theta) if options.keys > 1 => {
                Distribution::Zipf(Zipf::new(options.keys, theta))
            }
            _ => Distribution::Uniform {
                count: options.keys,
            },
        };
        Self {
            phase,
            keys: options.keys,
            next_fill: index,
            stride: threads,
            left: options.operations.map(share),
            get_ratio: options.get_ratio,
            hit_ratio: options.hit_ratio,
            distribution,
            rng: Rng::new(mix(options.seed ^ (index << 32))),
            stopped: false,
        }
    }

    /// The phase this belongs to.
    pub(super) const fn phase(&self) -> Phase {
        self.phase
    }

    /// Ends the sequence.
    pub(super) const fn stop(&mut self) {
        self.stopped = true;
    }

    /// The next operation, `None` at the end.
    pub(super) fn next(&mut self) -> Option<Task> {
        if self.stopped {
            return None;
        }
        if self.phase == Phase::Fill {
            let number = self.next_fill;
            self.next_fill += self.stride;
            let task = Task {
                operation: Operation::Set,
                number,
                present: true,
            };
            return (number < self.keys).then_some(task);
        }
        if let Some(left) = &mut self.left {
            *left = left.checked_sub(1)?;
        }
        let number = self.distribution.sample(&mut self.rng);
        if !self.rng.chance(self.get_ratio) {
            return Some(Task {
                operation: Operation::Set,
                number,
                present: true,
            });
        }
        let present = self.hit_ratio >= 1.0 || self.rng.chance(self.hit_ratio);
        let number = if present { number } else { number + self.keys };
        Some(Task {
            operation: Operation::Get,
            number,
            present,
        })
    }
}

/// Appends the key of `number`: hexadecimal digits that look random, `len` bytes long, different
/// for every number.
pub(super) fn push_key(number: u64, len: usize, out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut bits = mix(number.wrapping_add(0x6b65_7973));
    for at in 0..len {
        if at > 0 && at % 16 == 0 {
            bits = mix(bits);
        }
        out.push(DIGITS[(bits >> (4 * (at % 16))) as usize & 15]);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::load::{Protocol, Target};

    fn options() -> LoadOptions {
        LoadOptions::new(Target::Tcp(([127, 0, 0, 1], 1).into()), Protocol::Text)
    }

    #[test]
    fn fill_covers_every_key_once_over_all_threads() {
        let mut options = options();
        options.keys = 100;
        options.client_threads = std::num::NonZeroUsize::new(3).unwrap();
        let mut seen = HashSet::new();
        for index in 0..3 {
            let mut workload = Workload::new(&options, Phase::Fill, index);
            while let Some(task) = workload.next() {
                assert!(seen.insert(task.number));
            }
        }
        assert_eq!(seen.len(), 100);
    }

    #[test]
    fn shares_are_respected() {
        let mut options = options();
        (options.get_ratio, options.hit_ratio) = (0.75, 0.5);
        options.operations = Some(10_000);
        let mut workload = Workload::new(&options, Phase::Measure, 0);
        let (mut sets, mut absent, mut total) = (0, 0, 0);
        while let Some(task) = workload.next() {
            total += 1;
            sets += i32::from(task.operation == Operation::Set);
            absent += i32::from(!task.present);
            assert_eq!(task.present, task.number < options.keys);
        }
        assert_eq!(total, 10_000);
        assert!((2300..2700).contains(&sets), "{sets}");
        assert!((3500..4000).contains(&absent), "{absent}");
    }

    #[test]
    fn keys_have_their_length_and_differ() {
        let mut seen = HashSet::new();
        for number in 0..10_000 {
            let mut key = Vec::new();
            push_key(number, 70, &mut key);
            assert_eq!(key.len(), 70);
            assert!(seen.insert(key[..16].to_vec()));
        }
    }
}
