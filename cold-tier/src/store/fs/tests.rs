use std::num::NonZeroUsize;
use std::os::unix::fs::symlink;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::store::suite;

fn pool(threads: usize, queue_max: usize) -> BlockingPool {
    BlockingPool::new("fs-test", NonZeroUsize::new(threads).unwrap(), queue_max).unwrap()
}

fn store() -> (TempDir, FsStore) {
    let dir = tempfile::tempdir().unwrap();
    let store = FsStore::open(dir.path().join("new/root"), pool(2, 64)).unwrap();
    (dir, store)
}

fn key(text: &str) -> ObjectKey {
    ObjectKey::new(text).unwrap()
}

fn temporaries(store: &FsStore) -> usize {
    fs::read_dir(store.dir.root.join(TEMPORARY_DIR))
        .unwrap()
        .count()
}

#[tokio::test]
async fn keeps_the_contract_of_stores() {
    let (_dir, store) = store();
    suite::run(Arc::new(store.clone())).await;
    assert_eq!(temporaries(&store), 0);
}

#[tokio::test]
async fn objects_outlive_the_store_and_are_plain_files() {
    let (_dir, store) = store();
    store.put(&key("v1/a/b"), "body".into()).await.unwrap();
    let root = store.dir.root.clone();
    drop(store);
    assert_eq!(fs::read(root.join("v1/a/b")).unwrap(), b"body");
    let store = FsStore::open(&root, pool(1, 4)).unwrap();
    assert_eq!(store.get(&key("v1/a/b")).await.unwrap(), "body");
    assert!(store.head(&key("v1/a/b")).await.unwrap().modified_ms > 1_600_000_000_000);
}

#[tokio::test]
async fn a_key_cannot_be_file_and_directory() {
    let (_dir, store) = store();
    store.put(&key("a"), Body::default()).await.unwrap();
    let error = store.put(&key("a/b"), Body::default()).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Invalid, "{error:?}");
    store.put(&key("c/d"), Body::default()).await.unwrap();
    let error = store.put(&key("c"), Body::default()).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Invalid, "{error:?}");
    // Reading them finds nothing, and nothing is lost or left behind.
    for absent in ["a/b", "c", "a/b/c"] {
        let error = store.get(&key(absent)).await.unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::NotFound, "{absent}");
        let error = store.head(&key(absent)).await.unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::NotFound, "{absent}");
        store.delete(&key("a/b")).await.unwrap();
    }
    assert!(store.get(&key("a")).await.is_ok() && store.get(&key("c/d")).await.is_ok());
    assert_eq!(temporaries(&store), 0);
}

#[tokio::test]
async fn foreign_files_are_not_listed() {
    let (dir, store) = store();
    let root = &store.dir.root;
    fs::write(dir.path().join("outside"), "x").unwrap();
    symlink(dir.path(), root.join("link")).unwrap();
    fs::write(root.join(".hidden"), "x").unwrap();
    fs::write(root.join("has space"), "x").unwrap();
    fs::create_dir(root.join("empty")).unwrap();
    store.put(&key("own"), Body::default()).await.unwrap();
    let page = store.list("", None, 100).await.unwrap();
    assert_eq!(page.objects.len(), 1, "{page:?}");
    assert_eq!((page.objects[0].key.as_str(), page.next), ("own", None));
}

#[tokio::test]
async fn only_old_remains_of_crashes_are_removed() {
    let (_dir, store) = store();
    let temporary_dir = store.dir.root.join(TEMPORARY_DIR);
    fs::write(temporary_dir.join("young"), "x").unwrap();
    let old = File::create(temporary_dir.join("old")).unwrap();
    old.set_modified(SystemTime::now() - TEMPORARY_AGE_MAX * 2)
        .unwrap();
    let store = FsStore::open(&store.dir.root, pool(1, 4)).unwrap();
    assert_eq!(temporaries(&store), 1);
    assert!(temporary_dir.join("young").exists());
}

#[tokio::test]
async fn a_busy_pool_is_a_throttled_store() {
    let (_dir, store) = store();
    let full = FsStore {
        pool: pool(1, 0),
        dir: Arc::clone(&store.dir),
    };
    let error = full.get(&key("a")).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Throttled);
    assert!(error.is_retryable());
}

#[test]
fn a_root_that_cannot_be_made_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), "x").unwrap();
    assert!(FsStore::open(dir.path().join("file"), pool(1, 4)).is_err());
    assert!(FsStore::open(dir.path().join("file/below"), pool(1, 4)).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn pages_agree_with_a_sorted_list_of_all_keys(
        names in proptest::collection::btree_set("[a-c]([-.0=a]{0,2}/[ab0]){0,2}", 0..24),
        prefix in "[a-c]?[-./a]{0,2}",
        limit in 1usize..7,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let mut expected = Vec::new();
        for name in names {
            let path = dir.path().join(&name);
            // Names that would be file and directory at once are left out.
            let is_made = path.parent().is_some_and(|parent| fs::create_dir_all(parent).is_ok())
                && fs::write(&path, "").is_ok();
            if is_made && name.starts_with(&prefix) {
                expected.push(name);
            }
        }
        let (mut found, mut after) = (Vec::new(), String::new());
        loop {
            let page = walk::objects(dir.path(), &prefix, &after, limit).unwrap();
            let Some(last) = page.last() else { break };
            prop_assert!(page.len() <= limit);
            after = last.key.as_str().to_owned();
            found.extend(page.into_iter().map(|meta| meta.key.to_string()));
        }
        prop_assert_eq!(found, expected);
    }
}
