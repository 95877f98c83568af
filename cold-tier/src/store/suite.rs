//! The contract of [`ObjectStore`] as a test that every backend has to pass.
//!
//! Call [`run`] from a test of the backend, with a store that holds nothing below `suite/`. It
//! panics at the first breach.

#![allow(clippy::unwrap_used, clippy::panic)] // A test, compiled only for tests.

use std::sync::Arc;

use bytes::Bytes;
use tokio::task::JoinSet;

use super::{Body, ObjectKey, ObjectStore, Page, Piece, Pieces, StoreErrorKind};

/// More than a segment of values of usual length.
const LARGE_LEN: usize = (17 << 20) + 13;

/// Checks the whole contract.
///
/// # Panics
/// At the first breach.
pub async fn run(store: Arc<dyn ObjectStore>) {
    let store_ref = store.as_ref();
    what_was_put_is_read_back(store_ref).await;
    put_replaces(store_ref).await;
    bodies_of_many_chunks_are_joined(store_ref).await;
    large_objects_are_whole(store_ref).await;
    ranges_select_bytes(store_ref).await;
    suffixes_are_the_last_bytes(store_ref).await;
    streams_are_what_ranges_are(store_ref).await;
    absent_objects_are_not_found(store_ref).await;
    delete_can_be_repeated(store_ref).await;
    put_if_absent_never_replaces(store_ref).await;
    lists_are_ordered_filtered_and_paged(store_ref).await;
    lists_follow_writes_and_deletes(store_ref).await;
    lists_begin_behind_any_key(store_ref).await;
    one_of_many_creators_wins(&store).await;
    readers_see_one_whole_version(&store).await;
}

fn key(text: &str) -> ObjectKey {
    ObjectKey::new(&format!("suite/{text}")).unwrap()
}

/// Bytes that differ at every position and from seed to seed.
fn body(len: usize, seed: u8) -> Bytes {
    (0..len).map(|index| (index % 251) as u8 ^ seed).collect()
}

async fn kind_of<T>(call: super::StoreFuture<'_, T>) -> StoreErrorKind {
    match call.await {
        Ok(_) => panic!("succeeded where an error was expected"),
        Err(error) => error.kind,
    }
}

async fn what_was_put_is_read_back(store: &dyn ObjectStore) {
    for (name, len) in [
        ("empty", 0),
        ("byte", 1),
        ("page", 4096),
        ("large", (1 << 20) + 7),
    ] {
        let key = key(&format!("read/{name}"));
        store.put(&key, body(len, 1).into()).await.unwrap();
        assert_eq!(store.get(&key).await.unwrap(), body(len, 1), "{name}");
        let meta = store.head(&key).await.unwrap();
        assert_eq!((&meta.key, meta.size_bytes), (&key, len as u64));
    }
}

async fn put_replaces(store: &dyn ObjectStore) {
    let key = key("replace/object");
    store.put(&key, body(5000, 1).into()).await.unwrap();
    store.put(&key, body(10, 2).into()).await.unwrap();
    assert_eq!(store.get(&key).await.unwrap(), body(10, 2));
    assert_eq!(store.head(&key).await.unwrap().size_bytes, 10);
}

async fn bodies_of_many_chunks_are_joined(store: &dyn ObjectStore) {
    let key = key("chunks/object");
    let whole = body(100_000, 4);
    let chunks = whole.chunks(777).map(Bytes::copy_from_slice);
    let chunks: Body = chunks.collect::<Vec<_>>().into();
    store.put(&key, chunks.clone()).await.unwrap();
    assert_eq!(store.get(&key).await.unwrap(), whole);
    store.delete(&key).await.unwrap();
    store.put_if_absent(&key, chunks).await.unwrap();
    assert_eq!(store.get(&key).await.unwrap(), whole);
}

