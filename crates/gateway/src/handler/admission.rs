//! Admission: the identity of a client, its keyspace and its role.

use fonn_admin::{Credentials, Denied, is_foreign};
use fonn_auth::{Refusal, Role};
use fonn_proto::Failure;
use fonn_server::{Event, Scope};
use hyper::{HeaderMap, Request, StatusCode};

use super::{Front, Peer};
use crate::answer::Answer;
use crate::route::Route;
use crate::store::Store;

/// For a client that sends a password where others can read it: the password is not looked at.
const NEEDS_TLS: &str = "from other machines this port takes TLS alone: use https";

impl<S: Store> Front<S> {
    /// The refusal of a plain-text request that needs TLS. Without users, also that of a request
    /// from a web page.
    pub(super) fn refuses_origin<B>(&self, request: &Request<B>, peer: Peer) -> Option<Answer> {
        let security = self.security();
        if !peer.is_encrypted && !security.takes_plaintext_from(peer.address) {
            return Some(Answer::line(StatusCode::FORBIDDEN, NEEDS_TLS));
        }
        if security.users.is_some() {
            return None;
        }
        if is_foreign(request) {
            let line = "pages of other sites may not call this port";
            return Some(Answer::line(StatusCode::FORBIDDEN, line));
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

    /// The keyspace of the client and its role. Without users all clients have all rights in the
    /// namespace `default`.
    pub(super) async fn admit(
        &self,
        headers: &HeaderMap,
        peer: Peer,
    ) -> Result<(Scope, Role), Answer> {
        let Some(users) = &self.security().users else {
            return Ok((Scope::default(), Role::ReadWrite));
        };
        let checked = match Credentials::of(headers) {
            Ok(credentials) => credentials.check(users, Some(peer.address)).await,
            Err(denied) => Err(denied),
        };
        match checked {
            Ok(identity) => Ok((Scope::of(&identity, 0), identity.role)),
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
