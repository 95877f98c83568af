//! `fonn.v1.Admin/Warm`: which calls may begin it and when, what ends it, and what it leaves alone.

use std::time::Instant;

use fonn_auth::{Namespace, namespace_number};
use fonn_base::random::SplitMix64;
use fonn_base::size::ByteCount;
use fonn_proto::grpc::v1::{WarmEnd, WarmRequest, WarmResponse};
use tonic::{Code, Status, Streaming};

use super::super::warm::AT_ONCE;
use super::logins::guarded;
use super::*;

const SPACE: Space = Space(0);

const KIB: usize = 1 << 10;

/// A value that gets no smaller on disk.
fn noise(len: usize) -> Vec<u8> {
    let mut random = SplitMix64::new(len as u64);
    (0..len).map(|_| random.next_u64() as u8).collect()
}

impl Rig {
    /// Stores `count` entries of a space, the newest last.
    async fn fill(&self, space: Space, count: usize, value: &[u8]) {
        for n in 0..count {
            let key = format!("k{n}");
            self.set(space, key.as_bytes(), value, ExpirySpec::Never)
                .await;
        }
    }

    /// Puts everything out of RAM, as a restart does.
    async fn cool(&self) {
        let ram = self.engine.ram();
        let budget = ram.budget();
        ram.set_budget(0);
        let deadline = Instant::now() + GRACE;
        // What the disk does not have yet stays until then.
        while !ram.is_empty() {
            assert!(Instant::now() < deadline, "{:?}", ram.stats());
            ram.evict_to_budget(None, 0, usize::MAX);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        ram.set_budget(budget);
    }

    async fn warm(&self, request: WarmRequest) -> Result<Streaming<WarmResponse>, Status> {
        let mut admin = match self.config.common.security.users_file {
            None => self.admin().await,
            Some(_) => self.as_user("root").await,
        };
        Ok(admin.warm(request).await?.into_inner())
    }

    /// What it came to in the end.
    async fn warmed(&self, request: WarmRequest) -> WarmResponse {
        let mut news = self.warm(request).await.unwrap();
        let mut last = WarmResponse::default();
        while let Some(it) = news.message().await.unwrap() {
            last = it;
        }
        last
    }

    /// Checks that as many of the `count` entries of a space are in RAM, the newest ones. Those
    /// that are read at once come in any order.
    fn newest_are_in_ram(&self, space: Space, count: usize, wanted: usize) {
        let there: Vec<usize> = (0..count).filter(|n| self.is_in_ram(space, *n)).collect();
        assert_eq!(there.len(), wanted, "{there:?}");
        assert!(there[0] >= count - wanted - AT_ONCE, "{there:?}");
    }

    fn is_in_ram(&self, space: Space, n: usize) -> bool {
        let ram = self.engine.ram();
        let key = format!("k{n}");
        let hash = ram.hash(space, key.as_bytes());
        ram.lock(hash).find(hash, space, key.as_bytes()).is_some()
    }
}

/// Entries of 2 KiB, of which half a minute is enough for no more than two thirds if it is slow.
const COUNT: usize = 1500;

fn slow() -> WarmRequest {
    WarmRequest {
        bytes_per_s: 64 * KIB as u64,
        ..WarmRequest::default()
    }
}

#[tokio::test]
async fn a_lost_client_ends_the_warming_and_the_next_may_begin() {
    let rig = Rig::open().await;
    rig.fill(SPACE, COUNT, &noise(2 * KIB)).await;
    rig.cool().await;
    let before = Arc::strong_count(&rig.engine);
    let mut news = rig.warm(slow()).await.unwrap();
    let first = news.message().await.unwrap().unwrap();
    // The work has the engine from its beginning, which may be after the answer's, as long as it
    // goes on.
    assert!(Arc::strong_count(&rig.engine) > before);
    assert_eq!(first.end(), WarmEnd::Unspecified);
    assert!(first.from_disk < COUNT as u64, "{first:?}");
    drop(news);
    let deadline = Instant::now() + GRACE;
    while Arc::strong_count(&rig.engine) > before {
        assert!(Instant::now() < deadline, "it goes on for nobody");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let brought = rig.engine.ram().len() as u64;
    assert!(brought < COUNT as u64, "it was stopped before its end");
    let rest = rig.warmed(WarmRequest::default()).await;
    assert_eq!(rest.end(), WarmEnd::All);
    assert_eq!(
        (rest.present, rest.from_disk),
        (brought, COUNT as u64 - brought)
    );
}

#[tokio::test]
async fn a_second_warming_is_refused_while_one_goes_on() {
    let rig = Rig::open().await;
    rig.fill(SPACE, COUNT, &noise(2 * KIB)).await;
    rig.cool().await;
    let mut news = rig.warm(slow()).await.unwrap();
    news.message().await.unwrap().unwrap();
    for request in [WarmRequest::default(), slow()] {
        let refused = rig.warm(request).await.unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted);
        assert!(refused.message().contains("warming already"), "{refused}");
    }
    // The one that goes on is none the worse for it.
    let more = news.message().await.unwrap().unwrap();
    assert_eq!((more.end(), more.failed), (WarmEnd::Unspecified, 0));
}

#[tokio::test]
async fn warming_takes_the_newest_that_ram_has_room_for_and_evicts_nothing() {
    // As much on disk as in RAM; and next to nothing on disk.
    for value in [noise(64 * KIB), vec![b'v'; 64 * KIB]] {
        let rig = Rig::open().await;
        rig.engine.ram().set_budget(4 << 20);
        rig.fill(SPACE, 100, &value).await;
        rig.cool().await;
        let before = rig.engine.ram().stats().counters;
        let end = rig.warmed(WarmRequest::default()).await;
        let ram = rig.engine.ram().stats();
        assert_eq!(end.end(), WarmEnd::RamFull, "{end:?}");
        assert_eq!(ram.counters.evictions, before.evictions, "{end:?}");
        assert_eq!(end.from_disk, ram.entries as u64, "what came stays");
        assert!(ram.used_bytes <= ram.budget_bytes, "{ram:?}");
        assert!(ram.used_bytes > ram.budget_bytes / 4 * 3, "{ram:?}");
        rig.newest_are_in_ram(SPACE, 100, ram.entries);
        // And a RAM that is full is left as it is.
        let again = rig.warmed(WarmRequest::default()).await;
        assert_eq!((again.end(), again.from_disk), (WarmEnd::RamFull, 0));
        let ram = rig.engine.ram().stats();
        assert_eq!(ram.counters.evictions, before.evictions);
    }
}

#[tokio::test]
async fn warming_stays_within_the_quota_of_a_namespace_and_goes_on_with_others() {
    let rig = guarded().await;
    let (main, pull) = (namespace_number("main"), namespace_number("pull"));
    let (limited, other) = (Space::new(main, 0), Space::new(pull, 0));
    rig.fill(other, 10, &[b'v'; 64 * KIB]).await;
    rig.fill(limited, 60, &[b'v'; 64 * KIB]).await;
    rig.cool().await;
    let known = |name: &str, number, quota| {
        Arc::new(Namespace {
            name: name.into(),
            number,
            base: None,
            quota,
            is_write_once: false,
            ttl: None,
        })
    };
    let namespaces = [
        known("main", main, Some(ByteCount::mib(1))),
        known("pull", pull, None),
    ];
    rig.engine.namespaces().set(namespaces);
    rig.engine.apply_quotas();
    let within = |entries: u64| {
        let used = rig.engine.ram().quota_use(main).unwrap();
        assert_eq!(used.evictions, 0, "{used:?}");
        assert!((12..=15).contains(&entries), "{entries}");
        rig.newest_are_in_ram(limited, 60, entries as usize);
    };
    let end = rig
        .warmed(WarmRequest {
            namespace: Some("main".to_owned()),
            ..WarmRequest::default()
        })
        .await;
    assert_eq!(end.end(), WarmEnd::RamFull, "{end:?}");
    within(end.from_disk);
    rig.cool().await;
    let end = rig.warmed(WarmRequest::default()).await;
    assert_eq!(end.end(), WarmEnd::RamFull, "not all of it: {end:?}");
    within(end.from_disk - 10);
    assert!((0..10).all(|n| rig.is_in_ram(other, n)));
}
