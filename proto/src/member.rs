//! A member of a cluster, as other members and routers know it by a topology.

use std::net::IpAddr;

#[cfg(feature = "grpc")]
use crate::grpc::v1;

/// A member of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// Its name, unique in the cluster.
    pub id: String,
    /// Where it speaks to clients, and to routers and members about entries, `HOST:PORT`; IPv6
    /// hosts in brackets.
    pub client_address: String,
    /// Where it speaks to members and routers about the cluster, `HOST:PORT`.
    pub cluster_address: String,
    /// The failure zone it stands in.
    pub zone: String,
    /// The weight that it was given.
    pub weight: u32,
    /// The weight by which slots are placed at this epoch; 0 owns none.
    pub share: u32,
    /// What it takes part in.
    pub state: MemberState,
    /// The version of its software.
    pub version: String,
}

/// What a member takes part in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MemberState {
    /// It gets slots soon and answers for none yet.
    #[default]
    Joining,
    /// It answers for its slots.
    Active,
    /// It still answers for its slots, while they move to others.
    Draining,
    /// It does not answer; the next owner in rank does.
    Down,
}

impl MemberState {
    /// Whether requests may be sent to the member.
    #[must_use]
    pub const fn is_serving(self) -> bool {
        match self {
            Self::Active | Self::Draining => true,
            Self::Joining | Self::Down => false,
        }
    }

    /// Its name, as shown and as sent.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Joining => "joining",
            Self::Active => "active",
            Self::Draining => "draining",
            Self::Down => "down",
        }
    }
}

/// Whether it is a host and a port, as `HOST:PORT`: a name, an IPv4 address, or an IPv6 address in
/// brackets, and a port that is not 0.
#[must_use]
pub fn is_host_and_port(address: &str) -> bool {
    let Some((host, port)) = address.rsplit_once(':') else {
        return false;
    };
    let is_port =
        port.bytes().all(|b| b.is_ascii_digit()) && port.parse().is_ok_and(|p: u16| p > 0);
    let is_host = match host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
    {
        Some(v6) => v6.parse::<std::net::Ipv6Addr>().is_ok(),
        None => {
            let in_name = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
            !host.is_empty() && host.bytes().all(in_name)
        }
    };
    is_host && is_port
}

/// Host, without brackets, and port of `HOST:PORT`; None if it is not that.
#[must_use]
pub fn host_and_port(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let inner = host.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
    let host = inner.unwrap_or(host);
    (!host.is_empty()).then_some(())?;
    Some((host, port.parse().ok()?))
}

/// Longest address that others reach a member or router at, in bytes.
pub const ADDRESS_LEN_MAX: usize = 256;

/// Whether it is a HOST:PORT at which others may reach a member or router: not all addresses of a
/// machine, not a port that is yet to be found. Clients are shown such addresses in lines of words.
#[must_use]
pub fn is_reachable(address: &str) -> bool {
    let is_any = host_and_port(address).is_some_and(|(host, _)| {
        let ip = host.parse::<IpAddr>();
        ip.is_ok_and(|ip| ip.is_unspecified())
    });
    is_host_and_port(address) && address.len() <= ADDRESS_LEN_MAX && !is_any
}

#[cfg(feature = "grpc")]
impl From<&Member> for v1::ClusterMember {
    fn from(member: &Member) -> Self {
        Self {
            id: member.id.clone(),
            client_address: member.client_address.clone(),
            cluster_address: member.cluster_address.clone(),
            zone: member.zone.clone(),
            weight: member.weight,
            share: member.share,
            state: v1::MemberState::from(member.state).into(),
            version: member.version.clone(),
        }
    }
}

#[cfg(feature = "grpc")]
impl From<&v1::ClusterMember> for Member {
    fn from(member: &v1::ClusterMember) -> Self {
        Self {
            id: member.id.clone(),
            client_address: member.client_address.clone(),
            cluster_address: member.cluster_address.clone(),
            zone: member.zone.clone(),
            weight: member.weight,
            share: member.share,
            state: match member.state() {
                v1::MemberState::Active => MemberState::Active,
                v1::MemberState::Draining => MemberState::Draining,
                v1::MemberState::Joining | v1::MemberState::Unspecified => MemberState::Joining,
                v1::MemberState::Down => MemberState::Down,
            },
            version: member.version.clone(),
        }
    }
}

#[cfg(feature = "grpc")]
impl From<MemberState> for v1::MemberState {
    fn from(state: MemberState) -> Self {
        match state {
            MemberState::Joining => Self::Joining,
            MemberState::Active => Self::Active,
            MemberState::Draining => Self::Draining,
            MemberState::Down => Self::Down,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_host_and_port() {
        for address in [
            "a:1",
            "10.0.0.1:65535",
            "[::1]:11211",
            "node-1.eu.example:80",
        ] {
            assert!(is_host_and_port(address), "{address}");
        }
        for address in [
            "", "a", ":1", "a:", "a:0", "a:65536", "a:+1", "::1:1", "[x]:1", "a b:1", "a/b:1",
        ] {
            assert!(!is_host_and_port(address), "{address}");
        }
    }

    #[test]
    fn addresses_are_taken_apart_at_the_last_colon() {
        assert_eq!(host_and_port("a.example:1"), Some(("a.example", 1)));
        assert_eq!(host_and_port("[::1]:65535"), Some(("::1", 65535)));
        for wrong in ["", ":1", "a", "a:", "a:65536", "a:-1", "[]:1"] {
            assert_eq!(host_and_port(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn others_reach_one_machine_at_a_port_that_is_known() {
        for right in ["10.0.0.9:1", "r-1.example_x:65535", "[2001:db8::9]:11211"] {
            assert!(is_reachable(right), "{right}");
        }
        let long = format!("{}:1", "h".repeat(ADDRESS_LEN_MAX));
        let wrong = [
            "",
            "host",
            "host:0",
            "0.0.0.0:1",
            "[::]:1",
            "::1:1",
            "a b:1",
            "a\n:1",
            "unix:/x",
            "a/b:1",
            "caf\u{e9}:1",
            &long,
        ];
        for wrong in wrong {
            assert!(!is_reachable(wrong), "{wrong}");
        }
    }
}
