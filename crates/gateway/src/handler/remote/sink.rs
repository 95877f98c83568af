//! Takes the bytes of an upload, and verifies them.

use bytes::Bytes;
use fonn_reapi::status::Refusal;
use fonn_reapi::{Compressor, Digest, Hasher, Inflater, Instance, STEP_LEN};

use super::inbound::Inbound;
use super::{Caller, failed};
use crate::handler::long::LongWrite;
use crate::handler::packed::kept;
use crate::packed::{HEAD_LEN, Packed};
use crate::receive::{RequestBody, reserve};
use crate::store::{Form, Store};

/// A stream may be so much longer than twice its blob: it has heads of frames and blocks.
const STREAM_SLACK: usize = 64 << 10;

/// What is kept of the bytes of a blob.
enum Kept<'f, S: Store> {
    /// The blob.
    Value(Vec<u8>),
    /// Its stream, behind the head of the entry.
    Packed(Vec<u8>),
    /// The chunks of a long blob.
    Long(Box<LongWrite<'f, S>>),
}

/// An upload of which not all bytes have come.
pub(super) struct Sink<'f, S: Store> {
    digest: Digest,
    hasher: Hasher,
    inflater: Option<Inflater>,
    kept: Kept<'f, S>,
    /// Bytes that were taken since other calls had their turn. A connection answers each turn with
    /// an update of its window, so a turn for each short message would be dear.
    unyielded: usize,
}

impl<S: Store> Caller<'_, S> {
    /// Takes the bytes of a blob. One that is longer than an entry may be is stored in chunks of
    /// `instance` while it comes, decompressed.
    pub(super) fn sink(
        &self,
        instance: &Instance,
        digest: Digest,
        compressor: Compressor,
    ) -> Result<Sink<'_, S>, Refusal> {
        let inflater = match compressor {
            Compressor::Identity => None,
            Compressor::Zstd => Some(Inflater::new(digest.len()).map_err(Refusal::invalid)?),
        };
        let kept = match compressor {
            _ if digest.len() > self.front.store().value_len_max() as u64 => {
                let (scope, instance) = (self.scope, instance.clone());
                let long = LongWrite::new(self.front, scope, instance, Bytes::new());
                Kept::Long(Box::new(long))
            }
            Compressor::Identity => Kept::Value(Vec::new()),
            Compressor::Zstd => Kept::Packed(Packed::head(digest.len()).to_vec()),
        };
        Ok(Sink {
            digest,
            hasher: Hasher::new(digest.function()),
            inflater,
            kept,
            unyielded: 0,
        })
    }
}

impl<S: Store> Sink<'_, S> {
    /// Takes the next bytes; other calls have their turn between steps.
    pub(super) async fn take<B: RequestBody>(
        &mut self,
        data: &[u8],
        inbound: &mut Inbound<'_, S, B>,
    ) -> Result<(), Refusal> {
        let len = usize::try_from(self.digest.len()).unwrap_or(usize::MAX);
        let mut rest = data;
        loop {
            let before = rest;
            let (out, window) = match &mut self.inflater {
                Some(inflater) => {
                    let out = inflater.step(&mut rest).map_err(Refusal::invalid)?;
                    (out, Inflater::memory_len(len))
                }
                None => {
                    let step;
                    (step, rest) = rest.split_at(rest.len().min(STEP_LEN));
                    (step, 0)
                }
            };
            let taken = before.len() - rest.len();
            if out.len() as u64 > self.digest.len() - self.hasher.len() {
                return Err(Refusal::invalid("the blob is longer than its digest says"));
            }
            self.hasher.update(out);
            self.unyielded += out.len().max(taken);
            match &mut self.kept {
                Kept::Long(long) => {
                    let kept = long.memory_len(out.len()) + data.len() + window;
                    inbound.keep(kept).await?;
                    long.take(out).await.map_err(failed)?;
                }
                Kept::Value(blob) => {
                    inbound.keep(blob.len() + out.len() + data.len()).await?;
                    // The kernel provides memory as it is written to, so room for all of it costs
                    // nothing yet.
                    reserve(blob, len);
                    blob.extend_from_slice(out);
                }
                Kept::Packed(entry) => {
                    let entry_len = entry.len() + taken;
                    if entry_len > len.saturating_mul(2).saturating_add(STREAM_SLACK) {
                        let line = "the stream is more than twice as long as the blob";
                        return Err(Refusal::invalid(line));
                    }
                    inbound.keep(entry_len + data.len() + window).await?;
                    reserve(entry, HEAD_LEN.saturating_add(len));
                    entry.extend_from_slice(before.get(..taken).unwrap_or_default());
                }
            }
            if out.is_empty() && rest.is_empty() {
                return Ok(());
            }
            if self.unyielded >= STEP_LEN {
                self.unyielded = 0;
                tokio::task::yield_now().await;
            }
        }
    }

    /// What is stored of the blob, if it is what its digest says.
    pub(super) async fn finish<B: RequestBody>(
        self,
        inbound: &mut Inbound<'_, S, B>,
    ) -> Result<(Bytes, Form), Refusal> {
        if let Some(inflater) = &self.inflater {
            inflater.finish().map_err(Refusal::invalid)?;
        }
        if !self.hasher.is(&self.digest) {
            let line = "the bytes are not those that the digest names";
            return Err(Refusal::invalid(line));
        }
        // Gives up what was reserved and not needed.
        let whole = |bytes: Vec<u8>| Bytes::from(bytes.into_boxed_slice());
        match self.kept {
            Kept::Value(blob) => Ok((whole(blob), Form::Value)),
            Kept::Packed(entry) => {
                let len = usize::try_from(self.digest.len()).unwrap_or(usize::MAX);
                // The blob itself is held only if its stream is longer.
                let held = Inflater::memory_len(len).saturating_add(2 * entry.len());
                inbound.keep(held).await?;
                kept(whole(entry)).await.map_err(Refusal::invalid)
            }
            Kept::Long(long) => {
                let manifest = long.finish().await.map_err(failed)?;
                Ok((Bytes::from(manifest.encode()), Form::Manifest))
            }
        }
    }
}
