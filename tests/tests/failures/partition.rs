//! Links between members and routers are cut, and members are paused and killed, while clients read
//! and write; what they saw is recorded and judged by [`history`].
//!
//! `FONN_PARTITION_SECONDS` (default 60) says for how long, `FONN_PARTITION_SEED` what happens
//! when; by default the time is shared by some seeds that stay and one from the clock, all printed.
//! With a seed the faults are the same again; the interleaving is not.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;

use fonn_tests::client::{Refused, TextClient, TextItem};
use fonn_tests::cluster::{Cluster, name};
use fonn_tests::history::{Action, Operation, Rules, Seen, Window, check};
use fonn_tests::links::{Links, Rule};
use fonn_tests::node::FonnNode;
use fonn_tests::process::Log;
use fonn_tests::rng::Rng;
use fonn_tests::router::FonnRouter;

const MEMBERS: usize = 3;
/// Keys of one round: few, so that clients meet.
const KEYS: u64 = 24;
/// Rounds with one cluster: a member that failed often takes ever longer to count as up.
const ROUNDS: u64 = 3;
/// Between the operations of a client.
const PAUSE: Duration = Duration::from_millis(2);

/// Seeds that are always run. They begin with a member that is paused, then one that is killed,
/// with two owners a slot; with one that is killed, then one that is lost, with one owner; and with
/// one that is isolated, silently and then not, with three.
const SEEDS: [u64; 3] = [14, 41, 42];
/// Before a client asks again where no process listened.
const AWAY: Duration = Duration::from_millis(50);

/// What happens to links or members, for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// A member does not reach the others, nor they it; routers and clients do.
    Isolated(usize, Rule),
    /// The same, and routers do not reach it either.
    Lost(usize, Rule),
    /// Two members do not reach each other; the third reaches both.
    Apart(usize, usize, Rule),
    /// What one member sends the others does not arrive; what they send does.
    Mute(usize),
    /// What the others send one member does not arrive; what it sends does.
    Deaf(usize),
    /// A router does not reach a member.
    Blind(usize, usize, Rule),
    /// All that a member sends and gets is late.
    Late(usize, Duration),
    /// Connections of a member end, again and again.
    Shaken(usize),
    /// A member stands still (SIGSTOP), and goes on.
    Paused(usize),
    /// A member is killed, and started again.
    Killed(usize),
}

impl Fault {
    fn draw(random: &mut Rng) -> Self {
        let one = random.below(MEMBERS as u64) as usize;
        let other = (one + 1 + random.below(MEMBERS as u64 - 1) as usize) % MEMBERS;
        let rule = match random.below(3) {
            0 => Rule::End,
            _ => Rule::Hold,
        };
        match random.below(12) {
            0 | 1 => Self::Isolated(one, rule),
            2 | 3 => Self::Lost(one, rule),
            4 | 5 => Self::Apart(one, other, rule),
            6 => match random.below(2) {
                0 => Self::Mute(one),
                _ => Self::Deaf(one),
            },
            7 => Self::Blind(random.below(2) as usize, one, rule),
            8 => Self::Late(one, Duration::from_millis(5 + random.below(100))),
            9 => Self::Shaken(one),
            10 => Self::Paused(one),
            _ => Self::Killed(one),
        }
    }

    /// Whether members are cut off from each other, and go on. A member that stood still or was
    /// killed does not go on before it has heard the others.
    fn cuts_members(self) -> bool {
        match self {
            Self::Isolated(..)
            | Self::Lost(..)
            | Self::Apart(..)
            | Self::Mute(_)
            | Self::Deaf(_) => true,
            Self::Blind(..)
            | Self::Late(..)
            | Self::Shaken(_)
            | Self::Paused(_)
            | Self::Killed(_) => false,
        }
    }

    /// From here until it is over.
    fn happen(self, cluster: &mut Cluster, links: &Links, random: &mut Rng) -> Result<()> {
        let lasts = Duration::from_millis(2000 + random.below(2500));
        let nodes = &mut cluster.nodes;
        match self {
            Self::Paused(one) => {
                nodes[one].daemon()?.signal(Signal::STOP)?;
                std::thread::sleep(lasts);
                nodes[one].daemon()?.signal(Signal::CONT)?;
            }
            Self::Killed(one) => {
                nodes[one].kill9()?;
                std::thread::sleep(lasts);
                nodes[one].start_again()?;
                links.name(nodes[one].pid()?, &name(one));
            }
            Self::Shaken(_) => {
                let begun = Instant::now();
                while begun.elapsed() < lasts {
                    self.begin(links);
                    std::thread::sleep(Duration::from_millis(20 + random.below(80)));
                    links.heal();
                    std::thread::sleep(Duration::from_millis(100 + random.below(400)));
                }
            }
            _ => {
                self.begin(links);
                std::thread::sleep(lasts);
                links.heal();
            }
        }
        Ok(())
    }

