use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::*;
use crate::store::{MemoryStore, ObjectKey, Operation, suite};

/// A store that takes 100 ms for a call (writes ten times as long) and so many calls at once; more
/// are throttled.
#[derive(Debug)]
struct Server {
    inner: MemoryStore,
    capacity: AtomicU32,
    running: AtomicU32,
    running_max: AtomicU32,
    throttled: AtomicU32,
    hang: bool,
}

impl Server {
    fn new(capacity: u32) -> Self {
        Self {
            inner: MemoryStore::default(),
            capacity: AtomicU32::new(capacity),
            running: AtomicU32::new(0),
            running_max: AtomicU32::new(0),
            throttled: AtomicU32::new(0),
            hang: false,
        }
    }
}

struct Running<'a>(&'a AtomicU32);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Around for Server {
    fn inner(&self) -> &dyn ObjectStore {
        &self.inner
    }

    fn around<'a, T: Answer>(
        &'a self,
        call: Call<'a>,
        start: impl Fn() -> StoreFuture<'a, T> + Send + Sync + 'a,
    ) -> StoreFuture<'a, T> {
        Box::pin(async move {
            let now = self.running.fetch_add(1, Ordering::SeqCst) + 1;
            let _running = Running(&self.running);
            self.running_max.fetch_max(now, Ordering::SeqCst);
            let is_too_much = now > self.capacity.load(Ordering::SeqCst);
            sleep(Duration::from_millis(match call.operation {
                _ if is_too_much => 10,
                _ if self.hang => 86_400_000,
                Operation::Put => 1000,
                _ => 100,
            }))
            .await;
            if is_too_much {
                self.throttled.fetch_add(1, Ordering::SeqCst);
                let kind = StoreErrorKind::Throttled;
                return Err(StoreError::new(call.operation, call.subject, kind));
            }
            start().await
        })
    }
}

fn limited(server: Server, initial: u32, max: u32) -> (Arc<Server>, Arc<LimitStore>) {
    let server = Arc::new(server);
    let options = LimitOptions {
        initial,
        max,
        queue_max: 1000,
    };
    let store = LimitStore::new(Arc::clone(&server) as _, options);
    (server, Arc::new(store))
}

fn key() -> ObjectKey {
    ObjectKey::new("a").unwrap()
}

fn reads(store: &LimitStore) -> LimitSnapshot {
    store.reads.snapshot()
}

/// `count` reads of something that does not exist, which is an answer as good as any.
fn read(store: &Arc<LimitStore>, count: usize) -> JoinSet<Result<Duration, StoreErrorKind>> {
    let begun = Instant::now();
    (0..count)
        .map(|_| {
            let store = Arc::clone(store);
            async move {
                match store.get(&key()).await.unwrap_err().kind {
                    StoreErrorKind::NotFound => Ok(begun.elapsed()),
                    kind => Err(kind),
                }
            }
        })
        .collect()
}

fn write(store: &Arc<LimitStore>, count: usize) -> JoinSet<Duration> {
    let begun = Instant::now();
    (0..count)
        .map(|_| {
            let store = Arc::clone(store);
            async move {
                store.put(&key(), "body".into()).await.unwrap();
                begun.elapsed()
            }
        })
        .collect()
}

