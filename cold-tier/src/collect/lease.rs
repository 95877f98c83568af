//! The lease of the node that collects garbage in a region.
//!
//! The lease only avoids double work. It depends on clocks, and on a store that may not support
//! conditional writes. It is an object with the holder's id and the end of the lease. A node that
//! finds it expired writes its own id. It holds the lease if the id is still there the next time.

use std::time::Duration;

use bytes::Bytes;

use crate::error::ColdError;
use crate::names::WriterId;
use crate::shared::Shared;
use crate::store::{Body, ObjectKey, StoreErrorKind};

/// How long a lease holds without being renewed.
pub(super) const TTL: Duration = Duration::from_secs(900);

const TTL_MS: u64 = 900_000;

/// The lease, as a node that wants it sees it.
#[derive(Debug)]
pub(super) struct Lease {
    key: ObjectKey,
    /// Names this node in the lease, and what it tells of its reads.
    pub(super) me: WriterId,
}

/// What is in the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Holder {
    writer: WriterId,
    until_ms: u64,
}

/// What to do about the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// It is ours.
    Hold,
    /// It is ours, and should be renewed.
    Renew,
    /// No node holds it.
    Take,
    /// Another node holds it.
    Leave,
}

fn decide(found: Option<Holder>, me: WriterId, now_ms: u64) -> Action {
    let Some(holder) = found else {
        return Action::Take;
    };
    let left_ms = holder.until_ms.saturating_sub(now_ms);
    // No node may take it for longer than that: a clock was wrong.
    if left_ms == 0 || left_ms > 2 * TTL_MS {
        return Action::Take;
    }
    match holder.writer == me {
        false => Action::Leave,
        true if left_ms > TTL_MS / 3 * 2 => Action::Hold,
        true => Action::Renew,
    }
}

impl Lease {
    pub(super) fn new(key: ObjectKey, me: WriterId) -> Self {
        Self { key, me }
    }

    /// Whether this node holds the lease, renewing or taking it if it may.
    pub(super) async fn hold(&self, shared: &Shared) -> Result<bool, ColdError> {
        let (is_there, found) = match shared.bucket().get(&self.key).await {
            Ok(bytes) => (true, parse(&bytes)),
            Err(error) if error.kind == StoreErrorKind::NotFound => (false, None),
            Err(error) => return Err(error.into()),
        };
        let now_ms = shared.wall_ms();
        match decide(found, self.me, now_ms) {
            Action::Leave => Ok(false),
            Action::Hold => Ok(true),
            Action::Renew => {
                shared.bucket().put(&self.key, self.body(now_ms)).await?;
                Ok(true)
            }
            // Another one may do the same just now: the next look decides.
            Action::Take if is_there => {
                shared.bucket().put(&self.key, self.body(now_ms)).await?;
                Ok(false)
            }
            Action::Take => {
                let body = self.body(now_ms);
                match shared.bucket().put_if_absent(&self.key, body).await {
                    Ok(()) => Ok(true),
                    Err(error) if error.kind == StoreErrorKind::AlreadyExists => Ok(false),
                    Err(error) if error.kind == StoreErrorKind::Unsupported => {
                        shared.bucket().put(&self.key, self.body(now_ms)).await?;
                        Ok(false)
                    }
                    Err(error) => Err(error.into()),
                }
            }
        }
    }

    fn body(&self, now_ms: u64) -> Body {
        let until_ms = now_ms.saturating_add(TTL_MS);
        Bytes::from(format!("{} {until_ms}\n", self.me)).into()
    }
}

fn parse(bytes: &[u8]) -> Option<Holder> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (writer, until_ms) = text.strip_suffix('\n')?.split_once(' ')?;
    Some(Holder {
        writer: writer.parse().ok()?,
        until_ms: until_ms.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_taken_when_it_is_free_and_kept_by_renewal() {
        let (me, other) = (WriterId::mint(1, 1), WriterId::mint(1, 2));
        let held = |writer, until_ms| Some(Holder { writer, until_ms });
        assert_eq!(decide(None, me, 5), Action::Take);
        assert_eq!(decide(held(other, 10), me, 5), Action::Leave);
        assert_eq!(decide(held(other, 10), me, 10), Action::Take);
        assert_eq!(decide(held(me, TTL_MS), me, 0), Action::Hold);
        assert_eq!(decide(held(me, TTL_MS), me, TTL_MS / 2), Action::Renew);
        assert_eq!(decide(held(me, TTL_MS), me, TTL_MS), Action::Take);
        // Written by a node whose clock is years ahead.
        assert_eq!(decide(held(other, u64::MAX), me, 5), Action::Take);
    }

    #[test]
    fn what_is_not_a_lease_is_nobodys() {
        let lease = Lease::new(ObjectKey::new("l").unwrap(), WriterId::mint(1, 1));
        let bytes = lease.body(5).to_bytes();
        assert_eq!(
            parse(&bytes).map(|holder| holder.until_ms),
            Some(5 + TTL_MS)
        );
        for bad in [&b""[..], b"x", b"\xff\n", b"x 1\n"] {
            assert_eq!(parse(bad), None);
        }
    }
}
