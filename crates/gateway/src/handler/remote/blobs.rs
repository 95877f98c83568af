//! The content-addressed store: blobs in batches.

use bytes::Bytes;
use fonn_reapi::capabilities::BATCH_LEN_MAX;
use fonn_reapi::messages::{
    BatchReadBlobsRequest, BatchReadBlobsResponse, BatchUpdateBlobsRequest,
    BatchUpdateBlobsResponse, FindMissingBlobsRequest, FindMissingBlobsResponse, GetTreeRequest,
    GetTreeResponse, Status, batch_read_blobs_response, batch_update_blobs_request,
    batch_update_blobs_response,
};
use fonn_reapi::status::Refusal;
use fonn_reapi::{Compressor, Digest, Instance, References, frame};
use futures_util::future::join_all;

use super::Caller;
use super::inbound::Inbound;
use super::reply::Reply;
use super::results::references_len;
use crate::receive::RequestBody;
use crate::store::{Form, Store};
use crate::usage::Use;

/// Blobs of a batch that are read or written at once.
const BATCH_STEP: usize = 64;

/// Bytes of all blobs of a batch together, decompressed.
const DECOMPRESSED_LEN_MAX: u64 = 64 << 20;

/// A call returns so many bytes of directories; a message of the reply holds the second number.
const TREE_LEN_MAX: usize = 64 << 20;
const TREE_PAGE_LEN: usize = 1 << 20;

