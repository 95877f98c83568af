//! `auto` in simulated hours: nodes of which processor, device and data are known, so that the best
//! fixed codec is, too.

#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::{Auto, CANDIDATES, Cost, Decision, Level, Reason, Sample, Signals, candidate};
use crate::spec::CodecSpec;

/// Seconds between observations.
const INTERVAL_S: f64 = 2.0;

/// Of each candidate: stored share, and nanoseconds to compress and decompress a byte.
type Data = [(f64, f64); CANDIDATES.len()];

const TEXT: Data = [
    (1.0, 0.0),
    (0.45, 2.5),
    (0.32, 4.5),
    (0.30, 6.5),
    (0.28, 14.0),
    (0.27, 25.0),
];
const OBJECTS: Data = [
    (1.0, 0.0),
    (0.60, 2.0),
    (0.45, 3.0),
    (0.43, 5.0),
    (0.42, 11.0),
    (0.41, 19.0),
];
const NOISE: Data = [
    (1.0, 0.0),
    (1.0, 0.1),
    (1.0, 0.2),
    (1.0, 0.3),
    (1.0, 0.4),
    (1.0, 0.5),
];

/// A machine under a load: everything is linear in the bytes a second.
#[derive(Clone, Copy, Debug)]
struct Node {
    cpus: f64,
    /// Nanoseconds that a byte costs besides its codec.
    other_ns: f64,
    /// Stored bytes a second that the device takes.
    device: f64,
    /// Raw bytes a second that clients would write if they could.
    demand: f64,
    data: Data,
}

impl Node {
    /// Raw bytes a second with the candidate `index`.
    fn throughput(&self, index: usize) -> f64 {
        let (stored_share, ns) = self.data[index];
        let by_cpu = self.cpus * 1e9 / (self.other_ns + ns);
        let by_device = self.device / stored_share;
        self.demand.min(by_cpu).min(by_device)
    }

    fn best_throughput(&self, level: Level) -> f64 {
        (0..level.candidate_count())
            .map(|index| self.throughput(index))
            .fold(0.0, f64::max)
    }

    fn signals(&self, index: usize) -> Signals {
        let (stored_share, ns) = self.data[index];
        let throughput = self.throughput(index);
        Signals {
            cpu_busy: (throughput * (self.other_ns + ns) / 1e9 / self.cpus) as f32,
            device_busy: (throughput * stored_share / self.device) as f32,
            backlog: 0.0,
        }
    }
}

/// A level of a node, through time.
struct Simulation {
    auto: Auto,
    now_ms: u64,
    sample: Sample,
    decisions: Vec<(u64, Decision)>,
}

impl Simulation {
    fn new(level: Level, cpus: f64) -> Self {
        Self {
            auto: Auto::new(level, cpus as f32),
            now_ms: 1_700_000_000_000,
            sample: Sample::default(),
            decisions: Vec::new(),
        }
    }

    fn current(&self) -> usize {
        (0..CANDIDATES.len())
            .find(|&index| candidate(index) == Some(self.auto.current()))
            .unwrap()
    }

    /// One interval on `node`, of which `distort` changes what is seen.
    fn step(&mut self, node: &Node, distort: impl FnOnce(&mut Signals)) -> f64 {
        let index = self.current();
        let throughput = node.throughput(index);
        self.now_ms += (INTERVAL_S * 1000.0) as u64;
        self.sample.offered_bytes += (throughput * INTERVAL_S) as u64;
        self.sample.raw_bytes = 1_000_000;
        for (index, (stored_share, ns)) in node.data.iter().enumerate() {
            let cost = Cost {
                stored_bytes: (stored_share * 1e6) as u64,
                cpu_ns: (ns * 1e6) as u64,
            };
            self.sample.set_cost(candidate(index).unwrap(), cost);
        }
        let mut signals = node.signals(index);
        distort(&mut signals);
        if let Some(decision) = self.auto.observe(self.now_ms, signals, &self.sample) {
            assert_eq!(decision.from, candidate(index).unwrap());
            assert_eq!(decision.to, self.auto.current());
            self.decisions.push((self.now_ms, decision));
        }
        throughput
    }

