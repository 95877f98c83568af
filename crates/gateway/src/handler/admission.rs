//! Admission: the identity of a client, its keyspace and its role, and how long they hold.
//!
//! Invariant: a request goes on only as long as the users file has its identity. An upload that
//! began before a revocation stores nothing after it.

use std::future::pending;
use std::sync::Arc;

use fonn_admin::{Credentials, Denied, is_foreign};
use fonn_auth::{Authenticator, Identity, Refusal, Role};
use fonn_proto::Failure;
use fonn_server::{Event, Scope};
use hyper::{HeaderMap, Request, StatusCode};
use tokio::sync::watch;
use tokio::time::sleep;

use super::{Front, Peer};
use crate::answer::Answer;
use crate::route::Route;
use crate::store::Store;

/// For a client that sends a password where others can read it: the password is not looked at.
const NEEDS_TLS: &str = "from other machines this port takes TLS alone: use https";

/// What a request is told whose identity is no longer in force.
pub(super) const REVOKED: &str = "the user or token was removed, was changed, or has expired";

/// A client that was admitted.
pub(super) struct Admitted {
    pub scope: Scope,
    pub role: Role,
    /// Whether its builds are told that they may store results.
    pub update_enabled: bool,
    pub login: Login,
}

/// The login that a request was admitted by; none without users.
#[derive(Clone)]
pub(super) struct Login(Option<Box<LoginState>>);

#[derive(Clone)]
struct LoginState {
    users: Arc<Authenticator>,
    changes: watch::Receiver<u64>,
    identity: Identity,
}

impl Login {
    /// Waits until the identity is removed, is changed, or has expired. Without users it waits for
    /// ever.
    ///
    /// # Cancel safety
    /// Safe.
    pub(super) async fn revoked(self) {
        let Some(mut login) = self.0 else {
            return pending().await;
        };
        while login.users.holds(&login.identity) {
            let wait = login.users.expiry_wait(&login.identity);
            let expired = async {
                match wait {
                    Some(wait) => sleep(wait).await,
                    None => pending().await,
                }
            };
            // Both are cancel safe: a change that is not seen here is seen in the next round.
            tokio::select! {
                changed = login.changes.changed() => if changed.is_err() {
                    return pending().await;
                },
                () = expired => {}
            }
        }
    }
}

impl<S: Store> Front<S> {
    /// The refusal of a plain-text request that needs TLS, or of a request from a page of another
    /// site: browsers add a login that their user has entered. Without users, also that of a
    /// request to a foreign host name.
    pub(super) fn refuses_origin<B>(&self, request: &Request<B>, peer: Peer) -> Option<Answer> {
        let security = self.security();
        if !peer.is_encrypted && !security.takes_plaintext_from(peer.address) {
            return Some(Answer::line(StatusCode::FORBIDDEN, NEEDS_TLS));
        }
        if is_foreign(request) {
            let line = "pages of other sites may not call this port";
            return Some(Answer::line(StatusCode::FORBIDDEN, line));
        }
        if security.users.is_some() {
            return None;
        }
        // Over TLS the client has compared the name with the certificate.
        if !peer.is_encrypted
            && let Err(foreign) = self.options().hosts.check(request)
        {
            let line = foreign.to_string();
            return Some(Answer::line(StatusCode::MISDIRECTED_REQUEST, &line));
        }
        None
    }

    /// The client, if its login is right. Without users all clients have all rights in the
    /// namespace `default`.
    pub(super) async fn admit(&self, headers: &HeaderMap, peer: Peer) -> Result<Admitted, Answer> {
        let Some(users) = &self.security().users else {
            return Ok(Admitted {
                scope: Scope::default(),
                role: Role::ReadWrite,
                update_enabled: true,
                login: Login(None),
            });
        };
        // Before the check, so that no change is missed.
        let changes = users.changes();
        let checked = match Credentials::of(headers) {
            Ok(credentials) => credentials.check(users, Some(peer.address)).await,
            Err(denied) => Err(denied),
        };
        match checked {
            Ok(identity) => Ok(Admitted {
                scope: Scope::of(&identity, 0),
                role: identity.role,
                update_enabled: identity.update_enabled,
                login: Login(Some(Box::new(LoginState {
                    users: Arc::clone(users),
                    changes,
                    identity,
                }))),
            }),
            Err(denied) => Err(self.deny(denied)),
        }
    }

    fn deny(&self, denied: Denied) -> Answer {
        let event = match denied {
            Denied::Missing => Event::AuthRequired,
            Denied::Malformed | Denied::Refused(_) => Event::AuthFailed,
        };
        self.store().count(event, 1);
        let line = denied.to_string();
        match denied {
            Denied::Refused(Refusal::Busy) => Answer::busy(&line),
            _ => Answer::unauthorized(&line),
        }
    }

    /// The refusal of what the role does not allow.
    pub(super) fn refuses_role(&self, route: &Route, role: Role) -> Option<Answer> {
        if !route.operation.is_write() || role.may_write() {
            return None;
        }
        self.store().count(Event::ReadOnly, 1);
        let failure = Failure::ReadOnly;
        Some(Answer::write_failed(route.dialect, failure))
    }
}
