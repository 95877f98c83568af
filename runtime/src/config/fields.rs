//! Types of settings that several programs have.

use std::str::FromStr;

use serde::{Deserialize, Deserializer};

use crate::serve::ListenAddr;

/// An address for the admin port: HOST:PORT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminAddr(pub String);

impl FromStr for AdminAddr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse()? {
            ListenAddr::Tcp(text) => Ok(Self(text)),
            ListenAddr::Unix(_) => Err("the admin port is HTTP on HOST:PORT".to_owned()),
        }
    }
}

impl<'de> Deserialize<'de> for AdminAddr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
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
    #[serde(untagged)]
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

/// Most reactors: more have never been of use, and each is a thread.
const THREADS_MAX: usize = 256;

/// What `--threads` means: as many as there are cores if it is not given.
///
/// # Errors
/// If it is out of range.
pub fn threads(given: Option<usize>) -> Result<usize, super::ConfigError> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = given.unwrap_or(cores);
    if threads == 0 || threads > THREADS_MAX {
        let expected = format!("1 to {THREADS_MAX}");
        return Err(super::ConfigError::invalid("--threads", threads, expected));
    }
    Ok(threads)
}
