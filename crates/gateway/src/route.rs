//! Which operation a request asks for: its method and path, without I/O.
//!
//! | path | dialect | key |
//! |---|---|---|
//! | `/[instance/]ac/{64 hex}` | `bazel_ac` | the path |
//! | `/[instance/]cas/{64 hex}` | `bazel_cas` | the path |
//! | `/cache/{key}` | `gradle` | the path |
//! | `…/v1.1/{group}/{artifact}/{hash}/{file}` | `maven` | the path |
//! | `/v1/cache/{hash}` | `nx` | the path |
//! | `/v8/artifacts/{hash}?teamId=T&slug=T` | `turborepo` | `v8/artifacts/[T/]{hash}` |
//! | `/actions/cache/{64 hex}` | `actions` | the path |
//! | `/twirp/github.actions.results.api.v1.CacheService/{method}` | `actions` | the path |
//! | `/status` | `status` | none |
//! | `/v1/token` | `token` | none |
//! | any other | `generic` | the path |
//!
//! A key is the path without its leading slash, percent-decoded. Bytes above 127 and `%00` are part
//! of it. Segments that URL libraries rewrite (`.`, `..`, empty ones) are refused, because two
//! clients would disagree on the key.

mod path;
#[cfg(test)]
mod tests;

use fonn_proto::command::RESP_KEY_LEN_MAX;

pub(crate) use self::path::unescape;
use self::path::{decode, hex_digest, team};
use crate::tool::Tool;

fonn_base::label! {
    /// A protocol of a build tool.
    pub enum Dialect: "dialect" {
        /// Values under any path: sccache, ccache, curl.
        Generic = "generic",
        /// The action cache of Bazel.
        BazelAc = "bazel_ac",
        /// The content-addressed store of Bazel.
        BazelCas = "bazel_cas",
        /// Gradle's build cache, and Rush's.
        Gradle = "gradle",
        /// Maven's build cache extension.
        Maven = "maven",
        /// Nx.
        Nx = "nx",
        /// Turborepo.
        Turborepo = "turborepo",
        /// The cache service of GitHub Actions.
        Actions = "actions",
        /// The status page.
        Status = "status",
        /// The exchange of identity tokens.
        Token = "token",
    }
}

impl Dialect {
    /// Its tool; none of pages that are no cache.
    const fn tool(self) -> Option<Tool> {
        Some(match self {
            Self::Generic => Tool::Generic,
            Self::BazelAc | Self::BazelCas => Tool::Bazel,
            Self::Gradle => Tool::Gradle,
            Self::Maven => Tool::Maven,
            Self::Nx => Tool::Nx,
            Self::Turborepo => Tool::Turborepo,
            Self::Actions => Tool::Actions,
            Self::Status | Self::Token => return None,
        })
    }
}

/// What is done with the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Returns the value.
    Read,
    /// Returns the headers of a read.
    Probe,
    /// Stores the body.
    Write,
    /// Removes the entry.
    Remove,
    /// Describes the resource as WebDAV does.
    Describe,
    /// Creates a collection: there is nothing to do, since every collection exists.
    MakeCollection,
    /// Tells which methods there are.
    TellMethods,
    /// Tells that the cache of Turborepo is enabled.
    TellEnabled,
    /// Takes the hits and misses that Turborepo reports.
    TakeEvents,
    /// Tells where to upload an archive of GitHub Actions.
    ReserveEntry,
    /// Lets an archive of GitHub Actions be found.
    PublishEntry,
    /// Tells where an archive of GitHub Actions is.
    FindEntry,
    /// Tells about the server.
    TellStatus,
    /// Exchanges the identity token in the body for one of this cluster.
    ExchangeToken,
}

impl Operation {
    /// Whether it reads entries.
    #[must_use]
    pub const fn is_read(self) -> bool {
        matches!(
            self,
            Self::Read | Self::Probe | Self::Describe | Self::FindEntry
        )
    }

    /// Whether it changes entries.
    #[must_use]
    pub const fn is_write(self) -> bool {
        matches!(
            self,
            Self::Write
                | Self::Remove
                | Self::MakeCollection
                | Self::ReserveEntry
                | Self::PublishEntry
        )
    }
}

/// A request as it was understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The protocol.
    pub dialect: Dialect,
    /// What is done.
    pub operation: Operation,
    /// The key; empty where the operation has none.
    pub key: Vec<u8>,
    /// The SHA-256 that the value must have; of an archive of GitHub Actions the name of its
    /// entry.
    pub digest: Option<[u8; 32]>,
    /// For which build tool it counts; none if it is of no cache.
    pub tool: Option<Tool>,
}

impl Route {
    /// The same, if the client calls itself by this `User-Agent`: values under any path are of
    /// several tools.
    #[must_use]
    pub fn of_agent(mut self, agent: &[u8]) -> Self {
        if self.tool == Some(Tool::Generic) {
            self.tool = Some(Tool::of_agent(agent));
        }
        self
    }
}

/// Why a request has no meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// The path is no key.
    #[error("malformed path: {0}")]
    Path(&'static str),
    /// The key is too long.
    #[error("the path is longer than {RESP_KEY_LEN_MAX} bytes")]
    TooLong,
    /// The path does not have this method.
    #[error("the method is not supported here")]
    Method,
}

