//! How well a level's data compresses, and at which cost: all candidates on a few of its values.

use crate::frame::GAIN_MIN_PART;
use crate::policy::{CANDIDATES, Level, NONE, candidate};
use crate::registry::Support;
use crate::sniff;
use crate::spec::CodecSpec;

/// How much of a value is tried at most, in bytes.
const TRIED_LEN_MAX: usize = 64 << 10;

/// Once so many raw bytes are in the sums, all are halved: what was seen before the last one or two
/// of these counts for less and less.
const DECAY_BYTES: u64 = 1 << 20;

/// One of so many values is sampled, if the rate allows.
const EVERY: u32 = 16;

/// Most bytes sampled a second. 64 KiB with six candidates cost 2 to 4 ms.
const BYTES_PER_SEC: u64 = 64 << 10;

// Else no large value would ever be sampled.
const _: () = assert!(BYTES_PER_SEC >= TRIED_LEN_MAX as u64);

/// What one candidate made of the sampled bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Bytes that it would store.
    pub stored_bytes: u64,
    /// Nanoseconds of processor time to compress them and to decompress them once.
    pub cpu_ns: u64,
}

/// What sampling saw of a level's data. Made by a [`Sampler`], or in a test.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Bytes of all values offered so far, sampled or not. It only grows, and tells the policy how
    /// many bytes a second the level is given.
    pub offered_bytes: u64,
    /// Raw bytes that the costs are for; the older they are the less they count.
    pub raw_bytes: u64,
    costs: [Cost; CANDIDATES.len()],
}

impl Sample {
    /// What `spec` made of [`raw_bytes`](Self::raw_bytes); None if it is no candidate.
    #[cfg(test)]
    fn cost(&self, spec: CodecSpec) -> Option<Cost> {
        let index = (0..CANDIDATES.len()).find(|&index| candidate(index) == Some(spec))?;
        self.costs.get(index).copied()
    }

    /// Sets what `spec` made of [`raw_bytes`](Self::raw_bytes). A spec that is no candidate is
    /// ignored.
    #[cfg(test)]
    pub fn set_cost(&mut self, spec: CodecSpec, cost: Cost) {
        for (index, place) in self.costs.iter_mut().enumerate() {
            if candidate(index) == Some(spec) {
                *place = cost;
            }
        }
    }

    pub(super) fn cost_at(&self, index: usize) -> Cost {
        self.costs.get(index).copied().unwrap_or_default()
    }

    fn decay(&mut self) {
        if self.raw_bytes >= DECAY_BYTES {
            self.raw_bytes /= 2;
            for cost in &mut self.costs {
                cost.stored_bytes /= 2;
                cost.cpu_ns /= 2;
            }
        }
    }
}

/// Samples the values of one level. Its memory is two buffers of up to 70 KiB.
#[derive(Debug)]
pub struct Sampler {
    /// Shorter values are stored verbatim by every candidate (`--codec-min-bytes`).
    min_bytes: usize,
    /// The candidates of the level that this build has.
    candidates: Vec<(usize, CodecSpec)>,
    sample: Sample,
    offered_count: u32,
    /// Bytes that may be sampled now: a bucket that holds one second's worth.
    allowance: u64,
    refilled_ms: Option<u64>,
    stored: Vec<u8>,
    back: Vec<u8>,
}

impl Sampler {
    /// A sampler of the candidates that `level` may use, for values of at least `min_bytes`.
    #[must_use]
    pub fn new(level: Level, min_bytes: usize) -> Self {
        Self {
            min_bytes,
            candidates: (0..level.candidate_count())
                .filter_map(|index| Some((index, candidate(index)?)))
                .collect(),
            sample: Sample::default(),
            offered_count: 0,
            allowance: 0,
            refilled_ms: None,
            stored: Vec::new(),
            back: Vec::new(),
        }
    }

