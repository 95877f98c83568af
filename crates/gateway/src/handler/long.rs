//! Long values in the store: an entry with a manifest, and chunks as blobs of the content-addressed
//! store.
//!
//! Invariant: a chunk is sent only after its digest was verified, since clients of other protocols
//! may store what they like under its key.

mod read;
mod write;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fonn_reapi::{Digest, Instance};
use fonn_server::Scope;
use tokio::time::timeout;

pub(super) use self::read::ranged;
pub(super) use self::write::LongWrite;
use super::Front;
use crate::life::Life;
use crate::long::{Chunk, Manifest};
use crate::metrics::LostRead;
use crate::outstanding::Counted;
use crate::route::{Dialect, Route};
use crate::store::{Form, Store};

/// The part of what responses may leave unread that lists of chunks may hold besides: one of so
/// many. They last as long as their value is read, so they have a part of their own.
pub(super) const MANIFEST_SHARES: usize = 4;

/// What a list of chunks takes, in multiples of its entry, while the chunks are looked for.
pub(super) const MANIFEST_COPIES: usize = 2;

/// Lists of chunks that are looked at at once without reading their value, and how long a look
/// waits for its turn.
pub(super) const LISTS_MAX: usize = 16;
const LIST_WAIT_MAX: Duration = Duration::from_secs(10);

/// A long value, and where its chunks are.
#[derive(Debug)]
pub(super) struct Long<S: Store> {
    pub(super) scope: Scope,
    /// The instance whose blobs the chunks are.
    pub(super) instance: Instance,
    pub(super) manifest: Manifest,
    /// The memory of the manifest; none if that is short, or is charged to a call.
    pub(super) counted: Option<Counted<S>>,
}

/// The instance whose blobs the chunks of a route's value are.
pub(super) fn instance_of(route: &Route) -> Instance {
    let instance = match route.dialect {
        Dialect::BazelCas => Instance::of_key(&route.key, "cas"),
        _ => None,
    };
    instance.unwrap_or_default()
}

/// The digest of a chunk.
pub(super) fn digest_of(chunk: &Chunk) -> Digest {
    Digest::of_sha256(&chunk.digest, chunk.len.into())
}

impl<S: Store> Front<S> {
    /// Reads the manifest of a long value.
    pub(super) fn parse_long(
        &self,
        scope: Scope,
        instance: Instance,
        bytes: &Bytes,
        counted: Option<Counted<S>>,
    ) -> Option<Long<S>> {
        let manifest = Manifest::parse(bytes);
        if manifest.is_none() {
            self.figures().lost(LostRead::Malformed);
        }
        Some(Long {
            scope,
            instance,
            manifest: manifest?,
            counted,
        })
    }

    /// The long value of `key`; `None` if its entry is another one.
    pub(super) async fn long_of(
        &self,
        scope: Scope,
        instance: Instance,
        key: Bytes,
    ) -> Option<Long<S>> {
        let store = self.store().clone();
        let found = self.look(store.get(scope, key)).await?;
        match found.form {
            Form::Manifest => self.parse_long(scope, instance, &found.bytes, None),
            Form::Value | Form::Packed => None,
        }
    }

    /// The same for a response.
    pub(super) async fn load_long(
        &self,
        scope: Scope,
        instance: Instance,
        key: Bytes,
        life: &Arc<Life>,
    ) -> Option<Long<S>> {
        let deadline = self.options().deadline;
        let loaded = self.load(scope, key, life, deadline, |_| 0).await?;
        let found = loaded.found;
        match found.form {
            Form::Manifest => self.parse_long(scope, instance, &found.bytes, loaded.counted),
            Form::Value | Form::Packed => None,
        }
    }

    /// As [`Front::long_of`], if all its chunks are there. A few are looked at in a turn: many
    /// requests may ask for lists of megabytes.
    pub(super) async fn whole_long(
        &self,
        scope: Scope,
        instance: Instance,
        key: Bytes,
    ) -> Option<Long<S>> {
        let turn = timeout(LIST_WAIT_MAX, self.0.lists.acquire()).await;
        let Ok(Ok(_turn)) = turn else {
            self.figures().lost(LostRead::Busy);
            return None;
        };
        let long = self.long_of(scope, instance, key).await?;
        let wanted = 0..long.manifest.len();
        self.is_whole(&long, wanted).await.then_some(long)
    }
}
