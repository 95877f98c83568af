//! What a token may do over gRPC, and which entries it sees.

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use fonn_reapi::messages::{
    ActionResult, BatchReadBlobsRequest, BatchReadBlobsResponse, BatchUpdateBlobsRequest, Digest,
    Directory, FileNode, FindMissingBlobsRequest, FindMissingBlobsResponse, GetActionResultRequest,
    GetCapabilitiesRequest, GetTreeRequest, HealthCheckRequest, OutputFile,
    QueryWriteStatusRequest, QueryWriteStatusResponse, ReadRequest, ServerCapabilities,
    SpliceBlobRequest, SplitBlobRequest, UpdateActionResultRequest, batch_update_blobs_request,
};
use fonn_reapi::{DigestFunction, Hasher, Method, frame};
use prost::Message as _;
use tonic::Code;

use fonn_tests::client::{RemoteClient, write_messages};

use super::tokens::Tokens;

/// The instance of all calls.
const INSTANCE: &str = "team/project";

/// A blob that is written as a stream, and two of a batch that are spliced.
const STREAMED: &[u8] = b"a blob that is written as a stream";
const LEFT: &[u8] = b"the left part and ";
const RIGHT: &[u8] = b"the right part";

/// The code of a call without a login, with a wrong token, of a reader and of a writer.
type Row = [Code; 4];

const OPEN: Row = [Code::Ok; 4];
const READ: Row = [
    Code::Unauthenticated,
    Code::Unauthenticated,
    Code::Ok,
    Code::Ok,
];
const WRITE: Row = [
    Code::Unauthenticated,
    Code::Unauthenticated,
    Code::PermissionDenied,
    Code::Ok,
];

/// All calls, in an order in which no write needs a later one.
const TABLE: [(Method, Row); 14] = [
    (Method::GetCapabilities, OPEN),
    (Method::HealthCheck, OPEN),
    (Method::HealthWatch, [Code::Unimplemented; 4]),
    (Method::UpdateActionResult, WRITE),
    (Method::BatchUpdateBlobs, WRITE),
    (Method::SpliceBlob, WRITE),
    (Method::Write, WRITE),
    (Method::GetActionResult, READ),
    (Method::FindMissingBlobs, READ),
    (Method::BatchReadBlobs, READ),
    (Method::GetTree, READ),
    (Method::SplitBlob, READ),
    (Method::Read, READ),
    (Method::QueryWriteStatus, READ),
];

/// The reads that are NOT_FOUND when nothing is stored. The others tell what is missing in their
/// messages.
const FINDS: [Method; 4] = [
    Method::GetActionResult,
    Method::GetTree,
    Method::SplitBlob,
    Method::Read,
];

fn digest_of(bytes: &[u8]) -> Digest {
    let hasher = Hasher::new(DigestFunction::Sha256);
    hasher.digest(bytes).message()
}

fn spliced() -> Vec<u8> {
    [LEFT, RIGHT].concat()
}

fn directory() -> Vec<u8> {
    let file = FileNode {
        digest: Some(digest_of(STREAMED)),
    };
    let directory = Directory {
        files: vec![file],
        ..Directory::default()
    };
    directory.encode_to_vec()
}

/// All blobs that the writes of the table store.
fn blobs() -> [Vec<u8>; 5] {
    [
        STREAMED.to_vec(),
        LEFT.to_vec(),
        RIGHT.to_vec(),
        spliced(),
        directory(),
    ]
}

/// A name of the streamed blob: `uploads/u/blobs` for a write, `blobs` for a read.
fn resource(kind: &str) -> String {
    let Digest { hash, size_bytes } = digest_of(STREAMED);
    format!("{INSTANCE}/{kind}/{hash}/{size_bytes}")
}

fn update_request(result: &ActionResult) -> UpdateActionResultRequest {
    UpdateActionResultRequest {
        instance_name: INSTANCE.to_owned(),
        action_digest: Some(digest_of(b"action")),
        action_result: result.encode_to_vec().into(),
        ..UpdateActionResultRequest::default()
    }
}

fn result_request() -> GetActionResultRequest {
    GetActionResultRequest {
        instance_name: INSTANCE.to_owned(),
        action_digest: Some(digest_of(b"action")),
        ..GetActionResultRequest::default()
    }
}

fn batch_update_request() -> BatchUpdateBlobsRequest {
    let blobs = [LEFT.to_vec(), RIGHT.to_vec(), directory()];
    let requests = blobs.map(|blob| batch_update_blobs_request::Request {
        digest: Some(digest_of(&blob)),
        data: blob.into(),
        ..batch_update_blobs_request::Request::default()
    });
    BatchUpdateBlobsRequest {
        instance_name: INSTANCE.to_owned(),
        requests: requests.to_vec(),
        ..BatchUpdateBlobsRequest::default()
    }
}

