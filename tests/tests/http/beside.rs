//! bazel-remote beside Fonn and in front of it: the same calls end in the same status.

use std::fmt::{self, Write as _};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use fonn_reapi::messages::{
    BatchReadBlobsRequest, BatchReadBlobsResponse, BatchUpdateBlobsRequest,
    BatchUpdateBlobsResponse, Digest, Directory, FileNode, FindMissingBlobsRequest,
    FindMissingBlobsResponse, GetActionResultRequest, GetCapabilitiesRequest, GetTreeRequest,
    OutputFile, QueryWriteStatusRequest, ReadRequest, UpdateActionResultRequest, WriteRequest,
    batch_update_blobs_request,
};
use fonn_reapi::{Deflater, DigestFunction, Hasher, Method, frame};
use prost::Message as _;
use tempfile::TempDir;

use fonn_tests::client::{RemoteClient, write_messages};
use fonn_tests::component::program;
use fonn_tests::node::NodeOptions;
use fonn_tests::peers::BazelRemote;

use super::documented::documented;

/// How long bazel-remote may take to pass on what it was given.
const PASS_LIMIT: Duration = Duration::from_secs(60);

/// How a call ends, and what is said of each blob of it.
#[derive(PartialEq, Eq)]
struct End(tonic::Code, Vec<String>);

impl fmt::Debug for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:?}", self.0, self.1)
    }
}

/// A call that a build tool makes.
struct Call {
    about: &'static str,
    method: Method,
    messages: Vec<Bytes>,
}

fn digest_of(blob: &[u8]) -> Digest {
    let hash = Hasher::new(DigestFunction::Sha256);
    hash.digest(blob).message()
}

fn name(digest: &Digest) -> String {
    format!("{}/{}", digest.hash, digest.size_bytes)
}

/// The result of an action with these outputs. Their paths are not read by Fonn, so its messages
/// have none.
fn result_of(outputs: &[Digest]) -> Bytes {
    let mut result = Vec::new();
    for digest in outputs {
        let file = OutputFile {
            digest: Some(digest.clone()),
            ..OutputFile::default()
        };
        let mut file = file.encode_to_vec();
        // Field 1: the path.
        file.extend_from_slice(b"\x0a\x03out");
        // Field 2: the next output.
        result.extend([0x12, file.len() as u8]);
        result.extend(file);
    }
    Bytes::from(result)
}

/// The calls, in an order in which later ones find what earlier ones stored.
#[derive(Default)]
struct Calls(Vec<Call>);

impl Calls {
    fn add(&mut self, about: &'static str, method: Method, messages: Vec<Bytes>) {
        self.0.push(Call {
            about,
            method,
            messages,
        });
    }

    fn find(&mut self, about: &'static str, digests: &[Digest]) {
        let message = FindMissingBlobsRequest {
            blob_digests: digests.to_vec(),
            ..FindMissingBlobsRequest::default()
        };
        self.add(about, Method::FindMissingBlobs, vec![frame(&message)]);
    }

    fn read(&mut self, about: &'static str, resource: &str, read_offset: i64, read_limit: i64) {
        let message = ReadRequest {
            resource_name: resource.to_owned(),
            read_offset,
            read_limit,
        };
        self.add(about, Method::Read, vec![frame(&message)]);
    }

    fn write(&mut self, about: &'static str, resource: &str, blob: &[u8]) {
        let messages = write_messages(resource, &Bytes::copy_from_slice(blob));
        self.add(about, Method::Write, messages);
    }

    fn batch_read(&mut self, about: &'static str, digests: &[Digest]) {
        let message = BatchReadBlobsRequest {
            digests: digests.to_vec(),
            ..BatchReadBlobsRequest::default()
        };
        self.add(about, Method::BatchReadBlobs, vec![frame(&message)]);
    }

    fn batch_update(&mut self, about: &'static str, blobs: &[(Digest, &[u8])]) {
        let requests = blobs.iter().map(|(digest, data)| {
            let (digest, data) = (Some(digest.clone()), Bytes::copy_from_slice(data));
            batch_update_blobs_request::Request {
                digest,
                data,
                ..batch_update_blobs_request::Request::default()
            }
        });
        let message = BatchUpdateBlobsRequest {
            requests: requests.collect(),
            ..BatchUpdateBlobsRequest::default()
        };
        self.add(about, Method::BatchUpdateBlobs, vec![frame(&message)]);
    }

