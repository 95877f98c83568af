//! The map as clients are told it that find owners by themselves (`CLUSTER SLOTS` and its kin).

use std::sync::Arc;

use fonn_proto::cluster::{self, ClusterMember, Health, NodeId, SlotRange};
use fonn_proto::member::{Member, host_and_port};
use fonn_proto::placement::Owners;
use fonn_proto::{ClusterView, resp};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::Cluster;
use super::map::Map;

/// The view of one member, made once for each map.
#[derive(Debug)]
pub struct Views {
    maps: watch::Receiver<Arc<Map>>,
    own: Own,
    last: Mutex<Arc<ClusterView>>,
}

/// The member that tells the view.
#[derive(Clone, Debug)]
struct Own {
    name: String,
    /// Host and port for clients, for as long as the map does not have it.
    client_address: String,
}

impl Views {
    /// The views of this member of a cluster.
    #[must_use]
    pub fn new(cluster: &Cluster) -> Self {
        Self::of(cluster.map(), cluster.node_id(), cluster.client_address())
    }

    /// As [`Views::new`], of the member of that name.
    #[must_use]
    pub fn of(maps: watch::Receiver<Arc<Map>>, name: &str, client_address: &str) -> Self {
        let own = Own {
            name: name.to_owned(),
            client_address: client_address.to_owned(),
        };
        let first = view(&maps.borrow(), &own);
        Self {
            maps,
            own,
            last: Mutex::new(Arc::new(first)),
        }
    }

    /// The last view that was made.
    #[must_use]
    pub fn current(&self) -> Arc<ClusterView> {
        Arc::clone(&self.last.lock())
    }

    /// Makes the view by the newest map, with what was asked of the one before, so that no reactor
    /// has to. Milliseconds.
    fn update(&self) {
        let map = Arc::clone(&self.maps.borrow());
        let new = Arc::new(view(&map, &self.own));
        resp::word_as(&new, &self.current());
        *self.last.lock() = new;
    }
}

/// Makes the views of each new map, for as long as there are any.
pub async fn follow(views: Arc<Views>) {
    let mut maps = views.maps.clone();
    while maps.changed().await.is_ok() {
        let views = Arc::clone(&views);
        let updated = tokio::task::spawn_blocking(move || views.update());
        if updated.await.is_err() {
            return;
        }
    }
}

/// The owners of slots by `map`: members that are up, and in any case the reporting one.
fn view(map: &Map, own: &Own) -> ClusterView {
    let mut members = Vec::new();
    let mut me = None;
    // Where each member of the map is in the view.
    let places: Vec<Option<u16>> = map
        .members
        .iter()
        .map(|member| {
            let is_own = member.id == own.name;
            let shown = shown(member, is_own)?;
            let place = u16::try_from(members.len()).ok()?;
            if is_own {
                me = Some(place);
            }
            members.push(shown);
            Some(place)
        })
        .collect();
    let me = me.or_else(|| {
        members.push(member(&own.name, &own.client_address, Health::Loading));
        u16::try_from(members.len() - 1).ok()
    });
    let owners = |slot| {
        let owners = map.owners.get(usize::from(slot))?.as_ref()?;
        let serving = owners
            .positions()
            .iter()
            .filter(|position| {
                let member = map.members.get(usize::from(**position));
                member.is_some_and(|it| it.state.is_serving())
            })
            .filter_map(|position| places.get(usize::from(*position)).copied().flatten());
        let (mut ranked, mut count) = ([0; Owners::COUNT_MAX], 0);
        for (rank, place) in ranked.iter_mut().zip(serving) {
            *rank = place;
            count += 1;
        }
        Owners::new(ranked.get(..count)?)
    };
    let ranges: Vec<SlotRange> = match map.owners.is_empty() {
        true => Vec::new(),
        false => cluster::ranges(owners),
    };
    let epoch = map.epoch;
    let view = ClusterView::new(epoch, me.unwrap_or(0), members, ranges);
    // All positions are of members above, and there are fewer than fit.
    view.unwrap_or_else(|| ClusterView::alone(&own.name, None))
}

/// A member of the map, if clients may be sent to it or are there already.
fn shown(of_map: &Member, is_own: bool) -> Option<ClusterMember> {
    let health = match of_map.state.is_serving() {
        true => Health::Online,
        false if is_own => Health::Loading,
        false => return None,
    };
    Some(member(&of_map.id, &of_map.client_address, health))
}

fn member(name: &str, client_address: &str, health: Health) -> ClusterMember {
    let (host, port) = host_and_port(client_address).unwrap_or_default();
    ClusterMember {
        id: NodeId::of_name(name),
        host: host.to_owned(),
        port,
        health,
    }
}