/// Not a multiple of anything.
async fn large_objects_are_whole(store: &dyn ObjectStore) {
    let (object, once) = (key("large/object"), key("large/once"));
    let (whole, other) = (body(LARGE_LEN, 5), body(LARGE_LEN + 1, 6));
    let middle = LARGE_LEN / 3;
    let chunks: Body = vec![whole.slice(..middle), whole.slice(middle..)].into();
    store.put(&object, chunks).await.unwrap();
    assert!(store.get(&object).await.unwrap() == whole);
    let size = store.head(&object).await.unwrap().size_bytes;
    assert_eq!(size, LARGE_LEN as u64);
    let behind = (16 << 20) - 5..(16 << 20) + 5;
    let read = store.get_range(&object, behind.clone()).await;
    let behind = behind.start as usize..behind.end as usize;
    assert_eq!(read.unwrap(), whole[behind]);
    store.put(&object, other.clone().into()).await.unwrap();
    assert!(store.get(&object).await.unwrap() == other);

    store
        .put_if_absent(&once, whole.clone().into())
        .await
        .unwrap();
    let kind = kind_of(store.put_if_absent(&once, other.into())).await;
    assert_eq!(kind, StoreErrorKind::AlreadyExists);
    assert!(store.get(&once).await.unwrap() == whole);
    for key in [object, once] {
        store.delete(&key).await.unwrap();
    }
}

async fn ranges_select_bytes(store: &dyn ObjectStore) {
    let (range, empty) = (key("range/object"), key("range/empty"));
    let whole = body(1000, 3);
    store.put(&range, whole.clone().into()).await.unwrap();
    store.put(&empty, Body::default()).await.unwrap();
    for (start, end) in [(0, 1), (0, 1000), (999, 1000), (17, 523)] {
        let part = store.get_range(&range, start..end).await.unwrap();
        assert_eq!(part, whole[start as usize..end as usize]);
    }
    assert_eq!(
        store.get_range(&range, 990..5000).await.unwrap(),
        whole[990..]
    );
    assert_eq!(store.get_range(&range, 0..u64::MAX).await.unwrap(), whole);
    #[allow(clippy::reversed_empty_ranges)] // A wrong range on purpose.
    for wrong in [0..0, 5..5, 9..3] {
        let kind = kind_of(store.get_range(&range, wrong.clone())).await;
        assert_eq!(kind, StoreErrorKind::Invalid, "{wrong:?}");
    }
    for behind in [1000..1001, 1001..2000, u64::MAX - 1..u64::MAX] {
        let kind = kind_of(store.get_range(&range, behind.clone())).await;
        assert_eq!(kind, StoreErrorKind::OutOfRange, "{behind:?}");
    }
    assert_eq!(
        kind_of(store.get_range(&empty, 0..1)).await,
        StoreErrorKind::OutOfRange
    );
}

/// The bytes of a range as they came, or how it failed.
async fn streamed(
    store: &dyn ObjectStore,
    key: &ObjectKey,
    range: std::ops::Range<u64>,
) -> Result<Vec<u8>, StoreErrorKind> {
    let (to, mut pieces) = Pieces::channel();
    let reading = async {
        let (mut bytes, mut has_begun) = (Vec::new(), false);
        while let Some(piece) = pieces.recv().await {
            match piece {
                Piece::Begin => {
                    has_begun = true;
                    bytes.clear();
                }
                Piece::Bytes(piece) => {
                    assert!(has_begun && !piece.is_empty());
                    bytes.extend_from_slice(&piece);
                }
            }
        }
        bytes
    };
    let sending = async move { store.stream_range(key, range, &to).await };
    let (sent, bytes) = tokio::join!(sending, reading);
    let len = sent.map_err(|error| error.kind)?;
    assert_eq!(len, bytes.len() as u64);
    Ok(bytes)
}

async fn streams_are_what_ranges_are(store: &dyn ObjectStore) {
    let (object, absent) = (key("stream/object"), key("stream/absent"));
    // Several pieces, and for a directory exactly two steps of reading.
    let len = 2 << 20;
    store
        .put(&object, body(len as usize, 3).into())
        .await
        .unwrap();
    for range in [
        0..len,
        0..1,
        5..1 << 20,
        3..len - 3,
        len - 1..len,
        7..len + 100,
        len..len + 1,
        4..4,
    ] {
        let read = store.get_range(&object, range.clone()).await;
        let read = read.map(|bytes| bytes.to_vec()).map_err(|error| error.kind);
        let streamed = streamed(store, &object, range.clone()).await;
        assert!(streamed == read, "{range:?}");
    }
    let nothing = streamed(store, &absent, 0..10).await;
    assert_eq!(nothing, Err(StoreErrorKind::NotFound));
    store.delete(&object).await.unwrap();
}

