//! What a Redis Cluster client is told: that the router owns all slots. The router finds the owners
//! of any slot itself, so it redirects no client.

use std::net::SocketAddr;
use std::sync::Arc;

use fonn_proto::ClusterView;
use fonn_proto::cluster::router_name;

/// Where clients reach the router.
#[derive(Clone, Debug, Default)]
pub struct Address(Option<Arc<ClusterView>>);

impl Address {
    /// At HOST:PORT `advertised`. Without it, at the address that a client used.
    #[must_use]
    pub fn new(advertised: Option<&str>) -> Self {
        Self(advertised.and_then(ClusterView::of_router).map(Arc::new))
    }

    /// The owner of all slots, for a client that reached the router at `local`.
    #[must_use]
    pub fn view(&self, local: Option<SocketAddr>) -> Arc<ClusterView> {
        let reached = || match local {
            Some(local) => ClusterView::alone(&router_name(&local.to_string()), Some(local)),
            None => ClusterView::alone("router", None),
        };
        let advertised = self.0.as_ref().map(Arc::clone);
        advertised.unwrap_or_else(|| Arc::new(reached()))
    }
}

#[cfg(test)]
mod tests {
    use fonn_proto::cluster::NodeId;

    use super::*;

    #[test]
    fn a_router_is_told_at_what_it_advertises_or_at_what_the_client_used() {
        let local = "10.9.9.9:7".parse().ok();
        for (advertised, host, id) in [
            (None, "10.9.9.9", "router 10.9.9.9:7"),
            (Some("r.example:2"), "r.example", "router r.example:2"),
        ] {
            let view = Address::new(advertised).view(local);
            assert_eq!(view.members().len(), 1);
            assert_eq!(view.members()[0].host, host);
            assert_eq!(view.members()[0].id, NodeId::of_name(id));
        }
        // Over a Unix socket.
        assert_eq!(Address::default().view(None).members()[0].port, 0);
    }
}