impl<S: Store> Caller<'_, S> {
    pub(super) async fn find_missing_blobs<B: RequestBody>(
        &self,
        inbound: &mut Inbound<'_, S, B>,
    ) -> Result<Reply, Refusal> {
        let request: FindMissingBlobsRequest = inbound.only().await?;
        let instance = Instance::new(&request.instance_name).map_err(Refusal::invalid)?;
        let digests = digests(&request.blob_digests, request.digest_function)?;
        let present = self.present(&instance, &digests).await;
        let missing = request.blob_digests.into_iter().zip(present);
        let missing = missing.filter_map(|(digest, is_there)| (!is_there).then_some(digest));
        Ok(Reply::message(&FindMissingBlobsResponse {
            missing_blob_digests: missing.collect(),
        }))
    }

    pub(super) async fn batch_update_blobs<B: RequestBody>(
        &self,
        inbound: &mut Inbound<'_, S, B>,
    ) -> Result<Reply, Refusal> {
        let request: BatchUpdateBlobsRequest = inbound.only().await?;
        let instance = Instance::new(&request.instance_name).map_err(Refusal::invalid)?;
        let mut responses = Vec::with_capacity(request.requests.len());
        let mut left = DECOMPRESSED_LEN_MAX;
        for part in request.requests.chunks(BATCH_STEP) {
            let mut verified = Vec::with_capacity(part.len());
            for blob in part {
                let names = (&instance, request.digest_function);
                let of = self.verify(blob, names, &mut left, inbound);
                verified.push(of.await);
            }
            let puts = verified.into_iter().map(async |blob| {
                let (digest, entry) = blob?;
                self.put_blob(&instance, &digest, entry).await
            });
            let stored = join_all(puts).await;
            responses.extend(part.iter().zip(stored).map(|(blob, stored)| {
                batch_update_blobs_response::Response {
                    digest: blob.digest.clone(),
                    status: Some(status_of(stored)),
                }
            }));
        }
        Ok(Reply::message(&BatchUpdateBlobsResponse { responses }))
    }

    pub(super) async fn batch_read_blobs<B: RequestBody>(
        &self,
        inbound: &mut Inbound<'_, S, B>,
    ) -> Result<Reply, Refusal> {
        let request: BatchReadBlobsRequest = inbound.only().await?;
        let instance = Instance::new(&request.instance_name).map_err(Refusal::invalid)?;
        let digests = digests(&request.digests, request.digest_function)?;
        let len = digests
            .iter()
            .fold(0, |len: u64, it| len.saturating_add(it.len()));
        if len > BATCH_LEN_MAX as u64 {
            let line = format!("{len} bytes are more than the {BATCH_LEN_MAX} of a batch");
            return Err(Refusal::invalid(line));
        }
        // The blobs, and the reply that is made of them.
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        inbound.hold(len.saturating_mul(2)).await?;
        let mut responses = Vec::with_capacity(digests.len());
        for part in digests.chunks(BATCH_STEP) {
            let blobs = part.iter().map(|digest| self.blob(&instance, digest));
            let blobs = join_all(blobs).await;
            responses.extend(part.iter().zip(blobs).map(|(digest, blob)| {
                let (data, read) = match blob {
                    Some(data) => (data, Ok(())),
                    None => (Bytes::new(), Err(Refusal::missing())),
                };
                batch_read_blobs_response::Response {
                    digest: Some(digest.message()),
                    data,
                    status: Some(status_of(read)),
                }
            }));
        }
        let served = responses.iter().map(|it| it.data.len()).sum();
        self.count_use(Use::served(served));
        Ok(Reply::message(&BatchReadBlobsResponse { responses }))
    }

    pub(super) async fn get_tree<B: RequestBody>(
        &self,
        inbound: &mut Inbound<'_, S, B>,
    ) -> Result<Reply, Refusal> {
        let request: GetTreeRequest = inbound.only().await?;
        let instance = Instance::new(&request.instance_name).map_err(Refusal::invalid)?;
        let root = Digest::of(request.root_digest.as_ref(), request.digest_function);
        let root = root.map_err(Refusal::invalid)?;
        let mut references = References::of_root(root, request.digest_function);
        let (mut pages, mut page) = (Vec::new(), GetTreeResponse::default());
        let (mut len, mut page_len) = (0, 0);
        while let Some((referrer, digest)) = references.next_referrer() {
            let directory_len = usize::try_from(digest.len()).unwrap_or(usize::MAX);
            len = directory_len.saturating_add(len);
            if len > TREE_LEN_MAX {
                let line = format!("the directories are longer than {TREE_LEN_MAX} bytes");
                return Err(Refusal::invalid(line));
            }
            // Before it is in memory. It may be made of chunks, or of a stream that is shorter.
            inbound
                .keep(len.saturating_add(references_len(len)))
                .await?;
            let directory = self.blob(&instance, &digest).await;
            let directory = directory.ok_or_else(Refusal::missing)?;
            let (message, mut known) = (directory.clone(), references);
            let extended = self.front.aside(self.scope.space, directory_len, move || {
                let extended = known.extend(referrer, &message);
                extended.map(|()| known)
            });
            let extended = extended.await.ok_or_else(Refusal::missing)?;
            references = extended.map_err(Refusal::invalid)?;
            page_len += directory_len;
            page.directories.push(directory);
            if page_len >= TREE_PAGE_LEN {
                pages.push(frame(&std::mem::take(&mut page)));
                page_len = 0;
            }
        }
        pages.push(frame(&page));
        Ok(Reply::messages(pages))
    }

    /// What is stored of a blob of a batch, if it is what its digest says.
    async fn verify<B: RequestBody>(
        &self,
        blob: &batch_update_blobs_request::Request,
        (instance, function): (&Instance, i32),
        left: &mut u64,
        inbound: &mut Inbound<'_, S, B>,
    ) -> Result<(Digest, (Bytes, Form)), Refusal> {
        let digest = Digest::of(blob.digest.as_ref(), function).map_err(Refusal::invalid)?;
        let line = || {
            Refusal::invalid(format!(
                "a batch is longer than {DECOMPRESSED_LEN_MAX} bytes"
            ))
        };
        *left = left.checked_sub(digest.len()).ok_or_else(line)?;
        let compressor = match blob.compressor {
            it if it == Compressor::Identity as i32 => Compressor::Identity,
            it if it == Compressor::Zstd as i32 => Compressor::Zstd,
            other => {
                let line = format!("compressor {other} is not supported: use zstd");
                return Err(Refusal::invalid(line));
            }
        };
        let mut sink = self.sink(instance, digest, compressor)?;
        sink.take(&blob.data, inbound).await?;
        let entry = sink.finish(inbound).await?;
        inbound.hold(entry.0.len()).await?;
        Ok((digest, entry))
    }
}

fn digests(
    messages: &[fonn_reapi::messages::Digest],
    function: i32,
) -> Result<Vec<Digest>, Refusal> {
    let digests = messages.iter().map(|it| Digest::of(Some(it), function));
    digests.collect::<Result<_, _>>().map_err(Refusal::invalid)
}

fn status_of(result: Result<(), Refusal>) -> Status {
    match result {
        Ok(()) => Status::default(),
        Err(refusal) => refusal.status(),
    }
}
