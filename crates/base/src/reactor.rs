//! One wake a turn between a reactor and the threads of the disk tier, in either direction.
//!
//! To wake a task from another thread costs a system call, and its reactor one more pass of the
//! event loop. So the wakes of other threads on a reactor are collected. The first one wakes the
//! reactor, and later ones are only added until it looks. Likewise, a reactor tells other threads
//! once what it wants of them, when all ready work of this turn has run. Neither delays anything: a
//! turn is what the reactor does anyway before it waits.
//!
//! Each reactor has a task for both, which is made at its first use. Nothing else runs in it, so no
//! wake waits for what another task does. On a runtime of several threads there is no such task;
//! wakes go their usual way.

use std::cell::RefCell;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;
use tokio::runtime::{Handle, Id, RuntimeFlavor};

use crate::tasks::{OnShutdown, Tasks};

/// Tasks that other threads had woken.
static TASKS_WOKEN: AtomicU64 = AtomicU64::new(0);

/// Reactors that were woken for these.
static REACTORS_WOKEN: AtomicU64 = AtomicU64::new(0);

/// Wakes that are held back, by reactor.
type Held = Vec<(Arc<Reactor>, Vec<Waker>)>;

thread_local! {
    /// The reactor of this thread, once it was asked for.
    static CURRENT: RefCell<Option<Arc<Reactor>>> = const { RefCell::new(None) };

    /// The wakes that this thread holds back, while it gathers them.
    static GATHERED: RefCell<Option<Held>> = const { RefCell::new(None) };
}

/// How often other threads had something for a reactor, since the start of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wakes {
    /// Tasks that went on because of it.
    pub tasks: u64,
    /// Wakes of reactors that this took: one for all tasks that were added before it had looked.
    pub reactors: u64,
}

/// Reads the counters of all reactors.
#[must_use]
pub fn wakes() -> Wakes {
    Wakes {
        tasks: TASKS_WOKEN.load(Ordering::Relaxed),
        reactors: REACTORS_WOKEN.load(Ordering::Relaxed),
    }
}

/// The tasks to tell when a reactor has run all that was ready.
pub trait TurnEnd: Send + Sync {
    /// Called on the reactor's thread; must be short.
    fn turn_ended(&self);
}

/// The runtime of one thread, as the threads of the disk tier see it.
pub struct Reactor {
    runtime: Id,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Wakes the task that does the work, once that has run.
    task: Option<Waker>,
    /// Tasks to wake.
    woken: Vec<Waker>,
    /// The tasks that wait for the end of the turn.
    at_end: Vec<Weak<dyn TurnEnd>>,
    /// The runtime is gone: nothing would be looked at any more.
    has_ended: bool,
}

impl Reactor {
    /// The reactor that the caller runs on. None outside of a runtime, and on one of several
    /// threads.
    pub fn current() -> Option<Arc<Self>> {
        let runtime = Handle::try_current().ok()?;
        let id = runtime.id();
        let known = CURRENT.with_borrow(Clone::clone);
        if let Some(known) = known
            && known.runtime == id
            && !known.state.lock().has_ended
        {
            return Some(known);
        }
        if runtime.runtime_flavor() != RuntimeFlavor::CurrentThread {
            return None;
        }
        let reactor = Arc::new(Self {
            runtime: id,
            state: Mutex::default(),
        });
        CURRENT.set(Some(Arc::clone(&reactor)));
        let turns = Turns(Arc::clone(&reactor));
        Tasks::new().spawn_on(&runtime, "turns", OnShutdown::Abort, turns);
        Some(reactor)
    }

    fn is_current(&self) -> bool {
        let is_it = |current: &RefCell<Option<Arc<Self>>>| {
            let current = current.try_borrow();
            current.is_ok_and(|current| {
                let current = current.as_ref().map(Arc::as_ptr);
                current.is_some_and(|current| std::ptr::eq(current, self))
            })
        };
        CURRENT.try_with(is_it).unwrap_or(false)
    }

    /// Registers an observer of the end of this turn. The reactor calls it after all ready tasks
    /// have run, unless it was dropped. Call this on the reactor's thread.
    pub fn at_turn_end(&self, who: &Arc<impl TurnEnd + 'static>) {
        let mut state = self.state.lock();
        if state.has_ended {
            drop(state);
            who.turn_ended();
            return;
        }
        let who = Arc::downgrade(who) as Weak<dyn TurnEnd>;
        if state.at_end.iter().any(|other| Weak::ptr_eq(other, &who)) {
            return;
        }
        state.at_end.push(who);
        let task = state.task.clone();
        drop(state);
        // Without one it has not run yet, and is going to.
        if let Some(task) = task {
            task.wake();
        }
    }

