//! A codec with its level, as the operator writes it.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

use crate::registry::{self, Codec, CodecId};

/// A codec that is compiled in, with the level to compress at: `none`, `lz4`, `snappy`,
/// `zlib[:1-9]`, `zstd[:-7..22]`. Parsing and printing round-trip; a level that was left out is
/// printed as the default it stands for.
///
/// `zstd:0` is zstd's own way to say "the default".
#[derive(Clone, Copy)]
pub struct CodecSpec {
    codec: &'static Codec,
    /// 0 for a codec without levels.
    level: i8,
}

/// Why a [`CodecSpec`] could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// There is no codec of that name.
    #[error("unknown codec {given:?}, accepted are {}", accepted())]
    Unknown {
        /// What was given.
        given: String,
    },
    /// The codec has no levels, or not the given level.
    #[error("codec {codec} has no level {level:?}, accepted is {}", usage(codec))]
    Level {
        /// The codec's name.
        codec: &'static str,
        /// What was given.
        level: String,
    },
    /// The codec is known, but this build leaves it out.
    #[error("codec {codec} is not in this build: it needs the cargo feature `{feature}`")]
    Absent {
        /// The codec's name.
        codec: &'static str,
        /// The cargo feature that would bring it.
        feature: &'static str,
    },
}

impl CodecSpec {
    /// Stores bytes as they are.
    #[must_use]
    pub fn none() -> Self {
        Self {
            codec: Codec::none(),
            level: 0,
        }
    }

    /// A codec at a level; None means the codec's default.
    ///
    /// # Errors
    /// [`SpecError::Absent`] if the codec is not compiled in, [`SpecError::Level`] if it does not
    /// have that level.
    pub fn new(codec: &'static Codec, level: Option<i8>) -> Result<Self, SpecError> {
        if let (false, Some(feature)) = (codec.is_available(), codec.feature()) {
            return Err(SpecError::Absent {
                codec: codec.name(),
                feature,
            });
        }
        let level = match (codec.levels(), level) {
            (None, None) => 0,
            (Some(levels), None) => levels.default,
            (Some(levels), Some(level)) if (levels.min..=levels.max).contains(&level) => level,
            (_, Some(level)) => {
                return Err(SpecError::Level {
                    codec: codec.name(),
                    level: level.to_string(),
                });
            }
        };
        Ok(Self { codec, level })
    }

    /// The codec.
    #[must_use]
    pub fn codec(self) -> &'static Codec {
        self.codec
    }

    /// The codec's id.
    #[must_use]
    pub fn id(self) -> CodecId {
        self.codec.id()
    }

    /// The level; None if the codec has none.
    #[must_use]
    pub fn level(self) -> Option<i8> {
        self.codec.levels().map(|_| self.level)
    }

    /// The level as it is stored: 0 if the codec has none.
    pub(crate) fn stored_level(self) -> i8 {
        self.level
    }

    /// The spec that a frame names, in which no level is written as 0. None if there is no such
    /// level.
    pub(crate) fn from_stored(codec: &'static Codec, level: i8) -> Option<Self> {
        let known = match codec.levels() {
            None => level == 0,
            Some(levels) => (levels.min..=levels.max).contains(&level),
        };
        known.then_some(Self { codec, level })
    }
}

impl FromStr for CodecSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let (name, level) = match text.split_once(':') {
            Some((name, level)) => (name, Some(level)),
            None => (text, None),
        };
        let codec = registry::by_name(name).ok_or_else(|| SpecError::Unknown {
            given: text.to_owned(),
        })?;
        let level = match level {
            None => None,
            Some(given) => Some(parse_level(given).ok_or_else(|| SpecError::Level {
                codec: codec.name(),
                level: given.to_owned(),
            })?),
        };
        Self::new(codec, level)
    }
}

/// Accepts a level in the one way that it is printed: no `+3`, `03` or `-0`.
fn parse_level(given: &str) -> Option<i8> {
    let level: i8 = given.parse().ok()?;
    (level.to_string() == given).then_some(level)
}

