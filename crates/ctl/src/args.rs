//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use fonn_auth::Expiry;
use fonn_base::clock::Clock;
use fonn_base::duration::Span;
use fonn_base::size::ByteCount;

/// Shows and changes what a Fonn node does, through its admin port.
#[derive(Debug, Parser)]
#[command(name = "fonnctl", version, max_term_width = 100)]
pub(super) struct Cli {
    /// Admin port of the node, HOST:PORT or https://HOST:PORT
    #[arg(
        long,
        value_name = "ADDR",
        env = "FONN_ADMIN",
        default_value = "127.0.0.1:11280",
        global = true
    )]
    pub admin: AdminAddr,
    /// Member of the cluster that is meant, if not the one at --admin, which sends the call on; at
    /// a router all members are meant without it, or any one that answers
    #[arg(long, value_name = "NAME", global = true)]
    pub member: Option<String>,
    /// JSON instead of tables: one object a line
    #[arg(long, global = true)]
    pub json: bool,
    #[command(flatten)]
    pub login: Login,
    #[command(flatten)]
    pub tls: TlsArgs,
    #[command(subcommand)]
    pub command: Command,
}

/// The user, where the node has users.
#[derive(Debug, Args)]
pub(super) struct Login {
    /// User to log in as; the password comes from --password-file, FONN_PASSWORD or the terminal
    #[arg(long, value_name = "NAME", env = "FONN_USER", global = true)]
    pub user: Option<String>,
    /// File with the password, - for standard input
    #[arg(long, value_name = "FILE", env = "FONN_PASSWORD_FILE", global = true)]
    pub password_file: Option<PathBuf>,
}

/// The trusted authority, where the node has a certificate.
#[derive(Debug, Args)]
pub(super) struct TlsArgs {
    /// Authorities of the node's certificate, PEM; with it the connection is under TLS
    #[arg(long, value_name = "FILE", env = "FONN_TLS_CA", global = true)]
    pub tls_ca: Option<PathBuf>,
    /// Certificate to show to a node that asks for one, PEM
    #[arg(long, value_name = "FILE", global = true, requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Private key of that certificate, PEM
    #[arg(long, value_name = "FILE", global = true, requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// What the node is, how full its tiers are, what they answered
    Status,
    /// Which tiers have a key, and in which form; exit code 1 if none serves it
    Key(Key),
    /// What the node does right now: hits, rates, latency, tiers, namespaces, members; q leaves
    Top(Top),
    /// The namespaces: what each may take, takes, and was asked for
    Namespaces,
    /// Hits, misses and bytes by build tool and identity, since the start.
    Tools,
    /// Show the codec of each level, or change one until the next restart or reload
    Codec {
        /// ram, fresh, compacted or cold, and its codec from now on, as in fresh=zstd:3
        #[arg(value_name = "LEVEL=CODEC")]
        setting: Option<CodecSetting>,
    },
    /// The settings in force, where each comes from, and which a reload changes
    Config,
    /// What happened lately: members that come and go, settings that change, what fails
    Events(Events),
    /// Make every entry of a namespace invisible, on all tiers
    Flush(Flush),
    /// Make invisible what an identity wrote, on all tiers of all members
    Purge(Purge),
    /// Bring entries from disk and bucket into the free part of RAM, the newest first
    Warm(Warm),
    /// Check ports, clock and bucket, and say how to cure what is wrong
    Doctor,
    /// The members of the node's cluster and what they own; exit code 1 if it has no leader
    Map,
    /// Take all slots from a member, which goes on answering for what it has
    Drain(Drain),
    /// Remove a member for good: it can come back only with an empty disk
    Remove(Remove),
    /// Set a member's share of the slots, until it starts again with another --weight
    Weight(Weight),
    /// Set how many owners each slot has
    Replicas {
        /// 1, 2 or 3
        #[arg(value_name = "N", value_parser = clap::value_parser!(u8).range(1..=3))]
        count: u8,
    },
    /// The cold tier: what is in the bucket
    #[command(subcommand)]
    Cold(Cold),
    /// Users
    #[command(subcommand)]
    User(User),
    /// Tokens of a users file: secrets for machines, which expire
    #[command(subcommand)]
    Token(Token),
    /// Keep the build cache of the go command in Fonn: GOCACHEPROG="fonnctl gocache --server
    /// HOST:PORT"
    Gocache(GoCache),
    /// Print the completion script of a shell
    Completions {
        /// The shell
        shell: Shell,
    },
}

