//! In simulated time, over a bucket in memory that fails as it is told.

use std::sync::Arc;

use fonn_base::boxed::BoxFuture;
use fonn_base::clock::ManualClock;
use fonn_base::events::Level;
use fonn_base::tasks::{OnShutdown, Tasks};
use fonn_cold_tier::names::{Region, SegmentName, WriterId};
use fonn_cold_tier::segment::FlushMark;
use fonn_cold_tier::store::fault::{Fault, FaultStore, Rule};
use fonn_cold_tier::store::memory::MemoryStore;
use fonn_cold_tier::store::{ObjectStore, Operation, StoreErrorKind};
use fonn_cold_tier::{
    Backlog, ColdObserver, ColdOptions, CopyRef, SpillBatch, SpillCursor, SpillSource,
    SpillSourceError,
};
use tempfile::TempDir;
use tokio::time::sleep;

use super::*;

/// A node that has nothing.
struct Nothing;

impl ColdObserver for Nothing {
    fn superseded(&self, _: &[CopyRef<'_>]) {}

    fn flushed(&self, _: &FlushMark) -> bool {
        true
    }

    fn is_visible(&self, _: u32, _: u64) -> bool {
        true
    }
}

impl SpillSource for Nothing {
    fn read(&self, from: &SpillCursor, _: usize) -> Result<SpillBatch, SpillSourceError> {
        Ok(SpillBatch {
            records: Vec::new(),
            end: from.clone(),
        })
    }

    fn acknowledge(&self, _: &SpillCursor) {}

    fn backlog(&self, _: &SpillCursor) -> Backlog {
        Backlog::default()
    }

    fn wait(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::pending())
    }
}

/// A node with an empty disk that starts over a bucket.
struct Scene {
    manual: ManualClock,
    bucket: Arc<FaultStore>,
    readiness: Readiness,
    events: Events,
    tasks: Tasks,
    dir: TempDir,
}

impl Scene {
    fn new() -> Self {
        let manual = ManualClock::new(1_700_000_000_000);
        let memory = Arc::new(MemoryStore::new(manual.clock()));
        Self {
            bucket: Arc::new(FaultStore::new(memory, 1)),
            readiness: Readiness::new(),
            events: Events::new(manual.clock(), 10),
            tasks: Tasks::new(),
            dir: tempfile::tempdir().unwrap(),
            manual,
        }
    }

    /// Starts it. Whether it has to wait.
    fn start(&self) -> bool {
        let options = ColdOptions {
            clock: self.manual.clock(),
            memory_bytes: 8 << 20,
            inline_blocking: true,
            ..ColdOptions::new(self.dir.path(), Region::default())
        };
        let store = Arc::clone(&self.bucket) as Arc<dyn ObjectStore>;
        let tier = ColdTier::open(options, store, Arc::new(Nothing)).unwrap();
        tier.start(Arc::new(Nothing), &self.tasks);
        let ready = self.ready();
        if ready.serves(Some(&tier)).is_none() {
            return false;
        }
        let wait = ready.wait(tier);
        self.tasks.spawn("ready", OnShutdown::Abort, wait);
        true
    }

    fn ready(&self) -> Ready {
        Ready {
            readiness: self.readiness.clone(),
            events: self.events.clone(),
            clock: self.manual.clock(),
            began_ms: 0,
        }
    }

    /// Waits until `/readyz` tells these words, for two simulated minutes and a little; after how
    /// long.
    async fn until(&self, words: (bool, &str)) -> Duration {
        let begun = Instant::now();
        while self.readiness.told() != words {
            let told = self.readiness.told();
            assert!(begun.elapsed() < INDEX_WAIT_MAX + LOOK_EVERY, "{told:?}");
            sleep(LOOK_EVERY).await;
            self.manual.advance(LOOK_EVERY);
        }
        begun.elapsed()
    }

    /// The process ends.
    async fn stop(&self) {
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        self.tasks.finish(deadline).await;
    }

