//! The RESP commands: one row each, from which come look-up, arity checks, the positions of keys
//! and values, and what `COMMAND` tells clients.
//!
//! Arity, key positions, flags, categories and key specifications mean what they mean in the Redis
//! documentation of `COMMAND` and "Key specifications"; they are compared with those of a Redis
//! server of version 7.0. Commands of other data types are not here: they are unknown commands.

mod rows;

use self::rows::ROWS;

/// Every RESP command, subcommands within their containers.
pub const COMMANDS: &[CommandInfo] = ROWS;

/// What there is to know about one command.
#[derive(Clone, Copy, Debug)]
pub struct CommandInfo {
    /// Lower-case name; `container|subcommand` for a subcommand.
    pub name: &'static str,
    /// Number of arguments, the name included; a negative number is the least number, negated.
    pub arity: i8,
    /// What it does, in one sentence without a full stop.
    pub summary: &'static str,
    /// The version of Redis that brought it.
    pub since: &'static str,
    /// What it is about.
    pub group: Group,
    /// Position of the first key, counted from the name; 0 without keys.
    pub first_key: u8,
    /// Position of the last key; negative counts from the end (-1 is the last argument).
    pub last_key: i8,
    /// Distance from one key to the next.
    pub key_step: u8,
    /// The commands that are called as `name subcommand …`.
    pub subcommands: &'static [CommandInfo],
    pub(super) flags: u16,
    pub(super) access: u16,
    pub(super) tips: &'static [&'static str],
    pub(super) values: Values,
    pub(super) kind: Kind,
}

/// What a command is about (`group` in `COMMAND DOCS`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Values.
    String,
    /// Keys, whatever their value.
    Generic,
    /// Bits of values.
    Bitmap,
    /// Several commands as one.
    Transactions,
    /// The connection.
    Connection,
    /// The server.
    Server,
    /// The owners of slots.
    Cluster,
}

impl Group {
    /// Its name in `COMMAND DOCS`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::Generic => "generic",
            Self::Bitmap => "bitmap",
            Self::Transactions => "transactions",
            Self::Connection => "connection",
            Self::Server => "server",
            Self::Cluster => "cluster",
        }
    }
}

/// Which arguments are values: bounded by the longest value instead of the longest argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Values {
    None,
    At(u8),
    /// Each second one, from the third argument on (`MSET key value …`).
    Even,
}

/// How a time is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    InSeconds,
    InMs,
    AtSeconds,
    AtMs,
}

/// What the dispatcher does for a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Data(DataKind),
    Transaction(TransactionKind),
    Server(ServerKind),
    Connection(ConnectionKind),
    Cluster(ClusterKind),
    Copy,
    Rename {
        replaces: bool,
    },
    ObjectHelp,
    /// Cannot be called without a subcommand.
    Container,
}

/// What [`super::data::commands`] makes commands on keys of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DataKind {
    Get,
    Set,
    SetIfNone,
    SetExpiring(Moment),
    GetSet,
    GetDelete,
    GetExpiring,
    GetMany,
    SetMany,
    Append,
    Length,
    GetRange,
    SetRange,
    /// Adds this to a number.
    Add(i64),
    Increment,
    Decrement,
    IncrementFloat,
    Delete,
    Exists,
    Touch,
    Expire(Moment),
    /// Tells when a key expires.
    Expiry(Moment),
    Persist,
    Type,
    Encoding,
    Frequency,
    IdleTime,
    GetBit,
    SetBit,
    BitCount,
    Lcs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransactionKind {
    Multi,
    Exec,
    Discard,
    Watch,
    Unwatch,
}

/// What only the executor can answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServerKind {
    Count,
    Scan,
    RandomKey,
    Info,
    Time,
    Keys,
    ConfigGet,
    ConfigSet,
    ConfigResetStatistics,
    Flush { all_databases: bool },
    SetManyIfNone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionKind {
    Ping,
    Echo,
    Select,
    Hello,
    Auth,
    Reset,
    Quit,
    /// `COMMAND` alone; its subcommands have kinds of their own.
    CommandList,
    CommandCount,
    CommandInfo,
    CommandDocs,
    ClientSetInfo,
    ClientSetName,
    ClientGetName,
    ClientId,
    ClientInfo,
    ClientNoEvict,
    ClientNoTouch,
}

/// The owners of slots, and what a connection wants to know of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClusterKind {
    Slots,
    Shards,
    Nodes,
    MyId,
    MyShardId,
    Info,
    Links,
    KeySlot,
    CountInSlot,
    FailureReports,
    Replicas,
    Help,
    ReadOnly,
    ReadWrite,
    Asking,
}

impl Kind {
    /// Whether it is carried out behind `MULTI` instead of being queued.
    pub(super) fn ends_queueing(self) -> bool {
        use ConnectionKind::{Quit, Reset};
        use TransactionKind::{Discard, Exec, Multi, Watch};
        matches!(
            self,
            Self::Transaction(Multi | Exec | Discard | Watch) | Self::Connection(Reset | Quit)
        )
    }
}

