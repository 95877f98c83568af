//! What to drive a server with.

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::Protocol;
use crate::rng::mix;
use crate::values::{Content, STAMP_LEN};

/// Longest key of the memcached protocols.
const KEY_LEN_MAX: usize = 250;
/// A key carries its number as 16 hexadecimal digits.
const KEY_LEN_MIN: usize = 16;

/// Where the server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A TCP address.
    Tcp(SocketAddr),
    /// The path of a Unix domain socket.
    Unix(PathBuf),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(addr) => write!(f, "{addr}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// How the next key is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KeyDistribution {
    /// Every key equally often.
    Uniform,
    /// Zipf's law with this exponent, below 1.
    Zipf(f64),
}

impl FromStr for KeyDistribution {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.split_once(':') {
            None if text == "uniform" => Ok(Self::Uniform),
            None if text == "zipf" => Ok(Self::Zipf(0.99)),
            Some(("zipf", theta)) => {
                let theta: f64 = theta.parse().context("the exponent is not a number")?;
                ensure!(
                    theta > 0.0 && theta < 1.0,
                    "the exponent must lie between 0 and 1"
                );
                Ok(Self::Zipf(theta))
            }
            _ => bail!("expected uniform, zipf or zipf:EXPONENT"),
        }
    }
}

/// Lengths of values: one length, or a range in which each key has its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Shortest value in bytes.
    pub min: usize,
    /// Longest value in bytes.
    pub max: usize,
}

impl Sizes {
    /// The same length for every key.
    #[must_use]
    pub const fn fixed(len: usize) -> Self {
        Self { min: len, max: len }
    }

    /// The length of the value of key `number`: within a range each doubling of the length is
    /// equally likely.
    #[must_use]
    pub fn of(&self, number: u64) -> usize {
        if self.min == self.max {
            return self.min;
        }
        let unit = (mix(number ^ 0x7369_7a65) >> 11) as f64 / (1_u64 << 53) as f64;
        let len = self.min as f64 * (self.max as f64 / self.min as f64).powf(unit);
        (len as usize).clamp(self.min, self.max)
    }
}

impl FromStr for Sizes {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (min, max) = match text.split_once('-') {
            Some((min, max)) => (parse_size(min)?, parse_size(max)?),
            None => (parse_size(text)?, parse_size(text)?),
        };
        ensure!(min <= max, "the range ends before it starts");
        ensure!(min > 0, "values need at least one byte");
        Ok(Self { min, max })
    }
}

/// Reads a byte count with an optional suffix k, m or g (1024-based).
///
/// # Errors
/// When it is not a number.
pub fn parse_size(text: &str) -> Result<usize> {
    let lower = text.to_ascii_lowercase();
    let (digits, unit) = match lower.as_bytes().last() {
        Some(b'k') => (&lower[..lower.len() - 1], 1 << 10),
        Some(b'm') => (&lower[..lower.len() - 1], 1 << 20),
        Some(b'g') => (&lower[..lower.len() - 1], 1 << 30),
        _ => (&lower[..], 1),
    };
    let count: usize = digits
        .parse()
        .with_context(|| format!("{text:?} is not a size"))?;
    count
        .checked_mul(unit)
        .with_context(|| format!("{text:?} is too large"))
}

/// How many of the returned values are compared with what was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Verify {
    /// None: for throughput of large values when the client is the bottleneck.
    None,
    /// The stamp of every value, and all bytes of one in 16.
    Sample,
    /// Every byte of every value.
    All,
}

