//! What is dropped and may be asked about by other members: up to which version, and what must not
//! go at all.

use super::*;
use crate::directory::GenerationName;

impl Rig {
    /// Has the oldest generation dropped, by writing on.
    async fn drop_oldest(&self, mut version: u64) -> u64 {
        let before = self.stats().generations_dropped;
        let deadline = Instant::now() + GRACE;
        while self.stats().generations_dropped == before {
            assert!(Instant::now() < deadline, "nothing is dropped");
            let key = format!("fill{version}");
            self.put(key.as_bytes(), version, noise(version, 20_000))
                .await;
            version += 1;
        }
        version
    }
}

fn small() -> Rig {
    let rig = Rig::with(|options| options.budget_bytes = BUDGET_BYTES_MIN);
    rig.tier().keep_tombstones();
    rig
}

#[tokio::test]
async fn what_was_dropped_is_told_by_versions_and_not_by_the_clock_of_files() {
    // As far ahead as versions are after a fall, and further.
    let now_ms = fonn_base::clock::Clock::system().wall_ms();
    let ahead = (now_ms + 3_600_000) << 16;
    let rig = small();
    rig.put(b"key", ahead, noise(1, 2000)).await;
    assert_eq!(rig.tier().forgotten(), 0);
    rig.roll().await;
    let next = rig.drop_oldest(1).await;
    assert_eq!(rig.tier().forgotten(), ahead);
    assert_eq!(rig.version_of(b"key").await, None);
    // Of what is older nothing more is forgotten with the next one.
    rig.drop_oldest(next).await;
    assert_eq!(rig.tier().forgotten(), ahead);
}

#[tokio::test]
async fn a_restart_knows_what_was_dropped_before_it_and_what_is_in_what_it_drops() {
    let mut rig = small();
    rig.put(b"key", 1 << 40, noise(1, 2000)).await;
    rig.roll().await;
    let mut next = rig.drop_oldest(1).await;
    // One that is full would be followed by the next one.
    rig.roll().await;
    let id = rig.newest_id();
    rig.put(b"other", 1 << 41, noise(2, 2000)).await;
    rig.roll().await;
    rig.reopen();
    rig.tier().keep_tombstones();
    assert_eq!(rig.tier().forgotten(), 1 << 40);
    // Not read meanwhile: it would be carried over.
    while rig.shared().generations.by_id(id).is_some() {
        next = rig.drop_oldest(next).await;
    }
    assert_eq!(rig.tier().forgotten(), 1 << 41);
}

#[tokio::test]
async fn what_is_removed_unread_may_be_as_new_as_anything() {
    let mut rig = Rig::new();
    let state = StoreState {
        purges: Vec::new(),
        version_ceiling: 9000,
        ..StoreState::default()
    };
    rig.tier().save_state(&state).unwrap();
    for version in 1..=30 {
        let key = format!("key{version}");
        rig.put(key.as_bytes(), version, noise(version, 1 << 20))
            .await;
    }
    rig.reopen();
    assert_eq!(rig.tier().forgotten(), 0, "all of it is there");
    // A smaller budget: the oldest go before they are opened.
    rig.options.budget_bytes = BUDGET_BYTES_MIN;
    rig.reopen();
    assert_eq!(rig.version_of(b"key1").await, None);
    assert_eq!(rig.tier().forgotten(), 9000);
    rig.reopen();
    assert_eq!(rig.tier().forgotten(), 9000);
    // It is unknown what was dropped if the note is gone, and something was.
    std::fs::remove_file(rig.options.dir.join("forgotten")).unwrap();
    let first = rig.options.dir.join(GenerationName::first(1).to_string());
    assert!(!first.exists());
    let state = StoreState {
        purges: Vec::new(),
        version_ceiling: 9500,
        ..StoreState::default()
    };
    rig.tier().save_state(&state).unwrap();
    rig.reopen();
    assert_eq!(rig.tier().forgotten(), 9500);
}

#[tokio::test]
async fn compaction_leaves_out_no_tombstone_that_another_member_may_have_to_be_told() {
    for is_shared in [false, true] {
        let rig = Rig::new();
        rig.put(b"deleted", 1, noise(1, 2000)).await;
        if is_shared {
            rig.tier().keep_tombstones();
        }
        for version in 2..=40 {
            rig.put(b"busy", version, noise(version, 20_000)).await;
        }
        rig.delete(b"deleted", 41).await;
        rig.roll().await;
        rig.compact(1).await;
        let newest = rig
            .tier()
            .newest(SPACE, b"deleted", Reach::Below)
            .await
            .unwrap();
        assert_eq!(newest, is_shared.then_some(41), "{is_shared}");
        assert_eq!(rig.version_of(b"busy").await, Some(40));
    }
}
