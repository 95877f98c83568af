//! Uploads that do not end by themselves.

use std::pin::pin;

use fonn_reapi::Method;
use fonn_reapi::messages::{RetryInfo, Status};
use futures_util::FutureExt as _;
use futures_util::stream::{self, StreamExt as _};
use http_body_util::StreamBody;
use hyper::body::Frame;

use super::super::fake::ask;
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

#[tokio::test]
async fn a_message_that_came_in_part_is_charged_until_its_upload_ends() {
    let site = Site::new();
    let blob = vec![7; VALUE_LEN_MAX / 2];
    let upload = format!("uploads/u/{}", name(&digest_of(&blob), "blobs"));
    let part = |resource_name: &str, write_offset, data: &[u8]| {
        frame(&WriteRequest {
            resource_name: resource_name.to_owned(),
            write_offset,
            data: Bytes::copy_from_slice(data),
            ..WriteRequest::default()
        })
    };
    let (first, rest) = blob.split_at(1);
    let second = part("", 1, rest);
    let cut = second.slice(..second.len() - 1);
    let begin = || {
        let came = [part(&upload, 0, first), cut.clone()];
        let came = came.map(|bytes| Ok::<_, hyper::Error>(Frame::data(bytes)));
        let body = StreamBody::new(stream::iter(came).chain(stream::pending()));
        let mut begun = Box::pin(answered(
            &site.front,
            call(&format!("{STREAM}/Write"), body),
        ));
        // It yields before it takes the first message.
        for _ in 0..8 {
            assert_eq!(begun.as_mut().now_or_never(), None);
        }
        begun
    };
    let charged = || site.store.0.charged.load(Ordering::SeqCst);
    let (cancelled, overtaken) = (begin(), begin());
    assert!(charged() >= 2 * cut.len());
    drop(cancelled);
    assert!((cut.len()..2 * cut.len()).contains(&charged()));
    let stored = site.upload(&upload, &[&blob[..]]).await;
    assert_eq!(stored, Ok(blob.len() as i64));
    assert_eq!(overtaken.await.0, OK);
    assert_eq!(charged(), 0);
}

#[tokio::test]
async fn a_message_of_an_upload_follows_the_one_before() {
    let digest = digest_of(b"hello");
    let upload = format!("uploads/u/{}", name(&digest, "blobs"));
    let other = format!("uploads/u/{}", name(&digest_of(b"other"), "blobs"));
    let part = |resource_name: &str, write_offset, finish_write, data| {
        frame(&WriteRequest {
            resource_name: resource_name.to_owned(),
            write_offset,
            finish_write,
            data: Bytes::from_static(data),
        })
    };
    let first = part(&upload, 0, false, b"hel");
    let begun = |last: Bytes| [&first[..], &last].concat();
    let last = |name: &str, offset| begun(part(name, offset, true, b"lo"));
    // The bytes are those of the blob in each of them.
    let unfinished = begun(part("", 3, false, b"lo"));
    let cut = [&unfinished[..], &first[..7]].concat();
    // Nothing is looked at behind the end.
    let more = [&last("", 3)[..], b"\x01more"].concat();
    for (body, code) in [
        (last("", 3), OK),
        (last(&upload, 3), OK),
        (last("", 0), OK),
        (unfinished, OK),
        (more, OK),
        (last("", 2), INVALID),
        (last("", 4), INVALID),
        (last(&other, 3), INVALID),
        (cut, INVALID),
    ] {
        let site = Site::new();
        assert_eq!(site.raw(&format!("{STREAM}/Write"), body).await.0, code);
        let is_stored = !site.store.0.entries.lock().is_empty();
        assert_eq!(is_stored, code == OK);
    }
}

#[tokio::test]
async fn a_refusal_that_may_be_tried_again_says_when() {
    let site = Site::new();
    site.store.set(Fault::Fails(Failure::Busy));
    let update = UpdateActionResultRequest {
        action_digest: Some(digest_of(b"action")),
        ..UpdateActionResultRequest::default()
    };
    let request = call(Method::UpdateActionResult.path(), Full::new(frame(&update)));
    let reply = ask(&site.front, request).await;
    let status = tonic::Status::from_header_map(&reply.headers).unwrap();
    assert_eq!(status.code(), tonic::Code::Unavailable);
    let details = Status::decode(status.details()).unwrap().details;
    assert_eq!(details.len(), 1);
    assert_eq!(
        details[0].type_url,
        "type.googleapis.com/google.rpc.RetryInfo"
    );
    let delay = RetryInfo::decode(&details[0].value[..]).unwrap();
    assert_eq!(delay.retry_delay.unwrap().seconds, 1);
}
