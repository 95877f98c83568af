//! A pool of threads for calls that block: files, fsync, long compression.
//!
//! Unlike tokio's own pool it has a fixed number of threads, a name, and a bounded queue that
//! answers [`PoolError::Busy`] when full. Invariant: an accepted job runs, also while the pool is
//! closed and when no caller waits for it any more.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::io;
use std::num::NonZeroUsize;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread;

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use crate::tasks::panic_text;

/// Why a job gives no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// The queue is full; the job was not accepted.
    #[error("the queue of blocking work is full")]
    Busy,
    /// The pool is closed; the job was not accepted.
    #[error("the pool of blocking work is closed")]
    Closed,
    /// The job panicked; it may have done a part of its work.
    #[error("blocking work panicked")]
    Panicked,
}

type Job = Box<dyn FnOnce() + Send>;

/// The threads; cheap to clone. The pool closes when the last clone is dropped.
#[derive(Clone)]
pub struct BlockingPool {
    shared: Arc<Shared>,
    _closer: Arc<Closer>,
}

struct Shared {
    name: &'static str,
    queue_max: usize,
    state: Mutex<State>,
    job_ready: Condvar,
}

struct State {
    queue: VecDeque<Job>,
    open: bool,
}

struct Closer(Arc<Shared>);

impl Drop for Closer {
    fn drop(&mut self) {
        self.0.state.lock().open = false;
        self.0.job_ready.notify_all();
    }
}

impl fmt::Debug for BlockingPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockingPool")
            .field("name", &self.shared.name)
            .field("depth", &self.depth())
            .finish_non_exhaustive()
    }
}

impl BlockingPool {
    /// Starts `threads` threads named `name-0`, `name-1`, …; at most `queue_max` jobs wait for one.
    /// (Linux shows 15 bytes of a name.)
    ///
    /// # Errors
    /// When a thread cannot be started; those that were end by themselves.
    pub fn new(name: &'static str, threads: NonZeroUsize, queue_max: usize) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            name,
            queue_max,
            state: Mutex::new(State {
                queue: VecDeque::new(),
                open: true,
            }),
            job_ready: Condvar::new(),
        });
        let pool = Self {
            _closer: Arc::new(Closer(Arc::clone(&shared))),
            shared,
        };
        for index in 0..threads.get() {
            let shared = Arc::clone(&pool.shared);
            thread::Builder::new()
                .name(format!("{name}-{index}"))
                .spawn(move || shared.work())?;
        }
        Ok(pool)
    }

    /// Queues `job`. The result can be awaited, or dropped: the job runs in any case.
    ///
    /// # Errors
    /// [`PoolError::Busy`] or [`PoolError::Closed`]; the job was dropped unrun.
    pub fn submit<T, F>(&self, job: F) -> Result<Pending<T>, PoolError>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let (tx, rx) = oneshot::channel();
        let name = self.shared.name;
        let job = Box::new(
            move || match std::panic::catch_unwind(AssertUnwindSafe(job)) {
                // There may be no waiting caller any more.
                Ok(result) => drop(tx.send(result)),
                Err(panic) => {
                    tracing::error!(
                        pool = name,
                        panic = panic_text(&*panic),
                        "blocking work panicked"
                    );
                }
            },
        );
        let mut state = self.shared.state.lock();
        if !state.open {
            return Err(PoolError::Closed);
        }
        if state.queue.len() >= self.shared.queue_max {
            return Err(PoolError::Busy);
        }
        state.queue.push_back(job);
        drop(state);
        self.shared.job_ready.notify_one();
        Ok(Pending(rx))
    }

    /// Jobs that wait for a thread.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.shared.state.lock().queue.len()
    }

    /// Jobs that may wait.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.shared.queue_max
    }
}

impl Shared {
    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.queue.pop_front() {
                drop(state);
                job();
                state = self.state.lock();
            } else if state.open {
                self.job_ready.wait(&mut state);
            } else {
                break;
            }
        }
    }
}

/// The result of a job, to be awaited. Dropping it does not stop the job.
#[derive(Debug)]
#[must_use = "await it, or drop it on purpose"]
pub struct Pending<T>(oneshot::Receiver<T>);

impl<T> Future for Pending<T> {
    type Output = Result<T, PoolError>;

    fn poll(mut self: Pin<&mut Self>, ctx: &mut Context<'_>) -> Poll<Self::Output> {
        // The sender is dropped unused only when the job panics.
        Pin::new(&mut self.0)
            .poll(ctx)
            .map(|result| result.map_err(|_| PoolError::Panicked))
    }
}

/// Runs `job` on the pool and waits for its result.
///
/// # Errors
/// [`PoolError`].
///
/// # Cancel safety
/// Cancelling it loses the result; an accepted job is still run.
pub async fn run_blocking<T, F>(pool: &BlockingPool, job: F) -> Result<T, PoolError>
where
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
{
    pool.submit(job)?.await
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    use super::*;

    fn pool(threads: usize, queue_max: usize) -> BlockingPool {
        BlockingPool::new("test", NonZeroUsize::new(threads).unwrap(), queue_max).unwrap()
    }

    /// Occupies one thread; returns once it runs. Dropping or using the sender frees it.
    fn occupy(pool: &BlockingPool) -> SyncSender<()> {
        let (free, wait): (_, Receiver<()>) = sync_channel(1);
        let (started, is_running) = sync_channel(1);
        drop(pool.submit(move || {
            started.send(()).unwrap();
            let _ = wait.recv();
        }));
        is_running.recv().unwrap();
        free
    }

    #[tokio::test]
    async fn results_come_back_from_named_threads() {
        let pool = pool(2, 8);
        let name = run_blocking(&pool, || thread::current().name().map(str::to_owned)).await;
        assert!(["test-0", "test-1"].contains(&name.unwrap().unwrap().as_str()));
    }

    #[tokio::test]
    async fn a_full_queue_answers_busy() {
        let pool = pool(1, 2);
        let free = occupy(&pool);
        let first = pool.submit(|| 1).unwrap();
        let second = pool.submit(|| 2).unwrap();
        assert_eq!(pool.submit(|| 3).unwrap_err(), PoolError::Busy);
        assert_eq!((pool.depth(), pool.capacity()), (2, 2));
        free.send(()).unwrap();
        assert_eq!((first.await, second.await), (Ok(1), Ok(2)));
        assert_eq!(pool.depth(), 0);
    }

    #[tokio::test]
    async fn a_panic_is_the_error_of_its_job_alone() {
        let pool = pool(1, 8);
        let broken = run_blocking(&pool, || panic!("by the test")).await;
        assert_eq!(broken, Err::<(), _>(PoolError::Panicked));
        assert_eq!(run_blocking(&pool, || 7).await, Ok(7));
    }

    #[test]
    fn what_was_accepted_runs_when_the_last_clone_is_dropped_and_then_the_threads_end() {
        let pool = pool(1, 8);
        let shared = Arc::downgrade(&pool.shared);
        let free = occupy(&pool);
        let (tx, rx) = sync_channel(8);
        for index in 0..3 {
            let tx = tx.clone();
            drop(pool.submit(move || tx.send(index).unwrap()));
        }
        drop(tx);
        let clone = pool.clone();
        drop(pool);
        drop(clone);
        free.send(()).unwrap();
        assert_eq!(rx.iter().collect::<Vec<_>>(), [0, 1, 2]);
        while shared.strong_count() > 0 {
            thread::yield_now();
        }
    }
}
