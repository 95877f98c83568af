//! Each digest function: its names, its keys and its empty blob.

use fonn_reapi::DigestFunction;

use super::*;

const BLOB: &[u8] = b"abc";

/// Each function with its number in the API, its name, and the hashes of [`BLOB`] and of no bytes
/// from the standards of the functions.
const FUNCTIONS: [(i32, &str, &str, &str); 6] = [
    (
        1,
        "sha256",
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    ),
    (
        2,
        "sha1",
        "a9993e364706816aba3e25717850c26c9cd0d89d",
        "da39a3ee5e6b4b0d3255bfef95601890afd80709",
    ),
    (
        3,
        "md5",
        "900150983cd24fb0d6963f7d28e17f72",
        "d41d8cd98f00b204e9800998ecf8427e",
    ),
    (
        5,
        "sha384",
        "cb00753f45a35e8bb5a03d699ac65007272c32ab0eded1631a8b605a43ff5bed\
         8086072ba1e7cc2358baeca134c825a7",
        "38b060a751ac96384cd9327eb1b1e36a21fdb71114be07434c0cc7bf63f6e1da\
         274edebfe76f65fbd51ad2f14898b95b",
    ),
    (
        6,
        "sha512",
        "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a\
         2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f",
        "cf83e1357eefb8bdf1542850d66d8007d620e4050b5715dc83f4a921d36ce9ce\
         47d0d13c5d85f2b0ff8318d2877eec2f63b931bd47417a81a538327af927da3e",
    ),
    (
        9,
        "blake3",
        "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85",
        "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262",
    ),
];

const BLAKE3: i32 = 9;

/// One function in calls.
#[derive(Clone, Copy)]
struct Function {
    number: i32,
    name: &'static str,
}

impl Function {
    /// The digest of a blob by its hash.
    fn digest(hash: &str, blob: &[u8]) -> Digest {
        Digest {
            hash: hash.to_owned(),
            size_bytes: blob.len() as i64,
        }
    }

    /// Names of a blob as a resource. Only BLAKE3 has to be named: its hashes are as long as those
    /// of SHA-256.
    fn resources(self, kind: &str, digest: &Digest) -> Vec<String> {
        let named = name(digest, &format!("{kind}/{}", self.name));
        match self.number {
            BLAKE3 => vec![named],
            _ => vec![named, name(digest, kind)],
        }
    }

    async fn missing(self, site: &Site, digest: &Digest) -> bool {
        let request = FindMissingBlobsRequest {
            blob_digests: vec![digest.clone()],
            digest_function: self.number,
            ..FindMissingBlobsRequest::default()
        };
        let path = format!("{CAS}/FindMissingBlobs");
        let answer: FindMissingBlobsResponse = site.ask(&path, &request).await.unwrap();
        !answer.missing_blob_digests.is_empty()
    }

    /// Stores a blob as a batch of one; returns its code.
    async fn batch(self, site: &Site, digest: &Digest, blob: &'static [u8]) -> i32 {
        let request = BatchUpdateBlobsRequest {
            requests: vec![batch_update_blobs_request::Request {
                digest: Some(digest.clone()),
                data: Bytes::from_static(blob),
                compressor: 0,
            }],
            digest_function: self.number,
            ..BatchUpdateBlobsRequest::default()
        };
        let path = format!("{CAS}/BatchUpdateBlobs");
        let answer: BatchUpdateBlobsResponse = site.ask(&path, &request).await.unwrap();
        answer.responses[0].status.clone().unwrap().code
    }

    /// Reads a blob as a batch of one.
    async fn batch_read(self, site: &Site, digest: &Digest) -> Option<Bytes> {
        let request = BatchReadBlobsRequest {
            digests: vec![digest.clone()],
            digest_function: self.number,
            ..BatchReadBlobsRequest::default()
        };
        let path = format!("{CAS}/BatchReadBlobs");
        let answer: BatchReadBlobsResponse = site.ask(&path, &request).await.unwrap();
        let response = answer.responses[0].clone();
        (response.status.unwrap().code == 0).then_some(response.data)
    }

    async fn update(self, site: &Site, action: &Digest, result: &ActionResult) {
        let request = UpdateActionResultRequest {
            action_digest: Some(action.clone()),
            action_result: result.encode_to_vec().into(),
            digest_function: self.number,
            ..UpdateActionResultRequest::default()
        };
        let path = format!("{AC}/UpdateActionResult");
        let answer: ActionResult = site.ask(&path, &request).await.unwrap();
        assert_eq!(answer, *result);
    }

    async fn result(self, site: &Site, action: &Digest) -> Result<ActionResult, u16> {
        let request = GetActionResultRequest {
            action_digest: Some(action.clone()),
            digest_function: self.number,
            ..GetActionResultRequest::default()
        };
        site.ask(&format!("{AC}/GetActionResult"), &request).await
    }
}

/// The result of an action that has one file.
fn with_file(digest: &Digest) -> ActionResult {
    ActionResult {
        output_files: vec![OutputFile {
            digest: Some(digest.clone()),
            ..OutputFile::default()
        }],
        ..ActionResult::default()
    }
}

/// Each function with the digests of [`BLOB`] and of no bytes.
fn functions() -> impl Iterator<Item = (Function, Digest, Digest)> {
    assert_eq!(FUNCTIONS.len(), DigestFunction::ALL.len());
    FUNCTIONS.into_iter().map(|(number, name, blob, empty)| {
        let (blob, empty) = (Function::digest(blob, BLOB), Function::digest(empty, b""));
        (Function { number, name }, blob, empty)
    })
}