    fn begin(self, links: &Links) {
        let members = |but: usize| (0..MEMBERS).filter(move |it| *it != but).map(name);
        match self {
            Self::Isolated(one, rule) => {
                members(one).for_each(|other| links.set_both(&name(one), &other, rule));
            }
            Self::Lost(one, rule) => {
                let others = members(one).chain((0..2).map(router));
                others.for_each(|other| links.set_both(&name(one), &other, rule));
            }
            Self::Apart(one, other, rule) => links.set_both(&name(one), &name(other), rule),
            Self::Mute(one) => {
                members(one).for_each(|other| links.set(&name(one), &other, Rule::Hold));
            }
            Self::Deaf(one) => {
                members(one).for_each(|other| links.set(&other, &name(one), Rule::Hold));
            }
            Self::Blind(at, one, rule) => links.set_both(&router(at), &name(one), rule),
            Self::Late(one, delay) => {
                let others = members(one).chain((0..2).map(router));
                others.for_each(|other| links.set_both(&name(one), &other, Rule::Delay(delay)));
            }
            Self::Shaken(one) => {
                let others = members(one).chain((0..2).map(router));
                others.for_each(|other| links.set_both(&name(one), &other, Rule::End));
            }
            Self::Paused(_) | Self::Killed(_) => {}
        }
    }
}

fn router(number: usize) -> String {
    format!("router-{number}")
}

/// A client of one address, with all that it did.
struct Client<'a> {
    number: usize,
    address: SocketAddr,
    connection: Option<TextClient>,
    random: Rng,
    round: u64,
    values: &'a AtomicU64,
    since: Instant,
    history: BTreeMap<u64, Vec<Operation>>,
    /// Whether the asked process may end.
    may_end: bool,
}

/// The bytes of a value: of its own length, and nowhere the same as another's.
fn bytes(value: u64) -> Vec<u8> {
    format!("{value} ")
        .repeat(1 + (value % 97) as usize)
        .into_bytes()
}

fn value_of(item: &TextItem) -> Result<u64> {
    let text = std::str::from_utf8(&item.value)?;
    let value = text.split(' ').next().unwrap_or_default().parse()?;
    ensure!(item.value == bytes(value), "a mixture was read: {text:?}");
    Ok(value)
}

