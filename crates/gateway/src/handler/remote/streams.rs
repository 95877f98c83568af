//! Blobs as streams.

use std::pin::pin;

use bytes::Bytes;
use fonn_reapi::messages::{
    QueryWriteStatusRequest, QueryWriteStatusResponse, ReadRequest, WriteRequest, WriteResponse,
};
use fonn_reapi::status::{Code, Refusal};
use fonn_reapi::{Compressor, Deflater, Digest, Resource, STEP_LEN, ZstdError};
use fonn_server::Event;
use http_body::Body;

use super::inbound::{Inbound, Part};
use super::reply::Reply;
use super::sink::Sink;
use super::{Blob, Caller, failed};
use crate::handler::long::LongWrite;
use crate::long::LONG_LEN_MAX;
use crate::store::Store;
use crate::usage::Use;

/// What a write of a blob that is there is answered with, if the blob would have come compressed.
const COMMITTED_BEFORE: i64 = -1;

impl<S: Store> Caller<'_, S> {
    pub(super) async fn read<B>(&self, inbound: &mut Inbound<'_, S, B>) -> Result<Reply, Refusal>
    where
        B: Body<Data: Send> + Unpin + Send,
    {
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
        let blob = self.find(&resource.instance, &resource.digest).await;
        let len = usize::try_from(resource.digest.len()).unwrap_or(usize::MAX);
        let end = match limit {
            0 => len,
            limit => offset.saturating_add(limit).min(len),
        };
        let reply = match (blob.ok_or_else(Refusal::missing)?, resource.compressor) {
            (Blob::Whole(blob), Compressor::Identity) => Reply::blob(blob.slice(offset..end)),
            (Blob::Whole(blob), Compressor::Zstd) => {
                Reply::blob(deflate(&blob.slice(offset..end), inbound).await?)
            }
            // The client decompresses as many frames as there are.
            (Blob::Packed(packed), Compressor::Zstd) if offset == 0 => {
                Reply::blob(packed.stream().clone())
            }
            (Blob::Packed(packed), compressor) => {
                let wanted = offset as u64..end as u64;
                let bytes = self.front.unpacked(&packed, wanted, self.life).await;
                let bytes = bytes.ok_or_else(Refusal::missing)?;
                Reply::long_blob(bytes, end - offset, deflater_of(compressor)?)
            }
            (Blob::Long(long), compressor) => {
                let wanted = offset as u64..end as u64;
                if !self.front.is_whole(&long, wanted.clone()).await {
                    return Err(Refusal::missing());
                }
                let chunks = self.front.chunks(long, wanted, self.life);
                Reply::long_blob(chunks, end - offset, deflater_of(compressor)?)
            }
        };
        self.count_use(Use::served(end - offset));
        Ok(reply)
    }

    pub(super) async fn write<B>(&self, inbound: &mut Inbound<'_, S, B>) -> Result<Reply, Refusal>
    where
        B: Body<Data: Send> + Unpin + Send,
    {
        let first: Option<WriteRequest> = inbound.decoded().await?;
        let request = first.ok_or_else(|| Refusal::invalid("the call has no message"))?;
        let name = request.resource_name.clone();
        let resource = Resource::for_write(&name).map_err(Refusal::invalid)?;
        let digest = resource.digest;
        if digest.len() > LONG_LEN_MAX {
            self.front.store().count(Event::TooLarge, 1);
            return Err(failed(fonn_proto::Failure::TooLarge));
        }
        let key = Bytes::from(digest.blob_key(&resource.instance));
        let upload = self.front.uploads().begin(&self.scope, key.clone());
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
        let value_len_max = self.front.store().value_len_max();
        let mut sink = Sink::new(digest, resource.compressor)?;
        if digest.len() > value_len_max as u64 {
            let instance = resource.instance.clone();
            let long = LongWrite::new(self.front, self.scope, instance, Bytes::new());
            sink = sink.into_long(long);
        }
        begins_at(request.write_offset, 0)?;
        sink.take(&request.data, inbound).await?;
        let mut committed = request.data.len() as i64;
        let mut message_begun = committed;
        let mut is_finished = request.finish_write;
        drop(request);
        while !is_finished {
            let part = tokio::select! {
                biased;
                part = inbound.part() => part?,
                () = &mut stored_by_another => return Ok(is_there()),
            };
            match part {
                Some(Part::Data(data)) => {
                    committed = committed.saturating_add(data.len() as i64);
                    sink.take(&data, inbound).await?;
                }
                Some(Part::End(end)) => {
                    if !end.resource_name.is_empty() && end.resource_name != name {
                        return Err(Refusal::invalid("the resource name changed in the upload"));
                    }
                    begins_at(end.write_offset, message_begun)?;
                    (message_begun, is_finished) = (committed, end.finish_write);
                }
                None => break,
            }
        }
        let entry = sink.finish(inbound).await?;
        let len = usize::try_from(digest.len()).unwrap_or(usize::MAX);
        self.put_entry(key, entry, len).await?;
        upload.end_others();
        Ok(Reply::message(&WriteResponse {
            committed_size: committed,
        }))
    }

    pub(super) async fn query_write_status<B>(
        &self,
        inbound: &mut Inbound<'_, S, B>,
    ) -> Result<Reply, Refusal>
    where
        B: Body<Data: Send> + Unpin + Send,
    {
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

/// What compresses a blob that is sent.
fn deflater_of(compressor: Compressor) -> Result<Option<Deflater>, Refusal> {
    match compressor {
        Compressor::Identity => Ok(None),
        Compressor::Zstd => Deflater::new().map(Some).map_err(broken),
    }
}

/// Compresses a blob; other calls have their turn between steps.
async fn deflate<S, B>(blob: &[u8], inbound: &mut Inbound<'_, S, B>) -> Result<Bytes, Refusal>
where
    S: Store,
    B: Body<Data: Send> + Unpin + Send,
{
    let mut deflater = Deflater::new().map_err(broken)?;
    let mut output = Vec::new();
    for step in blob.chunks(STEP_LEN) {
        deflater.step(step, &mut output).map_err(broken)?;
        inbound.keep(output.capacity()).await?;
        tokio::task::yield_now().await;
    }
    deflater.finish(&mut output).map_err(broken)?;
    Ok(Bytes::from(output))
}
