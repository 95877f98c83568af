//! Downloads: parts of an archive one after another, each fetched while the one before it is sent.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use fonn_runtime::serve::Scope;
use futures_util::stream::{self, BoxStream, StreamExt as _};
use hyper::header::{ACCEPT_RANGES, CONTENT_RANGE, HeaderValue, RANGE};
use hyper::{Request, StatusCode};

use super::{Layer, entry_key};
use crate::actions::{Part, parameter};
use crate::answer::{Answer, Parts};
use crate::handler::{Call, Front};
use crate::life::Life;
use crate::outstanding::Counted;
use crate::range::{self, Wanted};
use crate::route::{Operation, Route};
use crate::store::Store;

/// Parts of one download that are fetched at a time.
const FETCHES_MAX: usize = 2;

/// The bytes of a part, which are counted until the connection has sent them.
struct Sent<S: Store> {
    bytes: Bytes,
    _counted: Counted<S>,
}

impl<S: Store> AsRef<[u8]> for Sent<S> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The bytes of a part that are in the wanted range of the archive.
fn slice_of(part: &Part, wanted: &Range<u64>) -> Option<Range<usize>> {
    let end = part.offset + part.len as u64;
    let (from, to) = (wanted.start.max(part.offset), wanted.end.min(end));
    let within = |at: u64| (at - part.offset) as usize;
    (from < to).then(|| within(from)..within(to))
}

impl<S: Store> Front<S> {
    pub(super) async fn download<B>(
        &self,
        request: &Request<B>,
        route: &Route,
        scope: Scope,
        call: Call<'_>,
    ) -> Answer {
        let layer = parameter(request.uri().query().unwrap_or_default(), "layer");
        let layer = layer.map_or(Some(Layer::Own), |it| Layer::parse(&it));
        let scope = layer.and_then(|it| it.of(scope));
        let (Some(id), Some(scope)) = (route.digest, scope) else {
            return Answer::miss();
        };
        let Some(archive) = self.archive(scope, entry_key(&id)).await else {
            return Answer::miss();
        };
        let Ok(len) = usize::try_from(archive.len()) else {
            return Answer::miss();
        };
        let range = request.headers().get(RANGE).map(HeaderValue::as_bytes);
        let told = |text: String| {
            let value = HeaderValue::try_from(text);
            value.unwrap_or(HeaderValue::from_static("bytes"))
        };
        let (status, part) = match range::wanted(range, len) {
            Wanted::All => (StatusCode::OK, 0..len),
            Wanted::Part(part) => (StatusCode::PARTIAL_CONTENT, part),
            Wanted::Unsatisfiable => {
                return Answer::empty(StatusCode::RANGE_NOT_SATISFIABLE)
                    .with(CONTENT_RANGE, told(format!("bytes */{len}")));
            }
        };
        let mut answer = Answer {
            told_len: Some(part.len()),
            ..Answer::value(status, Bytes::new())
        }
        .with(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        if status == StatusCode::PARTIAL_CONTENT {
            let last = part.end - 1;
            answer.set(
                CONTENT_RANGE,
                told(format!("bytes {}-{last}/{len}", part.start)),
            );
        }
        if route.operation == Operation::Read && !part.is_empty() {
            let wanted = part.start as u64..part.end as u64;
            let mut parts = self.parts(scope, archive.parts(), wanted, call.life);
            // An archive whose parts are gone is a miss, as long as that can be said.
            let Some(first) = parts.next().await else {
                return Answer::miss();
            };
            answer.stream = Some(Parts(stream::iter([first]).chain(parts).boxed()));
        }
        answer
    }

    /// The bytes of a range. They end early if a part is gone: the connection breaks then, because
    /// the length was told before.
    fn parts(
        &self,
        scope: Scope,
        parts: impl Iterator<Item = Part> + Send + 'static,
        wanted: Range<u64>,
        life: &Arc<Life>,
    ) -> BoxStream<'static, Bytes> {
        let sliced = parts.filter_map(move |part| {
            let slice = slice_of(&part, &wanted)?;
            let is_first = part.offset <= wanted.start;
            Some((part, slice, is_first))
        });
        let (front, life) = (self.clone(), Arc::clone(life));
        let fetched = stream::iter(sliced).map(move |(part, slice, is_first)| {
            let (front, life) = (front.clone(), Arc::clone(&life));
            async move {
                let store = front.store().clone();
                let value = front.look(store.get(scope, part.key.into())).await?;
                if value.len() != part.len {
                    return None;
                }
                let bytes = value.slice(slice);
                // Once the head is sent, a wait for room is better than a response that breaks off.
                let wait_max = match is_first {
                    true => front.options().deadline,
                    false => front.options().times.stall_max,
                };
                let counted = front.count_body(&life, bytes.len(), wait_max).await?;
                life.touch();
                Some(Bytes::from_owner(Sent {
                    bytes,
                    _counted: counted,
                }))
            }
        });
        let found = fetched.buffered(FETCHES_MAX);
        let found = found.take_while(|it| std::future::ready(it.is_some()));
        found.filter_map(std::future::ready).boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_has_a_slice_of_each_part_that_it_meets() {
        let part = Part {
            key: String::new(),
            offset: 10,
            len: 5,
        };
        for (wanted, slice) in [
            (0..10, None),
            (0..11, Some(0..1)),
            (11..13, Some(1..3)),
            (14..99, Some(4..5)),
            (15..99, None),
            (0..99, Some(0..5)),
        ] {
            assert_eq!(slice_of(&part, &wanted), slice, "{wanted:?}");
        }
    }
}