/// One run of the load generator.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// The server.
    pub target: Target,
    /// The language to speak.
    pub protocol: Protocol,
    /// Connections over all client threads.
    pub connections: NonZeroUsize,
    /// Requests that are sent before their replies are awaited, per connection.
    pub pipeline: NonZeroUsize,
    /// Threads of the client; connections are spread over them.
    pub client_threads: NonZeroUsize,
    /// Keys that the fill phase sets.
    pub keys: u64,
    /// Length of a key in bytes, 16 to 250.
    pub key_size: usize,
    /// Length of values.
    pub value_size: Sizes,
    /// What values look like to a compressor.
    pub content: Content,
    /// Share of gets among the operations, 0 to 1; the rest are sets.
    pub get_ratio: f64,
    /// Share of gets that ask for a key that was set, 0 to 1.
    pub hit_ratio: f64,
    /// How keys are chosen.
    pub distribution: KeyDistribution,
    /// Comparison of returned values.
    pub verify: Verify,
    /// How long the measured phase runs before anything counts. Wrong bytes and refusals do.
    pub warm_up: Duration,
    /// How long the measured phase lasts after that when `operations` is not given.
    pub duration: Duration,
    /// Number of operations of the measured phase.
    pub operations: Option<u64>,
    /// Skips the fill phase.
    pub no_fill: bool,
    /// Stops after the fill phase.
    pub fill_only: bool,
    /// Start of every pseudo-random sequence.
    pub seed: u64,
    /// The process whose processor time is read.
    pub server_pid: Option<u32>,
}

impl LoadOptions {
    /// Length of keys in bytes where nothing else is said.
    pub const KEY_LEN: usize = KEY_LEN_MIN;

    /// Gets of 100-byte values over 16 connections for five seconds, the keys filled before.
    #[must_use]
    pub fn new(target: Target, protocol: Protocol) -> Self {
        Self {
            target,
            protocol,
            connections: NonZeroUsize::MIN.saturating_add(15),
            pipeline: NonZeroUsize::MIN,
            client_threads: NonZeroUsize::MIN,
            keys: 10_000,
            key_size: Self::KEY_LEN,
            value_size: Sizes::fixed(100),
            content: Content::Random,
            get_ratio: 1.0,
            hit_ratio: 1.0,
            distribution: KeyDistribution::Uniform,
            verify: Verify::All,
            warm_up: Duration::ZERO,
            duration: Duration::from_secs(5),
            operations: None,
            no_fill: false,
            fill_only: false,
            seed: 1,
            server_pid: None,
        }
    }

    /// Checks what the types cannot.
    ///
    /// # Errors
    /// With the name of the option, its value and what would be accepted.
    pub fn validate(&self) -> Result<()> {
        let key = self.key_size;
        ensure!(
            (KEY_LEN_MIN..=KEY_LEN_MAX).contains(&key),
            "--key-size {key}: expected {KEY_LEN_MIN} to {KEY_LEN_MAX} bytes"
        );
        for (name, share) in [
            ("--get-ratio", self.get_ratio),
            ("--hit-ratio", self.hit_ratio),
        ] {
            ensure!(
                (0.0..=1.0).contains(&share),
                "{name} {share}: expected 0.0 to 1.0"
            );
        }
        ensure!(self.keys > 0, "--keys 0: expected at least one key");
        let connections = self.connections;
        ensure!(
            self.client_threads <= connections,
            "--client-threads {}: expected at most one for each of the {connections} connections",
            self.client_threads
        );
        ensure!(
            self.verify == Verify::None || self.value_size.min >= STAMP_LEN || self.keys == 1,
            "--value-size: values shorter than {STAMP_LEN} bytes cannot tell keys apart; \
             use --verify none"
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_take_suffixes_and_ranges() {
        assert_eq!("100".parse::<Sizes>().unwrap(), Sizes::fixed(100));
        assert_eq!(
            "1k-10M".parse::<Sizes>().unwrap(),
            Sizes {
                min: 1024,
                max: 10 << 20
            }
        );
        for bad in ["", "k", "2k-1k", "0", "x"] {
            assert!(bad.parse::<Sizes>().is_err(), "{bad}");
        }
    }

    #[test]
    fn lengths_stay_in_their_range_and_spread_over_its_doublings() {
        let sizes = Sizes {
            min: 1 << 10,
            max: 1 << 20,
        };
        let small = (0..1000).filter(|&n| sizes.of(n) < 1 << 15).count();
        assert!((400..600).contains(&small), "{small}");
        assert!((0..1000).all(|n| (sizes.min..=sizes.max).contains(&sizes.of(n))));
    }

    #[test]
    fn distributions_are_parsed() {
        assert_eq!(
            "zipf:0.8".parse::<KeyDistribution>().unwrap(),
            KeyDistribution::Zipf(0.8)
        );
        assert!("zipf:1.5".parse::<KeyDistribution>().is_err());
        assert!("normal".parse::<KeyDistribution>().is_err());
    }
}
