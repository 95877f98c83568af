//! Build tools over a bucket: what outlives the machine of a node, and what a bucket that fails
//! costs.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bytes::Bytes;
use fonn_reapi::messages::{
    ActionResult, BatchReadBlobsRequest, BatchReadBlobsResponse, Digest, FindMissingBlobsRequest,
    FindMissingBlobsResponse, GetActionResultRequest, OutputFile, ReadRequest,
    UpdateActionResultRequest,
};
use fonn_reapi::{DigestFunction, Hasher, Method, frame};
use prost::Message;
use tonic::Code;

use fonn_tests::bucket::{Bucket, Trouble};
use fonn_tests::client::{HttpClient, RemoteClient};
use fonn_tests::node::NodeOptions;
use fonn_tests::spilled::{destroy, hits, over, wait_until, wait_until_ready, wait_until_spilled};
use fonn_tests::values::{Content, ValuePool};

/// Lengths of a value that is stored whole, and of one in chunks of about 128 KiB.
const LEN: usize = 100_000;
const LONG_LEN: usize = 3 << 20;

/// A busy machine needs its time to see that a bucket answers again.
const LIMIT: Duration = Duration::from_secs(120);

/// How long the node itself waits for the bucket: longer than any read of a build tool may take.
const COLD_READ_TIMEOUT: Duration = Duration::from_secs(55);

/// `--http-deadline` of these nodes, and how long a blob may take over gRPC (the contract), each
/// with what a busy machine takes besides.
const HTTP_DEADLINE: &str = "500ms";
const HTTP_MAX: Duration = Duration::from_secs(9);
const BLOB_MAX: Duration = Duration::from_secs(30);

fn options(bucket: &Bucket) -> NodeOptions {
    over(bucket)
        .with_http()
        .flag("--max-value", "1m")
        .flag("--cold-read-timeout", format!("{COLD_READ_TIMEOUT:?}"))
}

fn digest_of(bytes: &[u8]) -> Digest {
    let hasher = Hasher::new(DigestFunction::Sha256);
    hasher.digest(bytes).message()
}

/// What was stored before the machine was lost.
struct Stored {
    value: Vec<u8>,
    long: Vec<u8>,
    blob: Bytes,
    long_blob: Bytes,
    result: ActionResult,
    action: Digest,
}

impl Stored {
    fn new() -> Self {
        let pool = ValuePool::new(Content::Random, LONG_LEN);
        let bytes = |number, len| pool.value(number, len).to_vec();
        let (blob, long_blob): (Bytes, Bytes) = (bytes(1, LEN).into(), bytes(2, LONG_LEN).into());
        let file = |blob: &Bytes| OutputFile {
            digest: Some(digest_of(blob)),
            ..OutputFile::default()
        };
        Self {
            value: bytes(3, LEN),
            long: bytes(4, LONG_LEN),
            result: ActionResult {
                output_files: vec![file(&blob), file(&long_blob)],
                ..ActionResult::default()
            },
            action: digest_of(b"the action"),
            blob,
            long_blob,
        }
    }

    fn blobs(&self) -> [&Bytes; 2] {
        [&self.blob, &self.long_blob]
    }

    fn store(&self, http: &mut HttpClient, remote: &RemoteClient) -> Result<()> {
        ensure!(http.put("/value", &self.value)? == 200);
        ensure!(http.put("/long", &self.long)? == 200);
        for blob in self.blobs() {
            remote.write(&format!("uploads/u/{}", name_of(blob)), blob)?;
        }
        let update = UpdateActionResultRequest {
            action_digest: Some(self.action.clone()),
            action_result: self.result.encode_to_vec().into(),
            ..UpdateActionResultRequest::default()
        };
        let _: ActionResult = remote.ask(Method::UpdateActionResult, &update)?;
        Ok(())
    }

    fn lookup(&self) -> GetActionResultRequest {
        GetActionResultRequest {
            action_digest: Some(self.action.clone()),
            ..GetActionResultRequest::default()
        }
    }

    fn result_path(&self) -> String {
        format!("/ac/{}", self.action.hash)
    }
}

/// The resource of a blob in reads.
fn name_of(blob: &[u8]) -> String {
    let Digest { hash, size_bytes } = digest_of(blob);
    format!("blobs/{hash}/{size_bytes}")
}

/// A bucket with all that, and no node.
fn lost_machine() -> Result<(Bucket, Stored)> {
    let (bucket, stored) = (Bucket::in_process()?, Stored::new());
    let node = options(&bucket).start()?;
    let remote = RemoteClient::connect(node.http())?;
    stored.store(&mut HttpClient::connect(node.http())?, &remote)?;
    wait_until_spilled(&node)?;
    destroy(node)?;
    Ok((bucket, stored))
}

