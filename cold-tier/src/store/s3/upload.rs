//! Writing objects.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use aws_sdk_s3::primitives::ByteStream;
use aws_smithy_types::base64;
use bytes::Bytes;
use fonn_codec::checksum;
use http_body::{Frame, SizeHint};

use super::{S3Store, Subject};
use crate::store::{Body, StoreError};

impl S3Store {
    /// `if_none_match` is the header of that name.
    pub(super) async fn upload(
        &self,
        subject: &Subject,
        body: &Body,
        if_none_match: Option<&str>,
    ) -> Result<(), StoreError> {
        let checksum = checksum_of(body).await;
        let request = self.client.put_object();
        let request = request
            .bucket(&self.bucket)
            .key(&subject.name)
            .content_length(length(body))
            .checksum_crc32_c(checksum)
            .set_if_none_match(if_none_match.map(str::to_owned))
            .body(stream_of(body));
        self.answer(subject, body.len(), request.send()).await?;
        Ok(())
    }
}

/// The value of the header `x-amz-checksum-crc32c`. Lets other tasks run between two chunks.
async fn checksum_of(body: &Body) -> String {
    let mut crc = 0;
    for chunk in body.chunks() {
        crc = checksum::crc32c_append(crc, chunk);
        tokio::task::yield_now().await;
    }
    base64::encode(crc.to_be_bytes())
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