    /// Some minutes on a node, and the mean throughput of the last one.
    fn run(&mut self, node: &Node, minutes: u32) -> f64 {
        let per_minute = (60.0 / INTERVAL_S) as u32;
        for _ in 0..per_minute * (minutes - 1) {
            self.step(node, |_| ());
        }
        (0..per_minute)
            .map(|_| self.step(node, |_| ()))
            .sum::<f64>()
            / f64::from(per_minute)
    }

    fn reasons(&self) -> Vec<&'static str> {
        let reason = |(_, decision): &(u64, Decision)| decision.reason.label();
        self.decisions.iter().map(reason).collect()
    }
}

const GB: f64 = 1e9;
const MB: f64 = 1e6;

const CPU_STARVED: Node = Node {
    cpus: 1.0,
    other_ns: 2.0,
    device: 2.0 * GB,
    demand: f64::INFINITY,
    data: TEXT,
};
const DISK_STARVED: Node = Node {
    cpus: 8.0,
    other_ns: 2.0,
    device: 50.0 * MB,
    demand: f64::INFINITY,
    data: TEXT,
};

#[test]
fn a_processor_that_is_scarce_drops_the_codec() {
    for level in Level::ALL {
        let mut simulation = Simulation::new(level, CPU_STARVED.cpus);
        let reached = simulation.run(&CPU_STARVED, 5);
        assert!(reached >= 0.95 * CPU_STARVED.best_throughput(level));
        assert_eq!(simulation.auto.current(), CodecSpec::none());
        assert!(simulation.decisions.len() <= 1);
        if level == Level::Compacted {
            assert_eq!(simulation.reasons(), ["cpu_scarce"]);
        }
    }
}

#[test]
fn a_device_that_is_scarce_gets_the_codec_that_stores_least() {
    for level in Level::ALL {
        let mut simulation = Simulation::new(level, DISK_STARVED.cpus);
        let reached = simulation.run(&DISK_STARVED, 5);
        assert!(reached >= 0.95 * DISK_STARVED.best_throughput(level));
        assert!(simulation.decisions.len() <= 1, "{level:?}");
    }
    let mut simulation = Simulation::new(Level::Fresh, DISK_STARVED.cpus);
    simulation.run(&DISK_STARVED, 2);
    assert_eq!(simulation.reasons(), ["device_scarce"]);
}

#[test]
fn between_both_the_best_is_neither_end() {
    // lz4 is bound by the device, zstd:3 by the processor.
    let node = Node {
        cpus: 2.0,
        other_ns: 2.0,
        device: 100.0 * MB,
        demand: f64::INFINITY,
        data: TEXT,
    };
    let mut simulation = Simulation::new(Level::Compacted, node.cpus);
    let reached = simulation.run(&node, 5);
    assert!(reached >= 0.95 * node.best_throughput(Level::Compacted));
    assert_eq!(simulation.auto.current(), "zstd:1".parse().unwrap());
}

#[test]
fn a_change_takes_three_intervals_at_least() {
    let mut simulation = Simulation::new(Level::Fresh, DISK_STARVED.cpus);
    // The first observation only starts the clock.
    for _ in 0..3 {
        simulation.step(&DISK_STARVED, |_| ());
    }
    assert_eq!(simulation.decisions, []);
    simulation.step(&DISK_STARVED, |_| ());
    assert_eq!(simulation.decisions.len(), 1);
}

