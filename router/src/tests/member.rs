//! A member that keeps entries in a table, behind the socket server of a node.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use fonn_forward::{Again, Came, Forwarded};
use fonn_proto::member::{Member as Row, MemberState};
use fonn_proto::outcome::{Stored, Value};
use fonn_proto::peer::hello::{Hello, Rejection};
use fonn_proto::peer::{Refusal, Reply, Request};
use fonn_proto::request::ServerOutcome;
use fonn_proto::{Command, Failure, Hit, Outcome, ServerCommand, Space, StoreMode, placement};
use fonn_server::{
    Client, Event, Execution, FixedBudget, Job, ListenAddr, Listener, NoAcks, Server, Service,
    Shared,
};
use parking_lot::Mutex;

/// Keys that begin so are answered after a while.
pub const SLOW: &[u8] = b"slow";

/// Values and flags by space and key.
type Entries = HashMap<(Space, Vec<u8>), (Bytes, u32)>;

pub struct Table {
    entries: Mutex<Entries>,
    budget: FixedBudget,
    commands: AtomicUsize,
    /// The epoch of its map, and whether it owns anything by it.
    epoch: AtomicU64,
    owns: AtomicBool,
    /// Flushes that it was asked to have all members do.
    flushes: AtomicUsize,
    /// All members, itself among them.
    all: Mutex<Vec<Weak<Table>>>,
}

/// A running member.
pub struct Member {
    pub table: Arc<Table>,
    pub name: String,
    pub address: String,
    server: Option<Server<Table>>,
}

impl Member {
    pub fn start(name: &str) -> Self {
        let table = Arc::new(Table {
            entries: Mutex::default(),
            budget: FixedBudget::new(64 << 20),
            commands: AtomicUsize::new(0),
            epoch: AtomicU64::new(0),
            owns: AtomicBool::new(true),
            flushes: AtomicUsize::new(0),
            all: Mutex::default(),
        });
        let listener = Listener::bind(&ListenAddr::Tcp("127.0.0.1:0".to_owned())).unwrap();
        let address = listener.local_name();
        let shared = Shared::new(Arc::clone(&table), Vec::new(), 100);
        let server = Server::start(shared, vec![listener], 1).unwrap();
        Self {
            table,
            name: name.to_owned(),
            address,
            server: Some(server),
        }
    }

    /// Its row in a map.
    pub fn row(&self, state: MemberState) -> Row {
        Row {
            id: self.name.clone(),
            client_address: self.address.clone(),
            state,
            ..Row::default()
        }
    }

    /// Ends it, with all its connections.
    pub fn kill(&mut self) {
        if let Some(server) = self.server.take() {
            server.drain(Duration::ZERO);
        }
    }

    pub fn entries(&self) -> usize {
        self.table.entries.lock().len()
    }

    pub fn commands(&self) -> usize {
        self.table.commands.load(Ordering::SeqCst)
    }

    /// Flushes that it was asked to have all members do.
    pub fn flushes(&self) -> usize {
        self.table.flushes.load(Ordering::SeqCst)
    }

    /// Makes these members those that each of them flushes.
    pub fn meet(members: &[Self]) {
        let all: Vec<_> = members.iter().map(|it| Arc::downgrade(&it.table)).collect();
        for member in members {
            member.table.all.lock().clone_from(&all);
        }
    }

    /// Has heard of the map of `epoch`.
    pub fn hear(&self, epoch: u64) {
        self.table.epoch.fetch_max(epoch, Ordering::SeqCst);
    }