#[derive(Debug, Args)]
pub(super) struct Key {
    /// The key, as it is: no prefix is added
    pub key: OsString,
    /// Its namespace; that of the user if it is left out, `default` without users
    #[arg(
        long,
        value_name = "NAME",
        default_value = "",
        hide_default_value = true
    )]
    pub namespace: String,
    /// Its database (Redis's SELECT)
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub db: u32,
    /// Delete it, wherever it is, instead of showing where it is
    #[arg(long, requires = "yes")]
    pub delete: bool,
    /// Yes, really
    #[arg(long, requires = "delete")]
    pub yes: bool,
}

#[derive(Clone, Copy, Debug, Args)]
pub(super) struct Top {
    /// Print once and leave; so it does where standard output is no terminal, and with --json
    #[arg(long)]
    pub once: bool,
}

#[derive(Clone, Copy, Debug, Args)]
pub(super) struct Events {
    /// Only events with a higher number than this
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub after: u64,
    /// Go on with what happens, until it is stopped
    #[arg(long)]
    pub follow: bool,
}

/// The go command (1.24 and later) starts this as its GOCACHEPROG and speaks to it over standard
/// input and output. Outputs are kept in a local directory and on the server. A server that is
/// away, slow or refuses costs hits, never a build.
#[derive(Debug, Args)]
pub(super) struct GoCache {
    /// HTTP port of a node or router (--http-listen), HOST:PORT or https://HOST:PORT
    #[arg(
        long,
        value_name = "ADDR",
        env = "FONN_SERVER",
        value_parser = http_addr,
        default_value = "127.0.0.1:11290"
    )]
    pub server: AdminAddr,
    /// Token of the caller, where the server has users; a file keeps it out of the list of
    /// processes
    #[arg(long, value_name = "TOKEN", env = "FONN_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// File with the token
    #[arg(long, value_name = "FILE", conflicts_with = "token")]
    pub token_file: Option<PathBuf>,
    /// Beginning of the keys on the server
    #[arg(long, value_name = "TEXT", default_value = "go")]
    pub prefix: String,
    /// Directory of the outputs that the go command reads; fonn/gocache in the user's cache
    /// directory if it is left out
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// What the directory is brought to when a build begins and no other one runs: the oldest
    /// outputs go
    #[arg(long, value_name = "SIZE", default_value = "10g")]
    pub dir_budget: ByteCount,
    /// A request to the server that takes longer counts as a miss
    #[arg(long, value_name = "DURATION", default_value = "5s")]
    pub deadline: Span,
    /// For how long the end of a build waits until the server has its outputs
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    pub upload_wait: Span,
    /// Print hits, misses and failures to standard error at the end
    #[arg(long, env = "FONN_GOCACHE_STATS")]
    pub stats: bool,
}

#[derive(Debug, Args)]
pub(super) struct Flush {
    /// The namespace; without users there is one, called default
    pub namespace: String,
    /// Only this database of it
    #[arg(long, value_name = "N")]
    pub db: Option<u32>,
    /// Yes, really
    #[arg(long, required = true)]
    pub yes: bool,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("how").args(["yes", "dry_run"]).required(true))]
pub(super) struct Purge {
    /// Name of the user, token or OIDC identity, as `fonnctl key` shows it
    #[arg(long, value_name = "NAME")]
    pub writer: String,
    /// Only in this namespace
    #[arg(long, value_name = "NAME")]
    pub namespace: Option<String>,
    /// Only what was written since then: a time as 2026-12-31T23:59:59Z, or how long ago as 2h
    #[arg(long, value_name = "TIME", value_parser = since)]
    pub since: Option<Since>,
    /// Only count
    #[arg(long)]
    pub dry_run: bool,
    /// Yes, really
    #[arg(long)]
    pub yes: bool,
}

/// A time in the past.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Since {
    /// Unix time in milliseconds.
    pub unix_ms: u64,
}

fn since(text: &str) -> Result<Since, String> {
    if let Ok(ago) = text.parse::<Span>() {
        let unix_ms = Clock::system().wall_ms().saturating_sub(ago.as_millis());
        return Ok(Since { unix_ms });
    }
    match text.parse::<Expiry>() {
        Ok(time) => Ok(Since {
            unix_ms: time.unix_ms(),
        }),
        Err(_) => Err("expected a time as 2026-12-31T23:59:59Z, or how long ago as 2h".to_owned()),
    }
}

