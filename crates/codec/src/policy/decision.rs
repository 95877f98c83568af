//! A change of codec, and why.

use std::fmt;

use crate::spec::CodecSpec;

/// That a level should change its codec. Printed as one sentence, for the log.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    /// The codec until now.
    pub from: CodecSpec,
    /// The codec from now on.
    pub to: CodecSpec,
    /// Why.
    pub reason: Reason,
}

/// Why the codec of a level changes. Shares are from 0 to 1. Printed as one sentence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reason {
    /// The processor is what limits throughput.
    CpuScarce {
        /// How busy it was.
        cpu_busy: f32,
        /// How busy the device was.
        device_busy: f32,
    },
    /// The device or the bucket is what limits throughput.
    DeviceScarce {
        /// How busy it was.
        device_busy: f32,
        /// How busy the processor was.
        cpu_busy: f32,
    },
    /// The queue in front of the level fills, although the processor has time.
    Backlog {
        /// How full it was.
        backlog: f32,
        /// How busy the processor was.
        cpu_busy: f32,
    },
    /// Neither is scarce: the idle processor makes the values smaller.
    Headroom {
        /// How busy the processor was.
        cpu_busy: f32,
        /// How many of the bytes stored until now the new codec would store.
        stored_share: f32,
    },
    /// No candidate makes the data smaller by enough.
    Incompressible {
        /// How much of the raw bytes the best candidate would store.
        stored_share: f32,
    },
}

impl Reason {
    /// All labels, for metrics that are to exist from the start.
    pub const LABELS: [&str; 5] = [
        "cpu_scarce",
        "device_scarce",
        "backlog",
        "headroom",
        "incompressible",
    ];

    /// A short name, for metrics.
    #[must_use]
    pub fn label(&self) -> &'static str {
        let [cpu, device, backlog, headroom, incompressible] = Self::LABELS;
        match self {
            Self::CpuScarce { .. } => cpu,
            Self::DeviceScarce { .. } => device,
            Self::Backlog { .. } => backlog,
            Self::Headroom { .. } => headroom,
            Self::Incompressible { .. } => incompressible,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |share: &f32| f64::from(*share) * 100.0;
        match self {
            Self::CpuScarce {
                cpu_busy,
                device_busy,
            } => write!(
                f,
                "the processor is {:.0} % busy, the device {:.0} %",
                percent(cpu_busy),
                percent(device_busy)
            ),
            Self::DeviceScarce {
                device_busy,
                cpu_busy,
            } => write!(
                f,
                "the device is {:.0} % busy, the processor {:.0} %",
                percent(device_busy),
                percent(cpu_busy)
            ),
            Self::Backlog { backlog, cpu_busy } => write!(
                f,
                "the queue is {:.0} % full, the processor {:.0} % busy",
                percent(backlog),
                percent(cpu_busy)
            ),
            Self::Headroom {
                cpu_busy,
                stored_share,
            } => write!(
                f,
                "the processor is only {:.0} % busy, and {:.0} % of the bytes would be stored",
                percent(cpu_busy),
                percent(stored_share)
            ),
            Self::Incompressible { stored_share } => write!(
                f,
                "the best codec would store {:.0} % of the raw bytes",
                percent(stored_share)
            ),
        }
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "codec changes from {} to {}: {}",
            self.from, self.to, self.reason
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decision_is_one_sentence() {
        let decision = Decision {
            from: CodecSpec::none(),
            to: CodecSpec::none(),
            reason: Reason::DeviceScarce {
                device_busy: 0.97,
                cpu_busy: 0.25,
            },
        };
        assert_eq!(
            decision.to_string(),
            "codec changes from none to none: the device is 97 % busy, the processor 25 %"
        );
        assert_eq!(decision.reason.label(), "device_scarce");
    }
}
