//! How a connection begins: each side names itself and its versions.
//!
//! The first 16 bytes never change, whatever the version of the frames behind them:
//!
//! | offset | bytes | field |
//! |--------|-------|-------|
//! | 0 | 4 | 0xFA, `FNP` |
//! | 4 | 1 | verdict: 0 in the hello of the caller; in the answer 0 welcome, else a [`Rejection`] |
//! | 5 | 1 | length of the name |
//! | 6 | 1 | length of the cluster's id |
//! | 7 | 1 | 0 |
//! | 8 | 2 | newest version spoken |
//! | 10 | 2 | oldest version spoken |
//! | 12 | 4 | longest body taken |
//! | 16 | | name, cluster's id (UTF-8) |
//!
//! Both sides then speak the newest version that both know. The caller waits for the answer
//! before it sends a request, since the answer says how long a request may be.

use thiserror::Error;

use super::{FIRST_BYTE, VERSION, VERSION_MIN};
use crate::Out;

/// The bytes in front of the names.
pub const HELLO_HEAD_LEN: usize = 16;

const MAGIC: [u8; 4] = [FIRST_BYTE, b'F', b'N', b'P'];

/// What one side says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The name of the member or router, for logs; at most 255 bytes.
    pub name: String,
    /// The id of the cluster it belongs to; empty if it has none. At most 255 bytes.
    pub cluster: String,
    /// The newest version it speaks.
    pub version: u16,
    /// The oldest version it speaks.
    pub version_min: u16,
    /// The longest body of a frame that it takes, in bytes.
    pub body_len_max: u32,
}

/// Why a member refuses the caller.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq, Hash)]
pub enum Rejection {
    /// No version that both know.
    #[error(
        "the other side speaks no version of the peer protocol that we speak: upgrade the older one"
    )]
    Version,
    /// It belongs to another cluster.
    #[error("the other side belongs to another cluster: check the addresses of the members")]
    Cluster,
    /// It may not speak this protocol here.
    #[error("the other side takes peers from loopback, with --insecure or with mutual TLS alone")]
    NotAllowed,
    /// A reason of a newer version.
    #[error(
        "the other side refused for a reason with number {0}, which this version does not know"
    )]
    Other(u8),
}

impl Rejection {
    const fn code(self) -> u8 {
        match self {
            Self::Version => 1,
            Self::Cluster => 2,
            Self::NotAllowed => 3,
            Self::Other(code) => code,
        }
    }

    const fn from_code(code: u8) -> Self {
        match code {
            1 => Self::Version,
            2 => Self::Cluster,
            3 => Self::NotAllowed,
            other => Self::Other(other),
        }
    }
}

/// The bytes are no hello.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum HelloError {
    /// Another protocol.
    #[error("the other side does not speak the peer protocol: is it the client port of a node?")]
    Magic,
    /// A name is no UTF-8, or the versions make no range.
    #[error("the other side's hello is malformed")]
    Malformed,
}

/// What [`Hello::decode`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Not all there: `total` bytes are needed.
    Need {
        /// Bytes needed in all.
        total: usize,
    },
    /// A hello, made of the first `len` bytes.
    Hello {
        /// What it says.
        hello: Hello,
        /// What the answer says of us: `Err` if it refuses us. Always `Ok` in the first hello.
        verdict: Result<(), Rejection>,
        /// Its length.
        len: usize,
    },
}

/// A cluster's id in hexadecimal digits; empty for 0, which is no cluster.
#[must_use]
pub fn cluster_text(id: u64) -> String {
    match id {
        0 => String::new(),
        id => format!("{id:016x}"),
    }
}

impl Hello {
    /// The hello of this version of the protocol. Names are cut off at 255 bytes.
    #[must_use]
    pub fn new(name: &str, cluster: &str, body_len_max: u32) -> Self {
        Self {
            name: cut(name).to_owned(),
            cluster: cut(cluster).to_owned(),
            version: VERSION,
            version_min: VERSION_MIN,
            body_len_max,
        }
    }

    /// Writes the hello of the caller (`Ok`), or the answer to one.
    pub fn encode(&self, verdict: Result<(), Rejection>, out: &mut Out) {
        let (name, cluster) = (cut(&self.name), cut(&self.cluster));
        out.put(&MAGIC);
        out.put(&[
            verdict.map_or_else(Rejection::code, |()| 0),
            u8::try_from(name.len()).unwrap_or(u8::MAX),
            u8::try_from(cluster.len()).unwrap_or(u8::MAX),
            0,
        ]);
        out.put(&self.version.to_le_bytes());
        out.put(&self.version_min.to_le_bytes());
        out.put(&self.body_len_max.to_le_bytes());
        out.put(name.as_bytes());
        out.put(cluster.as_bytes());
    }

    /// Reads a hello or its answer from the front of `buf`.
    ///
    /// # Errors
    /// If the bytes are none.
    pub fn decode(buf: &[u8]) -> Result<Step, HelloError> {
        if buf.iter().zip(&MAGIC).any(|(found, magic)| found != magic) {
            return Err(HelloError::Magic);
        }
        let Some((head, rest)) = buf.split_first_chunk::<HELLO_HEAD_LEN>() else {
            return Ok(Step::Need {
                total: HELLO_HEAD_LEN,
            });
        };
        let [_, _, _, _, verdict, name_len, cluster_len, _, rules @ ..] = *head;
        let [v0, v1, m0, m1, b0, b1, b2, b3] = rules;
        let (name_len, cluster_len) = (usize::from(name_len), usize::from(cluster_len));
        let len = HELLO_HEAD_LEN
            .saturating_add(name_len)
            .saturating_add(cluster_len);
        if buf.len() < len {
            return Ok(Step::Need { total: len });
        }
        let names = rest.get(..name_len.saturating_add(cluster_len));
        let (name, cluster) = names
            .and_then(|names| names.split_at_checked(name_len))
            .ok_or(HelloError::Malformed)?;
        let text = |bytes| std::str::from_utf8(bytes).map_err(|_| HelloError::Malformed);
        let hello = Self {
            name: text(name)?.to_owned(),
            cluster: text(cluster)?.to_owned(),
            version: u16::from_le_bytes([v0, v1]),
            version_min: u16::from_le_bytes([m0, m1]),
            body_len_max: u32::from_le_bytes([b0, b1, b2, b3]),
        };
        if hello.version_min > hello.version {
            return Err(HelloError::Malformed);
        }
        let verdict = match verdict {
            0 => Ok(()),
            code => Err(Rejection::from_code(code)),
        };
        Ok(Step::Hello {
            hello,
            verdict,
            len,
        })
    }

    /// The version that both sides speak.
    ///
    /// # Errors
    /// If they are of different clusters, or one is of none, or there is no such version.
    pub fn agree(&self, other: &Self) -> Result<u16, Rejection> {
        if self.cluster != other.cluster {
            return Err(Rejection::Cluster);
        }
        let version = self.version.min(other.version);
        if version < self.version_min.max(other.version_min) {
            return Err(Rejection::Version);
        }
        Ok(version)
    }
}

/// The longest beginning of a name that fits.
fn cut(name: &str) -> &str {
    let end = (0..=name.len().min(usize::from(u8::MAX)))
        .rev()
        .find(|&end| name.is_char_boundary(end));
    end.and_then(|end| name.get(..end)).unwrap_or_default()
}
