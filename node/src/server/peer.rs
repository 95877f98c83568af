//! What other members and routers ask of this node.

use std::net::SocketAddr;

use fonn_base::entry::Space;
use fonn_proto::Outcome;
use fonn_proto::peer::hello::{Hello, Rejection};
use fonn_proto::peer::{self, OVERHEAD_LEN_MAX, Refusal, Reply, Request};

use crate::engine::{Engine, PutError};

/// Bytes of entries that one page has at most, about.
pub(super) const PAGE_LEN_MAX: usize = 4 << 20;

/// The member id of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its name.
    pub name: String,
    /// Whether members may speak to it from other machines without a certificate.
    pub is_open: bool,
    /// The newest version of the protocol that it says it speaks.
    pub version: u16,
}

impl Default for Identity {
    fn default() -> Self {
        Self {
            name: String::new(),
            is_open: false,
            version: peer::VERSION,
        }
    }
}

/// Answers a hello, as a member of `cluster` (its id; empty without one). Without `--insecure`,
/// members on the same machine are let in alone.
pub(super) fn greet(
    identity: &Identity,
    cluster: &str,
    value_len_max: usize,
    from: &str,
) -> (Hello, Result<(), Rejection>) {
    let body_len_max = value_len_max.saturating_add(OVERHEAD_LEN_MAX);
    let body_len_max = u32::try_from(body_len_max).unwrap_or(u32::MAX);
    let hello = Hello {
        version: identity.version,
        ..Hello::new(&identity.name, cluster, body_len_max)
    };
    let is_near = match from.parse::<SocketAddr>() {
        Ok(address) => address.ip().to_canonical().is_loopback(),
        Err(_) => from == "unix",
    };
    let verdict = if is_near || identity.is_open {
        Ok(())
    } else {
        Err(Rejection::NotAllowed)
    };
    (hello, verdict)
}

/// Executes what only members ask of each other, as far as a node without a cluster can.
pub(super) async fn execute(
    engine: &Engine,
    space: Space,
    request: &Request<'_>,
    word: impl FnOnce(&Reply<'_>) + Send,
) {
    let Request::Fetch { key } = request else {
        return word(&Reply::Refused(Refusal::Unsupported));
    };
    match engine.fetch_for_peer(space, key).await {
        Ok(None) => word(&Reply::Unknown),
        Ok(Some(transfer)) => word(&Reply::Entry(transfer.entry(space, key, usize::MAX))),
        Err(failure) => word(&Reply::Outcome(Outcome::Failed(failure))),
    }
}

pub(super) fn refused(error: PutError) -> Reply<'static> {
    match error {
        PutError::Malformed(what) => {
            tracing::warn!(what, "a member sent a malformed request");
            Reply::Refused(Refusal::Malformed)
        }
        PutError::Failed(failure) => Reply::Outcome(Outcome::Failed(failure)),
    }
}
