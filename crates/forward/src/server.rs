//! Commands about many keys or about the whole store, as other members execute them.

use std::time::Duration;

use fonn_proto::peer::{Reply, Request};
use fonn_proto::request::ServerOutcome;
use fonn_proto::{Failure, ServerCommand, Space, WriterId};
use fonn_rpc::CallError;

use super::forward::envelope;
use super::upstream::{Target, Upstreams};

impl Target {
    /// Has the member execute a command about a slot, for an identity. The failure is
    /// [`Failure::Unavailable`] if the member does not answer, and [`Failure::Busy`] if it does not
    /// own the slot.
    ///
    /// # Cancel safety
    /// If the future is dropped the command may have been executed, or will be.
    pub async fn ask(
        &self,
        place: (Space, WriterId),
        slot: u16,
        command: &ServerCommand<'_>,
        timeout: Duration,
    ) -> ServerOutcome {
        let asked = self.reach(place, slot, command, timeout).await;
        asked.unwrap_or(ServerOutcome::Failed(Failure::Unavailable))
    }

    /// As [`Self::ask`]; `None` if nothing was sent to the member.
    async fn reach(
        &self,
        (space, writer): (Space, WriterId),
        slot: u16,
        command: &ServerCommand<'_>,
        timeout: Duration,
    ) -> Option<ServerOutcome> {
        let request = Request::Server(command.clone());
        let envelope = envelope(slot, space, self.epoch).of(writer);
        let call = self.client.call(&request, envelope, None, timeout);
        Some(match call.await.as_ref().map(|answer| answer.reply()) {
            Ok(Ok(Reply::Server(outcome))) => outcome,
            Ok(Ok(Reply::WrongOwner)) => ServerOutcome::Failed(Failure::Busy),
            Err(CallError::Busy | CallError::Unavailable) => return None,
            _ => ServerOutcome::Failed(Failure::Unavailable),
        })
    }
}

impl Upstreams {
    /// Has the first owner of a slot execute a command, as [`Target::ask`]. The failure is
    /// [`Failure::Busy`] as well if no other member owns the slot by the topology, or its owner was
    /// not asked.
    pub async fn ask_owner(
        &self,
        place: (Space, WriterId),
        slot: u16,
        command: &ServerCommand<'_>,
        timeout: Duration,
    ) -> ServerOutcome {
        let asked = match self.owner(slot, 0) {
            Some(target) => target.reach(place, slot, command, timeout).await,
            None => None,
        };
        asked.unwrap_or(ServerOutcome::Failed(Failure::Busy))
    }
}
