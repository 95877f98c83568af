//! `auto`: which codec a level should use, from what is scarce now.
//!
//! Which fixed codec is best flips with the machine: where the processor is scarce it is `none` or
//! `lz4`, where the device or the bucket is, `zstd`. So three things are watched for each level:
//!
//! - how its data compresses, and at which cost: [`Sampler`] tries all candidates on a few values;
//! - how busy processor and device are, and how full the queue between them: [`Signals`];
//! - how many bytes a second it is given, which the sampler counts.
//!
//! From these [`Auto`] predicts how busy both would be with each candidate, and changes to another
//! one only for a gain that lasts. All of it is pure: no clock, no threads, no I/O; time is an
//! argument, so that its tests simulate hours. The model and its limits are in [`Auto`].

mod auto;
mod decision;
mod sampler;

use std::fmt;
use std::str::FromStr;

use crate::spec::CodecSpec;

pub use auto::Auto;
pub use decision::{Decision, Reason};
pub use sampler::{Cost, Sample, Sampler};

/// A level of the hierarchy that has a codec of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Level {
    /// Values in RAM. Decoded at each read.
    Ram,
    /// Fresh values on disk.
    Fresh,
    /// Compacted values on disk.
    Compacted,
    /// Values in the bucket.
    Cold,
}

/// One interval's observations of a level. Values outside 0 to 1 are taken as the nearest of them,
/// NaN as 0.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Signals {
    /// The share of the processors this process may use that was used (0 to 1), or the share of
    /// time that it had to wait for one, whichever is more.
    pub cpu_busy: f32,
    /// Write throughput of the device or bucket against its observed ceiling (0 to 1), or the share
    /// of time that writers were stalled, whichever is more. For RAM: how full it is.
    pub device_busy: f32,
    /// How full the queue in front of the level was (0 to 1).
    pub backlog: f32,
}

/// What `auto` chooses from: in the order of what compressing costs. Levels of zstd above 9 gain
/// two or three percent for half the speed.
const CANDIDATES: [&str; 6] = ["none", "lz4", "zstd:1", "zstd:3", "zstd:6", "zstd:9"];

/// `none`'s place in [`CANDIDATES`].
const NONE: usize = 0;

impl Level {
    /// All levels, from the fastest to the largest.
    pub const ALL: [Self; 4] = [Self::Ram, Self::Fresh, Self::Compacted, Self::Cold];

    /// Its name, as in `--codec` and in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ram => "ram",
            Self::Fresh => "fresh",
            Self::Compacted => "compacted",
            Self::Cold => "cold",
        }
    }

    /// The codec that it has if none is given; `none` where the build left that codec out.
    #[must_use]
    pub fn default_codec(self) -> CodecSpec {
        candidate(self.first_candidate()).unwrap_or_else(CodecSpec::none)
    }

    /// How many of [`CANDIDATES`] it may use: what is decoded at each read, or stands in the way of
    /// a write, leaves out the slow ones.
    const fn candidate_count(self) -> usize {
        match self {
            Self::Ram => 3,
            Self::Fresh => 4,
            Self::Compacted | Self::Cold => CANDIDATES.len(),
        }
    }

    /// The candidate to begin with, before anything is known: the level's default codec.
    const fn first_candidate(self) -> usize {
        match self {
            Self::Ram => NONE,
            Self::Fresh => 1,
            Self::Compacted => 3,
            Self::Cold => 5,
        }
    }
}

impl FromStr for Level {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|level| level.name() == text);
        known.ok_or_else(|| {
            format!("`{text}` is no level; levels are ram, fresh, compacted and cold")
        })
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The candidate at `index`, if this build has its codec.
fn candidate(index: usize) -> Option<CodecSpec> {
    CANDIDATES.get(index)?.parse().ok()
}

#[cfg(all(test, feature = "lz4", feature = "zstd"))]
mod simulation;
