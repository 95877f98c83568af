//! Whether the program can take traffic.

use std::sync::Arc;

use parking_lot::RwLock;

/// The state behind `/readyz`; cheap to clone. Not ready until told so.
#[derive(Clone, Debug)]
pub struct Readiness(Arc<RwLock<Option<&'static str>>>);

impl Default for Readiness {
    fn default() -> Self {
        Self::new()
    }
}

impl Readiness {
    /// Not ready: "starting".
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(RwLock::new(Some("starting"))))
    }

    /// Takes traffic from now on.
    pub fn set_ready(&self) {
        *self.0.write() = None;
    }

    /// Takes no traffic from now on, for a reason that is shown, like "draining".
    pub fn set_not_ready(&self, reason: &'static str) {
        *self.0.write() = Some(reason);
    }

    /// Why no traffic is taken; `None` when it is.
    #[must_use]
    pub fn reason(&self) -> Option<&'static str> {
        *self.0.read()
    }
}