    fn result(&mut self, about: &'static str, action: &Digest) {
        let message = GetActionResultRequest {
            action_digest: Some(action.clone()),
            ..GetActionResultRequest::default()
        };
        self.add(about, Method::GetActionResult, vec![frame(&message)]);
    }

    fn update(&mut self, about: &'static str, action: &Digest, outputs: &[Digest]) {
        let message = UpdateActionResultRequest {
            action_digest: Some(action.clone()),
            action_result: result_of(outputs),
            ..UpdateActionResultRequest::default()
        };
        self.add(about, Method::UpdateActionResult, vec![frame(&message)]);
    }

    fn tree(&mut self, about: &'static str, root: &Digest) {
        let message = GetTreeRequest {
            root_digest: Some(root.clone()),
            ..GetTreeRequest::default()
        };
        self.add(about, Method::GetTree, vec![frame(&message)]);
    }

    fn status(&mut self, about: &'static str, resource: &str) {
        let message = QueryWriteStatusRequest {
            resource_name: resource.to_owned(),
        };
        self.add(about, Method::QueryWriteStatus, vec![frame(&message)]);
    }
}

/// What a build tool says to a cache, right and wrong.
fn recorded() -> Result<Vec<Call>> {
    let mut calls = Calls::default();
    let blob = vec![7; 100_000];
    let (there, absent, empty) = (digest_of(&blob), digest_of(b"absent"), digest_of(b""));
    let malformed = Digest {
        hash: "abc".to_owned(),
        size_bytes: 3,
    };
    let upload = |digest: &Digest| format!("uploads/0d5d46f0/blobs/{}", name(digest));

    let capabilities = frame(&GetCapabilitiesRequest::default());
    calls.add("capabilities", Method::GetCapabilities, vec![capabilities]);

    calls.find(
        "find what is absent, and what is empty",
        &[absent.clone(), empty.clone()],
    );
    calls.find("find nothing", &[]);
    calls.find("find a malformed digest", std::slice::from_ref(&malformed));
    calls.read(
        "read what is absent",
        &format!("blobs/{}", name(&absent)),
        0,
        0,
    );
    calls.read(
        "read what is empty",
        &format!("blobs/{}", name(&empty)),
        0,
        0,
    );
    calls.read("read no resource", "", 0, 0);
    calls.read("read a malformed resource", "blobs/abc", 0, 0);
    calls.status("ask for a write that was not", &upload(&there));

    calls.write("write", &upload(&there), &blob);
    calls.write("write again", &upload(&there), &blob);
    calls.write(
        "write an instance",
        &format!("team/{}", upload(&absent)),
        b"absent",
    );
    calls.write("write what is empty", &upload(&empty), b"");
    calls.write("write to no resource", "", &blob);
    calls.write(
        "write another blob",
        &upload(&digest_of(b"another")),
        b"anothes",
    );
    calls.write("write too little", &upload(&digest_of(b"another")), b"ano");
    calls.write(
        "write too much",
        &upload(&digest_of(b"another")),
        b"another one",
    );
    calls.status("ask for a write that was", &upload(&there));
    calls.find(
        "find what was written and what was not",
        &[there.clone(), digest_of(b"another")],
    );

    let resource = format!("blobs/{}", name(&there));
    calls.read("read", &resource, 0, 0);
    calls.read("read from the middle", &resource, 50_000, 0);
    calls.read("read the middle", &resource, 50_000, 10);
    calls.read("read from the end", &resource, 100_000, 0);
    calls.read("read behind the end", &resource, 100_001, 0);
    calls.read("read before the start", &resource, -1, 0);
    calls.read("read less than nothing", &resource, 0, -1);
    let compressed = format!("compressed-blobs/zstd/{}", name(&there));
    calls.read("read compressed", &compressed, 0, 0);
    calls.read("read the middle compressed", &compressed, 50_000, 10);

    let second = vec![9; 50_000];
    let mut deflater = Deflater::new()?;
    let mut zstd = Vec::new();
    deflater.step(&second, &mut zstd)?;
    deflater.finish(&mut zstd)?;
    let digest = digest_of(&second);
    let resource = format!("uploads/9f1c/compressed-blobs/zstd/{}", name(&digest));
    calls.write(
        "write what is not compressed as compressed",
        &resource,
        &second,
    );
    calls.write("write compressed", &resource, &zstd);
    calls.write("write compressed again", &resource, &zstd);
    calls.read(
        "read what came compressed",
        &format!("blobs/{}", name(&digest)),
        0,
        0,
    );

    let small: &[(Digest, &[u8])] = &[
        (digest_of(b"one"), b"one"),
        (digest_of(b"two"), b"tow"),
        (digest_of(b""), b""),
    ];
    calls.batch_update("store a batch with a wrong blob", small);
    let named: Vec<_> = small.iter().map(|(digest, _)| digest.clone()).collect();
    calls.batch_read("read a batch with an absent blob", &named);
    calls.batch_read("read a batch of nothing", &[]);

    let action = digest_of(b"action");
    calls.result("a result that is absent", &action);
    calls.result("a result of a malformed action", &malformed);
    calls.update("store a result", &action, std::slice::from_ref(&there));
    calls.result("a result that is there", &action);
    let action = digest_of(b"incomplete");
    calls.update(
        "store a result without its output",
        &action,
        &[digest_of(b"never")],
    );
    calls.result("a result without its output", &action);

    let file = FileNode {
        digest: Some(there),
    };
    let root = Directory {
        files: vec![file],
        ..Directory::default()
    };
    let root = root.encode_to_vec();
    calls.tree("a tree that is absent", &digest_of(&root));
    calls.batch_update("store a tree", &[(digest_of(&root), &root)]);
    calls.tree("a tree", &digest_of(&root));

    let first = WriteRequest {
        resource_name: upload(&digest_of(b"another")),
        data: Bytes::from_static(b"ano"),
        ..WriteRequest::default()
    };
    calls.add(
        "a write that ends early",
        Method::Write,
        vec![frame(&first)],
    );
    let gap = WriteRequest {
        write_offset: 5,
        data: Bytes::from_static(b"er"),
        finish_write: true,
        ..WriteRequest::default()
    };
    let messages = vec![frame(&first), frame(&gap)];
    calls.add("a write with a gap", Method::Write, messages);
    Ok(calls.0)
}