#[cfg(test)]
mod tests {
    use fonn_proto::member::MemberState;
    use fonn_proto::placement::SLOT_COUNT;

    use super::*;
    use crate::testing as maps;

    fn map(states: &[(&str, MemberState, u16)], replicas: u8) -> Map {
        let members = states.iter().zip(7001..).map(|((id, state, share), port)| {
            maps::member(id, &format!("10.0.0.1:{port}"), *state, *share)
        });
        maps::map(5, replicas, members.collect())
    }

    fn own(name: &str) -> Own {
        Own {
            name: name.to_owned(),
            client_address: "[::1]:9".to_owned(),
        }
    }

    fn ports(view: &ClusterView) -> Vec<u16> {
        view.members().iter().map(|it| it.port).collect()
    }

    #[test]
    fn slots_have_their_real_owners_and_only_members_that_answer_are_shown() {
        use MemberState::{Active, Down, Draining, Joining};
        let states = [
            ("a", Down, 0),
            ("b", Active, 100),
            ("c", Joining, 0),
            ("d", Active, 100),
            ("e", Draining, 0),
        ];
        let map = map(&states, 2);
        let view = view(&map, &own("d"));
        assert_eq!(ports(&view), [7002, 7004, 7005]);
        assert_eq!((view.me(), view.epoch()), (1, 5));
        for slot in 0..SLOT_COUNT {
            let real: Vec<&str> = map.owners(slot).map(|it| it.id.as_str()).collect();
            let told = view.owners(slot).expect("all slots have owners");
            let told: Vec<&str> = told
                .positions()
                .iter()
                .map(|it| ["b", "d", "e"][usize::from(*it)])
                .collect();
            assert_eq!(told, real, "slot {slot}");
        }
        let counted: u16 = view.ranges().iter().map(SlotRange::len).sum();
        assert_eq!(counted, SLOT_COUNT);
        assert_eq!(view.members()[1].id, NodeId::of_name("d"));
    }

    #[test]
    fn slots_of_members_that_are_down_have_no_owners() {
        use MemberState::{Active, Down};
        // No member was up: the slots stayed where they were.
        let map = map(&[("a", Down, 100), ("b", Active, 100)], 1);
        let view = view(&map, &own("b"));
        assert_eq!(ports(&view), [7002]);
        let of_a = |slot| map.owners(slot).all(|it| it.id == "a");
        for slot in 0..SLOT_COUNT {
            assert_eq!(view.owners(slot).is_none(), of_a(slot), "slot {slot}");
        }
        assert!((0..SLOT_COUNT).any(of_a));
        // Not even where the one that is taken for down tells it.
        let of_itself = super::view(&map, &own("a"));
        assert_eq!(ports(&of_itself), [7001, 7002]);
        assert_eq!(of_itself.ranges().len(), view.ranges().len());
        assert_eq!(of_itself.members()[0].health, Health::Loading);
    }

    #[test]
    fn the_reporting_member_is_shown_before_it_has_entered() {
        let before = view(&Map::default(), &own("x"));
        assert_eq!(before.members()[0].host, "::1");
        assert_eq!(before.members()[0].port, 9);
        assert_eq!(before.members()[0].health, Health::Loading);
        assert!(before.ranges().is_empty());
        let map = map(&[("a", MemberState::Active, 100)], 1);
        let joining = view(&map, &own("x"));
        assert_eq!((ports(&joining), joining.me()), (vec![7001, 9], 1));
        assert_eq!(joining.owners(0).map(|it| it.positions()[0]), Some(0));
    }

    #[tokio::test]
    async fn a_view_is_made_of_each_map_with_the_answers_that_clients_ask_for() {
        let active = |epoch| {
            let map = map(&[("a", MemberState::Active, 100)], 1);
            Arc::new(Map { epoch, ..map })
        };
        let (maps, receiver) = watch::channel(active(5));
        let views = Arc::new(Views::of(receiver, "a", "10.0.0.1:1"));
        let asked = views.current();
        assert!(Arc::ptr_eq(&asked, &views.current()));
        asked.worded(1, || bytes::Bytes::from_static(b"an answer"));
        maps.send_replace(active(7));
        drop(maps);
        follow(Arc::clone(&views)).await;
        let view = views.current();
        assert_eq!(view.epoch(), 7);
        assert!(view.is_worded(1) && !view.is_worded(0));
        assert!(view.worded(1, bytes::Bytes::new).starts_with(b"*1\r\n"));
    }
}
