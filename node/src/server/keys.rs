//! `KEYS`: an iteration over all keys of a space, up to a bound.

use fonn_base::entry::Space;
use fonn_base::glob;
use fonn_proto::Failure;
use fonn_proto::request::ServerOutcome;
use fonn_server::{KEYS_PAGE, KeyGatherer};

use crate::engine::Engine;

/// All keys of a space that match a pattern. Other connections have their turn between two pages.
pub(super) async fn all(engine: &Engine, space: Space, pattern: &[u8]) -> ServerOutcome {
    let (mut gathered, mut cursor) = (KeyGatherer::default(), 0);
    let prefix = glob::literal_prefix(pattern);
    loop {
        let page = match engine.scan(space, cursor, KEYS_PAGE, &prefix).await {
            None => return ServerOutcome::Failed(Failure::Busy),
            Some(Err(failure)) => return ServerOutcome::Failed(failure),
            Some(Ok((next, mut keys))) => {
                cursor = next;
                keys.retain(|key| glob::matches(pattern, key));
                keys
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
