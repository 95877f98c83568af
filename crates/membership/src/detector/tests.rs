use fonn_base::random::SplitMix64;

use super::*;

const ID: RaftId = 7;

/// A detector over one member, driven by a clock that only the test moves.
struct Simulation {
    detector: Detector,
    start: Instant,
    now: Instant,
    is_down: bool,
    changes: Vec<(Duration, bool)>,
}

impl Simulation {
    fn new() -> Self {
        let start = Instant::now();
        let mut detector = Detector::new(Options::default());
        detector.watch(&BTreeSet::from([ID]), DOWN_AFTER, start);
        Self {
            detector,
            start,
            now: start,
            is_down: false,
            changes: Vec::new(),
        }
    }

    /// Lets time pass in periods; in each the member answers where `answers` says so.
    fn run(&mut self, time: Duration, mut answers: impl FnMut(Duration) -> bool) {
        let until = self.now + time;
        while self.now < until {
            self.now += PERIOD;
            if answers(self.now - self.start) {
                self.detector.answered(ID, self.now);
            }
            self.tick();
        }
    }

    fn tick(&mut self) {
        self.detector.tick(self.now);
        let is_down = self.detector.is_down(ID, self.is_down, self.now);
        if is_down != self.is_down {
            self.is_down = is_down;
            self.changes.push((self.now - self.start, is_down));
        }
    }
}

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

#[test]
fn silence_is_found_within_two_seconds() {
    let mut simulation = Simulation::new();
    simulation.run(secs(10), |_| true);
    simulation.run(secs(3), |_| false);
    let [(at, true)] = simulation.changes[..] else {
        panic!("{:?}", simulation.changes);
    };
    let after = at - secs(10);
    assert!(
        after >= Duration::from_millis(1500) && after <= secs(2),
        "{after:?}"
    );
}

#[test]
fn a_member_that_returns_is_up_after_a_stable_time_and_not_before() {
    let mut simulation = Simulation::new();
    simulation.run(secs(5), |_| false);
    simulation.run(secs(10), |_| true);
    let [(_, true), (at, false)] = simulation.changes[..] else {
        panic!("{:?}", simulation.changes);
    };
    let after = at - secs(5);
    assert!(
        after >= secs(5) && after <= Duration::from_millis(5500),
        "{after:?}"
    );
}

#[test]
fn lost_answers_are_not_a_fall() {
    for seed in 0..50 {
        let mut random = SplitMix64::new(seed);
        let mut simulation = Simulation::new();
        let mut lost = 0;
        // Four answers of ten are lost, five in a row at most.
        simulation.run(secs(300), |_| {
            let loses = random.below(10) < 4 && lost < 5;
            lost = if loses { lost + 1 } else { 0 };
            !loses
        });
        assert_eq!(simulation.changes, [], "seed {seed}");
    }
}

#[test]
fn a_link_that_comes_and_goes_makes_few_changes() {
    let mut simulation = Simulation::new();
    // 7 s up, 2 s down, for an hour: 400 times. Taken at its word it would be 800 changes.
    simulation.run(secs(3600), |at| at.as_secs() % 9 < 7);
    assert!(simulation.changes.len() <= 4, "{:?}", simulation.changes);
    assert!(simulation.is_down);
    simulation.run(secs(61), |_| true);
    assert!(!simulation.is_down);
}

#[test]
fn an_old_fall_is_forgotten() {
    let mut simulation = Simulation::new();
    for _ in 0..4 {
        simulation.run(secs(3), |_| false);
        let before = simulation.changes.len();
        simulation.run(secs(600), |_| true);
        let (up, is_down) = simulation.changes[before];
        assert!(!is_down);
        let fell = simulation.changes[before - 1].0;
        assert!(up - fell < secs(8), "{:?}", simulation.changes);
    }
}

#[test]
fn a_pause_of_our_own_is_nobodys_silence() {
    let mut simulation = Simulation::new();
    simulation.run(secs(5), |_| true);
    for pause in [2, 30, 7200] {
        simulation.now += secs(pause);
        simulation.tick();
        assert_eq!(simulation.changes, [], "{pause} s");
        simulation.run(secs(2), |_| true);
    }
    // Behind the pause silence counts as before.
    simulation.now += secs(30);
    simulation.run(secs(3), |_| false);
    assert!(simulation.is_down);
}

#[test]
fn the_next_leader_waits_the_stable_time_too() {
    let mut simulation = Simulation::new();
    simulation.is_down = true;
    simulation.run(Duration::from_millis(4750), |_| true);
    assert!(simulation.is_down);
    simulation.run(secs(1), |_| true);
    assert!(!simulation.is_down);
}

#[test]
fn nothing_is_decided_about_strangers() {
    let mut detector = Detector::new(Options::default());
    let now = Instant::now();
    detector.answered(1, now);
    assert!(!detector.is_down(1, false, now + secs(9)));
    assert!(detector.is_down(1, true, now));
    assert_eq!(detector.silence(1, now), None);
}
