//! A store in memory, for tests: it keeps the whole contract except durability.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use fonn_base::clock::Clock;
use parking_lot::Mutex;

use super::{
    Body, ObjectKey, ObjectMeta, ObjectStore, Operation, PAGE_MAX, Page, StoreError,
    StoreErrorKind, StoreFuture, Suffix, select, select_suffix,
};

/// Objects in a map. Not bounded.
#[derive(Debug, Default)]
pub struct MemoryStore {
    clock: Clock,
    objects: Mutex<BTreeMap<ObjectKey, Object>>,
}

#[derive(Clone, Debug)]
struct Object {
    body: Bytes,
    modified_ms: u64,
}

impl MemoryStore {
    /// An empty store; `clock` gives the times of modification.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self {
            clock,
            objects: Mutex::default(),
        }
    }

    fn object(&self, key: &ObjectKey, operation: Operation) -> Result<Object, StoreError> {
        let object = self.objects.lock().get(key).cloned();
        object.ok_or_else(|| StoreError::new(operation, key.as_str(), StoreErrorKind::NotFound))
    }

    fn write(&self, key: &ObjectKey, body: &Body, is_replacing: bool) -> Result<(), StoreError> {
        let object = Object {
            body: body.to_bytes(),
            modified_ms: self.clock.wall_ms(),
        };
        let mut objects = self.objects.lock();
        if !is_replacing && objects.contains_key(key) {
            let kind = StoreErrorKind::AlreadyExists;
            return Err(StoreError::new(Operation::PutIfAbsent, key.as_str(), kind));
        }
        objects.insert(key.clone(), object);
        Ok(())
    }

    fn page(&self, prefix: &str, after: &str, limit: usize) -> Result<Page, StoreError> {
        if limit == 0 {
            let kind = StoreErrorKind::Invalid;
            return Err(StoreError::new(Operation::List, prefix, kind));
        }
        let is_wanted = |key: &str| key > after && key.starts_with(prefix);
        let objects = self.objects.lock();
        let mut found = objects
            .iter()
            .filter(|(key, _)| is_wanted(key.as_str()))
            .map(|(key, object)| meta(key, object));
        let page: Vec<ObjectMeta> = found.by_ref().take(limit.min(PAGE_MAX)).collect();
        let next = found
            .next()
            .and(page.last().map(|last| last.key.to_string()));
        Ok(Page {
            objects: page,
            next,
        })
    }
}

fn meta(key: &ObjectKey, object: &Object) -> ObjectMeta {
    let size_bytes = object.body.len() as u64;
    ObjectMeta {
        key: key.clone(),
        size_bytes,
        modified_ms: object.modified_ms,
    }
}

fn part(body: &Bytes, selected: &Range<u64>) -> Bytes {
    // Both ends are within the body, which is in memory.
    body.slice(selected.start as usize..selected.end as usize)
}

impl ObjectStore for MemoryStore {
    fn put<'a>(&'a self, key: &'a ObjectKey, body: Body) -> StoreFuture<'a, ()> {
        Box::pin(async move { self.write(key, &body, true) })
    }

    fn put_if_absent<'a>(&'a self, key: &'a ObjectKey, body: Body) -> StoreFuture<'a, ()> {
        Box::pin(async move { self.write(key, &body, false) })
    }

    fn get<'a>(&'a self, key: &'a ObjectKey) -> StoreFuture<'a, Bytes> {
        Box::pin(async move { Ok(self.object(key, Operation::Get)?.body) })
    }

    fn get_range<'a>(&'a self, key: &'a ObjectKey, range: Range<u64>) -> StoreFuture<'a, Bytes> {
        Box::pin(async move {
            let body = self.object(key, Operation::GetRange)?.body;
            let selected = select(&range, body.len() as u64)
                .map_err(|kind| StoreError::new(Operation::GetRange, key.as_str(), kind))?;
            Ok(part(&body, &selected))
        })
    }

    fn get_suffix<'a>(&'a self, key: &'a ObjectKey, len_bytes: u64) -> StoreFuture<'a, Suffix> {
        Box::pin(async move {
            let body = self.object(key, Operation::GetSuffix)?.body;
            let object_size_bytes = body.len() as u64;
            let selected = select_suffix(len_bytes, object_size_bytes)
                .map_err(|kind| StoreError::new(Operation::GetSuffix, key.as_str(), kind))?;
            Ok(Suffix {
                bytes: part(&body, &selected),
                object_size_bytes,
            })
        })
    }

    fn head<'a>(&'a self, key: &'a ObjectKey) -> StoreFuture<'a, ObjectMeta> {
        Box::pin(async move { Ok(meta(key, &self.object(key, Operation::Head)?)) })
    }

    fn delete<'a>(&'a self, key: &'a ObjectKey) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            self.objects.lock().remove(key);
            Ok(())
        })
    }

    fn list<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
        limit: usize,
    ) -> StoreFuture<'a, Page> {
        Box::pin(async move { self.page(prefix, after.unwrap_or_default(), limit) })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use fonn_base::clock::ManualClock;

    use super::*;
    use crate::store::suite;

    #[tokio::test]
    async fn keeps_the_contract_of_stores() {
        suite::run(Arc::new(MemoryStore::default())).await;
    }

    #[tokio::test]
    async fn modification_time_is_that_of_the_clock() {
        let manual = ManualClock::new(5000);
        let store = MemoryStore::new(manual.clock());
        let key = ObjectKey::new("a").unwrap();
        store.put(&key, "1".into()).await.unwrap();
        manual.advance(Duration::from_secs(1));
        assert_eq!(store.head(&key).await.unwrap().modified_ms, 5000);
        store.put(&key, "2".into()).await.unwrap();
        assert_eq!(store.head(&key).await.unwrap().modified_ms, 6000);
    }
}
