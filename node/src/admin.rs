//! The admin services of a node: state and settings over gRPC.
//!
//! The services (`fonn/v1/admin.proto`, `cold.proto`) are thin: they translate between messages and
//! what engine and cold tier offer. They are mounted before the store is open, so that the port
//! answers while it recovers; until [`Admin::open`] only the status does.

mod caller;
pub mod codecs;
pub mod cold;
mod membership;
mod namespaces;
mod purge;
mod relay;
mod service;
mod status;
pub mod telemetry;
mod users;
mod warm;

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use fonn_admin::{Grpc, GrpcError, Options, Readiness, Relay, SettingsService};
use fonn_auth::Authenticator;
use fonn_base::events::Events;
use fonn_disk_tier::Durability;
use fonn_gateway::ToolsReport;
use fonn_proto::grpc::DESCRIPTORS;
use fonn_proto::grpc::v1::admin_server::AdminServer;
use fonn_proto::grpc::v1::cold_server::ColdServer;
use fonn_proto::grpc::v1::membership_server::MembershipServer;
use fonn_proto::grpc::v1::settings_server::SettingsServer;
use fonn_proto::grpc::v1::tools_server::ToolsServer;
use fonn_proto::grpc::v1::users_server::UsersServer;
use tokio::sync::Semaphore;
use tonic::Status;
use tonic::service::{AxumRouter, Routes};

use self::cold::ColdAdmin;
use self::telemetry::Telemetry;
use crate::server::Shared;
use fonn_membership::Cluster;

/// Longest request: a key of 32 KiB and a little.
const REQUEST_MAX_BYTES: usize = 64 << 10;

/// The only namespace there is without users.
const DEFAULT_NAMESPACE: &str = "default";

/// What the services know; clones are the same.
#[derive(Clone)]
pub struct Admin(Arc<State>);

struct State {
    started: Instant,
    readiness: Readiness,
    events: Events,
    telemetry: Telemetry,
    users: Option<Arc<Authenticator>>,
    of_process: OfProcess,
    node: OnceLock<Node>,
    // Here, since the services are mounted twice: for the admin port and for other members.
    warming: Arc<Semaphore>,
    cold_work: Arc<Semaphore>,
}

/// Services that node and router have alike.
pub struct OfProcess {
    /// The settings in force.
    pub settings: SettingsServer<SettingsService>,
    /// What build tools get out of the cache.
    pub tools: ToolsServer<ToolsReport>,
}

/// A node whose store is open.
pub struct Node {
    /// Engine and connections.
    pub shared: Arc<Shared>,
    /// Where clients connect.
    pub listeners: Vec<String>,
    /// When a write is acknowledged.
    pub durability: Durability,
    /// The data directory, if there is one.
    pub data_dir: Option<PathBuf>,
    /// The cold tier, if there is one.
    pub cold: Option<ColdAdmin>,
    /// The cluster that it is in, if it is meant to be in one.
    pub cluster: Option<Cluster>,
}

impl Admin {
    /// The services of a node that is starting. What they do is recorded in `events`. With `users`,
    /// those that the port asks for too, every caller has a namespace.
    #[must_use]
    pub fn new(
        readiness: Readiness,
        events: Events,
        telemetry: Telemetry,
        users: Option<Arc<Authenticator>>,
        of_process: OfProcess,
    ) -> Self {
        Self(Arc::new(State {
            started: Instant::now(),
            readiness,
            events,
            telemetry,
            users,
            of_process,
            node: OnceLock::new(),
            warming: Arc::new(Semaphore::new(1)),
            cold_work: Arc::new(Semaphore::new(cold::WORK_MAX)),
        }))
    }

    /// Lets the services answer for a node. Only the first call counts.
    pub fn open(&self, node: Node) {
        let _ = self.0.node.set(node);
    }

    /// The services, for the admin port, which sends on what is for other members.
    ///
    /// # Errors
    /// If the generated descriptors do not decode.
    pub fn grpc(&self) -> Result<Grpc, GrpcError> {
        self.services(relay::ToMembers(self.clone()))
            .with_standard(self.0.readiness.clone(), &[DESCRIPTORS])
    }

    /// The services of this member, for the port on which others send on what they were asked: with
    /// the limits of an admin port of its own.
    #[must_use]
    pub fn at_member(&self) -> Routes {
        let grpc = self.services(relay::OnlyHere(self.clone()));
        let bounded = grpc.bounded(&Options::default(), self.0.users.clone());
        let router: AxumRouter = AxumRouter::new().fallback_service(bounded);
        router.into()
    }

    /// What answers for a member, whichever member is asked.
    fn services(&self, relay: impl Relay) -> Grpc {
        let admin = AdminServer::new(service::AdminService::new(self.clone()));
        let cold = ColdServer::new(cold::ColdService::new(self.clone()));
        let telemetry = self.0.telemetry.server();
        let membership = MembershipServer::new(membership::MembershipService(self.clone()));
        let settings = self.0.of_process.settings.clone();
        let tools = self.0.of_process.tools.clone();
        let users = UsersServer::new(users::UsersService(self.clone()));
        let grpc = Grpc::new()
            .with(admin.max_decoding_message_size(REQUEST_MAX_BYTES))
            .with(cold.max_decoding_message_size(REQUEST_MAX_BYTES))
            .with(membership.max_decoding_message_size(REQUEST_MAX_BYTES))
            .with(settings.max_decoding_message_size(REQUEST_MAX_BYTES))
            .with(users.max_decoding_message_size(REQUEST_MAX_BYTES))
            .with(tools.max_decoding_message_size(REQUEST_MAX_BYTES))
            .with(telemetry.max_decoding_message_size(REQUEST_MAX_BYTES))
            .with_roles(fonn_auth::ROLES);
        let all: Vec<&'static str> = grpc.services().collect();
        grpc.with_relay(Arc::new(relay), &all)
    }

    fn node(&self) -> Result<&Node, Status> {
        let node = self.0.node.get();
        node.ok_or_else(|| Status::unavailable("the node is still opening its store; try again"))
    }
}
