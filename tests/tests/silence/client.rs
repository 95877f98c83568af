//! Clients that write increasing numbers and check what they read, through a router or as a Redis
//! Cluster client.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fonn_proto::placement;
use fonn_tests::client::{RespClient, RespReply};
use fonn_tests::rng::Rng;

pub const ROUTER: &str = "router";
pub const CLUSTER: &str = "cluster client";

/// Keys of one worker.
const KEYS: usize = 48;
/// Between the operations of a worker.
const PAUSE: Duration = Duration::from_millis(10);
/// An operation that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(15);
/// How long a Redis Cluster client waits before it asks for the owners again. Without a pause it
/// takes a processor of its own from the members that are to agree.
const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// How long a Redis Cluster client waits for one member.
const MEMBER_PATIENCE: Duration = Duration::from_millis(500);

/// How a worker reaches the cluster.
pub enum Door {
    /// At this address.
    Router(SocketAddr),
    /// At the owners of slots, which the members at these addresses tell.
    Cluster {
        seeds: Vec<SocketAddr>,
        /// The owner of each slot.
        slots: Vec<SocketAddr>,
    },
}

impl Door {
    pub const fn cluster(seeds: Vec<SocketAddr>) -> Self {
        Self::Cluster {
            seeds,
            slots: Vec::new(),
        }
    }

    const fn name(&self) -> &'static str {
        match self {
            Self::Router(_) => ROUTER,
            Self::Cluster { .. } => CLUSTER,
        }
    }
}

/// What came of an operation.
#[derive(Clone, Debug)]
pub struct Operation {
    pub door: &'static str,
    pub begun: Duration,
    pub took: Duration,
    pub error: Option<String>,
}

/// A value of a key, as its only writer knows it.
#[derive(Clone, Debug, Default)]
struct Known {
    /// The last number that was acknowledged.
    acknowledged: u64,
    /// The last number that was sent.
    sent: u64,
    /// Numbers that were sent to a member which did not answer. Its link may still deliver them,
    /// behind newer ones: the client sent them once more elsewhere, and no server can tell the two
    /// apart.
    doubtful: BTreeSet<u64>,
}

impl Known {
    fn may_be(&self, number: u64) -> bool {
        (self.acknowledged..=self.sent).contains(&number) || self.doubtful.contains(&number)
    }
}

/// One client, which alone writes its keys.
pub struct Worker {
    number: usize,
    /// Reads may return what is older than the last acknowledged number, if it was written.
    may_be_older: bool,
    door: Door,
    since: Instant,
    random: Rng,
    connections: HashMap<SocketAddr, RespClient>,
    /// When an address failed last.
    failed: HashMap<SocketAddr, Instant>,
    known: Vec<Known>,
}

impl Worker {
    pub fn new(number: usize, door: Door, since: Instant, may_be_older: bool) -> Self {
        Self {
            number,
            may_be_older,
            door,
            since,
            random: Rng::new(number as u64),
            connections: HashMap::new(),
            failed: HashMap::new(),
            known: vec![Known::default(); KEYS],
        }
    }

    /// Writes and reads until it is over.
    ///
    /// # Errors
    /// If a read returns something older than what was acknowledged, or what was never written.
    pub fn run(mut self, is_over: &AtomicBool) -> Result<Vec<Operation>> {
        // The keys of an earlier round have values of their own.
        let round = self.since.elapsed().as_nanos();
        let mut operations = Vec::new();
        while !is_over.load(Ordering::Relaxed) {
            let at = self.random.below(KEYS as u64) as usize;
            let key = format!("{}-{round}-{at}", self.number);
            let begun = self.since.elapsed();
            let error = match self.random.below(2) {
                0 => self.set(&key, at).err(),
                _ => match self.call(&[b"GET", key.as_bytes()], &mut false) {
                    Ok(reply) => {
                        self.check(&key, at, reply)?;
                        None
                    }
                    Err(error) => Some(error),
                },
            };
            operations.push(Operation {
                door: self.door.name(),
                begun,
                took: self.since.elapsed() - begun,
                error: error.map(|error| format!("{error:#}")),
            });
            std::thread::sleep(PAUSE);
        }
        Ok(operations)
    }

    fn set(&mut self, key: &str, at: usize) -> Result<()> {
        self.known[at].sent += 1;
        let number = self.known[at].sent;
        let value = number.to_string();
        let words: [&[u8]; 3] = [b"SET", key.as_bytes(), value.as_bytes()];
        let mut is_doubtful = false;
        let reply = self.call(&words, &mut is_doubtful);
        let known = &mut self.known[at];
        if is_doubtful {
            known.doubtful.insert(number);
        }
        reply?.ok()?;
        known.acknowledged = number;
        Ok(())
    }

