//! Writes of long values: chunks are stored while the value arrives. The manifest, without which
//! nothing of the value can be had under its key, comes last.

use bytes::{Buf as _, Bytes};
use fonn_proto::Failure;
use fonn_reapi::{DigestFunction, Hasher, Instance, STEP_LEN};
use fonn_server::Scope;

use super::digest_of;
use crate::answer::Answer;
use crate::charged::Charged;
use crate::handler::Front;
use crate::long::{Chunk, Cutter, Manifest};
use crate::metrics::ChunkOutcome;
use crate::receive::{Beginning, Digested, Pace, ReceiveError, RequestBody, STEP_MIN, Terms};
use crate::route::Dialect;
use crate::store::{Form, Probed, PutMode, Store};

/// A long value that is being stored.
pub(in crate::handler) struct LongWrite<'f, S: Store> {
    front: &'f Front<S>,
    scope: Scope,
    instance: Instance,
    cutter: Cutter,
    manifest: Manifest,
}

impl<'f, S: Store> LongWrite<'f, S> {
    /// Begins a value with this head. Its chunks become blobs of `instance`.
    pub(in crate::handler) fn new(
        front: &'f Front<S>,
        scope: Scope,
        instance: Instance,
        head: Bytes,
    ) -> Self {
        Self {
            front,
            scope,
            instance,
            cutter: Cutter::new(front.store().value_len_max()),
            manifest: Manifest::new(head),
        }
    }

    /// Bytes that are held while `more` are taken, besides these.
    pub(in crate::handler) fn memory_len(&self, more: usize) -> usize {
        self.cutter.memory_len(more)
    }

    /// Takes the next bytes.
    ///
    /// # Errors
    /// Why a chunk was not stored, or [`Failure::TooLarge`].
    pub(in crate::handler) async fn take(&mut self, mut bytes: &[u8]) -> Result<(), Failure> {
        while !bytes.is_empty() {
            bytes = self.cutter.take(bytes);
            while let Some(chunk) = self.cutter.next() {
                self.store(chunk).await?;
            }
        }
        Ok(())
    }

    /// Stores what is left, and returns the list of all chunks.
    ///
    /// # Errors
    /// As [`LongWrite::take`].
    pub(in crate::handler) async fn finish(mut self) -> Result<Manifest, Failure> {
        while let Some(chunk) = self.cutter.last() {
            self.store(chunk).await?;
        }
        Ok(self.manifest)
    }

    async fn store(&mut self, bytes: Bytes) -> Result<(), Failure> {
        let mut hasher = Hasher::new(DigestFunction::Sha256);
        for step in bytes.chunks(STEP_LEN) {
            hasher.update(step);
            tokio::task::yield_now().await;
        }
        let digest = hasher.digest(&[]);
        let chunk = Chunk {
            digest: *digest.hash().first_chunk().ok_or(Failure::Unavailable)?,
            len: u32::try_from(bytes.len()).map_err(|_| Failure::TooLarge)?,
        };
        if !self.manifest.push(chunk) {
            return Err(Failure::TooLarge);
        }
        let key = Bytes::from(digest_of(&chunk).blob_key(&self.instance));
        let there = Probed {
            len: bytes.len(),
            form: Form::Value,
        };
        let front = self.front;
        let probe = front.store().clone().probe(self.scope, key.clone());
        if front.look(probe).await == Some(there) {
            front.figures().chunk(ChunkOutcome::Shared, there.len);
            return Ok(());
        }
        let store = front.store().clone();
        let put = store.put(self.scope, key, bytes, Form::Value, PutMode::Replace);
        front.change(put).await?;
        front.figures().chunk(ChunkOutcome::Stored, there.len);
        Ok(())
    }
}

impl<S: Store> Front<S> {
    /// Stores a body in chunks as it comes, behind what came before. Returns its manifest, and its
    /// SHA-256 if that is asked for. The error is the answer.
    pub(in crate::handler) async fn receive_long<B: RequestBody>(
        &self,
        beginning: Beginning<'_, S>,
        body: &mut B,
        terms: Terms<'_, S>,
        dialect: Dialect,
        (scope, instance, digested): (Scope, Instance, Digested),
    ) -> Result<(Manifest, [u8; 32]), Answer> {
        let not_received = |error| self.not_received(dialect, error);
        let not_stored = |failure| Answer::write_failed(dialect, failure);
        let head = Bytes::copy_from_slice(terms.prefix);
        let mut long = LongWrite::new(self, scope, instance, head);
        let (came, mut context, mut charged) = beginning.into_parts();
        let came_len: usize = came.iter().map(Bytes::len).sum();
        if came_len > 0 && !charged.grow(long.memory_len(came_len)).await {
            return Err(not_received(ReceiveError::NoMemory));
        }
        for bytes in came {
            long.take(&bytes).await.map_err(not_stored)?;
        }
        // What came is in chunks now. The rest of the body holds a few chunks, so other requests
        // get the memory back.
        drop(charged);
        let mut charged = Charged::none(terms.store, terms.source);
        let mut pace = Pace::default();
        while let Some(mut data) = terms.next(body, &mut pace).await.map_err(not_received)? {
            let needed = long.memory_len(data.remaining());
            if needed > charged.bytes() {
                let more = (needed - charged.bytes()).max(STEP_MIN);
                if !charged.grow(more).await {
                    return Err(not_received(ReceiveError::NoMemory));
                }
            }
            while data.has_remaining() {
                let bytes = data.chunk();
                if digested == Digested::Yes {
                    context.update(bytes);
                }
                long.take(bytes).await.map_err(not_stored)?;
                let len = bytes.len();
                data.advance(len);
            }
        }
        let manifest = long.finish().await.map_err(not_stored)?;
        let len = usize::try_from(manifest.len()).unwrap_or(usize::MAX);
        self.figures().received(dialect, len);
        let mut digest = [0; 32];
        if digested == Digested::Yes {
            digest.copy_from_slice(context.finish().as_ref());
        }
        Ok((manifest, digest))
    }
}
