//! The caller: the login in a request's head, and the rights of its user.
//!
//! Without users, every caller may do everything. With users, a call names its user in each
//! request: `authorization: Basic`, as in RFC 7617, `authorization: Bearer TOKEN`, or
//! `authorization: Bearer NAME:PASSWORD`, for tools that can only set a header. The
//! [`Authenticator`] remembers right passwords, so that costs a digest.

use std::fmt;
use std::future::Future as _;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use fonn_auth::metrics::Refused;
use fonn_auth::{Authenticator, Identity, Refusal, Role, is_token};
use http_body::{Frame, SizeHint};
use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;
use tokio::time::{Sleep, sleep};
use tokio_stream::Stream as _;
use tokio_stream::wrappers::WatchStream;
use tonic::Status;
use tonic::body::Body;
use zeroize::Zeroizing;

/// How to log in, for clients without a login.
const HOW: &str = "a login is needed: send `authorization: Bearer TOKEN`, `Basic` with a user of the users file, or \
                   `Bearer NAME:PASSWORD` (fonnctl: --user NAME)";

/// Why a client was not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// The request has no credentials.
    #[error("{HOW}")]
    Missing,
    /// The credentials cannot be read.
    #[error(
        "the authorization is neither `Bearer` with a token or NAME:PASSWORD, nor `Basic` with base64 of NAME:PASSWORD"
    )]
    Malformed,
    /// The credentials were refused.
    #[error(transparent)]
    Refused(Refusal),
}

impl From<Denied> for Refused {
    fn from(denied: Denied) -> Self {
        match denied {
            Denied::Missing => Self::Missing,
            Denied::Malformed => Self::Malformed,
            Denied::Refused(Refusal::Wrong | Refusal::UnknownToken) => Self::Wrong,
            Denied::Refused(Refusal::Expired | Refusal::ExpiredExchange) => Self::Expired,
            Denied::Refused(Refusal::Busy) => Self::Busy,
        }
    }
}

impl From<Denied> for Status {
    fn from(denied: Denied) -> Self {
        match denied {
            Denied::Refused(Refusal::Busy) => Self::resource_exhausted(denied.to_string()),
            _ => Self::unauthenticated(denied.to_string()),
        }
    }
}

/// A user name and a password, as they came.
pub struct Credentials {
    pub(super) user: Vec<u8>,
    pub(super) password: Zeroizing<Vec<u8>>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").finish_non_exhaustive()
    }
}

impl Credentials {
    /// The identity that they prove to `users`, for a client at `address`.
    ///
    /// # Errors
    /// [`Denied::Refused`]; it takes a while to come after some wrong passwords from the same
    /// address.
    pub async fn check(
        &self,
        users: &Authenticator,
        address: Option<IpAddr>,
    ) -> Result<Identity, Denied> {
        let checked = users.check(&self.user, &self.password, address).await;
        checked.map_err(Denied::Refused)
    }

    /// What the head of a request says.
    ///
    /// # Errors
    /// [`Denied`], if it says nothing, or nothing that can be read.
    pub fn of(headers: &HeaderMap) -> Result<Self, Denied> {
        let value = headers.get(AUTHORIZATION).ok_or(Denied::Missing)?;
        let value = value.as_bytes();
        let space = value.iter().position(|&byte| byte == b' ');
        let (scheme, rest) = value.split_at(space.ok_or(Denied::Malformed)?);
        let rest = rest.trim_ascii();
        let is_bearer = scheme.eq_ignore_ascii_case(b"bearer");
        if is_bearer && is_token(rest) {
            return Ok(Self {
                user: Vec::new(),
                password: Zeroizing::new(rest.to_vec()),
            });
        }
        let pair = if scheme.eq_ignore_ascii_case(b"basic") {
            Zeroizing::new(STANDARD.decode(rest).map_err(|_| Denied::Malformed)?)
        } else if is_bearer {
            Zeroizing::new(rest.to_vec())
        } else {
            return Err(Denied::Malformed);
        };
        // A name has no colon in Basic; a password may.
        let colon = pair.iter().position(|&byte| byte == b':');
        let colon = colon.ok_or(Denied::Malformed)?;
        Ok(Self {
            user: pair[..colon].to_vec(),
            password: Zeroizing::new(pair[colon + 1..].to_vec()),
        })
    }
}

/// A user or token that is logged in, as long as the users file says so.
pub(super) struct Login {
    users: Arc<Authenticator>,
    changes: WatchStream<u64>,
    /// Until it is asked again whether the identity has expired; none if it never does.
    expiry: Option<Pin<Box<Sleep>>>,
    pub(super) identity: Identity,
}

impl Login {
    /// Checks what the head of a request says.
    ///
    /// # Errors
    /// [`Denied`]; it takes a while to come after some wrong passwords from the same address.
    pub(super) async fn check(
        users: &Arc<Authenticator>,
        headers: &HeaderMap,
        address: Option<IpAddr>,
    ) -> Result<Self, Denied> {
        let login = match Credentials::of(headers) {
            Ok(credentials) => Self::with(users, credentials, address).await,
            Err(denied) => Err(denied),
        };
        login.inspect_err(|denied| users.count_refusal((*denied).into()))
    }

