//! Responses that clients read slowly while others wait for room.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use fonn_auth::Source;
use fonn_proto::Space;
use fonn_reapi::messages::{
    BatchReadBlobsRequest, Digest, GetTreeRequest, ReadRequest, SplitBlobRequest,
};
use fonn_reapi::{Deflater, frame};
use futures_util::FutureExt as _;
use http_body_util::{BodyExt as _, Full};
use hyper::{Request, Version};
use ring::digest::{SHA256, digest};
use tokio::time::{sleep, timeout};

use super::fake::{MEMORY_LEN, PEER, STEP, Site, VALUE_LEN_MAX, all_turns, ask, get};
use crate::actions::hex;
use crate::life::{Life, Times};
use crate::long::{Chunk, Manifest};
use crate::store::Form;

fn call(method: &str, message: Bytes) -> Request<Full<Bytes>> {
    let request = Request::post(format!("/{method}"))
        .version(Version::HTTP_2)
        .header("content-type", "application/grpc");
    request.body(Full::new(message)).unwrap()
}

fn sha256(bytes: &[u8]) -> String {
    hex(digest(&SHA256, bytes).as_ref())
}

fn new_life() -> Arc<Life> {
    Life::new(Times::default(), Source::of(None), false)
}

impl Site {
    /// Stores a value, of which the test has no other copy.
    fn insert(&self, key: &str, value: Vec<u8>, form: Form) {
        let key = (Space::default(), Bytes::copy_from_slice(key.as_bytes()));
        let mut entries = self.store.0.entries.lock();
        entries.insert(key, (Bytes::from(value), form));
    }

    fn held(&self) -> usize {
        self.store.0.held.load(Ordering::SeqCst)
    }

