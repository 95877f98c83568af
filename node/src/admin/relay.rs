//! Calls for other members: sent on to their cluster ports, where the same services answer.

use std::sync::Arc;

use fonn_admin::{GrpcError, Options, Relay, Relayed, SettingsService, ask};
use fonn_gateway::ToolsReport;
use fonn_proto::grpc::v1::admin_server::AdminServer;
use fonn_proto::grpc::v1::cold_server::ColdServer;
use fonn_proto::grpc::v1::membership_server::MembershipServer;
use fonn_proto::grpc::v1::settings_server::SettingsServer;
use fonn_proto::grpc::v1::telemetry_server::TelemetryServer;
use fonn_proto::grpc::v1::tools_server::ToolsServer;
use fonn_proto::grpc::v1::users_server::UsersServer;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::Request;
use tonic::server::NamedService;
use tonic::service::Routes;

use super::Admin;
use super::cold::ColdService;
use super::membership::MembershipService;
use super::service::AdminService;
use super::telemetry::TelemetryService;
use super::users::UsersService;
use fonn_membership::Cluster;

/// The services that answer for a member, whichever member is asked.
pub(super) const SERVICES: [&str; 7] = [
    AdminServer::<AdminService>::NAME,
    ColdServer::<ColdService>::NAME,
    MembershipServer::<MembershipService>::NAME,
    SettingsServer::<SettingsService>::NAME,
    TelemetryServer::<TelemetryService>::NAME,
    ToolsServer::<ToolsReport>::NAME,
    UsersServer::<UsersService>::NAME,
];

/// The services for the port of members: what is asked there is asked of this member, with the
/// limits of an admin port of its own.
pub(super) fn at_member(admin: &Admin) -> Result<Routes, GrpcError> {
    let only_here = Arc::new(OnlyHere(admin.clone()));
    let grpc = admin.services()?.with_relay(only_here, &SERVICES);
    let bounded = grpc.bounded(&Options::default(), admin.0.users.clone());
    Ok(Routes::default()
        .add_service(bounded.service::<AdminServer<AdminService>>())
        .add_service(bounded.service::<ColdServer<ColdService>>())
        .add_service(bounded.service::<MembershipServer<MembershipService>>())
        .add_service(bounded.service::<SettingsServer<SettingsService>>())
        .add_service(bounded.service::<TelemetryServer<TelemetryService>>())
        .add_service(bounded.service::<ToolsServer<ToolsReport>>())
        .add_service(bounded.service::<UsersServer<UsersService>>()))
}

fn own_name(admin: &Admin) -> Option<String> {
    let cluster = admin.0.node.get()?.cluster.as_ref()?;
    Some(cluster.node_id().to_owned())
}

/// The way from one member to the others.
pub(super) struct ToMembers(pub Admin);

impl ToMembers {
    fn cluster(&self) -> Result<&Cluster, Status> {
        let cluster = self.0.node()?.cluster.as_ref();
        cluster.ok_or_else(|| Status::failed_precondition("this node is in no cluster"))
    }
}

impl Relay for ToMembers {
    fn own_name(&self) -> Option<String> {
        own_name(&self.0)
    }

    fn relay(&self, member: Option<String>, call: Request<Body>) -> Relayed {
        let way = self.cluster().and_then(|cluster| {
            let member = member.unwrap_or_else(|| cluster.node_id().to_owned());
            let address = cluster.address_of(&member)?;
            Ok(((member, address), cluster.tls()))
        });
        Box::pin(async move {
            let (place, tls) = way?;
            ask(vec![place], tls.as_ref(), call).await
        })
    }
}

/// No way: a call that came from a member is answered or refused.
struct OnlyHere(Admin);

impl Relay for OnlyHere {
    fn own_name(&self) -> Option<String> {
        own_name(&self.0)
    }

    fn relay(&self, member: Option<String>, _: Request<Body>) -> Relayed {
        let asked = member.unwrap_or_default();
        let status = match own_name(&self.0) {
            Some(own) => Status::not_found(format!("this is `{own}`, and not `{asked}`")),
            None => Status::unavailable("the node is still opening its store; try again"),
        };
        Box::pin(std::future::ready(Err(status)))
    }
}
