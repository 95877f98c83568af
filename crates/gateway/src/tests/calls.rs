//! What each call of the Remote Execution API is answered with.

mod functions;
mod health;
mod long;
mod lookups;
mod packed;
mod uploads;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::Ordering;

use bytes::Bytes;
use fonn_auth::Source;
use fonn_base::metrics::Metrics;
use fonn_proto::Failure;
use fonn_reapi::messages::{
    ActionResult, BatchReadBlobsRequest, BatchReadBlobsResponse, BatchUpdateBlobsRequest,
    BatchUpdateBlobsResponse, Digest, Directory, DirectoryNode, FileNode, FindMissingBlobsRequest,
    FindMissingBlobsResponse, GetActionResultRequest, GetTreeRequest, GetTreeResponse,
    OutputDirectory, OutputFile, QueryWriteStatusRequest, QueryWriteStatusResponse, ReadRequest,
    ReadResponse, ServerCapabilities, Tree, UpdateActionResultRequest, WriteRequest, WriteResponse,
    batch_update_blobs_request,
};
use fonn_reapi::{Deflater, Deframer, Inflater, frame};
use fonn_server::Tuning;
use http_body::Body;
use http_body_util::{BodyExt as _, Full};
use hyper::{Request, Version};
use prost::Message;
use ring::digest::{SHA256, digest};

use super::fake::{Fake, Fault, VALUE_LEN_MAX, all_turns, front};
use crate::handler::{Front, Peer};
use crate::life::{Life, Times};
use crate::long::LONG_LEN_MAX;
use crate::store::Form;

const CAS: &str = "/build.bazel.remote.execution.v2.ContentAddressableStorage";
const AC: &str = "/build.bazel.remote.execution.v2.ActionCache";
const STREAM: &str = "/google.bytestream.ByteStream";

/// The codes that are asserted.
const OK: u16 = 0;
const INVALID: u16 = 3;
const NOT_FOUND: u16 = 5;
const OUT_OF_RANGE: u16 = 11;
const UNIMPLEMENTED: u16 = 12;
const UNAVAILABLE: u16 = 14;

struct Site {
    store: Fake,
    front: Front<Fake>,
}

fn call<B>(path: &str, body: B) -> Request<B> {
    let request = Request::post(path)
        .version(Version::HTTP_2)
        .header("content-type", "application/grpc");
    request.body(body).unwrap()
}

async fn answered<B>(front: &Front<Fake>, request: Request<B>) -> (u16, Bytes)
where
    B: Body<Data: Send> + Unpin + Send,
{
    let life = Life::new(Times::default(), Source::of(None), false);
    let peer = Peer {
        address: IpAddr::V4(Ipv4Addr::LOCALHOST),
        is_encrypted: false,
    };
    let response = front.answer(request, peer, &life).await;
    assert_eq!(response.status(), 200);
    let (head, body) = response.into_parts();
    assert_eq!(head.headers["content-type"], "application/grpc");
    let body = body.collect().await.unwrap();
    // With messages the status comes behind them, else in front.
    let trailers = body.trailers().cloned().unwrap_or(head.headers);
    let code = trailers["grpc-status"].to_str().unwrap().parse().unwrap();
    (code, body.to_bytes())
}

impl Site {
    fn new() -> Self {
        let store = Fake::with_tuning(Tuning::default());
        let front = front(&store);
        Self { store, front }
    }

    async fn raw(&self, path: &str, body: impl Into<Bytes>) -> (u16, Bytes) {
        answered(&self.front, call(path, Full::new(body.into()))).await
    }

    async fn messages<M: Message + Default>(
        &self,
        path: &str,
        message: &impl Message,
    ) -> Result<Vec<M>, u16> {
        let (code, body) = self.raw(path, frame(message)).await;
        if code != OK {
            assert!(body.is_empty());
            return Err(code);
        }
        let mut deframer = Deframer::default();
        deframer.push(&body);
        let mut found = Vec::new();
        while let Some(message) = deframer.pull().unwrap() {
            found.push(M::decode(message).unwrap());
        }
        assert!(deframer.is_empty());
        Ok(found)
    }

    async fn ask<M: Message + Default>(
        &self,
        path: &str,
        message: &impl Message,
    ) -> Result<M, u16> {
        let mut messages = self.messages(path, message).await?;
        assert_eq!(messages.len(), 1);
        Ok(messages.remove(0))
    }