fn accepted() -> String {
    let all: Vec<_> = registry::all().iter().map(Codec::usage).collect();
    all.join(", ")
}

fn usage(name: &str) -> String {
    registry::by_name(name)
        .map(Codec::usage)
        .unwrap_or_default()
}

impl fmt::Display for CodecSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.codec.name())?;
        match self.level() {
            None => Ok(()),
            Some(level) => write!(f, ":{level}"),
        }
    }
}

impl fmt::Debug for CodecSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl PartialEq for CodecSpec {
    fn eq(&self, other: &Self) -> bool {
        (self.id(), self.level) == (other.id(), other.level)
    }
}

impl Eq for CodecSpec {}

impl Hash for CodecSpec {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.id(), self.level).hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spec_that_is_accepted_is_printed_as_it_is_parsed() {
        for codec in registry::all().iter().filter(|codec| codec.is_available()) {
            let levels = codec.levels().map_or(vec![None], |levels| {
                (levels.min..=levels.max).map(Some).collect()
            });
            for level in levels {
                let spec = CodecSpec::new(codec, level).unwrap();
                assert_eq!(spec.level(), level);
                assert_eq!(spec.to_string().parse(), Ok(spec));
                assert_eq!(
                    CodecSpec::from_stored(codec, spec.stored_level()),
                    Some(spec)
                );
            }
        }
    }

    #[test]
    fn a_level_left_out_is_the_default() {
        for (text, printed) in [
            ("none", "none"),
            ("lz4", "lz4"),
            ("snappy", "snappy"),
            ("zlib", "zlib:6"),
            ("zstd", "zstd:3"),
            ("zstd:-7", "zstd:-7"),
            ("zlib:9", "zlib:9"),
        ] {
            match text.parse::<CodecSpec>() {
                Ok(spec) => assert_eq!(spec.to_string(), printed),
                Err(error) => assert!(matches!(error, SpecError::Absent { .. }), "{error}"),
            }
        }
    }

    #[test]
    fn what_is_unknown_is_refused_with_what_is_accepted() {
        for given in [
            "auto", "", "ZSTD", "zstd ", " lz4", "gzip", "none,lz4", ":3",
        ] {
            let error = given.parse::<CodecSpec>().unwrap_err();
            assert_eq!(
                error,
                SpecError::Unknown {
                    given: given.to_owned()
                }
            );
        }
        assert_eq!(
            "auto".parse::<CodecSpec>().unwrap_err().to_string(),
            "unknown codec \"auto\", accepted are none, lz4, snappy, zlib[:1-9], zstd[:-7..22]"
        );
    }

    #[test]
    fn levels_outside_the_range_are_refused() {
        for given in ["none:1", "none:", "none:0"] {
            assert!(
                matches!(given.parse::<CodecSpec>(), Err(SpecError::Level { .. })),
                "{given}"
            );
        }
        for given in [
            "lz4:1",
            "snappy:0",
            "zlib:0",
            "zlib:10",
            "zlib:",
            "zlib:-1",
            "zstd:-8",
            "zstd:23",
            "zstd:+3",
            "zstd:03",
            "zstd:-0",
            "zstd:x",
            "zstd:3:3",
            "zstd:999999999999",
        ] {
            let error = given.parse::<CodecSpec>().unwrap_err();
            assert!(
                !matches!(error, SpecError::Unknown { .. }),
                "{given}: {error}"
            );
        }
        let error = "none:1".parse::<CodecSpec>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "codec none has no level \"1\", accepted is none"
        );
    }

    #[test]
    fn an_absent_codec_is_refused_with_its_feature() {
        for codec in registry::all().iter().filter(|codec| !codec.is_available()) {
            let error = codec.name().parse::<CodecSpec>().unwrap_err();
            assert_eq!(
                error.to_string(),
                format!(
                    "codec {0} is not in this build: it needs the cargo feature `{0}`",
                    codec.name()
                )
            );
        }
    }
}
