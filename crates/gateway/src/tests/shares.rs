//! Clients that ask for much, or go, while others are served.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use fonn_auth::Source;
use fonn_proto::Space;
use fonn_reapi::frame;
use fonn_reapi::messages::{Digest, FindMissingBlobsRequest};
use futures_util::FutureExt as _;
use futures_util::future::join_all;
use http_body_util::{BodyExt as _, Full};
use hyper::{Request, Version};
use tokio::time::timeout;

use super::fake::{Fault, PEER, STEP, Site, VALUE_LEN_MAX, ask, get};
use crate::life::{Life, Times};
use crate::store::Form;

fn insert(site: &Site, key: &'static str, len: usize) {
    let key = (Space::default(), Bytes::from(key));
    let mut entries = site.store.0.entries.lock();
    entries.insert(key, (Bytes::from(vec![7; len]), Form::Value));
}

fn life_at(last: u8) -> Arc<Life> {
    let address = IpAddr::V4(Ipv4Addr::new(192, 0, 2, last));
    Life::new(Times::default(), Source::of(Some(address)), false)
}

#[tokio::test(start_paused = true)]
async fn questions_for_many_blobs_leave_room_for_reads() {
    let site = Site::new();
    insert(&site, "key", 1);
    site.store.set(Fault::ProbesHang);
    let calls = (0..40).map(|call| {
        let digests = (0..256).map(|at| Digest {
            hash: format!("{call:032x}{at:032x}"),
            size_bytes: 1,
        });
        let message = frame(&FindMissingBlobsRequest {
            blob_digests: digests.collect(),
            ..FindMissingBlobsRequest::default()
        });
        let path = "/build.bazel.remote.execution.v2.ContentAddressableStorage/FindMissingBlobs";
        let request = Request::post(path)
            .version(Version::HTTP_2)
            .header("content-type", "application/grpc");
        ask(&site.front, request.body(Full::new(message)).unwrap())
    });
    let mut calls = Box::pin(join_all(calls));
    assert!(timeout(STEP, &mut calls).await.is_err());
    assert_eq!(ask(&site.front, get("/key")).await.status, 200);
    // Each of them ends, and says that its blobs are missing.
    for reply in calls.await {
        assert!(reply.status == 200 && reply.body.len() > 256 * 64);
    }
}

#[tokio::test]
async fn a_read_ends_with_its_client() {
    let site = Site::new();
    site.store.set(Fault::Hangs);
    let getting = &site.store.0.getting;
    let mut read = Box::pin(ask(&site.front, get("/key")));
    assert!(read.as_mut().now_or_never().is_none());
    assert_eq!(getting.load(Ordering::SeqCst), 1);
    drop(read);
    assert_eq!(getting.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn a_source_takes_half_of_the_room_for_what_is_unread() {
    let site = Site::new();
    insert(&site, "key", VALUE_LEN_MAX);
    site.store
        .0
        .unread_max
        .store(4 * VALUE_LEN_MAX, Ordering::SeqCst);
    let (greedy, other) = (life_at(1), life_at(2));
    let begin = async |life| site.front.answer(get("/key"), PEER, life).await;
    let unread = [begin(&greedy).await, begin(&greedy).await];
    // The third of this source waits, and a body of another source does not.
    let mut third = Box::pin(begin(&greedy));
    assert!(timeout(STEP, &mut third).await.is_err());
    assert!(begin(&other).now_or_never().is_some());
    // What stands still gives way within its source.
    let third = third.await;
    assert_eq!(third.status(), 200);
    assert!(greedy.is_cut() && !other.is_cut());
    let read = third.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(read.len(), VALUE_LEN_MAX);
    drop(unread);
    assert_eq!(site.store.0.held.load(Ordering::SeqCst), 0);
}
