//! Keeps the keys of each issuer, fetches them when that is due, and verifies tokens by them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::claims::Claims;
use crate::fetch::{self, FetchError};
use crate::issuer::Issuer;
use crate::keys::{KeySet, Named};
use crate::token::{Presented, Rejection};

/// Between two fetches because of key ids that are not known.
pub const FETCH_INTERVAL: Duration = Duration::from_secs(30);

/// Keys that are older are fetched again: issuers withdraw keys.
const KEYS_FRESH: Duration = Duration::from_secs(10 * 60);

/// Keys that are older are not used, also if the issuer cannot be reached.
const KEYS_KEPT: Duration = Duration::from_secs(24 * 60 * 60);

/// Between two fetches after one that failed.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Issuers whose keys are kept at most. Those of earlier configurations are among them.
const ISSUERS_MAX: usize = 256;

/// Verifies tokens.
#[derive(Debug, Default)]
pub struct Verifier {
    kept: Mutex<HashMap<Issuer, Arc<Kept>>>,
}

/// The keys of one issuer.
#[derive(Debug, Default)]
struct Kept {
    state: Mutex<State>,
    /// Held by the one task that fetches.
    fetching: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    keys: Option<(Arc<KeySet>, Instant)>,
    /// The last fetch that failed.
    failed_at: Option<Instant>,
    /// The last fetch because of a key id that was not known.
    unknown_at: Option<Instant>,
}

impl Verifier {
    /// A verifier that knows no keys yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What a token proves, if it is one of `issuer`.
    ///
    /// # Errors
    /// [`Rejection`].
    ///
    /// # Cancel safety
    /// Not cancel safe: a fetch that is cancelled counts, and its keys are lost. A caller that may
    /// be cancelled runs it in a task of its own.
    pub async fn verify(
        &self,
        presented: &Presented<'_>,
        issuer: &Issuer,
    ) -> Result<Claims, Rejection> {
        if presented.issuer() != issuer.url {
            return Err(Rejection::Issuer);
        }
        let kept = self.kept(issuer);
        let (id, algorithm) = (presented.key_id.as_deref(), presented.algorithm);
        let mut keys = kept.current(issuer).await.map_err(Rejection::Keys)?;
        if matches!(keys.named(id, algorithm), Named::Unknown)
            && let Some(fetched) = kept.after_unknown(issuer, &keys).await
        {
            keys = fetched;
        }
        match keys.named(id, algorithm) {
            Named::Key(key) => presented.verify(key, issuer),
            Named::Mismatch => Err(Rejection::KeyMismatch),
            Named::Unknown => Err(Rejection::UnknownKey),
        }
    }

    fn kept(&self, issuer: &Issuer) -> Arc<Kept> {
        let mut kept = self.kept.lock();
        if kept.len() >= ISSUERS_MAX && !kept.contains_key(issuer) {
            kept.clear();
        }
        Arc::clone(kept.entry(issuer.clone()).or_default())
    }
}

impl Kept {
    /// The keys, fetched if they are not fresh. While one task fetches them, all others go by those
    /// that are kept: an issuer that does not answer delays no more than one token.
    async fn current(&self, issuer: &Issuer) -> Result<Arc<KeySet>, FetchError> {
        if let Some(keys) = self.younger_than(KEYS_FRESH) {
            return Ok(keys);
        }
        let turn = match (self.fetching.try_lock(), self.younger_than(KEYS_KEPT)) {
            (Ok(turn), _) => turn,
            (Err(_), Some(keys)) => return Ok(keys),
            (Err(_), None) => self.fetching.lock().await,
        };
        // Another task may have fetched them meanwhile.
        if let Some(keys) = self.younger_than(KEYS_FRESH) {
            return Ok(keys);
        }
        let failed_at = self.state.lock().failed_at;
        let is_due = failed_at.is_none_or(|at| at.elapsed() >= RETRY_INTERVAL);
        let fetched = match is_due {
            true => self.fetch(issuer).await,
            false => Err(FetchError::Recently),
        };
        drop(turn);
        fetched.or_else(|error| self.younger_than(KEYS_KEPT).ok_or(error))
    }

    /// The keys after a token named one that is not among `known`; `None` if there are no others.
    async fn after_unknown(&self, issuer: &Issuer, known: &Arc<KeySet>) -> Option<Arc<KeySet>> {
        let turn = self.fetching.lock().await;
        {
            let mut state = self.state.lock();
            // Another task may have fetched them meanwhile.
            if let Some((keys, _)) = &state.keys
                && !Arc::ptr_eq(keys, known)
            {
                return Some(Arc::clone(keys));
            }
            if state
                .unknown_at
                .is_some_and(|at| at.elapsed() < FETCH_INTERVAL)
            {
                return None;
            }
            state.unknown_at = Some(Instant::now());
        }
        let fetched = self.fetch(issuer).await;
        drop(turn);
        fetched.ok()
    }

    async fn fetch(&self, issuer: &Issuer) -> Result<Arc<KeySet>, FetchError> {
        let fetched = fetch::keys(issuer).await;
        let mut state = self.state.lock();
        match fetched {
            Ok(keys) => {
                let keys = Arc::new(keys);
                state.keys = Some((Arc::clone(&keys), Instant::now()));
                state.failed_at = None;
                Ok(keys)
            }
            Err(error) => {
                tracing::warn!(issuer = %issuer.url, %error, "cannot fetch the keys of an OIDC issuer");
                state.failed_at = Some(Instant::now());
                Err(error)
            }
        }
    }

    fn younger_than(&self, age_max: Duration) -> Option<Arc<KeySet>> {
        let state = self.state.lock();
        let (keys, at) = state.keys.as_ref()?;
        (at.elapsed() < age_max).then(|| Arc::clone(keys))
    }
}

#[cfg(test)]
mod tests;
