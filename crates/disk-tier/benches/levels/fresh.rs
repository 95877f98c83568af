//! Codecs for fresh values where one thing is scarce: the processor, the device, or space.
//!
//! - *processor*: as many writes as the tier takes, on a device that is not slowed down. Figure:
//!   commits a second. `taskset -c 0` gives it one processor.
//! - *device*: the same on a device of 20 MB/s, a token bucket in the writer
//!   (`DiskOptions::write_bytes_per_sec_max`), so that every machine has the same one. Figure:
//!   commits a second.
//! - *space*: the budget holds a third of the values as they are. Lookups come at a fixed rate that
//!   leaves processor and device idle, and a miss is followed by a write. Figure: hits a second.
//!
//! `auto` is compared with the best fixed codec of the same load.

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use super::data::{Kind, Pool};
use super::plot::Bars;
use super::rig::{Rig, cpu_seconds};
use super::save;

/// The codecs that are compared; the last one chooses.
const CODECS: [&str; 4] = ["none", "lz4", "zstd:3", "auto"];

const VALUE_LEN: usize = 16 << 10;

/// Time before figures are taken of a fixed codec.
const WARM_UP: Duration = Duration::from_secs(4);
/// The same of `auto`, which needs some seconds to see what is scarce.
const AUTO_WARM_UP: Duration = Duration::from_secs(12);
const MEASURED: Duration = Duration::from_secs(6);

/// Bytes a second of the slow device.
const SLOW: u64 = 20_000_000;

/// With scarce space, the values of the codec have to replace each other once before figures are
/// taken. With `auto` so do those of the codec that it chooses while the tier fills, when the
/// processor is scarce; it keeps such a codec for half a minute.
const SPACE_WARM_UP: Duration = Duration::from_secs(8);
const SPACE_AUTO_WARM_UP: Duration = Duration::from_secs(60);
const SPACE_BUDGET: u64 = 128 << 20;
const SPACE_KEYS: u64 = 3 * SPACE_BUDGET / VALUE_LEN as u64;
/// Lookups a second with scarce space.
const SPACE_RATE: u64 = 6000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scarce {
    Processor,
    Device,
    Space,
}

impl Scarce {
    const ALL: [Self; 3] = [Self::Processor, Self::Device, Self::Space];

    fn name(self) -> &'static str {
        match self {
            Self::Processor => "processor",
            Self::Device => "device",
            Self::Space => "space",
        }
    }
}

/// What one codec did in one round.
struct Turn {
    /// Commits or hits a second: what counts.
    rate: f64,
    /// The same for each second of the processor.
    rate_cpu: f64,
    written_mb_s: f64,
    ended_with: String,
}

/// Measures all codecs in turn, with `scarce` alone if it is given.
pub fn run(out: &Path, rounds: usize, scarce: Option<&str>) {
    let mut csv = "scarce,kind,codec,per_second,per_second_min,per_second_max,per_cpu_second,\
                   written_mb_s,ended_with,of_the_best_fixed\n"
        .to_owned();
    let mut bars = Bars::new("commits or hits a second, best = 1", &CODECS);
    for (scarce, kind) in Scarce::ALL
        .into_iter()
        .filter(|it| scarce.is_none_or(|wanted| wanted == it.name()))
        .flat_map(|scarce| Kind::ALL.map(|kind| (scarce, kind)))
    {
        let pool = Pool::new(kind, VALUE_LEN);
        let mut turns: [Vec<Turn>; CODECS.len()] = Default::default();
        for _ in 0..rounds {
            for (codec, turns) in CODECS.iter().zip(&mut turns) {
                turns.push(scarce.turn(&pool, codec));
            }
        }
        let rates = turns.each_ref().map(|it| Spread::of(it, |turn| turn.rate));
        for ((codec, turns), rate) in CODECS.iter().zip(&turns).zip(&rates) {
            let mut ended: Vec<&str> = turns.iter().map(|turn| &*turn.ended_with).collect();
            ended.sort_unstable();
            ended.dedup();
            let row = format!(
                "{},{},{codec},{:.0},{:.0},{:.0},{:.0},{:.0},{},{:.3}",
                scarce.name(),
                kind.name(),
                rate.median,
                rate.least,
                rate.most,
                Spread::of(turns, |turn| turn.rate_cpu).median,
                Spread::of(turns, |turn| turn.written_mb_s).median,
                ended.join(" or "),
                rate.median / best_fixed(&rates),
            );
            println!("{row}");
            let _ = writeln!(csv, "{row}");
        }
        let best = rates.iter().map(|rate| rate.median).fold(0.0, f64::max);
        let shares = rates.iter().map(|rate| rate.median / best).collect();
        bars.group(&format!("{}, {}", scarce.name(), kind.name()), shares);
        save(out, "codec-fresh", &csv);
        std::fs::write(out.join("codec-fresh.svg"), bars.svg()).unwrap();
    }
}