#[test]
fn one_odd_interval_changes_nothing() {
    let idle = Node {
        demand: 20.0 * MB,
        ..DISK_STARVED
    };
    let mut simulation = Simulation::new(Level::Compacted, idle.cpus);
    simulation.run(&idle, 5);
    let settled = simulation.decisions.len();
    for _ in 0..100 {
        for step in 0..15 {
            simulation.step(&idle, |signals| {
                if step == 7 {
                    *signals = Signals {
                        cpu_busy: 1.0,
                        ..*signals
                    };
                }
            });
        }
    }
    assert_eq!(simulation.decisions.len(), settled);
}

#[test]
fn an_idle_processor_makes_the_values_smaller() {
    // zstd:9 would take three quarters of the processor.
    let node = Node {
        demand: 30.0 * MB,
        ..CPU_STARVED
    };
    let mut simulation = Simulation::new(Level::Compacted, node.cpus);
    let reached = simulation.run(&node, 5);
    assert!(reached >= 0.999 * node.demand, "nothing is slowed down");
    assert_eq!(simulation.auto.current(), "zstd:6".parse().unwrap());
    assert_eq!(simulation.reasons(), ["headroom"]);
}

#[test]
fn incompressible_data_is_not_compressed_however_scarce_the_device() {
    for level in Level::ALL {
        let node = Node {
            data: NOISE,
            ..DISK_STARVED
        };
        let mut simulation = Simulation::new(level, node.cpus);
        simulation.run(&node, 5);
        assert_eq!(simulation.auto.current(), CodecSpec::none());
        assert!(simulation.decisions.len() <= 1);
        if level != Level::Ram {
            assert_eq!(simulation.reasons(), ["incompressible"]);
        }
        // Other data come: back to a codec.
        simulation.run(&DISK_STARVED, 5);
        assert_ne!(simulation.auto.current(), CodecSpec::none(), "{level:?}");
    }
}

#[test]
fn a_backlog_of_the_bucket_counts_as_a_busy_device() {
    // How much a bucket can take is not known: its busyness is not either.
    let node = Node {
        demand: 60.0 * MB,
        ..DISK_STARVED
    };
    let mut simulation = Simulation::new(Level::Fresh, node.cpus);
    for _ in 0..60 {
        simulation.step(&node, |signals| {
            signals.device_busy = 0.0;
            signals.backlog = 0.95;
        });
    }
    assert_eq!(simulation.reasons(), ["backlog"]);
    assert_eq!(simulation.auto.current(), "zstd:3".parse().unwrap());

    // With a processor that is scarce the queue is full because of it.
    let mut simulation = Simulation::new(Level::Compacted, CPU_STARVED.cpus);
    for _ in 0..60 {
        simulation.step(&CPU_STARVED, |signals| signals.backlog = 0.95);
    }
    assert_eq!(simulation.reasons(), ["cpu_scarce"]);
    assert_eq!(simulation.auto.current(), CodecSpec::none());
}

#[test]
fn alternation_does_not_make_it_flap() {
    // Two hours of phases of different lengths.
    for phase_s in [2, 10, 30, 60, 120, 300] {
        let mut simulation = Simulation::new(Level::Compacted, DISK_STARVED.cpus);
        let steps = (7200.0 / INTERVAL_S) as u32;
        for step in 0..steps {
            let is_cpu = f64::from(step) * INTERVAL_S / f64::from(phase_s) % 2.0 < 1.0;
            let node = if is_cpu {
                Node {
                    cpus: 8.0,
                    ..CPU_STARVED
                }
            } else {
                DISK_STARVED
            };
            simulation.step(&node, |_| ());
        }
        let times: Vec<u64> = simulation.decisions.iter().map(|(at, _)| *at).collect();
        assert!(times.windows(2).all(|pair| pair[1] - pair[0] >= 30_000));
        let limit = if phase_s <= 10 { 6 } else { 18 };
        assert!(times.len() <= limit, "{phase_s}: {}", times.len());
    }
}