    /// Wakes tasks of this reactor from another thread.
    fn wake(&self, tasks: impl ExactSizeIterator<Item = Waker>) {
        let mut state = self.state.lock();
        TASKS_WOKEN.fetch_add(tasks.len() as u64, Ordering::Relaxed);
        if state.has_ended {
            drop(state);
            tasks.for_each(Waker::wake);
            return;
        }
        // Otherwise the thread that added the first has woken the reactor.
        let is_first = state.woken.is_empty();
        state.woken.extend(tasks);
        if !is_first {
            return;
        }
        let task = state.task.clone();
        drop(state);
        REACTORS_WOKEN.fetch_add(1, Ordering::Relaxed);
        if let Some(task) = task {
            task.wake();
        }
    }
}

/// Holds back the wakes of reactors that this thread makes, until it is dropped. A reactor that the
/// first of a row of results wakes may look before the last one is there, is woken again, and sends
/// each answer by itself. Keep it for as long as it takes to hand results over, and no longer.
#[must_use = "wakes are held back until it is dropped"]
pub struct Gather {
    /// It belongs to its thread.
    _not_send: PhantomData<*const ()>,
}

impl Gather {
    /// From now on. One on a thread that gathers already ends with the first of both.
    pub fn begin() -> Self {
        GATHERED.with_borrow_mut(|gathered| {
            gathered.get_or_insert_default();
        });
        Self {
            _not_send: PhantomData,
        }
    }

    /// Whether the thread gathers: then it has the wake.
    fn takes(relay: &Relay) -> bool {
        let take = |gathered: &RefCell<Option<Held>>| {
            let mut gathered = gathered.borrow_mut();
            let Some(reactors) = gathered.as_mut() else {
                return false;
            };
            let task = relay.task.clone();
            let known = reactors
                .iter_mut()
                .find(|(reactor, _)| Arc::ptr_eq(reactor, &relay.reactor));
            match known {
                Some((_, tasks)) => tasks.push(task),
                None => reactors.push((Arc::clone(&relay.reactor), vec![task])),
            }
            true
        };
        GATHERED.try_with(take).unwrap_or(false)
    }
}

impl Drop for Gather {
    fn drop(&mut self) {
        for (reactor, tasks) in GATHERED.take().into_iter().flatten() {
            reactor.wake(tasks.into_iter());
        }
    }
}

/// The task of a reactor.
struct Turns(Arc<Reactor>);

impl Turns {
    fn run(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.0.state.lock();
        change(&mut state);
        let woken = std::mem::take(&mut state.woken);
        let at_end = std::mem::take(&mut state.at_end);
        drop(state);
        for task in woken {
            task.wake();
        }
        for who in at_end.iter().filter_map(Weak::upgrade) {
            who.turn_ended();
        }
    }
}

impl Future for Turns {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.run(|state| match &mut state.task {
            Some(task) => task.clone_from(cx.waker()),
            None => state.task = Some(cx.waker().clone()),
        });
        Poll::Pending
    }
}

impl Drop for Turns {
    fn drop(&mut self) {
        self.run(|state| {
            state.has_ended = true;
            state.task = None;
        });
    }
}

/// The waker of a task of a reactor, for other threads.
struct Relay {
    reactor: Arc<Reactor>,
    task: Waker,
}

impl Wake for Relay {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.reactor.is_current() {
            self.task.wake_by_ref();
        } else if !Gather::takes(self) {
            self.reactor.wake(std::iter::once(self.task.clone()));
        }
    }
}

/// Waits for what another thread completes, with its wake collected.
///
/// # Cancel safety
/// As the future's.
pub fn relayed<F: Future + Unpin>(future: F) -> Relayed<F> {
    Relayed {
        future,
        relay: None,
    }
}

/// See [`relayed`].
#[must_use = "a future does nothing before it is waited for"]
pub struct Relayed<F> {
    future: F,
    relay: Option<Arc<Relay>>,
}

