//! Several nodes as one cluster, and routers in front of them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fonn_node::cli::Release;
use serde_json::Value;

use crate::bucket::Bucket;
use crate::client::{Cache, Dialect};
use crate::ctl::{fonnctl, text};
use crate::links::Links;
use crate::node::{FonnNode, NodeOptions};
use crate::process::free_address;
use crate::release;
use crate::router::FonnRouter;

/// A busy machine needs its time; what is asked for is far less.
const LIMIT: Duration = Duration::from_secs(60);
/// A member that was down often has to answer for a minute before it is up again.
const AGREEMENT_LIMIT: Duration = Duration::from_secs(300);

/// A cluster; the members' names are `a`, `b`, `c`, … in the order of their start.
#[derive(Debug)]
pub struct Cluster {
    /// The members.
    pub nodes: Vec<FonnNode>,
    listens: Vec<SocketAddr>,
    doors: Vec<SocketAddr>,
    options: NodeOptions,
    links: Option<Links>,
}

impl Cluster {
    /// Forms a cluster of `count` members, each with a bucket if there is one, and waits until all
    /// serve.
    ///
    /// # Errors
    /// When one does not start, or they do not find together within a minute.
    pub fn form(count: usize, bucket: Option<&Bucket>) -> Result<Self> {
        let environment = bucket.map(Bucket::environment);
        Self::form_in(count, bucket, environment.unwrap_or_default(), None)
    }

    /// Forms one without a bucket, whose members are patient ([`NodeOptions::patient`]).
    ///
    /// # Errors
    /// As [`Cluster::form`].
    pub fn form_patient(count: usize) -> Result<Self> {
        Self::form_with(count, Self::options().patient(), None)
    }

    /// The same, with the bucket at another `endpoint`: that of a proxy in front of it.
    ///
    /// # Errors
    /// As [`Cluster::form`].
    pub fn form_through(count: usize, bucket: &Bucket, endpoint: &str) -> Result<Self> {
        let environment = bucket.environment_through(endpoint);
        Self::form_in(count, Some(bucket), environment, None)
    }

    /// The same, all over links that the test can cut. Those of routers are named by
    /// [`Cluster::router_named`].
    ///
    /// # Errors
    /// As [`Cluster::form`].
    pub fn form_linked(count: usize, links: &Links) -> Result<Self> {
        Self::form_in(count, None, Vec::new(), Some(links.clone()))
    }

    /// The same with a bucket, if there is one. The members reach it by no link that the test can
    /// cut.
    ///
    /// # Errors
    /// As [`Cluster::form`].
    pub fn form_linked_with(count: usize, links: &Links, bucket: Option<&Bucket>) -> Result<Self> {
        let environment = bucket.map(Bucket::environment).unwrap_or_default();
        Self::form_in(count, bucket, environment, Some(links.clone()))
    }

    /// The same without a bucket, of members that are started so.
    ///
    /// # Errors
    /// As [`Cluster::form`].
    pub fn form_of(count: usize, options: NodeOptions) -> Result<Self> {
        Self::form_with(count, options, None)
    }

    fn options() -> NodeOptions {
        NodeOptions::new()
            .flag("--ram-budget", "64m")
            .flag("--disk-budget", "512m")
    }

