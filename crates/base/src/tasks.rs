//! Tasks with a name and a rule for the end.
//!
//! Invariant: a task that was spawned here either finished, or is known by name; none is forgotten.
//! A panic in one is logged, counted as a failure of the group, and never silent.

use std::collections::HashMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tracing::Instrument;

use crate::boxed::BoxFuture;

/// What [`Tasks::finish`] does with a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnShutdown {
    /// Waits for it: it watches the shutdown itself, or leaves something torn when cut off.
    Wait,
    /// Aborts it: nothing is lost.
    Abort,
}

/// A group of tasks; cheap to clone. Usable from several runtimes at once.
#[derive(Clone, Debug)]
pub struct Tasks(Arc<Group>);

#[derive(Debug)]
struct Group {
    state: Mutex<State>,
    /// The number of tasks alive.
    alive: watch::Sender<usize>,
    /// The first task that panicked.
    failure: watch::Sender<Option<&'static str>>,
}

#[derive(Debug, Default)]
struct State {
    next_id: u64,
    alive: HashMap<u64, Entry>,
}

#[derive(Debug)]
struct Entry {
    name: &'static str,
    on_shutdown: OnShutdown,
    /// Missing for the short time between the entry and the spawn.
    abort: Option<AbortHandle>,
}

impl Default for Tasks {
    fn default() -> Self {
        Self::new()
    }
}

impl Tasks {
    /// A group without tasks.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(Group {
            state: Mutex::default(),
            alive: watch::Sender::new(0),
            failure: watch::Sender::new(None),
        }))
    }

    /// Spawns a task on the current runtime. Its log lines carry `name`.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn spawn<F>(&self, name: &'static str, on_shutdown: OnShutdown, future: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.spawn_on(&Handle::current(), name, on_shutdown, future);
    }

    /// Spawns a task on `runtime`.
    pub fn spawn_on<F>(
        &self,
        runtime: &Handle,
        name: &'static str,
        on_shutdown: OnShutdown,
        future: F,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        self.spawn_boxed(runtime, name, on_shutdown, Box::pin(future));
    }

    /// What every task shares, compiled once: tokio compiles its part of a task for each type of a
    /// future, and a node has more than a hundred.
    fn spawn_boxed(
        &self,
        runtime: &Handle,
        name: &'static str,
        on_shutdown: OnShutdown,
        future: BoxFuture<'static, ()>,
    ) {
        let group = &self.0;
        // The entry comes first: the task may finish before `spawn` returns.
        let id = {
            let mut state = group.state.lock();
            let id = state.next_id;
            state.next_id += 1;
            state.alive.insert(
                id,
                Entry {
                    name,
                    on_shutdown,
                    abort: None,
                },
            );
            group.alive.send_replace(state.alive.len());
            id
        };
        let registration = Registration {
            group: Arc::clone(group),
            id,
        };
        let task = Watched {
            future,
            name,
            registration,
        };
        let span = tracing::error_span!("task", name);
        let abort = runtime.spawn(task.instrument(span)).abort_handle();
        let mut state = group.state.lock();
        if let Some(entry) = state.alive.get_mut(&id) {
            entry.abort = Some(abort);
            // Wakes a `finish` that came between the entry and this moment.
            group.alive.send_replace(state.alive.len());
        }
    }

    /// The number of tasks alive.
    #[cfg(test)]
    fn alive(&self) -> usize {
        *self.0.alive.borrow()
    }

    /// Waits until a task has panicked, and names the first that did. A program whose task is gone
    /// does not do its work, so it should stop.
    ///
    /// # Cancel safety
    /// Cancelling it loses nothing.
    pub async fn failed(&self) -> &'static str {
        let mut failure = self.0.failure.subscribe();
        match failure.wait_for(Option::is_some).await {
            Ok(name) => name.unwrap_or_default(),
            // The sender lives as long as `self`.
            Err(_) => std::future::pending().await,
        }
    }

    /// Ends the group: aborts what may be aborted, waits for the rest until `deadline`, then aborts
    /// that too and returns its names. Tasks that are spawned meanwhile are treated the same.
    pub async fn finish(&self, deadline: Instant) -> Vec<&'static str> {
        let mut alive = self.0.alive.subscribe();
        let drained = async {
            loop {
                self.abort(|entry| entry.on_shutdown == OnShutdown::Abort);
                if *alive.borrow_and_update() == 0 || alive.changed().await.is_err() {
                    return;
                }
            }
        };
        if tokio::time::timeout_at(deadline.into(), drained)
            .await
            .is_ok()
        {
            return Vec::new();
        }
        self.abort(|_| true)
    }

    /// Aborts the chosen tasks and names them.
    fn abort(&self, choose: impl Fn(&Entry) -> bool) -> Vec<&'static str> {
        let chosen: Vec<(&'static str, Option<AbortHandle>)> = {
            let state = self.0.state.lock();
            let entries = state.alive.values().filter(|entry| choose(entry));
            entries
                .map(|entry| (entry.name, entry.abort.clone()))
                .collect()
        };
        // Outside of the lock: dropping a task takes it.
        let mut names: Vec<&'static str> = chosen
            .into_iter()
            .map(|(name, abort)| {
                if let Some(abort) = abort {
                    abort.abort();
                }
                name
            })
            .collect();
        names.sort_unstable();
        names
    }
}