impl<F: Future + Unpin> Future for Relayed<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        let is_mine = |relay: &Arc<Relay>| relay.task.will_wake(cx.waker());
        if !this.relay.as_ref().is_some_and(is_mine) {
            this.relay = Reactor::current().map(|reactor| {
                let task = cx.waker().clone();
                Arc::new(Relay { reactor, task })
            });
        }
        let Some(relay) = &this.relay else {
            return Pin::new(&mut this.future).poll(cx);
        };
        let waker = Waker::from(Arc::clone(relay));
        Pin::new(&mut this.future).poll(&mut Context::from_waker(&waker))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    use tokio::runtime::{Builder, Runtime};
    use tokio::sync::oneshot;
    use tokio::task::{JoinSet, yield_now};

    use super::*;

    fn runtime() -> Runtime {
        Builder::new_current_thread().build().unwrap()
    }

    #[derive(Default)]
    struct Told(AtomicUsize);

    impl TurnEnd for Told {
        fn turn_ended(&self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    type Answers = Vec<oneshot::Sender<i32>>;
    type Waiting = JoinSet<Result<i32, oneshot::error::RecvError>>;

    /// Tasks that wait for answers, once all of them wait and the reactor's own task does too.
    async fn waiting(count: usize) -> (Arc<Reactor>, Answers, Waiting) {
        let (mut answers, mut waiting) = (Answers::new(), Waiting::new());
        for _ in 0..count {
            let (answer, answered) = oneshot::channel();
            answers.push(answer);
            waiting.spawn(relayed(answered));
        }
        let reactor = Reactor::current().unwrap();
        while reactor.state.lock().task.is_none() {
            yield_now().await;
        }
        yield_now().await;
        (reactor, answers, waiting)
    }

    #[test]
    fn what_was_woken_while_the_reactor_did_something_else_is_one_wake() {
        runtime().block_on(async {
            let (reactor, answers, waiting) = waiting(100).await;
            let count = answers.len();
            thread::spawn(move || {
                for answer in answers {
                    answer.send(7).unwrap();
                }
            })
            .join()
            .unwrap();
            assert_eq!(reactor.state.lock().woken.len(), count);
            let results = waiting.join_all().await;
            assert_eq!(results, vec![Ok(7); count]);
            assert!(reactor.state.lock().woken.is_empty());
        });
    }

    #[test]
    fn a_reactor_sees_none_of_what_is_gathered_before_all_of_it() {
        runtime().block_on(async {
            let (reactor, answers, waiting) = waiting(10).await;
            let seen = Arc::clone(&reactor);
            thread::spawn(move || {
                let gather = Gather::begin();
                for answer in answers {
                    answer.send(7).unwrap();
                    assert!(seen.state.lock().woken.is_empty());
                }
                drop(gather);
                assert_eq!(seen.state.lock().woken.len(), 10);
            })
            .join()
            .unwrap();
            assert_eq!(waiting.join_all().await, vec![Ok(7); 10]);
        });
    }

    #[test]
    fn an_idle_reactor_is_woken_and_so_is_every_task() {
        runtime().block_on(async {
            let mut waiting = JoinSet::new();
            let threads: Vec<_> = (0..50)
                .map(|number| {
                    let (answer, answered) = oneshot::channel();
                    waiting.spawn(relayed(answered));
                    thread::spawn(move || answer.send(number).unwrap())
                })
                .collect();
            let mut results: Vec<i32> = waiting
                .join_all()
                .await
                .into_iter()
                .map(Result::unwrap)
                .collect();
            results.sort_unstable();
            assert!(results.into_iter().eq(0..50));
            for thread in threads {
                thread.join().unwrap();
            }
        });
    }

    #[test]
    fn the_end_of_a_turn_comes_once_and_after_what_was_ready() {
        runtime().block_on(async {
            let told = Arc::new(Told::default());
            let mut ready = JoinSet::new();
            for _ in 0..10 {
                let told = Arc::clone(&told);
                ready.spawn(async move {
                    let reactor = Reactor::current().unwrap();
                    reactor.at_turn_end(&told);
                    told.0.load(Ordering::SeqCst)
                });
            }
            let seen = ready.join_all().await;
            // The task that tells was made behind those that were ready.
            assert_eq!(seen, [0; 10]);
            while told.0.load(Ordering::SeqCst) == 0 {
                yield_now().await;
            }
            yield_now().await;
            assert_eq!(told.0.load(Ordering::SeqCst), 1);
        });
    }

    #[test]
    fn what_a_runtime_that_ends_still_had_to_tell_is_told() {
        let told = Arc::new(Told::default());
        let runtime = runtime();
        let reactor = runtime.block_on(async {
            let reactor = Reactor::current().unwrap();
            reactor.at_turn_end(&told);
            reactor
        });
        drop(runtime);
        assert_eq!(told.0.load(Ordering::SeqCst), 1);
        reactor.at_turn_end(&told);
        assert_eq!(told.0.load(Ordering::SeqCst), 2);
        // A task that is gone by then is not kept for it.
        let next = self::runtime();
        next.block_on(async {
            let told = Arc::new(Told::default());
            Reactor::current().unwrap().at_turn_end(&told);
            assert!(Arc::try_unwrap(told).is_ok());
        });
        // The next runtime on this thread has its own.
        let next = self::runtime();
        let other = next.block_on(async { Reactor::current().unwrap() });
        assert!(!Arc::ptr_eq(&reactor, &other));
    }

    #[test]
    fn a_runtime_of_several_threads_wakes_as_usual() {
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .build()
            .unwrap();
        runtime.block_on(async {
            assert!(Reactor::current().is_none());
            let (answer, answered) = oneshot::channel();
            let sender = thread::spawn(move || answer.send(1).unwrap());
            assert_eq!(relayed(answered).await, Ok(1));
            sender.join().unwrap();
        });
    }
}