fn missing_request() -> FindMissingBlobsRequest {
    FindMissingBlobsRequest {
        instance_name: INSTANCE.to_owned(),
        blob_digests: blobs().iter().map(|blob| digest_of(blob)).collect(),
        ..FindMissingBlobsRequest::default()
    }
}

fn batch_read_request() -> BatchReadBlobsRequest {
    BatchReadBlobsRequest {
        instance_name: INSTANCE.to_owned(),
        digests: blobs().iter().map(|blob| digest_of(blob)).collect(),
        ..BatchReadBlobsRequest::default()
    }
}

fn status_request() -> QueryWriteStatusRequest {
    QueryWriteStatusRequest {
        resource_name: resource("uploads/u/blobs"),
    }
}

/// The messages of a call.
fn messages(method: Method) -> Vec<Bytes> {
    let instance_name = INSTANCE.to_owned();
    let message = match method {
        Method::GetCapabilities => frame(&GetCapabilitiesRequest { instance_name }),
        Method::HealthCheck | Method::HealthWatch => frame(&HealthCheckRequest::default()),
        Method::UpdateActionResult => {
            let file = OutputFile {
                digest: Some(digest_of(STREAMED)),
                ..OutputFile::default()
            };
            frame(&update_request(&ActionResult {
                output_files: vec![file],
                ..ActionResult::default()
            }))
        }
        Method::BatchUpdateBlobs => frame(&batch_update_request()),
        Method::SpliceBlob => frame(&SpliceBlobRequest {
            instance_name,
            blob_digest: Some(digest_of(&spliced())),
            chunk_digests: [LEFT, RIGHT].map(digest_of).to_vec(),
            ..SpliceBlobRequest::default()
        }),
        Method::Write => {
            let blob = Bytes::from_static(STREAMED);
            return write_messages(&resource("uploads/u/blobs"), &blob);
        }
        Method::GetActionResult => frame(&result_request()),
        Method::FindMissingBlobs => frame(&missing_request()),
        Method::BatchReadBlobs => frame(&batch_read_request()),
        Method::GetTree => frame(&GetTreeRequest {
            instance_name,
            root_digest: Some(digest_of(&directory())),
            ..GetTreeRequest::default()
        }),
        Method::SplitBlob => frame(&SplitBlobRequest {
            instance_name,
            blob_digest: Some(digest_of(STREAMED)),
            ..SplitBlobRequest::default()
        }),
        Method::Read => frame(&ReadRequest {
            resource_name: resource("blobs"),
            ..ReadRequest::default()
        }),
        Method::QueryWriteStatus => frame(&status_request()),
    };
    vec![message]
}

/// Makes a call, and checks its code.
fn expect(client: &RemoteClient, method: Method, code: Code) -> Result<()> {
    let answer = client.call(method, messages(method));
    let answer = answer.with_context(|| method.as_str().to_owned())?;
    let found = answer.code;
    ensure!(
        found == code,
        "{}: {found:?}, not {code:?}",
        method.as_str()
    );
    Ok(())
}

fn is_write(row: Row) -> bool {
    row == WRITE
}

/// Makes the writes of the table, which are all carried out.
fn store(writer: &RemoteClient) -> Result<()> {
    let writes = TABLE.into_iter().filter(|(_, row)| is_write(*row));
    { writes }.try_for_each(|(method, _)| expect(writer, method, Code::Ok))
}

/// Checks what a client finds of the blobs, as each read tells it.
fn expect_blobs(client: &RemoteClient, are_there: bool) -> Result<()> {
    let missing: FindMissingBlobsResponse =
        client.ask(Method::FindMissingBlobs, &missing_request())?;
    let missing = missing.missing_blob_digests.len();
    ensure!(
        missing == if are_there { 0 } else { blobs().len() },
        "{missing} are missing"
    );
    let read: BatchReadBlobsResponse = client.ask(Method::BatchReadBlobs, &batch_read_request())?;
    ensure!(read.responses.len() == blobs().len(), "{read:?}");
    for (response, blob) in read.responses.iter().zip(blobs()) {
        let code = response.status.clone().unwrap_or_default().code;
        let (wanted, data) = match are_there {
            true => (Code::Ok, blob),
            false => (Code::NotFound, Vec::new()),
        };
        ensure!(
            code == wanted as i32 && response.data == data,
            "{response:?}"
        );
    }
    let status: QueryWriteStatusResponse =
        client.ask(Method::QueryWriteStatus, &status_request())?;
    ensure!(status.complete == are_there, "{status:?}");
    Ok(())
}

/// The result of an action that printed `text`.
fn printed(text: &'static str) -> ActionResult {
    ActionResult {
        stdout_raw: Bytes::from_static(text.as_bytes()),
        ..ActionResult::default()
    }
}