impl Client<'_> {
    fn run(mut self, is_over: &AtomicBool) -> Result<Self> {
        let mut seen: BTreeMap<u64, Seen> = BTreeMap::new();
        while !is_over.load(Ordering::Relaxed) {
            let key = self.random.below(KEYS);
            match (self.random.below(10), seen.remove(&key)) {
                (0, _) => self.delete(key)?,
                (1 | 2, _) => self.set(key)?,
                (3..=6, Some(of)) => self.cas(key, of)?,
                _ => {
                    if let Some(found) = self.get(key)? {
                        seen.insert(key, found);
                    }
                }
            }
            std::thread::sleep(PAUSE);
        }
        Ok(self)
    }

    fn key(&self, key: u64) -> String {
        format!("round-{}-{key}", self.round)
    }

    /// Asks, and notes what came of it. None if it was refused or not answered.
    fn ask<T>(
        &mut self,
        key: u64,
        ask: impl FnOnce(&mut TextClient, &str) -> Result<T>,
        action: impl FnOnce(Option<&T>) -> Result<Action>,
    ) -> Result<Option<T>> {
        let name = self.key(key);
        if self.connection.is_none() {
            match TextClient::connect(self.address) {
                Ok(connection) => self.connection = Some(connection),
                Err(_) if self.may_end => {
                    std::thread::sleep(AWAY);
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
        }
        let connection = self.connection.as_mut().context("no connection")?;
        let begun = self.since.elapsed();
        let answer = match ask(connection, &name) {
            Ok(answer) => Some(answer),
            Err(error) if error.is::<Refused>() => None,
            Err(_) if self.may_end => {
                self.connection = None;
                None
            }
            Err(error) => {
                // Nodes and routers are never cut off from clients: they answer in time.
                return Err(error.context(format!("client {} got no answer", self.number)));
            }
        };
        let operation = Operation {
            client: self.number,
            action: action(answer.as_ref())?,
            begun,
            answered: answer.is_some().then(|| self.since.elapsed()),
        };
        self.history.entry(key).or_default().push(operation);
        Ok(answer)
    }

    fn get(&mut self, key: u64) -> Result<Option<Seen>> {
        let mut found = None;
        self.ask(
            key,
            |client, key| Ok(client.items(&format!("gets {key}"))?.pop()),
            |item| {
                if let Some(Some(item)) = item {
                    found = Some(Seen {
                        value: value_of(item)?,
                        token: item.cas.context("a gets without a token")?,
                    });
                }
                Ok(Action::Get(found))
            },
        )?;
        Ok(found)
    }

    fn set(&mut self, key: u64) -> Result<()> {
        let value = self.values.fetch_add(1, Ordering::Relaxed);
        let sent = bytes(value);
        let set = |client: &mut TextClient, key: &str| {
            let line = client.store(&format!("set {key} 0 0 {}", sent.len()), &sent)?;
            answered(line, &["STORED"])
        };
        self.ask(key, set, |_| Ok(Action::Set(value)))?;
        Ok(())
    }

    fn delete(&mut self, key: u64) -> Result<()> {
        let delete = |client: &mut TextClient, key: &str| {
            let line = client.command(&format!("delete {key}"))?;
            answered(line, &["DELETED", "NOT_FOUND"])
        };
        self.ask(key, delete, |line| {
            let was_there = line.is_none_or(|line| line == "DELETED");
            Ok(Action::Delete { was_there })
        })?;
        Ok(())
    }

    fn cas(&mut self, key: u64, seen: Seen) -> Result<()> {
        let value = self.values.fetch_add(1, Ordering::Relaxed);
        let sent = bytes(value);
        let cas = |client: &mut TextClient, key: &str| {
            let command = format!("cas {key} 0 0 {} {}", sent.len(), seen.token);
            let line = client.store(&command, &sent)?;
            answered(line, &["STORED", "EXISTS", "NOT_FOUND"])
        };
        self.ask(key, cas, |line| {
            Ok(Action::Cas {
                seen,
                value,
                is_stored: line.is_none_or(|line| line == "STORED"),
            })
        })?;
        Ok(())
    }
}

/// An answer that says yes or no, or that it was refused.
fn answered(line: String, wanted: &[&str]) -> Result<String> {
    match line.as_str() {
        line if wanted.contains(&line) => {}
        line if line.starts_with("SERVER_ERROR") => return Err(Refused(line.to_owned()).into()),
        _ => bail!("instead of {wanted:?}: {line:?}"),
    }
    Ok(line)
}

/// What a whole run came to.
#[derive(Debug, Default)]
struct Totals {
    rounds: u64,
    operations: usize,
    unanswered: usize,
    hits: usize,
    stores: usize,
}

struct Run {
    links: Links,
    cluster: Cluster,
    routers: Vec<FonnRouter>,
    replicas: u64,
    since: Instant,
    values: AtomicU64,
}

impl Run {
    fn start(replicas: u64) -> Result<Self> {
        let links = Links::new()?;
        let cluster = Cluster::form_linked(MEMBERS, &links)?;
        let routers = (0..2).map(|number| cluster.router_named(&router(number)));
        let routers = routers.collect::<Result<Vec<_>>>()?;
        cluster.ctl(0, &["replicas", &replicas.to_string()])?;
        cluster.wait_agreed()?;
        Ok(Self {
            links,
            cluster,
            routers,
            replicas,
            since: Instant::now(),
            values: AtomicU64::new(1),
        })
    }

    /// One fault under load, until all agree again; then what clients saw is judged.
    fn round(&mut self, round: u64, random: &mut Rng, totals: &mut Totals) -> Result<()> {
        let fault = Fault::draw(random);
        let (replicas, since, values) = (self.replicas, self.since, &self.values);
        let (cluster, links) = (&mut self.cluster, &self.links);
        let killed = match fault {
            Fault::Killed(one) => cluster.nodes.get(one).map(FonnNode::addr),
            _ => None,
        };
        let members = cluster.nodes.iter().map(FonnNode::addr);
        let routers = self.routers.iter().chain(&self.routers);
        let addresses: Vec<SocketAddr> = routers.map(FonnRouter::addr).chain(members).collect();
        let is_over = AtomicBool::new(false);
        let (histories, windows) = std::thread::scope(|scope| {
            let clients: Vec<_> = addresses
                .iter()
                .enumerate()
                .map(|(number, &address)| {
                    let client = Client {
                        number,
                        address,
                        connection: None,
                        random: Rng::new(random.next_u64()),
                        round,
                        values,
                        since,
                        history: BTreeMap::new(),
                        may_end: killed == Some(address),
                    };
                    let is_over = &is_over;
                    scope.spawn(move || client.run(is_over))
                })
                .collect();
            let windows = disturb(fault, cluster, links, since, random);
            is_over.store(true, Ordering::Relaxed);
            let mut histories: BTreeMap<u64, Vec<Operation>> = BTreeMap::new();
            for client in clients {
                let client = client.join().map_err(|_| anyhow::anyhow!("a panic"))??;
                for (key, mut operations) in client.history {
                    histories.entry(key).or_default().append(&mut operations);
                }
            }
            Ok::<_, anyhow::Error>((histories, windows?))
        })
        .with_context(|| format!("{fault:?}, {replicas} owners a slot"))?;
        let rules = Rules {
            windows: &windows,
            cut_off_cannot_write: replicas > 1,
        };
        for (key, operations) in &histories {
            check(operations, rules).map_err(|violation| {
                let mut all = operations.clone();
                all.sort_by_key(|it| it.begun);
                let all: Vec<String> = all.iter().map(|it| format!("{it:?}")).collect();
                anyhow::anyhow!(
                    "{fault:?}, {replicas} owners a slot, windows {windows:?}, key {key}: {violation}\n{}\n{}",
                    self.logs().join("\n"),
                    all.join("\n"),
                )
            })?;
            totals.count(operations);
        }
        totals.rounds += 1;
        Ok(())
    }

    /// What members said that matters here.
    fn logs(&self) -> Vec<String> {
        let shown = |number: usize, log: Log| {
            let lines = log.lines().into_iter();
            let lines: Vec<String> = lines.filter(|it| !it.contains("openraft")).collect();
            let from = lines.len().saturating_sub(60);
            format!("--- {} ---\n{}", name(number), lines[from..].join("\n"))
        };
        let nodes = self.cluster.nodes.iter().enumerate();
        nodes
            .filter_map(|(number, node)| Some(shown(number, node.log().ok()?)))
            .collect()
    }
}

/// Lets a fault happen, and waits until all agree again. Returns when members were cut off.
fn disturb(
    fault: Fault,
    cluster: &mut Cluster,
    links: &Links,
    since: Instant,
    random: &mut Rng,
) -> Result<Vec<Window>> {
    let quiet = || std::thread::sleep(Duration::from_millis(500));
    quiet();
    let from = since.elapsed();
    fault.happen(cluster, links, random)?;
    cluster.wait_agreed()?;
    let until = since.elapsed();
    // All that was written meanwhile is looked at once more.
    quiet();
    let window = Window { from, until };
    Ok(Vec::from_iter(fault.cuts_members().then_some(window)))
}

impl Totals {
    fn count(&mut self, operations: &[Operation]) {
        for operation in operations {
            self.operations += 1;
            let is_answered = operation.answered.is_some();
            self.unanswered += usize::from(!is_answered);
            match operation.action {
                Action::Get(Some(_)) => self.hits += 1,
                Action::Cas {
                    is_stored: true, ..
                } => self.stores += usize::from(is_answered),
                _ => {}
            }
        }
    }
}

fn setting(name: &str) -> Result<Option<u64>> {
    let text = std::env::var(name).ok();
    let number = text.map(|text| text.parse().with_context(|| format!("{name} is no number")));
    number.transpose()
}

/// Rounds of a seed, for so long, and one at least.
fn run_seed(seed: u64, lasts: Duration, totals: &mut Totals) -> Result<()> {
    let (mut random, begun) = (Rng::new(seed), Instant::now());
    let before = totals.rounds;
    while begun.elapsed() < lasts || totals.rounds == before {
        let mut run = Run::start(1 + random.below(3))?;
        let mut round = 0;
        while round < ROUNDS && (begun.elapsed() < lasts || totals.rounds == before) {
            run.round(round, &mut random, totals)?;
            round += 1;
        }
    }
    Ok(())
}

#[test]
fn what_clients_see_while_links_are_cut_is_what_is_promised() -> Result<()> {
    let clock = std::time::UNIX_EPOCH.elapsed()?.as_nanos() as u64;
    let seeds = match setting("FONN_PARTITION_SEED")? {
        Some(seed) => vec![seed],
        None => SEEDS.into_iter().chain([clock]).collect(),
    };
    let lasts = Duration::from_secs(setting("FONN_PARTITION_SECONDS")?.unwrap_or(60));
    let begun = Instant::now();
    let mut totals = Totals::default();
    let share = lasts / seeds.len() as u32;
    for seed in seeds {
        let rounds = totals.rounds;
        eprintln!("FONN_PARTITION_SEED={seed}");
        let judged = run_seed(seed, share, &mut totals);
        judged.with_context(|| format!("FONN_PARTITION_SEED={seed}"))?;
        eprintln!("{} rounds of seed {seed}", totals.rounds - rounds);
    }
    eprintln!("{totals:?} in {:?}", begun.elapsed());
    ensure!(totals.hits > 100 && totals.stores > 10, "{totals:?}");
    Ok(())
}