#[test]
fn build_tools_hit_out_of_the_bucket_after_the_loss_of_the_machine() -> Result<()> {
    let (bucket, stored) = lost_machine()?;
    type Read = fn(&Stored, &mut HttpClient, &RemoteClient) -> Result<()>;
    // Each begins with an empty machine, so it alone fetches what it needs.
    let reads: [(&str, Read); 4] = [
        ("GET", |stored, http, _| {
            ensure!(http.get("/value")?.as_ref() == Some(&stored.value));
            ensure!(http.get("/long")?.as_ref() == Some(&stored.long));
            for blob in stored.blobs() {
                let path = format!("/cas/{}", digest_of(blob).hash);
                ensure!(http.get(&path)?.as_deref() == Some(&blob[..]));
            }
            Ok(())
        }),
        ("ByteStream.Read", |stored, _, remote| {
            for blob in stored.blobs() {
                ensure!(remote.read(&name_of(blob))? == **blob);
            }
            Ok(())
        }),
        ("GetActionResult", |stored, _, remote| {
            let found: ActionResult = remote.ask(Method::GetActionResult, &stored.lookup())?;
            ensure!(found.output_files == stored.result.output_files);
            Ok(())
        }),
        ("GET of a result", |stored, http, _| {
            let found = http.get(&stored.result_path())?.unwrap_or_default();
            let found = ActionResult::decode(&found[..])?;
            ensure!(found.output_files == stored.result.output_files);
            Ok(())
        }),
    ];
    for (what, read) in reads {
        let node = options(&bucket).start()?;
        wait_until_ready(&node)?;
        let remote = RemoteClient::connect(node.http())?;
        let mut http = HttpClient::connect(node.http())?;
        let read = read(&stored, &mut http, &remote);
        ensure!(read.is_ok(), "{what}: {read:?}");
        ensure!(hits(&node, "cold")? > 0.0, "{what}: nothing was cold");
        destroy(node)?;
    }
    Ok(())
}

/// Reads of a build tool while the bucket fails: misses, in time.
fn expect_misses(stored: &Stored, http: &mut HttpClient, remote: &RemoteClient) -> Result<()> {
    let begun = Instant::now();
    let in_time = |begun: Instant, max: Duration, what: &str| -> Result<()> {
        let took = begun.elapsed();
        ensure!(took < max, "{what} took {took:?}");
        Ok(())
    };
    for path in ["/value", "/long", &stored.result_path()] {
        let begun = Instant::now();
        let answer = http.request("GET", path, &[], b"")?;
        ensure!(answer.status == 404, "{path}: {answer:?}");
        in_time(begun, HTTP_MAX, path)?;
        // Whether an entry is there the node knows without the bucket.
        let status = http.request("HEAD", path, &[], b"")?.status;
        ensure!([200, 404].contains(&status), "HEAD {path}: {status}");
    }
    for blob in stored.blobs() {
        let (begun, name) = (Instant::now(), name_of(blob));
        let request = ReadRequest {
            resource_name: name.clone(),
            ..ReadRequest::default()
        };
        let answer = remote.call(Method::Read, vec![frame(&request)])?;
        ensure!(answer.code == Code::NotFound, "{name}: {answer:?}");
        in_time(begun, BLOB_MAX, &name)?;
    }
    let lookup = frame(&stored.lookup());
    let answer = remote.call(Method::GetActionResult, vec![lookup])?;
    ensure!(answer.code == Code::NotFound, "{answer:?}");
    let digests = stored.blobs().map(|blob| digest_of(blob)).to_vec();
    let batch = BatchReadBlobsRequest {
        digests: digests[..1].to_vec(),
        ..BatchReadBlobsRequest::default()
    };
    let batch: BatchReadBlobsResponse = remote.ask(Method::BatchReadBlobs, &batch)?;
    let code = batch.responses[0].status.as_ref().map(|it| it.code);
    ensure!(code == Some(Code::NotFound as i32), "{batch:?}");
    let missing = FindMissingBlobsRequest {
        blob_digests: digests,
        ..FindMissingBlobsRequest::default()
    };
    let _: FindMissingBlobsResponse = remote.ask(Method::FindMissingBlobs, &missing)?;
    in_time(begun, 2 * BLOB_MAX, "all")
}

#[test]
fn reads_of_build_tools_are_misses_in_time_while_the_bucket_fails() -> Result<()> {
    let (bucket, stored) = lost_machine()?;
    let options = options(&bucket).flag("--http-deadline", HTTP_DEADLINE);
    let node = options.start()?;
    wait_until_ready(&node)?;
    let remote = RemoteClient::connect(node.http())?;
    let mut http = HttpClient::connect(node.http())?;
    // Nothing but reads hangs, and the connections stand.
    bucket.hold_reads();
    expect_misses(&stored, &mut http, &remote)?;
    for trouble in Trouble::ALL {
        bucket.fail(trouble);
        let missed = expect_misses(&stored, &mut http, &remote);
        ensure!(missed.is_ok(), "{trouble:?}: {missed:?}");
        // What is written meanwhile is read from the node.
        ensure!(http.put("/new", b"new")? == 200, "{trouble:?}");
        ensure!(http.get("/new")?.as_deref() == Some(&b"new"[..]));
    }
    bucket.come_up();
    wait_until("the bucket is read again", LIMIT, || {
        Ok(http.get("/value")?.as_ref() == Some(&stored.value))
    })?;
    ensure!(remote.read(&name_of(&stored.blob))? == stored.blob);
    Ok(())
}
