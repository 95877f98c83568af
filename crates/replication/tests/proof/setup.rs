//! What a seed decides before the simulation starts.

use fonn_replication::{Rule, Rules};

use super::random::Random;

/// A kind of fault. Each seed uses some kinds, so that rare combinations are met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Loss,
    OneWay,
    CutFromLeader,
    Pause,
    Crash,
    UncleanCrash,
    DiskLoss,
    NoLeader,
    Layout,
    Evict,
    Skew,
    SkipEpochs,
}

pub const FAULTS: [Fault; 12] = [
    Fault::Loss,
    Fault::OneWay,
    Fault::CutFromLeader,
    Fault::Pause,
    Fault::Crash,
    Fault::UncleanCrash,
    Fault::DiskLoss,
    Fault::NoLeader,
    Fault::Layout,
    Fault::Evict,
    Fault::Skew,
    Fault::SkipEpochs,
];

#[derive(Clone, Debug)]
pub struct Setup {
    pub seed: u64,
    pub members: usize,
    pub replicas: usize,
    pub regions: usize,
    pub bucket: bool,
    pub slots: u16,
    pub keys: u8,
    pub faults: Vec<Fault>,
    pub rules: Rules,
    /// How long faults are injected.
    pub chaos_ms: u64,
    /// The longest pause between two faults.
    pub calm_ms_max: u64,
    /// How far wall clocks are apart.
    pub skew_ms_max: u64,
    pub shell: Shell,
    /// Whether clients flush.
    pub flushes: bool,
}

/// Whether the shell keeps its part of the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shell {
    Correct,
    /// The store executes a write that was admitted in an earlier epoch. The clock of the crate
    /// does not permit this.
    ExecutesLate,
    /// A write that needs no other member is answered without a second look at the rights.
    LooksOnce,
    /// After a crash, the clock begins above the stored versions, but not above the lost ones.
    ForgetsClock,
    /// A learner does not ask which flushes it has missed.
    LearnsNoFlushes,
    /// Each member keeps the cutoff that it has drawn for a flush.
    FlushesApart,
    /// A member takes part in a flush although its epoch is not that of the flush.
    FlushesInAnyEpoch,
}

impl Setup {
    pub fn from_seed(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let regions = if random.percent(15) { 2 } else { 1 };
        let faults = FAULTS.into_iter().filter(|_| random.percent(55)).collect();
        let mut setup = Self {
            seed,
            members: random.between(3, 6) as usize,
            replicas: random.between(1, 4) as usize,
            regions,
            bucket: regions == 2 || random.percent(50),
            slots: random.between(2, 7) as u16,
            keys: random.between(2, 5) as u8,
            faults,
            rules: Rules::default(),
            chaos_ms: random.between(15_000, 40_000),
            calm_ms_max: 5_000,
            skew_ms_max: 0,
            shell: Shell::Correct,
            flushes: random.percent(40),
        };
        if setup.has(Fault::Skew) {
            setup.skew_ms_max = 20_000;
        }
        setup
    }

    /// A setup with one rule switched off and the faults that the rule guards against.
    pub fn without(rule: Rule, seed: u64, replicas: usize, faults: &[Fault]) -> Self {
        Self {
            members: 3 + (seed % 2) as usize,
            replicas,
            regions: 1,
            bucket: false,
            slots: 2,
            keys: 2,
            calm_ms_max: 2_000,
            faults: faults.to_vec(),
            rules: Rules::without(rule),
            flushes: false,
            ..Self::from_seed(seed)
        }
    }

    /// A setup with a shell that breaks its part of the contract.
    pub fn with_shell(shell: Shell, seed: u64, replicas: usize, faults: &[Fault]) -> Self {
        Self {
            shell,
            rules: Rules::ALL,
            ..Self::without(Rule::Copy, seed, replicas, faults)
        }
    }

    pub fn has(&self, fault: Fault) -> bool {
        self.faults.contains(&fault)
    }

    /// Whether all rules hold and the shell keeps its contract.
    pub fn is_whole(&self) -> bool {
        self.rules == Rules::ALL && self.shell == Shell::Correct
    }

    /// Whether the judge can tell that a write replaced the one before it. Copies that come
    /// from the bucket or from another region cannot be told from lost ones.
    pub fn judges_replaced(&self) -> bool {
        !self.bucket && self.regions == 1
    }
}
