//! Responses to calls.

use bytes::Bytes;
use fonn_reapi::messages::HealthCheckResponse;
use fonn_reapi::status::{Code, Refusal};
use fonn_reapi::{frame, frame_head, frame_read};
use hyper::Response;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use prost::Message;

use super::told;
use crate::life::Active;
use crate::outstanding::Counted;
use crate::payload::Payload;
use crate::store::Store;

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// Bytes of a blob in one message.
const CHUNK_LEN: usize = 256 << 10;

/// The value of a server that serves, in the health service.
const SERVING: i32 = 1;

/// A response before it is sent.
#[derive(Debug)]
pub(super) struct Reply {
    parts: Vec<Bytes>,
    refusal: Option<Refusal>,
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
        }
    }

    /// One message that is encoded already.
    pub(super) fn encoded(message: Bytes) -> Self {
        Self::messages(vec![frame_head(message.len()), message])
    }

    /// The bytes of a blob, as messages of a read.
    pub(super) fn blob(mut bytes: Bytes) -> Self {
        let mut parts = Vec::with_capacity(2 * bytes.len().div_ceil(CHUNK_LEN));
        while !bytes.is_empty() {
            let chunk = bytes.split_to(bytes.len().min(CHUNK_LEN));
            parts.extend([frame_read(chunk.len()), chunk]);
        }
        Self::messages(parts)
    }

    /// No message, and why.
    pub(super) fn refused(refusal: Refusal) -> Self {
        Self {
            parts: Vec::new(),
            refusal: Some(refusal),
        }
    }

    /// The server serves.
    pub(super) fn serving() -> Self {
        Self::message(&HealthCheckResponse { status: SERVING })
    }

    /// Bytes of all messages.
    pub(super) fn len(&self) -> usize {
        self.parts.iter().map(Bytes::len).sum()
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
            None => {
                let ok = (GRPC_STATUS, HeaderValue::from_static("0"));
                (Default::default(), Some([ok].into_iter().collect()))
            }
        };
        let payload = Payload::of_parts(self.parts, trailers, counted, active);
        let mut response = Response::new(payload);
        *response.headers_mut() = headers;
        response.headers_mut().insert(CONTENT_TYPE, GRPC);
        response
    }
}
