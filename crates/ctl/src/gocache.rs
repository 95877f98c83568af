//! `fonnctl gocache`: started by the go command, which keeps its build cache in Fonn by it. No
//! admin port is asked.

use std::fmt;
use std::io::{self, Write as _};
use std::path::PathBuf;

use fonn_gocache::{Failed, Options, Server, Summary};

use super::Verdict;
use super::args::{GoCache, TlsArgs};
use super::connection::tls_config;
use super::error::CtlError;
use super::password::read_secret;

/// What the server says to a caller that it does not know.
const UNAUTHORIZED: Failed = Failed::Refused(401);

/// What it says to one that it knows, and that may not do this.
const FORBIDDEN: Failed = Failed::Refused(403);

/// Serves the go command on standard input and output. The end of the helper would end the build,
/// so it goes on without what cannot be used, and says so once on standard error.
///
/// # Errors
/// If the go command breaks its protocol.
pub(super) async fn run(args: GoCache, tls: &TlsArgs) -> Result<Verdict, CtlError> {
    let dir = args.dir.clone().or_else(default_dir);
    if dir.is_none() {
        warn("there is no home directory: name a directory with --dir");
    }
    let server = server(&args, tls).inspect_err(|error| warn(error)).ok();
    let has_token = server.as_ref().is_some_and(|it| it.token.is_some());
    let options = Options {
        server,
        dir,
        budget: args.dir_budget.bytes(),
        upload_wait: args.upload_wait.get(),
    };
    let served = fonn_gocache::run(options, io::stdin(), io::stdout(), warn).await;
    let summary = served.map_err(CtlError::Output)?;
    let mut stderr = io::stderr();
    // The build goes on if standard error is closed.
    if let Some(trouble) = trouble(&summary, has_token) {
        let addr = &args.server.addr;
        let _ = writeln!(stderr, "fonnctl gocache: {addr} {trouble}");
    }
    if args.stats {
        let _ = writeln!(stderr, "{}", told(&summary));
    }
    Ok(Verdict::Good)
}

/// Where the server is and how it is called.
///
/// # Errors
/// If a file that a flag names cannot be read, or has something else.
fn server(args: &GoCache, tls: &TlsArgs) -> Result<Server, CtlError> {
    let token = match (&args.token, &args.token_file) {
        (None, Some(path)) => Some(read_secret(path, "--token-file")?),
        (token, _) => token.clone().filter(|it| !it.is_empty()),
    };
    Ok(Server {
        addr: args.server.addr.clone(),
        tls: tls_config(&args.server, tls)?,
        token,
        agent: concat!("fonn-gocache/", env!("CARGO_PKG_VERSION")),
        prefix: args.prefix.clone(),
        deadline: args.deadline.get(),
    })
}

/// Says what the build does without. The build goes on if standard error is closed.
fn warn(what: impl fmt::Display) {
    let _ = writeln!(
        io::stderr(),
        "fonnctl gocache: {what}; the build goes on without it"
    );
}

/// What the server did not do, if requests to it failed.
fn trouble(summary: &Summary, has_token: bool) -> Option<String> {
    let (read, upload) = (summary.failed_read, summary.failed_upload);
    if read == Some(UNAUTHORIZED) || upload == Some(UNAUTHORIZED) {
        return Some(match has_token {
            true => "refuses the token; the build ran without it".to_owned(),
            false => {
                "wants a token: FONN_TOKEN or --token-file; the build ran without it".to_owned()
            }
        });
    }
    if (read, upload, summary.uploads) == (None, Some(FORBIDDEN), 0) {
        return Some(
            "took no output (403): the token may only read, or the namespace is write-once"
                .to_owned(),
        );
    }
    let last = match read.or(upload)? {
        Failed::Refused(status) => format!("was refused with status {status}"),
        Failed::Away => "had no answer of a cache".to_owned(),
    };
    // A server that served something is the right one.
    let advice = match summary.hits_there + summary.uploads {
        0 => "; is --server the --http-listen of a node or router?",
        _ => "",
    };
    let failures = summary.failures;
    Some(format!("failed {failures} times; a request {last}{advice}"))
}

/// The summary for people.
fn told(summary: &Summary) -> String {
    let hits = summary.hits_here + summary.hits_there;
    format!(
        "fonnctl gocache: {hits} hits ({} from the directory), {} misses, {} stored ({} sent), {} failures",
        summary.hits_here, summary.misses, summary.puts, summary.uploads, summary.failures
    )
}

/// `fonn/gocache` where the user's caches are.
fn default_dir() -> Option<PathBuf> {
    let of = |name: &str| std::env::var_os(name).filter(|it| !it.is_empty());
    let caches = of("XDG_CACHE_HOME").map(PathBuf::from);
    let caches = caches.or_else(|| of("HOME").map(|home| PathBuf::from(home).join(".cache")));
    caches.map(|caches| caches.join("fonn").join("gocache"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_is_one_line() {
        let summary = Summary {
            hits_here: 2,
            hits_there: 3,
            misses: 4,
            puts: 5,
            uploads: 6,
            failures: 7,
            ..Summary::default()
        };
        assert_eq!(
            told(&summary),
            "fonnctl gocache: 5 hits (2 from the directory), 4 misses, 5 stored (6 sent), 7 failures"
        );
    }

    #[test]
    fn a_server_that_fails_is_told_with_the_likely_cause() {
        let of = |failed_read, failed_upload, uploads, has_token| {
            let summary = Summary {
                failures: 3,
                failed_read,
                failed_upload,
                uploads,
                ..Summary::default()
            };
            trouble(&summary, has_token).unwrap_or_default()
        };
        let (away, no_way) = (Some(Failed::Away), Some(Failed::Refused(400)));
        assert_eq!(of(None, None, 0, true), "");
        let refused = of(Some(UNAUTHORIZED), None, 0, true);
        assert!(refused.starts_with("refuses the token"), "{refused}");
        let bare = of(None, Some(UNAUTHORIZED), 0, false);
        assert!(bare.starts_with("wants a token: FONN_TOKEN"), "{bare}");
        let reader = of(None, Some(FORBIDDEN), 0, true);
        assert!(reader.starts_with("took no output (403)"), "{reader}");
        assert_eq!(
            of(away, away, 0, true),
            "failed 3 times; a request had no answer of a cache; is --server the --http-listen of a node or router?"
        );
        assert_eq!(
            of(no_way, None, 1, false),
            "failed 3 times; a request was refused with status 400"
        );
        let other = of(Some(FORBIDDEN), Some(FORBIDDEN), 0, true);
        assert!(other.contains("status 403; is --server"), "{other}");
    }
}
