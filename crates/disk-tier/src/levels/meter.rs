//! What the codecs of a level have done: values, bytes in and out, processor time.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use fonn_codec::Encoding;
use rustix::time::{ClockId, clock_gettime};

/// Codec ids that there are room for; later ones count as the last.
const METERS: usize = 8;

/// Shorter values are measured one of so many times, and counted as often: asking the kernel twice
/// for the time of a thread takes about a microsecond, which may be more than all else that is done
/// for a value.
const SAMPLED_BELOW_LEN: usize = 64 << 10;
const SAMPLED_EVERY: u32 = 16;

/// What the codecs of one level have done, by the codec that a value ended with.
#[derive(Debug, Default)]
pub struct LevelMeter {
    codecs: [CodecMeter; METERS],
    calls: AtomicU32,
    unlooked: AtomicU64,
}

#[derive(Debug, Default)]
struct CodecMeter {
    values: AtomicU64,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    cpu_ns: AtomicU64,
}

/// Figures of one codec at one level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CodecUse {
    /// Values encoded.
    pub values: u64,
    /// Bytes of these.
    pub bytes_in: u64,
    /// Bytes of their frames.
    pub bytes_out: u64,
    /// Processor time spent on it, decoding of their former frames included.
    pub cpu: Duration,
}

impl LevelMeter {
    /// Runs `encode` and tells how much processor time it took; values shorter than 64 KiB are
    /// measured every now and then.
    pub fn time<T>(&self, len: usize, encode: impl FnOnce() -> T) -> (T, Duration) {
        let weight = if len >= SAMPLED_BELOW_LEN {
            1
        } else if self
            .calls
            .fetch_add(1, Ordering::Relaxed)
            .is_multiple_of(SAMPLED_EVERY)
        {
            SAMPLED_EVERY
        } else {
            return (encode(), Duration::ZERO);
        };
        let before = thread_cpu();
        let out = encode();
        (out, thread_cpu().saturating_sub(before) * weight)
    }

    /// Counts a value that was encoded.
    pub fn count(&self, encoding: Encoding, bytes_in: usize, bytes_out: usize, cpu: Duration) {
        let id = match encoding {
            Encoding::Verbatim(_) => 0,
            Encoding::Compressed(spec) => usize::from(spec.id().as_u8()),
        };
        let Some(meter) = self.codecs.get(id.min(METERS - 1)) else {
            return;
        };
        meter.values.fetch_add(1, Ordering::Relaxed);
        meter.bytes_in.fetch_add(bytes_in as u64, Ordering::Relaxed);
        meter
            .bytes_out
            .fetch_add(bytes_out as u64, Ordering::Relaxed);
        let cpu_ns = u64::try_from(cpu.as_nanos()).unwrap_or(u64::MAX);
        meter.cpu_ns.fetch_add(cpu_ns, Ordering::Relaxed);
    }

    /// Counts processor time of an attempt after which the value stays as it is.
    pub fn count_vain(&self, cpu: Duration) {
        let [none, ..] = &self.codecs;
        let cpu_ns = u64::try_from(cpu.as_nanos()).unwrap_or(u64::MAX);
        none.cpu_ns.fetch_add(cpu_ns, Ordering::Relaxed);
    }

    /// Counts a value that was not even looked at, since many before it did not shrink.
    pub fn count_unlooked(&self) {
        self.unlooked.fetch_add(1, Ordering::Relaxed);
    }

    /// How many these were.
    #[must_use]
    pub fn unlooked(&self) -> u64 {
        self.unlooked.load(Ordering::Relaxed)
    }

    /// The figures of one codec, by its stored id.
    #[must_use]
    pub fn of(&self, id: u8) -> CodecUse {
        let Some(meter) = self.codecs.get(usize::from(id)) else {
            return CodecUse::default();
        };
        CodecUse {
            values: meter.values.load(Ordering::Relaxed),
            bytes_in: meter.bytes_in.load(Ordering::Relaxed),
            bytes_out: meter.bytes_out.load(Ordering::Relaxed),
            cpu: Duration::from_nanos(meter.cpu_ns.load(Ordering::Relaxed)),
        }
    }
}

/// Processor time that this thread has used.
#[must_use]
pub fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let secs = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::from_secs(secs) + Duration::from_nanos(u64::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use fonn_codec::Verbatim;

    use super::*;

    #[test]
    fn values_count_for_the_codec_that_they_ended_with() {
        let meter = LevelMeter::default();
        let zstd = Encoding::Compressed("zstd:3".parse().unwrap());
        let cpu = Duration::from_micros(5);
        meter.count(zstd, 1000, 300, cpu);
        meter.count(zstd, 2000, 500, cpu);
        meter.count(Encoding::Verbatim(Verbatim::DidNotShrink), 700, 716, cpu);
        let used = meter.of(4);
        assert_eq!(
            (used.values, used.bytes_in, used.bytes_out, used.cpu),
            (2, 3000, 800, 2 * cpu)
        );
        assert_eq!((meter.of(0).values, meter.of(1).values), (1, 0));
        assert_eq!(meter.of(255), CodecUse::default());
    }

    #[test]
    fn long_values_are_all_measured_and_short_ones_in_their_place() {
        let meter = LevelMeter::default();
        let work = || {
            let until = thread_cpu() + Duration::from_micros(200);
            while thread_cpu() < until {}
        };
        assert!(meter.time(SAMPLED_BELOW_LEN, work).1 >= Duration::from_micros(200));
        let short: Vec<_> = (0..SAMPLED_EVERY).map(|_| meter.time(1, work).1).collect();
        let measured: Vec<_> = short.iter().filter(|cpu| !cpu.is_zero()).collect();
        assert_eq!(measured.len(), 1);
        assert!(*measured[0] >= SAMPLED_EVERY * Duration::from_micros(200));
    }
}
