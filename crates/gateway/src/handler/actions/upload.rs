//! Uploads: a whole archive, or blocks and a list of them. A body is stored part by part while it
//! arrives, so that it may be longer than a value.

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::rand;
use bytes::{Buf as _, Bytes};
use fonn_proto::Failure;
use fonn_runtime::serve::Scope;
use http_body::Body;
use hyper::{Request, StatusCode};

use super::{Layer, upload_key};
use crate::actions::{
    ARCHIVE_LEN_MAX, Archive, BLOCKS_MAX, Block, Component, EntryId, PART_LEN_MAX, block_list,
    component, hex,
};
use crate::answer::Answer;
use crate::handler::{Call, Front};
use crate::receive::{Pace, ReceiveError};
use crate::route::{Dialect, Route};
use crate::store::{PutMode, Store};
use crate::usage::Use;

/// Longest list of blocks in bytes.
const LIST_LEN_MAX: usize = 128 * BLOCKS_MAX;

/// The record of a block, by its name in the list of its archive.
fn block_key(id: &EntryId, name: &str) -> Bytes {
    let name = digest(&SHA256, name.as_bytes());
    format!("actions/block/{}/{}", hex(id), hex(name.as_ref())).into()
}

fn refusal(line: &str) -> Answer {
    Answer::line(StatusCode::BAD_REQUEST, line)
}

impl<S: Store> Front<S> {
    /// The answer to an upload, and whether the body of the request was read.
    pub(super) async fn upload<B>(
        &self,
        request: Request<B>,
        route: &Route,
        scope: Scope,
        call: Call<'_>,
    ) -> (Answer, bool)
    where
        B: Body<Data: Send> + Unpin + Send,
    {
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
                let block = match self.store_body(body, scope, call).await {
                    Ok(block) => block,
                    Err(refused) => return (refused, false),
                };
                let key = match component {
                    Component::Block(name) => block_key(&id, &name),
                    _ => upload_key(&id),
                };
                self.store_record(scope, key, vec![block]).await
            }
        };
        let answer = uploaded.map(|()| Answer::empty(StatusCode::CREATED));
        (answer.unwrap_or_else(|refused| refused), true)
    }

    /// Makes the blocks of a list an archive.
    async fn commit(&self, scope: Scope, id: &EntryId, list: &[u8]) -> Result<(), Answer> {
        let names = block_list(list).ok_or_else(|| refusal("malformed block list"))?;
        let mut blocks = Vec::new();
        for name in names {
            let block = self.archive(scope, block_key(id, name)).await;
            let block = block.and_then(|it| it.blocks().first().copied());
            let missing = || refusal("a block of the list is not there");
            blocks.push(block.ok_or_else(missing)?);
        }
        self.store_record(scope, upload_key(id), blocks).await
    }

    async fn store_record(
        &self,
        scope: Scope,
        key: Bytes,
        blocks: Vec<Block>,
    ) -> Result<(), Answer> {
        let too_long = || Answer::write_failed(Dialect::Actions, Failure::TooLarge);
        let record = Archive::new(blocks).ok_or_else(too_long)?.encode();
        self.put_bytes(scope, key, record.into()).await
    }

    async fn put_bytes(&self, scope: Scope, key: Bytes, value: Bytes) -> Result<(), Answer> {
        let store = self.store().clone();
        let put = store.put(scope, key, value, PutMode::Replace);
        let failed = |failure| Answer::write_failed(Dialect::Actions, failure);
        self.change(put).await.map(drop).map_err(failed)
    }

    /// Stores a body in parts of one length.
    async fn store_body<B>(
        &self,
        mut body: B,
        scope: Scope,
        call: Call<'_>,
    ) -> Result<Block, Answer>
    where
        B: Body<Data: Send> + Unpin + Send,
    {
        let failed = |error| self.not_received(Dialect::Actions, error);
        let too_long = ReceiveError::TooLong {
            len_max: ARCHIVE_LEN_MAX as usize,
        };
        if body.size_hint().lower() > ARCHIVE_LEN_MAX {
            return Err(failed(too_long));
        }
        let terms = call.terms(self.store());
        let part_len = PART_LEN_MAX.min(terms.len_max);
        let mut name = [0; 16];
        rand::fill(&mut name).map_err(|_| failed(ReceiveError::NoMemory))?;
        let mut block = Block {
            name,
            len: 0,
            part_len: part_len as u32,
        };
        // One part is in memory while the next bytes of the body wait in the connection.
        let first_len = usize::try_from(body.size_hint().upper().unwrap_or(u64::MAX));
        let first_len = first_len.unwrap_or(usize::MAX).min(part_len);
        let charge = terms.store.charge(terms.source, first_len).await;
        let Some(_charge) = charge else {
            return Err(failed(ReceiveError::NoMemory));
        };
        let (mut part, mut number, mut pace) = (Vec::new(), 0, Pace::default());
        while let Some(mut data) = terms.next(&mut body, &mut pace).await.map_err(failed)? {
            while data.has_remaining() {
                let chunk = data.chunk();
                let chunk = &chunk[..chunk.len().min(part_len - part.len())];
                if part.is_empty() {
                    part.reserve_exact(first_len);
                }
                part.extend_from_slice(chunk);
                let len = chunk.len();
                data.advance(len);
                block.len += len as u64;
                if block.len > ARCHIVE_LEN_MAX {
                    return Err(failed(too_long));
                }
                if part.len() == part_len {
                    let value = std::mem::take(&mut part).into();
                    self.put_bytes(scope, block.part_key(number).into(), value)
                        .await?;
                    number += 1;
                }
            }
        }
        if !part.is_empty() {
            let value = part.into_boxed_slice().into();
            self.put_bytes(scope, block.part_key(number).into(), value)
                .await?;
        }
        let len = usize::try_from(block.len).unwrap_or(usize::MAX);
        self.figures().received(Dialect::Actions, len);
        self.count_use(Dialect::Actions, &scope, Use::stored(len));
        Ok(block)
    }
}
