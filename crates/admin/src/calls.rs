//! How many gRPC calls may be under way: in all, of one caller, and how many of them only
//! administrators may make.
//!
//! Short calls and watches (streams without an end) are counted apart, so that open dashboards
//! refuse no command. Health checks are not counted at all.
//!
//! Invariant: users without the role `admin` never hold a place that is reserved for
//! administrators, and one caller never holds all places.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use fonn_auth::Identity;
use parking_lot::Mutex;
use tokio::sync::watch;
use tonic::Status;

use super::places::network_of;

/// Limits of one kind of calls.
#[derive(Clone, Copy, Debug)]
pub struct CallLimits {
    /// Calls under way in all.
    pub most: usize,
    /// Of these, how many only administrators may make. Without users every caller is an
    /// administrator.
    pub for_admins: usize,
    /// Calls of one user, or without users of one source.
    pub by_caller: usize,
}

/// Calls of one caller are counted together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Caller {
    User(Arc<str>),
    Network(IpAddr),
    /// A listener that does not know the address.
    Unknown,
}

#[derive(Debug, Default)]
struct Held {
    all: usize,
    not_admins: usize,
    by_caller: HashMap<Caller, usize>,
}

/// The places of one kind of calls; clones are the same.
#[derive(Clone, Debug)]
pub(super) struct CallPool {
    /// For the message of a refusal: "calls" or "watches".
    kind: &'static str,
    limits: CallLimits,
    held: Arc<Mutex<Held>>,
}

impl CallPool {
    pub(super) fn new(kind: &'static str, limits: CallLimits) -> Self {
        Self {
            kind,
            limits,
            held: Arc::default(),
        }
    }

    /// Takes a place for a call of `user` (none where there are no users) from `address`.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED, with the limit that is reached.
    pub(super) fn take(
        &self,
        user: Option<&Identity>,
        address: Option<IpAddr>,
    ) -> Result<CallPermit, Status> {
        let caller = match (user, address) {
            (Some(identity), _) => Caller::User(Arc::clone(&identity.user)),
            (None, Some(address)) => Caller::Network(network_of(address)),
            (None, None) => Caller::Unknown,
        };
        let is_admin = user.is_none_or(|identity| identity.role.may_administer());
        let CallLimits {
            most,
            for_admins,
            by_caller,
        } = self.limits;
        let kind = self.kind;
        let mut held = self.held.lock();
        let own = held.by_caller.get(&caller).copied().unwrap_or(0);
        if held.all >= most {
            return Err(Status::resource_exhausted(format!(
                "{most} {kind} are under way, which is the most: try again later"
            )));
        }
        if own >= by_caller {
            return Err(Status::resource_exhausted(format!(
                "{own} {kind} of this caller are under way, which is the most for one: end some of them"
            )));
        }
        if !is_admin && held.not_admins >= most.saturating_sub(for_admins) {
            return Err(Status::resource_exhausted(format!(
                "{} {kind} are under way, and the other {for_admins} places are for administrators: try again later",
                held.not_admins
            )));
        }
        held.all += 1;
        held.not_admins += usize::from(!is_admin);
        *held.by_caller.entry(caller.clone()).or_default() += 1;
        drop(held);
        Ok(CallPermit {
            held: Arc::clone(&self.held),
            caller,
            is_admin,
        })
    }
}

/// The place of a call that is under way.
#[derive(Debug)]
pub(super) struct CallPermit {
    held: Arc<Mutex<Held>>,
    caller: Caller,
    is_admin: bool,
}

impl Drop for CallPermit {
    fn drop(&mut self) {
        let mut held = self.held.lock();
        held.all = held.all.saturating_sub(1);
        if !self.is_admin {
            held.not_admins = held.not_admins.saturating_sub(1);
        }
        if let Some(own) = held.by_caller.get_mut(&self.caller) {
            *own = own.saturating_sub(1);
            if *own == 0 {
                held.by_caller.remove(&self.caller);
            }
        }
    }
}

/// The admitted calls of one connection; clones are the same.
#[derive(Clone, Debug)]
pub(super) struct Calls(Arc<watch::Sender<usize>>);

/// An admitted call that has not ended.
#[derive(Debug)]
pub(super) struct CallGuard(Arc<watch::Sender<usize>>);

impl Calls {
    pub(super) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(0)))
    }

    pub(super) fn begin(&self) -> CallGuard {
        self.0.send_modify(|count| *count += 1);
        CallGuard(Arc::clone(&self.0))
    }

    pub(super) fn are_under_way(&self) -> bool {
        *self.0.borrow() > 0
    }

    pub(super) async fn none(&self) {
        // The sender is here, so the channel is open.
        let _ = self.0.subscribe().wait_for(|count| *count == 0).await;
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: CallLimits = CallLimits {
        most: 4,
        for_admins: 1,
        by_caller: 2,
    };

    fn pool() -> CallPool {
        CallPool::new("calls", LIMITS)
    }

    fn from(last: u8) -> Option<IpAddr> {
        Some(IpAddr::from([10, 0, 0, last]))
    }

    #[test]
    fn one_source_gets_its_share_and_all_sources_get_the_most() {
        let pool = pool();
        let mut held: Vec<_> = [1, 1, 2]
            .map(|it| pool.take(None, from(it)).unwrap())
            .into();
        let refused = pool.take(None, from(1)).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
        assert!(refused.message().contains("2 calls of this caller"));
        held.push(pool.take(None, from(3)).unwrap());
        let refused = pool.take(None, from(4)).unwrap_err();
        assert!(refused.message().contains("4 calls are under way"));
        held.remove(0);
        assert!(pool.take(None, from(4)).is_ok());
    }

    #[test]
    fn ended_calls_leave_nothing_behind() {
        let pool = pool();
        for last in 0..=255 {
            drop(pool.take(None, from(last)).unwrap());
        }
        let held = pool.held.lock();
        assert_eq!((held.all, held.not_admins, held.by_caller.len()), (0, 0, 0));
    }
}