    /// Uploads in parts; returns the code or the committed size.
    async fn upload(&self, name: &str, parts: &[&[u8]]) -> Result<i64, u16> {
        let mut body = Vec::new();
        let mut write_offset = 0;
        for (index, part) in parts.iter().enumerate() {
            let request = WriteRequest {
                resource_name: if index == 0 {
                    name.to_owned()
                } else {
                    String::new()
                },
                write_offset,
                finish_write: index + 1 == parts.len(),
                data: Bytes::copy_from_slice(part),
            };
            write_offset += part.len() as i64;
            body.extend_from_slice(&frame(&request));
        }
        let (code, body) = self.raw(&format!("{STREAM}/Write"), body).await;
        if code != OK {
            return Err(code);
        }
        Ok(WriteResponse::decode(&body[5..]).unwrap().committed_size)
    }

    async fn download(&self, resource_name: &str, offset: i64, limit: i64) -> Result<Vec<u8>, u16> {
        let request = ReadRequest {
            resource_name: resource_name.to_owned(),
            read_offset: offset,
            read_limit: limit,
        };
        let path = format!("{STREAM}/Read");
        let parts: Vec<ReadResponse> = self.messages(&path, &request).await?;
        Ok(parts.iter().flat_map(|part| part.data.to_vec()).collect())
    }

    /// Stores a blob as a batch of one.
    async fn store_blob(&self, blob: &[u8]) -> Digest {
        let digest = digest_of(blob);
        let answer = self.batch(digest.clone(), blob, 0).await;
        assert_eq!(answer, 0);
        digest
    }

    /// The code of a batch of one.
    async fn batch(&self, digest: Digest, data: &[u8], compressor: i32) -> i32 {
        let request = BatchUpdateBlobsRequest {
            requests: vec![batch_update_blobs_request::Request {
                digest: Some(digest),
                data: Bytes::copy_from_slice(data),
                compressor,
            }],
            ..BatchUpdateBlobsRequest::default()
        };
        let answer: BatchUpdateBlobsResponse = self
            .ask(&format!("{CAS}/BatchUpdateBlobs"), &request)
            .await
            .unwrap();
        answer.responses[0].status.clone().unwrap().code
    }

    async fn missing(&self, digests: &[Digest]) -> Vec<Digest> {
        let request = FindMissingBlobsRequest {
            blob_digests: digests.to_vec(),
            ..FindMissingBlobsRequest::default()
        };
        let answer: FindMissingBlobsResponse = self
            .ask(&format!("{CAS}/FindMissingBlobs"), &request)
            .await
            .unwrap();
        answer.missing_blob_digests
    }

    async fn update(&self, action: &Digest, result: &ActionResult) -> Result<ActionResult, u16> {
        let request = UpdateActionResultRequest {
            action_digest: Some(action.clone()),
            action_result: result.encode_to_vec().into(),
            ..UpdateActionResultRequest::default()
        };
        self.ask(&format!("{AC}/UpdateActionResult"), &request)
            .await
    }

    async fn result(&self, action: &Digest) -> Result<ActionResult, u16> {
        let request = GetActionResultRequest {
            action_digest: Some(action.clone()),
            ..GetActionResultRequest::default()
        };
        self.ask(&format!("{AC}/GetActionResult"), &request).await
    }

    /// The status of a read of the action cache over HTTP.
    async fn http_status(&self, path: &str) -> u16 {
        let request = Request::get(path).body(Full::new(Bytes::new())).unwrap();
        super::fake::ask(&self.front, request).await.status.as_u16()
    }

