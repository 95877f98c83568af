//! The levels at which values rest, the codec of each, and what it has done.

mod active;
mod idle;
mod meter;
mod signals;

use std::fmt;
use std::str::FromStr;

use fonn_codec::policy::LevelKind;
use fonn_codec::{CodecSpec, SpecError};

pub use active::LevelCodec;
pub use idle::{IdleCpus, Lent};
pub use meter::{CodecUse, LevelMeter, thread_cpu};
pub use signals::{Cpu, Device, RunDelay, Writing};

/// A level of the hierarchy that has a codec of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Level {
    /// The RAM tier.
    Ram,
    /// Fresh data on disk.
    Fresh,
    /// Compacted data on disk.
    Compacted,
    /// The bucket.
    Cold,
}

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

    /// What the policy of `auto` calls it.
    fn kind(self) -> LevelKind {
        match self {
            Self::Ram => LevelKind::Ram,
            Self::Fresh => LevelKind::Fresh,
            Self::Compacted => LevelKind::Compacted,
            Self::Cold => LevelKind::Cold,
        }
    }

    /// The codec that it has if none is given; `none` where the build left that codec out.
    #[must_use]
    pub fn default_codec(self) -> CodecChoice {
        let name = match self {
            Self::Ram => "none",
            Self::Fresh => "lz4",
            Self::Compacted => "zstd:3",
            Self::Cold => "zstd:9",
        };
        name.parse().unwrap_or_else(|_| CodecChoice::none())
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

/// What an operator chose for a level: `auto`, or a codec.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CodecChoice {
    /// Always this codec.
    Fixed(CodecSpec),
    /// What fits the data and the load best at the time.
    Auto,
}

impl CodecChoice {
    /// Values are stored verbatim.
    #[must_use]
    pub fn none() -> Self {
        Self::Fixed(CodecSpec::none())
    }
}

impl FromStr for CodecChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let spec = text.parse::<CodecSpec>();
        spec.map(Self::Fixed).map_err(|error| match error {
            SpecError::Unknown { .. } => format!("{error}, auto"),
            other => other.to_string(),
        })
    }
}

impl fmt::Display for CodecChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(spec) => spec.fmt(f),
            Self::Auto => f.write_str("auto"),
        }
    }
}

/// `LEVEL=CODEC`, as in `--codec`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LevelSetting {
    /// The level.
    pub level: Level,
    /// Its codec.
    pub codec: CodecChoice,
}

impl FromStr for LevelSetting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((level, codec)) = text.split_once('=') else {
            return Err(format!("`{text}` is not LEVEL=CODEC, as in fresh=lz4"));
        };
        Ok(Self {
            level: level.parse()?,
            codec: codec.parse()?,
        })
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
