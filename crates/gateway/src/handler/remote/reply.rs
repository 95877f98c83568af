//! Responses to calls.

use std::future::Future;

use bytes::Bytes;
use fonn_reapi::status::{Code, Refusal};
use fonn_reapi::{Deflater, STEP_LEN, ZstdError, frame, frame_head, frame_read};
use futures_util::stream::{self, BoxStream, StreamExt as _};
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{HeaderMap, Response};
use prost::Message;

use super::told;
use crate::answer::{Parts, Piece};
use crate::life::Active;
use crate::outstanding::Counted;
use crate::payload::{Payload, guarded};
use crate::store::Store;

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// Bytes of a blob in one message.
const CHUNK_LEN: usize = 256 << 10;

/// The status of a call that was served.
fn served() -> HeaderMap {
    [(GRPC_STATUS, HeaderValue::from_static("0"))]
        .into_iter()
        .collect()
}

/// Bytes of a blob, as messages of a read.
fn read_messages(mut bytes: Bytes) -> Vec<Bytes> {
    let mut parts = Vec::with_capacity(2 * bytes.len().div_ceil(CHUNK_LEN));
    while !bytes.is_empty() {
        let chunk = bytes.split_to(bytes.len().min(CHUNK_LEN));
        parts.extend([frame_read(chunk.len()), chunk]);
    }
    parts
}

/// Compresses a chunk, which stays counted until the connection has sent what is made of it. Other
/// calls have their turn between steps.
async fn deflated(deflater: &mut Deflater, chunk: Bytes) -> Result<Bytes, ZstdError> {
    let mut bytes = Vec::new();
    for step in chunk.chunks(STEP_LEN) {
        deflater.step(step, &mut bytes)?;
        tokio::task::yield_now().await;
    }
    Ok(guarded(bytes, chunk))
}

/// The last pieces of a long blob.
fn end_of(deflater: Option<Deflater>) -> Vec<Piece> {
    let mut bytes = Vec::new();
    if let Some(Err(error)) = deflater.map(|it| it.finish(&mut bytes)) {
        return vec![broken(error)];
    }
    let messages = read_messages(Bytes::from(bytes)).into_iter();
    let status = Piece::Trailers(served());
    messages.map(Piece::Bytes).chain([status]).collect()
}

/// The status of a blob that cannot be compressed.
fn broken(error: ZstdError) -> Piece {
    Piece::Trailers(told(&Refusal::new(Code::Unavailable, error)))
}

/// A response before it is sent.
#[derive(Debug)]
pub(super) struct Reply {
    parts: Vec<Bytes>,
    refusal: Option<Refusal>,
    /// The messages of a long blob, and its length. Its status comes last.
    stream: Option<(Parts, usize)>,
}

impl Reply {
    /// One message.
    pub(super) fn message(message: &impl Message) -> Self {
        Self::messages(vec![frame(message)])
    }

    /// Messages with their heads.
    pub(super) fn messages(parts: Vec<Bytes>) -> Self {
        Self {
            parts,
            refusal: None,
            stream: None,
        }
    }

    /// One message that is encoded already.
    pub(super) fn encoded(message: Bytes) -> Self {
        Self::messages(vec![frame_head(message.len()), message])
    }

    /// The bytes of a blob, as messages of a read.
    pub(super) fn blob(bytes: Bytes) -> Self {
        Self::messages(read_messages(bytes))
    }

    /// The bytes of a long blob of `len` bytes, as messages of a read, compressed by `deflater` if
    /// there is one. A blob whose bytes end early is missing, which the status says.
    pub(super) fn long_blob(
        bytes: BoxStream<'static, Bytes>,
        len: usize,
        deflater: Option<Deflater>,
    ) -> Self {
        let state = Some((bytes, len, deflater));
        let pieces = stream::unfold(state, async |state| {
            let (mut bytes, left, mut deflater) = state?;
            let Some(part) = bytes.next().await else {
                let end = match left {
                    0 => end_of(deflater),
                    _ => vec![Piece::Trailers(told(&Refusal::missing()))],
                };
                return Some((end, None));
            };
            let left = left.saturating_sub(part.len());
            let part = match &mut deflater {
                Some(deflater) => match deflated(deflater, part).await {
                    Ok(part) => part,
                    Err(error) => return Some((vec![broken(error)], None)),
                },
                None => part,
            };
            let messages = read_messages(part).into_iter().map(Piece::Bytes);
            Some((messages.collect(), Some((bytes, left, deflater))))
        });
        let pieces = pieces.flat_map(stream::iter).boxed();
        Self {
            stream: Some((Parts(pieces), len)),
            ..Self::messages(Vec::new())
        }
    }

    /// The same, but `refusal` is the status of a stream that has not ended when `end` does.
    pub(super) fn until(
        self,
        end: impl Future<Output = ()> + Send + 'static,
        refusal: impl FnOnce() -> Refusal + Send + 'static,
    ) -> Self {
        // The status of a stream that reached its end comes first, and no other one is sent.
        let stream = self.stream.map(|(parts, len)| {
            let status = stream::once(async move { Piece::Trailers(told(&refusal())) });
            (Parts(parts.until(end).0.chain(status).boxed()), len)
        });
        Self { stream, ..self }
    }

    /// No message, and why.
    pub(super) fn refused(refusal: Refusal) -> Self {
        Self {
            refusal: Some(refusal),
            ..Self::messages(Vec::new())
        }
    }

    /// Bytes of all messages that are there already.
    pub(super) fn len(&self) -> usize {
        self.parts.iter().map(Bytes::len).sum()
    }

    /// Bytes that are sent.
    pub(super) fn sent_len(&self) -> usize {
        let long = self.stream.as_ref().map_or(0, |(_, len)| *len);
        self.len() + long
    }

    /// The code of the status.
    pub(super) fn code(&self) -> Code {
        self.refusal.as_ref().map_or(Code::Ok, |it| it.code)
    }

    /// The response of the request `active`.
    pub(super) fn into_response<S: Store>(
        self,
        counted: Option<Counted<S>>,
        active: Active,
    ) -> Response<Payload<S>> {
        let (headers, trailers) = match &self.refusal {
            // Without messages the status comes in the headers.
            Some(refusal) => (told(refusal), None),
            None => (HeaderMap::new(), Some(served())),
        };
        let payload = match self.stream {
            Some((parts, _)) => Payload::streamed(parts, counted, active),
            None => Payload::of_parts(self.parts, trailers, counted, active),
        };
        let mut response = Response::new(payload);
        *response.headers_mut() = headers;
        response.headers_mut().insert(CONTENT_TYPE, GRPC);
        response
    }
}
