//! Durations as operators write them: `100ms`, `5s`, `2m`, `1h`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer};

use crate::text::from_text_or_integer;

/// A duration in configuration, of whole milliseconds.
///
/// A plain number counts seconds. Its text form (`Display`) is exact and parses back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(Duration);

/// A text that is not a duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpanError {
    /// The text has another form.
    #[error("expected a duration: a whole number with the unit ms, s, m, h or d, like 100ms or 5s")]
    Form,
    /// More than 10,000 years, which no clock here can add to a date.
    #[error("expected a duration below 10,000 years")]
    TooLong,
}

const MILLIS_MAX: u64 = 10_000 * 366 * 86_400_000;

impl Span {
    /// That many milliseconds; anything above 10,000 years is cut to that.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(Duration::from_millis(if millis < MILLIS_MAX {
            millis
        } else {
            MILLIS_MAX
        }))
    }

    /// The duration.
    #[must_use]
    pub const fn get(self) -> Duration {
        self.0
    }

    /// The duration in milliseconds.
    #[must_use]
    pub fn as_millis(self) -> u64 {
        u64::try_from(self.0.as_millis()).unwrap_or(MILLIS_MAX)
    }
}

impl From<Span> for Duration {
    fn from(span: Span) -> Self {
        span.0
    }
}

impl FromStr for Span {
    type Err = SpanError;

    fn from_str(text: &str) -> Result<Self, SpanError> {
        let text = text.trim();
        let digits_end = text
            .bytes()
            .position(|b| !b.is_ascii_digit())
            .unwrap_or(text.len());
        let (digits, unit) = text.split_at(digits_end);
        if digits.is_empty() {
            return Err(SpanError::Form);
        }
        let unit_ms: u64 = match unit.trim_start().to_ascii_lowercase().as_str() {
            "ms" => 1,
            "" | "s" => 1000,
            "m" | "min" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(SpanError::Form),
        };
        let number: u64 = digits.parse().map_err(|_| SpanError::TooLong)?;
        match number.checked_mul(unit_ms) {
            Some(millis) if millis <= MILLIS_MAX => Ok(Self::from_millis(millis)),
            _ => Err(SpanError::TooLong),
        }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.as_millis();
        for (unit_ms, unit) in [
            (86_400_000, "d"),
            (3_600_000, "h"),
            (60_000, "m"),
            (1000, "s"),
        ] {
            if millis != 0 && millis.is_multiple_of(unit_ms) {
                return write!(f, "{}{unit}", millis / unit_ms);
            }
        }
        write!(f, "{millis}ms")
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text_or_integer(deserializer, "a duration like 5s")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn units_from_milliseconds_to_days() {
        for (text, millis) in [
            ("100ms", 100),
            ("5s", 5000),
            ("5", 5000),
            ("0s", 0),
            ("2m", 120_000),
            ("2min", 120_000),
            ("1H", 3_600_000),
            ("7d", 604_800_000),
            (" 3 s ", 3000),
        ] {
            assert_eq!(
                text.parse::<Span>().map(Span::as_millis),
                Ok(millis),
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_no_duration_is_refused_with_what_would_be_accepted() {
        for text in ["", "s", "-1s", "1.5s", "5 fortnights", "5us", "1h30m"] {
            let error = text.parse::<Span>().unwrap_err();
            assert_eq!(error, SpanError::Form, "{text}");
            assert!(error.to_string().contains("like 100ms or 5s"));
        }
        assert_eq!(
            "99999999999999999999s".parse::<Span>(),
            Err(SpanError::TooLong)
        );
        assert_eq!(
            "18446744073709551615h".parse::<Span>(),
            Err(SpanError::TooLong)
        );
        assert_eq!("4000000d".parse::<Span>(), Err(SpanError::TooLong));
    }

    #[test]
    fn files_may_give_text_or_seconds() {
        #[derive(Deserialize)]
        struct File {
            a: Span,
            b: Span,
        }
        let file: File = toml::from_str("a = 5\nb = '5000ms'").unwrap();
        assert_eq!(file.a, file.b);
    }

    proptest! {
        #[test]
        fn text_form_parses_back(millis in 0..=MILLIS_MAX, coarse in 0u64..10_000) {
            for span in [Span::from_millis(millis), Span::from_millis(coarse * 60_000)] {
                prop_assert_eq!(span.to_string().parse(), Ok(span));
            }
        }
    }
}
