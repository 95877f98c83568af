//! What lookups cost and wait for, and first values that stay.

use super::super::fake::MEMORY_LEN;
use super::super::requests::long::long_value;
use super::*;

const PERMISSION_DENIED: u16 = 7;

fn with_output(blob: &[u8]) -> ActionResult {
    ActionResult {
        output_files: vec![OutputFile {
            digest: Some(digest_of(blob)),
            ..OutputFile::default()
        }],
        ..ActionResult::default()
    }
}

#[tokio::test]
async fn lookups_do_not_wait_behind_uploads_for_memory() {
    let site = Site::new();
    let blob = site.store_blob(b"output").await;
    let (action, result) = (digest_of(b"action"), with_output(b"output"));
    site.update(&action, &result).await.unwrap();
    site.store.0.charged.store(MEMORY_LEN, Ordering::SeqCst);
    assert_eq!(site.result(&action).await, Ok(result.clone()));
    assert!(site.missing(std::slice::from_ref(&blob)).await.is_empty());
    let read = site.download(&name(&blob, "blobs"), 0, 0).await;
    assert_eq!(read.unwrap(), b"output");
    let compressed = name(&blob, "compressed-blobs/zstd");
    let stream = site.download(&compressed, 0, 0).await;
    assert_eq!(unzstd(&stream.unwrap(), 6), b"output");
    // A lookup that needs much memory is a miss. A write is told that there is none.
    let many = FindMissingBlobsRequest {
        blob_digests: vec![blob; 1000],
        ..FindMissingBlobsRequest::default()
    };
    let path = format!("{CAS}/FindMissingBlobs");
    let looked: Result<FindMissingBlobsResponse, u16> = site.ask(&path, &many).await;
    assert_eq!(looked, Err(NOT_FOUND));
    assert_eq!(site.update(&action, &result).await, Err(UNAVAILABLE));
    let charged = site.store.0.charged.load(Ordering::SeqCst);
    assert_eq!(charged, MEMORY_LEN);
}

#[tokio::test(start_paused = true)]
async fn lists_of_chunks_are_looked_at_one_after_another() {
    let site = Site::new();
    let mut digests = Vec::new();
    for number in 0..3 {
        let mut blob = long_value();
        blob[0] = number;
        let upload = format!("uploads/u/{}", name(&digest_of(&blob), "blobs"));
        let parts: Vec<&[u8]> = blob.chunks(700_000).collect();
        site.upload(&upload, &parts).await.unwrap();
        digests.push(digest_of(&blob));
    }
    let inside = &site.store.0;
    inside.getting_max.store(0, Ordering::SeqCst);
    site.store
        .set(Fault::Slow(std::time::Duration::from_millis(10)));
    assert!(site.missing(&digests).await.is_empty());
    assert_eq!(inside.getting_max.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_first_result_that_is_not_complete_is_no_success_of_a_second_one() {
    let site = Site::new();
    site.store.0.is_write_once.store(true, Ordering::SeqCst);
    let action = digest_of(b"action");
    let (first, second) = (with_output(b"first"), with_output(b"second"));
    site.update(&action, &first).await.unwrap();
    let refused = site.update(&action, &second).await;
    assert_eq!(refused, Err(PERMISSION_DENIED));
    site.store_blob(b"first").await;
    // The answer is what later reads get.
    assert_eq!(site.update(&action, &second).await, Ok(first.clone()));
    assert_eq!(site.result(&action).await, Ok(first));
}

#[tokio::test]
async fn a_blob_whose_first_chunks_are_lost_is_no_success_of_a_second_upload() {
    let (site, blob) = (Site::new(), long_value());
    let cut_at = [700_000, 1_500_000, blob.len()];
    let mut chunks = Vec::new();
    let mut from = 0;
    for to in cut_at {
        chunks.push(site.store_blob(&blob[from..to]).await);
        from = to;
    }
    let request = fonn_reapi::messages::SpliceBlobRequest {
        blob_digest: Some(digest_of(&blob)),
        chunk_digests: chunks.clone(),
        ..fonn_reapi::messages::SpliceBlobRequest::default()
    };
    let spliced = site
        .ask::<fonn_reapi::messages::SpliceBlobResponse>(&format!("{CAS}/SpliceBlob"), &request)
        .await;
    assert!(spliced.is_ok());
    site.store.0.is_write_once.store(true, Ordering::SeqCst);
    site.evict(&chunks[1]);
    // The server cuts the blob elsewhere, so the upload does not restore the chunk.
    let upload = format!("uploads/u/{}", name(&digest_of(&blob), "blobs"));
    let parts: Vec<&[u8]> = blob.chunks(700_000).collect();
    let refused = site.upload(&upload, &parts).await;
    assert_eq!(refused, Err(PERMISSION_DENIED));
    site.store_blob(&blob[700_000..1_500_000]).await;
    let stored = site.upload(&upload, &parts).await;
    assert_eq!(stored, Ok(blob.len() as i64));
}
