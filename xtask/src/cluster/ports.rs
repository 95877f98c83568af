//! The processes, and where each listens. Kept with the data: members know each other by address.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use anyhow::{Context, Result, bail, ensure};
use fonn_base::random::SplitMix64;

/// Below the range from which the kernel takes the ports of outgoing connections, so that none of
/// these takes one before its program does.
const FREE_FROM: u16 = 12_000;
const FREE_TO: u16 = 32_000;

/// What a program is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// `fonn-router`.
    Router,
    /// `fonn-node`.
    Node,
}

/// A program and its ports on loopback.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// What it is.
    pub role: Role,
    /// `node-1`, `router-1` and so on.
    pub name: String,
    client: u16,
    admin: u16,
    /// Of nodes; 0 of routers.
    cluster: u16,
}

impl Member {
    /// Where clients connect.
    pub fn client_address(&self) -> String {
        address(self.client).to_string()
    }

    /// Where the admin port is.
    pub fn admin_address(&self) -> String {
        self.admin_socket().to_string()
    }

    /// Where the admin port is.
    pub fn admin_socket(&self) -> SocketAddr {
        address(self.admin)
    }

    /// Where members talk to each other.
    pub fn cluster_address(&self) -> String {
        address(self.cluster).to_string()
    }
}

/// All programs, routers first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ports(Vec<Member>);

impl Ports {
    /// Gives so many nodes and routers ports: from `first` on, or free ones.
    ///
    /// # Errors
    /// If a port is taken.
    pub fn choose(nodes: u16, routers: u16, first: Option<u16>) -> Result<Self> {
        let mut next = first;
        // Held until all are chosen, so that none is chosen twice.
        let mut held = Vec::new();
        let mut port = || -> Result<u16> {
            let (port, listener) = match &mut next {
                None => free()?,
                Some(next) => {
                    let port = *next;
                    let listener = TcpListener::bind(address(port));
                    let listener = listener.with_context(|| format!("port {port}"))?;
                    *next = next.checked_add(1).context("--port is too high")?;
                    (port, listener)
                }
            };
            held.push(listener);
            Ok(port)
        };
        let mut members = Vec::new();
        for (role, name, count) in [
            (Role::Router, "router", routers),
            (Role::Node, "node", nodes),
        ] {
            for number in 1..=count {
                members.push(Member {
                    role,
                    name: format!("{name}-{number}"),
                    client: port()?,
                    admin: port()?,
                    cluster: match role {
                        Role::Router => 0,
                        Role::Node => port()?,
                    },
                });
            }
        }
        Ok(Self(members))
    }

    /// All of them.
    pub fn members(&self) -> &[Member] {
        &self.0
    }

    /// Those of a role.
    pub fn of(&self, role: Role) -> impl Iterator<Item = &Member> {
        self.0.iter().filter(move |member| member.role == role)
    }

    /// How many have a role.
    pub fn count(&self, role: Role) -> u16 {
        u16::try_from(self.of(role).count()).unwrap_or(u16::MAX)
    }

    /// The place of the first node among all.
    pub fn first_node(&self) -> usize {
        usize::from(self.count(Role::Router))
    }

    /// As a text, to be kept.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for it in &self.0 {
            // Writing to a string does not fail.
            let _ = writeln!(
                text,
                "{} {} {} {}",
                it.name, it.client, it.admin, it.cluster
            );
        }
        text
    }

    /// What [`Ports::to_text`] wrote.
    ///
    /// # Errors
    /// If it did not.
    pub fn of_text(text: &str) -> Result<Self> {
        let mut members = Vec::new();
        for line in text.lines() {
            let words: Vec<_> = line.split(' ').collect();
            let [name, client, admin, cluster] = words[..] else {
                bail!("`{line}` is no line of ports");
            };
            let role = match name.split_once('-') {
                Some(("router", _)) => Role::Router,
                Some(("node", _)) => Role::Node,
                _ => bail!("`{name}` is no name of a node or router"),
            };
            let port = |word: &str| word.parse().with_context(|| format!("`{word}` is no port"));
            members.push(Member {
                role,
                name: name.to_owned(),
                client: port(client)?,
                admin: port(admin)?,
                cluster: port(cluster)?,
            });
        }
        let is_sorted = members.is_sorted_by_key(|member| member.role == Role::Node);
        ensure!(is_sorted, "routers come first");
        Ok(Self(members))
    }
}

fn address(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// A port that nothing listens on, with a listener that holds it.
fn free() -> Result<(u16, TcpListener)> {
    let mut random = SplitMix64::from_entropy();
    for _ in 0..1000 {
        let port = FREE_FROM + random.below(u64::from(FREE_TO - FREE_FROM)) as u16;
        if let Ok(listener) = TcpListener::bind(address(port)) {
            return Ok((port, listener));
        }
    }
    bail!("no free port between {FREE_FROM} and {FREE_TO}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_differ_and_survive_their_text() {
        let ports = Ports::choose(3, 2, None).unwrap();
        assert_eq!((ports.count(Role::Node), ports.count(Role::Router)), (3, 2));
        assert_eq!(ports.members()[ports.first_node()].name, "node-1");
        let mut all: Vec<_> = ports
            .members()
            .iter()
            .flat_map(|it| [it.client, it.admin, it.cluster])
            .filter(|port| *port != 0)
            .collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 3 * 3 + 2 * 2);
        assert_eq!(Ports::of_text(&ports.to_text()).unwrap(), ports);
    }

    #[test]
    fn given_ports_are_taken_one_after_the_other_if_they_are_free() {
        let (port, listener) = free().unwrap();
        assert!(Ports::choose(1, 0, Some(port)).is_err());
        drop(listener);
        assert!(Ports::choose(1, 0, Some(u16::MAX)).is_err());
    }

    #[test]
    fn other_texts_are_refused() {
        for wrong in [
            "node-1 1 2",
            "x-1 1 2 3",
            "node-1 1 2 70000",
            "node-1 1 2 3\nrouter-1 1 2 0",
        ] {
            assert!(Ports::of_text(wrong).is_err(), "{wrong}");
        }
    }
}
