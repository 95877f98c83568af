//! Metrics: a registry that is passed around, and sources that are read only at a scrape.
//!
//! A component counts into cells of its own threads ([`cells`]) and registers a source
//! ([`Metrics::on_scrape`]) that adds them up into a [`Snapshot`] at scrape time.
//!
//! Rules that this module makes easy to keep: names are `fonn_<component>_<what>_<unit>`, counters
//! end in `_total`, label values are closed sets ([`Label`]), all of them present from the start.

pub mod cells;
pub mod history;
pub mod process;
mod snapshot;
pub mod striped;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::RwLock;
use prometheus::TextEncoder;
use prometheus::proto::MetricFamily;

pub use prometheus::Error;
pub use snapshot::Snapshot;

/// The content type of [`Metrics::render`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4";

/// A registry of metrics; cheap to clone.
#[derive(Clone, Default)]
pub struct Metrics(Arc<Inner>);

#[derive(Default)]
struct Inner {
    sources: RwLock<Vec<Source>>,
}

type Source = Arc<dyn Fn(&mut Snapshot) + Send + Sync>;

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics")
            .field("sources", &self.0.sources.read().len())
            .finish()
    }
}

impl Metrics {
    /// An empty registry.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Calls `source` at each scrape to add samples. It must not block, and should take no lock
    /// that a hot path holds for long.
    pub fn on_scrape(&self, source: impl Fn(&mut Snapshot) + Send + Sync + 'static) {
        self.0.sources.write().push(Arc::new(source));
    }

    /// Everything, sorted by name.
    #[must_use]
    pub fn gather(&self) -> Vec<MetricFamily> {
        let mut snapshot = Snapshot::new(BTreeMap::new());
        // Cloned, so that a source may register another one.
        let sources = self.0.sources.read().clone();
        for source in sources {
            source(&mut snapshot);
        }
        snapshot.into_families()
    }

    /// Everything in the Prometheus text format 0.0.4.
    ///
    /// # Errors
    /// When a family cannot be encoded.
    pub fn render(&self) -> Result<String, Error> {
        TextEncoder::new().encode_to_string(&self.gather())
    }
}

/// A label with a closed set of values. Declare one with [`label!`](crate::label).
pub trait Label: Copy + 'static {
    /// The label's name.
    const NAME: &'static str;
    /// All values, in the order of [`Label::index`].
    const ALL: &'static [Self];

    /// The value as it is published.
    fn as_str(self) -> &'static str;

    /// The place of the value in [`Label::ALL`].
    fn index(self) -> usize;
}

/// Declares an enum that is a [`Label`](crate::metrics::Label).
///
/// ```
/// fonn_base::label! {
///     /// How a lookup ended.
///     pub enum Lookup: "result" {
///         /// The key was there.
///         Hit = "hit",
///         /// The key was not there.
///         Miss = "miss",
///     }
/// }
/// use fonn_base::metrics::{Label, Metrics};
/// let metrics = Metrics::new();
/// metrics.on_scrape(|snapshot| {
///     for lookup in Lookup::ALL {
///         let labels = [(Lookup::NAME, lookup.as_str())];
///         snapshot.counter("fonn_example_lookups_total", "Lookups.", &labels, 1);
///     }
/// });
/// assert!(metrics.render().unwrap().contains("fonn_example_lookups_total{result=\"hit\"} 1"));
/// ```
#[macro_export]
macro_rules! label {
    (
        $(#[$meta:meta])*
        $vis:vis enum $name:ident: $label:literal {
            $($(#[$value_meta:meta])* $value:ident = $text:literal),+ $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        $vis enum $name {
            $($(#[$value_meta])* $value,)+
        }

        impl $crate::metrics::Label for $name {
            const NAME: &'static str = $label;
            const ALL: &'static [Self] = &[$(Self::$value,)+];

            fn as_str(self) -> &'static str {
                match self {
                    $(Self::$value => $text,)+
                }
            }

            fn index(self) -> usize {
                self as usize
            }
        }
    };
}

#[cfg(test)]
mod tests;
