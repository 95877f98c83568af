//! The ratios by two generators, and whether they agree.

use std::fmt::{self, Write as _};

use super::{Cell, Family};
use crate::compare::spread::{Spread, median};

/// Ratios agree if neither is greater than the other by more than this share.
const TOLERANCE: f64 = 0.1;

/// What was measured in one cell: operations of one second of the server's processor time.
#[derive(Clone, Debug)]
pub(super) struct Row {
    work: &'static str,
    connections: usize,
    peer: &'static str,
    generator: &'static str,
    /// Of each round: the peer and Fonn, by our generator and by the other one.
    rounds: Vec<[[f64; 2]; 2]>,
}

impl Row {
    pub(super) const fn new(cell: &Cell, family: &Family) -> Self {
        Self {
            work: cell.work.name,
            connections: cell.connections,
            peer: family.peer_name,
            generator: family.generator.name(),
            rounds: Vec::new(),
        }
    }

    /// Adds a round: the figures of the peer and of Fonn by each generator.
    pub(super) fn push(&mut self, own: [f64; 2], other: [f64; 2]) {
        self.rounds.push([own, other]);
    }

    fn peer(&self, generator: usize) -> f64 {
        median(self.rounds.iter().map(|round| round[generator][0]))
    }

    /// Fonn by its peer, round by round.
    fn ratio(&self, generator: usize) -> Spread {
        let ratio = |round: &[[f64; 2]; 2]| round[generator][1] / round[generator][0];
        Spread::of(self.rounds.iter().map(ratio))
    }

    /// The ratio by the other generator, as a multiple of the ratio by our own.
    fn quotient(&self) -> f64 {
        self.ratio(1).median / self.ratio(0).median
    }
}

/// A line of progress.
impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [own, other] = [self.ratio(0), self.ratio(1)];
        write!(
            f,
            "{}, {} connections, {}: {:.2} by fonn-load, {:.2} by {}: {:.2}",
            self.work,
            self.connections,
            self.peer,
            own.median,
            other.median,
            self.generator,
            self.quotient()
        )
    }
}

fn agrees(quotient: f64) -> bool {
    quotient.max(1.0 / quotient) <= 1.0 + TOLERANCE
}

/// The table, and below it how many cells agree.
pub(super) fn markdown(rows: &[Row]) -> String {
    let mut text = String::from(
        "| work | connections | peer | by fonn-load: peer | fonn / peer | other generator \
         | by it: peer | fonn / peer | quotient | agrees |\n\
         |---|---|---|---|---|---|---|---|---|---|\n",
    );
    for row in rows {
        let ratio = |generator: usize| {
            let Spread {
                median,
                lower,
                upper,
            } = row.ratio(generator);
            format!("{median:.2} ({lower:.2}–{upper:.2})")
        };
        // Writing into a string cannot fail.
        let _ = writeln!(
            text,
            "| {} | {} | {} | {:.0} k | {} | {} | {:.0} k | {} | {:.2} | {} |",
            row.work,
            row.connections,
            row.peer,
            row.peer(0) / 1e3,
            ratio(0),
            row.generator,
            row.peer(1) / 1e3,
            ratio(1),
            row.quotient(),
            if agrees(row.quotient()) { "yes" } else { "no" },
        );
    }
    let quotients = || rows.iter().map(Row::quotient);
    let _ = write!(
        text,
        "\nFigures are operations of one second of the server's processor time, ratios are medians \
         of rounds with their quartiles.\n\
         The quotient is the ratio by the other generator divided by the ratio by fonn-load.\n\
         The ratios agree within {:.0} % in {} of {} cells; the median quotient is {:.2}.\n\
         memcaslap sends one request at a time, so it has no pipelined cells. Its sets overwrite \
         one key a connection, and so do those of fonn-load beside it.\n",
        TOLERANCE * 100.0,
        quotients().filter(|it| agrees(*it)).count(),
        rows.len(),
        median(quotients()),
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(own: [f64; 2], other: [f64; 2]) -> Row {
        Row {
            work: "GET 100 B",
            connections: 16,
            peer: "redis",
            generator: "redis-benchmark",
            rounds: vec![[own, other]],
        }
    }

    #[test]
    fn generators_agree_when_they_find_the_same_ratio_at_another_speed() {
        let mut row = row([100.0, 120.0], [50.0, 60.0]);
        assert!((row.quotient() - 1.0).abs() < 1e-9);
        // A slow round of the machine changes no ratio.
        row.push([10.0, 12.0], [50.0, 60.0]);
        row.push([100.0, 120.0], [5.0, 6.0]);
        assert!((row.quotient() - 1.0).abs() < 1e-9);
    }

    #[test]
    fn the_tolerance_is_the_same_in_both_directions() {
        assert!(agrees(1.0) && agrees(1.09) && agrees(1.0 / 1.09));
        assert!(!agrees(1.11) && !agrees(1.0 / 1.11) && !agrees(f64::NAN));
    }

    #[test]
    fn the_summary_counts_the_cells_that_agree() {
        let text = markdown(&[
            row([100.0, 100.0], [100.0, 100.0]),
            row([100.0, 100.0], [100.0, 150.0]),
        ]);
        assert!(text.contains("within 10 % in 1 of 2 cells"), "{text}");
        let mut columns = text
            .lines()
            .filter(|line| line.starts_with('|'))
            .map(|line| line.matches('|').count());
        let head = columns.next().unwrap();
        assert!(columns.all(|it| it == head), "{text}");
    }
}
