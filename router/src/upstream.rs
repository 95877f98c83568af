//! The connections of one reactor to the members.

use std::cell::RefCell;
use std::sync::Arc;

use fonn_runtime::peer::{Client, Options, PeerMetrics};

use crate::map::Map;
use crate::topology::{Member, Topology};

/// How members are asked.
#[derive(Clone, Debug)]
pub struct Upstreams {
    map: Arc<Map>,
    /// What is the same for all members; the address is not looked at.
    options: Options,
    metrics: PeerMetrics,
}

/// What a reactor knows.
struct Local {
    generation: u64,
    topology: Option<Arc<Topology>>,
    /// By position in the map, made when they are first needed.
    clients: Vec<Option<Client>>,
}

thread_local! {
    // A reactor is a thread that serves one router, so this is the reactor's own.
    static LOCAL: RefCell<Local> = const {
        RefCell::new(Local { generation: 0, topology: None, clients: Vec::new() })
    };
}

/// A member to ask.
#[derive(Clone, Debug)]
pub struct Target {
    /// Its client.
    pub client: Client,
    /// The epoch of the map that says so.
    pub epoch: u64,
}

impl Upstreams {
    /// Members of the map, asked as `options` say.
    #[must_use]
    pub fn new(map: Arc<Map>, options: Options, metrics: PeerMetrics) -> Self {
        Self {
            map,
            options,
            metrics,
        }
    }

    /// The map.
    #[must_use]
    pub fn map(&self) -> &Map {
        &self.map
    }

    /// The owner of a slot at `rank` among those that serve; None without one.
    #[must_use]
    pub fn owner(&self, slot: u16, rank: usize) -> Option<Target> {
        self.with(|local| {
            let topology = local.topology.as_deref()?;
            let mut owners = topology.positions(slot).iter().map(|it| usize::from(*it));
            let position = match rank {
                0 => owners.find(|position| topology.is_serving(*position)),
                rank => owners.filter(|it| topology.is_serving(*it)).nth(rank),
            };
            self.target(local, position?)
        })
    }

    /// Everybody who may have entries and answers, by position in the map.
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
        LOCAL.with_borrow_mut(|local| {
            let generation = self.map.generation();
            if local.generation != generation {
                local.generation = generation;
                local.follow(self.map.topology());
            }
            look(local)
        })
    }

    fn target(&self, local: &mut Local, position: usize) -> Option<Target> {
        let topology = local.topology.as_deref()?;
        let client = match local.clients.get_mut(position)? {
            Some(client) => client,
            none => none.insert(Client::start(
                Options {
                    address: topology.members().get(position)?.address.clone(),
                    ..self.options.clone()
                },
                self.metrics.stats(),
            )),
        };
        Some(Target {
            client: client.clone(),
            epoch: topology.epoch(),
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
            let same = |it: &Member| it.id == member.id && it.address == member.address;
            let position = before.iter().position(same)?;
            clients.get_mut(position)?.take()
        });
        self.clients = kept.collect();
    }
}
