//! Uploads: a whole archive, or blocks and a list of them. Each is stored as a long value.

use bytes::Bytes;
use fonn_proto::{Failure, WriterId};
use fonn_reapi::Instance;
use fonn_server::Scope;
use hyper::{Request, StatusCode};
use ring::digest::{SHA256, digest};

use super::{Layer, upload_key};
use crate::actions::{BLOCKS_MAX, Component, EntryId, block_list, component, hex};
use crate::answer::Answer;
use crate::handler::{Call, Front};
use crate::long::{LONG_LEN_MAX, Manifest};
use crate::receive::{Beginning, Digested, RequestBody};
use crate::route::{Dialect, Route};
use crate::store::{Form, PutMode, Store};
use crate::tool::Tool;
use crate::usage::Use;

/// Longest list of blocks in bytes.
const LIST_LEN_MAX: usize = 128 * BLOCKS_MAX;

/// The key of a block, by its name in the list of its archive. It has the writer, as
/// [`upload_key`].
fn block_key(id: &EntryId, writer: WriterId, name: &str) -> Bytes {
    let (id, writer) = (hex(id), writer.number());
    let name = hex(digest(&SHA256, name.as_bytes()).as_ref());
    format!("actions/block/{id}/{writer}/{name}").into()
}

fn refusal(line: &str) -> Answer {
    Answer::line(StatusCode::BAD_REQUEST, line)
}

impl<S: Store> Front<S> {
    /// The answer to an upload, and whether the body of the request was read.
    pub(super) async fn upload<B: RequestBody>(
        &self,
        request: Request<B>,
        route: &Route,
        scope: Scope,
        call: Call<'_>,
    ) -> (Answer, bool) {
        let scope = Layer::Own.of(scope).unwrap_or(scope);
        let component = component(request.uri().query().unwrap_or_default());
        let (Some(id), Some(component)) = (route.digest, component) else {
            return (refusal("malformed upload"), false);
        };
        let body = request.into_body();
        let uploaded = match component {
            Component::BlockList => match self.document_of(body, call, LIST_LEN_MAX).await {
                Ok(list) => self.commit(scope, &id, &list).await,
                Err(refused) => return (refused, false),
            },
            component => {
                let manifest = match self.store_body(body, scope, call).await {
                    Ok(manifest) => manifest,
                    Err(refused) => return (refused, false),
                };
                let key = match component {
                    Component::Block(name) => block_key(&id, scope.writer, &name),
                    _ => upload_key(&id, scope.writer),
                };
                self.store_manifest(scope, key, &manifest).await
            }
        };
        let answer = uploaded.map(|()| Answer::empty(StatusCode::CREATED));
        (answer.unwrap_or_else(|refused| refused), true)
    }

    /// Makes the blocks of a list an archive.
    async fn commit(&self, scope: Scope, id: &EntryId, list: &[u8]) -> Result<(), Answer> {
        let names = block_list(list).ok_or_else(|| refusal("malformed block list"))?;
        let mut archive = Manifest::default();
        for name in names {
            let key = block_key(id, scope.writer, name);
            let block = self.archive(scope, key).await;
            let block = block.ok_or_else(|| refusal("a block of the list is not there"))?;
            for chunk in block.manifest.chunks() {
                if !archive.push(*chunk) {
                    return Err(Answer::write_failed(Dialect::Actions, Failure::TooLarge));
                }
            }
        }
        let key = upload_key(id, scope.writer);
        self.store_manifest(scope, key, &archive).await
    }

    async fn store_manifest(
        &self,
        scope: Scope,
        key: Bytes,
        manifest: &Manifest,
    ) -> Result<(), Answer> {
        let (store, bytes) = (self.store().clone(), manifest.encode().into());
        let put = store.put(scope, key, bytes, Form::Manifest, PutMode::Replace);
        let failed = |failure| Answer::write_failed(Dialect::Actions, failure);
        self.change(put).await.map(drop).map_err(failed)
    }

    /// Stores a body in chunks.
    async fn store_body<B: RequestBody>(
        &self,
        mut body: B,
        scope: Scope,
        call: Call<'_>,
    ) -> Result<Manifest, Answer> {
        if body.size_hint().lower() > LONG_LEN_MAX {
            return Err(Answer::write_failed(Dialect::Actions, Failure::TooLarge));
        }
        let terms = call.terms(self.store());
        let long = (scope, Instance::default(), Digested::No);
        let beginning = Beginning::none(&terms);
        let received = self.receive_long(beginning, &mut body, terms, Dialect::Actions, long);
        let (manifest, _) = received.await?;
        let len = usize::try_from(manifest.len()).unwrap_or(usize::MAX);
        self.count_use(Some(Tool::Actions), &scope, Use::stored(len));
        Ok(manifest)
    }
}
