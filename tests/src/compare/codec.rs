//! What a codec costs a node on values that it does not shrink: one node, its codec changed live
//! between two.

use std::fmt::Write as _;
use std::num::NonZeroUsize;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::ctl;
use crate::load::{self, LoadOptions, Protocol, Sizes, Target};
use crate::node::{FonnNode, NodeOptions};
use crate::usage::thread_times;
use crate::values::Content;

/// Threads that a set keeps busy: the others flush, sync, compact and make room.
const ON_THE_WAY: [&str; 2] = ["reactor-", "fonn-disk-write"];

/// Far more than are set while one codec is in force, so that hardly any is set twice in that time.
const KEYS: u64 = 50_000_000;

/// How long the rate of sets is looked at first, which warms the node up as well.
const WARM_UP: Duration = Duration::from_secs(3);

/// What is set, and under which codecs.
#[derive(Clone, Debug)]
pub struct CodecOptions {
    /// Length of values in bytes.
    pub value_len: usize,
    /// What they look like.
    pub content: Content,
    /// The codec that is measured.
    pub codec: String,
    /// The one that it is measured beside.
    pub beside: String,
    /// The level that has them: `fresh` or `ram`.
    pub level: String,
    /// How long each is in force at a time, about.
    pub turn: Duration,
    /// Turns of each.
    pub pairs: usize,
    /// More flags for the node, each with its value.
    pub fonn_flags: Vec<(String, String)>,
}

/// Sets as many values under both codecs in turn, and returns a table in Markdown: processor time a
/// set, and the ratio of each two neighbors.
///
/// # Errors
/// When the node does not start, or refuses a set or a codec.
pub fn compare_codecs(options: &CodecOptions) -> Result<String> {
    let mut node = NodeOptions::new()
        .flag("--threads", "1")
        .flag("--codec", "compacted=none");
    for (name, value) in &options.fonn_flags {
        node = node.flag(name, value);
    }
    let rig = Rig {
        node: node.start()?,
        options,
    };
    rig.choose(&options.codec)?;
    let warm = load::run(&LoadOptions {
        duration: WARM_UP,
        ..rig.sets(0)
    })?;
    let sets = (warm.operations_per_second * options.turn.as_secs_f64()).max(100.0) as u64;
    let (mut measured, mut beside) = (Vec::new(), Vec::new());
    for pair in 0..options.pairs.max(2) as u64 {
        let turn = |codec: &str, seed| rig.turn(codec, sets, seed);
        // Which one is first changes from pair to pair: whatever goes on in the background hits
        // both.
        if pair % 2 == 0 {
            measured.push(turn(&options.codec, 2 * pair)?);
            beside.push(turn(&options.beside, 2 * pair + 1)?);
        } else {
            beside.push(turn(&options.beside, 2 * pair)?);
            measured.push(turn(&options.codec, 2 * pair + 1)?);
        }
    }
    table(options, sets, &measured, &beside)
}

/// Processor time of a set, in microseconds.
#[derive(Clone, Copy, Debug)]
struct Cost {
    /// Of the threads that it passes.
    on_the_way: f64,
    /// Of all.
    all: f64,
}

/// One of both.
type Part = fn(&Cost) -> f64;

struct Rig<'a> {
    node: FonnNode,
    options: &'a CodecOptions,
}

impl Rig<'_> {
    fn sets(&self, seed: u64) -> LoadOptions {
        let mut load = LoadOptions::new(Target::Tcp(self.node.addr()), Protocol::Binary);
        load.connections = NonZeroUsize::MIN.saturating_add(3);
        load.pipeline = NonZeroUsize::MIN.saturating_add(15);
        load.keys = KEYS;
        load.value_size = Sizes::fixed(self.options.value_len);
        load.content = self.options.content;
        load.get_ratio = 0.0;
        load.no_fill = true;
        load.seed = seed;
        load
    }

    fn choose(&self, codec: &str) -> Result<()> {
        let setting = format!("{}={codec}", self.options.level);
        ctl::text(&self.node.admin().to_string(), &["codec", &setting])?;
        Ok(())
    }

    fn turn(&self, codec: &str, sets: u64, seed: u64) -> Result<Cost> {
        self.choose(codec)?;
        let load = LoadOptions {
            operations: Some(sets),
            ..self.sets(seed + 1)
        };
        let pid = self.node.pid()?;
        let before = used(pid)?;
        let report = load::run(&load)?;
        let after = used(pid)?;
        ensure!(report.refused == 0, "{} sets were refused", report.refused);
        let a_set = |after: Duration, before: Duration| {
            after.saturating_sub(before).as_secs_f64() * 1e6 / sets as f64
        };
        Ok(Cost {
            on_the_way: a_set(after.0, before.0),
            all: a_set(after.1, before.1),
        })
    }
}

