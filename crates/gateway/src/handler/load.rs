//! Reads of entries for responses.
//!
//! Invariant: what is read for a response is counted as unread at once, or dropped. A read that
//! waits for room holds no value. It reads the entry again once there is room.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fonn_server::Scope;
use tokio::time::Instant;

use super::long::MANIFEST_COPIES;
use super::{COUNTED_LEN_MIN, Front};
use crate::life::Life;
use crate::outstanding::{Counted, Reader};
use crate::store::{Form, Found, Store};

/// An entry for a response.
pub(super) struct Loaded<S: Store> {
    pub(super) found: Found,
    /// The reader of the response.
    pub(super) reader: Arc<Reader<S>>,
    /// None if the entry is short, or is not to be counted.
    pub(super) counted: Option<Counted<S>>,
}

impl<S: Store> Front<S> {
    /// The entry of a key, which may take so long. Bytes of a manifest are counted among those of
    /// manifests; of other entries as many as `len_of` says.
    pub(super) async fn load(
        &self,
        scope: Scope,
        key: Bytes,
        life: &Arc<Life>,
        deadline: Duration,
        len_of: impl Fn(&Found) -> usize + Send,
    ) -> Option<Loaded<S>> {
        let until = Instant::now() + deadline;
        let store = self.store().clone();
        let mut found = self
            .look_within(deadline, store.get(scope, key.clone()))
            .await?;
        let (reader, len) = match found.form {
            Form::Manifest => {
                let reader = self.0.manifests.reader(self.store(), life);
                (reader, MANIFEST_COPIES * found.bytes.len())
            }
            Form::Value | Form::Packed => (self.reader(life), len_of(&found)),
        };
        let mut counted = None;
        if len >= COUNTED_LEN_MIN {
            counted = reader.try_count(len);
        }
        if len >= COUNTED_LEN_MIN && counted.is_none() {
            let (form, bytes_len) = (found.form, found.bytes.len());
            drop(found);
            let left = until.saturating_duration_since(Instant::now());
            counted = Some(self.count_unread(&reader, len, left).await?);
            let left = until.saturating_duration_since(Instant::now());
            found = self
                .look_within(left, self.store().clone().get(scope, key))
                .await?;
            // Another value was stored meanwhile, and there may be no room for it.
            if found.form != form || found.bytes.len() > bytes_len {
                return None;
            }
        }
        Some(Loaded {
            found,
            reader,
            counted,
        })
    }
}
