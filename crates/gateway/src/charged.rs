//! The memory of one request.

use fonn_auth::Source;

use crate::store::{Charge as _, Store};

/// Memory that is charged for one request from its first bytes on, and given back when dropped.
///
/// What a request holds is one charge that grows. With a second charge the request could wait for
/// memory that it holds itself.
pub(crate) struct Charged<'r, S: Store> {
    store: &'r S,
    source: Source,
    charge: Option<S::Charge<'r>>,
    bytes: usize,
}

impl<'r, S: Store> Charged<'r, S> {
    /// Nothing is charged yet to the client at `source`.
    pub(crate) fn none(store: &'r S, source: Source) -> Self {
        Self {
            store,
            source,
            charge: None,
            bytes: 0,
        }
    }

    /// Bytes that are charged.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Charges `more` bytes. Waits a while for them; false if they are not there.
    pub(crate) async fn grow(&mut self, more: usize) -> bool {
        let is_charged = match &mut self.charge {
            Some(charge) => charge.grow(more).await,
            None => {
                self.charge = self.store.charge(self.source, more).await;
                self.charge.is_some()
            }
        };
        if is_charged {
            self.bytes += more;
        }
        is_charged
    }
}
