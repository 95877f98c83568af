//! Layouts, stand-ins and the statuses of members: the part of the state that replication follows.

use fonn_replication::{Change as SlotChange, Epoch, Status, Topology};

use super::{Change, Effect, State};
use crate::member::{Member, Phase};
use crate::placing::{Place, Placing};

impl State {
    /// What replication follows of the state.
    #[must_use]
    pub fn topology(&self) -> Topology {
        let down = fonn_replication::Member::new(Status::Down, Epoch(0));
        let last = self.members.values().map(|member| member.number).max();
        let mut members = vec![down; last.map_or(0, |last| usize::from(last) + 1)];
        for member in self.members.values() {
            if let Some(place) = members.get_mut(usize::from(member.number)) {
                *place = member.sync;
            }
        }
        Topology {
            epoch: Epoch(self.epoch),
            members,
            layout: self.placing.layout(),
            next_layout: self.next.as_ref().map(Placing::layout),
            proposed: self.proposed,
            stand_ins: self.stand_ins.clone(),
        }
    }

    /// Changes what replication follows.
    pub(super) fn change_slots(&mut self, change: &SlotChange) -> Effect {
        match self.topology().after(change) {
            Some(topology) => {
                if topology.next_layout.is_none()
                    && let Some(next) = self.next.take()
                    && *change == SlotChange::ReplaceLayout
                {
                    self.placing = next;
                }
                self.follow(topology);
                Effect::Map
            }
            None => Effect::Unseen,
        }
    }

    /// Has other members stand in where the last owner of a slot is gone.
    pub(super) fn choose_stand_ins(&mut self) -> Effect {
        let topology = self.topology().with_stand_ins(Epoch(self.epoch + 1));
        self.follow(topology);
        Effect::Map
    }

    /// Takes over what a change of the topology made of the members and stand-ins. The epoch and
    /// its versions follow with the effect.
    fn follow(&mut self, topology: Topology) {
        for member in self.members.values_mut() {
            let of = topology.members.get(usize::from(member.number));
            if let Some(of) = of {
                member.sync = *of;
                member.is_missed &= member.is_down();
            }
        }
        self.proposed = topology.proposed;
        self.stand_ins = topology.stand_ins;
    }

    /// The layout that there should be: on the active members with a weight that are not missed.
    /// None while there is none.
    #[must_use]
    pub fn wanted(&self) -> Option<Placing> {
        let is_placed =
            |it: &&Member| it.phase == Phase::Active && it.info.weight > 0 && !it.is_missed;
        let places: Vec<Place> = self
            .members
            .values()
            .filter(is_placed)
            .map(|member| Place {
                number: member.number,
                id: member.info.id.clone(),
                zone: member.info.zone.clone(),
                weight: member.info.weight,
            })
            .collect();
        let replicas = self
            .replicas
            .min(u8::try_from(places.len()).unwrap_or(u8::MAX));
        (!places.is_empty()).then(|| Placing::new(replicas, places))
    }

    /// Whether another layout than the one in force is proposed or due, or a member is leaving.
    #[must_use]
    pub fn is_moving(&self) -> bool {
        let wanted = self.wanted();
        self.next.is_some()
            || wanted.is_some_and(|wanted| wanted != self.placing)
            || self.members.values().any(Member::is_leaving)
    }

    /// What the leader has to propose about layouts, if anything.
    #[must_use]
    pub fn next_layout_change(&self) -> Option<Change> {
        let wanted = self.wanted()?;
        let known = self.next.as_ref().unwrap_or(&self.placing);
        if wanted != *known {
            return Some(Change::ProposeLayout);
        }
        let is_ready = self.next.is_some() && self.topology().next_layout_is_ready();
        is_ready.then_some(Change::ReplaceLayout)
    }

    pub(super) fn propose_layout(&mut self) -> Effect {
        let Some(wanted) = self.wanted() else {
            return Effect::Unseen;
        };
        if wanted == self.placing {
            return match self.next {
                Some(_) => self.change_slots(&SlotChange::CancelLayout),
                None => Effect::Unseen,
            };
        }
        if self.next.as_ref() == Some(&wanted) {
            return Effect::Unseen;
        }
        let effect = self.change_slots(&SlotChange::ProposeLayout(wanted.layout()));
        self.next = Some(wanted);
        effect
    }
}
