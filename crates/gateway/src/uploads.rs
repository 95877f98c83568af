//! Uploads of one blob at a time: the first that is stored ends the others.
//!
//! Each receives its own bytes, so a slow client never holds up another one.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use fonn_proto::{Overlay, Space};
use fonn_server::Scope;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

/// Where an upload is stored.
type Place = (Space, Option<Overlay>, Bytes);

/// The uploads that are under way, by place. Each place has as many references besides its own as
/// it has uploads.
#[derive(Debug, Default)]
pub(crate) struct Uploads(Mutex<HashMap<Place, Arc<Notify>>>);

/// An upload that is under way, until it is dropped.
#[derive(Debug)]
pub(crate) struct Upload<'u> {
    uploads: &'u Uploads,
    place: Place,
    stored: Arc<Notify>,
}

impl Uploads {
    /// Begins the upload of `key`.
    pub(crate) fn begin(&self, scope: &Scope, key: Bytes) -> Upload<'_> {
        let place = (scope.space, scope.overlay, key);
        let mut under_way = self.0.lock();
        let stored = Arc::clone(under_way.entry(place.clone()).or_default());
        Upload {
            uploads: self,
            place,
            stored,
        }
    }

    /// Blobs that are being uploaded.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.0.lock().len()
    }
}

impl Upload<'_> {
    /// Waits until another upload of the same blob is stored, from this call on.
    pub(crate) fn stored_by_another(&self) -> OwnedNotified {
        Arc::clone(&self.stored).notified_owned()
    }

    /// Ends the other uploads of the blob, which is stored.
    pub(crate) fn end_others(&self) {
        self.stored.notify_waiters();
    }
}

impl Drop for Upload<'_> {
    fn drop(&mut self) {
        let mut under_way = self.uploads.0.lock();
        let others = |stored: &Arc<Notify>| Arc::strong_count(stored) > 2;
        if under_way.get(&self.place).is_some_and(|it| !others(it)) {
            under_way.remove(&self.place);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn the_first_that_is_stored_ends_the_others_of_the_same_blob() {
        let (uploads, scope) = (Uploads::default(), Scope::default());
        let begin = |key| uploads.begin(&scope, Bytes::from_static(key));
        let [first, second, other] = [b"a", b"a", b"b"].map(|key| begin(key));
        let (mut ends, mut goes_on) = (
            Box::pin(second.stored_by_another()),
            Box::pin(other.stored_by_another()),
        );
        assert_eq!((&mut ends).now_or_never(), None);
        first.end_others();
        assert_eq!((&mut ends).now_or_never(), Some(()));
        assert_eq!((&mut goes_on).now_or_never(), None);
        // What begins later has not been told.
        assert_eq!(second.stored_by_another().now_or_never(), None);
    }

    #[test]
    fn what_is_over_is_forgotten() {
        let (uploads, scope) = (Uploads::default(), Scope::default());
        let begin = || uploads.begin(&scope, Bytes::from_static(b"a"));
        let (first, second) = (begin(), begin());
        drop(first);
        assert_eq!(uploads.len(), 1);
        drop(second);
        assert_eq!(uploads.len(), 0);
    }
}