    /// Applies the map of `epoch` from now on.
    pub fn go_by(&self, epoch: u64, owns: bool) {
        self.table.epoch.store(epoch, Ordering::SeqCst);
        self.table.owns.store(owns, Ordering::SeqCst);
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Service for Table {
    type Moment = ();
    type Acks = NoAcks;
    type Later = Forwarded;
    type Answer = Came;
    type Again = Again;
    type Budget = FixedBudget;

    fn value_len_max(&self) -> usize {
        8 << 20
    }

    fn budget(&self) -> &FixedBudget {
        &self.budget
    }

    fn count(&self, _: Event, _: u64) {}

    fn moment(&self) {}

    fn greet(&self, _: &Hello, _: &str) -> (Hello, Result<(), Rejection>) {
        (Hello::new("member", "", (8 << 20) + 70_000), Ok(()))
    }

    fn serves(&self, _: u16, _: bool) -> bool {
        self.owns.load(Ordering::SeqCst)
    }

    fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    async fn execute<'s>(
        &self,
        job: &Job<'_>,
        _: &mut NoAcks,
        _: &'s mut Vec<u8>,
    ) -> Execution<'s, Forwarded> {
        self.commands.fetch_add(1, Ordering::SeqCst);
        if job.command.key().starts_with(SLOW) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let key = (job.space, job.command.key().to_vec());
        let mut entries = self.entries.lock();
        Execution::Done(match job.command {
            Command::Get(get) => match entries.get(&key) {
                None => Outcome::Miss,
                Some((value, flags)) => Outcome::Hit(Hit {
                    value: match get.want_value {
                        true => Value::Shared(value.clone()),
                        false => Value::Copied(&[]),
                    },
                    value_len: value.len(),
                    flags: *flags,
                    version: 1,
                    ttl_ms: None,
                    expires_at_ms: None,
                    idle_s: 0,
                    fetched_before: false,
                    stale: false,
                    won: false,
                    lost: false,
                }),
            },
            Command::Store(store) => {
                if store.mode == StoreMode::Add && entries.contains_key(&key) {
                    return Execution::Done(Outcome::NotStored(None));
                }
                let value = Bytes::copy_from_slice(store.value);
                entries.insert(key, (value, store.flags));
                Outcome::Stored(Stored {
                    version: 1,
                    value_len: store.value.len(),
                    previous: None,
                })
            }
            Command::Delete(_) => match entries.remove(&key) {
                Some(_) => Outcome::Deleted { version: 0 },
                None => Outcome::NotFound,
            },
            _ => Outcome::Failed(Failure::Unavailable),
        })
    }

    async fn again(&self, _: &Job<'_>, _: Again) -> Came {
        unreachable!("this member answers at once")
    }

    async fn execute_peer(
        &self,
        _: Space,
        _: &Request<'_>,
        _: &mut NoAcks,
        word: impl FnOnce(&Reply<'_>) + Send,
    ) {
        word(&Reply::Refused(Refusal::Unsupported));
    }

    async fn execute_server(
        &self,
        _: &Shared<Self>,
        client: Client<'_>,
        command: &ServerCommand<'_>,
        _: &mut NoAcks,
    ) -> ServerOutcome {
        if let ServerCommand::Flush { .. } = command {
            self.flushes.fetch_add(1, Ordering::SeqCst);
            let all = self.all.lock().clone();
            let all = all.iter().filter_map(Weak::upgrade);
            all.for_each(|it| it.entries.lock().clear());
            return ServerOutcome::Done;
        }
        let entries = self.entries.lock();
        match command {
            ServerCommand::Count => ServerOutcome::Integer(entries.len() as i64),
            ServerCommand::CountInSlot(slot) => {
                let keys = entries.keys().map(|(_, key)| placement::slot(key));
                ServerOutcome::Integer(keys.filter(|it| it == slot).count() as i64)
            }
            ServerCommand::RandomKey => {
                ServerOutcome::Key(entries.keys().next().map(|(_, key)| key.clone()))
            }
            // In two pages.
            ServerCommand::Scan { cursor, .. } => {
                let keys = entries.keys().filter(|(space, _)| *space == client.space);
                let mut keys: Vec<_> = keys.map(|(_, key)| key.clone()).collect();
                keys.sort();
                let rest = keys.split_off(keys.len() / 2);
                match cursor {
                    0 => ServerOutcome::Scan { cursor: 7, keys },
                    _ => ServerOutcome::Scan {
                        cursor: 0,
                        keys: rest,
                    },
                }
            }
            _ => ServerOutcome::Pairs(vec![("curr_items".to_owned(), entries.len().to_string())]),
        }
    }
}