#[derive(Debug, Args)]
pub(super) struct Warm {
    /// Only entries of this namespace; without users there is one, called default
    #[arg(long, value_name = "NAME")]
    pub namespace: Option<String>,
    /// At most so many of the newest entries, those that are in RAM already included
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    pub newest: Option<u64>,
    /// At most so much, as in 4g; by default as much as RAM has room for
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub bytes: Option<ByteCount>,
    /// At most so much a second, so that clients are not disturbed; 128m by default
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub rate: Option<ByteCount>,
}

/// A size that is not 0, which would mean the default.
fn size(text: &str) -> Result<ByteCount, String> {
    match text.parse::<ByteCount>() {
        Ok(size) if size.bytes() > 0 => Ok(size),
        Ok(_) => Err("expected a size above 0".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

#[derive(Debug, Args)]
pub(super) struct Drain {
    /// Name of the member (--node-id)
    pub node: String,
    /// Give the slots back to a member that was draining
    #[arg(long)]
    pub undo: bool,
    /// Do not wait until the others have what it has
    #[arg(long)]
    pub no_wait: bool,
}

#[derive(Debug, Args)]
pub(super) struct Remove {
    /// Name of the member (--node-id)
    pub node: String,
    /// Yes, really
    #[arg(long, required = true)]
    pub yes: bool,
}

#[derive(Debug, Args)]
pub(super) struct Weight {
    /// Name of the member (--node-id)
    pub node: String,
    /// Relative to other members; 0 owns nothing
    #[arg(value_name = "N")]
    pub weight: u16,
}

#[derive(Debug, Subcommand)]
pub(super) enum Cold {
    /// How full the cold tier is, how far it lags behind, what it costs
    Status,
    /// List segments, by region and writer
    Ls {
        /// Only segments that this region wrote
        #[arg(long, value_name = "NAME")]
        region: Option<String>,
        /// At most so many
        #[arg(long, value_name = "N")]
        limit: Option<usize>,
    },
    /// Show what is in a segment
    Inspect {
        /// REGION/WRITER/SEQUENCE, as `ls` shows it
        segment: String,
        /// At most so many entries
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: usize,
    },
    /// Read segments in full and check every record; exit code 1 if one is bad
    Verify {
        /// REGION/WRITER/SEQUENCE; all segments if it is left out
        segment: Option<String>,
    },
    /// Merge everything in the bucket into the node's index again
    Rebuild,
}

#[derive(Debug, Subcommand)]
pub(super) enum User {
    /// Read a password from standard input and print its hash for the users file
    Hash,
    /// The users of the node: those of its users file, and those that the members of its cluster
    /// agreed on
    List,
    /// Add a user to the cluster, or change one; what is not said stays as it is
    Put(PutUser),
    /// Remove a user from the cluster; its connections end
    Remove(RemoveUser),
}

#[derive(Debug, Args)]
pub(super) struct PutUser {
    /// Its name; the password comes from --new-password-file (FONN_NEW_PASSWORD_FILE),
    /// FONN_NEW_PASSWORD or the terminal
    pub name: String,
    /// What it may do; a new user needs one
    #[arg(long, value_name = "ROLE")]
    pub role: Option<Role>,
    /// The namespace it is in; a new user is in default if it is left out
    #[arg(long, value_name = "NAME")]
    pub namespace: Option<String>,
    /// The namespace under that, or none; for all users of the namespace
    #[arg(long, value_name = "NAME")]
    pub base: Option<String>,
    /// What the namespace may take on each node, as in 20g, or none; for all users of the namespace
    #[arg(long, value_name = "SIZE", value_parser = quota)]
    pub quota: Option<ByteCount>,
    /// File with its password, - for standard input
    #[arg(long, value_name = "FILE", env = "FONN_NEW_PASSWORD_FILE")]
    pub new_password_file: Option<PathBuf>,
    /// It keeps the password it has, whatever else is given
    #[arg(long)]
    pub keep_password: bool,
}

#[derive(Debug, Args)]
pub(super) struct RemoveUser {
    /// Its name
    pub name: String,
    /// Yes, really
    #[arg(long, required = true)]
    pub yes: bool,
}

#[derive(Debug, Subcommand)]
pub(super) enum Token {
    /// Make a token: its secret goes to standard output, once, and its entry to the file
    Create(CreateToken),
    /// The tokens of a users file
    List(ListTokens),
    /// Remove a token from a users file; its connections end when servers have read the file again
    Revoke(RevokeToken),
}

#[derive(Debug, Args)]
pub(super) struct CreateToken {
    /// Its name: 1 to 64 visible ASCII characters without a colon
    pub name: String,
    /// What it may do
    #[arg(long, value_name = "ROLE")]
    pub role: TokenRole,
    /// The namespace that it is for
    #[arg(long, value_name = "NAME")]
    pub namespace: String,
    /// How long it lives, as in 90d, always with a unit; for ever if it is left out
    #[arg(long, value_name = "DURATION", value_parser = span_with_unit)]
    pub ttl: Option<Span>,
    /// The users file that its entry is added to; it is made if it is not there
    #[arg(long, value_name = "FILE")]
    pub entry: PathBuf,
}

#[derive(Debug, Args)]
pub(super) struct ListTokens {
    /// The users file
    #[arg(long, value_name = "FILE")]
    pub entry: PathBuf,
}

#[derive(Debug, Args)]
pub(super) struct RevokeToken {
    /// Its name
    pub name: String,
    /// The users file that its entry is removed from
    #[arg(long, value_name = "FILE")]
    pub entry: PathBuf,
    /// Yes, really
    #[arg(long, required = true)]
    pub yes: bool,
}

/// What a token may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum TokenRole {
    /// Read entries of its namespace
    Read,
    /// Change them too
    ReadWrite,
}

/// As in a users file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Role {
    /// Read entries of its namespace
    Read,
    /// Change them too
    ReadWrite,
    /// Everything
    Admin,
}

/// In the place of a namespace or a size.
pub(super) const NONE: &str = "none";

/// A size above 0, which stands for none.
fn quota(text: &str) -> Result<ByteCount, String> {
    match text {
        NONE => Ok(ByteCount::new(0)),
        _ => size(text),
    }
}

/// HOST:PORT, also as a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AdminAddr {
    /// HOST:PORT.
    pub addr: String,
    /// Whether the URL asks for TLS.
    pub is_https: bool,
}

