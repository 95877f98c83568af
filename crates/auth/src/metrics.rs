//! What is published of users, tokens and the certificate. Tokens are named, at most [`NAMED_MAX`]
//! of them; users are not.

use std::sync::Arc;

use fonn_base::metrics::striped::Counters;
use fonn_base::metrics::{Label as _, Metrics};

use super::Authenticator;
use super::tls::Tls;

/// Tokens that are published by name; of further ones only their sum is.
const NAMED_MAX: usize = 64;

fonn_base::label! {
    /// What came of a login by a token.
    pub(super) enum TokenLogin: "outcome" {
        /// It was let in.
        Accepted = "accepted",
        /// There is no such token.
        Unknown = "unknown",
        /// It has expired.
        Expired = "expired",
    }
}

/// Logins by tokens, by what came of them.
pub(super) type TokenLogins = Counters<{ TokenLogin::ALL.len() }>;

fonn_base::label! {
    /// Why the admin port refused a login.
    pub enum Refused: "reason" {
        /// No login came, though one is needed.
        Missing = "missing",
        /// What came is no login.
        Malformed = "malformed",
        /// There is no such user or token, or the password is another one.
        Wrong = "wrong",
        /// The token has expired.
        Expired = "expired",
        /// Too many attempts wait.
        Busy = "busy",
    }
}

/// Logins that the admin port refused, by reason.
pub(super) type Refusals = Counters<{ Refused::ALL.len() }>;

/// Publishes what there is of `users`; zeros, where there are none.
pub fn register(metrics: &Metrics, users: Option<Arc<Authenticator>>) {
    metrics.on_scrape(move |snapshot| {
        let users = users.as_deref();
        for why in Refused::ALL {
            snapshot.counter(
                "fonn_admin_logins_refused_total",
                "Calls and pages of the admin port that were refused because nobody was logged in: no login (`missing`), \
                 none that can be read, a wrong user name, password or token, one that has expired, or too many that wait.",
                &[(Refused::NAME, why.as_str())],
                users.map_or(0, |users| users.refusals().total(why.index())),
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
        for what in TokenLogin::ALL {
            snapshot.counter(
                "fonn_token_logins_total",
                "Logins by a token, by what came of them: it was let in (`accepted`), is not known (`unknown`) or has \
                 expired (`expired`). Over HTTP each request is a login.",
                &[(TokenLogin::NAME, what.as_str())],
                users.map_or(0, |users| users.token_logins().total(what.index())),
            );
        }
        let tokens = users.map_or_else(Vec::new, |users| users.directory().tokens());
        snapshot.gauge(
            "fonn_tokens",
            "Tokens of the users file, expired ones among them.",
            &[],
            tokens.len() as f64,
        );
        for token in tokens.iter().take(NAMED_MAX) {
            let labels = [("token", &*token.identity.user)];
            snapshot.counter(
                "fonn_token_uses_total",
                "Logins by a token, for the first 64 tokens by name.",
                &labels,
                token.logins,
            );
            if let Some(expiry) = token.identity.expiry {
                snapshot.gauge(
                    "fonn_token_expiry_timestamp_seconds",
                    "Unix time at which a token expires, for the first 64 tokens by name.",
                    &labels,
                    expiry.unix_ms() as f64 / 1000.0,
                );
            }
        }
    });
}

/// Publishes when the certificate in force expires.
pub fn register_certificate(metrics: &Metrics, tls: Option<Arc<Tls>>) {
    metrics.on_scrape(move |snapshot| {
        let expiry = tls.as_ref().and_then(|tls| tls.expiry());
        snapshot.gauge(
            "fonn_tls_certificate_expiry_timestamp_seconds",
            "Unix time at which the certificate of --tls-cert expires; 0 without one.",
            &[],
            expiry.map_or(0.0, |it| it.unix_ms() as f64 / 1000.0),
        );
    });
}