    /// Counts a value of `len` bytes and tells whether it is one to [`measure`](Self::measure).
    /// Costs a few nanoseconds: for every value, on any thread. `now_ms` must not run backwards.
    #[must_use]
    pub fn offer(&mut self, now_ms: u64, len: usize) -> bool {
        self.sample.offered_bytes = self.sample.offered_bytes.saturating_add(len as u64);
        let is_turn = self.offered_count == 0;
        self.offered_count = (self.offered_count + 1) % EVERY;
        if !is_turn {
            return false;
        }
        let elapsed_ms = now_ms.saturating_sub(self.refilled_ms.unwrap_or(0));
        let refill = BYTES_PER_SEC.saturating_mul(elapsed_ms) / 1000;
        if self.refilled_ms.is_none() {
            self.allowance = BYTES_PER_SEC;
            self.refilled_ms = Some(now_ms);
        } else if refill > 0 {
            self.allowance = self.allowance.saturating_add(refill).min(BYTES_PER_SEC);
            self.refilled_ms = Some(now_ms);
        }
        let cost = len.min(TRIED_LEN_MAX) as u64;
        if self.allowance < cost {
            // The next value is looked at instead, or `EVERY` values would pass.
            self.offered_count = 0;
            return false;
        }
        self.allowance -= cost;
        true
    }

    /// Tries the candidates on up to 64 KiB from the middle of `value` and adds what they made of
    /// it. Takes milliseconds: not for a thread that serves requests. `clock_ns` is the processor
    /// time of this thread in nanoseconds; a clock that runs on while the thread waits makes every
    /// candidate look slower than it is, on a busy machine.
    pub fn measure(&mut self, value: &[u8], mut clock_ns: impl FnMut() -> u64) {
        self.sample.decay();
        let len = value.len().min(TRIED_LEN_MAX);
        let start = (value.len() - len) / 2;
        let raw = value.get(start..start + len).unwrap_or_default();
        // What `encode` would not try costs nothing and saves nothing. The format is told by the
        // first bytes of the whole value.
        let is_tried = value.len() >= self.min_bytes
            && !value.is_empty()
            && !sniff::is_compressed(value)
            && !sniff::looks_random(raw);
        self.sample.raw_bytes += len as u64;
        for &(index, spec) in &self.candidates {
            let cost = match spec.codec().support() {
                Support::Compiled(operations) if is_tried => {
                    self.stored.resize((operations.bound)(TRIED_LEN_MAX), 0);
                    self.back.resize(TRIED_LEN_MAX, 0);
                    let begun = clock_ns();
                    let stored_len =
                        (operations.compress)(spec.stored_level(), raw, &mut self.stored)
                            .filter(|&stored| stored <= len - len.div_ceil(GAIN_MIN_PART));
                    if let Some(stored) = stored_len.and_then(|len| self.stored.get(..len)) {
                        // Timed only; that it comes back is tested elsewhere.
                        let _ = (operations.decompress)(stored, &mut self.back);
                    }
                    Cost {
                        stored_bytes: stored_len.unwrap_or(len) as u64,
                        cpu_ns: clock_ns().saturating_sub(begun),
                    }
                }
                _ => Cost {
                    stored_bytes: len as u64,
                    cpu_ns: 0,
                },
            };
            if let Some(sum) = self.sample.costs.get_mut(index) {
                sum.stored_bytes += cost.stored_bytes;
                sum.cpu_ns = sum.cpu_ns.saturating_add(cost.cpu_ns);
            }
        }
        debug_assert_eq!(
            self.sample.cost_at(NONE).stored_bytes,
            self.sample.raw_bytes
        );
    }

    /// What was seen so far.
    #[must_use]
    pub fn sample(&self) -> &Sample {
        &self.sample
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry;

    /// A clock that counts its readings.
    fn ticks() -> impl FnMut() -> u64 {
        let mut now = 0;
        move || {
            now += 1000;
            now
        }
    }

    fn text(len: usize) -> Vec<u8> {
        b"static int probe(struct device *dev, u32 offset);\n"
            .iter()
            .copied()
            .cycle()
            .take(len)
            .collect()
    }

    fn noise(len: usize) -> Vec<u8> {
        let mut state = 1u64;
        (0..len)
            .map(|_| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                (state >> 56) as u8
            })
            .collect()
    }

