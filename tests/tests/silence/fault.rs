//! The ways in which a member falls silent.

use anyhow::Result;
use fonn_tests::cluster::{Cluster, name};
use fonn_tests::links::{Links, Rule};
use rustix::process::Signal;

/// The router and the test's clients, for links.
pub const ROUTER: &str = "router";
pub const CLIENT: &str = "client";

/// What happens to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// SIGSTOP, then SIGCONT.
    Stopped,
    /// All packets are dropped.
    Unlinked,
    /// What it sends is dropped.
    Mute,
    /// What it is sent is dropped.
    Deaf,
    /// `kill -9`, then a start.
    Killed,
}

impl Fault {
    /// Its name in the table of docs/failures.md.
    pub const fn shown(self) -> &'static str {
        match self {
            Self::Stopped => "SIGSTOP",
            Self::Unlinked => "packets dropped both ways",
            Self::Mute => "packets from it dropped",
            Self::Deaf => "packets to it dropped",
            Self::Killed => "kill -9",
        }
    }

    pub fn begin(self, cluster: &mut Cluster, links: &Links, member: usize) -> Result<()> {
        let own = name(member);
        let members = (0..cluster.nodes.len())
            .filter(|it| *it != member)
            .map(name);
        let others: Vec<String> = members.chain([ROUTER.into(), CLIENT.into()]).collect();
        match self {
            Self::Stopped => cluster.nodes[member].daemon()?.signal(Signal::STOP)?,
            Self::Killed => cluster.nodes[member].kill9()?,
            Self::Unlinked => others
                .iter()
                .for_each(|it| links.set_both(&own, it, Rule::Hold)),
            Self::Mute => others.iter().for_each(|it| links.set(&own, it, Rule::Hold)),
            Self::Deaf => others.iter().for_each(|it| links.set(it, &own, Rule::Hold)),
        }
        Ok(())
    }

    pub fn end(self, cluster: &mut Cluster, links: &Links, member: usize) -> Result<()> {
        match self {
            Self::Stopped => cluster.nodes[member].daemon()?.signal(Signal::CONT)?,
            Self::Killed => {
                cluster.nodes[member].start_again()?;
                links.name(cluster.nodes[member].pid()?, &name(member));
            }
            Self::Unlinked | Self::Mute | Self::Deaf => links.heal(),
        }
        Ok(())
    }
}
