//! Types of settings that several programs have.

use std::str::FromStr;

use fonn_admin::HostName;
use fonn_base::config::ConfigError;
use fonn_base::size::ByteCount;
use fonn_server::ListenAddr;
use serde::{Deserialize, Deserializer};

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

/// What `--listen` means: the port of memcached on loopback if it is not given.
#[must_use]
pub fn listen(given: Vec<ListenAddr>) -> Vec<ListenAddr> {
    match given.is_empty() {
        true => vec![ListenAddr::Tcp("127.0.0.1:11211".to_owned())],
        false => given,
    }
}

/// What `--admin-host` means: `none` stands for no name.
#[must_use]
pub fn admin_host(given: Vec<HostName>) -> Vec<HostName> {
    let is_name = |name: &HostName| name.as_str() != "none";
    given.into_iter().filter(is_name).collect()
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

/// Most reactors: more have never been of use, and each is a thread.
const THREADS_MAX: usize = 256;

/// What `--threads` means: as many as there are cores if it is not given.
///
/// # Errors
/// If it is out of range.
pub fn threads(given: Option<usize>) -> Result<usize, ConfigError> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = given.unwrap_or(cores);
    if threads == 0 || threads > THREADS_MAX {
        let expected = format!("1 to {THREADS_MAX}");
        return Err(ConfigError::invalid("--threads", threads, expected));
    }
    Ok(threads)
}
