//! Looks whether a store can be used as the cold tier, and says what to do where it cannot.
//!
//! It writes one small object below `v1/probe/`, reads it in every way, lists it, writes it again
//! on the condition that there is none, and deletes it: about ten requests. Meant to be run on a
//! store without retries, or one that gives up soon.

use std::fmt;
use std::time::Duration;

use fonn_base::boxed::BoxFuture;
use fonn_base::clock::Clock;
use fonn_base::random::SplitMix64;
use tokio::time::timeout;

use super::{Body, ObjectKey, ObjectStore, Operation, StoreError, StoreErrorKind, StoreFuture};

/// What is looked at, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Check {
    /// The store answers.
    Reach,
    /// The bucket exists, and in this region.
    Bucket,
    /// The credentials are known and not expired.
    Credentials,
    /// The clocks agree.
    Clock,
    /// Objects may be written.
    Put,
    /// Objects may be read.
    Get,
    /// Objects may be listed.
    List,
    /// A conditional write is refused where it has to be.
    ConditionalPut,
    /// Objects may be deleted.
    Delete,
}

impl Check {
    /// All of them, in order.
    pub const ALL: [Self; 9] = [
        Self::Reach,
        Self::Bucket,
        Self::Credentials,
        Self::Clock,
        Self::Put,
        Self::Get,
        Self::List,
        Self::ConditionalPut,
        Self::Delete,
    ];

    /// The name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reach => "reach",
            Self::Bucket => "bucket",
            Self::Credentials => "credentials",
            Self::Clock => "clock",
            Self::Put => "put",
            Self::Get => "get",
            Self::List => "list",
            Self::ConditionalPut => "conditional put",
            Self::Delete => "delete",
        }
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// As it should be.
    Passed,
    /// The cold tier works, with a drawback.
    Warned,
    /// The cold tier does not work.
    Failed,
    /// Another check failed before.
    Skipped,
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What was looked at.
    pub check: Check,
    /// How it ended.
    pub outcome: Outcome,
    /// What was found, and where it is wrong, what to do, behind the last colon.
    pub sentence: String,
}

impl Finding {
    /// What was found, and where it is wrong, what to do.
    #[must_use]
    pub fn parts(&self) -> (&str, Option<&str>) {
        match self.sentence.rsplit_once(": ") {
            Some((found, remedy)) if self.outcome != Outcome::Passed => (found, Some(remedy)),
            _ => (&self.sentence, None),
        }
    }
}

/// The time for each request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);

/// From this difference on the clocks are worth a warning; S3 refuses requests at 15 minutes.
const SKEW_MS_MAX: u64 = 60_000;

/// Runs all checks. `clock` is this machine's.
pub fn probe<'a>(store: &'a dyn ObjectStore, clock: &'a Clock) -> BoxFuture<'a, Vec<Finding>> {
    Box::pin(probed(store, clock))
}

async fn probed(store: &dyn ObjectStore, clock: &Clock) -> Vec<Finding> {
    let name = SplitMix64::from_entropy().next_u64();
    let mut probe = Probe {
        store,
        clock,
        findings: Vec::new(),
    };
    match ObjectKey::new(&format!("v1/probe/{name:016x}")) {
        Ok(key) => probe.run(&key).await,
        // Not possible: the text has the form of a key.
        Err(error) => probe.fail(Check::Put, error.to_string()),
    }
    probe.finish()
}

struct Probe<'a> {
    store: &'a dyn ObjectStore,
    clock: &'a Clock,
    findings: Vec<Finding>,
}

