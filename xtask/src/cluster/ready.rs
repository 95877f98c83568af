//! Whether a cluster serves: asked of the admin ports.

use std::fmt;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::ports::{Member, Ports, Role};

/// A program on the same machine that takes longer does not serve.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// Longest response that is read.
const RESPONSE_LEN_MAX: u64 = 4 << 20;

/// How far a start has come.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Progress {
    nodes: (u16, u16),
    routers: (u16, u16),
    /// By each that serves, which map it goes by, and how many nodes own slots by it.
    maps: Vec<(u64, Option<u16>)>,
}

impl Progress {
    /// Asks all programs.
    pub fn look(ports: &Ports) -> Self {
        let mut progress = Self {
            nodes: (0, ports.count(Role::Node)),
            routers: (0, ports.count(Role::Router)),
            maps: Vec::new(),
        };
        for member in ports.members() {
            let Ok(metrics) = metrics_of(member) else {
                continue;
            };
            let Ok(map) = map_of(member.role, &metrics) else {
                continue;
            };
            match member.role {
                Role::Node => progress.nodes.0 += 1,
                Role::Router => progress.routers.0 += 1,
            }
            progress.maps.push(map);
        }
        progress
    }

    /// Whether any process serves by a map.
    pub fn has_map(&self) -> bool {
        self.maps.iter().any(|(epoch, _)| *epoch > 0)
    }

    /// Whether all nodes serve, and are active by the map of each.
    pub fn has_nodes(&self) -> bool {
        let is_whole = |active: u16| active == self.nodes.1;
        self.nodes.0 == self.nodes.1 && self.maps.iter().all(|it| it.1.is_none_or(is_whole))
    }

    /// Whether all processes serve, by one map, in which all nodes are active.
    pub fn is_complete(&self) -> bool {
        self.has_nodes()
            && self.routers.0 == self.routers.1
            && self.maps.windows(2).all(|pair| pair[0].0 == pair[1].0)
    }
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let active = self.maps.iter().filter_map(|(_, active)| *active).max();
        write!(
            f,
            "{} of {} nodes and {} of {} routers are ready, {} nodes active",
            self.nodes.0,
            self.nodes.1,
            self.routers.0,
            self.routers.1,
            active.unwrap_or(0)
        )
    }
}

/// The metrics of a program that serves.
fn metrics_of(member: &Member) -> Result<String> {
    get(member.admin_socket(), "/readyz")?;
    get(member.admin_socket(), "/metrics")
}

/// The map that a program goes by; of a node, the active members in it too.
fn map_of(role: Role, metrics: &str) -> Result<(u64, Option<u16>)> {
    let number = |series: &str| sample(metrics, series).with_context(|| format!("no {series}"));
    Ok(match role {
        Role::Node => (
            number("fonn_cluster_epoch")?,
            Some(u16::try_from(number(
                "fonn_cluster_members{state=\"active\"}",
            )?)?),
        ),
        Role::Router => (number("fonn_router_map_epoch")?, None),
    })
}

/// The value of a series.
fn sample(metrics: &str, series: &str) -> Option<u64> {
    let lines = metrics.lines();
    let mut of_series = lines.filter_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    of_series.next()?.parse().ok()
}

/// The body of a response of status 200.
fn get(addr: SocketAddr, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect_timeout(&addr, ANSWER_LIMIT)?;
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    stream.set_write_timeout(Some(ANSWER_LIMIT))?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\r\n"
    )?;
    let mut response = String::new();
    stream
        .take(RESPONSE_LEN_MAX)
        .read_to_string(&mut response)?;
    ensure!(response.starts_with("HTTP/1.1 200 "), "{path}: {response}");
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_found_by_its_whole_name() {
        let metrics = "# TYPE a gauge\na_b 1\na{state=\"x\"} 2\na{state=\"y\"} 3\na 4\n";
        assert_eq!(sample(metrics, "a"), Some(4));
        assert_eq!(sample(metrics, "a{state=\"y\"}"), Some(3));
        assert_eq!(sample(metrics, "b"), None);
    }

    #[test]
    fn a_start_is_complete_when_all_serve_by_the_same_whole_map() {
        let at = |nodes, routers, maps: &[(u64, Option<u16>)]| Progress {
            nodes: (nodes, 2),
            routers: (routers, 1),
            maps: maps.to_vec(),
        };
        let whole = [(5, None), (5, Some(2)), (5, Some(2))];
        assert!(!at(0, 0, &[]).has_map() && !at(1, 0, &[(0, Some(0))]).has_map());
        assert!(at(1, 0, &[(1, Some(1))]).has_map());
        assert!(
            !at(1, 0, &[(1, Some(1))]).has_nodes() && !at(2, 0, &[(1, Some(1)); 2]).has_nodes()
        );
        assert!(at(2, 0, &[(1, Some(2)); 2]).has_nodes());
        assert!(at(2, 1, &whole).is_complete());
        assert!(!at(1, 1, &whole[..2]).is_complete());
        assert!(!at(2, 0, &whole[1..]).is_complete());
        assert!(!at(2, 1, &[(4, None), (5, Some(2)), (5, Some(2))]).is_complete());
        assert!(!at(2, 1, &[(5, None), (5, Some(1)), (5, Some(1))]).is_complete());
        let text = at(1, 0, &[(3, Some(1))]).to_string();
        assert_eq!(
            text,
            "1 of 2 nodes and 0 of 1 routers are ready, 1 nodes active"
        );
    }
}
