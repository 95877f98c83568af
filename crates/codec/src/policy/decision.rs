//! A change of codec, and why.

use std::fmt;

use crate::policy::Signals;
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
    /// What was observed lately, smoothed.
    pub signals: Signals,
    /// How many bytes the new codec stores for each byte that the old one does.
    pub stored_share: f32,
}

/// Why the codec of a level changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The processor is what limits throughput.
    CpuScarce,
    /// The device or the bucket is what limits throughput.
    DeviceScarce,
    /// The queue in front of the level fills, although the processor has time.
    Backlog,
    /// Neither is scarce: the idle processor makes the values smaller.
    Headroom,
    /// No candidate makes the data smaller by enough.
    Incompressible,
}

impl Reason {
    /// All reasons, for metrics that are to exist from the start.
    pub const ALL: [Self; 5] = [
        Self::CpuScarce,
        Self::DeviceScarce,
        Self::Backlog,
        Self::Headroom,
        Self::Incompressible,
    ];

    /// A short name, for metrics.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::CpuScarce => "cpu_scarce",
            Self::DeviceScarce => "device_scarce",
            Self::Backlog => "backlog",
            Self::Headroom => "headroom",
            Self::Incompressible => "incompressible",
        }
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |share: f32| f64::from(share) * 100.0;
        write!(
            f,
            "codec changes from {} to {} ({}): the processor is {:.0} % busy, the device {:.0} %, \
             the queue {:.0} % full; the new codec stores {:.0} % of the bytes of the old one",
            self.from,
            self.to,
            self.reason.label(),
            percent(self.signals.cpu_busy),
            percent(self.signals.device_busy),
            percent(self.signals.backlog),
            percent(self.stored_share)
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
            reason: Reason::DeviceScarce,
            signals: Signals {
                cpu_busy: 0.25,
                device_busy: 0.97,
                backlog: 0.5,
            },
            stored_share: 0.8,
        };
        assert_eq!(
            decision.to_string(),
            "codec changes from none to none (device_scarce): the processor is 25 % busy, the \
             device 97 %, the queue 50 % full; the new codec stores 80 % of the bytes of the old \
             one"
        );
    }
}