    /// Reads a value a frame at a time. Returns its length, and whether its connection was cut.
    async fn read_slowly(&self, path: &str) -> (usize, bool) {
        let life = Life::new(Times::default(), Source::of(None), false);
        let response = self.front.answer(get(path), PEER, &life).await;
        assert_eq!(response.status(), 200, "{path}");
        let (mut body, mut len) = (response.into_body(), 0);
        while let Some(frame) = body.frame().await {
            len += frame.unwrap().into_data().unwrap().len();
            sleep(STEP).await;
        }
        (len, life.is_cut())
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_made_while_it_is_read_gives_way_to_no_other_one() {
    let site = Site::new();
    // Equal bytes have no border where a chunk would end early.
    let (long, text) = (vec![b'b'; 2 * VALUE_LEN_MAX + 5], vec![b'a'; VALUE_LEN_MAX]);
    let (mut deflater, mut stream) = (Deflater::new().unwrap(), Vec::new());
    deflater.step(&text, &mut stream).unwrap();
    deflater.finish(&mut stream).unwrap();
    let packed = format!("/cas/{}", hex(digest(&SHA256, &text).as_ref()));
    let puts = [
        Request::put("/long").body(Full::<Bytes>::from(long.clone())),
        Request::put(&packed)
            .header("content-encoding", "zstd")
            .body(Full::<Bytes>::from(stream)),
    ];
    for put in puts {
        assert_eq!(ask(&site.front, put.unwrap()).await.status, 200);
    }
    // There is room for one body, so the other one waits.
    site.store.0.unread_max.store(0, Ordering::SeqCst);
    for (path, len) in [("/long", long.len()), (&packed, text.len())] {
        let other = async {
            sleep(STEP).await;
            ask(&site.front, get(path)).await
        };
        let (read, _) = tokio::join!(site.read_slowly(path), other);
        assert_eq!(read, (len, false), "{path}");
    }
    assert_eq!(site.store.0.held.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn a_read_that_waits_for_room_holds_no_value() {
    let site = Site::new();
    let blob = vec![7; VALUE_LEN_MAX];
    let (name, key) = (sha256(&blob), format!("cas/{}", sha256(&blob)));
    let read = frame(&ReadRequest {
        resource_name: format!("blobs/{name}/{VALUE_LEN_MAX}"),
        ..ReadRequest::default()
    });
    site.insert("first", vec![1; VALUE_LEN_MAX], Form::Value);
    site.store.0.unread_max.store(0, Ordering::SeqCst);
    for request in [
        get(&format!("/{key}")),
        call("google.bytestream.ByteStream/Read", read),
    ] {
        site.insert(&key, blob.clone(), Form::Value);
        let first = site.front.answer(get("/first"), PEER, &new_life()).await;
        let life = new_life();
        let mut waiting = Box::pin(site.front.answer(request, PEER, &life));
        assert!(waiting.as_mut().now_or_never().is_none());
        let value = site.store.value(&key).unwrap();
        site.store.evict(|bytes| *bytes == value);
        assert!(value.is_unique());
        site.insert(&key, blob.clone(), Form::Value);
        drop(first);
        let response = waiting.await;
        assert_eq!(response.status(), 200);
        let read = response.into_body().collect().await.unwrap().to_bytes();
        assert!(read.ends_with(&blob[..1000]) && read.len() >= blob.len());
    }
    assert_eq!(site.held(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_chunk_that_waits_for_room_is_not_read() {
    let site = Site::new();
    let long = vec![b'b'; 2 * VALUE_LEN_MAX];
    let put = Request::put("/long").body(Full::<Bytes>::from(long));
    assert_eq!(ask(&site.front, put.unwrap()).await.status, 200);
    site.insert("first", vec![1; VALUE_LEN_MAX], Form::Value);
    site.store.0.unread_max.store(0, Ordering::SeqCst);
    let first = site.front.answer(get("/first"), PEER, &new_life()).await;
    site.store.taken();
    let life = new_life();
    let mut waiting = Box::pin(site.front.answer(get("/long"), PEER, &life));
    assert!(timeout(STEP, &mut waiting).await.is_err());
    // The list of chunks was read, and no chunk.
    assert_eq!(site.store.taken(), [Bytes::from("long")]);
    drop(first);
    let response = waiting.await;
    assert_eq!(response.status(), 200);
    drop(response);
    assert_eq!(site.held(), 0);
}

#[tokio::test]
async fn a_blob_is_counted_until_all_that_is_compressed_of_it_is_sent() {
    let site = Site::new();
    // It does not get shorter, so each step of it is sent.
    let hashes = (0..VALUE_LEN_MAX / 32).map(|at| digest(&SHA256, &at.to_le_bytes()));
    let blob: Vec<u8> = hashes.flat_map(|hash| hash.as_ref().to_vec()).collect();
    let name = sha256(&blob);
    let read = frame(&ReadRequest {
        resource_name: format!("compressed-blobs/zstd/{name}/{VALUE_LEN_MAX}"),
        ..ReadRequest::default()
    });
    site.insert(&format!("cas/{name}"), blob, Form::Value);
    let read = call("google.bytestream.ByteStream/Read", read);
    let response = site.front.answer(read, PEER, &new_life()).await;
    let (mut body, mut unsent) = (response.into_body(), Vec::new());
    while let Some(part) = body.frame().await {
        unsent.push(part.unwrap());
    }
    drop(body);
    assert!(unsent.len() > 1);
    assert_eq!(site.held(), VALUE_LEN_MAX);
    drop(unsent);
    assert_eq!(site.held(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_blob_that_is_split_is_not_read_before_its_turn() {
    let site = Site::new();
    let blob = vec![7; VALUE_LEN_MAX];
    let request = frame(&SplitBlobRequest {
        blob_digest: Some(Digest {
            hash: sha256(&blob),
            size_bytes: VALUE_LEN_MAX as i64,
        }),
        ..SplitBlobRequest::default()
    });
    site.insert(&format!("cas/{}", sha256(&blob)), blob, Form::Value);
    let path = "build.bazel.remote.execution.v2.ContentAddressableStorage/SplitBlob";
    let life = new_life();
    let turns = all_turns(&site.front).await;
    let split = site.front.answer(call(path, request), PEER, &life);
    let mut split = Box::pin(split);
    assert!(timeout(STEP, &mut split).await.is_err());
    assert!(site.store.taken().is_empty());
    drop(turns);
    let response = split.await;
    // A refusal would have its status in the head.
    assert!(!response.headers().contains_key("grpc-status"));
    assert!(!site.store.taken().is_empty());
}

#[tokio::test]
async fn a_directory_is_charged_before_it_is_read() {
    let site = Site::new();
    let request = frame(&GetTreeRequest {
        root_digest: Some(Digest {
            hash: sha256(b"directory"),
            size_bytes: 1 + MEMORY_LEN as i64,
        }),
        ..GetTreeRequest::default()
    });
    let path = "build.bazel.remote.execution.v2.ContentAddressableStorage/GetTree";
    let call = call(path, request);
    let response = site.front.answer(call, PEER, &new_life()).await;
    assert_eq!(response.headers()["grpc-status"], "5");
    assert!(site.store.taken().is_empty());
}

#[tokio::test]
async fn a_value_that_is_no_result_is_not_charged_as_one() {
    let site = Site::new();
    let key = format!("ac/{}", sha256(b"action"));
    site.insert(&key, vec![0xff; VALUE_LEN_MAX], Form::Value);
    let read = ask(&site.front, get(&format!("/{key}"))).await;
    assert_eq!(read.status, 200);
    assert_eq!(read.body.len(), VALUE_LEN_MAX);
    assert_eq!(site.store.0.charged_max.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_result_that_is_long_as_json_is_counted_as_json() {
    let site = Site::new();
    // Links without a path, each with `node_properties.mtime` at 0.
    let result = b"\x62\x04\x22\x02\x12\x00".repeat(2000);
    let (key, result_len) = (format!("ac/{}", sha256(b"action")), result.len());
    site.insert(&key, result, Form::Value);
    let request = Request::get(format!("/{key}")).header("accept", "application/json");
    let request = request.body(Full::<Bytes>::default()).unwrap();
    let response = site.front.answer(request, PEER, &new_life()).await;
    assert_eq!(response.status(), 200);
    let held = site.held();
    let json = response.into_body().collect().await.unwrap().to_bytes();
    assert!(json.len() > 4 * result_len);
    assert_eq!(held, json.len());
}

#[tokio::test(start_paused = true)]
async fn batches_that_wait_for_room_are_charged() {
    let site = Site::new();
    let blob = vec![7; VALUE_LEN_MAX];
    let message = frame(&BatchReadBlobsRequest {
        digests: vec![Digest {
            hash: sha256(&blob),
            size_bytes: VALUE_LEN_MAX as i64,
        }],
        ..BatchReadBlobsRequest::default()
    });
    let path = "build.bazel.remote.execution.v2.ContentAddressableStorage/BatchReadBlobs";
    site.insert("first", vec![1; VALUE_LEN_MAX], Form::Value);
    site.insert(&format!("cas/{}", sha256(&blob)), blob, Form::Value);
    site.store.0.unread_max.store(0, Ordering::SeqCst);
    let first = site.front.answer(get("/first"), PEER, &new_life()).await;
    let life = new_life();
    let mut waiting = Vec::new();
    for _ in 0..64 {
        let answer = site.front.answer(call(path, message.clone()), PEER, &life);
        let mut answer = Box::pin(answer);
        if answer.as_mut().now_or_never().is_none() {
            waiting.push(answer);
        }
    }
    // Each is two blobs. The others were told that theirs is missing.
    assert_eq!(waiting.len(), MEMORY_LEN / VALUE_LEN_MAX / 2);
    let charged = &site.store.0.charged;
    assert!(charged.load(Ordering::SeqCst) <= MEMORY_LEN);
    drop(first);
    for answer in waiting {
        let response = answer.await;
        let read = response.into_body().collect().await.unwrap().to_bytes();
        assert!(read.len() > VALUE_LEN_MAX);
    }
    assert_eq!((charged.load(Ordering::SeqCst), site.held()), (0, 0));
}

#[tokio::test]
async fn the_list_of_chunks_of_a_value_is_counted_while_the_value_is_read() {
    let site = Site::new();
    let mut manifest = Manifest::default();
    let hash = digest(&SHA256, b"x");
    let hash: &[u8] = hash.as_ref();
    let chunk = Chunk {
        digest: *hash.first_chunk().unwrap(),
        len: 1,
    };
    assert!((0..100).all(|_| manifest.push(chunk)));
    site.insert(&format!("cas/{}", sha256(b"x")), b"x".to_vec(), Form::Value);
    site.insert("long", manifest.encode(), Form::Manifest);
    let list_len = 2 * manifest.encode().len();
    let response = site.front.answer(get("/long"), PEER, &new_life()).await;
    let mut body = response.into_body();
    for _ in 0..100 {
        assert!(site.held() >= list_len);
        let frame = body.frame().await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), "x");
    }
    assert!(body.frame().await.is_none());
    assert_eq!(site.held(), 0);
}