    fn check(&self, key: &str, at: usize, reply: RespReply) -> Result<()> {
        let Some(value) = reply.bulk()? else {
            return Ok(());
        };
        let number: u64 = std::str::from_utf8(&value)?.parse()?;
        let known = &self.known[at];
        ensure!(
            known.may_be(number) || self.may_be_older && number <= known.sent,
            "worker {} at {}: {key} is {number} after {:?}: {known:?}",
            self.number,
            self.door.name(),
            self.since.elapsed(),
        );
        Ok(())
    }

    /// The reply to a command, unless it is an error. Tells whether a member that did not answer
    /// may carry it out as well.
    fn call(&mut self, words: &[&[u8]], is_doubtful: &mut bool) -> Result<RespReply> {
        let begun = Instant::now();
        loop {
            let error = match self.try_call(words) {
                Ok(RespReply::Error(text)) if !text.starts_with("MOVED") => bail!(text),
                Ok(RespReply::Error(text)) => anyhow::anyhow!(text),
                Ok(reply) => return Ok(reply),
                Err(error) => {
                    *is_doubtful = true;
                    error
                }
            };
            let Door::Cluster { slots, .. } = &mut self.door else {
                return Err(error);
            };
            // As Redis Cluster clients do: another member may know the owners.
            slots.clear();
            ensure!(begun.elapsed() < PATIENCE, "{error:#}");
            std::thread::sleep(RETRY_PAUSE);
        }
    }

    fn try_call(&mut self, words: &[&[u8]]) -> Result<RespReply> {
        let (address, patience) = match &self.door {
            Door::Router(address) => (*address, PATIENCE),
            Door::Cluster { .. } => {
                let slot = placement::slot(words.get(1).copied().unwrap_or_default());
                (self.owner(slot)?, MEMBER_PATIENCE)
            }
        };
        self.ask(address, patience, words)
    }

    /// One command at one address.
    fn ask(
        &mut self,
        address: SocketAddr,
        patience: Duration,
        words: &[&[u8]],
    ) -> Result<RespReply> {
        let mut connection = match self.connections.remove(&address) {
            Some(connection) => connection,
            None => RespClient::connect(address)?,
        };
        connection.socket().set_read_timeout(Some(patience))?;
        match connection.call(words) {
            Ok(reply) => {
                self.connections.insert(address, connection);
                Ok(reply)
            }
            // The connection is not used again.
            Err(error) => {
                self.failed.insert(address, Instant::now());
                Err(error)
            }
        }
    }

    fn owner(&mut self, slot: u16) -> Result<SocketAddr> {
        let Door::Cluster { seeds, slots } = &self.door else {
            bail!("a router knows the owners");
        };
        if let Some(owner) = slots.get(usize::from(slot)) {
            return Ok(*owner);
        }
        let mut seeds = seeds.clone();
        // A member that failed lately is asked last.
        seeds.sort_by_key(|seed| self.failed.get(seed).copied());
        for seed in seeds {
            let patience = 4 * MEMBER_PATIENCE;
            if let Ok(reply) = self.ask(seed, patience, &[b"CLUSTER", b"SLOTS"])
                && let Ok(told) = owners(reply)
                && let Door::Cluster { slots, .. } = &mut self.door
            {
                *slots = told;
                return slots
                    .get(usize::from(slot))
                    .copied()
                    .context("no such slot");
            }
        }
        bail!("no member tells the owners")
    }
}

/// The first owner of each slot, by the reply to `CLUSTER SLOTS`.
fn owners(reply: RespReply) -> Result<Vec<SocketAddr>> {
    let mut owners = Vec::new();
    for row in reply.array()? {
        let mut row = row.array()?.into_iter();
        let (first, last) = (row.next(), row.next());
        let [first, last] = [first, last].map(|it| it.context("a short row")?.integer());
        let mut owner = row.next().context("no owner")?.array()?.into_iter();
        let host = owner
            .next()
            .context("no host")?
            .bulk()?
            .context("no host")?;
        let port = owner.next().context("no port")?.integer()?;
        let address: SocketAddr = format!("{}:{port}", std::str::from_utf8(&host)?).parse()?;
        let count = usize::try_from(last? - first? + 1)?;
        owners.extend(std::iter::repeat_n(address, count));
    }
    ensure!(
        owners.len() == usize::from(placement::SLOT_COUNT),
        "slots are missing"
    );
    Ok(owners)
}