    #[test]
    fn one_of_many_values_is_sampled_and_all_are_counted() {
        let mut sampler = Sampler::new(Level::Fresh, 256);
        let sampled = (0..160).filter(|_| sampler.offer(0, 1000)).count();
        assert_eq!(sampled, 10);
        assert_eq!(sampler.sample().offered_bytes, 160_000);
    }

    #[test]
    fn the_rate_is_bounded() {
        let mut sampler = Sampler::new(Level::Fresh, 0);
        let sampled: usize = (0..10_000u64)
            .filter(|ms| sampler.offer(1_700_000_000_000 + ms, 10_000))
            .count();
        // 10 seconds, and the bucket that was full at first.
        assert!((70..=72).contains(&sampled), "{sampled}");
        // Values longer than what is tried of them cost what is tried.
        let sampled = (10_000..20_000u64)
            .filter(|ms| sampler.offer(1_700_000_000_000 + ms, 10 << 20))
            .count();
        assert!((9..=11).contains(&sampled), "{sampled}");
    }

    #[test]
    fn candidates_of_the_level_are_tried_and_no_others() {
        let mut sampler = Sampler::new(Level::Ram, 256);
        sampler.measure(&text(100_000), ticks());
        let sample = *sampler.sample();
        assert_eq!(sample.raw_bytes, 64 << 10);
        let none = sample.cost(CodecSpec::none()).unwrap();
        assert_eq!((none.stored_bytes, none.cpu_ns), (64 << 10, 0));
        for text in ["lz4", "zstd:1"] {
            let Ok(spec) = text.parse() else { continue };
            let cost = sample.cost(spec).unwrap();
            assert!(cost.stored_bytes < 4000, "{text} {cost:?}");
            assert_eq!(cost.cpu_ns, 1000, "{text}");
        }
        if let Ok(slow) = "zstd:9".parse() {
            assert_eq!(sample.cost(slow), Some(Cost::default()));
        }
        if let Ok(never) = "zstd:22".parse() {
            assert_eq!(sample.cost(never), None);
        }
    }

    #[test]
    fn what_would_not_be_tried_costs_nothing() {
        let mut zstd_frame = b"\x28\xB5\x2F\xFD".to_vec();
        zstd_frame.extend(text(10_000));
        for value in [vec![], text(1999), noise(50_000), zstd_frame] {
            let mut sampler = Sampler::new(Level::Cold, 2000);
            sampler.measure(&value, || -> u64 { unreachable!("nothing is timed") });
            for index in (0..CANDIDATES.len()).filter(|&index| candidate(index).is_some()) {
                let cost = sampler.sample().cost_at(index);
                assert_eq!(cost.stored_bytes, value.len() as u64, "{index}");
            }
        }
    }

    #[test]
    fn old_data_counts_for_less_and_less() {
        let Some(lz4) = registry::by_name("lz4").and_then(|codec| CodecSpec::new(codec, None).ok())
        else {
            return;
        };
        let mut sampler = Sampler::new(Level::Fresh, 256);
        let share = |sampler: &Sampler| {
            let sample = sampler.sample();
            sample.cost(lz4).unwrap().stored_bytes as f64 / sample.raw_bytes as f64
        };
        for _ in 0..100 {
            sampler.measure(&text(64 << 10), ticks());
        }
        assert!(share(&sampler) < 0.05);
        for _ in 0..100 {
            sampler.measure(&noise(64 << 10), ticks());
        }
        assert!(share(&sampler) > 0.95, "{}", share(&sampler));
        assert!(sampler.sample().raw_bytes <= DECAY_BYTES + (64 << 10));
    }
}