async fn suffixes_are_the_last_bytes(store: &dyn ObjectStore) {
    let (object, empty) = (key("suffix/object"), key("suffix/empty"));
    let whole = body(1000, 7);
    store.put(&object, whole.clone().into()).await.unwrap();
    store.put(&empty, Body::default()).await.unwrap();
    for len in [1, 16, 999, 1000, 1001, 65_536] {
        let suffix = store.get_suffix(&object, len).await.unwrap();
        let start = 1000usize.saturating_sub(len as usize);
        assert_eq!(suffix.bytes, whole[start..], "the last {len}");
        assert_eq!(suffix.object_size_bytes, 1000);
    }
    for (key, len, expected) in [
        (&object, 0, StoreErrorKind::Invalid),
        (&empty, 0, StoreErrorKind::Invalid),
        (&empty, 1, StoreErrorKind::OutOfRange),
    ] {
        let kind = kind_of(store.get_suffix(key, len)).await;
        assert_eq!(kind, expected, "the last {len} of {key}");
    }
}

async fn absent_objects_are_not_found(store: &dyn ObjectStore) {
    store
        .put(&key("absent/dir/object"), body(1, 1).into())
        .await
        .unwrap();
    for name in [
        "absent/none",
        "absent/dir",
        "absent/dir/obj",
        "absent/dir/object2",
    ] {
        let key = key(name);
        assert_eq!(
            kind_of(store.get(&key)).await,
            StoreErrorKind::NotFound,
            "{name}"
        );
        assert_eq!(
            kind_of(store.get_range(&key, 0..1)).await,
            StoreErrorKind::NotFound
        );
        assert_eq!(
            kind_of(store.get_suffix(&key, 8)).await,
            StoreErrorKind::NotFound
        );
        assert_eq!(kind_of(store.head(&key)).await, StoreErrorKind::NotFound);
    }
}

async fn delete_can_be_repeated(store: &dyn ObjectStore) {
    let (gone, other) = (key("delete/gone"), key("delete/gone2"));
    store.put(&gone, body(9, 1).into()).await.unwrap();
    store.put(&other, body(9, 2).into()).await.unwrap();
    store.delete(&gone).await.unwrap();
    assert_eq!(kind_of(store.get(&gone)).await, StoreErrorKind::NotFound);
    store.delete(&gone).await.unwrap();
    store.delete(&key("delete/no/such/path")).await.unwrap();
    assert_eq!(store.get(&other).await.unwrap(), body(9, 2));
    store.put_if_absent(&gone, body(9, 3).into()).await.unwrap();
    assert_eq!(store.get(&gone).await.unwrap(), body(9, 3));
}

async fn put_if_absent_never_replaces(store: &dyn ObjectStore) {
    let key = key("absent-put/object");
    store
        .put_if_absent(&key, body(100, 1).into())
        .await
        .unwrap();
    let kind = kind_of(store.put_if_absent(&key, body(100, 2).into())).await;
    assert_eq!(kind, StoreErrorKind::AlreadyExists);
    assert_eq!(store.get(&key).await.unwrap(), body(100, 1));
}

/// The names of a page, without the prefix of the suite.
fn names(page: &Page) -> Vec<&str> {
    let names = page.objects.iter().map(|meta| meta.key.as_str());
    names
        .map(|name| name.strip_prefix("suite/").unwrap())
        .collect()
}

async fn lists_are_ordered_filtered_and_paged(store: &dyn ObjectStore) {
    // In byte order; `-` and `.` sort before `/`, `0` and `=` behind it.
    let all = [
        "list/a-b",
        "list/a.b",
        "list/a/x",
        "list/a/y/z",
        "list/a0",
        "list/a=b",
        "list/b/x",
        "list/b1",
    ];
    for (index, name) in all.iter().rev().enumerate() {
        store.put(&key(name), body(index, 1).into()).await.unwrap();
    }
    store.put(&key("list2"), Body::default()).await.unwrap();
    let whole = store.list("suite/list/", None, 1000).await.unwrap();
    assert_eq!(names(&whole), all);
    assert_eq!(whole.next, None);
    let sizes: Vec<u64> = whole.objects.iter().map(|meta| meta.size_bytes).collect();
    assert_eq!(sizes, [7, 6, 5, 4, 3, 2, 1, 0]);
    for limit in 1..=9 {
        let (mut found, mut from) = (Vec::new(), None::<String>);
        loop {
            let page = store
                .list("suite/list/", from.as_deref(), limit)
                .await
                .unwrap();
            assert!(page.objects.len() <= limit);
            found.extend(names(&page).into_iter().map(str::to_owned));
            from = page.next;
            if from.is_none() {
                break;
            }
        }
        assert_eq!(found, all, "in pages of {limit}");
    }
    for (prefix, expected) in [
        ("suite/list/a/", &all[2..4]),
        ("suite/list/a/y", &all[3..4]),
        ("suite/list/a", &all[0..6]),
        ("suite/list/b", &all[6..8]),
        ("suite/list/a/x", &all[2..3]),
        ("suite/list/c", &[]),
        ("suite/list/a/x/", &[]),
    ] {
        let page = store.list(prefix, None, 1000).await.unwrap();
        assert_eq!(
            (names(&page).as_slice(), page.next.clone()),
            (expected, None),
            "{prefix}"
        );
    }
    assert_eq!(
        kind_of(store.list("suite/list/", None, 0)).await,
        StoreErrorKind::Invalid
    );
}