    fn form_in(
        count: usize,
        bucket: Option<&Bucket>,
        environment: Vec<(&'static str, String)>,
        links: Option<Links>,
    ) -> Result<Self> {
        let mut options = Self::options();
        if let Some(bucket) = bucket {
            for (name, value) in [
                ("--cold-tier", bucket.url()),
                ("--spill", "write-behind:1s"),
                ("--cold-follow", "200ms"),
                ("--cold-read-timeout", "20s"),
            ] {
                options = options.flag(name, value);
            }
            for (name, value) in environment {
                options = options.env(name, value);
            }
        }
        Self::form_with(count, options, links)
    }

    fn form_with(count: usize, options: NodeOptions, links: Option<Links>) -> Result<Self> {
        let mut cluster = Self {
            nodes: Vec::new(),
            listens: Vec::new(),
            options,
            doors: Vec::new(),
            links,
        };
        for _ in 0..count {
            cluster.add()?;
        }
        // Before that a member may ask to try again.
        cluster.wait_agreed()?;
        Ok(cluster)
    }

    /// Starts one more member, and waits until it serves.
    ///
    /// # Errors
    /// As [`Cluster::form`].
    pub fn add(&mut self) -> Result<()> {
        let listen = free_address()?;
        let name = name(self.nodes.len());
        let mut options = self.options.clone().flag("--node-id", &name);
        options = options.flag("--cluster-listen", listen.to_string());
        options = match self.listens.first() {
            None => options.flag("--bootstrap", "true"),
            Some(first) => options.flag("--join", first.to_string()),
        };
        let reached = match self.links.clone() {
            None => {
                let node = options.start()?;
                self.doors.push(node.addr());
                self.nodes.push(node);
                listen
            }
            Some(links) => {
                let (members, clients) = (links.proxy(&name)?, links.proxy(&name)?);
                let listen_clients = free_address()?;
                members.passes_to(listen);
                clients.passes_to(listen_clients);
                let node = options
                    .flag("--advertise", members.address().to_string())
                    .flag("--advertise-client", clients.address().to_string())
                    .start_at(listen_clients)?;
                links.name(node.pid()?, &name);
                self.doors.push(clients.address());
                self.nodes.push(node);
                members.address()
            }
        };
        self.listens.push(reached);
        self.wait(&[], "all are active", |states| {
            states.get(&name).is_some_and(|state| state == "active")
        })
    }

    /// The cluster listeners of the members, as others reach them.
    #[must_use]
    pub fn listens(&self) -> &[SocketAddr] {
        &self.listens
    }

    /// The client listeners of the members, as clients are told of them.
    pub fn doors(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        self.doors.iter().copied()
    }

    /// A router in front of them.
    ///
    /// # Errors
    /// As [`FonnRouter::start`].
    pub fn router(&self) -> Result<FonnRouter> {
        FonnRouter::start(&self.listens)
    }

    /// The same, with further flags.
    ///
    /// # Errors
    /// As [`FonnRouter::start`].
    pub fn router_with(&self, flags: Vec<(&'static str, String)>) -> Result<FonnRouter> {
        FonnRouter::start_with(&self.listens, flags)
    }

    /// The same, of another release.
    ///
    /// # Errors
    /// As [`FonnRouter::start`].
    pub fn router_as(&self, release: &Release) -> Result<FonnRouter> {
        FonnRouter::start_as(&self.listens, release)
    }

    /// Stops a member by SIGTERM, starts it again as one of that release, and waits until all are
    /// active and lack nothing.
    ///
    /// # Errors
    /// When it does not end or start, or they do not agree within five minutes.
    pub fn restart_as(&mut self, index: usize, release: &Release) -> Result<()> {
        let value = release::value(release);
        let node = self.nodes.get_mut(index).context("no such member")?;
        node.stop()?;
        node.start_again_with(|options| options.env(release::VARIABLE, value))?;
        self.wait_agreed()
    }

    /// Starts a member again that has lost its disk: it asks the others to be taken in, whichever
    /// member formed the cluster.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start_empty(&mut self, index: usize) -> Result<()> {
        let listens = self.listens.iter().enumerate();
        let others = listens.filter(|(at, _)| *at != index);
        let others: Vec<String> = others.map(|(_, it)| it.to_string()).collect();
        let node = self.nodes.get_mut(index).context("no such member")?;
        node.start_again_with(|options| {
            let options = options.flag("--bootstrap", "false");
            options.flag("--join", others.join(","))
        })
    }

    /// A client of a member over the memcached text protocol.
    ///
    /// # Errors
    /// When there is no such member, or it cannot be connected to.
    pub fn client(&self, at: usize) -> Result<Box<dyn Cache>> {
        let node = self.nodes.get(at).context("no such member")?;
        Dialect::Text.connect(node.addr())
    }

    /// A router, as a process of that name for the links.
    ///
    /// # Errors
    /// As [`FonnRouter::start`].
    pub fn router_named(&self, name: &str) -> Result<FonnRouter> {
        let router = self.router()?;
        if let Some(links) = &self.links {
            links.name(router.pid()?, name);
        }
        Ok(router)
    }

    /// Waits until all members but those in `absent` say what is wanted of the states by name.
    ///
    /// # Errors
    /// When they do not within a minute.
    pub fn wait(
        &self,
        absent: &[usize],
        what: &str,
        is_so: impl Fn(&BTreeMap<String, String>) -> bool,
    ) -> Result<()> {
        let begun = Instant::now();
        for (index, node) in self.nodes.iter().enumerate() {
            while !absent.contains(&index) && !is_so(&states(node)?) {
                ensure!(
                    begun.elapsed() < LIMIT,
                    "in {LIMIT:?}: {what}; {} says {:?}",
                    name(index),
                    states(node)?
                );
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(())
    }

    /// Waits until the members but those in `absent` have copied all slots that are theirs.
    ///
    /// # Errors
    /// When they have not within a minute.
    pub fn wait_settled(&self, absent: &[usize]) -> Result<()> {
        let begun = Instant::now();
        for (index, node) in self.nodes.iter().enumerate() {
            while !absent.contains(&index) && moving(node)? > 0.0 {
                ensure!(
                    begun.elapsed() < LIMIT,
                    "{} still copies slots",
                    name(index)
                );
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(())
    }

    /// Waits until all members are active, go by the same map, and lack nothing by it.
    ///
    /// # Errors
    /// When they do not within five minutes: a member that was down often takes longest.
    pub fn wait_agreed(&self) -> Result<()> {
        let begun = Instant::now();
        let mut agreed = 0;
        // What a member agreed to, it goes by a moment later.
        while agreed < 3 {
            let views = self.nodes.iter().map(view).collect::<Result<Vec<_>>>()?;
            let first = views.first().context("no members")?;
            let [_, active, moving, has_lease] = *first;
            let is_agreed = active == self.nodes.len() as f64
                && (moving, has_lease) == (0.0, 1.0)
                && views.iter().all(|view| view == first);
            agreed = if is_agreed { agreed + 1 } else { 0 };
            ensure!(
                begun.elapsed() < AGREEMENT_LIMIT,
                "epochs, active members, slots to copy and leases are {views:?}"
            );
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    /// How often something happened between members, as the members that run count it
    /// (`fonn_cluster_replication_total`).
    ///
    /// # Errors
    /// When one does not tell.
    pub fn shared(&self, event: &str) -> Result<f64> {
        let series = format!("fonn_cluster_replication_total{{event=\"{event}\"}}");
        let counts = self.nodes.iter();
        counts
            .map(|node| sample(&node.http_get("/metrics")?.body, &series))
            .sum()
    }

    /// Slots by the part that members have in them (`fonn_cluster_slots`), of all members together.
    ///
    /// # Errors
    /// When one does not tell.
    pub fn slots(&self, part: &str) -> Result<f64> {
        let series = format!("fonn_cluster_slots{{part=\"{part}\"}}");
        let counts = self.nodes.iter();
        counts
            .map(|node| sample(&node.http_get("/metrics")?.body, &series))
            .sum()
    }

    /// The number of the member that leads.
    ///
    /// # Errors
    /// When there is none.
    pub fn leader(&self) -> Result<usize> {
        let begun = Instant::now();
        loop {
            for (index, node) in self.nodes.iter().enumerate() {
                if node.metric("fonn_cluster_is_leader").unwrap_or(None) == Some(1.0) {
                    return Ok(index);
                }
            }
            ensure!(begun.elapsed() < LIMIT, "nobody leads");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Runs `fonnctl` at a member.
    ///
    /// # Errors
    /// With what it says, when it fails.
    pub fn ctl(&self, at: usize, arguments: &[&str]) -> Result<String> {
        let node = self.nodes.get(at).context("no such member")?;
        text(&node.admin().to_string(), arguments)
    }
}

/// The name of a member by its number.
#[must_use]
pub fn name(number: usize) -> String {
    char::from(b'a' + u8::try_from(number).unwrap_or(25)).to_string()
}

fn states(node: &FonnNode) -> Result<BTreeMap<String, String>> {
    let output = fonnctl(&node.admin().to_string(), &["map", "--json"])?;
    // No leader is worth an exit code, and a map all the same.
    let map: Value = serde_json::from_slice(&output.stdout)?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let members = map["members"].as_array().into_iter().flatten();
    Ok(members
        .map(|it| (text(&it["member"]["id"]), text(&it["member"]["state"])))
        .collect())
}

/// The slots that a member copies, and one if a layout is due.
fn moving(node: &FonnNode) -> Result<f64> {
    to_copy(&node.http_get("/metrics")?.body)
}

fn to_copy(page: &str) -> Result<f64> {
    let slots = sample(page, "fonn_cluster_slots{part=\"learner\"}")?;
    Ok(slots + sample(page, "fonn_cluster_is_moving")?)
}

/// The epoch of a member's map, how many are active by it, how many slots it copies, and
/// whether it answers for its own.
fn view(node: &FonnNode) -> Result<[f64; 4]> {
    let page = node.http_get("/metrics")?.body;
    Ok([
        sample(&page, "fonn_cluster_epoch")?,
        sample(&page, "fonn_cluster_members{state=\"active\"}")?,
        to_copy(&page)?,
        sample(&page, "fonn_cluster_has_lease")?,
    ])
}

/// One sample of a page of metrics.
fn sample(page: &str, series: &str) -> Result<f64> {
    let value = page
        .lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    let value = value.with_context(|| format!("no metric {series}"))?;
    Ok(value.parse()?)
}
