//! Figures of the proxies as tables: all figures of one kind of requests, or the costs of many.

use std::fmt::Write as _;

use super::Requests;
use crate::compare::spread::{Spread, median};

/// What one path did in one round.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Figures {
    pub(super) p50_us: f64,
    pub(super) operations_per_second: f64,
    /// Processor time of the process that the client talks to.
    pub(super) cpu_us: f64,
}

impl Figures {
    /// The median of each figure by itself.
    fn median(rounds: &[Self]) -> Self {
        let of = |figure: fn(&Self) -> f64| median(rounds.iter().map(figure));
        Self {
            p50_us: of(|it| it.p50_us),
            operations_per_second: of(|it| it.operations_per_second),
            cpu_us: of(|it| it.cpu_us),
        }
    }
}

pub(super) const DETAIL_HEAD: &str = "\
     | where they run | p50 memcached | through twemproxy | p50 a node | through fonn-router \
     | the router adds / twemproxy adds | operations/s, twemproxy | fonn-router \
     | operations per processor second, twemproxy | fonn-router | ratio |\n\
     |---|---|---|---|---|---|---|---|---|---|---|\n";

/// A line with all figures of one place. `paths` are memcached, twemproxy, a node and the router.
pub(super) fn detail(place: &str, paths: &[Vec<Figures>; 4]) -> String {
    let [memcached, twemproxy, node, router] = paths.each_ref().map(|it| Figures::median(it));
    let added = [
        twemproxy.p50_us - memcached.p50_us,
        router.p50_us - node.p50_us,
    ];
    format!(
        "| {place} | {:.1} µs | {:.1} µs | {:.1} µs | {:.1} µs | {:.1} / {:.1} µs = {:.2} \
         | {:.0} | {:.0} | {:.0} | {:.0} | {:.2} |\n",
        memcached.p50_us,
        twemproxy.p50_us,
        node.p50_us,
        router.p50_us,
        added[1],
        added[0],
        added[1] / added[0],
        twemproxy.operations_per_second,
        router.operations_per_second,
        1e6 / twemproxy.cpu_us,
        1e6 / router.cpu_us,
        twemproxy.cpu_us / router.cpu_us,
    )
}

pub(super) const COSTS_HEAD: &str = "\
     | requests | where they run | operations per processor second, twemproxy before memcached \
     | before nodes | fonn-router | ratio to the first | to the second |\n|---|---|---|---|---|---|---|\n";

/// A line with the costs of the proxies for one kind of requests in one place. `peers` are
/// twemproxy before memcached, and before nodes.
pub(super) fn costs(
    requests: Requests,
    place: &str,
    peers: [&[Figures]; 2],
    router: &[Figures],
) -> String {
    let mut line = format!("| {} | {place} |", requests.name());
    // Writing into a string cannot fail.
    for rounds in peers.into_iter().chain([router]) {
        let _ = write!(line, " {:.0} |", 1e6 / Figures::median(rounds).cpu_us);
    }
    for peer in peers {
        let rounds = peer.iter().zip(router);
        let ratio = Spread::of(rounds.map(|(peer, router)| peer.cpu_us / router.cpu_us));
        let _ = write!(
            line,
            " {:.2} ({:.2}–{:.2}) |",
            ratio.median, ratio.lower, ratio.upper
        );
    }
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(cpu_us: [f64; 3]) -> Vec<Figures> {
        let figures = |cpu_us| Figures {
            p50_us: 10.0,
            operations_per_second: 1000.0,
            cpu_us,
        };
        cpu_us.map(figures).to_vec()
    }

    #[test]
    fn the_costs_have_the_ratio_of_each_round() {
        let requests = Requests {
            value_len: 16 << 10,
            get_ratio: 0.0,
        };
        let (twemproxy, router) = (rounds([10.0, 20.0, 12.0]), rounds([8.0, 16.0, 12.0]));
        let before_nodes = rounds([16.0, 32.0, 24.0]);
        assert_eq!(
            costs(requests, "anywhere", [&twemproxy, &before_nodes], &router),
            "| SET 16 KiB | anywhere | 83333 | 41667 | 83333 | 1.25 (1.00–1.25) | 2.00 (2.00–2.00) |\n"
        );
    }

    #[test]
    fn lines_have_the_columns_of_their_heads() {
        let columns = |text: &str| text.lines().next().unwrap().matches('|').count();
        let figures = rounds([1.0, 2.0, 3.0]);
        let paths = [(); 4].map(|()| figures.clone());
        assert_eq!(columns(DETAIL_HEAD), columns(&detail("anywhere", &paths)));
        let requests = Requests {
            value_len: 100,
            get_ratio: 1.0,
        };
        let line = costs(requests, "anywhere", [&figures, &figures], &figures);
        assert_eq!(columns(COSTS_HEAD), columns(&line));
    }
}
