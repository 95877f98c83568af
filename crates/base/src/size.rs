//! Sizes as operators write them: `512`, `64k`, `10g`, `25%`.
//!
//! Suffixes are powers of 1024 and case does not matter; `k`, `kb` and `kib` mean the same.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::text::from_text_or_integer;

const SIZE_EXPECTED: &str = "expected a size: a whole number of bytes, or one with the suffix k, m, g or t (powers of 1024), like 256m";
const BUDGET_EXPECTED: &str = "expected a budget: a percentage from 1% to 100%, or a whole number of bytes with an optional suffix k, m, g or t (powers of 1024), like 25% or 512m";

/// A number of bytes.
///
/// Its text form (`Display`) is exact and parses back to the same value: `256m`, `1000`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteCount(u64);

/// A text that is not a size, or a size that does not fit 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// The text is no [`ByteCount`].
    #[error("{SIZE_EXPECTED}")]
    Size,
    /// The text is no [`Budget`].
    #[error("{BUDGET_EXPECTED}")]
    Budget,
    /// The number is larger than 2^64 - 1 bytes.
    #[error("expected a size below 16 exbibytes (2^64 bytes)")]
    TooLarge,
}

impl ByteCount {
    /// No bytes.
    pub const ZERO: Self = Self(0);
    /// 1024 MiB.
    pub const GIB: Self = Self(1 << 30);

    /// That many bytes.
    #[must_use]
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// `count` MiB, saturating.
    #[must_use]
    pub const fn mib(count: u64) -> Self {
        Self(count.saturating_mul(1 << 20))
    }

    /// The number of bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// The number of bytes as a length of memory, saturating on 32-bit machines.
    #[must_use]
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }

    /// A rounded form for logs and banners: `1.5 GiB`.
    #[must_use]
    pub const fn human(self) -> Human {
        Human(self.0)
    }
}

impl FromStr for ByteCount {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let text = text.trim();
        let digits_end = text
            .bytes()
            .position(|b| !b.is_ascii_digit())
            .unwrap_or(text.len());
        let (digits, suffix) = text.split_at(digits_end);
        if digits.is_empty() {
            return Err(SizeError::Size);
        }
        let shift = match suffix.trim_start().to_ascii_lowercase().as_str() {
            "" | "b" => 0,
            "k" | "kb" | "kib" => 10,
            "m" | "mb" | "mib" => 20,
            "g" | "gb" | "gib" => 30,
            "t" | "tb" | "tib" => 40,
            _ => return Err(SizeError::Size),
        };
        // All digits: the only way to fail is to be too large.
        let number: u64 = digits.parse().map_err(|_| SizeError::TooLarge)?;
        number
            .checked_mul(1 << shift)
            .map(Self)
            .ok_or(SizeError::TooLarge)
    }
}

impl fmt::Display for ByteCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shift, suffix) in [(40, "t"), (30, "g"), (20, "m"), (10, "k")] {
            if self.0 != 0 && self.0.trailing_zeros() >= shift {
                return write!(f, "{}{suffix}", self.0 >> shift);
            }
        }
        write!(f, "{}", self.0)
    }
}

/// The rounded form of a [`ByteCount`], made by [`ByteCount::human`].
#[derive(Clone, Copy, Debug)]
pub struct Human(u64);

impl fmt::Display for Human {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        if self.0 < 1024 {
            return write!(f, "{} B", self.0);
        }
        let mut scaled = self.0 as f64 / 1024.0;
        let mut units = UNITS.iter();
        let mut unit = units.next().unwrap_or(&"KiB");
        // 1023.95 would be shown as 1024.0, so the next unit starts there.
        while scaled >= 1023.95 {
            let Some(next) = units.next() else { break };
            scaled /= 1024.0;
            unit = next;
        }
        write!(f, "{scaled:.1} {unit}")
    }
}

impl<'de> Deserialize<'de> for ByteCount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text_or_integer(deserializer, "a size like 256m")
    }
}

impl Serialize for ByteCount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A limit given in bytes, or as a share of the memory the process may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    /// So many bytes.
    Bytes(ByteCount),
    /// So many percent of the memory the process may use.
    Percent(Percent),
}

/// A whole percentage from 1 to 100.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Percent(u8);

impl Budget {
    /// `percent` of the available memory; `None` unless it is 1 to 100.
    #[must_use]
    pub const fn percent(percent: u8) -> Option<Self> {
        if percent >= 1 && percent <= 100 {
            Some(Self::Percent(Percent(percent)))
        } else {
            None
        }
    }

