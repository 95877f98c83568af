//! Reads of long values: chunks one after another, each fetched while the one before it is sent.

use std::collections::HashSet;
use std::future::ready;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use fonn_reapi::{Hasher, STEP_LEN};
use futures_util::stream::{self, BoxStream, StreamExt as _};
use hyper::StatusCode;
use hyper::header::{ACCEPT_RANGES, CONTENT_RANGE, HeaderValue};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{Long, digest_of};
use crate::answer::{Answer, Parts, Piece};
use crate::handler::Front;
use crate::life::Life;
use crate::long::Chunk;
use crate::metrics::LostRead;
use crate::payload::{frames, guarded};
use crate::range::{self, Wanted};
use crate::store::{Form, Store};

/// Chunks of one value that are fetched at a time.
const FETCHES_MAX: usize = 2;

/// Chunks that are looked for at a time.
const PROBES_MAX: usize = 64;

/// Probes after which other requests have their turn.
const PROBES_TURN: usize = 256;

/// The head of the answer to a read of `len` bytes by its `Range` header, and which bytes it has.
/// `None` if the range has none.
pub(in crate::handler) fn ranged(
    header: Option<&HeaderValue>,
    len: usize,
) -> (Answer, Option<Range<usize>>) {
    let told = |text: String| {
        let value = HeaderValue::try_from(text);
        value.unwrap_or(HeaderValue::from_static("bytes"))
    };
    let value = |status| Answer::value(status, Bytes::new());
    let (answer, part) = match range::wanted(header.map(HeaderValue::as_bytes), len) {
        Wanted::All => (value(StatusCode::OK), Some(0..len)),
        Wanted::Part(part) => {
            let text = format!("bytes {}-{}/{len}", part.start, part.end - 1);
            let answer = value(StatusCode::PARTIAL_CONTENT).with(CONTENT_RANGE, told(text));
            (answer, Some(part))
        }
        Wanted::Unsatisfiable => {
            let answer = Answer::empty(StatusCode::RANGE_NOT_SATISFIABLE);
            let answer = answer.with(CONTENT_RANGE, told(format!("bytes */{len}")));
            (answer, None)
        }
    };
    let units = HeaderValue::from_static("bytes");
    (answer.with(ACCEPT_RANGES, units), part)
}

/// Whether bytes are those of a chunk; other requests have their turn between steps.
async fn is_intact(chunk: &Chunk, bytes: &[u8]) -> bool {
    let digest = digest_of(chunk);
    let mut hasher = Hasher::new(digest.function());
    for step in bytes.chunks(STEP_LEN) {
        hasher.update(step);
        tokio::task::yield_now().await;
    }
    hasher.is(&digest)
}

impl<S: Store> Front<S> {
    /// Whether the chunks of a range are there, as far as that is known within the deadline of
    /// reads. Asking counts as a use of each.
    pub(in crate::handler) async fn is_whole(&self, long: &Long<S>, wanted: Range<u64>) -> bool {
        let parts = long.manifest.parts(wanted);
        // A value may have one chunk many times.
        let mut seen = HashSet::new();
        let chunks = parts.map(|part| part.chunk);
        let chunks = chunks.filter(move |chunk| seen.insert((chunk.digest, chunk.len)));
        let probes = stream::iter(chunks.enumerate()).map(async |(number, chunk)| {
            if number % PROBES_TURN == 0 {
                // What is known at once takes no turn of others, and sees no deadline.
                tokio::task::yield_now().await;
                if let Some(counted) = &long.counted {
                    counted.progress();
                }
            }
            let key = digest_of(&chunk).blob_key(&long.instance);
            let probe = self.store().clone().probe(long.scope, key.into());
            let found = self.look(probe).await;
            found.is_some_and(|it| match it.form {
                Form::Value => it.len == chunk.len as usize,
                Form::Packed => true,
                Form::Manifest => false,
            })
        });
        let all = probes.buffer_unordered(PROBES_MAX).all(ready);
        let found = timeout(self.options().deadline, all).await;
        if found.is_err() {
            self.figures().lost(LostRead::Deadline);
        }
        found.unwrap_or(false)
    }

    /// The answer to a read of a long value; without a body for a HEAD.
    pub(in crate::handler) async fn answer_long(
        &self,
        long: Long<S>,
        range: Option<&HeaderValue>,
        has_body: bool,
        life: &Arc<Life>,
    ) -> Answer {
        let Ok(len) = usize::try_from(long.manifest.len()) else {
            return Answer::miss();
        };
        let (mut answer, part) = ranged(range, len);
        let Some(part) = part else {
            return answer;
        };
        let wanted = part.start as u64..part.end as u64;
        // A value whose chunks are gone is a miss, as long as that can be said.
        if !self.is_whole(&long, wanted.clone()).await {
            self.figures().lost(LostRead::Incomplete);
            return Answer::miss();
        }
        answer.told_len = Some(part.len());
        if has_body && !part.is_empty() {
            let mut chunks = self.chunks(long, wanted, life);
            let Some(first) = chunks.next().await else {
                return Answer::miss();
            };
            let chunks = stream::iter([first]).chain(chunks);
            answer.stream = Some(Parts(chunks.map(Piece::Bytes).boxed()));
        }
        answer
    }

    /// The bytes of a range. They end early if a chunk is gone: the connection breaks then, because
    /// the length was told before.
    pub(in crate::handler) fn chunks(
        &self,
        long: Long<S>,
        wanted: Range<u64>,
        life: &Arc<Life>,
    ) -> BoxStream<'static, Bytes> {
        let Long {
            scope,
            instance,
            manifest,
            counted,
        } = long;
        let (front, reader) = (self.clone(), self.reader(life));
        let reads = Arc::clone(&reader);
        let parts = manifest.into_parts(wanted.clone());
        let fetched = stream::iter(parts).map(move |part| {
            let (front, reader) = (front.clone(), Arc::clone(&reads));
            let key = digest_of(&part.chunk).blob_key(&instance);
            let slice = part.slice(&wanted);
            let is_first = part.offset <= wanted.start;
            async move {
                // Once the head is sent, a wait for room is better than a response that breaks off.
                let wait_max = match is_first {
                    true => front.options().deadline,
                    false => front.options().times.stall_max,
                };
                // A read that waits for room holds no chunk.
                let chunk_len = part.chunk.len as usize;
                let counted = front.count_unread(&reader, chunk_len, wait_max).await?;
                let store = front.store().clone();
                // A task of its own takes the chunk from the disk, also while the client reads
                // nothing.
                let looks = front.clone();
                let look = async move { looks.look(store.get(scope, key.into())).await };
                let mut look = JoinSet::from_iter([look]);
                let found = reader.working(look.join_next()).await?.ok()??;
                // A client may have sent the chunk as a blob of its own.
                let value = match found.form {
                    Form::Packed => front.unpack(&front.parse_packed(&found.bytes)?).await,
                    _ => found.value(),
                }?;
                if !is_intact(&part.chunk, &value).await {
                    front.figures().lost(LostRead::Malformed);
                    return None;
                }
                Some(guarded(value.slice(slice?), counted))
            }
        });
        let found = fetched.buffered(FETCHES_MAX);
        let found = found.take_while(|it| ready(it.is_some()));
        let frames = frames(found.filter_map(ready), reader);
        let Some(counted) = counted else {
            return frames;
        };
        // The manifest is counted as long as the stream.
        frames.inspect(move |_| counted.progress()).boxed()
    }
}
