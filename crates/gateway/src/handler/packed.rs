//! Blobs that are kept compressed: sent as they came to clients that take zstd, and decompressed
//! step by step for others.
//!
//! Invariant: a blob never takes more memory than its length, whatever its stream says.

use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use fonn_proto::Failure;
use fonn_reapi::{Inflater, ZstdError};
use futures_util::stream::{self, BoxStream, StreamExt as _};
use hyper::StatusCode;
use hyper::header::{ACCEPT_ENCODING, CONTENT_ENCODING, HeaderMap, HeaderValue, RANGE, VARY};
use ring::digest::{Context, SHA256};

use super::Front;
use super::long::{LongWrite, ranged};
use crate::answer::{Answer, Parts, Piece};
use crate::long::Manifest;
use crate::metrics::LostRead;
use crate::outstanding::Reader;
use crate::packed::{HEAD_LEN, Packed};
use crate::payload::frames;
use crate::receive::reserve;
use crate::store::{Form, Store};

/// Bytes of a blob that are sent at a time.
const PART_LEN: usize = 256 << 10;

const ZSTD: HeaderValue = HeaderValue::from_static("zstd");

/// Decompresses a blob, and gives other requests their turn between steps.
struct Unpacker {
    inflater: Inflater,
    stream: Bytes,
    /// How much of the stream was taken.
    taken: usize,
}

impl Unpacker {
    fn new(packed: &Packed) -> Result<Self, ZstdError> {
        Ok(Self {
            inflater: Inflater::new(packed.len())?,
            stream: packed.stream().clone(),
            taken: 0,
        })
    }

    /// Passes the next bytes to `take`; false at the end of the stream.
    async fn next(&mut self, mut take: impl FnMut(&[u8])) -> Result<bool, ZstdError> {
        tokio::task::yield_now().await;
        loop {
            let mut rest = self.stream.get(self.taken..).unwrap_or_default();
            let left = rest.len();
            let bytes = self.inflater.step(&mut rest)?;
            self.taken += left - rest.len();
            if !bytes.is_empty() {
                take(bytes);
                return Ok(true);
            }
            if rest.is_empty() {
                return self.inflater.finish().map(|()| false);
            }
        }
    }
}

/// Decompresses a range of a blob part by part.
pub(super) struct Unpacking {
    unpacker: Unpacker,
    /// Offset of the next byte that comes.
    at: u64,
    wanted: Range<u64>,
}

impl Unpacking {
    fn new(packed: &Packed, wanted: Range<u64>) -> Result<Self, ZstdError> {
        Ok(Self {
            unpacker: Unpacker::new(packed)?,
            at: 0,
            wanted,
        })
    }

    /// Bytes that it holds, with a part and the stream.
    pub(super) fn memory_len(packed: &Packed) -> usize {
        let len = usize::try_from(packed.len()).unwrap_or(usize::MAX);
        packed.stream().len() + Inflater::memory_len(len) + 2 * PART_LEN
    }

    /// The next part of what is wanted; `None` at its end. What comes before it are empty parts.
    async fn part(&mut self) -> Result<Option<Bytes>, ZstdError> {
        if self.at >= self.wanted.end {
            return Ok(None);
        }
        let until = self.wanted.end.min(self.at + PART_LEN as u64);
        let mut part = Vec::new();
        while self.at < until {
            let (at, wanted) = (self.at, &self.wanted);
            let mut end = at;
            let came = self.unpacker.next(|bytes| {
                end = at + bytes.len() as u64;
                let within = |offset: u64| (offset.clamp(at, end) - at) as usize;
                let range = within(wanted.start)..within(wanted.end);
                part.extend_from_slice(bytes.get(range).unwrap_or_default());
            });
            if !came.await? {
                // The blob is shorter than its length says.
                return Err(ZstdError::Incomplete);
            }
            self.at = end;
        }
        Ok(Some(Bytes::from(part)))
    }
}