    fn evict(&self, digest: &Digest) {
        let key = Bytes::from(format!("cas/{}", digest.hash));
        let mut entries = self.store.0.entries.lock();
        entries.retain(|(_, known), _| *known != key);
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn digest_of(blob: &[u8]) -> Digest {
    Digest {
        hash: hex(digest(&SHA256, blob).as_ref()),
        size_bytes: blob.len() as i64,
    }
}

fn zstd(blob: &[u8]) -> Vec<u8> {
    let (mut deflater, mut stream) = (Deflater::new().unwrap(), Vec::new());
    deflater.step(blob, &mut stream).unwrap();
    deflater.finish(&mut stream).unwrap();
    stream
}

fn unzstd(mut stream: &[u8], len: usize) -> Vec<u8> {
    let (mut inflater, mut blob) = (Inflater::new(len as u64).unwrap(), Vec::new());
    while !stream.is_empty() {
        blob.extend_from_slice(inflater.step(&mut stream).unwrap());
    }
    inflater.finish().unwrap();
    blob
}

fn name(digest: &Digest, prefix: &str) -> String {
    format!("{prefix}/{}/{}", digest.hash, digest.size_bytes)
}

#[tokio::test]
async fn capabilities_are_those_that_bazel_2_1_takes() {
    let site = Site::new();
    let path = "/build.bazel.remote.execution.v2.Capabilities/GetCapabilities";
    let can: ServerCapabilities = site.ask(path, &Digest::default()).await.unwrap();
    assert_eq!(
        can.low_api_version.map(|it| (it.major, it.minor)),
        Some((2, 0))
    );
    let cache = can.cache_capabilities.unwrap();
    assert!(
        cache
            .action_cache_update_capabilities
            .unwrap()
            .update_enabled
    );
    assert_eq!(cache.digest_functions[0], 1);
    assert_eq!(cache.max_cas_blob_size_bytes, LONG_LEN_MAX as i64);
    assert!(cache.split_blob_support && cache.splice_blob_support);
    let chunks = cache.fast_cdc_2020_params.unwrap();
    assert_eq!(chunks.avg_chunk_size_bytes, VALUE_LEN_MAX as u64 / 4);
    let (code, _) = site
        .raw("/build.bazel.remote.execution.v2.Execution/Execute", "")
        .await;
    assert_eq!(code, UNIMPLEMENTED);
}

#[tokio::test]
async fn a_blob_is_shared_with_http_and_comes_back_by_each_way() {
    let site = Site::new();
    let blob: Vec<u8> = (0..100_000_u32)
        .flat_map(u32::to_le_bytes)
        .take(400_000)
        .collect();
    let digest = digest_of(&blob);
    let (plain, packed) = (
        name(&digest, "blobs"),
        name(&digest, "/compressed-blobs/zstd"),
    );
    let only = std::slice::from_ref(&digest);
    assert_eq!(site.missing(only).await, only);
    assert_eq!(site.download(&plain, 0, 0).await, Err(NOT_FOUND));
    let stream = zstd(&blob);
    let upload = format!("/uploads/u{packed}");
    let committed = site.upload(&upload, &[&stream[..10], &stream[10..]]).await;
    assert_eq!(committed, Ok(stream.len() as i64));
    // It is kept as it came, and comes back so.
    let key = format!("cas/{}", digest.hash);
    assert_eq!(site.store.value(&key).unwrap()[16..], stream);
    assert_eq!(site.download(&packed, 0, 0).await.unwrap(), stream);
    assert!(site.missing(std::slice::from_ref(&digest)).await.is_empty());
    // It is there: nothing more is read.
    assert_eq!(site.upload(&upload, &[b"", b"x"]).await, Ok(-1));
    let again = format!("uploads/u/{plain}");
    assert_eq!(site.upload(&again, &[b"", b"x"]).await, Ok(400_000));
    assert_eq!(site.download(&plain, 0, 0).await.unwrap(), blob);
    assert_eq!(
        site.download(&plain, 399_990, 0).await.unwrap(),
        blob[399_990..]
    );
    assert_eq!(site.download(&plain, 5, 7).await.unwrap(), blob[5..12]);
    let packed_blob = site.download(&packed, 100_000, 0).await.unwrap();
    assert_eq!(unzstd(&packed_blob, 300_000), blob[100_000..]);
    // Beyond the end, and limits of what is compressed.
    assert_eq!(site.download(&plain, 400_001, 0).await, Err(OUT_OF_RANGE));
    assert_eq!(site.download(&plain, -1, 0).await, Err(OUT_OF_RANGE));
    assert_eq!(site.download(&plain, 0, -1).await, Err(INVALID));
    assert_eq!(site.download(&packed, 0, 1).await, Err(INVALID));
    // A length that is not that of the blob names another one, which is missing.
    let other = format!("blobs/{}/399999", digest.hash);
    assert_eq!(site.download(&other, 0, 0).await, Err(NOT_FOUND));
    let query = QueryWriteStatusRequest {
        resource_name: again,
    };
    let status: QueryWriteStatusResponse = site
        .ask(&format!("{STREAM}/QueryWriteStatus"), &query)
        .await
        .unwrap();
    assert!(status.complete && status.committed_size == 400_000);
}

#[tokio::test]
async fn what_cannot_be_verified_is_never_visible() {
    let site = Site::new();
    let digest = digest_of(b"hello");
    let upload = format!("uploads/u/{}", name(&digest, "blobs"));
    let packed = format!("uploads/u/{}", name(&digest, "compressed-blobs/zstd"));
    for parts in [&[&b"hellx"[..]][..], &[b"hell"], &[b"hello", b"!"], &[b""]] {
        assert_eq!(site.upload(&upload, parts).await, Err(INVALID), "{parts:?}");
    }
    let stream = zstd(b"hello");
    for bytes in [
        &b"hello"[..],
        &stream[..stream.len() - 1],
        &zstd(b"hellx"),
        &zstd(&[0; 1 << 20]),
    ] {
        assert_eq!(site.upload(&packed, &[bytes]).await, Err(INVALID));
        assert_eq!(
            site.batch(digest.clone(), bytes, 1).await,
            i32::from(INVALID)
        );
    }
    assert_eq!(
        site.batch(digest.clone(), b"hellx", 0).await,
        i32::from(INVALID)
    );
    assert_eq!(
        site.batch(digest.clone(), b"hello", 2).await,
        i32::from(INVALID)
    );
    // An offset that leaves a gap, another name in the middle, no end.
    let part = |resource_name: &str, write_offset, finish_write| {
        let data = match finish_write {
            true => Bytes::from_static(b"hello"),
            false => Bytes::from_static(b"hell"),
        };
        let resource_name = resource_name.to_owned();
        frame(&WriteRequest {
            resource_name,
            write_offset,
            finish_write,
            data,
        })
        .to_vec()
    };
    let path = format!("{STREAM}/Write");
    for body in [
        part(&upload, 1, true),
        part(&upload, 0, false),
        [part(&upload, 0, false), part(&packed, 4, true)].concat(),
        part("blobs/x", 0, true),
        part(&upload, 0, true)[..12].to_vec(),
        Vec::new(),
    ] {
        assert_eq!(site.raw(&path, body).await.0, INVALID);
    }
    assert!(site.store.0.entries.lock().is_empty());
    assert_eq!(site.store.0.charged.load(Ordering::SeqCst), 0);
    assert_eq!(site.batch(digest.clone(), &stream, 1).await, 0);
    assert_eq!(
        site.download(&name(&digest, "blobs"), 0, 0).await.unwrap(),
        b"hello"
    );
}

#[tokio::test]
async fn an_upload_without_offsets_ends_with_its_stream() {
    let site = Site::new();
    let digest = digest_of(b"hello");
    let upload = format!("uploads/u/{}", name(&digest, "blobs"));
    let part = |resource_name: &str, data| {
        frame(&WriteRequest {
            resource_name: resource_name.to_owned(),
            data: Bytes::from_static(data),
            ..WriteRequest::default()
        })
    };
    let body = [part(&upload, b"hel"), part("", b"lo")].concat();
    assert_eq!(site.raw(&format!("{STREAM}/Write"), body).await.0, 0);
    let blob = site.download(&name(&digest, "blobs"), 0, 0).await;
    assert_eq!(blob.unwrap(), b"hello");
}

#[tokio::test]
async fn what_is_announced_costs_nothing() {
    let site = Site::new();
    let huge = format!("uploads/u/blobs/{}/{}", "0f".repeat(32), LONG_LEN_MAX);
    assert_eq!(site.upload(&huge, &[b"x", b"y"]).await, Err(INVALID));
    let path = format!("{CAS}/FindMissingBlobs");
    assert_eq!(
        site.raw(&path, vec![0, 0xff, 0xff, 0xff, 0xff, 1]).await.0,
        INVALID
    );
    assert!(site.store.0.charged_max.load(Ordering::SeqCst) <= 256 << 10);
}

#[tokio::test]
async fn each_of_equal_digests_has_its_answer_in_the_order_of_the_request() {
    let site = Site::new();
    let (here, gone) = (site.store_blob(b"here").await, digest_of(b"gone"));
    let also_gone = digest_of(b"also gone");
    let asked = [&gone, &here, &also_gone, &here, &gone, &also_gone, &here].map(Clone::clone);
    let missing = [&gone, &also_gone, &gone, &also_gone].map(Clone::clone);
    assert_eq!(site.missing(&asked).await, missing);
}

#[tokio::test]
async fn batches_and_the_empty_blob() {
    let site = Site::new();
    let (a, b) = (site.store_blob(b"a").await, digest_of(b"b"));
    let empty = digest_of(b"");
    assert_eq!(
        site.missing(&[a.clone(), b.clone(), empty.clone()]).await,
        std::slice::from_ref(&b)
    );
    let request = BatchReadBlobsRequest {
        digests: vec![a.clone(), b, empty.clone()],
        ..BatchReadBlobsRequest::default()
    };
    let path = format!("{CAS}/BatchReadBlobs");
    let answer: BatchReadBlobsResponse = site.ask(&path, &request).await.unwrap();
    let codes: Vec<_> = answer
        .responses
        .iter()
        .map(|it| it.status.clone().unwrap().code)
        .collect();
    assert_eq!(codes, [0, i32::from(NOT_FOUND), 0]);
    assert_eq!(answer.responses[0].data, "a");
    assert_eq!(
        site.download(&name(&empty, "blobs"), 0, 0).await,
        Ok(Vec::new())
    );
    let large = Digest {
        size_bytes: 5 << 20,
        ..a
    };
    let request = BatchReadBlobsRequest {
        digests: vec![large],
        ..BatchReadBlobsRequest::default()
    };
    assert_eq!(
        site.ask::<BatchReadBlobsResponse>(&path, &request).await,
        Err(INVALID)
    );
}

#[tokio::test]
async fn instances_and_functions_have_entries_of_their_own() {
    let site = Site::new();
    // MD5 of `abc`.
    let md5 = "900150983cd24fb0d6963f7d28e17f72";
    let upload = format!("a/b/uploads/u/blobs/{md5}/3");
    assert_eq!(site.upload(&upload, &[b"abc"]).await, Ok(3));
    assert_eq!(
        site.store.value(&format!("a/b/cas//md5/{md5}")).unwrap(),
        "abc"
    );
    assert_eq!(
        site.download(&format!("a/b/blobs/{md5}/3"), 0, 0)
            .await
            .unwrap(),
        b"abc"
    );
    assert_eq!(
        site.download(&format!("a/blobs/{md5}/3"), 0, 0).await,
        Err(NOT_FOUND)
    );
    let request = FindMissingBlobsRequest {
        instance_name: "../x".to_owned(),
        ..FindMissingBlobsRequest::default()
    };
    let path = format!("{CAS}/FindMissingBlobs");
    assert_eq!(
        site.ask::<FindMissingBlobsResponse>(&path, &request).await,
        Err(INVALID)
    );
}

/// A result with a file, a tree with a file and outputs. Each blob of it, one after another.
async fn made(site: &Site) -> (ActionResult, Vec<Digest>) {
    let in_tree = site.store_blob(b"in the tree").await;
    let tree = Tree {
        root: Some(Directory {
            files: vec![FileNode {
                digest: Some(in_tree.clone()),
            }],
            ..Directory::default()
        }),
        children: Vec::new(),
    };
    let tree = site.store_blob(&tree.encode_to_vec()).await;
    let file = site.store_blob(b"a file").await;
    let stdout = site.store_blob(b"stdout").await;
    let stderr = site.store_blob(b"stderr").await;
    let result = ActionResult {
        output_files: vec![OutputFile {
            digest: Some(file.clone()),
            ..OutputFile::default()
        }],
        output_directories: vec![OutputDirectory {
            tree_digest: Some(tree.clone()),
            ..OutputDirectory::default()
        }],
        stdout_digest: Some(stdout.clone()),
        stderr_digest: Some(stderr.clone()),
        ..ActionResult::default()
    };
    (result, vec![in_tree, tree, file, stdout, stderr])
}

#[tokio::test]
async fn a_result_is_returned_only_if_all_that_it_refers_to_is_there() {
    let site = Site::new();
    let action = digest_of(b"action");
    assert_eq!(site.result(&action).await, Err(NOT_FOUND));
    let (result, blobs) = made(&site).await;
    assert_eq!(site.update(&action, &result).await.as_ref(), Ok(&result));
    let http = format!("/ac/{}", action.hash);
    for blob in &blobs {
        assert_eq!(site.result(&action).await.as_ref(), Ok(&result));
        assert_eq!(site.http_status(&http).await, 200);
        let kept = site.store.value(&format!("cas/{}", blob.hash)).unwrap();
        site.evict(blob);
        assert_eq!(site.result(&action).await, Err(NOT_FOUND), "{blob:?}");
        assert_eq!(site.http_status(&http).await, 404, "{blob:?}");
        site.store_blob(&kept).await;
    }
    let metrics = Metrics::new();
    site.front.register(&metrics);
    let text = metrics.render().unwrap();
    assert!(
        text.contains("fonn_reapi_action_results_total{outcome=\"incomplete\"} 10"),
        "{text}"
    );
}

#[tokio::test]
async fn a_result_without_outputs_and_values_of_other_tools_are_kept() {
    let site = Site::new();
    let action = digest_of(b"action");
    site.update(&action, &ActionResult::default())
        .await
        .unwrap();
    site.result(&action).await.unwrap();
    let http = format!("/ac/{}", action.hash);
    assert_eq!(site.http_status(&http).await, 200);
    // ccache stores its own form under such paths.
    let put = Request::put(&http)
        .body(Full::new(Bytes::from_static(b"\xcc\xac\x01")))
        .unwrap();
    assert_eq!(super::fake::ask(&site.front, put).await.status, 200);
    assert_eq!(site.http_status(&http).await, 200);
    assert_eq!(site.result(&action).await, Err(NOT_FOUND));
    // What is in a result is stored under its digest as well.
    let file = OutputFile {
        digest: Some(digest_of(b"inside")),
        contents: Bytes::from_static(b"inside"),
    };
    let result = ActionResult {
        output_files: vec![file],
        ..ActionResult::default()
    };
    site.update(&action, &result).await.unwrap();
    assert!(site.missing(&[digest_of(b"inside")]).await.is_empty());
    assert_eq!(site.result(&action).await, Ok(result));
}

#[tokio::test]
async fn a_directory_is_returned_with_all_below_it_or_not_at_all() {
    let site = Site::new();
    let leaf = Directory::default();
    let leaf = Directory {
        files: vec![FileNode {
            digest: Some(digest_of(b"x")),
        }],
        ..leaf
    };
    let leaf = site.store_blob(&leaf.encode_to_vec()).await;
    let root = Directory {
        directories: vec![DirectoryNode {
            digest: Some(leaf.clone()),
        }],
        ..Directory::default()
    };
    let root = site.store_blob(&root.encode_to_vec()).await;
    let request = GetTreeRequest {
        root_digest: Some(root),
        ..GetTreeRequest::default()
    };
    let path = format!("{CAS}/GetTree");
    let pages: Vec<GetTreeResponse> = site.messages(&path, &request).await.unwrap();
    assert_eq!(
        pages
            .iter()
            .map(|page| page.directories.len())
            .sum::<usize>(),
        2
    );
    site.evict(&leaf);
    assert_eq!(
        site.messages::<GetTreeResponse>(&path, &request).await,
        Err(NOT_FOUND)
    );
}

#[tokio::test(start_paused = true)]
async fn reads_that_fail_are_misses_and_writes_say_why() {
    let site = Site::new();
    let digest = site.store_blob(b"hello").await;
    let action = digest_of(b"action");
    site.update(&action, &ActionResult::default())
        .await
        .unwrap();
    for fault in [
        Fault::Hangs,
        Fault::Fails(Failure::Busy),
        Fault::Fails(Failure::Unavailable),
    ] {
        site.store.set(fault);
        let only = std::slice::from_ref(&digest);
        assert_eq!(site.missing(only).await, only);
        assert_eq!(
            site.download(&name(&digest, "blobs"), 0, 0).await,
            Err(NOT_FOUND)
        );
        assert_eq!(site.result(&action).await, Err(NOT_FOUND));
        let updated = site.update(&action, &ActionResult::default()).await;
        assert_eq!(updated, Err(UNAVAILABLE));
        let upload = format!("uploads/u/{}", name(&digest, "blobs"));
        assert_eq!(site.upload(&upload, &[b"hello"]).await, Err(UNAVAILABLE));
    }
    site.store.set(Fault::Fails(Failure::OutOfSpace));
    assert_eq!(site.batch(digest, b"hello", 0).await, 8);
}