    async fn with(
        users: &Arc<Authenticator>,
        credentials: Credentials,
        address: Option<IpAddr>,
    ) -> Result<Self, Denied> {
        // Before the check, so that no change is missed.
        let changes = WatchStream::from_changes(users.changes());
        let identity = credentials.check(users, address).await?;
        let wait = users.expiry_wait(&identity);
        Ok(Self {
            users: Arc::clone(users),
            changes,
            expiry: wait.map(|wait| Box::pin(sleep(wait))),
            identity,
        })
    }

    /// Whether the user may do what asks for `role`.
    ///
    /// # Errors
    /// PERMISSION_DENIED, with what is missing.
    pub(super) fn require(&self, role: Role, method: &str) -> Result<(), Status> {
        let own = self.identity.role;
        match own >= role {
            true => Ok(()),
            false => Err(Status::permission_denied(format!(
                "{method} needs the role {role}; the {} has {own}",
                self.identity
            ))),
        }
    }

    /// Ends the body of a response when the identity is gone, is changed or has expired.
    pub(super) fn hold(self, response: hyper::Response<Body>) -> hyper::Response<Body> {
        response.map(|body| {
            Body::new(Held {
                body: Some(body),
                login: self,
            })
        })
    }

    /// Whether the identity was removed or changed, or has expired since; wakes the task when that
    /// may be.
    fn poll_revoked(&mut self, cx: &mut Context<'_>) -> bool {
        while let Poll::Ready(Some(_)) = Pin::new(&mut self.changes).poll_next(cx) {
            if !self.users.holds(&self.identity) {
                return true;
            }
        }
        while let Some(expiry) = &mut self.expiry
            && expiry.as_mut().poll(cx).is_ready()
        {
            if !self.users.holds(&self.identity) {
                return true;
            }
            let wait = self.users.expiry_wait(&self.identity);
            self.expiry = wait.map(|wait| Box::pin(sleep(wait)));
        }
        false
    }
}

/// A body for a user.
struct Held {
    /// None after its end.
    body: Option<Body>,
    login: Login,
}

impl http_body::Body for Held {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Self { body, login } = &mut *self;
        let Some(open) = body else {
            return Poll::Ready(None);
        };
        if !login.poll_revoked(cx) {
            return Pin::new(open).poll_frame(cx);
        }
        *body = None;
        let status =
            Status::unauthenticated("the user or token was removed, was changed, or has expired");
        let mut trailers = HeaderMap::new();
        Poll::Ready(Some(
            status
                .add_header(&mut trailers)
                .map(|()| Frame::trailers(trailers)),
        ))
    }

    fn is_end_stream(&self) -> bool {
        self.body
            .as_ref()
            .is_none_or(http_body::Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body
            .as_ref()
            .map_or_else(|| SizeHint::with_exact(0), http_body::Body::size_hint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(value: &[u8]) -> Result<(Vec<u8>, Vec<u8>), Denied> {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, value.try_into().unwrap());
        Credentials::of(&headers).map(|it| (it.user, it.password.to_vec()))
    }

    #[test]
    fn user_and_password_come_in_either_way() {
        let pair = |user: &str, password: &str| Ok((user.into(), password.into()));
        assert_eq!(parsed(b"Bearer ci:a b:c"), pair("ci", "a b:c"));
        // RFC 7617, section 2.
        let aladdin = b"Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==";
        assert_eq!(parsed(aladdin), pair("Aladdin", "open sesame"));
        assert_eq!(parsed(b"bAsIc  Y2k6"), pair("ci", ""));
        assert_eq!(parsed(b"BEARER :x"), pair("", "x"));
    }

    #[test]
    fn a_token_comes_as_it_is_or_as_a_password() {
        let token = format!("fonn_{}", "0a".repeat(32));
        let pair = |user: &str| Ok((user.into(), token.clone().into_bytes()));
        assert_eq!(parsed(format!("Bearer {token}").as_bytes()), pair(""));
        assert_eq!(parsed(format!("bearer  {token} ").as_bytes()), pair(""));
        assert_eq!(
            parsed(format!("Bearer any:{token}").as_bytes()),
            pair("any")
        );
        let basic = STANDARD.encode(format!("any:{token}"));
        assert_eq!(parsed(format!("Basic {basic}").as_bytes()), pair("any"));
    }

    #[test]
    fn logins_without_time_for_a_check_are_counted_apart() {
        for (refusal, counted) in [
            (Refusal::Busy, Refused::Busy),
            (Refusal::Wrong, Refused::Wrong),
            (Refusal::UnknownToken, Refused::Wrong),
            (Refusal::Expired, Refused::Expired),
        ] {
            assert_eq!(Refused::from(Denied::Refused(refusal)), counted);
        }
    }

    #[test]
    fn what_is_no_login_is_refused_without_repeating_it() {
        let empty = Credentials::of(&HeaderMap::new()).err();
        assert_eq!(empty, Some(Denied::Missing));
        for value in [
            &b"Bearer"[..],
            b"Bearer hunter2",
            b"Basic",
            b"Basic !!!!",
            b"Basic Y2k",
            b"Basic aHVudGVyMg==",
            b"Digest ci:hunter2",
            b"ci:hunter2",
        ] {
            let denied = parsed(value).unwrap_err();
            assert_eq!(denied, Denied::Malformed);
            let status = Status::from(denied);
            assert_eq!(status.code(), tonic::Code::Unauthenticated);
            assert!(!status.message().contains("hunter2"), "{status}");
        }
    }
}
