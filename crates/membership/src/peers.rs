//! Connections to other members: one a member, made when it is first needed, with a deadline on
//! every call.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use fonn_admin::{ChannelError, Liveness, member_stream};
use fonn_auth::tls::{Tls, Watched};
use fonn_base::boxed::BoxFuture;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};

use fonn_proto::grpc::v1::members_client::MembersClient;

/// Largest message of the services between members, in bytes.
pub(super) const MESSAGE_LEN_MAX: usize = 4 << 20;
/// Largest message that a router is sent: a map with the users, whose records alone may have as
/// much as another message.
pub(super) const MAP_LEN_MAX: usize = 2 * MESSAGE_LEN_MAX;
/// Most connections that are kept; past it all are made anew.
const CONNECTIONS_MAX: usize = 1024;
/// A connection is made in this time or given up.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// How soon a connection in use ends whose other end has fallen silent.
const LIVENESS: Liveness = Liveness::Member;

/// The connections of one member; clones share them.
#[derive(Clone, Debug)]
pub(super) struct Peers {
    channels: Arc<Mutex<HashMap<String, Channel>>>,
    tls: Option<Arc<Tls>>,
    #[cfg(test)]
    faults: super::tests::faults::Faults,
}

impl Peers {
    pub(super) fn new(
        tls: Option<Arc<Tls>>,
        #[cfg(test)] faults: super::tests::faults::Faults,
    ) -> Self {
        Self {
            channels: Arc::default(),
            tls,
            #[cfg(test)]
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
        call: impl FnOnce(MembersClient<Channel>) -> F,
    ) -> Result<T, Status>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let client = client(self.channel(address)?);
        let call = async {
            #[cfg(test)]
            self.faults.pass(address).await;
            call(client).await
        };
        match tokio::time::timeout(deadline, call).await {
            Ok(answer) => Ok(answer?.into_inner()),
            Err(_) => Err(Status::deadline_exceeded(format!(
                "{address} did not answer within {deadline:?}"
            ))),
        }
    }

    /// The connection to a member.
    fn channel(&self, address: &str) -> Result<Channel, Status> {
        let mut channels = self.channels.lock();
        if let Some(channel) = channels.get(address) {
            return Ok(channel.clone());
        }
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .map_err(|error| Status::invalid_argument(format!("address {address:?}: {error}")))?;
        let endpoint = endpoint
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(LIVENESS.interval())
            .keep_alive_timeout(LIVENESS.timeout());
        let channel = match &self.tls {
            None => endpoint.connect_lazy(),
            Some(tls) => endpoint.connect_with_connector_lazy(Connector {
                address: address.into(),
                tls: Arc::clone(tls),
            }),
        };
        if channels.len() >= CONNECTIONS_MAX {
            channels.clear();
        }
        channels.insert(address.to_owned(), channel.clone());
        Ok(channel)
    }
}

/// The client of a member over a connection.
pub(super) fn client(channel: Channel) -> MembersClient<Channel> {
    MembersClient::new(channel)
        .max_decoding_message_size(MESSAGE_LEN_MAX)
        .max_encoding_message_size(MESSAGE_LEN_MAX)
}

/// Makes a member's connections under TLS, as often as they are needed.
struct Connector {
    address: Arc<str>,
    tls: Arc<Tls>,
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Watched<TcpStream>>;
    type Error = ChannelError;
    type Future = BoxFuture<'static, Result<Self::Response, ChannelError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ChannelError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let (address, tls) = (Arc::clone(&self.address), Arc::clone(&self.tls));
        Box::pin(async move {
            let stream = member_stream(&address, &tls).await?;
            Ok(TokioIo::new(stream))
        })
    }
}