impl FromStr for AdminAddr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let https = text.strip_prefix("https://");
        let bare = https.or(text.strip_prefix("http://")).unwrap_or(text);
        let bare = bare.trim_end_matches('/');
        let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0);
        let in_host = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
        match bare.rsplit_once(':') {
            Some((host, port))
                if !host.is_empty() && host.chars().all(in_host) && is_port(port) =>
            {
                Ok(Self {
                    addr: bare.to_owned(),
                    is_https: https.is_some(),
                })
            }
            _ => Err("expected HOST:PORT, as in 127.0.0.1:11280".to_owned()),
        }
    }
}

/// The same, of an HTTP port.
fn http_addr(text: &str) -> Result<AdminAddr, String> {
    let addr = text.parse::<AdminAddr>();
    addr.map_err(|error| error.replace("11280", "11290"))
}

/// A duration that says its unit: 90 may be meant as days, and would be seconds.
fn span_with_unit(text: &str) -> Result<Span, String> {
    let text = text.trim();
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("expected a unit as well, as in {text}d or {text}s"));
    }
    text.parse::<Span>().map_err(|error| error.to_string())
}

/// `LEVEL=CODEC`; the node knows which there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CodecSetting {
    pub level: String,
    pub codec: String,
}

impl FromStr for CodecSetting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((level, codec)) if !level.is_empty() && !codec.is_empty() => Ok(Self {
                level: level.to_owned(),
                codec: codec.to_owned(),
            }),
            _ => Err("expected LEVEL=CODEC, as in fresh=zstd:3".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_life_of_a_token_needs_a_unit() {
        let of = |text: &str| {
            let entry = ["--role", "read", "--namespace", "n", "--entry", "f"];
            let create = ["fonnctl", "token", "create", "t", "--ttl", text];
            Cli::try_parse_from([&create[..], &entry[..]].concat())
        };
        assert!(of("90d").is_ok() && of("90s").is_ok() && of("1500 ms").is_ok());
        let error = of("90").unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("as in 90d or 90s"), "{error}");
        assert!(of("").is_err() && of("90x").is_err());
    }
}
