//! The admin port of a router: the page of the cluster, and the services of its members, to which
//! it forwards every call.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fonn_admin::{
    Grpc, GrpcError, ROUTER, Readiness, Relay, Relayed, Routes, SettingsService, ask, dashboard,
};
use fonn_auth::tls::Tls;
use fonn_auth::{ROLES, Security};
use fonn_base::clock::Clock;
use fonn_base::config::InForce;
use fonn_base::metrics::Metrics;
use fonn_forward::Map;
use fonn_gateway::ToolsReport;
use fonn_proto::grpc::v1::router_server::{self, RouterServer};
use fonn_proto::grpc::{DESCRIPTORS, v1};
use fonn_proto::member::{Member, MemberState};
use tonic::body::Body;
use tonic::codegen::http::Request;
use tonic::codegen::http::header::{AUTHORIZATION, HeaderValue};
use tonic::{Code, Status};

use crate::follow::Follower;

/// What members answer for a router. Of its settings and the tools at its own port
/// it answers itself, unless a member is named.
const SERVICES: [&str; 7] = [
    "fonn.v1.Admin",
    "fonn.v1.Cold",
    "fonn.v1.Membership",
    "fonn.v1.Settings",
    "fonn.v1.Telemetry",
    "fonn.v1.Tools",
    "fonn.v1.Users",
];

/// `fonn.v1.Router`: what this router says of itself.
#[derive(Clone, Debug)]
struct StatusService {
    follower: Arc<Follower>,
    version: String,
    clock: Clock,
}

#[tonic::async_trait]
impl router_server::Router for StatusService {
    async fn status(
        &self,
        _: tonic::Request<v1::RouterStatusRequest>,
    ) -> Result<tonic::Response<v1::RouterStatusResponse>, Status> {
        let freshness = self.follower.freshness();
        let map = self.follower.map();
        let applied_at = map.applied_at();
        let since_epoch = applied_at.and_then(|it| it.duration_since(SystemTime::UNIX_EPOCH).ok());
        let ms = |it: Duration| u64::try_from(it.as_millis()).unwrap_or(u64::MAX);
        Ok(tonic::Response::new(v1::RouterStatusResponse {
            version: self.version.clone(),
            epoch: map.epoch(),
            applied_at_ms: since_epoch.map_or(0, ms),
            behind_ms: ms(freshness.behind),
            followed: freshness.followed,
            now_ms: self.clock.wall_ms(),
        }))
    }
}

/// What the port has.
///
/// # Errors
/// If the generated descriptors do not decode.
pub fn routes(
    metrics: Metrics,
    readiness: Readiness,
    map: Arc<Map>,
    follower: Arc<Follower>,
    security: &Security,
    settings: InForce,
    tools: &ToolsReport,
) -> Result<Routes, GrpcError> {
    let tls = security.members_tls();
    let to_members = ToMembers {
        map,
        follower: Arc::clone(&follower),
        withholds_logins: security.tls.is_some() && tls.is_none(),
        tls,
    };
    let status = StatusService {
        follower,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        clock: Clock::system(),
    };
    let grpc = Grpc::new()
        .with(RouterServer::new(status))
        .with(SettingsService::server(settings, Clock::system()))
        .with(tools.server())
        .with_roles(ROLES)
        .with_relay(Arc::new(to_members), &SERVICES)
        .with_standard(readiness.clone(), &[DESCRIPTORS])?;
    Ok(Routes::new()
        .with_standard(metrics, readiness)
        .with_grpc(grpc)
        .with_fallback(dashboard))
}

/// The answer to calls before any member was heard.
const NO_MAP: &str = "no member has told this router the map yet: see its log, and whether \
--cluster names the --cluster-listen of members";

/// The way to the cluster ports of the members in the map.
struct ToMembers {
    map: Arc<Map>,
    follower: Arc<Follower>,
    tls: Option<Arc<Tls>>,
    /// Clients come under TLS, and there is none to members: passwords stay here.
    withholds_logins: bool,
}