/// The place of a task in its group, given up when the task ends in whatever way.
#[derive(Debug)]
struct Registration {
    group: Arc<Group>,
    id: u64,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut state = self.group.state.lock();
        state.alive.remove(&self.id);
        self.group.alive.send_replace(state.alive.len());
    }
}

/// A task whose panic is reported.
struct Watched {
    future: BoxFuture<'static, ()>,
    name: &'static str,
    registration: Registration,
}

impl Future for Watched {
    type Output = ();

    fn poll(self: Pin<&mut Self>, ctx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        let poll = AssertUnwindSafe(|| this.future.as_mut().poll(ctx));
        // The future is not polled again after a panic, so no task sees it half changed.
        std::panic::catch_unwind(poll).unwrap_or_else(|panic| {
            let name = this.name;
            tracing::error!(task = name, panic = panic_text(&*panic), "task panicked");
            this.registration.group.failure.send_if_modified(|failure| {
                let first = failure.is_none();
                failure.get_or_insert(name);
                first
            });
            Poll::Ready(())
        })
    }
}

/// The message of a panic.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::*;
    use crate::shutdown;

    fn far() -> Instant {
        Instant::now() + Duration::from_secs(600)
    }

    #[tokio::test]
    async fn finished_tasks_leave_the_group() {
        let tasks = Tasks::new();
        for _ in 0..100 {
            tasks.spawn("short", OnShutdown::Wait, async {});
        }
        assert_eq!(tasks.finish(far()).await, Vec::<&str>::new());
        assert_eq!(tasks.alive(), 0);
        assert!(tasks.0.state.lock().alive.is_empty());
    }

    #[tokio::test]
    async fn finish_aborts_what_may_be_aborted_and_waits_for_the_rest() {
        let tasks = Tasks::new();
        let (trigger, shutdown) = shutdown::channel();
        let (done, mut is_done) = oneshot::channel();
        tasks.spawn("ticker", OnShutdown::Abort, pending());
        tasks.spawn("writer", OnShutdown::Wait, async move {
            shutdown.requested().await;
            tokio::task::yield_now().await;
            done.send(()).unwrap();
        });
        assert_eq!(tasks.alive(), 2);
        trigger.request(Duration::from_secs(600));
        assert_eq!(tasks.finish(far()).await, Vec::<&str>::new());
        assert!(is_done.try_recv().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn late_tasks_are_named_and_aborted() {
        let tasks = Tasks::new();
        tasks.spawn("stuck", OnShutdown::Wait, pending());
        tasks.spawn("also-stuck", OnShutdown::Wait, pending());
        let late = tasks
            .finish(Instant::now() + Duration::from_millis(10))
            .await;
        assert_eq!(late, ["also-stuck", "stuck"]);
        assert!(tasks.finish(far()).await.is_empty());
    }

    #[tokio::test]
    async fn a_panic_is_a_failure_of_the_group_and_ends_only_its_task() {
        let tasks = Tasks::new();
        let (go, started) = oneshot::channel::<()>();
        tasks.spawn("other", OnShutdown::Wait, async move {
            started.await.unwrap();
        });
        tasks.spawn("broken", OnShutdown::Wait, async { panic!("by the test") });
        assert_eq!(tasks.failed().await, "broken");
        assert_eq!(tasks.alive(), 1);
        go.send(()).unwrap();
        assert!(tasks.finish(far()).await.is_empty());
    }

    #[test]
    fn tasks_of_other_runtimes_belong_to_the_group() {
        let tasks = Tasks::new();
        let other = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .build()
            .unwrap();
        tasks.spawn_on(other.handle(), "elsewhere", OnShutdown::Abort, pending());
        let own = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        assert_eq!(own.block_on(tasks.finish(far())), Vec::<&str>::new());
    }
}
