//! One call for many who want the same thing at the same time.
//!
//! The call runs in a task of its own: whoever asked first may go away without stranding the others.

use std::collections::HashMap;
use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;

use fonn_runtime::tasks::{OnShutdown, Tasks};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;

type Waiting<K, T> = Mutex<HashMap<K, watch::Receiver<Option<T>>>>;

/// Calls in flight, by what they are about.
#[derive(Debug)]
pub(crate) struct Flights<K, T> {
    waiting: Arc<Waiting<K, T>>,
}

impl<K, T> Default for Flights<K, T> {
    fn default() -> Self {
        Self {
            waiting: Arc::default(),
        }
    }
}

/// Removes a flight from the map however its task ends.
struct Landing<K: Eq + Hash, T> {
    key: K,
    waiting: Arc<Waiting<K, T>>,
}

impl<K: Eq + Hash, T> Drop for Landing<K, T> {
    fn drop(&mut self) {
        self.waiting.lock().remove(&self.key);
    }
}

impl<K, T> Flights<K, T>
where
    K: Clone + Eq + Hash + Send + 'static,
    T: Clone + Send + Sync + 'static,
{
    /// The result of the flight for `key`; `call` makes one if there is none. None when the call
    /// panicked or was aborted.
    ///
    /// # Cancel safety
    /// Cancelling it loses nothing: the call goes on.
    pub(crate) async fn join<F>(
        &self,
        (runtime, tasks): (&Handle, &Tasks),
        key: K,
        call: impl FnOnce() -> F,
    ) -> Option<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let mut result = {
            let mut waiting = self.waiting.lock();
            if let Some(result) = waiting.get(&key) {
                result.clone()
            } else {
                let (done, result) = watch::channel(None);
                waiting.insert(key.clone(), result.clone());
                let waiting = Arc::clone(&self.waiting);
                let landing = Landing { key, waiting };
                let call = call();
                tasks.spawn_on(runtime, "cold-read", OnShutdown::Abort, async move {
                    let value = call.await;
                    // Out of the map first: who comes from now on wants a fresh answer.
                    drop(landing);
                    done.send_replace(Some(value));
                });
                result
            }
        };
        match result.wait_for(Option::is_some).await {
            Ok(value) => value.clone(),
            Err(_) => None,
        }
    }

    /// Calls in flight.
    pub(crate) fn count(&self) -> usize {
        self.waiting.lock().len()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn everybody_gets_the_result_of_one_call_even_if_the_first_goes_away() {
        let flights = Arc::new(Flights::<u32, u32>::default());
        let tasks = Tasks::new();
        let calls = Arc::new(AtomicUsize::new(0));
        let (go, wait) = oneshot::channel::<()>();
        let wait = Arc::new(Mutex::new(Some(wait)));
        let ask = || {
            let (flights, tasks) = (Arc::clone(&flights), tasks.clone());
            let (calls, wait) = (Arc::clone(&calls), Arc::clone(&wait));
            tokio::spawn(async move {
                let call = || async move {
                    calls.fetch_add(1, Ordering::Relaxed);
                    let wait = wait.lock().take().unwrap();
                    wait.await.unwrap();
                    7
                };
                flights.join((&Handle::current(), &tasks), 1, call).await
            })
        };
        let first = ask();
        tokio::task::yield_now().await;
        first.abort();
        assert!(first.await.is_err());
        let others: Vec<_> = (0..100).map(|_| ask()).collect();
        tokio::task::yield_now().await;
        go.send(()).unwrap();
        for other in others {
            assert_eq!(other.await.unwrap(), Some(7));
        }
        assert_eq!(calls.load(Ordering::Relaxed), 1);
        assert_eq!(flights.count(), 0);
    }

    #[tokio::test]
    async fn a_call_that_panics_leaves_nobody_waiting() {
        let flights = Flights::<u32, u32>::default();
        let tasks = Tasks::new();
        let here = Handle::current();
        let broken = flights
            .join((&here, &tasks), 1, || async { panic!("by the test") })
            .await;
        assert_eq!(broken, None);
        assert_eq!(
            flights.join((&here, &tasks), 1, || async { 3 }).await,
            Some(3)
        );
    }
}