    /// The budget in bytes where `available` is what the process may use
    /// ([`crate::memory::available`]). Percentages round down.
    #[must_use]
    pub fn resolve(self, available: ByteCount) -> ByteCount {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(Percent(percent)) => {
                let share = u128::from(available.0) * u128::from(percent) / 100;
                // At most `available`, so it fits.
                ByteCount(u64::try_from(share).unwrap_or(available.0))
            }
        }
    }
}

impl FromStr for Budget {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let text = text.trim();
        let Some(number) = text.strip_suffix('%') else {
            return text.parse().map(Self::Bytes).map_err(|error| match error {
                SizeError::TooLarge => error,
                SizeError::Size | SizeError::Budget => SizeError::Budget,
            });
        };
        let number = number.trim_end();
        // `u8::from_str` would take a sign.
        if !number.bytes().all(|b| b.is_ascii_digit()) {
            return Err(SizeError::Budget);
        }
        number
            .parse()
            .ok()
            .and_then(Self::percent)
            .ok_or(SizeError::Budget)
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => bytes.fmt(f),
            Self::Percent(Percent(percent)) => write!(f, "{percent}%"),
        }
    }
}

impl<'de> Deserialize<'de> for Budget {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text_or_integer(deserializer, "a budget like 25% or 512m")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn suffixes_are_powers_of_1024_in_any_case_and_length() {
        for (text, bytes) in [
            ("0", 0),
            ("1000", 1000),
            ("7b", 7),
            ("64k", 64 << 10),
            ("64KB", 64 << 10),
            ("64 KiB", 64 << 10),
            ("3m", 3 << 20),
            ("10G", 10 << 30),
            ("2TiB", 2 << 40),
            (" 5m ", 5 << 20),
        ] {
            assert_eq!(text.parse(), Ok(ByteCount(bytes)), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused_with_what_would_be_accepted() {
        for text in [
            "", "k", "-1", "+1", "1.5g", "12q", "1kk", "0x10", "25%", "1 0",
        ] {
            let error = text.parse::<ByteCount>().unwrap_err();
            assert_eq!(error, SizeError::Size, "{text}");
            assert!(error.to_string().contains("like 256m"));
        }
        assert_eq!(
            "18446744073709551616".parse::<ByteCount>(),
            Err(SizeError::TooLarge)
        );
        assert_eq!(
            "17179869184g".parse::<ByteCount>(),
            Err(SizeError::TooLarge)
        );
        assert_eq!("16777216t".parse::<Budget>(), Err(SizeError::TooLarge));
    }

    #[test]
    fn human_form_rounds_to_one_decimal_and_never_shows_1024() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536 << 20, "1.5 GiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(ByteCount(bytes).human().to_string(), text);
        }
    }

    #[test]
    fn budgets_are_bytes_or_percent_of_what_is_available() {
        let available = ByteCount(1_000_000_007);
        let resolve = |text: &str| text.parse::<Budget>().unwrap().resolve(available).bytes();
        assert_eq!(resolve("512m"), 512 << 20);
        assert_eq!(resolve("25%"), 250_000_001);
        assert_eq!(resolve("100 %"), 1_000_000_007);
        let all = Budget::percent(100).unwrap();
        assert_eq!(all.resolve(ByteCount(u64::MAX)), ByteCount(u64::MAX));
        for text in ["0%", "101%", "256%", "-5%", "+5%", "%", "2.5%", "lots"] {
            assert_eq!(text.parse::<Budget>(), Err(SizeError::Budget), "{text}");
        }
    }

    #[test]
    fn files_may_give_text_or_integers() {
        #[derive(Deserialize)]
        struct File {
            a: ByteCount,
            b: ByteCount,
            c: Budget,
            d: Budget,
        }
        let file: File = toml::from_str("a = 4096\nb = '4k'\nc = '25%'\nd = 1024").unwrap();
        assert_eq!(file.a, file.b);
        assert_eq!(file.c, Budget::percent(25).unwrap());
        assert_eq!(file.d, Budget::Bytes(ByteCount(1024)));
        assert!(toml::from_str::<File>("a = -1\nb = 1\nc = 1\nd = 1").is_err());
        assert!(toml::from_str::<File>("a = 1.5\nb = 1\nc = 1\nd = 1").is_err());
    }

    proptest! {
        #[test]
        fn text_form_parses_back(bytes: u64, shift in 0u32..64) {
            let size = ByteCount(bytes << shift);
            prop_assert_eq!(size.to_string().parse(), Ok(size));
            let budget = Budget::Bytes(size);
            prop_assert_eq!(budget.to_string().parse(), Ok(budget));
        }

        #[test]
        fn parsing_never_panics(text in ".{0,24}") {
            let _ = text.parse::<ByteCount>();
            let _ = text.parse::<Budget>();
        }
    }
}
