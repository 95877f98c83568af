//! The codec of one level as it is now: the one that was chosen, or the one that `auto` has found.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fonn_codec::frame::HEADER_LEN;
use fonn_codec::policy::{Auto, Decision, Reason, Sampler, Signals};
use fonn_codec::sniff::Runs;
use fonn_codec::{CodecSpec, Encoded, Encoding, Verbatim};
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
    /// What the last values were like, so that not all of many that do not shrink are looked at.
    runs: Runs,
    /// Whether values are offered to `auto`: looked at for every value.
    is_auto: AtomicBool,
    auto: Mutex<Option<Choosing>>,
    /// Changes that `auto` made, by reason.
    changes: [AtomicU64; Reason::ALL.len()],
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
            runs: Runs::default(),
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

    /// What was chosen for the level.
    #[must_use]
    pub fn choice(&self) -> CodecChoice {
        match self.is_auto() {
            true => CodecChoice::Auto,
            false => CodecChoice::Fixed(self.active().0),
        }
    }

    /// Whether `auto` chooses.
    #[must_use]
    pub fn is_auto(&self) -> bool {
        self.is_auto.load(Ordering::Relaxed)
    }

    /// Changes the codec for values that come to the level from now on. What `auto` has learned is
    /// kept if it goes on.
    pub fn set(&self, choice: CodecChoice, min_bytes: usize) {
        let mut auto = self.auto.lock();
        let is_same = auto.is_some() && self.active().1 == min_bytes;
        let spec = match choice {
            CodecChoice::Auto if is_same => return,
            CodecChoice::Auto => {
                let cpus = match self.level {
                    // Encoded by the writer, a thread of its own.
                    Level::Fresh => 1,
                    _ => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
                };
                let policy = Auto::new(self.level, cpus as f32);
                let spec = policy.current();
                *auto = Some(Choosing {
                    policy,
                    sampler: Sampler::new(self.level, min_bytes),
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
        self.runs.forget();
    }

    /// Whether a codec is to be tried on a value that comes to the level on the way of a request,
    /// and which one. Takes a tenth of a microsecond, and a few nanoseconds for most of many values
    /// that do not shrink.
    ///
    /// # Errors
    /// Why it is to stay as it is: to be counted with [`left`](Self::left). [`Verbatim::NoCodec`]
    /// also where it was not looked at; compaction may try it.
    pub fn plan(&self, value: &[u8]) -> Result<CodecSpec, Verbatim> {
        let (spec, min_bytes) = self.active();
        match self.runs.reason_to_leave(spec, min_bytes, value) {
            None => Ok(spec),
            Some(Verbatim::NoCodec) if spec != CodecSpec::none() => {
                self.meter.count_unlooked();
                Err(Verbatim::NoCodec)
            }
            Some(reason) => Err(reason),
        }
    }

    /// Appends the frame of a value to `out` with the codec that was [planned](Self::plan), and
    /// counts that.
    ///
    /// # Errors
    /// Why it is to stay as it is, as for [`plan`](Self::plan); `out` is as it was then.
    pub fn attempt(
        &self,
        spec: CodecSpec,
        value: &[u8],
        threads: usize,
        out: &mut Vec<u8>,
    ) -> Result<Encoded, Verbatim> {
        let attempt = || fonn_codec::compress(spec, value, threads, out);
        let (encoded, cpu) = self.meter.time(value.len(), attempt);
        // The others worked about as long as this thread.
        let cpu = cpu * u32::try_from(threads).unwrap_or(1);
        self.runs.tell(value.len(), encoded.is_ok());
        match encoded {
            Ok(Encoded {
                encoding,
                original_len,
                frame_len,
            }) => self.meter.count(encoding, original_len, frame_len, cpu),
            Err(_) => self.meter.count_vain(cpu),
        }
        encoded
    }

    /// Counts a value of `len` bytes that stays as it is.
    pub fn left(&self, reason: Verbatim, len: usize) {
        let frame_len = len.saturating_add(HEADER_LEN);
        let encoding = Encoding::Verbatim(reason);
        self.meter.count(encoding, len, frame_len, Duration::ZERO);
    }

    /// Lets `auto` look at a value that comes to the level. Costs next to nothing for most.
    pub fn offer(&self, value: &[u8]) {
        if self.wants(value.len()) {
            self.keep(value);
        }
    }

    /// Counts a value of `len` bytes that comes to the level; whether `auto` wants to
    /// [`keep`](Self::keep) it. Costs next to nothing for most.
    #[must_use]
    pub fn wants(&self, len: usize) -> bool {
        self.is_auto() && self.wants_at(self.now_ms(), len)
    }

    /// As [`Self::wants`], at a time in milliseconds since the level began: for simulations.
    #[must_use]
    pub fn wants_at(&self, now_ms: u64, len: usize) -> bool {
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

    /// Tries what was kept and decides. Takes milliseconds: for a thread that may. To be called
    /// about every second.
    pub fn decide(&self, signals: Signals) -> Option<Decision> {
        if !self.is_auto() {
            return None;
        }
        self.decide_at(self.now_ms(), signals)
    }

    /// As [`Self::decide`], at a time in milliseconds since the level began: for simulations.
    pub fn decide_at(&self, now_ms: u64, signals: Signals) -> Option<Decision> {
        let waiting = std::mem::take(&mut self.auto.lock().as_mut()?.waiting);
        for value in waiting {
            // Not held for all of them: a caller that offers a value waits for it.
            let mut auto = self.auto.lock();
            auto.as_mut()?.sampler.measure(&value, || {
                u64::try_from(thread_cpu().as_nanos()).unwrap_or(0)
            });
        }
        let mut auto = self.auto.lock();
        let auto = auto.as_mut()?;
        let sample = auto.sampler.sample();
        let decision = auto.policy.observe(now_ms, signals, sample)?;
        self.active.lock().0 = decision.to;
        self.runs.forget();
        if let Some(count) = self.changes.get(decision.reason as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        tracing::info!(level = %self.level, "{decision}");
        Some(decision)
    }

    /// Changes that `auto` made, by the label of the reason.
    pub fn changes(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.changes.iter().map(|it| it.load(Ordering::Relaxed));
        Reason::ALL.map(Reason::label).into_iter().zip(counts)
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
        let codec = LevelCodec::new(Level::Fresh, "lz4".parse().unwrap(), 256);
        codec.offer(&text());
        assert_eq!(codec.decide(Signals::default()), None);
        assert_eq!(codec.active(), ("lz4".parse().unwrap(), 256));
        codec.set("zstd:1".parse().unwrap(), 100);
        assert_eq!(codec.active(), ("zstd:1".parse().unwrap(), 100));
    }

    #[test]
    fn auto_changes_the_codec_when_the_device_is_scarce_and_counts_why() {
        let codec = LevelCodec::new(Level::Fresh, CodecChoice::Auto, 256);
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
            std::thread::sleep(Duration::from_millis(2));
            decision = decision.or(codec.decide(signals));
        }
        let decision = decision.unwrap();
        assert_eq!(codec.active().0, decision.to);
        let counted: Vec<_> = codec.changes().filter(|it| it.1 > 0).collect();
        assert_eq!(counted, [(decision.reason.label(), 1)]);
        // Going on with auto forgets nothing, a fixed codec ends it.
        codec.set(CodecChoice::Auto, 256);
        assert_eq!(codec.active().0, decision.to);
        codec.set(CodecChoice::none(), 256);
        assert!(!codec.is_auto() && codec.active().0 == CodecSpec::none());
    }

    /// Bytes that no codec shrinks and that do not look random.
    fn stubborn(len: usize) -> Vec<u8> {
        let mut state = 88_172_645_463_325_252_u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[3] % 140
        };
        (0..len).map(|_| next()).collect()
    }

    /// What becomes of a value, as the tiers do it.
    fn encode(codec: &LevelCodec, value: &[u8]) -> Result<Encoded, Verbatim> {
        let encoded = codec
            .plan(value)
            .and_then(|spec| codec.attempt(spec, value, 1, &mut Vec::new()));
        if let Err(reason) = encoded {
            codec.left(reason, value.len());
        }
        encoded
    }

    #[test]
    fn values_that_do_not_shrink_are_soon_left_alone_and_counted_all_the_same() {
        let codec = LevelCodec::new(Level::Fresh, "lz4".parse().unwrap(), 256);
        let noise = stubborn(1000);
        for _ in 0..1000 {
            assert!(encode(&codec, &noise).is_err());
        }
        let unlooked = codec.meter().unlooked();
        assert!((700..900).contains(&unlooked), "{unlooked} of 1000");
        let none = codec.meter().of(0);
        assert_eq!(
            (none.values, none.bytes_in, none.bytes_out),
            (1000, 1_000_000, 1_016_000)
        );
        // Of other lengths nothing is known, and another codec may do better.
        assert!(encode(&codec, &text()).is_ok());
        assert_eq!(encode(&codec, &stubborn(5000)), Err(Verbatim::DidNotShrink));
        codec.set("zstd:1".parse().unwrap(), 256);
        assert_ne!(encode(&codec, &noise), Err(Verbatim::NoCodec));
        assert_eq!(codec.meter().unlooked(), unlooked);
        // With no codec there is nothing to look for.
        codec.set(CodecChoice::none(), 256);
        assert_eq!(encode(&codec, &text()), Err(Verbatim::NoCodec));
        assert_eq!(codec.meter().unlooked(), unlooked);
    }

    #[test]
    fn attempts_take_time_also_in_vain_and_looks_are_not_measured() {
        let codec = LevelCodec::new(Level::Fresh, "zstd:9".parse().unwrap(), 256);
        let cpu = |id| codec.meter().of(id).cpu;
        // Long enough for each to be measured.
        let value = text().repeat(20);
        encode(&codec, &value).unwrap();
        assert!(cpu(4) > Duration::ZERO && cpu(0) == Duration::ZERO);
        let recognized = [b"\x28\xb5\x2f\xfd".to_vec(), value].concat();
        assert_eq!(encode(&codec, &recognized), Err(Verbatim::Recognized));
        assert_eq!(cpu(0), Duration::ZERO);
        encode(&codec, &stubborn(100_000)).unwrap();
        let zstd = cpu(4);
        codec.set("lz4".parse().unwrap(), 256);
        let vain = encode(&codec, &stubborn(100_000));
        assert_eq!(vain, Err(Verbatim::DidNotShrink));
        assert!(cpu(0) > Duration::ZERO && cpu(4) == zstd);
    }

    #[test]
    fn what_waits_to_be_tried_is_bounded() {
        let codec = LevelCodec::new(Level::Compacted, CodecChoice::Auto, 256);
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
