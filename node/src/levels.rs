//! The levels at which values rest, the codec of each, and what it has done.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use fonn_codec::{CodecSpec, Encoding, SpecError};
use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};

/// A level of the hierarchy that has a codec of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Level {
    /// The RAM tier.
    Ram,
    /// Fresh data on disk.
    Upper,
    /// Settled data on disk.
    Last,
    /// The bucket.
    Cold,
}

impl Level {
    /// All levels, from the fastest to the largest.
    pub const ALL: [Self; 4] = [Self::Ram, Self::Upper, Self::Last, Self::Cold];

    /// Its name, as in `--codec` and in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ram => "ram",
            Self::Upper => "upper",
            Self::Last => "last",
            Self::Cold => "cold",
        }
    }

    /// The codec that it has if none is given; `none` where the build left that one out.
    #[must_use]
    pub fn default_codec(self) -> CodecSpec {
        let name = match self {
            Self::Ram => "none",
            Self::Upper => "lz4",
            Self::Last => "zstd:3",
            Self::Cold => "zstd:9",
        };
        name.parse().unwrap_or_else(|_| CodecSpec::none())
    }
}

impl FromStr for Level {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|level| level.name() == text);
        known.ok_or_else(|| format!("`{text}` is no level; levels are ram, upper, last and cold"))
    }
}

/// The codec of one level: which, and from which length on; and its figures.
#[derive(Debug)]
pub struct LevelCodec {
    active: Mutex<(CodecSpec, usize)>,
    meter: LevelMeter,
}

impl LevelCodec {
    /// A level with a codec, for values of at least `min_bytes`.
    #[must_use]
    pub fn new(spec: CodecSpec, min_bytes: usize) -> Self {
        Self {
            active: Mutex::new((spec, min_bytes)),
            meter: LevelMeter::default(),
        }
    }

    /// The codec for the next value, and the length from which it is used.
    #[must_use]
    pub fn active(&self) -> (CodecSpec, usize) {
        *self.active.lock()
    }

    /// Changes the codec for values that come to the level from now on.
    pub fn set(&self, spec: CodecSpec, min_bytes: usize) {
        *self.active.lock() = (spec, min_bytes);
    }

    /// What was done.
    #[must_use]
    pub fn meter(&self) -> &LevelMeter {
        &self.meter
    }
}

/// Codec ids that there are room for; later ones count as the last.
const METERS: usize = 8;

/// Shorter values are measured one of so many times, and counted as often: asking the kernel for the
/// time of a thread costs as much as compressing some hundred bytes.
const SAMPLED_BELOW_LEN: usize = 4096;
const SAMPLED_EVERY: u32 = 16;

/// What the codecs of one level have done, by the codec that a value ended with.
#[derive(Debug, Default)]
pub struct LevelMeter {
    codecs: [CodecMeter; METERS],
    calls: AtomicU32,
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
    /// Runs `encode` and tells how much processor time it took; values shorter than 4 KiB are measured
    /// every now and then.
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

/// `LEVEL=CODEC`, as in `--codec`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LevelSetting {
    /// The level.
    pub level: Level,
    /// Its codec.
    pub codec: CodecSpec,
}

impl FromStr for LevelSetting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((level, codec)) = text.split_once('=') else {
            return Err(format!("`{text}` is not LEVEL=CODEC, as in upper=lz4"));
        };
        Ok(Self {
            level: level.parse()?,
            codec: codec
                .parse()
                .map_err(|error: SpecError| error.to_string())?,
        })
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