/// The highest median of a fixed codec; the last codec chooses.
fn best_fixed(rates: &[Spread; CODECS.len()]) -> f64 {
    let [fixed @ .., _] = rates;
    fixed.iter().map(|rate| rate.median).fold(0.0, f64::max)
}

impl Scarce {
    fn turn(self, pool: &Pool, codec: &str) -> Turn {
        let rig = Rig::new(|options| {
            options.fresh = codec.parse().unwrap();
            options.budget_bytes = match self {
                Self::Space => SPACE_BUDGET,
                Self::Processor | Self::Device => 1 << 30,
            };
            options.write_bytes_per_sec_max = match self {
                Self::Device => Some(SLOW),
                Self::Processor | Self::Space => None,
            };
        });
        let mut load = Load {
            rig: &rig,
            pool,
            next: 0,
            random: 88_172_645_463_325_252,
        };
        let warm_up = match (self, codec) {
            (Self::Space, "auto") => SPACE_AUTO_WARM_UP,
            (Self::Space, _) => SPACE_WARM_UP,
            (_, "auto") => AUTO_WARM_UP,
            (_, _) => WARM_UP,
        };
        let mut run = |time| match self {
            Self::Space => load.look_up(time),
            Self::Processor | Self::Device => load.write(time),
        };
        run(warm_up);
        let written_before = rig.tier().stats().snapshot().written_bytes;
        let (cpu, began) = (cpu_seconds(), Instant::now());
        let count = run(MEASURED) as f64;
        let (cpu, seconds) = (cpu_seconds() - cpu, began.elapsed().as_secs_f64());
        let written = rig.tier().stats().snapshot().written_bytes - written_before;
        Turn {
            rate: count / seconds,
            rate_cpu: count / cpu,
            written_mb_s: written as f64 / seconds / 1e6,
            ended_with: rig.tier().fresh().active().0.to_string(),
        }
    }
}

/// What asks a tier.
struct Load<'a> {
    rig: &'a Rig,
    pool: &'a Pool,
    /// The number of the next value that is written.
    next: u64,
    random: u64,
}

impl Load<'_> {
    /// Writes new values for a while, and returns how many.
    fn write(&mut self, time: Duration) -> u64 {
        let first = self.next;
        self.next = self.rig.write_for(self.pool, first, time);
        self.next - first
    }

    /// Looks up random keys at the fixed rate, writes those that are missing, and returns how many
    /// were there.
    fn look_up(&mut self, time: Duration) -> u64 {
        let (began, mut asked, mut hits) = (Instant::now(), 0, 0);
        while began.elapsed() < time {
            let due = (began.elapsed().as_secs_f64() * SPACE_RATE as f64) as u64;
            let keys: Vec<u64> = (asked..due).map(|_| self.random_key()).collect();
            asked = due;
            hits += self.rig.read_or_write(self.pool, &keys);
            std::thread::sleep(Duration::from_millis(2));
        }
        hits
    }

    /// Xorshift, G. Marsaglia, 2003.
    fn random_key(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % SPACE_KEYS
    }
}

/// Of some figures.
struct Spread {
    least: f64,
    median: f64,
    most: f64,
}

impl Spread {
    fn of(turns: &[Turn], figure: fn(&Turn) -> f64) -> Self {
        let mut values: Vec<f64> = turns.iter().map(figure).collect();
        values.sort_by(f64::total_cmp);
        Self {
            least: values[0],
            median: values[values.len() / 2],
            most: values[values.len() - 1],
        }
    }
}