pub(super) const WRITE: u16 = 1;
pub(super) const READONLY: u16 = 1 << 1;
pub(super) const DENYOOM: u16 = 1 << 2;
pub(super) const ADMIN: u16 = 1 << 3;
pub(super) const NOSCRIPT: u16 = 1 << 4;
pub(super) const LOADING: u16 = 1 << 5;
pub(super) const STALE: u16 = 1 << 6;
pub(super) const FAST: u16 = 1 << 7;
pub(super) const NO_AUTH: u16 = 1 << 8;
pub(super) const ALLOW_BUSY: u16 = 1 << 9;
pub(super) const SKIP_SLOWLOG: u16 = 1 << 10;
/// Not a flag of Redis: puts the command into the category `dangerous`.
const DANGEROUS: u16 = 1 << 15;

const FLAG_NAMES: [&str; 11] = [
    "write",
    "readonly",
    "denyoom",
    "admin",
    "noscript",
    "loading",
    "stale",
    "fast",
    "no_auth",
    "allow_busy",
    "skip_slowlog",
];

pub(super) const RO: u16 = 1;
pub(super) const RW: u16 = 1 << 1;
pub(super) const OW: u16 = 1 << 2;
pub(super) const RM: u16 = 1 << 3;
pub(super) const ACCESS: u16 = 1 << 4;
pub(super) const UPDATE: u16 = 1 << 5;
pub(super) const INSERT: u16 = 1 << 6;
pub(super) const DELETE: u16 = 1 << 7;
pub(super) const VARIABLE: u16 = 1 << 8;

const ACCESS_NAMES: [&str; 9] = [
    "RO",
    "RW",
    "OW",
    "RM",
    "access",
    "update",
    "insert",
    "delete",
    "variable_flags",
];

fn names_of<'n>(bits: u16, names: &'n [&'static str]) -> impl Iterator<Item = &'static str> + 'n {
    names
        .iter()
        .enumerate()
        .filter(move |(bit, _)| bits & (1 << bit) != 0)
        .map(|(_, name)| *name)
}

impl CommandInfo {
    /// Whether it may be called with so many arguments, the name included.
    #[inline]
    pub(super) fn takes(&self, count: usize) -> bool {
        let arity = usize::from(self.arity.unsigned_abs());
        if self.arity < 0 {
            count >= arity
        } else {
            count == arity
        }
    }

    /// Whether the argument at `position` (0 is the name) is a value.
    #[inline]
    pub(super) fn is_value(&self, position: usize) -> bool {
        match self.values {
            Values::None => false,
            Values::At(at) => position == usize::from(at),
            Values::Even => position >= 2 && position.is_multiple_of(2),
        }
    }

    /// Whether the argument at `position` of `count` is a key.
    pub(super) fn is_key(&self, position: usize, count: usize) -> bool {
        let (first, step) = (usize::from(self.first_key), usize::from(self.key_step));
        if first == 0 || position < first || step == 0 {
            return false;
        }
        let last = match usize::try_from(self.last_key) {
            Ok(last) => last,
            Err(_) => count.saturating_sub(usize::from(self.last_key.unsigned_abs())),
        };
        position <= last && (position - first).is_multiple_of(step)
    }

    /// Its flags, in Redis's order.
    pub fn flag_names(&self) -> impl Iterator<Item = &'static str> {
        names_of(self.flags, &FLAG_NAMES)
    }

    /// What it does with its keys (flags of the key specification).
    pub fn access_names(&self) -> impl Iterator<Item = &'static str> {
        names_of(self.access, &ACCESS_NAMES)
    }

    /// Its access-control categories, in Redis's order.
    pub fn category_names(&self) -> impl Iterator<Item = &'static str> {
        use ClusterKind::{Asking, ReadOnly, ReadWrite};
        let has = |flag| self.flags & flag != 0;
        let container = !self.subcommands.is_empty() && self.kind == Kind::Container;
        let on_keys = (self.group == Group::Generic && !container)
            || (self.group == Group::Server && (has(READONLY) || has(WRITE)));
        let on_connection = (self.group == Group::Connection && !container)
            || matches!(self.kind, Kind::Cluster(ReadOnly | ReadWrite | Asking));
        [
            (on_keys, "@keyspace"),
            (has(READONLY), "@read"),
            (has(WRITE), "@write"),
            (self.group == Group::String, "@string"),
            (self.group == Group::Bitmap, "@bitmap"),
            (has(ADMIN), "@admin"),
            (has(FAST), "@fast"),
            (!has(FAST), "@slow"),
            (has(ADMIN) || has(DANGEROUS), "@dangerous"),
            (on_connection, "@connection"),
            (self.group == Group::Transactions, "@transaction"),
        ]
        .into_iter()
        .filter_map(|(applies, name)| applies.then_some(name))
    }

    /// The subcommand of that name, in any case.
    pub(super) fn subcommand(&self, name: &[u8]) -> Option<&'static CommandInfo> {
        self.subcommands.iter().find(|subcommand| {
            let own = subcommand.name.split_once('|').map_or("", |(_, own)| own);
            own.as_bytes().eq_ignore_ascii_case(name)
        })
    }
}

