//! What counts as a use of a blob over gRPC.

use anyhow::{Result, ensure};
use bytes::Bytes;
use fonn_reapi::messages::{
    ActionResult, Digest, Directory, FileNode, FindMissingBlobsRequest, FindMissingBlobsResponse,
    GetActionResultRequest, OutputDirectory, OutputFile, Tree, UpdateActionResultRequest,
};
use fonn_reapi::{DigestFunction, Hasher, Method, frame};
use prost::Message as _;
use tonic::Code;

use fonn_tests::client::{HttpClient, RemoteClient};
use fonn_tests::node::NodeOptions;
use fonn_tests::values::{Content, ValuePool};

/// Output files of an action, and the length of its blobs.
const FILES: u64 = 4;
const BLOB_LEN: usize = 16 << 10;

/// The RAM budget, and the length of the values that fill it.
const BUDGET_LEN: usize = 64 << 20;
const FILLING_LEN: usize = 64 << 10;

/// How often the budget is filled, and how often the result is asked for meanwhile.
const FILLINGS: usize = 4;
const LOOKUPS: usize = 64;

/// A result that was stored, and the blobs that it refers to.
struct Stored {
    request: GetActionResultRequest,
    result: ActionResult,
    blobs: Vec<(Digest, Bytes)>,
}

fn digest_of(bytes: &[u8]) -> Digest {
    let hasher = Hasher::new(DigestFunction::Sha256);
    hasher.digest(bytes).message()
}

impl Stored {
    /// Stores a result with files, a tree that has a file, and what was printed.
    fn new(client: &RemoteClient, pool: &ValuePool, number: u64) -> Result<Self> {
        let mut blobs = Vec::new();
        let mut store = |bytes: Vec<u8>| -> Result<Option<Digest>> {
            let (digest, bytes) = (digest_of(&bytes), Bytes::from(bytes));
            let Digest { hash, size_bytes } = &digest;
            client.write(&format!("uploads/u/blobs/{hash}/{size_bytes}"), &bytes)?;
            blobs.push((digest.clone(), bytes));
            Ok(Some(digest))
        };
        let value = |index| pool.value(number * 10 + index, BLOB_LEN).to_vec();
        let mut result = ActionResult::default();
        for index in 0..FILES {
            result.output_files.push(OutputFile {
                digest: store(value(index))?,
                ..OutputFile::default()
            });
        }
        let in_tree = FileNode {
            digest: store(value(FILES))?,
        };
        let tree = Tree {
            root: Some(Directory {
                files: vec![in_tree],
                ..Directory::default()
            }),
            ..Tree::default()
        };
        result.output_directories.push(OutputDirectory {
            tree_digest: store(tree.encode_to_vec())?,
            ..OutputDirectory::default()
        });
        result.stdout_digest = store(value(FILES + 1))?;
        let action_digest = Some(digest_of(&number.to_le_bytes()));
        let update = UpdateActionResultRequest {
            action_digest: action_digest.clone(),
            action_result: result.encode_to_vec().into(),
            ..UpdateActionResultRequest::default()
        };
        let _: ActionResult = client.ask(Method::UpdateActionResult, &update)?;
        let request = GetActionResultRequest {
            action_digest,
            ..GetActionResultRequest::default()
        };
        Ok(Self {
            request,
            result,
            blobs,
        })
    }

    /// Checks that the result is returned.
    fn check(&self, client: &RemoteClient) -> Result<()> {
        let result: ActionResult = client.ask(Method::GetActionResult, &self.request)?;
        ensure!(result == self.result, "{result:?}");
        Ok(())
    }

    /// How many of the blobs are missing.
    fn missing(&self, client: &RemoteClient) -> Result<usize> {
        let request = FindMissingBlobsRequest {
            blob_digests: self.blobs.iter().map(|(it, _)| it.clone()).collect(),
            ..FindMissingBlobsRequest::default()
        };
        let missing: FindMissingBlobsResponse = client.ask(Method::FindMissingBlobs, &request)?;
        Ok(missing.missing_blob_digests.len())
    }
}

#[test]
fn a_result_that_is_asked_for_keeps_its_blobs_while_the_budget_evicts_others() -> Result<()> {
    let options = NodeOptions::new().in_memory().with_http();
    let node = options
        .flag("--ram-budget", BUDGET_LEN.to_string())
        .start()?;
    let client = RemoteClient::connect(node.http())?;
    let pool = ValuePool::new(Content::Random, 8 << 20);
    let used = Stored::new(&client, &pool, 0)?;
    let unused = Stored::new(&client, &pool, 1)?;
    used.check(&client)?;
    unused.check(&client)?;
    let mut door = HttpClient::connect(node.http())?;
    let count = FILLINGS * BUDGET_LEN / FILLING_LEN;
    for number in 0..count {
        let filling = pool.value(1000 + number as u64, FILLING_LEN).to_vec();
        let status = door.put(&format!("/fill/{number}"), &filling)?;
        ensure!(status == 200, "value {number}: {status}");
        if number % (count / LOOKUPS) == 0 {
            used.check(&client)?;
        }
    }
    used.check(&client)?;
    for (Digest { hash, size_bytes }, bytes) in &used.blobs {
        let blob = client.read(&format!("blobs/{hash}/{size_bytes}"))?;
        ensure!(blob == *bytes, "another blob under {hash}");
    }
    let answer = client.call(Method::GetActionResult, vec![frame(&unused.request)])?;
    ensure!(answer.code == Code::NotFound, "{:?}", answer.code);
    let missing = unused.missing(&client)?;
    ensure!(missing == unused.blobs.len(), "only {missing} are missing");
    Ok(())
}
