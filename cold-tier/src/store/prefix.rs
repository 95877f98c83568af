//! A store inside a store: all its keys lie below a prefix.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::{
    Body, Continuation, ObjectKey, ObjectMeta, ObjectStore, Operation, Page, Pieces, StoreError,
    StoreErrorKind, StoreFuture, Streamed, Suffix, Upload,
};

/// The objects of `inner` whose key begins with a prefix and a slash, named without them. Errors
/// name the whole key.
#[derive(Debug)]
pub struct PrefixStore {
    inner: Arc<dyn ObjectStore>,
    /// Ends with a slash.
    prefix: String,
}

impl PrefixStore {
    /// The part of `inner` below `prefix`.
    #[must_use]
    pub fn new(inner: Arc<dyn ObjectStore>, prefix: &ObjectKey) -> Self {
        Self {
            inner,
            prefix: format!("{prefix}/"),
        }
    }

    fn outer(&self, operation: Operation, key: &ObjectKey) -> Result<ObjectKey, StoreError> {
        let text = self.outer_text(key.as_str());
        // Both parts are keys, so together they can only be too long.
        ObjectKey::new(&text).map_err(|cause| {
            StoreError::new(operation, text, StoreErrorKind::Invalid).with_source(cause)
        })
    }

    fn outer_text(&self, text: &str) -> String {
        format!("{}{text}", self.prefix)
    }

    /// The key without the prefix; `None` for a key outside of it.
    fn inner_key(&self, key: &ObjectKey) -> Option<ObjectKey> {
        ObjectKey::new(key.as_str().strip_prefix(&self.prefix)?).ok()
    }

    fn inner_meta(&self, meta: ObjectMeta) -> Option<ObjectMeta> {
        let key = self.inner_key(&meta.key)?;
        Some(ObjectMeta { key, ..meta })
    }
}

impl ObjectStore for PrefixStore {
    fn put<'a>(&'a self, key: &'a ObjectKey, body: Body) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let key = self.outer(Operation::Put, key)?;
            self.inner.put(&key, body).await
        })
    }

    fn put_if_absent<'a>(&'a self, key: &'a ObjectKey, body: Body) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let key = self.outer(Operation::PutIfAbsent, key)?;
            self.inner.put_if_absent(&key, body).await
        })
    }

    fn get<'a>(&'a self, key: &'a ObjectKey) -> StoreFuture<'a, Bytes> {
        Box::pin(async move {
            let key = self.outer(Operation::Get, key)?;
            self.inner.get(&key).await
        })
    }

    fn get_range<'a>(&'a self, key: &'a ObjectKey, range: Range<u64>) -> StoreFuture<'a, Bytes> {
        Box::pin(async move {
            let key = self.outer(Operation::GetRange, key)?;
            self.inner.get_range(&key, range).await
        })
    }

    fn stream_range<'a>(
        &'a self,
        key: &'a ObjectKey,
        range: Range<u64>,
        to: &'a Pieces,
    ) -> StoreFuture<'a, Streamed> {
        Box::pin(async move {
            let key = self.outer(Operation::GetRange, key)?;
            self.inner.stream_range(&key, range, to).await
        })
    }

    fn get_suffix<'a>(&'a self, key: &'a ObjectKey, len_bytes: u64) -> StoreFuture<'a, Suffix> {
        Box::pin(async move {
            let key = self.outer(Operation::GetSuffix, key)?;
            self.inner.get_suffix(&key, len_bytes).await
        })
    }

    fn head<'a>(&'a self, key: &'a ObjectKey) -> StoreFuture<'a, ObjectMeta> {
        Box::pin(async move {
            let outer = self.outer(Operation::Head, key)?;
            let meta = self.inner.head(&outer).await?;
            let key = key.clone();
            Ok(ObjectMeta { key, ..meta })
        })
    }

    fn delete<'a>(&'a self, key: &'a ObjectKey) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let key = self.outer(Operation::Delete, key)?;
            self.inner.delete(&key).await
        })
    }

    fn list<'a>(
        &'a self,
        prefix: &'a str,
        from: Option<&'a Continuation>,
        limit: usize,
    ) -> StoreFuture<'a, Page> {
        Box::pin(async move {
            let prefix = self.outer_text(prefix);
            let from = from.map(|from| Continuation::new(self.outer_text(from.as_str())));
            let page = self.inner.list(&prefix, from.as_ref(), limit).await?;
            let objects = page.objects.into_iter();
            let next = page.next.as_ref().map(Continuation::as_str);
            let next = next.and_then(|next| next.strip_prefix(&self.prefix));
            Ok(Page {
                objects: objects.filter_map(|meta| self.inner_meta(meta)).collect(),
                next: next.map(Continuation::new),
            })
        })
    }

    fn list_uploads<'a>(&'a self, prefix: &'a str) -> StoreFuture<'a, Vec<Upload>> {
        Box::pin(async move {
            let uploads = self.inner.list_uploads(&self.outer_text(prefix)).await?;
            let uploads = uploads.into_iter().filter_map(|upload| {
                let key = self.inner_key(&upload.key)?;
                Some(Upload { key, ..upload })
            });
            Ok(uploads.collect())
        })
    }

    fn abort_upload<'a>(&'a self, upload: &'a Upload) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let upload = Upload {
                key: self.outer(Operation::AbortUpload, &upload.key)?,
                ..upload.clone()
            };
            self.inner.abort_upload(&upload).await
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{MemoryStore, suite};

    fn key(text: &str) -> ObjectKey {
        ObjectKey::new(text).unwrap()
    }

    #[tokio::test]
    async fn keeps_the_contract_of_stores_and_touches_nothing_else() {
        let bucket = Arc::new(MemoryStore::default());
        for foreign in ["suite/list/a", "pre", "pre/suite", "pre/fix2/suite/list/b"] {
            bucket.put(&key(foreign), "x".into()).await.unwrap();
        }
        let store = PrefixStore::new(Arc::clone(&bucket) as _, &key("pre/fix"));
        suite::run(Arc::new(store)).await;
        let page = bucket.list("", None, 1000).await.unwrap();
        let foreign = page.objects.iter().map(|meta| meta.key.as_str());
        let foreign: Vec<&str> = foreign.filter(|key| !key.starts_with("pre/fix/")).collect();
        assert_eq!(
            foreign,
            ["pre", "pre/fix2/suite/list/b", "pre/suite", "suite/list/a"]
        );
    }

    #[tokio::test]
    async fn keys_that_become_too_long_are_invalid() {
        let long = format!("{}/a", "x".repeat(200));
        let prefix = key(&[long.as_str(); 4].join("/"));
        let store = PrefixStore::new(Arc::new(MemoryStore::default()), &prefix);
        store.put(&key("a"), "x".into()).await.unwrap();
        let too_long = key(&[long.as_str(); 2].join("/"));
        let error = store.put(&too_long, "x".into()).await.unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::Invalid, "{error:?}");
    }
}
