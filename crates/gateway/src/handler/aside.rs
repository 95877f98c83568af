//! Work on long messages, which threads of their own do.
//!
//! A reactor looks at its sockets between tasks, and not after each. Tasks of a tenth of a second
//! each would make the other connections wait for seconds.

use std::time::Duration;

use fonn_proto::Space;
use tokio::task::spawn_blocking;

use super::Front;
use crate::store::Store;

/// Shorter messages are worked on where they are.
const LONG_LEN_MIN: usize = 64 << 10;

/// Long messages that are worked on at once. Work whose request has gone goes on, so this also
/// bounds what such work holds.
pub(super) const MESSAGES_MAX: usize = 2;

/// How long a message waits for its turn.
const TURN_WAIT_MAX: Duration = Duration::from_secs(10);

impl<S: Store> Front<S> {
    /// Does work on a message of `len` bytes in `space`; `None` if its turn does not come.
    ///
    /// # Cancel safety
    /// Work that has begun goes on, and keeps what it owns until its end.
    pub(crate) async fn aside<T: Send + 'static>(
        &self,
        space: Space,
        len: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        if len < LONG_LEN_MIN {
            return Some(work());
        }
        let turn = self.0.messages.take(space, TURN_WAIT_MAX).await?;
        let working = spawn_blocking(move || {
            let done = work();
            drop(turn);
            done
        });
        working.await.ok()
    }
}
