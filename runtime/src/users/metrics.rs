//! What is published of users: no name of one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Authenticator;
use crate::metrics::Metrics;

/// Why the admin port did not let somebody in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Refused {
    /// No login came, though one is needed.
    Missing,
    /// What came is no login.
    Malformed,
    /// There is no such user, or the password is another one.
    Wrong,
    /// Too many attempts wait.
    Busy,
}

impl Refused {
    const ALL: [(Self, &str); 4] = [
        (Self::Missing, "missing"),
        (Self::Malformed, "malformed"),
        (Self::Wrong, "wrong"),
        (Self::Busy, "busy"),
    ];
}

/// Logins that the admin port refused, by reason.
#[derive(Debug, Default)]
pub(crate) struct Refusals([AtomicU64; 4]);

impl Refusals {
    pub(crate) fn count(&self, why: Refused) {
        self.0[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn total(&self, why: Refused) -> u64 {
        self.0[why as usize].load(Ordering::Relaxed)
    }
}

/// Publishes what there is of `users`; zeros, where there are none.
pub fn register(metrics: &Metrics, users: Option<Arc<Authenticator>>) {
    metrics.on_scrape(move |snapshot| {
        let users = users.as_deref();
        for (why, reason) in Refused::ALL {
            snapshot.counter(
                "fonn_admin_logins_refused_total",
                "Calls and pages of the admin port that were refused because nobody was logged in: no login (`missing`), \
                 none that can be read, a wrong user name or password, or too many that wait.",
                &[("reason", reason)],
                users.map_or(0, |users| users.refusals().total(why)),
            );
        }
        snapshot.gauge(
            "fonn_password_checks_waiting",
            "Passwords that wait for one of the threads that check them.",
            &[],
            users.map_or(0.0, |users| users.attempts().depth() as f64),
        );
        snapshot.counter(
            "fonn_password_checks_rejected_total",
            "Passwords that were refused unchecked, because too many waited for the threads that check them.",
            &[],
            users.map_or(0, |users| users.attempts().rejected()),
        );
        snapshot.gauge(
            "fonn_users_revision",
            "Version of the users that members of the cluster agreed on, as it is in force; 0 without any.",
            &[],
            users.map_or(0.0, |users| *users.revisions().borrow() as f64),
        );
    });
}
