//! Uploads that do not end by themselves.

use std::pin::pin;

use futures_util::FutureExt as _;
use futures_util::stream::{self, StreamExt as _};
use http_body_util::StreamBody;
use hyper::body::Frame;

use super::*;

/// Half of an upload of 1,000 sevens. The other half never comes.
fn half_of_sevens() -> Request<impl Body<Data = Bytes> + Unpin> {
    let digest = digest_of(&[7; 1000]);
    let first = frame(&WriteRequest {
        resource_name: format!("uploads/half/{}", name(&digest, "blobs")),
        data: Bytes::from_static(&[7; 500]),
        ..WriteRequest::default()
    });
    let first = stream::iter([Ok::<_, hyper::Error>(Frame::data(first))]);
    let body = StreamBody::new(first.chain(stream::pending()));
    call(&format!("{STREAM}/Write"), body)
}

#[tokio::test]
async fn an_upload_that_is_cancelled_leaves_nothing() {
    let site = Site::new();
    let upload = answered(&site.front, half_of_sevens());
    assert_eq!(upload.now_or_never(), None);
    // Once the future is gone, as when its client has reset the stream.
    assert!(site.store.0.charged_max.load(Ordering::SeqCst) > 0);
    assert!(site.store.0.entries.lock().is_empty());
}

#[tokio::test]
async fn an_upload_ends_when_another_one_of_its_blob_is_stored() {
    let site = Site::new();
    let mut half = pin!(answered(&site.front, half_of_sevens()));
    assert_eq!((&mut half).now_or_never(), None);
    // Neither a wrong upload of the blob ends it, nor one of another blob.
    let uploads = |blob: [u8; 1000]| format!("uploads/u/{}", name(&digest_of(&blob), "blobs"));
    let wrong = site.upload(&uploads([7; 1000]), &[&[8; 1000]]).await;
    assert_eq!(wrong, Err(INVALID));
    assert_eq!(
        site.upload(&uploads([9; 1000]), &[&[9; 1000]]).await,
        Ok(1000)
    );
    assert_eq!((&mut half).now_or_never(), None);
    let parts: [&[u8]; 2] = [&[7; 400], &[7; 600]];
    assert_eq!(site.upload(&uploads([7; 1000]), &parts).await, Ok(1000));
    let (code, body) = half.await;
    assert_eq!(code, OK);
    let answer = WriteResponse::decode(&body[5..]).unwrap();
    assert_eq!(answer.committed_size, 1000);
}
