//! The settings of the cold tier.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use fonn_base::config::ConfigError;
use fonn_base::duration::Span;
use fonn_base::size::ByteCount;
use fonn_cold_tier::SpillMode;
use fonn_cold_tier::names::Region;
use fonn_cold_tier::store::Location;
use fonn_cold_tier::store::meter::Prices;

use super::Settings;

/// The cold tier as it was asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct ColdConfig {
    /// Where the bucket is.
    pub location: Location,
    /// URL of a server that is not AWS.
    pub endpoint: Option<String>,
    /// Region of the bucket.
    pub s3_region: Option<String>,
    /// Bytes in the bucket, of all regions; None without a bound.
    pub budget: Option<ByteCount>,
    /// When entries go there.
    pub spill: SpillMode,
    /// Name of this cluster in the bucket.
    pub region: Region,
    /// After so long a read is a miss.
    pub read_timeout: Duration,
    /// How often others are asked for new segments.
    pub follow: Duration,
    /// What requests cost.
    pub prices: Prices,
}

/// What a follower may be asked to do at most, and at least.
const FOLLOW_RANGE: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(3600);

/// The cold tier's settings with defaults; None if there is no cold tier.
pub(super) fn resolve(
    settings: &Settings,
    has_disk: bool,
) -> Result<Option<ColdConfig>, ConfigError> {
    let Some(location) = settings.cold_tier.clone().and_then(|url| url.0) else {
        return Ok(None);
    };
    if !has_disk {
        return Err(ConfigError::invalid(
            "--cold-tier",
            location,
            "a --data-dir besides, since the disk is the queue in front of the bucket and has its index",
        ));
    }
    let span = |given: Option<Span>, default| given.map_or(default, Span::get);
    let read_timeout = span(settings.cold_read_timeout, Duration::from_secs(1));
    if read_timeout.is_zero() {
        let accepted = "more than 0, as in 1s";
        return Err(ConfigError::invalid("--cold-read-timeout", "0", accepted));
    }
    let follow = span(settings.cold_follow, Duration::from_secs(10));
    if !FOLLOW_RANGE.contains(&follow) {
        let given = format!("{follow:?}");
        return Err(ConfigError::invalid("--cold-follow", given, "100ms to 1h"));
    }
    Ok(Some(ColdConfig {
        location,
        endpoint: settings.s3_endpoint.clone(),
        s3_region: settings.s3_region.clone(),
        budget: settings.cold_budget.unwrap_or_default().0,
        spill: settings.spill.unwrap_or_default().0,
        region: settings.region.clone().unwrap_or_default().0,
        read_timeout,
        follow,
        prices: settings.cold_prices.unwrap_or_default().0,
    }))
}

impl ColdConfig {
    /// For the banner.
    #[must_use]
    pub fn describe(&self) -> String {
        let budget = match self.budget {
            Some(budget) => format!(", {}", budget.human()),
            None => String::new(),
        };
        format!(
            "{}{budget}, region {}, spill {}",
            self.location,
            self.region,
            Spill(self.spill)
        )
    }

    /// Names and values for `stats settings` and `CONFIG GET`.
    pub(super) fn pairs(&self) -> Vec<(String, String)> {
        let prices = PricesPerMillion(self.prices);
        [
            ("cold_tier", self.location.to_string()),
            (
                "cold_budget",
                self.budget
                    .map_or("unlimited".to_owned(), |it| it.to_string()),
            ),
            ("spill", Spill(self.spill).to_string()),
            ("region", self.region.to_string()),
            ("cold_read_timeout", format!("{:?}", self.read_timeout)),
            ("cold_follow", format!("{:?}", self.follow)),
            ("cold_prices", prices.to_string()),
            (
                "s3_endpoint",
                self.endpoint
                    .as_deref()
                    .map_or("AWS_ENDPOINT_URL, else AWS".to_owned(), without_login),
            ),
            (
                "s3_region",
                self.s3_region
                    .clone()
                    .unwrap_or("AWS_REGION, else the profile's".to_owned()),
            ),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec()
    }
}

/// A URL without the user and the password that may be in it.
fn without_login(url: &str) -> String {
    // By the last @, since a password may have one and a slash too; the path of an endpoint has
    // none.
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, rest))) => format!("{scheme}://{rest}"),
        (None, Some((_, rest))) => rest.to_owned(),
        (_, None) => url.to_owned(),
    }
}

fonn_program::from_text!(ColdBudget, Spill, RegionName, PricesPerMillion);

/// `--cold-budget`: a size, or `unlimited`.
#[derive(Clone, Copy, Debug, Default)]
pub struct ColdBudget(pub Option<ByteCount>);

impl FromStr for ColdBudget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "unlimited" {
            return Ok(Self(None));
        }
        let size = text.parse().map(|size| Self(Some(size)));
        size.map_err(|error| format!("{error}, or unlimited"))
    }
}

/// `--spill`.
#[derive(Clone, Copy, Debug)]
pub struct Spill(pub SpillMode);

impl Default for Spill {
    fn default() -> Self {
        Self(SpillMode::WriteBehind(Duration::from_secs(5)))
    }
}

impl FromStr for Spill {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let accepted = "on-evict, write-behind or write-behind:DURATION, as in write-behind:5s";
        match text.split_once(':') {
            None if text == "on-evict" => Ok(Self(SpillMode::OnEvict)),
            None if text == "write-behind" => Ok(Self::default()),
            Some(("write-behind", span)) => {
                let span: Span = span.parse().map_err(|error| format!("{error}"))?;
                Ok(Self(SpillMode::WriteBehind(span.get())))
            }
            _ => Err(format!("`{text}` is no spill mode: give {accepted}")),
        }
    }
}

impl fmt::Display for Spill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            SpillMode::OnEvict => f.write_str("on-evict"),
            SpillMode::WriteBehind(span) => write!(f, "write-behind:{span:?}"),
        }
    }
}

/// `--region`.
#[derive(Clone, Debug, Default)]
pub struct RegionName(pub Region);

impl FromStr for RegionName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(Self).map_err(|error| format!("{error}"))
    }
}

/// `--cold-prices`: `WRITE,READ` in dollars a million.
#[derive(Clone, Copy, Debug, Default)]
pub struct PricesPerMillion(pub Prices);

impl FromStr for PricesPerMillion {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let price = |text: &str| {
            text.parse()
                .ok()
                .filter(|it: &f64| it.is_finite() && *it >= 0.0)
        };
        let parts = text.split_once('/');
        match parts.and_then(|(write, read)| Some((price(write)?, price(read)?))) {
            Some((write_dollars, read_dollars)) => Ok(Self(Prices {
                write_dollars,
                read_dollars,
            })),
            None => Err(format!(
                "`{text}` is not WRITE/READ in dollars a million requests, as in 5/0.4"
            )),
        }
    }
}

impl fmt::Display for PricesPerMillion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.0.write_dollars, self.0.read_dollars)
    }
}
