//! One serde implementation for every setting that is written as text or as a plain integer.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use serde::Deserializer;
use serde::de::{Error, Visitor};

/// Deserializes `T` from a string by its `FromStr`, or from an integer as if it were written out.
pub(crate) fn from_text_or_integer<'de, T, D>(
    deserializer: D,
    expected: &'static str,
) -> Result<T, D::Error>
where
    T: FromStr<Err: fmt::Display>,
    D: Deserializer<'de>,
{
    deserializer.deserialize_any(TextOrInteger {
        expected,
        target: PhantomData,
    })
}

struct TextOrInteger<T> {
    expected: &'static str,
    target: PhantomData<T>,
}

impl<T: FromStr<Err: fmt::Display>> TextOrInteger<T> {
    fn parse<E: Error>(text: &str) -> Result<T, E> {
        text.parse()
            .map_err(|error| E::custom(format_args!("`{text}`: {error}")))
    }
}

impl<T: FromStr<Err: fmt::Display>> Visitor<'_> for TextOrInteger<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        Self::parse(text)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<T, E> {
        Self::parse(&value.to_string())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<T, E> {
        Self::parse(&value.to_string())
    }
}