impl Probe<'_> {
    async fn run(&mut self, key: &ObjectKey) {
        let body = format!("written by fonn to see whether it can: {key}\n").into_bytes();
        let body = Body::from(body);
        let before_ms = self.clock.wall_ms();
        let written = bounded(Operation::Put, key, self.store.put(key, body.clone())).await;
        let after_ms = self.clock.wall_ms();
        if let Err(error) = &written
            && let Some((check, sentence)) = diagnose(error)
        {
            self.fail(check, sentence);
            return;
        }
        self.pass(Check::Reach, "the store answers");
        self.pass(Check::Bucket, "the bucket is there");
        self.pass(Check::Credentials, "the credentials are accepted");
        let is_written = match written {
            Ok(()) => {
                self.pass(Check::Put, "objects may be written");
                true
            }
            Err(error) => {
                self.deny(Check::Put, "s3:PutObject", &error);
                false
            }
        };
        self.read(key, is_written.then_some(&body)).await;
        self.list(key, is_written).await;
        if is_written {
            self.compare_clocks(key, before_ms, after_ms).await;
            self.put_again(key, body).await;
        }
        self.delete(key, is_written).await;
    }

    /// Reads the object in all ways, or if it could not be written, something that does not exist.
    async fn read(&mut self, key: &ObjectKey, expected: Option<&Body>) {
        let whole = bounded(Operation::Get, key, self.store.get(key)).await;
        let suffix = bounded(Operation::GetSuffix, key, self.store.get_suffix(key, 10)).await;
        let range = bounded(Operation::GetRange, key, self.store.get_range(key, 2..7)).await;
        let (whole, suffix, range) = match (whole, suffix, range) {
            (Ok(whole), Ok(suffix), Ok(range)) => (whole, suffix.bytes, range),
            (Err(error), _, _) | (_, Err(error), _) | (_, _, Err(error)) => {
                if expected.is_none() && error.kind == StoreErrorKind::NotFound {
                    self.pass(Check::Get, "objects may be read");
                } else {
                    self.deny(Check::Get, "s3:GetObject", &error);
                }
                return;
            }
        };
        let expected = expected.map(Body::to_bytes).unwrap_or_default();
        let is_same = whole == expected
            && expected.ends_with(&suffix)
            && suffix.len() == 10
            && expected.get(2..7) == Some(&range);
        if is_same {
            self.pass(Check::Get, "objects may be read, whole and in part");
        } else {
            let sentence = "the store gives other bytes than were written: look for a proxy or \
                            gateway in between that changes bodies or ignores ranges";
            self.fail(Check::Get, sentence.to_owned());
        }
    }

    async fn list(&mut self, key: &ObjectKey, is_written: bool) {
        let page = bounded(
            Operation::List,
            key,
            self.store.list(key.as_str(), None, 10),
        )
        .await;
        match page {
            Ok(page) if page.objects.len() == usize::from(is_written) => {
                self.pass(Check::List, "objects may be listed");
            }
            Ok(_) => {
                let sentence = "the list does not show what was just written: use a store whose \
                                lists are up to date, as those of S3 have been since 2020";
                self.fail(Check::List, sentence.to_owned());
            }
            Err(error) => self.deny(Check::List, "s3:ListBucket", &error),
        }
    }

    async fn compare_clocks(&mut self, key: &ObjectKey, before_ms: u64, after_ms: u64) {
        let meta = match bounded(Operation::Head, key, self.store.head(key)).await {
            Ok(meta) => meta,
            Err(error) => return self.deny(Check::Get, "s3:GetObject", &error),
        };
        let ahead_ms = before_ms.saturating_sub(meta.modified_ms);
        let behind_ms = meta.modified_ms.saturating_sub(after_ms);
        let skew_seconds = ahead_ms.max(behind_ms) / 1000;
        if ahead_ms.max(behind_ms) < SKEW_MS_MAX {
            self.pass(Check::Clock, "this clock agrees with the store's");
        } else {
            let direction = if ahead_ms > 0 { "ahead of" } else { "behind" };
            let sentence = format!(
                "this clock is {skew_seconds} s {direction} the store's: set it by NTP, since S3 \
                 refuses requests at 900 s, and expiry goes by this clock"
            );
            self.warn(Check::Clock, sentence);
        }
    }

    async fn put_again(&mut self, key: &ObjectKey, body: Body) {
        let call = self.store.put_if_absent(key, body);
        match bounded(Operation::PutIfAbsent, key, call).await {
            Err(error) if error.kind == StoreErrorKind::AlreadyExists => {
                self.pass(Check::ConditionalPut, "conditional writes are honored");
            }
            Ok(()) => {
                let sentence = "the store ignores `If-None-Match: *`: nothing rests on it, but two \
                                clusters under one prefix would not notice each other, so give each \
                                its own";
                self.warn(Check::ConditionalPut, sentence.to_owned());
            }
            Err(error) => {
                let sentence = format!(
                    "conditional writes fail ({}): nothing rests on them",
                    why(&error)
                );
                self.warn(Check::ConditionalPut, sentence);
            }
        }
    }

    async fn delete(&mut self, key: &ObjectKey, is_written: bool) {
        if let Err(error) = bounded(Operation::Delete, key, self.store.delete(key)).await {
            return self.deny(Check::Delete, "s3:DeleteObject", &error);
        }
        if is_written
            && bounded(Operation::Head, key, self.store.head(key))
                .await
                .is_ok()
        {
            let sentence = "a deleted object is still there: switch off versioning and object lock \
                            for the prefix, or the bucket will only grow";
            return self.fail(Check::Delete, sentence.to_owned());
        }
        self.pass(Check::Delete, "objects may be deleted");
    }

    fn pass(&mut self, check: Check, sentence: &str) {
        self.add(check, Outcome::Passed, sentence.to_owned());
    }

    fn warn(&mut self, check: Check, sentence: String) {
        self.add(check, Outcome::Warned, sentence);
    }

    fn fail(&mut self, check: Check, sentence: String) {
        self.add(check, Outcome::Failed, sentence);
    }

    /// One right is missing, or the store failed in between.
    fn deny(&mut self, check: Check, right: &str, error: &StoreError) {
        let sentence = match (error.kind, diagnose(error)) {
            (StoreErrorKind::Denied, _) => format!(
                "`{}` is denied: allow {right} on the bucket and everything below the prefix",
                error.operation
            ),
            (_, Some((_, sentence))) => sentence,
            (_, None) => format!("`{}` fails: {}", error.operation, why(error)),
        };
        self.fail(check, sentence);
    }

    fn add(&mut self, check: Check, outcome: Outcome, sentence: String) {
        // The first failure of a check says it all.
        if self.findings.iter().all(|finding| finding.check != check) {
            self.findings.push(Finding {
                check,
                outcome,
                sentence,
            });
        }
    }

    /// All findings in order, with those checks that were not reached.
    fn finish(mut self) -> Vec<Finding> {
        for check in Check::ALL {
            let sentence = "not looked at, because of what failed before".to_owned();
            self.add(check, Outcome::Skipped, sentence);
        }
        let place = |finding: &Finding| Check::ALL.iter().position(|&check| check == finding.check);
        self.findings.sort_by_key(place);
        self.findings
    }
}