#[test]
fn phases_longer_than_the_dwell_are_followed() {
    let mut simulation = Simulation::new(Level::Compacted, 8.0);
    let cpu_starved = Node {
        cpus: 8.0,
        ..CPU_STARVED
    };
    for node in [cpu_starved, DISK_STARVED, cpu_starved, DISK_STARVED] {
        let reached = simulation.run(&node, 60);
        assert!(reached >= 0.95 * node.best_throughput(Level::Compacted));
    }
    assert!(simulation.decisions.len() <= 8);
}

#[test]
fn nothing_is_decided_without_writes_or_samples() {
    let mut auto = Auto::new(Level::Compacted, 1.0);
    let signals = Signals {
        cpu_busy: 1.0,
        ..Signals::default()
    };
    let (empty, mut idle) = (Sample::default(), Sample::default());
    idle.offered_bytes = 1 << 30;
    idle.raw_bytes = 1 << 20;
    for step in 0..100u64 {
        let sample = if step < 50 { &empty } else { &idle };
        assert_eq!(auto.observe(step * 1000, signals, sample), None, "{step}");
    }
}

#[test]
fn what_was_not_sampled_is_not_chosen() {
    // The sampler was one of RAM, which leaves out the slow candidates.
    let mut node = DISK_STARVED;
    for costs in &mut node.data[3..] {
        *costs = (0.0, 0.0);
    }
    let mut simulation = Simulation::new(Level::Fresh, node.cpus);
    simulation.run(&node, 5);
    assert_eq!(simulation.auto.current(), "zstd:1".parse().unwrap());
}

#[test]
fn hostile_numbers_do_no_harm() {
    let mut auto = Auto::new(Level::Cold, f32::NAN);
    let mut sample = Sample::default();
    sample.offered_bytes = u64::MAX;
    sample.raw_bytes = 1;
    for step in 0..200u64 {
        let value = [f32::NAN, f32::INFINITY, -1.0, 2.0][(step % 4) as usize];
        let signals = Signals {
            cpu_busy: value,
            device_busy: -value,
            backlog: value,
        };
        sample.offered_bytes = sample.offered_bytes.wrapping_mul(31).wrapping_add(step);
        auto.observe(step.wrapping_mul(700) % 50_000, signals, &sample);
    }
    assert!(auto.current().codec().is_available());
}

#[test]
fn the_reason_has_the_figures() {
    let mut simulation = Simulation::new(Level::Fresh, DISK_STARVED.cpus);
    simulation.run(&DISK_STARVED, 2);
    let (_, decision) = simulation.decisions[0];
    assert_eq!(decision.reason, Reason::DeviceScarce);
    let text = decision.to_string();
    let begin = "codec changes from lz4 to zstd:3 (device_scarce): the processor is 6 % busy, the \
                 device 100 %, ";
    assert!(text.starts_with(begin), "{text}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_saturated_node_comes_within_five_percent_of_the_best_fixed_codec(
        cpus in 1u32..32,
        other_ns in 0.2..20.0f64,
        device_log in 6.0..10.0f64,
        is_text in any::<bool>(),
        level in prop::sample::select(Level::ALL.to_vec()),
        seed in any::<u64>(),
    ) {
        let node = Node {
            cpus: f64::from(cpus),
            other_ns,
            device: 10f64.powf(device_log),
            demand: f64::INFINITY,
            data: if is_text { TEXT } else { OBJECTS },
        };
        let mut simulation = Simulation::new(level, node.cpus);
        // An hour in which what is seen is off by up to 10 %.
        let mut noise = seed;
        let mut last = 0.0;
        for _ in 0..1800 {
            last = simulation.step(&node, |signals| {
                noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let factor = 0.9 + 0.1 * (noise >> 33) as f32 / (1u64 << 31) as f32;
                signals.cpu_busy *= factor;
                signals.device_busy *= factor;
            });
        }
        let best = node.best_throughput(level);
        prop_assert!(last >= 0.95 * best, "{last} of {best} with {}", simulation.auto.current());
        prop_assert!(simulation.decisions.len() <= 4, "{:?}", simulation.decisions);
    }
}
