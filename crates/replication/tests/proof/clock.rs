//! The clock of a store: the one that ships, as plain data that can be copied and compared.

use fonn_base::clock::ManualClock;
use fonn_base::hlc::{Hlc, VersionRange};
use fonn_replication::Version;

/// What a [`Hlc`] knows between two calls.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Clock {
    last: u64,
    heard: u64,
    range: VersionRange,
}

impl Clock {
    /// A clock that assigns versions after `last`.
    pub fn new(last: Version) -> Self {
        Self {
            last: last.0,
            ..Self::default()
        }
    }

    /// Calls the clock at a time of the wall clock.
    fn call<R>(&mut self, wall_ms: u64, call: impl FnOnce(&Hlc) -> R) -> R {
        let wall = ManualClock::new(wall_ms);
        let hlc = Hlc::new(wall.clock(), self.last).expect("the version is possible");
        hlc.enter(self.range);
        hlc.hear(self.heard).expect("the version is possible");
        let called = call(&hlc);
        wall.set_wall_ms(0);
        (self.last, self.heard) = (hlc.last(), hlc.wanted());
        called
    }

    /// Enters the range of versions of an applied epoch.
    pub fn enter(&mut self, range: VersionRange) {
        self.range = range;
        self.call(0, |_| ());
    }

    /// The next version.
    pub fn assign(&mut self, wall_ms: u64) -> Version {
        Version(self.call(wall_ms, Hlc::next))
    }

    /// Assigns versions above a version from now on.
    pub fn observe(&mut self, version: Version) {
        self.call(0, |hlc| {
            hlc.observe(version.0).expect("the version is possible")
        });
    }

    /// Notes a version of another member or of another region.
    pub fn hear(&mut self, version: Version) {
        self.call(0, |hlc| {
            hlc.hear(version.0).expect("the version is possible")
        });
    }

    /// What the leader has to extend the range above.
    pub fn wanted(&self) -> Version {
        Version(self.heard)
    }
}
