//! The codec of what goes to the bucket: fixed, or chosen by `auto` from how the bucket keeps up.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fonn_codec::policy::Signals;
use fonn_codec::{CodecSpec, Encoded};
use fonn_cold_tier::{ColdTier, SpillLoad, SpillMode, ValueCodec};
use fonn_disk_tier::levels::{Cpu, Device, LevelCodec, Writing};

/// How often `auto` looks.
const DECIDE_INTERVAL: Duration = Duration::from_secs(2);

/// Below this a delay of the spill says nothing: batches take their time.
const DELAY_MIN: Duration = Duration::from_secs(2);

/// The level's codec, as the bucket asks for it.
#[derive(Debug)]
pub(crate) struct SpillCodec(pub(crate) Arc<LevelCodec>);

impl ValueCodec for SpillCodec {
    fn active(&self) -> (CodecSpec, usize) {
        self.0.active()
    }

    fn wants(&self, len: usize) -> bool {
        self.0.wants(len)
    }

    fn sample(&self, value: &[u8]) {
        self.0.keep(value);
    }

    fn run(&self, len: usize, encode: &mut dyn FnMut() -> Option<Encoded>) -> Option<Encoded> {
        let meter = self.0.meter();
        let (encoded, cpu) = meter.time(len, encode);
        if let Some(encoded) = encoded {
            let (bytes_in, bytes_out) = (encoded.original_len, encoded.frame_len);
            meter.count(encoded.encoding, bytes_in, bytes_out, cpu);
        }
        encoded
    }
}

