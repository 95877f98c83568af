//! Metrics: a registry that is passed around, and sources that are read only at a scrape.
//!
//! There are two ways to publish. Things that change rarely own a `prometheus` counter, gauge or
//! histogram made by [`Metrics`]. Hot paths count into cells of their own thread
//! ([`cells`]) and register a source ([`Metrics::on_scrape`]) that adds them up into a
//! [`Snapshot`] at scrape time.
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
use std::marker::PhantomData;
use std::sync::Arc;

use parking_lot::RwLock;
use prometheus::core::Collector;
use prometheus::proto::MetricFamily;
use prometheus::{HistogramOpts, Opts, Registry, TextEncoder};

pub use prometheus::{Error, Histogram, IntCounter, IntGauge};
pub use snapshot::Snapshot;

/// The content type of [`Metrics::render`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4";

/// A registry of metrics; cheap to clone.
#[derive(Clone, Default)]
pub struct Metrics(Arc<Inner>);

#[derive(Default)]
struct Inner {
    registry: Registry,
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

    /// A counter without labels.
    ///
    /// # Errors
    /// When the name is taken or no metric name; so it is for all constructors here.
    pub fn counter(&self, name: &str, help: &str) -> Result<IntCounter, Error> {
        self.register(IntCounter::new(name, help)?)
    }

    /// A gauge without labels.
    ///
    /// # Errors
    /// As [`Metrics::counter`].
    pub fn gauge(&self, name: &str, help: &str) -> Result<IntGauge, Error> {
        self.register(IntGauge::new(name, help)?)
    }

    /// A histogram without labels; `bounds` are the upper bounds of its buckets, ascending.
    ///
    /// # Errors
    /// As [`Metrics::counter`].
    pub fn histogram(&self, name: &str, help: &str, bounds: &[f64]) -> Result<Histogram, Error> {
        let opts = HistogramOpts::new(name, help).buckets(bounds.to_vec());
        self.register(Histogram::with_opts(opts)?)
    }

    /// A counter for each value of a label.
    ///
    /// # Errors
    /// As [`Metrics::counter`].
    pub fn counters<L: Label>(&self, name: &str, help: &str) -> Result<Set<L, IntCounter>, Error> {
        self.set(|label: L| {
            IntCounter::with_opts(Opts::new(name, help).const_label(L::NAME, label.as_str()))
        })
    }

    /// Calls `source` at each scrape to add samples. It must not block, and should take no lock
    /// that a hot path holds for long.
    pub fn on_scrape(&self, source: impl Fn(&mut Snapshot) + Send + Sync + 'static) {
        self.0.sources.write().push(Arc::new(source));
    }

    /// Everything, sorted by name.
    #[must_use]
    pub fn gather(&self) -> Vec<MetricFamily> {
        let mut families: BTreeMap<String, MetricFamily> = BTreeMap::new();
        for family in self.0.registry.gather() {
            families.insert(family.name().to_owned(), family);
        }
        let mut snapshot = Snapshot::new(families);
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

    fn register<C: Collector + Clone + 'static>(&self, metric: C) -> Result<C, Error> {
        self.0.registry.register(Box::new(metric.clone()))?;
        Ok(metric)
    }

    fn set<L, C>(&self, make: impl Fn(L) -> Result<C, Error>) -> Result<Set<L, C>, Error>
    where
        L: Label,
        C: Collector + Clone + 'static,
    {
        let metrics = L::ALL.iter().map(|&label| self.register(make(label)?));
        Ok(Set {
            metrics: metrics.collect::<Result<_, _>>()?,
            label: PhantomData,
        })
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
/// let lookups = metrics.counters::<Lookup>("fonn_example_lookups_total", "Lookups.").unwrap();
/// lookups.get(Lookup::Hit).inc();
/// assert!(metrics.render().unwrap().contains("fonn_example_lookups_total{result=\"hit\"} 1"));
/// assert_eq!(Lookup::NAME, "result");
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

/// One metric for each value of a label; cheap to clone and to look up.
#[derive(Clone, Debug)]
pub struct Set<L, C> {
    metrics: Arc<[C]>,
    label: PhantomData<fn(L)>,
}

impl<L: Label, C> Set<L, C> {
    /// The metric for a value.
    #[must_use]
    pub fn get(&self, label: L) -> &C {
        // There is one for each value, by construction.
        &self.metrics[label.index()]
    }
}

#[cfg(test)]
mod tests;