#[tokio::test]
async fn keeps_the_contract_of_stores() {
    for limit in [1, 16] {
        let options = LimitOptions {
            initial: limit,
            max: limit,
            queue_max: 100,
        };
        suite::run(Arc::new(LimitStore::new(
            Arc::new(MemoryStore::default()),
            options,
        )))
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn no_more_calls_than_the_limit_run() {
    let (server, store) = limited(Server::new(u32::MAX), 5, 5);
    let times = read(&store, 50).join_all().await;
    assert!(times.iter().all(Result::is_ok));
    assert_eq!(server.running_max.load(Ordering::SeqCst), 5);
    let longest = times.into_iter().flatten().max();
    assert_eq!(longest, Some(Duration::from_secs(1)));
    let now = reads(&store);
    assert_eq!((now.limit, now.running, now.waiting), (5, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn the_limit_grows_while_it_is_used_up_and_only_then() {
    let (server, store) = limited(Server::new(u32::MAX), 2, 40);
    read(&store, 1).join_all().await;
    assert_eq!(reads(&store).limit, 2);
    read(&store, 1000).join_all().await;
    // Growing by one a round of 100 ms, from 2: the sum of the rounds is 1000 after about 43.
    let limit = reads(&store).limit;
    assert!((35..=40).contains(&limit), "{limit}");
    assert!(server.running_max.load(Ordering::SeqCst) <= 40);
}

#[tokio::test(start_paused = true)]
async fn the_limit_comes_to_rest_around_what_the_store_takes() {
    let (server, store) = limited(Server::new(8), 64, 64);
    let first: Vec<_> = read(&store, 64).join_all().await;
    assert!(first.iter().any(Result::is_err));
    // All of the first round were on their way together: halved once, not 56 times.
    assert_eq!(reads(&store).limit, 32);
    read(&store, 200).join_all().await;
    let throttled = server.throttled.load(Ordering::SeqCst);
    let results = read(&store, 1000).join_all().await;
    let throttled = server.throttled.load(Ordering::SeqCst) - throttled;
    assert!(throttled < 150, "{throttled} of 1000 were throttled");
    assert_eq!(results.len(), 1000);
    let limit = reads(&store).limit;
    assert!((4..=9).contains(&limit), "{limit}");
}

#[tokio::test(start_paused = true)]
async fn timeouts_lower_the_limit_to_one_at_least() {
    let (server, store) = limited(Server::new(0), 16, 16);
    for _ in 0..10 {
        read(&store, 1).join_all().await;
    }
    assert_eq!(reads(&store).limit, 1);
    server.capacity.store(u32::MAX, Ordering::SeqCst);
    read(&store, 100).join_all().await;
    assert!(reads(&store).limit > 5);
}

#[tokio::test(start_paused = true)]
async fn reads_and_writes_do_not_wait_for_each_other() {
    for limit in [1, 4, 16] {
        let (_, store) = limited(Server::new(u32::MAX), limit, limit);
        let writes = write(&store, 200);
        sleep(Duration::from_millis(10)).await;
        let times = read(&store, 1).join_all().await;
        assert_eq!(times, [Ok(Duration::from_millis(100))], "limit {limit}");
        let now = store.others.snapshot();
        assert!(now.waiting > 100 && now.running <= limit);
        drop(writes);
    }
    let (_, store) = limited(Server::new(u32::MAX), 1, 1);
    let reads = read(&store, 100);
    sleep(Duration::from_millis(10)).await;
    let times = write(&store, 2).join_all().await;
    // Each waits for the other write alone.
    let longest = times.into_iter().max();
    assert_eq!(longest, Some(Duration::from_secs(2)));
    assert!(!reads.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_says_so_and_dropped_calls_leave_it() {
    let mut server = Server::new(u32::MAX);
    server.hang = true;
    let options = LimitOptions {
        initial: 2,
        max: 2,
        queue_max: 3,
    };
    let store = Arc::new(LimitStore::new(Arc::new(server), options));
    let mut hanging = read(&store, 5);
    sleep(Duration::from_millis(1)).await;
    assert_eq!(reads(&store).waiting, 3);
    let rejected = read(&store, 1).join_all().await;
    assert_eq!(rejected, [Err(StoreErrorKind::Throttled)]);
    // Being full is not the store's fault.
    let now = reads(&store);
    assert_eq!((now.limit, now.rejected, now.running), (2, 1, 2));
    hanging.shutdown().await;
    let now = reads(&store);
    assert_eq!((now.limit, now.running), (2, 0));
    let mut more = read(&store, 5);
    sleep(Duration::from_millis(1)).await;
    let now = reads(&store);
    assert_eq!((now.running, now.waiting, now.rejected), (2, 3, 1));
    more.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_place_granted_to_a_dropped_call_is_passed_on() {
    let (_, store) = limited(Server::new(u32::MAX), 1, 1);
    let gate = &store.reads;
    let first = gate::enter(gate).await.ok().unwrap();
    let mut second = Box::pin(gate::enter(gate));
    assert!(poll_once(second.as_mut()).is_none());
    let mut third = Box::pin(gate::enter(gate));
    assert!(poll_once(third.as_mut()).is_none());
    first.leave(Verdict::Served);
    // Granted, but never polled again.
    drop(second);
    assert!(poll_once(third.as_mut()).is_some());
}

/// Polls once.
fn poll_once<F: Future + ?Sized>(future: std::pin::Pin<&mut F>) -> Option<F::Output> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match future.poll(&mut context) {
        std::task::Poll::Ready(output) => Some(output),
        std::task::Poll::Pending => None,
    }
}
