//! A store from its location, with all decorators around it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fonn_base::boxed::BoxFuture;
use fonn_base::clock::Clock;
use fonn_base::metrics::Snapshot;
use fonn_base::pool::{BlockingPool, PoolError, run_blocking};
use fonn_base::random::SplitMix64;

use super::limit::{Gate, LimitOptions};
use super::meter::{MeterStats, Prices};
use super::retry::RetryOptions;
#[cfg(feature = "s3")]
use super::s3::{S3Credentials, S3OpenError, S3Options, S3Store};
use super::{FsStore, LimitStore, Location, MeterStore, ObjectStore, RetryStore};

/// Everything about a store but its location.
#[derive(Clone, Debug, Default)]
pub struct StoreOptions {
    /// See [`S3Options::endpoint`].
    pub endpoint: Option<String>,
    /// See [`S3Options::region`].
    pub region: Option<String>,
    /// See [`S3Options::credentials`].
    #[cfg(feature = "s3")]
    pub credentials: Option<S3Credentials>,
    /// What requests to S3 cost; a directory is free.
    pub prices: Prices,
}

/// A store that is ready for use, and the counters of its decorators.
#[derive(Clone, Debug)]
pub struct Opened {
    /// The store.
    pub store: Arc<dyn ObjectStore>,
    /// The same, whose calls are made once: what [`super::probe::probe`] wants.
    pub without_retries: Arc<dyn ObjectStore>,
    /// Each attempt.
    pub meter: Arc<MeterStats>,
    /// Calls at once, by their class.
    pub limits: [(&'static str, Arc<Gate>); 2],
    /// Attempts after the first.
    pub retries: Arc<AtomicU64>,
}

/// Why a store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The bucket's options are wrong.
    #[cfg(feature = "s3")]
    #[error(transparent)]
    S3(#[from] S3OpenError),
    /// S3 is not part of this program.
    #[error("`{0}` needs a program built with the feature `s3`: use a `file:///directory`")]
    NoS3(Location),
    /// The directory cannot be made or read.
    #[error("`{location}` cannot be used: make it a directory that may be read and written")]
    Directory {
        /// Where it is.
        location: Location,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The pool of blocking work takes nothing.
    #[error("`{location}` cannot be opened now")]
    Pool {
        /// Where it is.
        location: Location,
        /// Why not.
        #[source]
        source: PoolError,
    },
}

/// Opens a store. Does not ask a bucket for anything, so it succeeds while S3 is down; a directory
/// is made if needed. `pool` does the blocking work of a directory.
///
/// # Errors
/// When the options are not sufficient, or the directory cannot be used.
pub fn open<'a>(
    location: &'a Location,
    options: StoreOptions,
    pool: &'a BlockingPool,
) -> BoxFuture<'a, Result<Opened, OpenError>> {
    Box::pin(opened(location, options, pool))
}

async fn opened(
    location: &Location,
    options: StoreOptions,
    pool: &BlockingPool,
) -> Result<Opened, OpenError> {
    match location {
        Location::File { dir } => {
            let (dir, files) = (dir.clone(), pool.clone());
            let opened = run_blocking(pool, move || FsStore::open(dir, files)).await;
            let opened = opened.map_err(|source| OpenError::Pool {
                location: location.clone(),
                source,
            })?;
            let store = opened.map_err(|source| OpenError::Directory {
                location: location.clone(),
                source,
            })?;
            Ok(decorate(Arc::new(store), Prices::FREE))
        }
        #[cfg(feature = "s3")]
        Location::S3 { bucket, prefix } => {
            let store = S3Store::open(S3Options {
                prefix: prefix.clone(),
                endpoint: options.endpoint,
                region: options.region,
                credentials: options.credentials,
                ..S3Options::new(bucket)
            });
            Ok(decorate(Arc::new(store.await?), options.prices))
        }
        #[cfg(not(feature = "s3"))]
        Location::S3 { .. } => {
            // None of them is for a directory.
            drop(options);
            Err(OpenError::NoS3(location.clone()))
        }
    }
}

fn decorate(store: Arc<dyn ObjectStore>, prices: Prices) -> Opened {
    let store = MeterStore::new(store, prices, Clock::system());
    let meter = store.stats();
    let store = LimitStore::new(Arc::new(store), LimitOptions::default());
    let limits = store.limits();
    let without_retries: Arc<dyn ObjectStore> = Arc::new(store);
    let random = SplitMix64::from_entropy();
    let inner = Arc::clone(&without_retries);
    let store = RetryStore::new(inner, RetryOptions::default(), random);
    let retries = store.retries();
    Opened {
        store: Arc::new(store),
        without_retries,
        meter,
        limits,
        retries,
    }
}

impl Opened {
    /// Adds the samples of a scrape, of all decorators.
    pub fn collect(&self, out: &mut Snapshot) {
        self.meter.collect(out);
        for (class, limit) in &self.limits {
            let (class, limit) = ([("class", *class)], limit.snapshot());
            out.gauge(
                "fonn_cold_store_concurrency_limit",
                "Calls to the object store that may run at once, as found by its answers.",
                &class,
                f64::from(limit.limit),
            );
            out.counter(
                "fonn_cold_store_queue_rejected_total",
                "Calls that found the queue for the object store full.",
                &class,
                limit.rejected,
            );
            out.gauge(
                "fonn_cold_store_queue_depth",
                "Calls that wait until the object store may be called.",
                &class,
                limit.waiting as f64,
            );
        }
        out.counter(
            "fonn_cold_store_retries_total",
            "Attempts after the first.",
            &[],
            self.retries.load(Ordering::Relaxed),
        );
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use fonn_base::metrics::Metrics;

    use super::*;
    use crate::store::{ObjectKey, Operation, suite};

    fn pool() -> BlockingPool {
        BlockingPool::new("open-test", NonZeroUsize::new(2).unwrap(), 64).unwrap()
    }

    #[tokio::test]
    async fn a_directory_with_all_decorators_keeps_the_contract_and_costs_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let location = format!("file://{}/new", dir.path().display());
        let location: Location = location.parse().unwrap();
        let opened = open(&location, StoreOptions::default(), &pool())
            .await
            .unwrap();
        suite::run(Arc::clone(&opened.store)).await;
        assert!(dir.path().join("new/suite").is_dir());
        assert!(opened.meter.of(Operation::Put).calls > 10);
        assert_eq!(opened.meter.cost_dollars(), 0.0);
        let metrics = Metrics::new();
        metrics.on_scrape(move |out| opened.collect(out));
        let text = metrics.render().unwrap();
        for line in [
            "fonn_cold_store_concurrency_limit{class=\"read\"} 16",
            "fonn_cold_store_queue_depth{class=\"write\"} 0",
            "fonn_cold_store_retries_total 0",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }

    #[tokio::test]
    async fn a_directory_that_cannot_be_made_is_named() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "x").unwrap();
        let location: Location = format!("file://{}/file", dir.path().display())
            .parse()
            .unwrap();
        let error = open(&location, StoreOptions::default(), &pool())
            .await
            .unwrap_err();
        assert!(
            error.to_string().contains("/file` cannot be used"),
            "{error}"
        );
    }

    #[cfg(feature = "s3")]
    #[tokio::test]
    async fn a_bucket_is_opened_without_asking_it() {
        let location: Location = "s3://bucket/prefix".parse().unwrap();
        let options = StoreOptions {
            // A port that nothing listens on.
            endpoint: Some("http://127.0.0.1:1".to_owned()),
            credentials: Some(S3Credentials {
                key_id: "key".to_owned(),
                secret: "topsecret".to_owned(),
                session_token: None,
            }),
            ..StoreOptions::default()
        };
        let opened = open(&location, options, &pool()).await.unwrap();
        assert!(!format!("{opened:?}").contains("topsecret"));
        let key = ObjectKey::new("a").unwrap();
        let error = opened.without_retries.get(&key).await.unwrap_err();
        assert_eq!(error.kind, crate::store::StoreErrorKind::Unavailable);
        assert_eq!(error.subject, "prefix/a");
        let cost = opened.meter.cost_dollars();
        assert!((cost - 0.4e-6).abs() < 1e-12, "{cost}");
    }
}