    /// Puts an object with the name of a segment and nothing in it into the bucket.
    async fn add_segment(&self) -> String {
        let name = SegmentName {
            region: Region::default(),
            writer: WriterId::mint(self.manual.clock().wall_ms(), 7),
            seq: 0,
        };
        let body = bytes::Bytes::from_static(b"no segment");
        self.bucket.put(&name.key(), body.into()).await.unwrap();
        name.to_string()
    }
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// A fault of all calls, what `/readyz` tells in the end, and the seconds between which it does.
type Case = (Option<Fault>, &'static str, [u64; 2]);

#[tokio::test(start_paused = true)]
async fn a_node_without_an_index_is_ready_when_it_has_it_or_the_bucket_is_seen_to_fail() {
    let cases: [Case; 5] = [
        (None, "ready", [0, 1]),
        // Two lists, one after the other.
        (Some(Fault::Slow(secs(8))), "ready", [16, 17]),
        (
            Some(Fault::Error(StoreErrorKind::Unavailable)),
            FAILS,
            [2, 3],
        ),
        (Some(Fault::Error(StoreErrorKind::Denied)), FAILS, [2, 3]),
        (Some(Fault::Hang), IS_SILENT, [10, 11]),
    ];
    for (fault, words, [least, most]) in cases {
        let scene = Scene::new();
        if let Some(fault) = fault {
            scene.bucket.add(Rule::new(fault));
        }
        assert!(scene.start(), "{fault:?}");
        assert_eq!(scene.readiness.told(), (false, READING), "{fault:?}");
        let took = scene.until((true, words)).await;
        assert!(
            (secs(least)..=secs(most)).contains(&took),
            "{fault:?}: {took:?}"
        );
        let told = scene.events.after(0);
        let told = told.last().expect("an event");
        let level = match words {
            "ready" => Level::Info,
            _ => Level::Warning,
        };
        assert_eq!(told.level, level, "{told:?}");
        let but = words.trim_start_matches("ready");
        assert!(told.message.ends_with(&format!(" ms{but}")), "{told:?}");
        scene.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_went_without_its_index_says_when_it_has_it() {
    let scene = Scene::new();
    scene.bucket.go_down();
    assert!(scene.start());
    scene.until((true, FAILS)).await;
    scene.bucket.come_up();
    scene.until((true, "ready")).await;
    let told = scene.events.after(0);
    let messages: Vec<_> = told.iter().map(|it| it.message.as_str()).collect();
    assert_eq!(messages.len(), 2, "{messages:?}");
    assert_eq!(messages[1], "the bucket's index is complete");
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_footer_that_is_refused_keeps_no_node_from_being_ready() {
    let scene = Scene::new();
    let name = scene.add_segment().await;
    let refusal = Rule::new(Fault::Error(StoreErrorKind::Denied)).on(Operation::GetSuffix);
    scene.bucket.add(refusal.matching(&name));
    assert!(scene.start());
    let took = scene.until((true, IS_REFUSED)).await;
    assert!(took <= secs(1), "{took:?}");
    // What it may read, and is damaged, is not waited for.
    scene.bucket.clear();
    scene.until((true, "ready")).await;
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_node_with_nothing_to_wait_for_is_ready_at_once() {
    let scene = Scene::new();
    assert!(scene.ready().serves(None).is_none());
    assert_eq!(scene.readiness.told(), (true, "ready"));
    // Another run of a node whose index is on its disk, and no bucket there.
    let scene = Scene::new();
    assert!(scene.start());
    scene.until((true, "ready")).await;
    scene.stop().await;
    scene.bucket.go_down();
    scene.readiness.set_not_ready("starting");
    let again = Scene {
        tasks: Tasks::new(),
        ..scene
    };
    assert!(!again.start(), "it has to wait");
    assert_eq!(again.readiness.told(), (true, "ready"));
    again.stop().await;
}

#[tokio::test]
async fn a_member_that_is_refused_is_not_ready_until_it_is_admitted() {
    let readiness = Readiness::new();
    let (refused, told) = watch::channel(true);
    let tasks = Tasks::new();
    let follow = follow_admission(told, readiness.clone());
    tasks.spawn("admission", OnShutdown::Abort, follow);
    readiness.set_ready();
    while readiness.told() != (false, NOT_ADMITTED) {
        tokio::task::yield_now().await;
    }
    refused.send_replace(false);
    while readiness.told() != (true, "ready") {
        tokio::task::yield_now().await;
    }
    drop(refused);
    tasks.finish(std::time::Instant::now() + secs(60)).await;
}

#[test]
fn a_bucket_that_answers_is_waited_for_two_minutes_and_no_longer() {
    let reading = |is_answered| FirstReading::UnderWay { is_answered };
    let just = |limit: Duration| limit - Duration::from_millis(1);
    for (reading, waited, end) in [
        (reading(true), just(INDEX_WAIT_MAX), None),
        (reading(true), INDEX_WAIT_MAX, Some(Err(TAKES_LONG))),
        (reading(false), just(ANSWER_WAIT_MAX), None),
        (reading(false), ANSWER_WAIT_MAX, Some(Err(IS_SILENT))),
        (FirstReading::Done, Duration::ZERO, Some(Ok(()))),
        (FirstReading::Refused, Duration::ZERO, Some(Err(IS_REFUSED))),
        (FirstReading::Failing, Duration::ZERO, Some(Err(FAILS))),
        (
            FirstReading::IndexFailed,
            Duration::ZERO,
            Some(Err(IS_LOST)),
        ),
    ] {
        assert_eq!(judge(reading, waited), end, "{reading:?} {waited:?}");
    }
    // The words name the time.
    assert!(INDEX_WAIT_MAX == secs(120) && TAKES_LONG.contains("two minutes"));
}
