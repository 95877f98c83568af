//! Writing objects, in one piece or in parts.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{ChecksumAlgorithm, CompletedMultipartUpload, CompletedPart};
use aws_smithy_types::base64;
use bytes::Bytes;
use fonn_codec::checksum;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use http_body::{Frame, SizeHint};

use super::{S3Store, Subject};
use crate::store::{Body, StoreError, StoreErrorKind};

/// Objects above this size are uploaded in parts of this size. Each part is paid like a whole
/// object, so it is large; S3 wants at least 5 MiB.
pub const PART_BYTES: u64 = 16 << 20;

/// Parts of an object that are on their way at once.
const PARTS_AT_ONCE: usize = 4;

/// Most parts of an object, as in S3.
const PARTS_MAX: u64 = 10_000;

/// The requests of a put of so many bytes.
#[must_use]
pub fn put_requests(bytes: u64) -> u64 {
    if bytes <= PART_BYTES {
        1
    } else {
        // One to begin, one for each part, one to complete.
        bytes.div_ceil(PART_BYTES) + 2
    }
}

/// What has to be so for an object to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    None,
    IfAbsent,
}

impl Condition {
    /// The header `If-None-Match`.
    fn if_none_match(self) -> Option<String> {
        (self == Self::IfAbsent).then(|| "*".to_owned())
    }
}

impl S3Store {
    pub(super) async fn upload(
        &self,
        subject: &Subject,
        body: &Body,
        condition: Condition,
    ) -> Result<(), StoreError> {
        if body.len() > PART_BYTES {
            self.upload_in_parts(subject, body, condition).await
        } else {
            self.upload_at_once(subject, body, condition).await
        }
    }

    async fn upload_at_once(
        &self,
        subject: &Subject,
        body: &Body,
        condition: Condition,
    ) -> Result<(), StoreError> {
        let request = self.client.put_object();
        let request = request
            .bucket(&self.bucket)
            .key(&subject.name)
            .content_length(length(body))
            .checksum_crc32_c(checksum_of(body))
            .set_if_none_match(condition.if_none_match())
            .body(stream_of(body));
        self.answer(subject, body.len(), request.send()).await?;
        Ok(())
    }

    async fn upload_in_parts(
        &self,
        subject: &Subject,
        body: &Body,
        condition: Condition,
    ) -> Result<(), StoreError> {
        let parts_count = body.len().div_ceil(PART_BYTES);
        if parts_count > PARTS_MAX {
            return Err(subject.error_because(StoreErrorKind::Invalid, "the object is too large"));
        }
        let request = self.client.create_multipart_upload();
        let request = request
            .bucket(&self.bucket)
            .key(&subject.name)
            .checksum_algorithm(ChecksumAlgorithm::Crc32C);
        let begun = self.answer(subject, 0, request.send()).await?;
        let id = begun.upload_id().ok_or_else(|| {
            subject.error_because(StoreErrorKind::Unavailable, "the upload has no id")
        })?;
        let parts = stream::iter(0..parts_count)
            .map(|index| self.upload_part(subject, id, index, body))
            .buffered(PARTS_AT_ONCE)
            .try_collect();
        let result = match parts.await {
            Ok(parts) => self.complete(subject, id, parts, condition).await,
            Err(error) => Err(error),
        };
        if result.is_err() {
            // If that fails too, what is left is found by `list_uploads`.
            let _ = self.abort(subject, id).await;
        }
        result
    }

    async fn upload_part(
        &self,
        subject: &Subject,
        id: &str,
        index: u64,
        body: &Body,
    ) -> Result<CompletedPart, StoreError> {
        let start = index * PART_BYTES;
        let part = body.slice(start..start + PART_BYTES);
        // Numbered from one; there are at most `PARTS_MAX`.
        let number = index as i32 + 1;
        let checksum = checksum_of(&part);
        let request = self.client.upload_part();
        let request = request
            .bucket(&self.bucket)
            .key(&subject.name)
            .upload_id(id)
            .part_number(number)
            .content_length(length(&part))
            .checksum_crc32_c(checksum.clone())
            .body(stream_of(&part));
        let sent = self.answer(subject, part.len(), request.send()).await;
        let sent = sent.map_err(upload_gone)?;
        Ok(CompletedPart::builder()
            .part_number(number)
            .set_e_tag(sent.e_tag)
            .checksum_crc32_c(checksum)
            .build())
    }

    async fn complete(
        &self,
        subject: &Subject,
        id: &str,
        parts: Vec<CompletedPart>,
        condition: Condition,
    ) -> Result<(), StoreError> {
        let parts = CompletedMultipartUpload::builder().set_parts(Some(parts));
        let request = self.client.complete_multipart_upload();
        let request = request
            .bucket(&self.bucket)
            .key(&subject.name)
            .upload_id(id)
            .multipart_upload(parts.build())
            .set_if_none_match(condition.if_none_match());
        let result = self.answer(subject, 0, request.send()).await;
        result.map(drop).map_err(upload_gone)
    }

    pub(super) async fn abort(&self, subject: &Subject, id: &str) -> Result<(), StoreError> {
        let request = self.client.abort_multipart_upload();
        let request = request
            .bucket(&self.bucket)
            .key(&subject.name)
            .upload_id(id);
        self.answer(subject, 0, request.send()).await.map(drop)
    }
}

/// The value of the header `x-amz-checksum-crc32c`.
fn checksum_of(body: &Body) -> String {
    let chunks = body.chunks().iter();
    let crc = chunks.fold(0, |crc, chunk| checksum::crc32c_append(crc, chunk));
    base64::encode(crc.to_be_bytes())
}

/// Another process aborted the upload while it went on: what is not found is not the object.
/// Another upload may succeed.
fn upload_gone(error: StoreError) -> StoreError {
    match error.kind {
        StoreErrorKind::NotFound => StoreError {
            kind: StoreErrorKind::Unavailable,
            ..error
        },
        _ => error,
    }
}

fn length(body: &Body) -> i64 {
    // S3 takes no object whose size would not fit.
    i64::try_from(body.len()).unwrap_or(i64::MAX)
}

/// The chunks as the body of a request. They are not signed (the SDK hashes only what lies in one
/// piece): TLS and the checksum in the signed header protect them, at a fraction of the cost.
fn stream_of(body: &Body) -> ByteStream {
    ByteStream::from_body_1_x(Chunks {
        body: body.clone(),
        next: 0,
        left: body.len(),
    })
}

struct Chunks {
    body: Body,
    next: usize,
    left: u64,
}

impl http_body::Body for Chunks {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _ctx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let chunk = self.body.chunks().get(self.next).cloned();
        Poll::Ready(chunk.map(|chunk| {
            self.next += 1;
            self.left -= chunk.len() as u64;
            Ok(Frame::data(chunk))
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_a_put_are_counted() {
        for (bytes, requests) in [
            (0, 1),
            (PART_BYTES, 1),
            (PART_BYTES + 1, 4),
            (4 * PART_BYTES, 6),
            (4 * PART_BYTES + 1, 7),
        ] {
            assert_eq!(put_requests(bytes), requests, "{bytes}");
        }
    }
}