#[tokio::test]
async fn a_blob_of_each_function_is_written_and_read_as_a_stream() {
    let site = Site::new();
    for (function, digest, _) in functions() {
        let function_name = function.name;
        let reads = function.resources("blobs", &digest);
        for read in &reads {
            assert_eq!(site.download(read, 0, 0).await, Err(NOT_FOUND), "{read}");
        }
        for upload in function.resources("uploads/u/blobs", &digest) {
            assert_eq!(site.upload(&upload, &[b"abd"]).await, Err(INVALID));
            assert!(function.missing(&site, &digest).await, "{upload}");
            let stored = site.upload(&upload, &[b"a", b"bc"]).await;
            assert_eq!(stored, Ok(3), "{upload}");
            assert!(!function.missing(&site, &digest).await, "{upload}");
            for read in &reads {
                assert_eq!(site.download(read, 0, 0).await.unwrap(), BLOB, "{read}");
            }
            let key = match function_name {
                "sha256" => format!("cas/{}", digest.hash),
                name => format!("cas//{name}/{}", digest.hash),
            };
            assert_eq!(site.store.value(&key).unwrap(), BLOB, "{upload}");
            site.store.0.entries.lock().retain(|(_, it), _| *it != key);
        }
        let upload = function.resources("uploads/u/compressed-blobs/zstd", &digest);
        let stream = zstd(BLOB);
        let stored = site.upload(&upload[0], &[&stream]).await;
        assert_eq!(stored, Ok(stream.len() as i64), "{upload:?}");
        for read in function.resources("compressed-blobs/zstd", &digest) {
            let stream = site.download(&read, 0, 0).await.unwrap();
            assert_eq!(unzstd(&stream, 3), BLOB, "{read}");
        }
    }
    assert_eq!(site.store.0.entries.lock().len(), FUNCTIONS.len());
}

#[tokio::test]
async fn a_batch_and_a_result_of_each_function_come_back() {
    let site = Site::new();
    for (function, digest, _) in functions() {
        let function_name = function.name;
        assert_eq!(function.batch_read(&site, &digest).await, None);
        let code = function.batch(&site, &digest, b"abd").await;
        assert_eq!(code, i32::from(INVALID), "{function_name}");
        assert_eq!(function.batch(&site, &digest, BLOB).await, 0);
        let read = function.batch_read(&site, &digest).await;
        assert_eq!(read.unwrap(), BLOB, "{function_name}");
        // The digest of the blob is as good as one of an action.
        let result = with_file(&digest);
        assert_eq!(function.result(&site, &digest).await, Err(NOT_FOUND));
        function.update(&site, &digest, &result).await;
        assert_eq!(function.result(&site, &digest).await, Ok(result));
    }
    // Without its blob a result is none, in each function.
    site.store.evict(|bytes| bytes == BLOB);
    for (function, digest, _) in functions() {
        let function_name = function.name;
        assert!(function.missing(&site, &digest).await, "{function_name}");
        let result = function.result(&site, &digest).await;
        assert_eq!(result, Err(NOT_FOUND), "{function_name}");
    }
}

#[tokio::test]
async fn the_empty_blob_of_each_function_is_always_there() {
    let site = Site::new();
    for (function, digest, empty) in functions() {
        let function_name = function.name;
        assert!(!function.missing(&site, &empty).await, "{function_name}");
        let read = function.batch_read(&site, &empty).await;
        assert_eq!(read.unwrap(), "", "{function_name}");
        for read in function.resources("blobs", &empty) {
            assert_eq!(site.download(&read, 0, 0).await.unwrap(), b"", "{read}");
        }
        for upload in function.resources("uploads/u/blobs", &empty) {
            assert_eq!(site.upload(&upload, &[b""]).await, Ok(0), "{upload}");
        }
        assert_eq!(function.batch(&site, &empty, b"").await, 0);
        // A result with an empty file needs no blob.
        let result = with_file(&empty);
        function.update(&site, &digest, &result).await;
        assert_eq!(function.result(&site, &digest).await, Ok(result));
        // The hash of no bytes with another length names a blob that is missing.
        let other = Digest {
            size_bytes: 1,
            ..empty
        };
        assert!(function.missing(&site, &other).await, "{function_name}");
    }
}

#[tokio::test]
async fn two_functions_with_hashes_of_one_length_have_blobs_of_their_own() {
    let site = Site::new();
    let of = |number| functions().find(|(function, ..)| function.number == number);
    let ((sha256, sha256_digest, _), (blake3, blake3_digest, _)) =
        (of(1).unwrap(), of(BLAKE3).unwrap());
    assert_eq!(blake3.batch(&site, &blake3_digest, BLOB).await, 0);
    assert!(!blake3.missing(&site, &blake3_digest).await);
    assert!(sha256.missing(&site, &blake3_digest).await);
    // Without the name the hash is one of SHA-256.
    let read = name(&blake3_digest, "blobs");
    assert_eq!(site.download(&read, 0, 0).await, Err(NOT_FOUND));
    let upload = name(&blake3_digest, "uploads/u/blobs");
    assert_eq!(site.upload(&upload, &[BLOB]).await, Err(INVALID));
    assert!(blake3.missing(&site, &sha256_digest).await);
    // A name that does not fit the hash is refused.
    let read = name(&blake3_digest, "blobs/sha1");
    assert_eq!(site.download(&read, 0, 0).await, Err(INVALID));
}
