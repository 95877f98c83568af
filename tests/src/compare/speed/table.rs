//! The figures of cells as tables in Markdown and as CSV.

use std::fmt::{self, Write as _};

use super::super::spread::Spread;
use super::super::{CONTENDERS, Server};
use super::cells::Work;
use crate::load::Protocol;

/// What was measured of one kind of work over one number of connections.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    pub(super) work: &'static Work,
    pub(super) connections: usize,
    /// Of each contender, a figure a round, in the order of [`CONTENDERS`].
    scores: [Vec<f64>; CONTENDERS.len()],
    /// Alike: the time in microseconds that 99.9 % of the operations took at most.
    tails: [Vec<f64>; CONTENDERS.len()],
    /// A figure a round of the server that does nothing.
    pub(super) limits: Vec<f64>,
}

impl Cell {
    pub(super) fn new(work: &'static Work, connections: usize) -> Self {
        Self {
            work,
            connections,
            scores: Default::default(),
            tails: Default::default(),
            limits: Vec::new(),
        }
    }

    /// Notes one measurement of contender `at`.
    pub(super) fn push(&mut self, at: usize, score: f64, p999_us: f64) {
        self.scores[at].push(score);
        self.tails[at].push(p999_us);
    }

    /// The peer with the best median: its place among [`CONTENDERS`].
    fn best_peer(&self) -> usize {
        let peers = (0..CONTENDERS.len()).filter(|at| CONTENDERS[*at].0 != Server::Fonn);
        let median = |at: usize| Spread::of(self.scores[at].clone()).median;
        peers
            .max_by(|one, two| median(*one).total_cmp(&median(*two)))
            .unwrap_or(0)
    }

    /// What a server that does nothing comes to, by the figure of the best peer, round by round.
    fn limit(&self) -> Spread {
        let rounds = self.limits.iter().zip(&self.scores[self.best_peer()]);
        Spread::of(rounds.map(|(limit, peer)| limit / peer))
    }

    /// Of each protocol of Fonn, its figure by that of the best peer, round by round.
    pub(super) fn ratios(&self) -> Vec<(Protocol, Spread)> {
        let peer = &self.scores[self.best_peer()];
        let own = CONTENDERS.iter().zip(&self.scores);
        own.filter(|((server, _), _)| *server == Server::Fonn)
            .map(|((_, protocol), scores)| {
                let ratios = scores.iter().zip(peer).map(|(own, peer)| own / peer);
                (*protocol, Spread::of(ratios))
            })
            .collect()
    }
}

/// A line of progress.
impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} connections:", self.work.name, self.connections)?;
        for (protocol, ratio) in self.ratios() {
            write!(f, " {:.2} {}", ratio.median, name(Server::Fonn, protocol))?;
        }
        write!(f, ", {:.2} limit", self.limit().median)
    }
}

/// The two tables of docs/benchmarks.md.
pub(super) fn markdown(cells: &[Cell]) -> String {
    let mut speed = String::from(
        "| work | connections | best peer, per server processor second | fonn text | fonn binary \
         | fonn RESP | limit | bar |\n|---|---|---|---|---|---|---|---|\n",
    );
    let mut tails = String::from(
        "| p99.9 in µs | connections | memcached text | memcached binary | redis | fonn text \
         | fonn binary | fonn RESP |\n|---|---|---|---|---|---|---|---|\n",
    );
    for cell in cells {
        let (best, work) = (cell.best_peer(), cell.work);
        let score = Spread::of(cell.scores[best].clone()).median;
        let (server, protocol) = CONTENDERS[best];
        let unit = if work.is_in_bytes() { "GB" } else { "k" };
        let digits = if work.is_in_bytes() { 2 } else { 0 };
        let ratios: String = cell
            .ratios()
            .iter()
            .map(|(_, it)| format!(" {:.2} ({:.2}–{:.2}) |", it.median, it.lower, it.upper))
            .collect();
        put(
            &mut speed,
            format_args!(
                "| {} | {} | {} {score:.digits$} {unit} |{ratios} {:.2} | {} |\n",
                work.name,
                cell.connections,
                name(server, protocol),
                cell.limit().median,
                work.bar
            ),
        );
        let times: String = cell
            .tails
            .iter()
            .map(|it| format!(" {:.0} |", Spread::of(it.clone()).median))
            .collect();
        put(
            &mut tails,
            format_args!("| {} | {} |{times}\n", work.name, cell.connections),
        );
    }
    format!("{speed}\n{tails}")
}

/// All figures, one measurement a line.
pub(super) fn csv(cells: &[Cell]) -> String {
    let mut csv =
        String::from("work,connections,server,round,score_per_server_cpu_second,p999_us\n");
    for cell in cells {
        for ((server, protocol), (scores, tails)) in
            CONTENDERS.iter().zip(cell.scores.iter().zip(&cell.tails))
        {
            for (round, (score, tail)) in scores.iter().zip(tails).enumerate() {
                put(
                    &mut csv,
                    format_args!(
                        "\"{}\",{},{},{round},{score:.3},{tail:.1}\n",
                        cell.work.name,
                        cell.connections,
                        name(*server, *protocol)
                    ),
                );
            }
        }
        for (round, limit) in cell.limits.iter().enumerate() {
            put(
                &mut csv,
                format_args!(
                    "\"{}\",{},limit,{round},{limit:.3},\n",
                    cell.work.name, cell.connections
                ),
            );
        }
    }
    csv
}

const fn name(server: Server, protocol: Protocol) -> &'static str {
    match (server, protocol) {
        (Server::Memcached, Protocol::Text) => "memcached text",
        (Server::Memcached, _) => "memcached binary",
        (Server::Redis, _) => "redis",
        (Server::Fonn, Protocol::Text) => "fonn text",
        (Server::Fonn, Protocol::Binary) => "fonn binary",
        (Server::Fonn, Protocol::Resp) => "fonn RESP",
    }
}

fn put(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    // Writing into a string cannot fail.
    let _ = text.write_fmt(arguments);
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::cells::WORKS;
    use super::*;

    pub(in super::super) fn cell() -> Cell {
        let mut cell = Cell::new(&WORKS[0], 16);
        for (round, scale) in [1.0, 2.0, 1.5].into_iter().enumerate() {
            for at in 0..CONTENDERS.len() {
                let own = if at == 5 { 0.1 * round as f64 } else { 0.0 };
                cell.push(at, scale * (1.0 + own) * 100.0, 50.0 * scale);
            }
            cell.limits.push(scale * 150.0);
        }
        cell
    }

    #[test]
    fn a_slow_round_hits_all_and_changes_no_ratio() {
        let ratios = cell().ratios();
        let of = |wanted| ratios.iter().find(|(it, _)| *it == wanted).unwrap().1;
        assert!((of(Protocol::Text).lower - 1.0).abs() < 1e-9);
        assert!((of(Protocol::Text).upper - 1.0).abs() < 1e-9);
        let resp = of(Protocol::Resp);
        assert!((resp.lower - 1.0).abs() < 1e-9 && (resp.upper - 1.2).abs() < 1e-9);
        assert!((resp.median - 1.1).abs() < 1e-9);
    }

    #[test]
    fn each_row_has_the_columns_of_its_head() {
        let text = markdown(&[cell(), cell()]);
        for table in text.split("\n\n") {
            let mut columns = table.lines().map(|line| line.matches('|').count());
            let head = columns.next().unwrap();
            assert!(columns.all(|it| it == head), "{table}");
        }
        assert_eq!(
            csv(&[cell()]).lines().count(),
            1 + 3 * (CONTENDERS.len() + 1)
        );
    }
}
