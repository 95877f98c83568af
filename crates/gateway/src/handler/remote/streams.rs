//! Blobs as streams.

use std::ops::Range;
use std::pin::pin;

use bytes::Bytes;
use fonn_reapi::messages::{
    QueryWriteStatusRequest, QueryWriteStatusResponse, ReadRequest, WriteRequest, WriteResponse,
};
use fonn_reapi::status::{Code, Refusal};
use fonn_reapi::{Compressor, Deflater, Digest, Resource, ZstdError};
use fonn_server::Event;
use futures_util::stream;

use super::inbound::Inbound;
use super::reply::Reply;
use super::{Blob, Caller, FoundBlob};
use crate::handler::packed::packed_memory_len;
use crate::long::LONG_LEN_MAX;
use crate::payload::{frames, guarded};
use crate::receive::RequestBody;
use crate::store::{Form, Found, Store};
use crate::usage::Use;

/// What a write of a blob that is there is answered with, if the blob would have come compressed.
const COMMITTED_BEFORE: i64 = -1;

impl<S: Store> Caller<'_, S> {
    pub(super) async fn read<B: RequestBody>(
        &self,
        inbound: &mut Inbound<'_, S, B>,
    ) -> Result<Reply, Refusal> {
        let request: ReadRequest = inbound.only().await?;
        let resource = Resource::for_read(&request.resource_name).map_err(Refusal::invalid)?;
        let limit = usize::try_from(request.read_limit);
        let limit = limit.map_err(|_| Refusal::invalid("read_limit is negative"))?;
        if limit != 0 && resource.compressor != Compressor::Identity {
            return Err(Refusal::invalid(
                "read_limit has to be 0 for compressed blobs",
            ));
        }
        let out_of_range = || {
            let line = format!("read_offset {} is outside the blob", request.read_offset);
            Refusal::new(Code::OutOfRange, line)
        };
        let offset = usize::try_from(request.read_offset).map_err(|_| out_of_range())?;
        if offset as u64 > resource.digest.len() {
            return Err(out_of_range());
        }
        let takes_stream = resource.compressor == Compressor::Zstd && offset == 0;
        let len_of = |found: &Found| match found.form {
            Form::Packed => packed_memory_len(&found.bytes, takes_stream),
            Form::Value | Form::Manifest => found.bytes.len(),
        };
        let found = self.find_for_reply(&resource.instance, &resource.digest, len_of);
        let found = found.await;
        let len = usize::try_from(resource.digest.len()).unwrap_or(usize::MAX);
        let end = match limit {
            0 => len,
            limit => offset.saturating_add(limit).min(len),
        };
        let mut found = found.ok_or_else(Refusal::missing)?;
        if resource.compressor == Compressor::Identity || !matches!(found.blob, Blob::Whole(_)) {
            inbound.count(found.counted.take());
        }
        let reply = self.sent(found, resource.compressor, offset..end).await?;
        self.count_use(Use::served(end - offset));
        Ok(reply)
    }

    /// The reply with a range of a blob.
    async fn sent(
        &self,
        found: FoundBlob<S>,
        compressor: Compressor,
        range: Range<usize>,
    ) -> Result<Reply, Refusal> {
        let (front, len) = (self.front, range.len());
        let wanted = range.start as u64..range.end as u64;
        let (blob, reader, counted) = (found.blob, found.reader, found.counted);
        let bytes = match (blob, compressor) {
            (Blob::Whole(blob), Compressor::Identity) => {
                return Ok(Reply::blob(blob.slice(range)));
            }
            // The client decompresses as many frames as there are.
            (Blob::Packed(packed), Compressor::Zstd) if range.start == 0 => {
                return Ok(Reply::blob(packed.stream().clone()));
            }
            (Blob::Whole(blob), Compressor::Zstd) => {
                // What is compressed of it keeps the blob until it is sent, behind the end of the
                // stream. So each part keeps the count.
                let part = guarded(blob.slice(range), counted);
                Some(frames(stream::iter([part]), reader))
            }
            (Blob::Packed(packed), _) => front.unpacked(&packed, wanted, reader),
            (Blob::Long(long), _) => match front.is_whole(&long, wanted.clone()).await {
                true => Some(front.chunks(long, wanted, self.life)),
                false => None,
            },
        };
        let deflater = match compressor {
            Compressor::Identity => None,
            Compressor::Zstd => Some(Deflater::new().map_err(broken)?),
        };
        let bytes = bytes.ok_or_else(Refusal::missing)?;
        Ok(Reply::long_blob(bytes, len, deflater))
    }

    pub(super) async fn write<B: RequestBody>(
        &self,
        inbound: &mut Inbound<'_, S, B>,
    ) -> Result<Reply, Refusal> {
        let first: Option<WriteRequest> = inbound.decoded().await?;
        let request = first.ok_or_else(|| Refusal::invalid("the call has no message"))?;
        let name = request.resource_name.clone();
        let resource = Resource::for_write(&name).map_err(Refusal::invalid)?;
        let digest = resource.digest;
        if digest.len() > LONG_LEN_MAX {
            self.front.store().count(Event::TooLarge, 1);
            let line = format!("the longest blob that is taken has {LONG_LEN_MAX} bytes");
            return Err(Refusal::invalid(line));
        }
        let key = Bytes::from(digest.blob_key(&resource.instance));
        let upload = self.front.0.uploads.begin(&self.scope, key);
        let mut stored_by_another = pin!(upload.stored_by_another());
        let is_there = || {
            Reply::message(&WriteResponse {
                committed_size: match resource.compressor {
                    Compressor::Identity => len_of(&digest),
                    Compressor::Zstd => COMMITTED_BEFORE,
                },
            })
        };
        if self.present(&resource.instance, &[digest]).await == [true] {
            return Ok(is_there());
        }
        let mut sink = self.sink(&resource.instance, digest, resource.compressor)?;
        let mut committed: i64 = 0;
        let mut next = Some(request);
        while let Some(request) = next {
            if !request.resource_name.is_empty() && request.resource_name != name {
                return Err(Refusal::invalid("the resource name changed in the upload"));
            }
            begins_at(request.write_offset, committed)?;
            sink.take(&request.data, inbound).await?;
            committed = committed.saturating_add(request.data.len() as i64);
            if request.finish_write {
                break;
            }
            drop(request);
            next = tokio::select! {
                biased;
                request = inbound.decoded::<WriteRequest>() => request?,
                () = &mut stored_by_another => return Ok(is_there()),
            };
        }
        let entry = sink.finish(inbound).await?;
        self.put_blob(&resource.instance, &digest, entry).await?;
        upload.end_others();
        Ok(Reply::message(&WriteResponse {
            committed_size: committed,
        }))
    }

    pub(super) async fn query_write_status<B: RequestBody>(
        &self,
        inbound: &mut Inbound<'_, S, B>,
    ) -> Result<Reply, Refusal> {
        let request: QueryWriteStatusRequest = inbound.only().await?;
        let resource = Resource::for_write(&request.resource_name).map_err(Refusal::invalid)?;
        let present = self.present(&resource.instance, &[resource.digest]).await;
        // What is left of an upload that was cut is not kept.
        let complete = present == [true];
        Ok(Reply::message(&QueryWriteStatusResponse {
            committed_size: match complete {
                true => len_of(&resource.digest),
                false => 0,
            },
            complete,
        }))
    }
}

/// Whether a message of an upload continues where the one before it ended.
///
/// bazel-remote, which passes blobs on as a proxy, sends no offsets and no `finish_write`. The
/// digest tells whether the bytes are all there.
fn begins_at(write_offset: i64, committed: i64) -> Result<(), Refusal> {
    match write_offset == committed || write_offset == 0 {
        true => Ok(()),
        false => Err(Refusal::invalid(format!(
            "write_offset is {write_offset}, and {committed} bytes came before: start again at 0"
        ))),
    }
}

fn len_of(digest: &Digest) -> i64 {
    i64::try_from(digest.len()).unwrap_or(i64::MAX)
}

fn broken(error: ZstdError) -> Refusal {
    Refusal::new(Code::Unavailable, error)
}