/// The command of that name, in any case.
#[inline]
pub(super) fn find(name: &[u8]) -> Option<&'static CommandInfo> {
    let mut bucket = hash(name);
    // A free bucket ends every chain; there are more buckets than commands.
    while let Some(index) = BUCKETS[bucket].checked_sub(1) {
        let info = &COMMANDS[index as usize];
        if info.name.as_bytes().eq_ignore_ascii_case(name) {
            return Some(info);
        }
        bucket = (bucket + 1) % BUCKET_COUNT;
    }
    None
}

/// `container|subcommand`, or the name of a plain command.
pub(super) fn find_path(path: &[u8]) -> Option<&'static CommandInfo> {
    match memchr::memchr(b'|', path) {
        None => find(path),
        Some(bar) => find(path.get(..bar)?)?.subcommand(path.get(bar + 1..)?),
    }
}

const BUCKET_COUNT: usize = 256;

/// Mixes length, first two and last bytes, in which the names differ most; cases are alike.
const fn hash(name: &[u8]) -> usize {
    const fn fold(name: &[u8], index: usize) -> usize {
        if index < name.len() {
            (name[index] | 0x20) as usize
        } else {
            0
        }
    }
    let last = if name.is_empty() {
        0
    } else {
        fold(name, name.len() - 1)
    };
    let middle = fold(name, name.len() / 2);
    (name.len() * 11 + fold(name, 0) * 31 + fold(name, 1) * 7 + middle * 3 + last * 17)
        % BUCKET_COUNT
}

/// For each hash the index of a command plus 1, or 0; collisions are in the buckets that follow.
static BUCKETS: [u8; BUCKET_COUNT] = {
    let mut buckets = [0; BUCKET_COUNT];
    assert!(
        COMMANDS.len() < BUCKET_COUNT / 2,
        "chains have to end, and to be short"
    );
    let mut index = 0;
    while index < COMMANDS.len() {
        let mut bucket = hash(COMMANDS[index].name.as_bytes());
        while buckets[bucket] != 0 {
            bucket = (bucket + 1) % BUCKET_COUNT;
        }
        index += 1;
        buckets[bucket] = index as u8;
    }
    buckets
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_found_in_any_case_and_nothing_else_is() {
        for info in COMMANDS {
            let upper = info.name.to_ascii_uppercase();
            assert_eq!(
                find(upper.as_bytes()).map(|found| found.name),
                Some(info.name)
            );
            assert!(find(&upper.as_bytes()[1..]).is_none_or(|found| found.name != info.name));
        }
        for name in [
            "",
            "x",
            "lpush",
            "hset",
            "eval",
            "subscribe",
            "bitop",
            "get ",
            "config|get",
        ] {
            assert!(find(name.as_bytes()).is_none(), "{name}");
        }
        assert_eq!(find_path(b"Config|GET").map(|info| info.arity), Some(-3));
        assert!(find_path(b"config|").is_none() && find_path(b"get|get").is_none());
    }

    #[test]
    fn names_are_lower_case_and_unique_and_every_row_is_complete() {
        let all = || {
            COMMANDS
                .iter()
                .chain(COMMANDS.iter().flat_map(|info| info.subcommands))
        };
        let mut names: Vec<_> = all().map(|info| info.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all().count());
        for info in all() {
            assert_eq!(info.name, info.name.to_ascii_lowercase());
            assert!(info.arity != 0 && !info.summary.is_empty() && !info.summary.ends_with('.'));
            assert_eq!(info.since.split('.').count(), 3, "{}", info.name);
            assert_eq!(info.first_key == 0, info.access == 0, "{}", info.name);
        }
    }

    #[test]
    fn positions_of_keys_and_values_follow_the_table() {
        let set = find(b"set").expect("row");
        assert!(set.is_key(1, 3) && !set.is_key(2, 3) && set.is_value(2) && !set.is_value(1));
        let mset = find(b"mset").expect("row");
        let keys: Vec<_> = (0..7)
            .filter(|&position| mset.is_key(position, 7))
            .collect();
        let values: Vec<_> = (0..7).filter(|&position| mset.is_value(position)).collect();
        assert_eq!((keys, values), (vec![1, 3, 5], vec![2, 4, 6]));
        assert!(!find(b"ping").expect("row").is_key(1, 2));
    }

    #[test]
    fn categories_are_those_of_redis() {
        let cases = [
            ("get", "@read @string @fast"),
            ("del", "@keyspace @write @slow"),
            ("dbsize", "@keyspace @read @fast"),
            ("flushall", "@keyspace @write @slow @dangerous"),
            ("info", "@slow @dangerous"),
            ("config", "@slow"),
            ("config|get", "@admin @slow @dangerous"),
            ("client", "@slow"),
            ("client|no-evict", "@admin @slow @dangerous @connection"),
            ("command", "@slow @connection"),
            ("ping", "@fast @connection"),
        ];
        for (name, categories) in cases {
            let info = find_path(name.as_bytes()).expect("row");
            assert_eq!(
                info.category_names().collect::<Vec<_>>().join(" "),
                categories,
                "{name}"
            );
        }
    }
}
