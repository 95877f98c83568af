//! Chooses a level's codec.

use crate::policy::{CANDIDATES, Decision, Level, NONE, Reason, Sample, Signals, candidate};
use crate::spec::CodecSpec;

/// The share of a new observation in the smoothed ones: half of what is known is from the last two
/// or three intervals, so that short bursts average out.
const SMOOTHING: f32 = 0.25;

/// Busier than this, processor or device is scarce, and throughput is what counts.
const SCARCE: f32 = 0.8;

/// What the busier of both may become when the processor is used to store less. Lower than
/// [`SCARCE`], so that this does not make it scarce.
const SPARE: f32 = 0.6;

/// Gains below this are not worth a change.
const GAIN_MIN: f32 = 0.03;

/// Gains of the last intervals add up; a change needs this sum: 10 % for three intervals, or 3 %
/// for ten.
const EVIDENCE_MIN: f32 = 0.3;

/// One interval's gain counts as this at most, so that a change takes three intervals at least.
const EVIDENCE_STEP_MAX: f32 = 0.1;

/// A candidate whose bottleneck is this close to the best one's is as good; the one that stores
/// less is taken then.
const TIE: f32 = 0.01;

/// A codec stays for so long at least.
const DWELL_MS_MIN: u64 = 30_000;
/// Each change soon after another doubles the dwell, up to this.
const DWELL_MS_MAX: u64 = 600_000;
/// A change so long after the one before is not soon: the dwell is the shortest again.
const CALM_MS: u64 = 2 * DWELL_MS_MAX;

/// Data of which every candidate stores more than this share is not compressed at all.
const STORED_SHARE_MAX: f32 = 1.0 - 1.0 / 32.0;

/// The codec of a level, kept in step with its data and its bottleneck.
///
/// The model: with the same bytes a second, a codec `k` instead of the current `c` would keep the
/// device busy in proportion to the bytes it stores, and the processors busy by what it costs more
/// or less than `c`:
///
/// ```text
/// device(k) = device_busy * stored(k) / stored(c)
/// cpu(k)    = cpu_busy + bytes_per_sec * (cpu_ns(k) - cpu_ns(c)) / 1e9 / cpus
/// ```
///
/// The busier of both limits throughput, which is in proportion to `1 / max(cpu, device)`. If with
/// `c` one of them is scarce (over 80 %), the `k` of the most throughput wins. If none is, the `k`
/// that stores the least while both stay under 60 % does: what the idle processor can save for
/// nothing. A full queue in front of the level counts as a busy device, unless the processor is
/// scarce. Data that nothing shrinks goes to `none`.
///
/// Hysteresis: the gains of the intervals in a row must add up to 30 % (each counts as 10 % at
/// most, under 3 % as none), a codec stays for 30 s at least, and each change within 20 min of the
/// one before doubles that time, up to 10 min. So there are never more than 6 changes an hour, and
/// 5 more at the start of a to and fro.
///
/// Limits: costs are assumed to be linear, and each value to be read once. It does not know what
/// saving disk space or bucket requests is worth in money.
#[derive(Debug)]
pub struct Auto {
    level: Level,
    cpus: f32,
    /// Its place among the candidates.
    current: usize,
    spec: CodecSpec,
    changed_ms: Option<u64>,
    dwell_ms: u64,
    evidence: f32,
    load: Option<Load>,
    /// The time of the last observation, and the bytes that had been offered then.
    observed: Option<(u64, u64)>,
}

/// What the current codec has to do, smoothed.
#[derive(Clone, Copy, Debug)]
struct Load {
    cpu: f32,
    device: f32,
    backlog: f32,
    bytes_per_sec: f32,
}

/// What a candidate would do with the same load.
#[derive(Clone, Copy, Debug)]
struct Prediction {
    index: usize,
    spec: CodecSpec,
    /// How busy the busier of processor and device would be. Can be over 1: it would fall behind.
    bottleneck: f32,
    /// Stored bytes of each raw byte.
    stored_share: f32,
}

