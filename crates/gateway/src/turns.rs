//! Turns at work that only a few calls may do at a time, shared by namespaces.
//!
//! A namespace has no more calls in the queue than may work at a time. The others of it wait behind
//! these, so a call of another namespace is behind a few and not behind all.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fonn_proto::Space;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// The queue.
#[derive(Debug)]
pub(crate) struct Turns {
    at_once: usize,
    all: Arc<Semaphore>,
    /// The calls of each namespace that has any.
    lines: Mutex<HashMap<u32, Arc<Semaphore>>>,
}

/// A call may work until this is dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    _of_all: OwnedSemaphorePermit,
    _of_namespace: OwnedSemaphorePermit,
}

impl Turns {
    /// Turns of which so many may be taken at a time.
    pub(crate) fn new(at_once: usize) -> Self {
        Self {
            at_once,
            all: Arc::new(Semaphore::new(at_once)),
            lines: Mutex::default(),
        }
    }

    /// Waits for a turn of a call that works in `space`. None if that takes longer than `wait_max`.
    ///
    /// # Cancel safety
    /// Cancelled, the call loses its place.
    pub(crate) async fn take(&self, space: Space, wait_max: Duration) -> Option<Turn> {
        let line = self.line(space.namespace());
        let turn = timeout(wait_max, async {
            let of_namespace = line.acquire_owned().await.ok()?;
            let of_all = Arc::clone(&self.all).acquire_owned().await.ok()?;
            Some(Turn {
                _of_all: of_all,
                _of_namespace: of_namespace,
            })
        });
        turn.await.ok().flatten()
    }

    fn line(&self, namespace: u32) -> Arc<Semaphore> {
        let mut lines = self.lines.lock();
        // A line that no call holds or waits in.
        lines.retain(|_, line| Arc::strong_count(line) > 1);
        let line = lines.entry(namespace);
        Arc::clone(line.or_insert_with(|| Arc::new(Semaphore::new(self.at_once))))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    fn space(namespace: u32) -> Space {
        Space::new(namespace, 0)
    }

    #[tokio::test(start_paused = true)]
    async fn a_namespace_waits_behind_few_calls_of_another_one() {
        let turns = Turns::new(2);
        let take = |namespace| Box::pin(turns.take(space(namespace), LONG));
        let first = [take(1).await.unwrap(), take(1).await.unwrap()];
        let mut greedy: Vec<_> = (0..100).map(|_| take(1)).collect();
        assert!(greedy.iter_mut().all(|it| it.now_or_never().is_none()));
        let mut other = take(2);
        assert!((&mut other).now_or_never().is_none());
        let [one, two] = first;
        drop(one);
        let other = other.now_or_never().flatten();
        assert!(other.is_some());
        drop((two, other));
        // Both turns are free for the calls that wait.
        let served = greedy
            .iter_mut()
            .filter_map(|it| it.now_or_never().flatten());
        assert_eq!(served.collect::<Vec<_>>().len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_waits_for_so_long_and_leaves_nothing_behind() {
        let turns = Turns::new(1);
        let held = turns.take(space(1), LONG).await.unwrap();
        assert!(turns.take(space(1), LONG).await.is_none());
        assert!(turns.take(space(2), LONG).await.is_none());
        drop(held);
        assert!(turns.take(space(3), LONG).await.is_some());
        assert_eq!(turns.lines.lock().len(), 1);
    }
}