async fn lists_follow_writes_and_deletes(store: &dyn ObjectStore) {
    for name in ["follow/a", "follow/b", "follow/c", "follow/d"] {
        store.put(&key(name), Body::default()).await.unwrap();
    }
    let first = store.list("suite/follow/", None, 2).await.unwrap();
    assert_eq!(names(&first), ["follow/a", "follow/b"]);
    // The place where the list goes on may itself go away.
    store.delete(&key("follow/b")).await.unwrap();
    store.delete(&key("follow/c")).await.unwrap();
    store.put(&key("follow/e"), Body::default()).await.unwrap();
    let second = store
        .list("suite/follow/", first.next.as_deref(), 10)
        .await
        .unwrap();
    assert_eq!(names(&second), ["follow/d", "follow/e"]);
}

async fn lists_begin_behind_any_key(store: &dyn ObjectStore) {
    for name in ["after/a", "after/c", "after/d/x", "after/e"] {
        store.put(&key(name), Body::default()).await.unwrap();
    }
    for (after, expected) in [
        ("after/a", &["after/c", "after/d/x", "after/e"][..]),
        ("after/b", &["after/c", "after/d/x", "after/e"]),
        ("after/d", &["after/d/x", "after/e"]),
        ("after/d/x", &["after/e"]),
        ("after/e", &[]),
        ("after/zz", &[]),
        ("aaa", &["after/a", "after/c", "after/d/x", "after/e"]),
        ("zzz", &[]),
    ] {
        let after_key = key(after);
        let page = store.list("suite/after/", Some(after_key.as_str()), 10);
        let page = page.await;
        assert_eq!(names(&page.unwrap()), expected, "after {after}");
    }
}

async fn one_of_many_creators_wins(store: &Arc<dyn ObjectStore>) {
    let mut creators = JoinSet::new();
    for seed in 0..8u8 {
        let store = Arc::clone(store);
        creators.spawn(async move {
            match store
                .put_if_absent(&key("race/object"), body(5000, seed).into())
                .await
            {
                Ok(()) => Some(seed),
                Err(error) => {
                    assert_eq!(error.kind, StoreErrorKind::AlreadyExists);
                    None
                }
            }
        });
    }
    let winners: Vec<u8> = creators.join_all().await.into_iter().flatten().collect();
    assert_eq!(winners.len(), 1, "{winners:?}");
    assert_eq!(
        store.get(&key("race/object")).await.unwrap(),
        body(5000, winners[0])
    );
}

async fn readers_see_one_whole_version(store: &Arc<dyn ObjectStore>) {
    const LEN: usize = 200_000;
    store
        .put(&key("whole/object"), body(LEN, 0).into())
        .await
        .unwrap();
    let mut tasks = JoinSet::new();
    for seed in 1..5u8 {
        let store = Arc::clone(store);
        tasks.spawn(async move {
            store
                .put(&key("whole/object"), body(LEN, seed).into())
                .await
                .unwrap()
        });
    }
    for _ in 0..16 {
        let store = Arc::clone(store);
        tasks.spawn(async move {
            let read = store.get(&key("whole/object")).await.unwrap();
            assert!(
                (0..5).any(|seed| read == body(LEN, seed)),
                "a mixture of versions"
            );
        });
    }
    tasks.join_all().await;
}
