//! The action cache: a result is returned only if all that it refers to is there.

use bytes::Bytes;
use fonn_proto::Failure;
use fonn_reapi::messages::{GetActionResultRequest, UpdateActionResultRequest};
use fonn_reapi::status::Refusal;
use fonn_reapi::{Digest, Hasher, Instance, ReapiError, References, inlined};
use tokio::time::timeout;

use super::inbound::Inbound;
use super::reply::Reply;
use super::{BLOB_DEADLINE, Caller, failed};
use crate::receive::RequestBody;
use crate::remote_metrics::ResultLookup;
use crate::store::{Found, PutOutcome, Store};
use crate::usage::Use;

/// Longest message of a directory or a tree that is looked into. As many files as a result may
/// refer to take some 20 MB.
const TREE_LEN_MAX: u64 = 32 << 20;

/// Trees longer than this wait for their turn: they are in memory as a whole, which is no client's.
const SHORT_TREE_LEN: u64 = 1 << 20;

/// Longer trees that are looked into at once.
pub(in crate::handler) const TREES_MAX: usize = 2;

/// Field 9, `execution_metadata`, with `fonn` as the worker. It is what a result without outputs is
/// stored as, because an entry of no bytes is no result over HTTP.
pub(in crate::handler) const EMPTY_RESULT: &[u8] = b"\x4a\x06\x0a\x04fonn";

impl<S: Store> Caller<'_, S> {
    pub(super) async fn get_action_result<B: RequestBody>(
        &self,
        inbound: &mut Inbound<'_, S, B>,
    ) -> Result<Reply, Refusal> {
        let request: GetActionResultRequest = inbound.only().await?;
        let instance = Instance::new(&request.instance_name).map_err(Refusal::invalid)?;
        let function = request.digest_function;
        let action = Digest::of_action(request.action_digest.as_ref(), function);
        let key = action.map_err(Refusal::invalid)?.result_key(&instance);
        let store = self.front.store().clone();
        let found = self.front.look(store.get(self.scope, Bytes::from(key)));
        let Some(result) = found.await.and_then(Found::value) else {
            let figures = &self.front.figures().remote;
            figures.looked_up(ResultLookup::Absent);
            self.count_use(Use::lookup(false));
            return Err(Refusal::missing());
        };
        let complete = self.is_complete(&instance, function, &result).await;
        self.count_use(Use::lookup(complete == Some(true)));
        match complete {
            Some(true) => Ok(Reply::encoded(result)),
            Some(false) | None => Err(Refusal::missing()),
        }
    }

    /// Whether all that a result refers to is there, which counts as a use of it; `None` if it is
    /// no action result.
    pub(super) async fn is_complete(
        &self,
        instance: &Instance,
        function: i32,
        result: &[u8],
    ) -> Option<bool> {
        let figures = &self.front.figures().remote;
        match References::of_result(result, function) {
            Ok(references) => {
                let walked = self.walk(instance, references).await;
                figures.looked_up(match walked {
                    true => ResultLookup::Complete,
                    false => ResultLookup::Incomplete,
                });
                Some(walked)
            }
            Err(ReapiError::TooManyBlobs { .. }) => {
                figures.looked_up(ResultLookup::Incomplete);
                Some(false)
            }
            Err(_) => {
                figures.looked_up(ResultLookup::Malformed);
                None
            }
        }
    }

    /// Whether all blobs are there, and all that those refer to.
    async fn walk(&self, instance: &Instance, mut references: References) -> bool {
        while let Some((referrer, digest)) = references.next_referrer() {
            if digest.len() > TREE_LEN_MAX {
                return false;
            }
            let mut _turn = None;
            if digest.len() > SHORT_TREE_LEN {
                match timeout(BLOB_DEADLINE, self.front.0.trees.acquire()).await {
                    Ok(Ok(turn)) => _turn = Some(turn),
                    _ => return false,
                }
            }
            let Some(message) = self.blob(instance, &digest).await else {
                return false;
            };
            if references.extend(referrer, &message).is_err() {
                return false;
            }
        }
        let blobs: Vec<Digest> = references.blobs().copied().collect();
        let present = self.present(instance, &blobs).await;
        present.into_iter().all(|is_there| is_there)
    }

    pub(super) async fn update_action_result<B: RequestBody>(
        &self,
        inbound: &mut Inbound<'_, S, B>,
    ) -> Result<Reply, Refusal> {
        let request: UpdateActionResultRequest = inbound.only().await?;
        let instance = Instance::new(&request.instance_name).map_err(Refusal::invalid)?;
        let function = request.digest_function;
        let action = Digest::of_action(request.action_digest.as_ref(), function);
        let action = action.map_err(Refusal::invalid)?;
        References::of_result(&request.action_result, function).map_err(Refusal::invalid)?;
        self.put_inlined(&instance, function, &request.action_result)
            .await;
        let result = match request.action_result.is_empty() {
            true => Bytes::from_static(EMPTY_RESULT),
            // The rest of the message would be kept with it.
            false => Bytes::copy_from_slice(&request.action_result),
        };
        let key = action.result_key(&instance);
        if self.put(key.clone(), result.clone()).await? == PutOutcome::Stored {
            return Ok(Reply::encoded(result));
        }
        // The answer is what later reads get.
        let store = self.front.store().clone();
        let found = self.front.look(store.get(self.scope, key.into())).await;
        let Some(kept) = found.and_then(Found::value) else {
            return Ok(Reply::encoded(result));
        };
        match self.is_complete(&instance, function, &kept).await {
            Some(true) => Ok(Reply::encoded(kept)),
            // The namespace keeps first values, and an output of the first one is lost.
            Some(false) | None => Err(failed(Failure::ReadOnly)),
        }
    }

    /// Stores the contents in a result that has their digests as well, as other results may refer
    /// to them. One that cannot be stored makes the result incomplete, which a read notices.
    async fn put_inlined(&self, instance: &Instance, function: i32, result: &[u8]) {
        for (digest, contents) in inlined(result) {
            let Ok(digest) = Digest::of(Some(&digest), function) else {
                continue;
            };
            let mut hasher = Hasher::new(digest.function());
            hasher.update(&contents);
            if hasher.is(&digest) {
                let stored = self.put(digest.blob_key(instance), contents).await;
                if let Err(refusal) = stored {
                    tracing::debug!(%refusal.message, "an output of a result was not stored");
                }
            }
        }
    }
}