/// Processor time of the threads on the way, and of all.
fn used(pid: u32) -> Result<(Duration, Duration)> {
    let (mut on_the_way, mut all) = (Duration::ZERO, Duration::ZERO);
    for (name, time) in thread_times(pid)? {
        all += time;
        if ON_THE_WAY.iter().any(|it| name.starts_with(it)) {
            on_the_way += time;
        }
    }
    ensure!(
        on_the_way > Duration::ZERO,
        "the node's threads have other names"
    );
    Ok((on_the_way, all))
}

fn table(options: &CodecOptions, sets: u64, measured: &[Cost], beside: &[Cost]) -> Result<String> {
    let mut out = format!(
        "{} pairs of {sets} sets of {} bytes, {:?}, {}={} beside {}\n\n\
         | threads | {}, µs a set | {}, µs a set | ratio of pairs, median (95 %) | mean ± 95 % |\n\
         |---|---|---|---|---|\n",
        measured.len(),
        options.value_len,
        options.content,
        options.level,
        options.codec,
        options.beside,
        options.codec,
        options.beside,
    );
    let columns: [(&str, Part); 2] = [
        ("on the way of a set", |cost| cost.on_the_way),
        ("all", |cost| cost.all),
    ];
    for (name, of) in columns {
        let ratios: Vec<f64> = measured
            .iter()
            .zip(beside)
            .map(|(measured, beside)| of(measured) / of(beside))
            .collect();
        let ratio = Spread::of(ratios).context("no pairs")?;
        let cost = |costs: &[Cost]| Spread::of(costs.iter().map(of).collect()).context("no turns");
        writeln!(
            out,
            "| {name} | {:.2} | {:.2} | {:.4} ({:.4}-{:.4}) | {:.4} ± {:.4} |",
            cost(measured)?.median,
            cost(beside)?.median,
            ratio.median,
            ratio.median_min,
            ratio.median_max,
            ratio.mean,
            ratio.error,
        )?;
    }
    Ok(out)
}

/// What measurements say together.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Spread {
    mean: f64,
    /// Half of the 95 % interval of the mean.
    error: f64,
    median: f64,
    /// The 95 % interval of the median, which a few disturbed measurements do not move.
    median_min: f64,
    median_max: f64,
}

impl Spread {
    /// None of no measurements.
    fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let median = *values.get(values.len() / 2)?;
        let count = values.len() as f64;
        // So many measurements are below the true median, 95 times of 100 (binomial distribution).
        let margin = 0.98 * count.sqrt();
        let at = |place: f64| values.get(place.clamp(0.0, count - 1.0) as usize).copied();
        let (median_min, median_max) = (
            at((count / 2.0 - margin).floor())?,
            at((count / 2.0 + margin).ceil())?,
        );
        let mean = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        // One measurement says nothing of its error.
        let deviation = (squares / (count - 1.0)).sqrt();
        Some(Self {
            mean,
            error: 1.96 * deviation / count.sqrt(),
            median,
            median_min,
            median_max,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_mean_error_and_median_with_its_interval() {
        let spread = Spread::of(vec![1.0, 3.0, 2.0, 10.0, 4.0]).unwrap();
        assert_eq!((spread.mean, spread.median), (4.0, 3.0));
        // Standard deviation: the root of 50 / 4.
        assert!((spread.error - 1.96 * (12.5_f64 / 5.0).sqrt()).abs() < 1e-9);
        assert_eq!((spread.median_min, spread.median_max), (1.0, 10.0));
        // 100: from the 41st to the 61st, and two that were disturbed move nothing.
        let numbers = (0..98).map(f64::from).chain([1e9, 1e9]);
        let spread = Spread::of(numbers.collect()).unwrap();
        let interval = (spread.median_min, spread.median, spread.median_max);
        assert_eq!(interval, (40.0, 50.0, 60.0));
        assert_eq!(Spread::of(Vec::new()), None);
    }

    #[test]
    fn the_table_has_the_ratio_of_each_pair() {
        let cost = |on_the_way, all| Cost { on_the_way, all };
        let options = CodecOptions {
            value_len: 1024,
            content: Content::Random,
            codec: "lz4".to_owned(),
            beside: "none".to_owned(),
            level: "fresh".to_owned(),
            turn: Duration::from_secs(1),
            pairs: 2,
            fonn_flags: Vec::new(),
        };
        let measured = [cost(11.0, 22.0), cost(22.0, 44.0)];
        let beside = [cost(10.0, 20.0), cost(20.0, 20.0)];
        let table = table(&options, 1000, &measured, &beside).unwrap();
        assert!(
            table.contains("2 pairs of 1000 sets of 1024 bytes, Random, fresh=lz4 beside none")
        );
        assert!(
            table.contains("| 22.00 | 20.00 | 1.1000 (1.1000-1.1000) | 1.1000 ± 0.0000 |"),
            "{table}"
        );
        assert!(
            table.contains("| 44.00 | 20.00 | 2.2000 (1.1000-2.2000) | 1.6500 ± 1.0780 |"),
            "{table}"
        );
    }
}
