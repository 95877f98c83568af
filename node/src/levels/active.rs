//! The codec of one level as it is now: the one that was chosen, or the one that `auto` has found.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use fonn_codec::CodecSpec;
use fonn_codec::policy::{Auto, Decision, Reason, Sampler, SamplerOptions, Signals};
use parking_lot::Mutex;

use super::{CodecChoice, Level, LevelMeter, thread_cpu};

/// Values that wait to be tried; the sampler lets few pass.
const WAITING_MAX: usize = 64;

/// How much of a value is kept until it is tried. The policy takes 64 KiB from its middle.
const KEPT_LEN_MAX: usize = 256 << 10;

/// The codec of one level: which, from which length on, how it came to be; and its figures.
#[derive(Debug)]
pub struct LevelCodec {
    level: Level,
    active: Mutex<(CodecSpec, usize)>,
    meter: LevelMeter,
    /// Whether values are offered to `auto`: looked at for every value.
    is_auto: AtomicBool,
    auto: Mutex<Option<Choosing>>,
    /// Changes that `auto` made, by reason.
    changes: [AtomicU64; Reason::LABELS.len()],
    began: Instant,
}

/// What `auto` needs.
#[derive(Debug)]
struct Choosing {
    policy: Auto,
    sampler: Sampler,
    /// Values to be tried.
    waiting: Vec<Vec<u8>>,
}

impl LevelCodec {
    /// A level with a codec, for values of at least `min_bytes`.
    #[must_use]
    pub fn new(level: Level, choice: CodecChoice, min_bytes: usize) -> Self {
        let codec = Self {
            level,
            active: Mutex::new((CodecSpec::none(), min_bytes)),
            meter: LevelMeter::default(),
            is_auto: AtomicBool::new(false),
            auto: Mutex::new(None),
            changes: Default::default(),
            began: Instant::now(),
        };
        codec.set(choice, min_bytes);
        codec
    }

    /// Which level it is.
    #[must_use]
    pub fn level(&self) -> Level {
        self.level
    }

    /// The codec for the next value, and the length from which it is used.
    #[must_use]
    pub fn active(&self) -> (CodecSpec, usize) {
        *self.active.lock()
    }

    /// Whether `auto` chooses.
    #[must_use]
    pub fn is_auto(&self) -> bool {
        self.is_auto.load(Ordering::Relaxed)
    }

    /// Changes the codec for values that come to the level from now on. What `auto` has learned is kept
    /// if it goes on.
    pub fn set(&self, choice: CodecChoice, min_bytes: usize) {
        let mut auto = self.auto.lock();
        let is_same = auto.is_some() && self.active().1 == min_bytes;
        let spec = match choice {
            CodecChoice::Auto if is_same => return,
            CodecChoice::Auto => {
                let cpus = match self.level {
                    // Encoded by the writer, a thread of its own.
                    Level::Upper => 1,
                    _ => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
                };
                let options = SamplerOptions {
                    min_bytes,
                    ..SamplerOptions::default()
                };
                let kind = self.level.kind();
                let policy = Auto::new(kind).with_cpus(cpus as f32);
                let spec = policy.current();
                *auto = Some(Choosing {
                    policy,
                    sampler: Sampler::new(kind, options),
                    waiting: Vec::new(),
                });
                spec
            }
            CodecChoice::Fixed(spec) => {
                *auto = None;
                spec
            }
        };
        self.is_auto.store(auto.is_some(), Ordering::Relaxed);
        *self.active.lock() = (spec, min_bytes);
    }

    /// Lets `auto` look at a value that comes to the level. Costs next to nothing for most.
    pub fn offer(&self, value: &[u8]) {
        if self.wants(value.len()) {
            self.keep(value);
        }
    }

    /// Counts a value of `len` bytes that comes to the level; whether `auto` wants to [`keep`](Self::keep) it.
    /// Costs next to nothing for most.
    #[must_use]
    pub fn wants(&self, len: usize) -> bool {
        self.is_auto() && self.wants_at(self.now_ms(), len)
    }

    pub(crate) fn wants_at(&self, now_ms: u64, len: usize) -> bool {
        let mut auto = self.auto.lock();
        auto.as_mut()
            .is_some_and(|auto| auto.sampler.offer(now_ms, len) && auto.waiting.len() < WAITING_MAX)
    }