fn update(client: &RemoteClient, result: &ActionResult) -> Result<()> {
    let request = update_request(result);
    let _: ActionResult = client.ask(Method::UpdateActionResult, &request)?;
    Ok(())
}

fn expect_result(client: &RemoteClient, result: &ActionResult) -> Result<()> {
    let found: ActionResult = client.ask(Method::GetActionResult, &result_request())?;
    ensure!(found == *result, "{found:?}");
    Ok(())
}

fn connect(tokens: &Tokens, token: &str) -> Result<RemoteClient> {
    let client = RemoteClient::connect(tokens.node.http())?;
    client.with_login(&format!("Bearer {token}"))
}

#[test]
fn each_call_has_its_code_without_a_login_and_by_each_token() -> Result<()> {
    let listed = |method| TABLE.iter().any(|(it, _)| it == method);
    ensure!(Method::ALL.iter().all(listed) && TABLE.len() == Method::ALL.len());
    let (tokens, [reader, writer]) = Tokens::start("", |entry| {
        Ok([
            entry.token("reader", "read", "main")?,
            entry.token("writer", "read-write", "main")?,
        ])
    })?;
    let wrong = format!("fonn_{}", "0".repeat(64));
    let clients = [
        RemoteClient::connect(tokens.node.http())?,
        connect(&tokens, &wrong)?,
        connect(&tokens, &reader)?,
        connect(&tokens, &writer)?,
    ];
    let [_, _, reader, writer] = &clients;
    let check = |is_stored: bool| -> Result<()> {
        for (method, row) in TABLE {
            for (client, mut code) in clients.iter().zip(row) {
                let stores = is_write(row) && code == Code::Ok;
                if stores && !is_stored {
                    continue;
                }
                if code == Code::Ok && FINDS.contains(&method) && !is_stored {
                    code = Code::NotFound;
                }
                expect(client, method, code)?;
            }
        }
        // So a refused write has stored nothing.
        expect_blobs(reader, is_stored)
    };
    check(false)?;
    store(writer)?;
    check(true)
}

#[test]
fn tokens_of_two_namespaces_share_nothing_under_one_instance_name() -> Result<()> {
    let (tokens, [one, two]) = Tokens::start("", |entry| {
        Ok([
            entry.token("one", "read-write", "one")?,
            entry.token("two", "read-write", "two")?,
        ])
    })?;
    let (one, two) = (connect(&tokens, &one)?, connect(&tokens, &two)?);
    store(&one)?;
    expect_blobs(&one, true)?;
    expect_blobs(&two, false)?;
    // The chunks are those of the other namespace.
    for method in FINDS.into_iter().chain([Method::SpliceBlob]) {
        expect(&two, method, Code::NotFound)?;
    }
    let (first, second) = (printed("one"), printed("two"));
    update(&one, &first)?;
    update(&two, &second)?;
    expect_result(&one, &first)?;
    expect_result(&two, &second)
}

#[test]
fn a_write_once_namespace_takes_a_second_result_and_keeps_the_first() -> Result<()> {
    let namespace = "[[namespace]]\nname = 'kept'\nwrite_once = true\n";
    let (tokens, writer) =
        Tokens::start(namespace, |entry| entry.token("w", "read-write", "kept"))?;
    let writer = connect(&tokens, &writer)?;
    let (first, second) = (printed("first"), printed("second"));
    update(&writer, &first)?;
    update(&writer, &second)?;
    expect_result(&writer, &first)?;
    // Each write may be made again.
    store(&writer)?;
    store(&writer)?;
    expect_blobs(&writer, true)?;
    expect_result(&writer, &first)
}

#[test]
fn a_reader_is_told_to_store_no_results_where_its_entry_says_so() -> Result<()> {
    let (tokens, secrets) = Tokens::start("", |entry| {
        let writer = entry.token("writer", "read-write", "main")?;
        let reader = entry.token("reader", "read", "main")?;
        let silent = entry.token("silent", "read", "main")?;
        entry.line("update_enabled = false")?;
        Ok([(writer, true), (reader, true), (silent, false)])
    })?;
    let wrong = format!("fonn_{}", "0".repeat(64));
    for (token, expected) in secrets.into_iter().chain([(wrong, true)]) {
        let client = connect(&tokens, &token)?;
        let request = GetCapabilitiesRequest::default();
        let told: ServerCapabilities = client.ask(Method::GetCapabilities, &request)?;
        let cache = told.cache_capabilities.context("no capabilities")?;
        let update = cache.action_cache_update_capabilities;
        let is_told = update.context("no word of updates")?.update_enabled;
        ensure!(is_told == expected, "{is_told}, not {expected}");
    }
    Ok(())
}
