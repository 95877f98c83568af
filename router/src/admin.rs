//! The admin port of a router: the page of the cluster, and the services of its members, who are asked for
//! everything.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fonn_proto::grpc::DESCRIPTORS;
use fonn_runtime::http::{
    self, Channel, Grpc, GrpcError, Readiness, Relay, Relayed, Routes, send_on,
};
use fonn_runtime::metrics::Metrics;
use fonn_runtime::route::{Map, MemberState};
use fonn_runtime::tls::Tls;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::Request;

/// Until a connection to a member stands.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// What members answer for a router.
const SERVICES: [&str; 5] = [
    "fonn.v1.Admin",
    "fonn.v1.Cold",
    "fonn.v1.Membership",
    "fonn.v1.Telemetry",
    "fonn.v1.Users",
];

/// What the port has.
///
/// # Errors
/// If the generated descriptors do not decode.
pub fn routes(
    metrics: Metrics,
    readiness: Readiness,
    map: Arc<Map>,
    tls: Option<Arc<Tls>>,
) -> Result<Routes, GrpcError> {
    let grpc = Grpc::new()
        .with_relay(Arc::new(ToMembers { map, tls }), &SERVICES)
        .with_standard(readiness.clone(), &[DESCRIPTORS])?;
    Ok(Routes::new()
        .with_standard(metrics, readiness)
        .with_grpc(grpc)
        .with_fallback(page))
}

/// The dashboard.
fn page(request: &http::Request) -> Option<http::Response> {
    let asset = fonn_dashboard::serve(request.uri().path(), request.uri().query())?;
    Some(http::Response {
        etag: Some(asset.etag.to_owned()),
        immutable: asset.immutable,
        content_security_policy: Some(fonn_dashboard::CONTENT_SECURITY_POLICY),
        ..http::Response::ok(asset.content_type, asset.bytes)
    })
}

/// The way to the cluster ports of the members in the map.
struct ToMembers {
    map: Arc<Map>,
    tls: Option<Arc<Tls>>,
}

impl fmt::Debug for ToMembers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToMembers").finish_non_exhaustive()
    }
}

/// A member that may be asked: its name, and the address of its cluster port.
type Place = (String, String);

impl ToMembers {
    /// The member of that name; without one all that answer by the map.
    fn places(&self, member: Option<&str>) -> Result<Vec<Place>, Status> {
        let topology = self.map.topology();
        let topology = topology
            .ok_or_else(|| Status::unavailable("no member has told this router the map yet"))?;
        let members = topology.members().iter();
        let is_asked = |it: &&fonn_runtime::route::Member| match member {
            Some(member) => it.id == member,
            None => it.state != MemberState::Down,
        };
        let places: Vec<Place> = members
            .clone()
            .filter(is_asked)
            .map(|it| (it.id.clone(), it.cluster_address.clone()))
            .collect();
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

/// A connection to the first of these that accepts one.
async fn connect(places: Vec<Place>, tls: Option<Arc<Tls>>) -> Result<(Channel, String), Status> {
    let mut why = Status::unavailable("there is no member");
    for (name, address) in places {
        let config = tls.as_deref().and_then(Tls::client);
        match Channel::connect_by(&address, config, CONNECT_TIMEOUT).await {
            Ok(channel) => return Ok((channel, name)),
            Err(error) => {
                why =
                    Status::unavailable(format!("`{name}` at {address} does not answer: {error}"));
            }
        }
    }
    Err(why)
}

impl Relay for ToMembers {
    fn own_name(&self) -> Option<String> {
        None
    }

    fn relay(&self, member: Option<String>, call: Request<Body>) -> Relayed {
        let places = self.places(member.as_deref());
        let tls = self.tls.clone();
        Box::pin(async move {
            let (channel, name) = connect(places?, tls).await?;
            send_on(channel, call, &name).await
        })
    }
}
