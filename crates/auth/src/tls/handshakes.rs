//! TLS handshakes, apart from what waits for their connections.
//!
//! A handshake costs a processor a third of a millisecond, or more with a long RSA key, and a
//! stranger a few hundred bytes. On a thread of their own, which stands back when processors are
//! scarce, handshakes keep no lease and no other connection waiting.

use std::convert::Infallible;
use std::future::Future;
use std::io;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// Nice value of the thread. Where processors are scarce it has a quarter of one, so members get in
/// beside a load.
const NICENESS: i32 = 5;

const NAME: &str = "fonn-handshakes";

/// The thread. It ends with this.
#[derive(Debug)]
pub(super) struct Handshakes {
    runtime: Handle,
    _stop: oneshot::Sender<Infallible>,
}

impl Handshakes {
    /// Starts the thread.
    ///
    /// # Errors
    /// What the operating system said.
    pub(super) fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name(NAME.to_owned());
        thread.spawn(move || {
            // The thread works all the same if that is refused.
            let tid = rustix::thread::gettid();
            let _ = rustix::process::setpriority_process(Some(tid), NICENESS);
            let _: Result<Infallible, _> = runtime.block_on(stopped);
        })?;
        Ok(Self {
            runtime: handle,
            _stop: stop,
        })
    }

    /// Has the thread make a handshake. Its stream may belong to another runtime.
    ///
    /// # Errors
    /// Those of the handshake.
    ///
    /// # Cancel safety
    /// The handshake is given up.
    pub(super) async fn make<T: Send + 'static>(
        &self,
        handshake: impl Future<Output = io::Result<T>> + Send + 'static,
    ) -> io::Result<T> {
        let mut task = JoinSet::new();
        task.spawn_on(handshake, &self.runtime);
        match task.join_next().await {
            Some(Ok(made)) => made,
            _ => Err(io::Error::other("the handshake ended without a result")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_handshake_is_made_on_its_own_thread_and_given_up_with_its_caller() {
        let handshakes = Handshakes::start().unwrap();
        let name = handshakes.make(async { Ok(std::thread::current().name().map(str::to_owned)) });
        assert_eq!(name.await.unwrap().as_deref(), Some(NAME));

        let (alive, given_up) = oneshot::channel::<()>();
        let (begins, begun) = oneshot::channel();
        let endless = handshakes.make(async move {
            let _alive = alive;
            begins.send(()).unwrap();
            std::future::pending::<io::Result<()>>().await
        });
        tokio::select! {
            _ = endless => panic!("it has no end"),
            begun = begun => begun.unwrap(),
        }
        assert!(given_up.await.is_err());
    }
}