impl<S: Store> Front<S> {
    /// Reads the entry of a blob that came compressed.
    pub(super) fn parse_packed(&self, bytes: &Bytes) -> Option<Packed> {
        let packed = Packed::parse(bytes);
        let packed = packed.filter(|it| it.len() <= self.store().value_len_max() as u64);
        if packed.is_none() {
            self.figures().lost(LostRead::Malformed);
        }
        packed
    }

    /// All bytes of a blob; `None` if its stream does not make it.
    pub(super) async fn unpack(&self, packed: &Packed) -> Option<Bytes> {
        let blob = unpack(packed).await;
        if blob.is_err() {
            self.figures().lost(LostRead::Malformed);
        }
        blob.ok().map(Bytes::from)
    }

    /// The bytes of a range. They end early if the stream does not make the blob: the connection
    /// breaks then, because the length was told before. The reader has [`Unpacking::memory_len`]
    /// counted.
    pub(super) fn unpacked(
        &self,
        packed: &Packed,
        wanted: Range<u64>,
        reader: Arc<Reader<S>>,
    ) -> Option<BoxStream<'static, Bytes>> {
        let unpacking = Unpacking::new(packed, wanted).ok()?;
        let (front, reads) = (self.clone(), Arc::clone(&reader));
        let parts = stream::unfold(unpacking, move |mut unpacking| {
            let (front, reader) = (front.clone(), Arc::clone(&reads));
            async move {
                // What comes before the wanted bytes takes its time as well.
                reader.progress();
                let part = unpacking.part().await;
                if part.is_err() {
                    front.figures().lost(LostRead::Malformed);
                }
                Some((part.ok()??, unpacking))
            }
        });
        Some(frames(parts, reader))
    }

    /// Stores a blob that came compressed in chunks; `None` if its stream does not make it.
    ///
    /// # Errors
    /// As [`LongWrite::take`].
    pub(super) async fn cut_packed(
        &self,
        packed: &Packed,
        mut long: LongWrite<'_, S>,
    ) -> Result<Option<Manifest>, Failure> {
        let wanted = 0..packed.len();
        let Ok(mut unpacking) = Unpacking::new(packed, wanted) else {
            return Ok(None);
        };
        loop {
            match unpacking.part().await {
                Ok(Some(part)) => long.take(&part).await?,
                Ok(None) => return long.finish().await.map(Some),
                Err(_) => {
                    self.figures().lost(LostRead::Malformed);
                    return Ok(None);
                }
            }
        }
    }

    /// The answer to a read of a blob that came compressed.
    pub(super) async fn answer_packed(
        &self,
        packed: &Packed,
        headers: &HeaderMap,
        reader: Arc<Reader<S>>,
    ) -> Answer {
        let range = headers.get(RANGE);
        if takes_stream(headers) {
            return Answer::value(StatusCode::OK, packed.stream().clone())
                .with(CONTENT_ENCODING, ZSTD)
                .with(VARY, HeaderValue::from(ACCEPT_ENCODING));
        }
        let len = usize::try_from(packed.len()).unwrap_or(usize::MAX);
        let (mut answer, part) = ranged(range, len);
        let Some(part) = part else {
            return answer;
        };
        answer.told_len = Some(part.len());
        if !part.is_empty() {
            let wanted = part.start as u64..part.end as u64;
            let Some(mut parts) = self.unpacked(packed, wanted, reader) else {
                return Answer::miss();
            };
            // A blob whose stream is damaged is a miss, as long as that can be said.
            let Some(first) = parts.next().await else {
                return Answer::miss();
            };
            let parts = stream::iter([first]).chain(parts);
            answer.stream = Some(Parts(parts.map(Piece::Bytes).boxed()));
        }
        answer
    }
}

/// What is kept of a blob whose stream was verified: the blob itself if its stream is not shorter,
/// since the stream would only cost its readers time.
///
/// # Errors
/// [`ZstdError`] if the entry was not verified.
pub(super) async fn kept(entry: Bytes) -> Result<(Bytes, Form), ZstdError> {
    let packed = Packed::parse(&entry).ok_or(ZstdError::Malformed)?;
    if (entry.len() as u64) < packed.len() {
        return Ok((entry, Form::Packed));
    }
    let blob = unpack(&packed).await?;
    Ok((Bytes::from(blob.into_boxed_slice()), Form::Value))
}

