//! The client of other members: many callers' requests over few connections.
//!
//! A [`Client`] speaks the peer protocol ([`fonn_proto::peer`]) with one member. Each reactor has
//! its own, so a request never crosses cores: the caller encodes it into the buffer of a
//! connection, the connection's task sends what has gathered since it last ran in one vectored
//! write, and replies wake their callers on the same thread. A request costs one slot in a table;
//! there is no task, channel or timer for it.
//!
//! - **Lanes.** Small requests share a connection. Large values have one of their own: a connection
//!   says in its hello how long a reply it takes, a longer one is refused by the node
//!   ([`Refusal::TooLong`](fonn_proto::peer::Refusal)), and the request is repeated there
//!   ([`Client::call`]). What changes an entry *and* returns its value goes there at once.
//! - **Bounds.** A lane takes so many requests and bytes of requests; one more is
//!   [`CallError::Busy`] at once. A caller bounds the answers that it does not take.
//! - **Deadlines.** A request that is not answered in time is given up. Its id is not used again
//!   until the late reply came, which is dropped, or the connection ended.
//! - **Failures.** When a connection ends, all its callers are told, and whether their request may
//!   have been executed. A [`breaker`] then refuses requests for a while,
//!   longer each time.

mod answer;
mod client;
mod lane;
mod link;
mod quantile;
mod stats;
mod waiters;

#[cfg(any(test, feature = "test-util"))]
pub mod testing;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

pub use answer::Answer;
#[cfg(any(test, feature = "test-util"))]
pub use client::Health;
pub use client::{Client, Pending, Timing, WeakClient};
use fonn_auth::tls::Tls;
use fonn_base::backoff::Backoff;
use fonn_base::breaker;
pub use stats::{PeerMetrics, Stats};

/// How to talk to a member.
#[derive(Clone, Debug)]
pub struct Options {
    /// Host and port of the member's client port.
    pub address: String,
    /// Our own name, told in the hello.
    pub name: String,
    /// The cluster's id; empty if there is none.
    pub cluster: String,
    /// The newest version of the protocol that we say we speak.
    pub version: u16,
    /// Requests under way on one connection at most; no more than 65,536 count.
    pub requests_max: usize,
    /// Bytes of requests that are not answered on one connection at most. One request is always
    /// taken, whatever its size. Answers do not count: a caller that does not take its answers
    /// keeps no other caller from asking, and counts what it keeps itself.
    pub bytes_max: usize,
    /// The longest body on the connection for small requests, in bytes.
    pub small_len_max: u32,
    /// The longest body at all, in bytes.
    pub body_len_max: u32,
    /// How long a connection may take to be made, its hello included.
    pub connect_timeout: Duration,
    /// A connection that owes answers and sends nothing for so long is given up.
    pub silence_max: Duration,
    /// A connection that owes an answer for so long is given up, whatever else it sends.
    pub owing_max: Duration,
    /// How exact deadlines are.
    pub tick: Duration,
    /// When to stop asking.
    pub breaker: breaker::Options,
    /// Our certificate, and by which authority the member has to: if it is one to
    /// call members with ([`Tls::client`]), connections are under TLS.
    pub tls: Option<Arc<Tls>>,
}

impl Options {
    /// Options with which a member in the same data center is talked to.
    #[must_use]
    pub fn new(address: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            address: address.into(),
            name: name.into(),
            cluster: String::new(),
            version: fonn_proto::peer::VERSION,
            requests_max: 8192,
            bytes_max: 32 << 20,
            small_len_max: 256 << 10,
            body_len_max: 1 << 30,
            connect_timeout: Duration::from_secs(1),
            silence_max: Duration::from_secs(5),
            owing_max: Duration::from_secs(60),
            tick: Duration::from_millis(10),
            breaker: breaker::Options {
                failures_max: 3,
                wait: Backoff {
                    base: Duration::from_millis(50),
                    cap: Duration::from_secs(2),
                    attempts_max: u32::MAX,
                },
                probe_timeout: Duration::from_secs(2),
            },
            tls: None,
        }
    }
}

/// Why a request got no answer.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq, Hash)]
pub enum CallError {
    /// Too many requests or bytes are under way. Nothing was sent.
    #[error("too many requests to the member are under way")]
    Busy,
    /// The member cannot be reached, or was not lately. Nothing was sent.
    #[error("the member cannot be reached")]
    Unavailable,
    /// The member ended the connection, or itself. The request may have been executed, but is not
    /// any more.
    #[error("the member ended the connection before it answered")]
    Closed,
    /// The cluster declared the member down. The request may have been executed before that, and is
    /// not any more: the member's lease is over.
    #[error("the member is down")]
    Down,
    /// The connection was given up. The request may have been executed, or still will be.
    #[error("the connection to the member was given up before it answered")]
    Lost,
    /// No answer in time. The request may have been executed, or still will be.
    #[error("the member did not answer in time")]
    TimedOut,
    /// The request does not fit a frame. Nothing was sent.
    #[error("the request is too long for the peer protocol")]
    TooLong,
}