fn made(client: &RemoteClient, call: &Call) -> Result<End> {
    let answer = client.call(call.method, call.messages.clone());
    let answer = answer.with_context(|| call.about)?;
    let mut blobs = Vec::new();
    for message in answer.messages {
        match call.method {
            Method::FindMissingBlobs => {
                let found = FindMissingBlobsResponse::decode(message)?;
                let hashes = found.missing_blob_digests.into_iter().map(|it| it.hash);
                blobs.extend(hashes);
            }
            Method::BatchReadBlobs => {
                for it in BatchReadBlobsResponse::decode(message)?.responses {
                    let code = it.status.map_or(0, |status| status.code);
                    blobs.push(format!("{code}, {} bytes", it.data.len()));
                }
            }
            Method::BatchUpdateBlobs => {
                for it in BatchUpdateBlobsResponse::decode(message)?.responses {
                    let code = it.status.map_or(0, |status| status.code);
                    blobs.push(code.to_string());
                }
            }
            _ => {}
        }
    }
    Ok(End(answer.code, blobs))
}

/// Where Fonn keeps to the specification and bazel-remote does not: how Fonn ends the call.
const BETTER: &[(&str, tonic::Code, &str)] = &[
    (
        "write another blob",
        INVALID,
        "a wrong digest is INVALID_ARGUMENT",
    ),
    ("write too little", INVALID, "so is a wrong length"),
    ("write too much", INVALID, "so is a wrong length"),
    ("a write that ends early", INVALID, "so is a wrong length"),
    ("a write with a gap", INVALID, "write_offset has to fit"),
    (
        "write what is not compressed as compressed",
        INVALID,
        "what cannot be decompressed has no digest",
    ),
    ("read the middle", tonic::Code::Ok, "read_limit is allowed"),
    (
        "read from the end",
        tonic::Code::Ok,
        "the offset may be the length of the blob",
    ),
    (
        "read before the start",
        tonic::Code::OutOfRange,
        "a negative offset is OUT_OF_RANGE",
    ),
    ("read less than nothing", INVALID, "no length is negative"),
];

