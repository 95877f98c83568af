//! Long values in the store: an entry with a manifest, and chunks as blobs of the content-addressed
//! store.
//!
//! Invariant: a chunk is sent only after its digest was verified, since clients of other protocols
//! may store what they like under its key.

mod read;
mod write;

use bytes::Bytes;
use fonn_reapi::{Digest, Instance};
use fonn_server::Scope;

pub(super) use self::read::ranged;
pub(super) use self::write::LongWrite;
use super::Front;
use crate::long::{Chunk, Manifest};
use crate::metrics::LostRead;
use crate::route::{Dialect, Route};
use crate::store::{Form, Store};

/// A long value, and where its chunks are.
#[derive(Clone, Debug)]
pub(super) struct Long {
    pub(super) scope: Scope,
    /// The instance whose blobs the chunks are.
    pub(super) instance: Instance,
    pub(super) manifest: Manifest,
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
    ) -> Option<Long> {
        let manifest = Manifest::parse(bytes);
        if manifest.is_none() {
            self.figures().lost(LostRead::Malformed);
        }
        Some(Long {
            scope,
            instance,
            manifest: manifest?,
        })
    }

    /// The long value of `key`; `None` if its entry is another one.
    pub(super) async fn long_of(
        &self,
        scope: Scope,
        instance: Instance,
        key: Bytes,
    ) -> Option<Long> {
        let store = self.store().clone();
        let found = self.look(store.get(scope, key)).await?;
        match found.form {
            Form::Manifest => self.parse_long(scope, instance, &found.bytes),
            Form::Value | Form::Packed => None,
        }
    }

    /// The same, if all its chunks are there.
    pub(super) async fn whole_long(
        &self,
        scope: Scope,
        instance: Instance,
        key: Bytes,
    ) -> Option<Long> {
        let long = self.long_of(scope, instance, key).await?;
        let wanted = 0..long.manifest.len();
        self.is_whole(&long, wanted).await.then_some(long)
    }
}
