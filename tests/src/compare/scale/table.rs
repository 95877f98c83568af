//! The tables of threads and of idle connections.

use std::fmt::Write as _;

use crate::compare::Server;
use crate::compare::spread::median;

/// Processor time of an operation among idle connections, as a multiple of that without them.
const IDLE_BAR: f64 = 1.1;

/// Operations of one server in one round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rates {
    /// For each second of the server's processor time.
    pub(super) per_cpu_second: f64,
    /// For each second of the clock.
    pub(super) per_second: f64,
}

impl Rates {
    fn cpu_us(&self) -> f64 {
        1e6 / self.per_cpu_second
    }
}

/// The rounds of a server under two conditions.
#[derive(Clone, Debug)]
pub(super) struct Rounds {
    first: Vec<Rates>,
    second: Vec<Rates>,
}

impl Rounds {
    pub(super) fn new(first: &[Rates], second: &[Rates]) -> Self {
        Self {
            first: first.to_vec(),
            second: second.to_vec(),
        }
    }

    fn medians(&self, of: impl Fn(&Rates) -> f64) -> [f64; 2] {
        [&self.first, &self.second].map(|rounds| median(rounds.iter().map(&of)))
    }

    /// A figure of the second condition as a multiple of that of the first, round by round.
    fn ratio(&self, of: impl Fn(&Rates) -> f64) -> f64 {
        let rounds = self.first.iter().zip(&self.second);
        median(rounds.map(|(first, second)| of(second) / of(first)))
    }
}

/// One and two threads.
pub(super) fn threads(connections: usize, rows: &[(Server, usize, Rounds)]) -> String {
    let mut text = format!(
        "GET 100 B over {connections} connections; client and servers share all processors:\n\n\
         | server | in flight on a connection | per processor second: 1 thread | 2 threads | ratio \
         | per second: 1 thread | 2 threads | ratio |\n|---|---|---|---|---|---|---|---|\n",
    );
    for (server, pipeline, rounds) in rows {
        let [cpu_one, cpu_two] = rounds.medians(|it| it.per_cpu_second / 1e3);
        let [one, two] = rounds.medians(|it| it.per_second / 1e3);
        // Writing into a string cannot fail.
        let _ = writeln!(
            text,
            "| {} | {pipeline} | {cpu_one:.0} k | {cpu_two:.0} k | {:.2} \
             | {one:.0} k | {two:.0} k | {:.2} |",
            name(*server),
            rounds.ratio(|it| it.per_cpu_second),
            rounds.ratio(|it| it.per_second),
        );
    }
    text
}

/// Active connections alone, and among idle ones.
pub(super) fn idle(active: usize, connections: usize, rows: &[(Server, Rounds)]) -> String {
    let mut text = format!(
        "GET 100 B over {active} active connections, alone and among {connections}:\n\n\
         | server | processor time of an operation: {active} connections | {connections} \
         | ratio | bar | operations per second: {active} connections | {connections} |\n\
         |---|---|---|---|---|---|---|\n",
    );
    for (server, rounds) in rows {
        let [alone, among] = rounds.medians(Rates::cpu_us);
        let [rate_alone, rate_among] = rounds.medians(|it| it.per_second / 1e3);
        let _ = writeln!(
            text,
            "| {} | {alone:.2} µs | {among:.2} µs | {:.2} | ≤ {IDLE_BAR} | {rate_alone:.0} k \
             | {rate_among:.0} k |",
            name(*server),
            rounds.ratio(Rates::cpu_us),
        );
    }
    text
}

const fn name(server: Server) -> &'static str {
    match server {
        Server::Memcached => "memcached",
        Server::Redis => "redis",
        Server::Fonn => "fonn",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(per_cpu_second: f64) -> Rates {
        Rates {
            per_cpu_second,
            per_second: per_cpu_second / 2.0,
        }
    }

    fn rounds() -> Rounds {
        let first = [rates(100e3), rates(50e3), rates(80e3)];
        let second = [rates(80e3), rates(40e3), rates(64e3)];
        Rounds::new(&first, &second)
    }

    #[test]
    fn a_slow_round_hits_both_conditions_and_changes_no_ratio() {
        assert!((rounds().ratio(|it| it.per_cpu_second) - 0.8).abs() < 1e-9);
        assert!((rounds().ratio(Rates::cpu_us) - 1.25).abs() < 1e-9);
    }

    #[test]
    fn each_row_has_the_columns_of_its_head() {
        let one = threads(64, &[(Server::Fonn, 16, rounds())]);
        let two = idle(100, 10_000, &[(Server::Memcached, rounds())]);
        assert!(
            two.contains("| memcached | 12.50 µs | 15.62 µs | 1.25 |"),
            "{two}"
        );
        for text in [one, two] {
            let rows = text.lines().filter(|line| line.starts_with('|'));
            let columns: Vec<usize> = rows.map(|line| line.matches('|').count()).collect();
            assert!(columns.iter().all(|it| *it == columns[0]), "{text}");
        }
    }
}
