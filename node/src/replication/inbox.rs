//! What a task has to do, in order.
//!
//! It has no bound of its own, because nothing in it may be dropped and the core cannot wait. Its
//! sources are bounded: writes that wait for other members, groups of slots that are copied, and
//! the beat.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tokio::sync::Notify;

#[derive(Debug)]
pub(super) struct Inbox<T> {
    items: Mutex<VecDeque<T>>,
    bell: Notify,
}

impl<T> Default for Inbox<T> {
    fn default() -> Self {
        Self {
            items: Mutex::default(),
            bell: Notify::new(),
        }
    }
}

impl<T> Inbox<T> {
    pub(super) fn put(&self, item: T) {
        self.items.lock().push_back(item);
        self.bell.notify_one();
    }

    /// The next item, if there is one now.
    fn take(&self) -> Option<T> {
        self.items.lock().pop_front()
    }

    /// All items of this moment.
    pub(super) fn take_all(&self) -> VecDeque<T> {
        std::mem::take(&mut *self.items.lock())
    }

    /// Waits for the next item. For one task.
    ///
    /// # Cancel safety
    /// Cancelling it loses nothing.
    pub(super) async fn next(&self) -> T {
        loop {
            if let Some(item) = self.take() {
                return item;
            }
            self.bell.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn what_was_put_comes_in_order_and_is_waited_for() {
        let inbox = Arc::new(Inbox::default());
        let putting = Arc::clone(&inbox);
        let put = tokio::spawn(async move {
            for number in 0..100 {
                putting.put(number);
                tokio::task::yield_now().await;
            }
        });
        for number in 0..100 {
            // Given up and begun anew, it loses nothing.
            let look = tokio::time::timeout(Duration::ZERO, inbox.next()).await;
            let next = match look {
                Ok(item) => item,
                Err(_) => inbox.next().await,
            };
            assert_eq!(next, number);
        }
        put.await.unwrap();
        inbox.put(100);
        inbox.put(101);
        assert_eq!(inbox.take_all(), [100, 101]);
        assert_eq!(inbox.take(), None);
    }
}
