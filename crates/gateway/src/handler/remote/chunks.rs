//! Blobs as lists of chunks. A client that has most chunks of a blob moves the others alone.

use std::time::Duration;

use bytes::Bytes;
use fonn_reapi::capabilities::FAST_CDC_2020;
use fonn_reapi::messages::{
    SpliceBlobRequest, SpliceBlobResponse, SplitBlobRequest, SplitBlobResponse,
};
use fonn_reapi::status::{Code, Refusal};
use fonn_reapi::{Digest, DigestFunction, Hasher, Instance};
use futures_util::stream::StreamExt as _;

use super::inbound::Inbound;
use super::reply::Reply;
use super::{Blob, Caller, failed};
use crate::handler::long::{Long, LongWrite, digest_of};
use crate::handler::packed::Unpacking;
use crate::long::{CHUNK_LEN_MAX, Chunk, Manifest};
use crate::receive::RequestBody;
use crate::store::{Form, Store};
use crate::turns::Turn;

/// Blobs that are split or spliced at once. A short call makes the server hash gigabytes, so others
/// have to keep their turn.
pub(in crate::handler) const REWORKS_MAX: usize = 2;

/// What a chunk takes in a reply that names it: as a message, and encoded.
const NAMED_LEN: usize = 400;

/// How long a call waits for its turn.
const REWORK_WAIT_MAX: Duration = Duration::from_secs(10);

/// Chunks are blobs under their SHA-256, and one call has digests of one function.
fn check(digest: &Digest) -> Result<(), Refusal> {
    match digest.function() {
        DigestFunction::Sha256 => Ok(()),
        _ => Err(Refusal::new(
            Code::Unimplemented,
            "chunks have SHA-256 digests, and so must their blobs",
        )),
    }
}