impl Auto {
    /// Begins with the default codec of `level`, or if this build lacks it, the next cheaper one.
    /// [`Signals::cpu_busy`] is a share of `cpus` processors.
    #[must_use]
    pub fn new(level: Level, cpus: f32) -> Self {
        let (current, spec) = (0..=level.first_candidate())
            .rev()
            .find_map(|index| Some((index, candidate(index)?)))
            .unwrap_or((NONE, CodecSpec::none()));
        Self {
            level,
            cpus: if cpus > 0.0 { cpus } else { 1.0 },
            current,
            spec,
            changed_ms: None,
            dwell_ms: DWELL_MS_MIN,
            evidence: 0.0,
            load: None,
            observed: None,
        }
    }

    /// The codec to encode with.
    #[must_use]
    pub fn current(&self) -> CodecSpec {
        self.spec
    }

    /// Takes in one interval's observations: call it every one to five seconds, with
    /// [`Sampler::sample`](super::Sampler::sample). `now_ms` is any clock that does not run
    /// backwards. Some: encode with another codec from now on, as [`current`](Self::current)
    /// does from then on; what is stored already can stay as it is.
    pub fn observe(&mut self, now_ms: u64, signals: Signals, sample: &Sample) -> Option<Decision> {
        let observed = (now_ms, sample.offered_bytes);
        let (last_ms, last_bytes) = self.observed.replace(observed)?;
        let elapsed_ms = now_ms.saturating_sub(last_ms);
        let offered_bytes = sample.offered_bytes.saturating_sub(last_bytes);
        if elapsed_ms == 0 || offered_bytes == 0 {
            // Nothing was written, so nothing is learned about what writing costs.
            return None;
        }
        let load = self.smooth(Load {
            cpu: share(signals.cpu_busy),
            device: share(signals.device_busy),
            backlog: share(signals.backlog),
            bytes_per_sec: offered_bytes as f32 / (elapsed_ms as f32 / 1000.0),
        });
        if sample.raw_bytes == 0 {
            return None;
        }
        let predictions = self.predict(load, sample);
        let now = *predictions.iter().find(|p| p.index == self.current)?;
        let (best, gain, reason) = choose(&predictions, now, load)?;

        // A little less evidence, not none: one odd interval is no reason to begin anew.
        self.evidence = if best.index != self.current && gain >= GAIN_MIN {
            self.evidence + gain.min(EVIDENCE_STEP_MAX)
        } else {
            self.evidence / 2.0
        };
        // Rounding must not cost an interval.
        let is_convincing = self.evidence > EVIDENCE_MIN - 0.001;
        if best.index == self.current || gain < GAIN_MIN || !is_convincing {
            return None;
        }
        let decision = Decision {
            from: now.spec,
            to: best.spec,
            reason,
            signals: Signals {
                cpu_busy: load.cpu,
                device_busy: load.device,
                backlog: load.backlog,
            },
            stored_share: best.stored_share / now.stored_share,
        };
        self.change(now_ms, best.index, decision)
    }

    fn smooth(&mut self, new: Load) -> Load {
        let load = self.load.map_or(new, |old| {
            let mix = |old: f32, new: f32| old + SMOOTHING * (new - old);
            Load {
                cpu: mix(old.cpu, new.cpu),
                device: mix(old.device, new.device),
                backlog: mix(old.backlog, new.backlog),
                bytes_per_sec: mix(old.bytes_per_sec, new.bytes_per_sec),
            }
        });
        *self.load.insert(load)
    }

