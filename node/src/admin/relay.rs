//! Calls for other members: sent on to their cluster ports, where the same services answer.

use fonn_admin::{Relay, Relayed, ask};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::Request;

use super::Admin;
use fonn_membership::Cluster;

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
pub(super) struct OnlyHere(pub Admin);

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
