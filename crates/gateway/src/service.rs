//! The store of a node or a router: its service for clients.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use fonn_auth::Source;
use fonn_proto::command::{MANIFEST_FLAGS, PACKED_FLAGS};
use fonn_proto::outcome::KEPT;
use fonn_proto::outcome::Value;
use fonn_proto::{Command, Delete, ExpirySpec, Failure, Get, Outcome, Store as Set, StoreMode};
use fonn_server::{
    Budget as _, Event, Reservation, Scope, Service, Shared, Tuning, carry_out_in, hits_in,
};

use crate::store::{Charge, Form, Found, Probed, PutMode, PutOutcome, Store};

/// The part of the budget that unread responses may take: one of so many. The rest is for the
/// client port.
const UNREAD_SHARES: usize = 2;

/// What a socket server serves, as a [`Store`]. A key that another member owns is forwarded as for
/// clients of the socket server.
pub struct Served<S>(Arc<Shared<S>>);

impl<S> Served<S> {
    /// What `shared` serves.
    #[must_use]
    pub const fn new(shared: Arc<Shared<S>>) -> Self {
        Self(shared)
    }
}

impl<S> Clone for Served<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S> fmt::Debug for Served<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Served").finish_non_exhaustive()
    }
}

impl<S: Service> Served<S> {
    /// Has a command executed, and waits until its outcome is final.
    async fn execute(
        &self,
        scope: Scope,
        command: &Command<'_>,
        source: Option<&Bytes>,
    ) -> Outcome<'static> {
        carry_out_in(&*self.0.service, scope, command, source).await
    }
}

/// What is said of an outcome that the command cannot have.
fn unexpected<T>(outcome: &Outcome<'_>) -> Result<T, Failure> {
    match outcome {
        Outcome::Failed(failure) => Err(*failure),
        _ => Err(Failure::Unavailable),
    }
}

const fn flags_of(form: Form) -> u32 {
    match form {
        Form::Value => 0,
        Form::Manifest => MANIFEST_FLAGS,
        Form::Packed => PACKED_FLAGS,
    }
}

const fn form_of(flags: u32) -> Form {
    match flags {
        MANIFEST_FLAGS => Form::Manifest,
        PACKED_FLAGS => Form::Packed,
        _ => Form::Value,
    }
}

/// A read that moves no value.
fn probe_of(key: &[u8]) -> Get<'_> {
    Get {
        want_value: false,
        ..Get::new(key)
    }
}

/// What a hit tells of its entry.
fn probed(outcome: &Outcome<'_>) -> Option<Probed> {
    match outcome {
        Outcome::Hit(hit) => Some(Probed {
            len: hit.value_len,
            form: form_of(hit.flags),
        }),
        _ => None,
    }
}

impl<S: Service> Store for Served<S> {
    type Charge<'s> = Reservation<'s, S>;

    fn value_len_max(&self) -> usize {
        self.0.value_len_max()
    }

    async fn get(self, scope: Scope, key: Bytes) -> Result<Option<Found>, Failure> {
        let command = Command::Get(Get::new(&key));
        match self.execute(scope, &command, None).await {
            Outcome::Hit(hit) => Ok(Some(Found {
                bytes: match hit.value {
                    Value::Shared(bytes) => bytes,
                    Value::Copied(bytes) => Bytes::copy_from_slice(bytes),
                },
                form: form_of(hit.flags),
                version: hit.version,
            })),
            Outcome::Miss => Ok(None),
            outcome => unexpected(&outcome),
        }
    }

    async fn probe(self, scope: Scope, key: Bytes) -> Result<Option<Probed>, Failure> {
        match self
            .execute(scope, &Command::Get(probe_of(&key)), None)
            .await
        {
            Outcome::Miss => Ok(None),
            outcome => match probed(&outcome) {
                Some(probed) => Ok(Some(probed)),
                None => unexpected(&outcome),
            },
        }
    }

    fn probe_at_once(&self, scope: Scope, keys: &[Bytes]) -> Vec<Option<Probed>> {
        let probes = keys.iter().map(|key| probe_of(key));
        hits_in(&*self.0.service, scope, probes, probed)
    }

    async fn put(
        self,
        scope: Scope,
        key: Bytes,
        bytes: Bytes,
        form: Form,
        mode: PutMode,
    ) -> Result<PutOutcome, Failure> {
        let (mode, compare) = match mode {
            PutMode::Replace => (StoreMode::Set, None),
            PutMode::Keep => (StoreMode::Add, None),
            PutMode::Over(version) => (StoreMode::Set, Some(version)),
        };
        let command = Command::Store(Set {
            mode,
            compare,
            ..Set::set(&key, &bytes, flags_of(form), ExpirySpec::Never)
        });
        match self.execute(scope, &command, Some(&bytes)).await {
            Outcome::Stored(stored) if stored.version == KEPT => Ok(PutOutcome::Kept),
            Outcome::Stored(_) => Ok(PutOutcome::Stored),
            Outcome::NotStored(_) | Outcome::Exists | Outcome::NotFound => Ok(PutOutcome::Kept),
            outcome => unexpected(&outcome),
        }
    }

    async fn delete(self, scope: Scope, key: Bytes) -> Result<bool, Failure> {
        let command = Command::Delete(Delete::new(&key));
        match self.execute(scope, &command, None).await {
            Outcome::Deleted { .. } => Ok(true),
            Outcome::NotFound => Ok(false),
            outcome => unexpected(&outcome),
        }
    }

    async fn charge(&self, source: Source, bytes: usize) -> Option<Reservation<'_, S>> {
        if let Some(made) = Reservation::try_make(&self.0, Some(source), bytes) {
            return Some(made);
        }
        Reservation::make(&self.0, Some(source), bytes, 0).await
    }

    fn is_contended(&self) -> bool {
        self.0.is_contended()
    }

    fn tuning(&self) -> &Tuning {
        self.0.tuning()
    }

    fn unread_max(&self) -> usize {
        self.0.service.budget().bytes_max() / UNREAD_SHARES
    }

    fn hold(&self, bytes: usize) {
        self.0.service.budget().hold(bytes);
    }

    fn let_go(&self, bytes: usize) {
        self.0.service.budget().let_go(bytes);
    }

    fn count(&self, event: Event, n: u64) {
        self.0.service.count(event, n);
    }

    fn take_place(&self) -> bool {
        self.0.take_place()
    }

    fn give_back_place(&self) {
        self.0.give_back_place();
    }
}

impl<S: Service> Charge for Reservation<'_, S> {
    async fn grow(&mut self, bytes: usize) -> bool {
        self.try_grow(bytes) || Reservation::grow(self, bytes).await
    }
}