async fn bounded<T>(
    operation: Operation,
    key: &ObjectKey,
    call: StoreFuture<'_, T>,
) -> Result<T, StoreError> {
    timeout(REQUEST_TIMEOUT, call).await.unwrap_or_else(|_| {
        Err(StoreError::new(
            operation,
            key.as_str(),
            StoreErrorKind::Timeout,
        ))
    })
}

/// What is wrong with the store as a whole, and what to do; `None` when a single right is missing.
fn diagnose(error: &StoreError) -> Option<(Check, String)> {
    let code = error
        .refusal()
        .and_then(|refusal| refusal.code.as_deref())
        .unwrap_or_default();
    let (check, fix) = match (code, error.kind) {
        ("NoSuchBucket", _) => (
            Check::Bucket,
            "create the bucket, or correct its name in --cold-tier",
        ),
        ("PermanentRedirect" | "TemporaryRedirect" | "AuthorizationHeaderMalformed", _)
        | ("IllegalLocationConstraintException", _) => (
            Check::Bucket,
            "the bucket is in another region: set --s3-region or AWS_REGION to it",
        ),
        ("InvalidAccessKeyId" | "NotSignedUp", _) => (
            Check::Credentials,
            "the key id is not known there: correct AWS_ACCESS_KEY_ID, or the profile",
        ),
        ("SignatureDoesNotMatch", _) => (
            Check::Credentials,
            "the secret does not belong to the key id: correct AWS_SECRET_ACCESS_KEY, or the \
             profile",
        ),
        ("ExpiredToken" | "InvalidToken" | "TokenRefreshRequired", _) => (
            Check::Credentials,
            "the session token is expired or wrong: get new credentials",
        ),
        ("RequestTimeTooSkewed", _) => (
            Check::Clock,
            "this clock is more than 15 minutes off: set it by NTP",
        ),
        // Denied before a request was sent: there are no credentials.
        (_, StoreErrorKind::Denied) if error.refusal().is_none() => (
            Check::Credentials,
            "no credentials are found, or they are denied: set AWS_ACCESS_KEY_ID and \
             AWS_SECRET_ACCESS_KEY, or a profile or role, or the owner of the directory",
        ),
        (_, StoreErrorKind::Timeout | StoreErrorKind::Unavailable) => (
            Check::Reach,
            "see whether --s3-endpoint or AWS_ENDPOINT_URL is right, the server runs and no \
             firewall is in between",
        ),
        (_, StoreErrorKind::Throttled) => (
            Check::Reach,
            "the store asks for fewer requests: try again later, or raise its limits",
        ),
        (_, StoreErrorKind::Denied) => return None,
        // Of a server it would be a refusal.
        (_, StoreErrorKind::NotFound)
            if error.operation == Operation::Put && error.refusal().is_none() =>
        {
            (
                Check::Bucket,
                "the directory of --cold-tier is gone: mount its file system, or make it again",
            )
        }
        _ => (
            Check::Put,
            "the store does not understand the request: see whether the endpoint is one of S3",
        ),
    };
    Some((check, format!("{}: {fix}", why(error))))
}

/// The error with its cause.
fn why(error: &StoreError) -> String {
    match &error.source {
        Some(source) => format!("{} ({source})", error.kind),
        None => error.kind.to_string(),
    }
}

#[cfg(test)]
mod tests;
