//! Which routers there are, and what a Redis Cluster client is told of them: this router and the
//! others as the owners of all slots, divided. Each of them serves any slot, so a client that goes
//! by what was before is served as well.

use std::net::SocketAddr;
use std::sync::Arc;

use fonn_proto::ClusterView;
use fonn_proto::cluster::{is_loopback, is_router_address, router_name};
use parking_lot::Mutex;

/// This router among all that members know of.
#[derive(Debug, Default)]
pub struct Routers {
    /// Where clients reach it, as others may tell them; none if that is not known.
    own: Option<String>,
    /// The operator set it: it is told to clients also where there are no others.
    is_advertised: bool,
    /// What clients are told; none while it is alone.
    view: Mutex<Option<Arc<ClusterView>>>,
}

impl Routers {
    /// The router that clients reach at `advertised`, else at the first of its listeners `names`
    /// (HOST:PORT as they were bound) that is not for this machine alone, or at the first one if
    /// all are; at none that others cannot be told of, where it listens on all addresses.
    #[must_use]
    pub fn new(advertised: Option<&str>, names: &[String]) -> Arc<Self> {
        let tcp = || names.iter().filter(|name| !name.starts_with("unix:"));
        let others = tcp().find(|name| !is_loopback(name));
        let listens = others.or_else(|| tcp().next()).map(String::as_str);
        let own = advertised.or(listens).filter(|it| is_router_address(it));
        Arc::new(Self {
            own: own.map(str::to_owned),
            is_advertised: advertised.is_some(),
            view: Mutex::default(),
        })
    }

    /// HOST:PORT at which clients reach it, if that is known.
    #[must_use]
    pub fn own(&self) -> Option<&str> {
        self.own.as_deref()
    }

    /// A member said which routers there are, with the map of `epoch`.
    pub fn told(&self, epoch: u64, all: &[String]) {
        let view = self.own().and_then(|own| {
            // A router that members do not announce is not among them: clients do not come back
            // from there.
            let is_known = all.iter().any(|it| it == own);
            let is_alone = all.len() < 2 && !self.is_advertised;
            let others = all.iter().map(String::as_str);
            let view = (is_known && !is_alone).then(|| ClusterView::of_routers(epoch, own, others));
            view.flatten().map(Arc::new)
        });
        let count = view.as_ref().map_or(1, |it| it.members().len());
        let before = std::mem::replace(&mut *self.view.lock(), view);
        let known = before.map_or(1, |it| it.members().len());
        if count != known {
            tracing::info!(routers = count, "slots are divided between routers anew");
        }
    }

    /// No member says any more which others there are.
    pub fn forget(&self) {
        self.told(1, &[]);
    }

    /// The number of routers that divide the slots, with this router.
    #[must_use]
    pub fn count(&self) -> usize {
        let view = self.view.lock();
        view.as_ref().map_or(1, |it| it.members().len())
    }

    /// The owners of slots, for a client that reached the router at `local`. A router that is alone
    /// is told at that address.
    #[must_use]
    pub fn view(&self, local: Option<SocketAddr>) -> Arc<ClusterView> {
        if let Some(view) = &*self.view.lock() {
            return Arc::clone(view);
        }
        Arc::new(match (self.own(), local) {
            (Some(own), _) => ClusterView::alone(&router_name(own), local),
            (None, Some(local)) => {
                ClusterView::alone(&router_name(&local.to_string()), Some(local))
            }
            (None, None) => ClusterView::alone("router", None),
        })
    }
}

#[cfg(test)]
mod tests {
    use fonn_proto::cluster::NodeId;
    use fonn_proto::placement::SLOT_COUNT;

    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|it| (*it).to_owned()).collect()
    }

    #[test]
    fn a_router_is_reached_at_what_others_see_of_it() {
        for (listens, own) in [
            (&["10.0.0.1:1", "10.0.0.2:1"][..], Some("10.0.0.1:1")),
            (&["127.0.0.1:1", "10.0.0.2:1"], Some("10.0.0.2:1")),
            (&["unix:/x", "127.0.0.1:1"], Some("127.0.0.1:1")),
            (&["127.0.0.1:1", "0.0.0.0:1"], None),
            (&["[::]:1"], None),
            (&["unix:/x"], None),
        ] {
            let listens = names(listens);
            assert_eq!(Routers::new(None, &listens).own(), own, "{listens:?}");
            let advertised = Routers::new(Some("r.example:2"), &listens);
            assert_eq!(advertised.own(), Some("r.example:2"));
        }
    }

    #[test]
    fn slots_are_divided_with_those_that_members_tell_and_a_lone_router_has_all() {
        let router = Routers::new(None, &names(&["10.0.0.2:1"]));
        let local = "10.9.9.9:7".parse().ok();
        let alone = router.view(local);
        assert_eq!(
            (alone.members()[0].host.as_str(), alone.me()),
            ("10.9.9.9", 0)
        );
        let own_id = alone.members()[0].id;
        assert_eq!(own_id, NodeId::of_name("router 10.0.0.2:1"));

        router.told(7, &names(&["10.0.0.1:1", "10.0.0.2:1"]));
        let divided = router.view(local);
        assert_eq!(
            (divided.members().len(), divided.me(), divided.epoch()),
            (2, 1, 7)
        );
        assert_eq!(divided.members()[1].id, own_id);
        assert_eq!(divided.members()[1].host, "10.0.0.2");
        let primary = |slot| divided.owners(slot).map(|it| it.positions()[0]);
        assert_eq!((primary(0), primary(SLOT_COUNT - 1)), (Some(0), Some(1)));
        // It is made once.
        assert!(Arc::ptr_eq(&divided, &router.view(None)));
        assert_eq!(router.count(), 2);

        // Members that do not tell others of it have their reasons.
        router.told(7, &names(&["10.0.0.1:1"]));
        assert_eq!(router.view(local), alone);
        router.told(7, &names(&["10.0.0.1:1", "10.0.0.2:1"]));
        router.forget();
        assert_eq!(router.view(local), alone);
        router.told(7, &names(&["10.0.0.2:1"]));
        assert_eq!(router.view(local), alone);
        assert_eq!(router.count(), 1);
    }

    #[test]
    fn what_was_advertised_is_told_of_a_lone_router_too() {
        let router = Routers::new(Some("r.example:2"), &names(&["0.0.0.0:1"]));
        router.told(7, &names(&["r.example:2"]));
        let view = router.view("10.9.9.9:7".parse().ok());
        assert_eq!(
            (view.members()[0].host.as_str(), view.members()[0].port),
            ("r.example", 2)
        );
    }

    #[test]
    fn without_an_address_of_its_own_a_router_is_alone_at_the_one_that_was_reached() {
        let router = Routers::new(None, &names(&["0.0.0.0:1"]));
        router.told(7, &names(&["10.0.0.1:1", "10.0.0.2:1"]));
        let view = router.view("10.9.9.9:7".parse().ok());
        assert_eq!(view.members().len(), 1);
        assert_eq!(view.members()[0].id, NodeId::of_name("router 10.9.9.9:7"));
    }
}