    /// Keeps a value until `auto` tries the candidates on it.
    pub fn keep(&self, value: &[u8]) {
        if let Some(auto) = &mut *self.auto.lock()
            && auto.waiting.len() < WAITING_MAX
        {
            let kept = value.get(..KEPT_LEN_MAX).unwrap_or(value);
            auto.waiting.push(kept.to_vec());
        }
    }

    /// Tries what was kept and decides. Takes milliseconds: for a thread that may. To be called about
    /// every second.
    pub fn decide(&self, signals: Signals) -> Option<Decision> {
        if !self.is_auto() {
            return None;
        }
        self.decide_at(self.now_ms(), signals)
    }

    pub(crate) fn decide_at(&self, now_ms: u64, signals: Signals) -> Option<Decision> {
        let waiting = std::mem::take(&mut self.auto.lock().as_mut()?.waiting);
        for value in waiting {
            // Not held for all of them: whoever offers a value waits for it.
            let mut auto = self.auto.lock();
            auto.as_mut()?.sampler.measure(&value, || {
                u64::try_from(thread_cpu().as_nanos()).unwrap_or(0)
            });
        }
        let mut auto = self.auto.lock();
        let auto = auto.as_mut()?;
        let sample = *auto.sampler.sample();
        let decision = auto.policy.observe(now_ms, signals, Some(&sample))?;
        self.active.lock().0 = decision.to;
        let labels = Reason::LABELS.iter().zip(&self.changes);
        for (label, count) in labels {
            if *label == decision.reason.label() {
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
        tracing::info!(level = %self.level, "{decision}");
        Some(decision)
    }

    /// Changes that `auto` made, by the label of the reason.
    pub fn changes(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.changes.iter().map(|it| it.load(Ordering::Relaxed));
        Reason::LABELS.into_iter().zip(counts)
    }

    /// What was done.
    #[must_use]
    pub fn meter(&self) -> &LevelMeter {
        &self.meter
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text() -> Vec<u8> {
        b"over and over, and a little different each time; ".repeat(200)
    }

    #[test]
    fn a_fixed_codec_stays_whatever_happens() {
        let codec = LevelCodec::new(Level::Upper, "lz4".parse().unwrap(), 256);
        codec.offer(&text());
        assert_eq!(codec.decide(Signals::default()), None);
        assert_eq!(codec.active(), ("lz4".parse().unwrap(), 256));
        codec.set("zstd:1".parse().unwrap(), 100);
        assert_eq!(codec.active(), ("zstd:1".parse().unwrap(), 100));
    }

    #[test]
    fn auto_changes_the_codec_when_the_device_is_scarce_and_counts_why() {
        let codec = LevelCodec::new(Level::Upper, CodecChoice::Auto, 256);
        assert!(codec.is_auto());
        assert_eq!(codec.active().0, "lz4".parse().unwrap());
        let signals = Signals {
            cpu_busy: 0.1,
            device_busy: 1.0,
            backlog: 1.0,
        };
        let mut decision = None;
        for _ in 0..50 {
            codec.offer(&text());
            // The policy knows milliseconds.
            std::thread::sleep(std::time::Duration::from_millis(2));
            decision = decision.or(codec.decide(signals));
        }
        let decision = decision.unwrap();
        assert_eq!(codec.active().0, decision.to);
        assert_eq!(codec.changes().map(|(_, count)| count).sum::<u64>(), 1);
        // Going on with auto forgets nothing, a fixed codec ends it.
        codec.set(CodecChoice::Auto, 256);
        assert_eq!(codec.active().0, decision.to);
        codec.set(CodecChoice::none(), 256);
        assert!(!codec.is_auto() && codec.active().0 == CodecSpec::none());
    }

    #[test]
    fn what_waits_to_be_tried_is_bounded() {
        let codec = LevelCodec::new(Level::Last, CodecChoice::Auto, 256);
        for _ in 0..100_000 {
            codec.offer(&[7; 300]);
        }
        codec.offer(&vec![7; 10 << 20]);
        let auto = codec.auto.lock();
        let waiting = &auto.as_ref().unwrap().waiting;
        assert!(waiting.len() <= WAITING_MAX && !waiting.is_empty());
        assert!(waiting.iter().all(|value| value.len() <= KEPT_LEN_MAX));
    }
}
