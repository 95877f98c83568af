//! Exchanges identity tokens of OIDC issuers for tokens of this cluster.

use std::sync::Arc;

use fonn_auth::ExchangedToken;
use fonn_oidc::{Presented, Rejection, TOKEN_LEN_MAX};
use fonn_server::Event;
use hyper::{Request, StatusCode};

use super::{Call, Front};
use crate::answer::Answer;
use crate::exchange::{self, ExchangeOutcome, Refused};
use crate::receive::RequestBody;
use crate::store::Store;
use crate::unbroken::Unbroken;

/// Tokens that are verified at once. A verification may wait for the keys of an issuer.
pub(super) const EXCHANGES_MAX: usize = 64;

/// Longest request: a token and its parameters. It comes from a client that has not logged in.
const FORM_LEN_MAX: usize = TOKEN_LEN_MAX + (4 << 10);

const NO_ISSUER: &str = "no token is exchanged here: the users file has no [[oidc]] table";

impl<S: Store> Front<S> {
    /// The answer, and whether the body of the request was read. The token is the credential, so no
    /// other one is needed.
    pub(super) async fn exchange_token<B: RequestBody>(
        &self,
        request: Request<B>,
        call: Call<'_>,
    ) -> (Answer, bool) {
        let users = self.security().users.as_ref();
        if !users.is_some_and(|users| users.directory().has_issuers()) {
            return (Answer::line(StatusCode::NOT_FOUND, NO_ISSUER), false);
        }
        let awaiting = call.life.await_stranger();
        let received = self.document_of(request.into_body(), call, FORM_LEN_MAX);
        let received = received.await;
        drop(awaiting);
        let body = match received {
            Ok(body) => body,
            Err(refused) => return (refused, false),
        };
        let exchanged = match exchange::subject_token(&body) {
            Ok(token) => self.exchange(token).await,
            Err(refused) => Err(refused),
        };
        let (outcome, answer) = match exchanged {
            Ok(token) => (ExchangeOutcome::Accepted, exchange::granted(&token)),
            Err(refused) => {
                let address = call.peer.address;
                tracing::debug!(?address, %refused, "an identity token was not exchanged");
                let outcome = refused.outcome();
                if outcome != ExchangeOutcome::Unavailable {
                    self.store().count(Event::AuthFailed, 1);
                }
                (outcome, refused.answer())
            }
        };
        self.figures().exchanged(outcome);
        (answer, true)
    }

    async fn exchange(&self, token: String) -> Result<ExchangedToken, Refused> {
        let Some(users) = self.security().users.clone() else {
            return Err(Refused::Token(Rejection::Issuer));
        };
        let permit = Arc::clone(&self.0.exchanges).try_acquire_owned();
        let permit = permit.map_err(|_| Refused::Busy)?;
        let verifier = Arc::clone(&self.0.verifier);
        // A client that goes must not take the keys along that are being fetched.
        Unbroken::new(async move {
            let _permit = permit;
            let presented = Presented::read(&token)?;
            let directory = users.directory();
            let known = directory.issuer(presented.issuer());
            let (name, issuer) = known.map(exchange::issuer).ok_or(Rejection::Issuer)?;
            let claims = verifier.verify(&presented, &issuer).await?;
            Ok(users.exchange(&name, |claim| claims.texts(claim))?)
        })
        .await
    }
}