    /// What every candidate of the level would do with the load of the current one.
    fn predict(&self, load: Load, sample: &Sample) -> Vec<Prediction> {
        let raw_bytes = sample.raw_bytes as f32;
        let stored_share =
            |index| (sample.cost_at(index).stored_bytes as f32 / raw_bytes).max(f32::MIN_POSITIVE);
        let cpu_busy = |index| {
            let ns_per_byte = sample.cost_at(index).cpu_ns as f32 / raw_bytes;
            load.bytes_per_sec * ns_per_byte / 1e9 / self.cpus
        };
        (0..self.level.candidate_count())
            // Nothing is stored in no bytes: it was not sampled.
            .filter(|&index| sample.cost_at(index).stored_bytes > 0)
            .filter_map(|index| Some((index, candidate(index)?)))
            .map(|(index, spec)| {
                let device =
                    load.device_pressure() * stored_share(index) / stored_share(self.current);
                // Never less than the codec alone takes: the measured busyness may leave it out.
                let cpu =
                    (load.cpu + cpu_busy(index) - cpu_busy(self.current)).max(cpu_busy(index));
                Prediction {
                    index,
                    spec,
                    bottleneck: device.max(cpu),
                    stored_share: stored_share(index),
                }
            })
            .collect()
    }

    fn change(&mut self, now_ms: u64, index: usize, decision: Decision) -> Option<Decision> {
        if let Some(changed_ms) = self.changed_ms {
            let stayed_ms = now_ms.saturating_sub(changed_ms);
            if stayed_ms < self.dwell_ms {
                return None;
            }
            if stayed_ms >= CALM_MS {
                self.dwell_ms = DWELL_MS_MIN;
            } else {
                self.dwell_ms = self.dwell_ms.saturating_mul(2).min(DWELL_MS_MAX);
            }
        }
        self.current = index;
        self.spec = decision.to;
        self.changed_ms = Some(now_ms);
        self.evidence = 0.0;
        // It was the load of the codec before.
        self.load = None;
        Some(decision)
    }
}

impl Load {
    fn device_pressure(&self) -> f32 {
        if self.backlog_is_of_the_device() {
            self.device.max(self.backlog)
        } else {
            self.device
        }
    }

    /// If the processor is scarce, the queue is full because of it.
    fn backlog_is_of_the_device(&self) -> bool {
        self.cpu <= SCARCE
    }
}

/// The best candidate, what it gains over the current one, and why.
fn choose(
    predictions: &[Prediction],
    now: Prediction,
    load: Load,
) -> Option<(Prediction, f32, Reason)> {
    let least_stored = |among: &mut dyn Iterator<Item = &Prediction>| {
        among
            .min_by(|a, b| a.stored_share.total_cmp(&b.stored_share))
            .copied()
    };
    let smallest = least_stored(&mut predictions.iter())?;
    if smallest.stored_share > STORED_SHARE_MAX {
        let none = predictions.iter().find(|p| p.index == NONE)?;
        // Sniffing may have made the attempts free, but not for every value.
        return Some((*none, EVIDENCE_STEP_MAX, Reason::Incompressible));
    }
    if now.bottleneck > SCARCE {
        let lowest = predictions
            .iter()
            .map(|p| p.bottleneck)
            .min_by(f32::total_cmp)?;
        let mut as_good = predictions
            .iter()
            .filter(|p| p.bottleneck <= lowest * (1.0 + TIE));
        let best = least_stored(&mut as_good)?;
        let gain = 1.0 - best.bottleneck / now.bottleneck;
        return Some((best, gain, load.bottleneck_reason()));
    }
    let mut affordable = predictions.iter().filter(|p| p.bottleneck <= SPARE);
    let best = least_stored(&mut affordable).unwrap_or(now);
    let gain = 1.0 - best.stored_share / now.stored_share;
    Some((best, gain, Reason::Headroom))
}

impl Load {
    fn bottleneck_reason(&self) -> Reason {
        if self.backlog_is_of_the_device() && self.backlog > self.device.max(self.cpu) {
            Reason::Backlog
        } else if self.device > self.cpu {
            Reason::DeviceScarce
        } else {
            Reason::CpuScarce
        }
    }
}

fn share(value: f32) -> f32 {
    if value.is_nan() {
        0.0
    } else {
        value.clamp(0.0, 1.0)
    }
}

const _: () = assert!(CANDIDATES.len() >= Level::Cold.candidate_count());