const INVALID: tonic::Code = tonic::Code::InvalidArgument;

/// The code of a blob of a batch that is not what its digest says: INVALID_ARGUMENT at Fonn,
/// INTERNAL at bazel-remote.
const WRONG_BLOB: (&str, [&str; 2]) = ("store a batch with a wrong blob", ["3", "13"]);

impl End {
    /// What Fonn has to say where bazel-remote says this.
    fn at_fonn(mut self, about: &str) -> Self {
        if let Some((_, code, _)) = BETTER.iter().find(|(name, ..)| *name == about) {
            self.0 = *code;
        }
        if about == WRONG_BLOB.0 {
            let [ours, theirs] = WRONG_BLOB.1;
            let wrong = self.1.iter_mut().filter(|it| *it == theirs);
            wrong.for_each(|it| ours.clone_into(it));
        }
        self
    }
}

#[test]
fn the_calls_of_build_tools_end_as_at_bazel_remote() -> Result<()> {
    let Some(program) = program("bazel-remote")? else {
        return Ok(());
    };
    let dir = tempfile::tempdir()?;
    let alone = BazelRemote::start(&program, dir.path(), &[])?;
    let node = NodeOptions::new().with_http().start()?;
    let clients = [alone.grpc, node.http()].map(RemoteClient::connect);
    let [theirs, ours] = clients;
    let (theirs, ours) = (theirs?, ours?);
    let mut differences = String::new();
    for call in recorded()? {
        let expected = made(&theirs, &call)?.at_fonn(call.about);
        let end = made(&ours, &call)?;
        if end != expected {
            let _ = writeln!(differences, "{}: {expected:?}, and {end:?}", call.about);
        }
    }
    ensure!(differences.is_empty(), "\n{differences}");
    Ok(())
}

/// A bazel-remote in front of a server: what that server does has to look as if it was another
/// bazel-remote.
#[test]
fn bazel_remote_in_front_of_fonn_ends_calls_as_in_front_of_itself() -> Result<()> {
    let Some(program) = program("bazel-remote")? else {
        return Ok(());
    };
    let dirs = [(); 4].map(|()| tempfile::tempdir());
    let [behind_dir, front_dir, ours_dir, late_dir] = dirs;
    let behind_dir = behind_dir?;
    let behind = BazelRemote::start(&program, behind_dir.path(), &[])?;
    let node = NodeOptions::new().with_http().start()?;
    let in_front = |dir: &TempDir, of: SocketAddr| {
        let line = documented("bazel-remote in front of Fonn", of)?;
        let proxy = line
            .split_whitespace()
            .skip_while(|it| !it.starts_with("--grpc"));
        BazelRemote::start(&program, dir.path(), &proxy.collect::<Vec<_>>())
    };
    let (front_dir, ours_dir, late_dir) = (front_dir?, ours_dir?, late_dir?);
    let theirs = in_front(&front_dir, behind.grpc)?;
    let ours = in_front(&ours_dir, node.http())?;
    let clients = (
        RemoteClient::connect(theirs.grpc)?,
        RemoteClient::connect(ours.grpc)?,
    );
    let mut differences = String::new();
    for call in recorded()? {
        let (expected, end) = (made(&clients.0, &call)?, made(&clients.1, &call)?);
        if end != expected {
            let _ = writeln!(differences, "{}: {expected:?}, and {end:?}", call.about);
        }
    }
    ensure!(differences.is_empty(), "\n{differences}");

    // It passes on in the background what it was given. Another one, which has nothing itself,
    // finds all of it.
    let (blob, action) = (digest_of(&vec![7; 100_000]), digest_of(b"action"));
    let late = in_front(&late_dir, node.http())?;
    let late = RemoteClient::connect(late.grpc)?;
    let mut calls = Calls::default();
    calls.result("the result", &action);
    calls.read("the blob", &format!("blobs/{}", name(&blob)), 0, 0);
    for call in calls.0 {
        let begun = Instant::now();
        while made(&late, &call)?.0 != tonic::Code::Ok {
            ensure!(begun.elapsed() < PASS_LIMIT, "{} is not found", call.about);
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    Ok(())
}
