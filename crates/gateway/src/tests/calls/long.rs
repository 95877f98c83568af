//! Blobs that are longer than one entry may be, and blobs as lists of chunks.

use fonn_reapi::messages::{
    SpliceBlobRequest, SpliceBlobResponse, SplitBlobRequest, SplitBlobResponse,
};

use super::super::requests::long::long_value;
use super::*;

impl Site {
    async fn has(&self, blob: &[u8]) -> bool {
        self.missing(&[digest_of(blob)]).await.is_empty()
    }

    pub(super) async fn split(&self, blob: &Digest) -> Result<Vec<Digest>, u16> {
        let request = SplitBlobRequest {
            blob_digest: Some(blob.clone()),
            ..SplitBlobRequest::default()
        };
        let split: SplitBlobResponse = self.ask(&format!("{CAS}/SplitBlob"), &request).await?;
        assert_eq!((split.digest_function, split.chunking_function), (1, 1));
        Ok(split.chunk_digests)
    }

    async fn splice(&self, blob: &Digest, chunks: &[Digest]) -> Result<Option<Digest>, u16> {
        let request = SpliceBlobRequest {
            blob_digest: Some(blob.clone()),
            chunk_digests: chunks.to_vec(),
            ..SpliceBlobRequest::default()
        };
        let path = format!("{CAS}/SpliceBlob");
        let spliced: SpliceBlobResponse = self.ask(&path, &request).await?;
        Ok(spliced.blob_digest)
    }
}

fn upload_name(blob: &[u8], kind: &str) -> String {
    let digest = digest_of(blob);
    format!("uploads/u/{kind}/{}/{}", digest.hash, digest.size_bytes)
}

fn read_name(blob: &[u8], kind: &str) -> String {
    let digest = digest_of(blob);
    format!("{kind}/{}/{}", digest.hash, digest.size_bytes)
}

#[tokio::test]
async fn a_long_blob_is_written_and_read() {
    let (site, blob) = (Site::new(), long_value());
    let parts: Vec<&[u8]> = blob.chunks(700_000).collect();
    let name = upload_name(&blob, "blobs");
    assert!(!site.has(&blob).await);
    assert_eq!(site.upload(&name, &parts).await, Ok(blob.len() as i64));
    assert!(site.has(&blob).await);
    let name = read_name(&blob, "blobs");
    assert!(site.download(&name, 0, 0).await.unwrap() == blob);
    let (from, len) = (VALUE_LEN_MAX - 5, 400_000);
    let read = site.download(&name, from as i64, len as i64).await.unwrap();
    assert!(read == blob[from..from + len]);
    // A second upload ends at once.
    let upload = upload_name(&blob, "blobs");
    assert_eq!(site.upload(&upload, &[b"x"]).await, Ok(blob.len() as i64));
    site.store
        .evict(|bytes| bytes.ends_with(&blob[blob.len() - 9..]));
    assert!(!site.has(&blob).await);
    assert_eq!(site.download(&name, 0, 0).await, Err(NOT_FOUND));
}

#[tokio::test]
async fn a_long_blob_is_written_and_read_compressed() {
    let (site, blob) = (Site::new(), long_value());
    let stream = zstd(&blob);
    let parts: Vec<&[u8]> = stream.chunks(700_000).collect();
    let name = upload_name(&blob, "compressed-blobs/zstd");
    assert_eq!(site.upload(&name, &parts).await, Ok(stream.len() as i64));
    let name = read_name(&blob, "compressed-blobs/zstd");
    let read = site.download(&name, 0, 0).await.unwrap();
    assert!(unzstd(&read, blob.len()) == blob);
    let read = site.download(&name, 1_500_000, 0).await.unwrap();
    assert!(unzstd(&read, blob.len()) == blob[1_500_000..]);
}

#[tokio::test]
async fn a_long_blob_that_is_not_its_digest_is_refused() {
    let (site, blob) = (Site::new(), long_value());
    let mut other = blob.clone();
    other[7] ^= 1;
    let name = upload_name(&other, "blobs");
    let parts: Vec<&[u8]> = blob.chunks(700_000).collect();
    assert_eq!(site.upload(&name, &parts).await, Err(INVALID));
    assert!(!site.has(&other).await);
}

