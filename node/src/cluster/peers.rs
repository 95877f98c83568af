//! Connections to other members: one a member, made when it is first needed, with a deadline on every
//! call.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};

/// Largest message of the services between members, in bytes.
pub(super) const MESSAGE_LEN_MAX: usize = 4 << 20;
/// Most connections that are kept; past it all are made anew.
const CONNECTIONS_MAX: usize = 1024;
/// A connection is made in this time or given up.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// How often a connection in use is tested, and how long for an answer: a peer that vanished without a
/// word is connected to anew.
const KEEP_ALIVE: Duration = Duration::from_secs(2);

/// The connections of one member; clones share them.
#[derive(Clone, Debug)]
pub(super) struct Peers {
    channels: Arc<Mutex<HashMap<String, Channel>>>,
    #[cfg(test)]
    faults: super::tests::faults::Faults,
}

impl Peers {
    #[cfg(not(test))]
    pub(super) fn new() -> Self {
        Self {
            channels: Arc::default(),
        }
    }

    #[cfg(test)]
    pub(super) fn new(faults: super::tests::faults::Faults) -> Self {
        Self {
            channels: Arc::default(),
            faults,
        }
    }

    /// Calls a member and waits for the answer until `deadline` has passed.
    ///
    /// # Errors
    /// What the member answered; `DEADLINE_EXCEEDED`, or `UNAVAILABLE` without a connection.
    ///
    /// # Cancel safety
    /// Cancelling it loses the answer; the member may have acted.
    pub(super) async fn call<T, F>(
        &self,
        address: &str,
        deadline: Duration,
        call: impl FnOnce(Channel) -> F,
    ) -> Result<T, Status>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let channel = self.channel(address)?;
        let call = async {
            #[cfg(test)]
            self.faults.pass(address).await;
            call(channel).await
        };
        match tokio::time::timeout(deadline, call).await {
            Ok(answer) => Ok(answer?.into_inner()),
            Err(_) => Err(Status::deadline_exceeded(format!(
                "{address} did not answer within {deadline:?}"
            ))),
        }
    }

    fn channel(&self, address: &str) -> Result<Channel, Status> {
        let mut channels = self.channels.lock();
        if let Some(channel) = channels.get(address) {
            return Ok(channel.clone());
        }
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .map_err(|error| Status::invalid_argument(format!("address {address:?}: {error}")))?;
        let channel = endpoint
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE)
            .connect_lazy();
        if channels.len() >= CONNECTIONS_MAX {
            channels.clear();
        }
        channels.insert(address.to_owned(), channel.clone());
        Ok(channel)
    }
}