/// A member that may be asked: its name, and the address of its cluster port.
type Place = (String, String);

impl ToMembers {
    /// The member of that name; without one all that answer by the map. Those that the router
    /// hears come first: a silent member may accept a connection, and answer nothing.
    fn places(&self, member: Option<&str>, heard: &[String]) -> Result<Vec<Place>, Status> {
        let topology = self.map.topology();
        let topology = topology.ok_or_else(|| Status::unavailable(NO_MAP))?;
        let members = topology.members().iter();
        let is_asked = |it: &&Member| match member {
            Some(member) => it.id == member,
            None => it.state != MemberState::Down,
        };
        let mut places: Vec<Place> = members
            .clone()
            .filter(is_asked)
            .map(|it| (it.id.clone(), it.cluster_address.clone()))
            .collect();
        places.sort_by_key(|(_, address)| !heard.contains(address));
        if !places.is_empty() {
            return Ok(places);
        }
        Err(match member {
            Some(member) => {
                let names: Vec<&str> = members.map(|it| it.id.as_str()).collect();
                let names = names.join(", ");
                Status::not_found(format!("there is no member `{member}`; there are: {names}"))
            }
            None => Status::unavailable("by the map every member is down"),
        })
    }
}

impl Relay for ToMembers {
    fn own_name(&self) -> Option<String> {
        None
    }

    fn relay(&self, member: Option<String>, mut call: Request<Body>) -> Relayed {
        let heard = self.follower.freshness().followed;
        let places = self.places(member.as_deref(), &heard);
        let tls = self.tls.clone();
        let is_withheld =
            self.withholds_logins && call.headers_mut().remove(AUTHORIZATION).is_some();
        Box::pin(async move {
            let mut answer = ask(places?, tls.as_ref(), call).await?;
            let is_asked_for = |status: Status| status.code() == Code::Unauthenticated;
            if is_withheld && Status::from_header_map(answer.headers()).is_some_and(is_asked_for) {
                return Err(Status::failed_precondition(
                    "members want a login, and this router sends no password over connections without TLS: start \
                     members and routers with --tls-client-ca FILE",
                ));
            }
            let marked = HeaderValue::from_static("1");
            answer.headers_mut().insert(ROUTER, marked);
            Ok(answer)
        })
    }
}

#[cfg(test)]
mod tests {
    use fonn_proto::placement::{Owners, SLOT_COUNT, rows};

    use super::*;
    use crate::follow::topology;

    #[test]
    fn members_that_the_router_hears_are_asked_first() {
        let member = |id: &str, state: v1::MemberState| v1::ClusterMember {
            id: id.to_owned(),
            client_address: format!("{id}:1"),
            cluster_address: format!("{id}:2"),
            share: 100,
            weight: 100,
            state: state.into(),
            ..v1::ClusterMember::default()
        };
        let told = v1::ClusterMap {
            cluster: 7,
            epoch: 1,
            replicas: 1,
            owners: rows::encode((0..SLOT_COUNT).map(|_| Owners::new(&[0]))),
            users: None,
            members: vec![
                member("a", v1::MemberState::Active),
                member("b", v1::MemberState::Active),
                member("c", v1::MemberState::Active),
                member("d", v1::MemberState::Down),
            ],
        };
        let map = Arc::new(Map::default());
        assert!(map.offer(topology(&told).unwrap()));
        let to_members = ToMembers {
            follower: Follower::new(Arc::clone(&map), Vec::new(), None, None),
            map,
            tls: None,
            withholds_logins: false,
        };
        let heard = ["c:2".to_owned(), "d:2".to_owned()];
        let names = |member, heard: &[String]| {
            let places = to_members.places(member, heard).unwrap();
            places.into_iter().map(|(name, _)| name).collect::<Vec<_>>()
        };
        assert_eq!(names(None, &heard), ["c", "a", "b"]);
        assert_eq!(names(None, &[]), ["a", "b", "c"]);
        assert_eq!(names(Some("b"), &heard), ["b"]);
    }
}