/// Lets `auto` look at the level every two seconds, for ever.
pub(super) async fn choose(tier: ColdTier, codec: Arc<LevelCodec>, mode: SpillMode) {
    let mut ticks = tokio::time::interval(DECIDE_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut observed = Observed::new();
    loop {
        ticks.tick().await;
        if !codec.is_auto() {
            continue;
        }
        let (tier, codec) = (tier.clone(), Arc::clone(&codec));
        // Trying the candidates takes milliseconds, and the backlog is asked of the disk.
        let look = move || {
            let signals = observed.signals(tier.spill_load(), mode);
            codec.decide(signals);
            observed
        };
        observed = match tokio::task::spawn_blocking(look).await {
            Ok(observed) => observed,
            Err(_) => Observed::new(),
        };
    }
}

/// What was seen last.
struct Observed {
    cpu: Cpu,
    bucket: Device,
    at: Instant,
}

impl Observed {
    fn new() -> Self {
        Self {
            cpu: Cpu::new(),
            bucket: Device::default(),
            at: Instant::now(),
        }
    }

    fn signals(&mut self, load: SpillLoad, mode: SpillMode) -> Signals {
        let elapsed = self.at.elapsed();
        self.at = Instant::now();
        let writing = Writing {
            bytes: load.uploaded_bytes,
            stalled: load.waited,
            ..Writing::default()
        };
        Signals {
            cpu_busy: self.cpu.busy(),
            device_busy: self.bucket.busy(writing, elapsed),
            backlog: backlog(mode, load.backlog_age),
        }
    }
}

/// How far the spill is behind: 0 while entries get into the bucket in time, 1 from three times the
/// time on. With `on-evict` entries wait on purpose, and what is behind shows in the waiting alone.
fn backlog(mode: SpillMode, age: Duration) -> f32 {
    match mode {
        SpillMode::OnEvict => 0.0,
        SpillMode::WriteBehind(after) => {
            let after = after.max(DELAY_MIN);
            let late = age.saturating_sub(after);
            (late.as_secs_f32() / (2.0 * after.as_secs_f32())).min(1.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use fonn_disk_tier::levels::{CodecChoice, Level};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const MODE: SpillMode = SpillMode::WriteBehind(Duration::from_secs(5));

    #[test]
    fn a_spill_that_is_late_is_a_backlog() {
        assert_eq!(backlog(MODE, 5 * SECOND), 0.0);
        assert_eq!(backlog(MODE, 10 * SECOND), 0.5);
        assert_eq!(backlog(MODE, 15 * SECOND), 1.0);
        assert_eq!(backlog(MODE, 1000 * SECOND), 1.0);
        assert_eq!(backlog(SpillMode::OnEvict, 1000 * SECOND), 0.0);
        // A short window does not make every batch late.
        let short = SpillMode::WriteBehind(Duration::from_millis(100));
        assert_eq!(backlog(short, 2 * SECOND), 0.0);
    }

    /// Lines of numbers, which shrink the more the more is tried.
    fn value() -> Vec<u8> {
        let line = |n: u32| format!("{n}: {}\n", n * 7919 % 1009);
        (0..800).map(line).collect::<String>().into_bytes()
    }

    /// Values on their way into a bucket that takes so many bytes a second.
    struct Spill {
        codec: LevelCodec,
        device: Device,
        now_ms: u64,
        uploads: Writing,
        behind: f32,
    }

    impl Spill {
        fn new() -> Self {
            Self {
                codec: LevelCodec::new(Level::Cold, CodecChoice::Auto, 256),
                device: Device::default(),
                now_ms: 0,
                uploads: Writing::default(),
                behind: 0.0,
            }
        }

        /// Two minutes of `demand` bytes a second; the codec that `auto` has then.
        fn run(&mut self, bucket: f32, demand: f32, cpu_busy: f32) -> CodecSpec {
            let value = &value()[..];
            for _ in 0..60 {
                let mut frame = Vec::new();
                fonn_codec::encode(self.codec.active().0, 256, value, &mut frame).unwrap();
                let share = frame.len() as f32 / value.len() as f32;
                let due = demand * share * 2.0 + self.behind;
                let taken = due.min(bucket * 2.0);
                // What waits is bounded by the disk.
                self.behind = (due - taken).min(bucket * 100.0);
                self.uploads.bytes += taken as u64;
                if self.behind > 0.0 {
                    self.uploads.stalled += 2 * SECOND;
                }
                let values = (demand * 2.0 / value.len() as f32) as u64;
                for _ in 0..values {
                    if self.codec.wants_at(self.now_ms, value.len()) {
                        self.codec.keep(value);
                    }
                }
                self.now_ms += 2000;
                let age = 5.0 + self.behind / bucket;
                let signals = Signals {
                    cpu_busy,
                    device_busy: self.device.busy(self.uploads, 2 * SECOND),
                    backlog: backlog(MODE, Duration::from_secs_f32(age)),
                };
                self.codec.decide_at(self.now_ms, signals);
            }
            self.codec.active().0
        }

        fn changes(&self) -> Vec<(&'static str, u64)> {
            let made = self.codec.changes().filter(|(_, count)| *count > 0);
            made.collect()
        }
    }

    #[test]
    fn auto_stores_less_when_the_bucket_is_behind_and_computes_less_when_the_processor_is() {
        let zstd_9 = "zstd:9".parse().unwrap();
        let mut spill = Spill::new();
        // Neither is: what it begins with stays.
        assert_eq!(spill.run(1e9, 1e6, 0.1), zstd_9);
        assert_eq!(spill.changes(), []);
        // The processor is busy, the bucket is not: with as much to encode as counts on any
        // machine.
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let cheap = spill.run(1e12, 1e8 * cpus as f32, 1.0);
        assert_ne!(cheap, zstd_9);
        assert_eq!(spill.changes(), [("cpu_scarce", 1)]);
        // The bucket is slow; the processor is neither scarce nor so idle that it would be reason
        // enough.
        let small = spill.run(1e5, 1e6, 0.7);
        let stored = |spec: CodecSpec| {
            let mut frame = Vec::new();
            fonn_codec::encode(spec, 256, &value(), &mut frame).unwrap();
            frame.len()
        };
        assert!(stored(small) < stored(cheap), "{cheap}, then {small}");
        let is_the_bucket = |reason: &str| ["device_scarce", "backlog"].contains(&reason);
        let changes = spill.changes();
        assert!(
            changes.iter().any(|(reason, _)| is_the_bucket(reason)),
            "{changes:?}"
        );
    }
}