impl<S: Store> Caller<'_, S> {
    /// Waits for the turn of a call that hashes a blob.
    async fn turn(&self) -> Result<Turn, Refusal> {
        let turn = self.front.reworks().take(self.scope.space, REWORK_WAIT_MAX);
        let busy = || Refusal::new(Code::Unavailable, "other blobs are being cut: try again");
        turn.await.ok_or_else(busy)
    }

    /// The chunks of a blob. Those of a blob that is stored whole are made blobs by the call; to a
    /// client that may not write such a blob is one chunk.
    pub(super) async fn split_blob<B: RequestBody>(
        &self,
        inbound: &mut Inbound<'_, S, B>,
    ) -> Result<Reply, Refusal> {
        let request: SplitBlobRequest = inbound.only().await?;
        let instance = Instance::new(&request.instance_name).map_err(Refusal::invalid)?;
        let digest = Digest::of(request.blob_digest.as_ref(), request.digest_function);
        let digest = digest.map_err(Refusal::invalid)?;
        check(&digest)?;
        let mut turn = None;
        if digest.len() > 0 && self.may_write {
            let (store, key) = (self.front.store().clone(), digest.blob_key(&instance));
            let probed = self.front.look(store.probe(self.scope, key.into())).await;
            // A call that waits for its turn holds no blob.
            if probed.ok_or_else(Refusal::missing)?.form != Form::Manifest {
                turn = Some(self.turn().await?);
            }
        }
        let found = self.find(&instance, &digest).await;
        let found = found.ok_or_else(Refusal::missing)?;
        let is_cut = matches!(found, Blob::Long(_));
        if digest.len() == 0 || !is_cut && !self.may_write {
            return Ok(split_into(vec![digest.message()]));
        }
        let _turn = match turn {
            // It was cut until a moment ago.
            None if !is_cut => Some(self.turn().await?),
            turn => turn,
        };
        let mut cutting = LongWrite::new(self.front, self.scope, instance, Bytes::new());
        let len = usize::try_from(digest.len()).unwrap_or(usize::MAX);
        let memory_len = cutting.memory_len(len);
        let manifest = match found {
            Blob::Long(long) => {
                let chunks = long.manifest.chunks().len();
                inbound.hold(chunks.saturating_mul(NAMED_LEN)).await?;
                let wanted = 0..long.manifest.len();
                match self.front.is_whole(&long, wanted).await {
                    true => long.manifest,
                    false => return Err(Refusal::missing()),
                }
            }
            Blob::Whole(bytes) => {
                inbound.hold(memory_len).await?;
                cutting.take(&bytes).await.map_err(failed)?;
                cutting.finish().await.map_err(failed)?
            }
            Blob::Packed(packed) => {
                let memory_len = memory_len + Unpacking::memory_len(&packed);
                inbound.hold(memory_len).await?;
                let cut = self.front.cut_packed(&packed, cutting).await;
                cut.map_err(failed)?.ok_or_else(Refusal::missing)?
            }
        };
        let digests = manifest.chunks().iter().map(|it| digest_of(it).message());
        Ok(split_into(digests.collect()))
    }

    /// Makes chunks that are there a blob, if it is what its digest says.
    pub(super) async fn splice_blob<B: RequestBody>(
        &self,
        inbound: &mut Inbound<'_, S, B>,
    ) -> Result<Reply, Refusal> {
        let request: SpliceBlobRequest = inbound.only().await?;
        let instance = Instance::new(&request.instance_name).map_err(Refusal::invalid)?;
        let function = request.digest_function;
        let digest = Digest::of(request.blob_digest.as_ref(), function);
        let digest = digest.map_err(Refusal::invalid)?;
        check(&digest)?;
        let mut manifest = Manifest::default();
        for chunk in &request.chunk_digests {
            let chunk = Digest::of(Some(chunk), function).map_err(Refusal::invalid)?;
            check(&chunk)?;
            if !manifest.push(chunk_of(&chunk)?) {
                return Err(Refusal::invalid("the chunks are too many, or too long"));
            }
        }
        if self.present(&instance, &[digest]).await != [true] {
            self.splice(&instance, &digest, manifest).await?;
        }
        Ok(Reply::message(&SpliceBlobResponse {
            blob_digest: request.blob_digest,
            digest_function: DigestFunction::Sha256 as i32,
        }))
    }

    async fn splice(
        &self,
        instance: &Instance,
        digest: &Digest,
        manifest: Manifest,
    ) -> Result<(), Refusal> {
        let len = manifest.len();
        let wrong = || Refusal::invalid("the bytes of the chunks are not those of the digest");
        if len != digest.len() {
            return Err(wrong());
        }
        let bytes = Bytes::from(manifest.encode());
        let long = Long {
            scope: self.scope,
            instance: instance.clone(),
            manifest,
            counted: None,
        };
        let _turn = self.turn().await?;
        let mut chunks = self.front.chunks(long, 0..len, self.life);
        let mut hasher = Hasher::new(DigestFunction::Sha256);
        while let Some(chunk) = chunks.next().await {
            hasher.update(&chunk);
            tokio::task::yield_now().await;
        }
        if hasher.len() < len {
            return Err(Refusal::missing());
        }
        if !hasher.is(digest) {
            return Err(wrong());
        }
        self.put_blob(instance, digest, (bytes, Form::Manifest))
            .await
    }
}

fn split_into(chunk_digests: Vec<fonn_reapi::messages::Digest>) -> Reply {
    Reply::message(&SplitBlobResponse {
        chunk_digests,
        digest_function: DigestFunction::Sha256 as i32,
        chunking_function: FAST_CDC_2020,
    })
}

fn chunk_of(digest: &Digest) -> Result<Chunk, Refusal> {
    let line = || Refusal::invalid(format!("a chunk has 1 to {CHUNK_LEN_MAX} bytes"));
    Ok(Chunk {
        digest: *digest.hash().first_chunk().ok_or_else(line)?,
        len: u32::try_from(digest.len()).map_err(|_| line())?,
    })
}
