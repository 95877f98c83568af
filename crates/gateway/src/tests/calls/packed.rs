//! Blobs that came compressed, and are kept so.

use http_body_util::Full;

use super::super::fake::{MEMORY_LEN, Reply, ask};
use super::super::requests::long::long_value;
use super::*;

/// 200,000 bytes that compress well.
fn text() -> Vec<u8> {
    b"all work and no play "
        .iter()
        .copied()
        .cycle()
        .take(200_000)
        .collect()
}

fn key_of(digest: &Digest) -> String {
    format!("cas/{}", digest.hash)
}

impl Site {
    async fn upload_packed(&self, blob: &[u8], stream: &[u8]) -> Result<i64, u16> {
        let kind = "uploads/u/compressed-blobs/zstd";
        self.upload(&name(&digest_of(blob), kind), &[stream]).await
    }

    async fn http(
        &self,
        method: &str,
        digest: &Digest,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Reply {
        let path = format!("/cas/{}", digest.hash);
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = Full::new(Bytes::copy_from_slice(body));
        ask(&self.front, request.body(body).unwrap()).await
    }

    async fn batch_read(&self, digest: &Digest) -> Result<Vec<u8>, i32> {
        let request = BatchReadBlobsRequest {
            digests: vec![digest.clone()],
            ..BatchReadBlobsRequest::default()
        };
        let path = format!("{CAS}/BatchReadBlobs");
        let answer: BatchReadBlobsResponse = self.ask(&path, &request).await.unwrap();
        let response = &answer.responses[0];
        match response.status.as_ref().unwrap().code {
            0 => Ok(response.data.to_vec()),
            code => Err(code),
        }
    }
}

#[tokio::test]
async fn a_compressed_blob_is_read_over_http_in_each_way() {
    let (site, blob) = (Site::new(), text());
    let (digest, stream) = (digest_of(&blob), zstd(&blob));
    assert_eq!(
        site.upload_packed(&blob, &stream).await,
        Ok(stream.len() as i64)
    );
    let read = site.http("GET", &digest, &[], b"").await;
    assert_eq!((read.status.as_u16(), read.body == blob), (200, true));
    assert_eq!(read.headers["content-length"], "200000");
    let head = site.http("HEAD", &digest, &[], b"").await;
    assert_eq!(head.headers["content-length"], "200000");
    let part = site
        .http("GET", &digest, &[("range", "bytes=150000-150009")], b"")
        .await;
    assert_eq!(part.status.as_u16(), 206);
    assert_eq!(part.body, blob[150_000..150_010]);
    let encoded = site
        .http("GET", &digest, &[("accept-encoding", "zstd,gzip")], b"")
        .await;
    assert_eq!(encoded.headers["content-encoding"], "zstd");
    assert_eq!(encoded.body, stream);
    // A range is one of the blob, not of its stream.
    let both = [("accept-encoding", "zstd"), ("range", "bytes=-5")];
    assert_eq!(
        site.http("GET", &digest, &both, b"").await.body,
        blob[199_995..]
    );
    assert_eq!(site.store.0.held.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_body_with_zstd_encoding_is_stored_as_it_came() {
    let (site, blob) = (Site::new(), text());
    let (digest, stream) = (digest_of(&blob), zstd(&blob));
    let zstd_encoded = [("content-encoding", "zstd")];
    let put = async |body: &[u8]| site.http("PUT", &digest, &zstd_encoded, body).await.status;
    assert_eq!(put(b"no stream").await, 400);
    assert_eq!(put(&stream[..stream.len() - 1]).await, 400);
    assert_eq!(put(&zstd(b"another blob")).await, 400);
    assert_eq!(put(&zstd(&vec![0; VALUE_LEN_MAX + 1])).await, 400);
    assert!(site.store.0.entries.lock().is_empty());
    assert_eq!(put(&stream).await, 200);
    assert_eq!(site.store.value(&key_of(&digest)).unwrap()[16..], stream);
    assert_eq!(
        site.download(&name(&digest, "blobs"), 0, 0).await.unwrap(),
        blob
    );
    assert_eq!(site.store.0.charged.load(Ordering::SeqCst), 0);
    // With a second charge the request could wait for its own memory.
    assert_eq!(site.store.0.charges_max.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_compressed_blob_that_is_longer_than_an_entry_is_stored_in_chunks() {
    let blob = vec![0; 2 * VALUE_LEN_MAX + 5];
    let (digest, stream) = (digest_of(&blob), zstd(&blob));
    for is_http in [true, false] {
        let site = Site::new();
        if is_http {
            let encoded = [("content-encoding", "zstd")];
            let put = site.http("PUT", &digest, &encoded, &stream).await;
            assert_eq!(put.status, 200);
        } else {
            assert_eq!(site.batch(digest.clone(), &stream, 1).await, 0);
        }
        let read = site.download(&name(&digest, "blobs"), 0, 0).await;
        assert!(read.unwrap() == blob, "{is_http}");
        let read = site.http("GET", &digest, &[], b"").await;
        assert!(read.body == blob, "{is_http}");
    }
    let (site, blob) = (Site::new(), long_value());
    assert_eq!(site.batch(digest_of(&blob), &blob, 0).await, 0);
    let read = site.download(&name(&digest_of(&blob), "blobs"), 0, 0).await;
    assert!(read.unwrap() == blob);
}

#[tokio::test(start_paused = true)]
async fn a_compressed_blob_is_cut_in_its_turn_and_charged() {
    let (site, blob) = (Site::new(), text());
    let (digest, stream) = (digest_of(&blob), zstd(&blob));
    site.upload_packed(&blob, &stream).await.unwrap();
    let charged_max = &site.store.0.charged_max;
    let others = all_turns(&site.front).await;
    charged_max.store(0, Ordering::SeqCst);
    assert_eq!(site.split(&digest).await, Err(UNAVAILABLE));
    assert_eq!(charged_max.load(Ordering::SeqCst), 0);
    drop(others);
    let chunks = site.split(&digest).await.unwrap();
    let len: i64 = chunks.iter().map(|it| it.size_bytes).sum();
    assert_eq!(len, digest.size_bytes);
    assert!(charged_max.load(Ordering::SeqCst) >= blob.len());
}

#[tokio::test]
async fn a_directory_is_charged_before_it_is_decompressed() {
    let site = Site::new();
    let mut root = Directory::default();
    for _ in 0..2000 {
        root.files.push(FileNode {
            digest: Some(digest_of(b"x")),
        });
    }
    let root = root.encode_to_vec();
    let digest = digest_of(&root);
    assert_eq!(site.batch(digest.clone(), &zstd(&root), 1).await, 0);
    let request = GetTreeRequest {
        root_digest: Some(digest),
        ..GetTreeRequest::default()
    };
    let path = format!("{CAS}/GetTree");
    let charged = &site.store.0.charged;
    charged.store(MEMORY_LEN, Ordering::SeqCst);
    let tree = site.messages::<GetTreeResponse>(&path, &request).await;
    assert_eq!(tree, Err(NOT_FOUND));
    charged.store(0, Ordering::SeqCst);
    let tree = site.messages::<GetTreeResponse>(&path, &request).await;
    assert_eq!(tree.unwrap()[0].directories[0], root);
}

#[tokio::test]
async fn a_stream_that_saves_nothing_is_stored_decompressed() {
    let site = Site::new();
    let blob = b"short";
    let (digest, stream) = (digest_of(blob), zstd(blob));
    assert!(stream.len() > blob.len());
    site.upload_packed(blob, &stream).await.unwrap();
    assert_eq!(site.store.value(&key_of(&digest)).unwrap(), &blob[..]);
    site.evict(&digest);
    let encoded = [("content-encoding", "zstd")];
    assert_eq!(
        site.http("PUT", &digest, &encoded, &stream).await.status,
        200
    );
    assert_eq!(site.store.value(&key_of(&digest)).unwrap(), &blob[..]);
}

#[tokio::test]
async fn a_stream_that_grows_without_a_byte_of_its_blob_is_refused() {
    let site = Site::new();
    // Frames that the decoder skips: a mark, a length, and as many bytes (RFC 8878, section 3.1.2).
    let skipped = [
        &[0x50, 0x2a, 0x4d, 0x18][..],
        &1000_u32.to_le_bytes(),
        &[0; 1000],
    ]
    .concat();
    let stream = [skipped.repeat(100), zstd(b"hello")].concat();
    assert_eq!(site.upload_packed(b"hello", &stream).await, Err(INVALID));
    let few = [skipped.repeat(2), zstd(b"hello")].concat();
    assert!(site.upload_packed(b"hello", &few).await.is_ok());
    assert_eq!(site.store.0.charged.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn batches_and_trees_have_compressed_blobs() {
    let (site, blob) = (Site::new(), text());
    let digest = digest_of(&blob);
    assert_eq!(site.batch(digest.clone(), &zstd(&blob), 1).await, 0);
    assert_eq!(site.batch_read(&digest).await.unwrap(), blob);
    let mut root = Directory::default();
    for _ in 0..100 {
        root.files.push(FileNode {
            digest: Some(digest.clone()),
        });
    }
    let tree = Tree {
        root: Some(root),
        ..Tree::default()
    };
    let tree = tree.encode_to_vec();
    let tree_digest = digest_of(&tree);
    assert_eq!(site.batch(tree_digest.clone(), &zstd(&tree), 1).await, 0);
    assert!(site.store.value(&key_of(&tree_digest)).unwrap().len() < tree.len());
    let result = ActionResult {
        output_directories: vec![OutputDirectory {
            tree_digest: Some(tree_digest),
            ..OutputDirectory::default()
        }],
        ..ActionResult::default()
    };
    let action = digest_of(b"action");
    site.update(&action, &result).await.unwrap();
    assert_eq!(site.result(&action).await, Ok(result));
    site.evict(&digest);
    assert_eq!(site.result(&action).await, Err(NOT_FOUND));
}

#[tokio::test]
async fn a_long_blob_is_whole_with_chunks_that_came_compressed() {
    let (site, blob) = (Site::new(), long_value());
    let uploaded = site
        .upload(&name(&digest_of(&blob), "uploads/u/blobs"), &[&blob])
        .await;
    assert_eq!(uploaded, Ok(blob.len() as i64));
    let keys: Vec<Bytes> = {
        let entries = site.store.0.entries.lock();
        let values = entries.iter().filter(|(_, (_, form))| *form == Form::Value);
        values.map(|((_, key), _)| key.clone()).collect()
    };
    assert!(keys.len() > 1);
    for key in keys {
        let chunk = site
            .store
            .value(std::str::from_utf8(&key).unwrap())
            .unwrap();
        let code = site.batch(digest_of(&chunk), &zstd(&chunk), 1).await;
        assert_eq!(code, 0);
    }
    let read = site.download(&name(&digest_of(&blob), "blobs"), 0, 0).await;
    assert!(read.unwrap() == blob);
}

#[tokio::test]
async fn a_damaged_entry_is_a_miss_in_each_way() {
    let (site, blob) = (Site::new(), text());
    let (digest, stream) = (digest_of(&blob), zstd(&blob));
    let read = name(&digest, "blobs");
    let head = |len: u64| [&b"fonnpck1"[..], &len.to_le_bytes()].concat();
    for entry in [
        Vec::new(),
        head(200_000),
        [&head(200_000)[..], b"no stream"].concat(),
        [&head(u64::MAX)[..], &stream].concat(),
        [&head(199_999)[..], &stream].concat(),
    ] {
        site.upload_packed(&blob, &stream).await.unwrap();
        let key = Bytes::from(key_of(&digest));
        for ((_, known), (bytes, _)) in site.store.0.entries.lock().iter_mut() {
            assert_eq!(*known, key);
            *bytes = Bytes::from(entry.clone());
        }
        let code = answered_code(&site, &read).await;
        assert_eq!(code, NOT_FOUND, "{entry:?}");
        assert_eq!(site.batch_read(&digest).await, Err(i32::from(NOT_FOUND)));
        site.evict(&digest);
    }
    assert_eq!(site.store.0.held.load(Ordering::SeqCst), 0);
}

/// The code of a read: it comes behind bytes that were sent.
async fn answered_code(site: &Site, resource_name: &str) -> u16 {
    let request = ReadRequest {
        resource_name: resource_name.to_owned(),
        ..ReadRequest::default()
    };
    let path = format!("{STREAM}/Read");
    site.raw(&path, frame(&request)).await.0
}
