//! The action cache: a result is returned only if all that it refers to is there.

use bytes::Bytes;
use fonn_proto::Failure;
use fonn_reapi::messages::{GetActionResultRequest, UpdateActionResultRequest};
use fonn_reapi::status::Refusal;
use fonn_reapi::{Digest, Hasher, Instance, ReapiError, References, inlined};

use super::inbound::Inbound;
use super::reply::Reply;
use super::{BLOB_DEADLINE, Caller, failed};
use crate::receive::RequestBody;
use crate::remote_metrics::ResultLookup;
use crate::store::{Form, Found, PutOutcome, Store};
use crate::usage::Use;

/// Longest message of a directory or a tree that is looked into. As many files as a result may
/// refer to take some 20 MB.
const TREE_LEN_MAX: u64 = 32 << 20;

/// Trees longer than this wait for their turn: they are in memory as a whole, which is no client's.
const SHORT_TREE_LEN: u64 = 1 << 20;

/// Longer trees that are looked into at once.
pub(in crate::handler) const TREES_MAX: usize = 2;

/// Longer values are known to be results before what they refer to is charged: those of ccache are
/// none.
const SHORT_RESULT_LEN: usize = 64 << 10;

/// What is known of the blobs that messages of `len` bytes refer to takes at most so much, while
/// they are looked for. A short digest takes six times its bytes, and [`References`] has a limit.
pub(super) fn references_len(len: usize) -> usize {
    len.saturating_mul(6).min(56 << 20)
}

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
        let (key, deadline) = (Bytes::from(key), self.front.options().deadline);
        let len_of = |found: &Found| found.bytes.len();
        let loaded = self
            .front
            .load(self.scope, key, self.life, deadline, len_of);
        let loaded = loaded.await.filter(|it| it.found.form == Form::Value);
        let Some(loaded) = loaded else {
            let figures = &self.front.figures().remote;
            figures.looked_up(ResultLookup::Absent);
            self.count_use(Use::lookup(false));
            return Err(Refusal::missing());
        };
        let result = loaded.found.bytes;
        inbound.count(loaded.counted);
        let complete = self.is_complete(&instance, function, &result, inbound);
        let complete = loaded.reader.working(complete).await;
        self.count_use(Use::lookup(complete == Some(true)));
        match complete {
            Some(true) => Ok(Reply::encoded(result)),
            Some(false) | None => Err(Refusal::missing()),
        }
    }

    /// Whether all that a result refers to is there, which counts as a use of it; `None` if it is
    /// no action result.
    pub(super) async fn is_complete<B: RequestBody>(
        &self,
        instance: &Instance,
        function: i32,
        result: &Bytes,
        inbound: &mut Inbound<'_, S, B>,
    ) -> Option<bool> {
        let figures = &self.front.figures().remote;
        let mut is_result = true;
        if result.len() > SHORT_RESULT_LEN {
            let message = result.clone();
            let checked = self.front.aside(self.scope.space, result.len(), move || {
                References::of_result(&message, function).is_ok()
            });
            match checked.await {
                Some(it) => is_result = it,
                None => return Some(false),
            }
        }
        if is_result && inbound.keep(references_len(result.len())).await.is_err() {
            return Some(false);
        }
        let message = result.clone();
        let references = self.front.aside(self.scope.space, result.len(), move || {
            References::of_result(&message, function)
        });
        let Some(references) = references.await else {
            return Some(false);
        };
        match references {
            Ok(references) => {
                let walked = self.walk(instance, references, result.len(), inbound).await;
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

    /// Whether all blobs are there, and all that those refer to. So many bytes of messages are
    /// `known`.
    async fn walk<B: RequestBody>(
        &self,
        instance: &Instance,
        mut references: References,
        mut known: usize,
        inbound: &mut Inbound<'_, S, B>,
    ) -> bool {
        while let Some((referrer, digest)) = references.next_referrer() {
            if digest.len() > TREE_LEN_MAX {
                return false;
            }
            let mut _turn = None;
            if digest.len() > SHORT_TREE_LEN {
                let trees = &self.front.0.trees;
                _turn = trees.take(self.scope.space, BLOB_DEADLINE).await;
                if _turn.is_none() {
                    return false;
                }
            }
            let len = usize::try_from(digest.len()).unwrap_or(usize::MAX);
            known = known.saturating_add(len);
            let held = references_len(known).saturating_add(len);
            if inbound.keep(held).await.is_err() {
                return false;
            }
            let Some(message) = self.blob(instance, &digest).await else {
                return false;
            };
            let extended = self.front.aside(self.scope.space, len, move || {
                let extended = references.extend(referrer, &message);
                extended.map(|()| references)
            });
            match extended.await {
                Some(Ok(extended)) => references = extended,
                Some(Err(_)) | None => return false,
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
        let message = request.action_result.clone();
        let checked = self.front.aside(self.scope.space, message.len(), move || {
            References::of_result(&message, function).map(drop)
        });
        let checked = checked.await.ok_or_else(|| failed(Failure::Busy))?;
        checked.map_err(Refusal::invalid)?;
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
        let complete = self.is_complete(&instance, function, &kept, inbound);
        match complete.await {
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