#[tokio::test]
async fn a_blob_is_split_and_spliced() {
    let site = Site::new();
    // One that is stored in chunks, and one that is stored whole.
    let long = long_value();
    let name = upload_name(&long, "blobs");
    let parts: Vec<&[u8]> = long.chunks(700_000).collect();
    site.upload(&name, &parts).await.unwrap();
    let short = &long[..VALUE_LEN_MAX];
    site.upload(&upload_name(short, "blobs"), &[short])
        .await
        .unwrap();
    for blob in [&long, short] {
        let chunks = site.split(&digest_of(blob)).await.unwrap();
        assert!(chunks.len() > 1);
        let mut made = Vec::new();
        for chunk in &chunks {
            let name = format!("blobs/{}/{}", chunk.hash, chunk.size_bytes);
            made.extend(site.download(&name, 0, 0).await.unwrap());
        }
        assert!(made == blob);
    }
    let chunks = site.split(&digest_of(&long)).await.unwrap();
    // Chunks in another order are another blob.
    let (first, second) = (&chunks[0], &chunks[1]);
    let (a, b) = (first.size_bytes as usize, second.size_bytes as usize);
    let swapped = [&long[a..a + b], &long[..a]].concat();
    let blob = digest_of(&swapped);
    let order = [second.clone(), first.clone()];
    assert_eq!(site.splice(&blob, &chunks[..2]).await, Err(INVALID));
    assert!(!site.has(&swapped).await);
    assert_eq!(site.splice(&blob, &order).await, Ok(Some(blob.clone())));
    assert!(
        site.download(&read_name(&swapped, "blobs"), 0, 0)
            .await
            .unwrap()
            == swapped
    );
    // A chunk that is not there.
    let absent = digest_of(b"absent");
    let with_absent = [&swapped[..], b"absent"].concat();
    let order = [second.clone(), first.clone(), absent];
    let spliced = site.splice(&digest_of(&with_absent), &order).await;
    assert_eq!(spliced, Err(NOT_FOUND));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_hashes_a_blob_waits_for_its_turn() {
    let site = Site::new();
    let blob = long_value()[..VALUE_LEN_MAX].to_vec();
    site.upload(&upload_name(&blob, "blobs"), &[&blob])
        .await
        .unwrap();
    let chunks = site.split(&digest_of(&blob)).await.unwrap();
    let others = all_turns(&site.front).await;
    assert_eq!(site.split(&digest_of(&blob)).await, Err(UNAVAILABLE));
    let first = &chunks[..1];
    let spliced = site.splice(&digest_of(b"other"), first).await;
    assert_eq!(spliced, Err(INVALID));
    let len = first[0].size_bytes;
    let other = Digest {
        size_bytes: len,
        ..digest_of(b"other")
    };
    assert_eq!(site.splice(&other, first).await, Err(UNAVAILABLE));
    drop(others);
    assert_eq!(site.splice(&other, first).await, Err(INVALID));
    assert_eq!(site.split(&digest_of(&blob)).await, Ok(chunks));
}

#[tokio::test]
async fn blobs_that_cannot_be_split_or_spliced_are_refused() {
    let site = Site::new();
    assert_eq!(site.split(&digest_of(b"absent")).await, Err(NOT_FOUND));
    let sha1 = Digest {
        hash: "a".repeat(40),
        size_bytes: 1,
    };
    assert_eq!(site.split(&sha1).await, Err(UNIMPLEMENTED));
    assert_eq!(site.splice(&sha1, &[]).await, Err(UNIMPLEMENTED));
    let blob = digest_of(b"abc");
    let huge = Digest {
        size_bytes: 5 << 20,
        ..digest_of(b"chunk")
    };
    assert_eq!(site.splice(&blob, &[huge]).await, Err(INVALID));
    assert_eq!(site.splice(&blob, &[]).await, Err(INVALID));
}
