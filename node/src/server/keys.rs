//! `KEYS`: an iteration over all keys of a space, up to a bound.

use fonn_base::entry::Space;
use fonn_base::glob;
use fonn_proto::Failure;
use fonn_proto::request::ServerOutcome;
use fonn_server::{KEYS_PAGE, KeyGatherer};

use crate::engine::Engine;

/// Steps of [`glob::Matching`] before other connections have their turn: a part of a millisecond.
const STEPS_MAX: usize = 100_000;

/// The keys that match a pattern. Other connections have their turn meanwhile.
pub(super) async fn matching(pattern: &[u8], keys: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let (mut found, mut steps) = (Vec::new(), STEPS_MAX);
    for key in keys {
        let mut matching = glob::Matching::new(pattern, &key);
        let is_match = loop {
            match matching.advance(&mut steps) {
                Some(is_match) => break is_match,
                None => tokio::task::yield_now().await,
            }
            steps = STEPS_MAX;
        };
        if is_match {
            found.push(key);
        }
    }
    found
}

/// All keys of a space that match a pattern. Other connections have their turn between two pages.
pub(super) async fn all(engine: &Engine, space: Space, pattern: &[u8]) -> ServerOutcome {
    let (mut gathered, mut cursor) = (KeyGatherer::default(), 0);
    let prefix = glob::literal_prefix(pattern);
    loop {
        let page = match engine.scan(space, cursor, KEYS_PAGE, &prefix).await {
            None => return ServerOutcome::Failed(Failure::Busy),
            Some(Err(failure)) => return ServerOutcome::Failed(failure),
            Some(Ok((next, keys))) => {
                cursor = next;
                matching(pattern, keys).await
            }
        };
        if let Err(failure) = gathered.add(page) {
            return ServerOutcome::Failed(failure);
        }
        if cursor == 0 {
            return gathered.finish();
        }
        tokio::task::yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;

    use super::*;

    #[tokio::test]
    async fn others_have_their_turn_while_a_pattern_is_matched_with_long_keys() {
        let pattern = [&b"*"[..], &[b'a'; 254], b"b"].concat();
        let mut turns = 0;
        let keys = vec![
            vec![b'a'; 32 * 1024],
            vec![b'b'; 300],
            vec![b'a'; 32 * 1024],
        ];
        let mut matching = pin!(matching(&pattern, keys));
        let found = poll_fn(|cx| {
            turns += 1;
            matching.as_mut().poll(cx)
        })
        .await;
        assert!(found.is_empty());
        // Nearly each byte of the long keys is compared with each byte of the pattern.
        assert!(turns >= 32 * 1024 * 256 / STEPS_MAX, "{turns}");
        let few = vec![b"a-1".to_vec(), b"b-1".to_vec(), b"a-2".to_vec()];
        let found = super::matching(b"a*", few).await;
        assert_eq!(found, [b"a-1".to_vec(), b"a-2".to_vec()]);
    }
}
