//! One call for many concurrent callers that want the same result.
//!
//! The call runs in a task of its own, so the first caller may leave without stranding the others.
//! A result that stays true is kept for later callers as long as a caller works with it. Until the
//! result is in another tier, a late caller would repeat the call.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::hash::Hash;
use std::sync::{Arc, Weak};

use fonn_base::tasks::{OnShutdown, Tasks};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;

/// Calls in flight, by what they are about.
pub(crate) struct Flights<K: Eq + Hash, T> {
    known: Arc<Known<K, T>>,
}

type Known<K, T> = Mutex<HashMap<K, Weak<Held<K, T>>>>;

/// Keeps a flight, and its result, where others find it.
pub(crate) struct Held<K: Eq + Hash, T> {
    key: K,
    known: Arc<Known<K, T>>,
    result: watch::Receiver<Option<T>>,
}

impl<K: Eq + Hash, T> Held<K, T> {
    /// A later caller makes another call.
    fn leave(&self) {
        let mut known = self.known.lock();
        // Another one may be there by now.
        let is_this = |held: &Weak<Self>| std::ptr::eq(held.as_ptr(), self);
        if known.get(&self.key).is_some_and(is_this) {
            known.remove(&self.key);
        }
    }
}

impl<K: Eq + Hash, T> Drop for Held<K, T> {
    fn drop(&mut self) {
        self.leave();
    }
}

impl<K: Eq + Hash, T> Default for Flights<K, T> {
    fn default() -> Self {
        Self {
            known: Arc::default(),
        }
    }
}

impl<K: Eq + Hash, T> fmt::Debug for Flights<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flights").finish_non_exhaustive()
    }
}

impl<K, T> Flights<K, T>
where
    K: Clone + Eq + Hash + Send + Sync + 'static,
    T: Clone + Send + Sync + 'static,
{
    /// The result of the flight for `key`, with what keeps it there for others if it `stays_true`;
    /// `call` makes one if there is none. No result when the call panicked or was aborted.
    ///
    /// # Cancel safety
    /// Cancelling it loses nothing: the call goes on.
    pub(crate) async fn join<F>(
        &self,
        (runtime, tasks): (&Handle, &Tasks),
        key: K,
        stays_true: fn(&T) -> bool,
        call: impl FnOnce() -> F,
    ) -> (Option<T>, Arc<Held<K, T>>)
    where
        F: Future<Output = T> + Send + 'static,
    {
        let held = {
            let mut known = self.known.lock();
            let present = known.get(&key).and_then(Weak::upgrade);
            if let Some(held) = present {
                held
            } else {
                let (done, result) = watch::channel(None);
                let held = Arc::new(Held {
                    key: key.clone(),
                    known: Arc::clone(&self.known),
                    result,
                });
                known.insert(key, Arc::downgrade(&held));
                let (call, holds) = (call(), Arc::clone(&held));
                tasks.spawn_on(runtime, "cold-read", OnShutdown::Abort, async move {
                    let value = call.await;
                    if !stays_true(&value) {
                        holds.leave();
                    }
                    // Callers that wait hold it themselves, and it is gone when the last one is.
                    drop(holds);
                    done.send_replace(Some(value));
                });
                held
            }
        };
        let value = match held.result.clone().wait_for(Option::is_some).await {
            Ok(value) => value.clone(),
            Err(_) => None,
        };
        (value, held)
    }

    /// Calls in flight, and those whose result a caller still works with.
    #[cfg(test)]
    fn count(&self) -> usize {
        self.known.lock().len()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn all_callers_get_the_result_of_one_call_even_if_the_first_goes_away() {
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
                let here = Handle::current();
                flights.join((&here, &tasks), 1, |_| true, call).await.0
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
    async fn a_call_that_panics_leaves_no_caller_waiting() {
        let flights = Flights::<u32, u32>::default();
        let tasks = Tasks::new();
        let here = Handle::current();
        let broken = flights
            .join(
                (&here, &tasks),
                1,
                |_| true,
                || async { panic!("by the test") },
            )
            .await;
        assert_eq!(broken.0, None);
        drop(broken);
        let next = flights.join((&here, &tasks), 1, |_| true, || async { 3 });
        assert_eq!(next.await.0, Some(3));
    }

    #[tokio::test]
    async fn a_result_that_stays_true_is_there_as_long_as_a_caller_holds_it() {
        let flights = Flights::<u32, u32>::default();
        let tasks = Tasks::new();
        let here = Handle::current();
        let join = |value: u32| {
            let is_even = |value: &u32| value.is_multiple_of(2);
            flights.join((&here, &tasks), 1, is_even, move || async move { value })
        };
        let (first, held) = join(2).await;
        assert_eq!(first, Some(2));
        let (second, held_too) = join(4).await;
        assert_eq!(second, Some(2), "it is the one of before");
        drop((held, held_too));
        let (third, held) = join(3).await;
        assert_eq!(third, Some(3));
        // No other caller gets it, and its holder ends no other flight.
        let (fourth, held_too) = join(4).await;
        assert_eq!(fourth, Some(4));
        drop(held);
        assert_eq!(join(6).await.0, Some(4));
        drop(held_too);
        assert_eq!(flights.count(), 0);
    }
}