/// Understands a request by its method, its path and its query.
///
/// # Errors
/// [`RouteError`].
pub fn route(method: &str, path: &str, query: Option<&str>) -> Result<Route, RouteError> {
    if method == "OPTIONS" {
        return Ok(Route {
            dialect: dialect_of(path.trim_start_matches('/').as_bytes()),
            operation: Operation::TellMethods,
            key: Vec::new(),
            digest: None,
            tool: None,
        });
    }
    let key = decode(path)?;
    let is_collection = key.is_empty() || key.ends_with(b"/");
    let dialect = dialect_of(&key);
    let operation = match (method, dialect) {
        ("GET" | "HEAD", Dialect::Status) => Operation::TellStatus,
        ("GET" | "HEAD", Dialect::Turborepo) if key == b"v8/artifacts/status" => {
            Operation::TellEnabled
        }
        ("POST", Dialect::Turborepo) if key == b"v8/artifacts/events" => Operation::TakeEvents,
        ("POST", Dialect::Token) => Operation::ExchangeToken,
        (_, Dialect::Status | Dialect::Token) => return Err(RouteError::Method),
        ("POST", Dialect::Actions) => actions_call(&key).ok_or(RouteError::Method)?,
        ("GET" | "HEAD" | "PUT", Dialect::Actions) if actions_call(&key).is_some() => {
            return Err(RouteError::Method);
        }
        ("DELETE" | "PROPFIND" | "MKCOL", Dialect::Actions) => return Err(RouteError::Method),
        ("GET", _) => Operation::Read,
        ("HEAD", _) => Operation::Probe,
        ("PUT", _) if !is_collection => Operation::Write,
        // The upload methods that Rush can be set to.
        ("POST" | "PATCH", Dialect::Gradle) => Operation::Write,
        ("DELETE", _) if !is_collection => Operation::Remove,
        ("PROPFIND", _) => Operation::Describe,
        ("MKCOL", _) => Operation::MakeCollection,
        _ => return Err(RouteError::Method),
    };
    let digest = match dialect {
        Dialect::BazelCas | Dialect::Actions => hex_digest(&key),
        _ => None,
    };
    let team = match dialect {
        Dialect::Turborepo => team(query)?,
        _ => None,
    };
    let key = match team {
        Some(team) => {
            let hash = key.strip_prefix(TURBOREPO).unwrap_or(&key);
            let key = [TURBOREPO, team.as_slice(), b"/", hash].concat();
            // Bazel's values are verified, and these are not: `cas` is no team.
            if dialect_of(&key) != Dialect::Generic {
                return Err(RouteError::Path("the team makes it a path of Bazel"));
            }
            key
        }
        None => key,
    };
    if key.len() > RESP_KEY_LEN_MAX {
        return Err(RouteError::TooLong);
    }
    Ok(Route {
        dialect,
        operation,
        key,
        digest,
        tool: dialect.tool(),
    })
}

const TURBOREPO: &[u8] = b"v8/artifacts/";

/// The methods of GitHub Actions' cache service.
const ACTIONS_SERVICE: &[u8] = b"twirp/github.actions.results.api.v1.CacheService/";

/// Its archives.
const ACTIONS_ARCHIVES: &[u8] = b"actions/cache/";

/// What a method of GitHub Actions' cache service does.
fn actions_call(key: &[u8]) -> Option<Operation> {
    match key.strip_prefix(ACTIONS_SERVICE)? {
        b"CreateCacheEntry" => Some(Operation::ReserveEntry),
        b"FinalizeCacheEntryUpload" => Some(Operation::PublishEntry),
        b"GetCacheEntryDownloadURL" => Some(Operation::FindEntry),
        _ => None,
    }
}

/// The dialect that a key belongs to.
fn dialect_of(key: &[u8]) -> Dialect {
    let is_single = |rest: &[u8]| !rest.is_empty() && !rest.contains(&b'/');
    if key == b"status" {
        return Dialect::Status;
    }
    if key == b"v1/token" {
        return Dialect::Token;
    }
    let archive = key
        .strip_prefix(ACTIONS_ARCHIVES)
        .filter(|it| is_single(it));
    if actions_call(key).is_some() || archive.is_some_and(|it| hex_digest(it).is_some()) {
        return Dialect::Actions;
    }
    if key.strip_prefix(TURBOREPO).is_some_and(is_single) {
        return Dialect::Turborepo;
    }
    if key.strip_prefix(b"v1/cache/").is_some_and(is_single) {
        return Dialect::Nx;
    }
    if key.strip_prefix(b"cache/").is_some_and(is_single) {
        return Dialect::Gradle;
    }
    let mut segments = key.rsplit(|byte| *byte == b'/');
    let last = segments.next().unwrap_or_default();
    let kind = segments.next().unwrap_or_default();
    if hex_digest(last).is_some() {
        match kind {
            b"ac" => return Dialect::BazelAc,
            b"cas" => return Dialect::BazelCas,
            _ => {}
        }
    }
    // Two more between the hash, which is `kind`, and the version of the layout.
    let version = segments.nth(2).unwrap_or_default();
    let is_version = matches!(version, b"v1" | b"v1.1");
    if is_version && !last.is_empty() && !kind.is_empty() {
        return Dialect::Maven;
    }
    Dialect::Generic
}
