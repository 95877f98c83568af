//! The connections of one reactor to the members.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fonn_proto::member::Member;
use fonn_proto::peer::hello::cluster_text;
use fonn_rpc::{Client, Options, PeerMetrics};

use super::map::Map;
use super::topology::Topology;

/// How members are asked.
#[derive(Debug)]
pub struct Upstreams {
    /// Tells those of this process apart.
    number: u64,
    map: Arc<Map>,
    /// The member that asks, if it is one: it does not ask itself.
    own: Option<String>,
    /// What is the same for all members; the address is not looked at.
    options: Options,
    metrics: PeerMetrics,
}

/// What a thread knows of one [`Upstreams`].
#[derive(Default)]
struct Local {
    number: u64,
    epoch: u64,
    topology: Option<Arc<Topology>>,
    /// By position in the map, made when they are first needed.
    clients: Vec<Option<Client>>,
}

thread_local! {
    // One, but in tests of several members.
    static LOCALS: RefCell<Vec<Local>> = const { RefCell::new(Vec::new()) };
}

/// A member to ask.
#[derive(Clone, Debug)]
pub struct Target {
    /// Its client.
    pub client: Client,
    /// The epoch of the map that says so.
    pub epoch: u64,
    /// How many owners of the slot serve; 0 if it was not asked for one.
    pub owners: usize,
}

impl Upstreams {
    /// Members of the map, asked as `options` say.
    #[must_use]
    pub fn new(map: Arc<Map>, options: Options, metrics: PeerMetrics) -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self {
            number: LAST.fetch_add(1, Ordering::Relaxed),
            map,
            own: None,
            options,
            metrics,
        }
    }

    /// The other members, for the one of that name.
    #[must_use]
    pub fn of_member(self, name: &str) -> Self {
        Self {
            own: Some(name.to_owned()),
            ..self
        }
    }

    /// The map.
    #[must_use]
    pub fn map(&self) -> &Map {
        &self.map
    }

    /// The member of that name, if it serves.
    #[must_use]
    pub fn member(&self, id: &str) -> Option<Target> {
        self.with(|local| {
            let topology = local.topology.as_deref()?;
            let position = topology.members().iter().position(|it| it.id == id)?;
            if !topology.is_serving(position) {
                return None;
            }
            self.target(local, position)
        })
    }

    /// Whether the first owner of a slot that serves is the one that asks.
    #[must_use]
    pub fn is_own(&self, slot: u16) -> bool {
        let topology = self.map.topology();
        let owner = topology.as_deref().and_then(|it| it.serving(slot));
        owner.is_some_and(|owner| self.own.as_ref() == Some(&owner.id))
    }

    /// The owner of a slot at `rank` among those that serve; None without one, or if it is the one
    /// that asks.
    #[must_use]
    pub fn owner(&self, slot: u16, rank: usize) -> Option<Target> {
        self.with(|local| {
            let topology = local.topology.as_deref()?;
            let positions = topology.positions(slot).iter().map(|it| usize::from(*it));
            let mut serving = positions.filter(|position| topology.is_serving(*position));
            let owners = serving.clone().count();
            let position = serving.nth(rank)?;
            let target = self.target(local, position)?;
            Some(Target { owners, ..target })
        })
    }

    /// All members that may have entries and answer, by position in the map.
    #[must_use]
    pub fn all(&self) -> Vec<(usize, Target)> {
        self.with(|local| {
            let count = local.clients.len();
            (0..count)
                .filter(|position| {
                    let topology = local.topology.as_deref();
                    topology.is_some_and(|topology| topology.is_serving(*position))
                })
                .collect::<Vec<_>>()
                .into_iter()
                .filter_map(|position| Some((position, self.target(local, position)?)))
                .collect()
        })
    }

    /// What this reactor goes by, brought up to date.
    fn with<R>(&self, look: impl FnOnce(&mut Local) -> R) -> R {
        LOCALS.with_borrow_mut(|locals| {
            let known = locals.iter().position(|it| it.number == self.number);
            let at = known.unwrap_or_else(|| {
                let number = self.number;
                locals.push(Local {
                    number,
                    ..Local::default()
                });
                locals.len() - 1
            });
            // It was found or added right above.
            let local = &mut locals[at];
            let epoch = self.map.epoch();
            if local.epoch != epoch {
                local.epoch = epoch;
                local.follow(self.map.topology());
            }
            look(local)
        })
    }

    fn target(&self, local: &mut Local, position: usize) -> Option<Target> {
        let topology = local.topology.as_deref()?;
        let member = topology.members().get(position)?;
        if self.own.as_ref() == Some(&member.id) {
            return None;
        }
        let place = local.clients.get_mut(position)?;
        let client = match place.take().filter(|client| !client.is_closed()) {
            Some(client) => client,
            None => {
                let options = Options {
                    address: member.client_address.clone(),
                    // Another cluster's member may have the address by now.
                    cluster: cluster_text(topology.cluster()),
                    ..self.options.clone()
                };
                let client = Client::start(options, self.metrics.stats());
                self.map.register(&member.id, &client);
                client
            }
        };
        *place = Some(client.clone());
        Some(Target {
            client,
            epoch: topology.epoch(),
            owners: 0,
        })
    }
}

impl Local {
    /// Goes by another map. Connections to members that are in both are kept, the others end.
    fn follow(&mut self, new: Option<Arc<Topology>>) {
        let old = std::mem::replace(&mut self.topology, new);
        let before = old.as_deref().map(Topology::members).unwrap_or_default();
        let mut clients = std::mem::take(&mut self.clients);
        let members = self.topology.as_deref().map(Topology::members);
        let kept = members.unwrap_or_default().iter().map(|member| {
            let same =
                |it: &Member| it.id == member.id && it.client_address == member.client_address;
            let position = before.iter().position(same)?;
            clients.get_mut(position)?.take()
        });
        self.clients = kept.collect();
    }
}