/// All bytes of a blob.
async fn unpack(packed: &Packed) -> Result<Vec<u8>, ZstdError> {
    let mut blob = Vec::new();
    reserve(&mut blob, usize::try_from(packed.len()).unwrap_or_default());
    let mut unpacker = Unpacker::new(packed)?;
    while unpacker.next(|bytes| blob.extend_from_slice(bytes)).await? {}
    match blob.len() as u64 == packed.len() {
        true => Ok(blob),
        false => Err(ZstdError::Incomplete),
    }
}

/// Bytes of an entry of a blob that came compressed which a read has in memory.
pub(super) fn packed_memory_len(entry: &Bytes, takes_stream: bool) -> usize {
    match Packed::parse(entry) {
        Some(packed) if !takes_stream => Unpacking::memory_len(&packed),
        _ => entry.len(),
    }
}

/// Whether a read is answered with the stream as it came.
pub(super) fn takes_stream(headers: &HeaderMap) -> bool {
    !headers.contains_key(RANGE) && takes_zstd(headers)
}

/// Whether the client takes a body that is compressed with zstd.
fn takes_zstd(headers: &HeaderMap) -> bool {
    let values = headers.get_all(ACCEPT_ENCODING);
    let mut codings = values
        .iter()
        .flat_map(|it| it.as_bytes().split(|byte| *byte == b','));
    codings.any(|coding| {
        let mut parts = coding.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
        let is_zstd = parts
            .next()
            .is_some_and(|it| it.eq_ignore_ascii_case(b"zstd"));
        is_zstd && !parts.any(is_weight_zero)
    })
}

/// Whether a parameter of a coding says that the client does not take it.
fn is_weight_zero(parameter: &[u8]) -> bool {
    let [b'q' | b'Q', b'=', b'0', digits @ ..] = parameter else {
        return false;
    };
    digits.iter().all(|it| matches!(it, b'.' | b'0'))
}

/// The SHA-256 of the blob that a stream makes, and its length.
///
/// # Errors
/// [`ZstdError`], for a blob that is longer than `len_max` as well.
pub(super) async fn digest_of_stream(
    stream: &Bytes,
    len_max: u64,
) -> Result<([u8; 32], u64), ZstdError> {
    let mut unpacker = Unpacker {
        inflater: Inflater::new(len_max)?,
        stream: stream.clone(),
        taken: 0,
    };
    let (mut context, mut len) = (Context::new(&SHA256), 0);
    let mut take = |bytes: &[u8]| {
        context.update(bytes);
        len += bytes.len() as u64;
    };
    while unpacker.next(&mut take).await? {}
    let mut digest = [0; 32];
    digest.copy_from_slice(context.finish().as_ref());
    Ok((digest, len))
}

/// The entry of a blob of `len` bytes, made of its stream behind room for the head.
pub(super) fn with_head(received: Bytes, len: u64) -> Bytes {
    let owned = received.try_into_mut();
    let mut entry = owned.unwrap_or_else(|shared| BytesMut::from(&shared[..]));
    if let Some(head) = entry.get_mut(..HEAD_LEN) {
        head.copy_from_slice(&Packed::head(len));
    }
    entry.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zstd_is_sent_only_to_clients_that_take_it() {
        for (value, takes) in [
            ("zstd", true),
            ("zstd,gzip", true),
            ("gzip, ZSTD;q=0.5", true),
            ("gzip", false),
            ("zstd;q=0", false),
            ("zstd; Q=0", false),
            ("zstd;q=0.0000", false),
            ("zstd;q=0.001", true),
            ("zstdx", false),
            ("*", false),
        ] {
            let headers = [(ACCEPT_ENCODING, HeaderValue::from_static(value))];
            assert_eq!(takes_zstd(&headers.into_iter().collect()), takes, "{value}");
        }
    }
}
