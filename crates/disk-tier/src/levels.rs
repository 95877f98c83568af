//! The levels at which values rest, the codec of each, and what it has done.

mod active;
mod idle;
mod meter;
mod signals;

use std::fmt;
use std::str::FromStr;

use fonn_codec::{CodecSpec, SpecError};

pub use active::LevelCodec;
pub use fonn_codec::policy::Level;
pub use idle::{IdleCpus, Lent};
pub use meter::{CodecUse, LevelMeter, thread_cpu};
pub use signals::{Cpu, CpuTimes, Device, ThreadTimes, Writing};

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
