//! Types of settings that several programs have.

use std::str::FromStr;

use fonn_base::config::ConfigError;
use fonn_base::memory;
use fonn_base::size::{Budget, ByteCount};
use fonn_server::ListenAddr;
use serde::{Deserialize, Deserializer};

/// Reads settings of these types from their texts, by `FromStr`.
#[macro_export]
macro_rules! from_text {
    ($($name:ty),*) => {$(
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <String as serde::Deserialize<'de>>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    )*};
}

/// An address: HOST:PORT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort(pub String);

impl FromStr for HostPort {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(ListenAddr::Tcp(text)) => Ok(Self(text)),
            _ => Err(format!("`{text}` is not HOST:PORT, as in 127.0.0.1:11290")),
        }
    }
}

from_text!(HostPort);

/// What may be `none` as well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrNone<T>(pub Option<T>);

impl<T: FromStr<Err: std::fmt::Display>> FromStr for OrNone<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self(None));
        }
        let value = text.parse::<T>().map(|value| Self(Some(value)));
        value.map_err(|error| format!("{error}; none is accepted, too"))
    }
}

impl<'de, T: FromStr<Err: std::fmt::Display>> Deserialize<'de> for OrNone<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Reads a string, or a list of strings, as values that have a text form.
///
/// # Errors
/// If it is neither, or one of them cannot be read.
pub fn one_or_many<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: std::fmt::Display>,
{
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected a text, or a list of texts")]
    enum Texts {
        One(String),
        Many(Vec<String>),
    }
    let texts = match Texts::deserialize(deserializer)? {
        Texts::One(text) => vec![text],
        Texts::Many(texts) => texts,
    };
    texts
        .iter()
        .map(|text| text.parse().map_err(serde::de::Error::custom))
        .collect()
}

/// What `--max-value` means: 256 MiB if it is not given.
///
/// # Errors
/// If it is out of range.
pub fn max_value(given: Option<ByteCount>) -> Result<ByteCount, ConfigError> {
    let max_value = given.unwrap_or(ByteCount::mib(256));
    if max_value.bytes() == 0 || max_value > ByteCount::GIB {
        let expected = "1 byte to 1g";
        return Err(ConfigError::invalid("--max-value", max_value, expected));
    }
    Ok(max_value)
}

/// Smallest budget of RAM that a node or a router works with.
const RAM_BUDGET_MIN: ByteCount = ByteCount::mib(8);

/// What `--ram-budget` means: `default_percent` of the memory that the process may use if it is not
/// given. The share is returned with the bytes.
///
/// # Errors
/// If it is too small.
pub fn ram_budget(
    given: Option<Budget>,
    default_percent: u8,
) -> Result<(Budget, ByteCount), ConfigError> {
    let share = given.or(Budget::percent(default_percent));
    let share = share.unwrap_or(Budget::Bytes(RAM_BUDGET_MIN));
    let ram_budget = share.resolve(memory::available());
    if ram_budget < RAM_BUDGET_MIN {
        let least = format!("at least {RAM_BUDGET_MIN}");
        return Err(ConfigError::invalid("--ram-budget", share, least));
    }
    Ok((share, ram_budget))
}

/// Most reactors: more have never been of use, and each is a thread.
const THREADS_MAX: usize = 256;

/// What `--threads` means: as many as there are cores if it is not given.
///
/// # Errors
/// If it is out of range.
pub(crate) fn threads(given: Option<usize>) -> Result<usize, ConfigError> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = given.unwrap_or(cores);
    if threads == 0 || threads > THREADS_MAX {
        let expected = format!("1 to {THREADS_MAX}");
        return Err(ConfigError::invalid("--threads", threads, expected));
    }
    Ok(threads)
}

#[cfg(test)]
mod tests {
    use serde::de::IntoDeserializer;
    use serde::de::value::{Error, U32Deserializer};

    use super::*;

    #[test]
    fn a_number_in_place_of_texts_is_refused_with_what_is_accepted() {
        let number: U32Deserializer<Error> = 11211_u32.into_deserializer();
        let why = one_or_many::<_, HostPort>(number).unwrap_err().to_string();
        assert_eq!(why, "expected a text, or a list of texts");
    }
}
