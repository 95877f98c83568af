//! The rows of the command table.

use super::Kind::{Cluster, Connection, Data, Server, Transaction};
use super::{
    ACCESS, ADMIN, ALLOW_BUSY, ClusterKind, CommandInfo, ConnectionKind, DANGEROUS, DELETE,
    DENYOOM, DataKind, FAST, Group, INSERT, Kind, LOADING, Moment, NO_AUTH, NOSCRIPT, OW, READONLY,
    RM, RO, RW, SKIP_SLOWLOG, STALE, ServerKind, TransactionKind, UPDATE, VARIABLE, Values, WRITE,
};

const ANY_STATE: u16 = LOADING | STALE;
const HANDSHAKE: u16 = NOSCRIPT | ANY_STATE | FAST | NO_AUTH | ALLOW_BUSY;
const SETTER: u16 = WRITE | DENYOOM;

const UNSTABLE: &str = "nondeterministic_output";
const UNSTABLE_ORDER: &str = "nondeterministic_output_order";
const EACH_SHARD: &str = "request_policy:multi_shard";
const ALL_SHARDS: &str = "request_policy:all_shards";
const SUM: &str = "response_policy:agg_sum";
const ALL_SUCCEEDED: &str = "response_policy:all_succeeded";

/// A command without keys; the builder methods add what differs.
const fn row(
    group: Group,
    name: &'static str,
    arity: i8,
    flags: u16,
    since: &'static str,
    kind: Kind,
    summary: &'static str,
) -> CommandInfo {
    CommandInfo {
        name,
        arity,
        summary,
        since,
        group,
        first_key: 0,
        last_key: 0,
        key_step: 0,
        subcommands: &[],
        flags,
        access: 0,
        tips: &[],
        values: Values::None,
        kind,
    }
}

impl CommandInfo {
    /// One key, right behind the name.
    const fn key(self, access: u16) -> Self {
        Self {
            first_key: 1,
            last_key: 1,
            key_step: 1,
            access,
            ..self
        }
    }

    /// Two keys, right behind the name.
    const fn two_keys(self, access: u16) -> Self {
        Self {
            last_key: 2,
            ..self.key(access)
        }
    }

    /// One key, behind the name of a subcommand.
    const fn key_of_subcommand(self, access: u16) -> Self {
        Self {
            first_key: 2,
            last_key: 2,
            ..self.key(access)
        }
    }

    /// Keys up to the end of the arguments.
    const fn keys(self, access: u16, step: u8) -> Self {
        Self {
            first_key: 1,
            last_key: -1,
            key_step: step,
            access,
            ..self
        }
    }

    const fn value(self, position: u8) -> Self {
        Self {
            values: Values::At(position),
            ..self
        }
    }

    const fn value_pairs(self) -> Self {
        Self {
            values: Values::Even,
            ..self
        }
    }

    const fn tips(self, tips: &'static [&'static str]) -> Self {
        Self { tips, ..self }
    }

    const fn subcommands(self, subcommands: &'static [Self]) -> Self {
        Self {
            subcommands,
            ..self
        }
    }
}

macro_rules! rows {
    ($group:ident: $($name:literal $arity:literal [$flags:expr] $since:literal $kind:expr, $summary:literal
        $(, $method:ident($($argument:expr),*))*;)*) => {
        &[$(
            row(Group::$group, $name, $arity, $flags, $since, $kind, $summary)
                $(.$method($($argument),*))*
        ),*]
    };
}

const STRING: &[CommandInfo] = rows! { String:
    "get" 2 [READONLY | FAST] "1.0.0" Data(DataKind::Get), "Returns the value of a key", key(RO | ACCESS);
    "set" -3 [SETTER] "1.0.0" Data(DataKind::Set),
        "Stores a value, on conditions and with an expiry if wanted",
        key(RW | ACCESS | UPDATE | VARIABLE), value(2);
    "setnx" 3 [SETTER | FAST] "1.0.0" Data(DataKind::SetIfNone),
        "Stores a value if the key does not exist", key(OW | INSERT), value(2);
    "setex" 4 [SETTER] "2.0.0" Data(DataKind::SetExpiring(Moment::InSeconds)),
        "Stores a value that expires after so many seconds", key(OW | UPDATE), value(3);
    "psetex" 4 [SETTER] "2.6.0" Data(DataKind::SetExpiring(Moment::InMs)),
        "Stores a value that expires after so many milliseconds", key(OW | UPDATE), value(3);
    "getset" 3 [SETTER | FAST] "1.0.0" Data(DataKind::GetSet),
        "Stores a value and returns the one before", key(RW | ACCESS | UPDATE), value(2);
    "getdel" 2 [WRITE | FAST] "6.2.0" Data(DataKind::GetDelete),
        "Returns the value of a key and removes the key", key(RW | ACCESS | DELETE);
    "getex" -2 [WRITE | FAST] "6.2.0" Data(DataKind::GetExpiring),
        "Returns the value of a key and changes its expiry", key(RW | ACCESS | UPDATE);
    "mget" -2 [READONLY | FAST] "1.0.0" Data(DataKind::GetMany),
        "Returns the values of several keys", keys(RO | ACCESS, 1), tips(&[EACH_SHARD]);
    "mset" -3 [SETTER] "1.0.1" Data(DataKind::SetMany),
        "Stores the values of several keys", keys(OW | UPDATE, 2), value_pairs(),
        tips(&[EACH_SHARD, ALL_SUCCEEDED]);
    "msetnx" -3 [SETTER] "1.0.1" Server(ServerKind::SetManyIfNone),
        "Stores the values of several keys if none of them exists", keys(OW | INSERT, 2),
        value_pairs(), tips(&[EACH_SHARD, "response_policy:agg_min"]);
    "append" 3 [SETTER | FAST] "2.0.0" Data(DataKind::Append),
        "Puts bytes behind a value, which is empty if the key does not exist", key(RW | INSERT),
        value(2);
    "strlen" 2 [READONLY | FAST] "2.2.0" Data(DataKind::Length),
        "Returns the length of a value in bytes", key(RO);
    "getrange" 4 [READONLY] "2.4.0" Data(DataKind::GetRange),
        "Returns a part of a value", key(RO | ACCESS);
    "substr" 4 [READONLY] "1.0.0" Data(DataKind::GetRange),
        "Returns a part of a value: the old name of GETRANGE", key(RO | ACCESS);
    "setrange" 4 [SETTER] "2.2.0" Data(DataKind::SetRange),
        "Overwrites a part of a value", key(RW | UPDATE), value(3);
    "incr" 2 [SETTER | FAST] "1.0.0" Data(DataKind::Add(1)),
        "Adds one to a number", key(RW | ACCESS | UPDATE);
    "decr" 2 [SETTER | FAST] "1.0.0" Data(DataKind::Add(-1)),
        "Takes one from a number", key(RW | ACCESS | UPDATE);
    "incrby" 3 [SETTER | FAST] "1.0.0" Data(DataKind::Increment),
        "Adds an integer to a number", key(RW | ACCESS | UPDATE);
    "decrby" 3 [SETTER | FAST] "1.0.0" Data(DataKind::Decrement),
        "Takes an integer from a number", key(RW | ACCESS | UPDATE);
    "incrbyfloat" 3 [SETTER | FAST] "2.6.0" Data(DataKind::IncrementFloat),
        "Adds a floating-point number to a number", key(RW | ACCESS | UPDATE);
    "lcs" -3 [READONLY] "7.0.0" Data(DataKind::Lcs),
        "Returns the longest common subsequence of two values", two_keys(RO | ACCESS);
};

const BITMAP: &[CommandInfo] = rows! { Bitmap:
    "getbit" 3 [READONLY | FAST] "2.2.0" Data(DataKind::GetBit),
        "Returns a bit of a value", key(RO | ACCESS);
    "setbit" 4 [SETTER] "2.2.0" Data(DataKind::SetBit),
        "Sets or clears a bit of a value and returns the one before",
        key(RW | ACCESS | UPDATE);
    "bitcount" -2 [READONLY] "2.6.0" Data(DataKind::BitCount),
        "Returns how many bits of a value are set", key(RO | ACCESS);
};

const TRANSACTIONS: &[CommandInfo] = rows! { Transactions:
    "multi" 1 [NOSCRIPT | ANY_STATE | FAST | ALLOW_BUSY] "1.2.0" Transaction(TransactionKind::Multi),
        "Lets the commands that follow be queued for EXEC";
    "exec" 1 [NOSCRIPT | ANY_STATE | SKIP_SLOWLOG] "1.2.0" Transaction(TransactionKind::Exec),
        "Carries out the queued commands as one";
    "discard" 1 [NOSCRIPT | ANY_STATE | FAST | ALLOW_BUSY] "2.0.0" Transaction(TransactionKind::Discard),
        "Forgets the queued commands and the watched keys";
    "watch" -2 [NOSCRIPT | ANY_STATE | FAST | ALLOW_BUSY] "2.2.0" Transaction(TransactionKind::Watch),
        "Lets EXEC carry out nothing if one of the keys changes until then", keys(RO, 1);
    "unwatch" 1 [NOSCRIPT | ANY_STATE | FAST | ALLOW_BUSY] "2.2.0" Transaction(TransactionKind::Unwatch),
        "Forgets the watched keys";
};

const GENERIC: &[CommandInfo] = rows! { Generic:
    "copy" -3 [SETTER] "6.2.0" Kind::Copy,
        "Copies an entry to another key of the slot", two_keys(RO | ACCESS);
    "rename" 3 [WRITE] "1.0.0" Kind::Rename { replaces: true },
        "Gives an entry another key of the slot", two_keys(RW | ACCESS | DELETE);
    "renamenx" 3 [WRITE | FAST] "1.0.0" Kind::Rename { replaces: false },
        "Gives an entry another key of the slot if that key does not exist",
        two_keys(RW | ACCESS | DELETE);
    "keys" 2 [READONLY | DANGEROUS] "1.0.0" Server(ServerKind::Keys),
        "Returns all keys that match a pattern, if there are not too many; for administrators",
        tips(&[ALL_SHARDS, UNSTABLE_ORDER]);
    "object" -2 [0] "2.2.3" Kind::Container, "Facts about an entry", subcommands(OBJECT);
    "del" -2 [WRITE] "1.0.0" Data(DataKind::Delete),
        "Removes keys", keys(RM | DELETE, 1), tips(&[EACH_SHARD, SUM]);
    "unlink" -2 [WRITE | FAST] "4.0.0" Data(DataKind::Delete),
        "Removes keys", keys(RM | DELETE, 1), tips(&[EACH_SHARD, SUM]);
    "exists" -2 [READONLY | FAST] "1.0.0" Data(DataKind::Exists),
        "Returns how many of the keys exist", keys(RO, 1), tips(&[EACH_SHARD, SUM]);
    "touch" -2 [READONLY | FAST] "3.2.1" Data(DataKind::Touch),
        "Marks keys as just used and returns how many exist", keys(RO, 1),
        tips(&[EACH_SHARD, SUM]);
    "expire" -3 [WRITE | FAST] "1.0.0" Data(DataKind::Expire(Moment::InSeconds)),
        "Lets a key expire after so many seconds", key(RW | UPDATE);
    "pexpire" -3 [WRITE | FAST] "2.6.0" Data(DataKind::Expire(Moment::InMs)),
        "Lets a key expire after so many milliseconds", key(RW | UPDATE);
    "expireat" -3 [WRITE | FAST] "1.2.0" Data(DataKind::Expire(Moment::AtSeconds)),
        "Lets a key expire at a Unix time in seconds", key(RW | UPDATE);
    "pexpireat" -3 [WRITE | FAST] "2.6.0" Data(DataKind::Expire(Moment::AtMs)),
        "Lets a key expire at a Unix time in milliseconds", key(RW | UPDATE);
    "expiretime" 2 [READONLY | FAST] "7.0.0" Data(DataKind::Expiry(Moment::AtSeconds)),
        "Returns the Unix time in seconds at which a key expires", key(RO | ACCESS);
    "pexpiretime" 2 [READONLY | FAST] "7.0.0" Data(DataKind::Expiry(Moment::AtMs)),
        "Returns the Unix time in milliseconds at which a key expires", key(RO | ACCESS);
    "ttl" 2 [READONLY | FAST] "1.0.0" Data(DataKind::Expiry(Moment::InSeconds)),
        "Returns the seconds that a key has left to live", key(RO | ACCESS), tips(&[UNSTABLE]);
    "pttl" 2 [READONLY | FAST] "2.6.0" Data(DataKind::Expiry(Moment::InMs)),
        "Returns the milliseconds that a key has left to live", key(RO | ACCESS),
        tips(&[UNSTABLE]);
    "persist" 2 [WRITE | FAST] "2.2.0" Data(DataKind::Persist),
        "Lets a key live for ever", key(RW | UPDATE);
    "type" 2 [READONLY | FAST] "1.0.0" Data(DataKind::Type),
        "Returns the type of a key's value: string or none", key(RO);
    "scan" -2 [READONLY] "2.8.0" Server(ServerKind::Scan),
        "Goes through the keys of the database step by step",
        tips(&[UNSTABLE, "request_policy:special"]);
    "randomkey" 1 [READONLY] "1.0.0" Server(ServerKind::RandomKey),
        "Returns a key chosen at random", tips(&[ALL_SHARDS, UNSTABLE]);
};

const OBJECT: &[CommandInfo] = rows! { Generic:
    "object|encoding" 3 [READONLY] "2.2.3" Data(DataKind::Encoding),
        "Returns the form in which Redis would keep the value: int, embstr or raw",
        key_of_subcommand(RO), tips(&[UNSTABLE]);
    "object|freq" 3 [READONLY] "4.0.0" Data(DataKind::Frequency),
        "Refused: how often an entry is used is not counted", key_of_subcommand(RO),
        tips(&[UNSTABLE]);
    "object|help" 2 [ANY_STATE] "6.2.0" Kind::ObjectHelp, "Returns what the subcommands do";
    "object|idletime" 3 [READONLY] "2.2.3" Data(DataKind::IdleTime),
        "Returns the seconds since the entry was last used", key_of_subcommand(RO),
        tips(&[UNSTABLE]);
};

const CONNECTION: &[CommandInfo] = rows! { Connection:
    "ping" -1 [FAST] "1.0.0" Connection(ConnectionKind::Ping),
        "Answers PONG, or what it was given", tips(&[ALL_SHARDS, ALL_SUCCEEDED]);
    "echo" 2 [ANY_STATE | FAST] "1.0.0" Connection(ConnectionKind::Echo), "Answers what it was given";
    "select" 2 [ANY_STATE | FAST] "1.0.0" Connection(ConnectionKind::Select), "Chooses the database, 0 to 15";
    "hello" -1 [HANDSHAKE] "6.0.0" Connection(ConnectionKind::Hello),
        "Chooses the protocol version; may authenticate and name the connection";
    "auth" -2 [HANDSHAKE] "1.0.0" Connection(ConnectionKind::Auth), "Authenticates the connection";
    "reset" 1 [HANDSHAKE] "6.2.0" Connection(ConnectionKind::Reset),
        "Logs out, and puts all that the connection has chosen back to its defaults";
    "quit" -1 [HANDSHAKE] "1.0.0" Connection(ConnectionKind::Quit), "Closes the connection";
    "client" -2 [0] "2.4.0" Kind::Container,
        "Facts about the connection", subcommands(CLIENT);
    "command" -1 [ANY_STATE] "2.8.13" Connection(ConnectionKind::CommandList),
        "Describes all commands", tips(&[UNSTABLE_ORDER]), subcommands(COMMAND);
};

const CLIENT: &[CommandInfo] = rows! { Connection:
    "client|setinfo" 4 [NOSCRIPT | ANY_STATE] "7.2.0" Connection(ConnectionKind::ClientSetInfo),
        "Notes the name or version of the client's library";
    "client|setname" 3 [NOSCRIPT | ANY_STATE] "2.6.9" Connection(ConnectionKind::ClientSetName),
        "Names the connection";
    "client|getname" 2 [NOSCRIPT | ANY_STATE] "2.6.9" Connection(ConnectionKind::ClientGetName),
        "Returns the name of the connection";
    "client|id" 2 [NOSCRIPT | ANY_STATE] "5.0.0" Connection(ConnectionKind::ClientId),
        "Returns the number of the connection";
    "client|info" 2 [NOSCRIPT | ANY_STATE] "6.2.0" Connection(ConnectionKind::ClientInfo),
        "Returns facts about the connection", tips(&[UNSTABLE]);
    "client|no-evict" 3 [ADMIN | NOSCRIPT | ANY_STATE] "7.0.0" Connection(ConnectionKind::ClientNoEvict),
        "Accepted without effect: no connection is closed to gain memory";
    "client|no-touch" 3 [NOSCRIPT | ANY_STATE] "7.2.0" Connection(ConnectionKind::ClientNoTouch),
        "Lets reads on this connection not count as a use of the key";
};

const COMMAND: &[CommandInfo] = rows! { Connection:
    "command|count" 2 [ANY_STATE] "2.8.13" Connection(ConnectionKind::CommandCount), "Returns how many commands there are";
    "command|docs" -2 [ANY_STATE] "7.0.0" Connection(ConnectionKind::CommandDocs),
        "Describes commands in words", tips(&[UNSTABLE_ORDER]);
    "command|info" -2 [ANY_STATE] "2.8.13" Connection(ConnectionKind::CommandInfo),
        "Describes some or all commands", tips(&[UNSTABLE_ORDER]);
};

const SERVER: &[CommandInfo] = rows! { Server:
    "dbsize" 1 [READONLY | FAST] "1.0.0" Server(ServerKind::Count),
        "Returns how many keys the database holds", tips(&[ALL_SHARDS, SUM]);
    "flushdb" -1 [WRITE | DANGEROUS] "1.0.0" Server(ServerKind::Flush { all_databases: false }),
        "Removes all keys of the database", tips(&[ALL_SHARDS, ALL_SUCCEEDED]);
    "flushall" -1 [WRITE | DANGEROUS] "1.0.0" Server(ServerKind::Flush { all_databases: true }),
        "Removes all keys of all databases", tips(&[ALL_SHARDS, ALL_SUCCEEDED]);
    "info" -1 [ANY_STATE | DANGEROUS] "1.0.0" Server(ServerKind::Info),
        "Returns facts and figures about the server",
        tips(&[UNSTABLE, ALL_SHARDS, "response_policy:special"]);
    "time" 1 [ANY_STATE | FAST] "2.6.0" Server(ServerKind::Time),
        "Returns the Unix time in seconds, and the microseconds since", tips(&[UNSTABLE]);
    "config" -2 [0] "2.0.0" Kind::Container, "Settings of the server", subcommands(CONFIG);
};

const CONFIG: &[CommandInfo] = rows! { Server:
    "config|get" -3 [ADMIN | NOSCRIPT | ANY_STATE] "2.0.0" Server(ServerKind::ConfigGet),
        "Returns the settings whose names match the patterns";
    "config|set" -4 [ADMIN | NOSCRIPT | ANY_STATE] "2.0.0" Server(ServerKind::ConfigSet),
        "Changes settings that can change while the server runs; for administrators",
        tips(&["request_policy:all_nodes", ALL_SUCCEEDED]);
    "config|resetstat" 2 [ADMIN | NOSCRIPT | ANY_STATE] "2.0.0" Server(ServerKind::ConfigResetStatistics),
        "Puts the counters of the statistics back to zero";
};

const CLUSTER: &[CommandInfo] = rows! { Cluster:
    "cluster" -2 [0] "3.0.0" Kind::Container, "Reports the owners of slots", subcommands(CLUSTER_COMMANDS);
    "readonly" 1 [ANY_STATE | FAST] "3.0.0" Cluster(ClusterKind::ReadOnly),
        "Lets reads be answered by any owner of the slot";
    "readwrite" 1 [ANY_STATE | FAST] "3.0.0" Cluster(ClusterKind::ReadWrite),
        "Lets reads be answered by the primary of the slot again";
    "asking" 1 [FAST] "3.0.0" Cluster(ClusterKind::Asking),
        "Lets the next command be executed here, whichever member owns its key";
};

const CLUSTER_COMMANDS: &[CommandInfo] = rows! { Cluster:
    "cluster|slots" 2 [STALE] "3.0.0" Cluster(ClusterKind::Slots),
        "Returns the owners of each range of slots", tips(&[UNSTABLE]);
    "cluster|shards" 2 [STALE] "7.0.0" Cluster(ClusterKind::Shards),
        "Returns the slots that have the same owners, and these", tips(&[UNSTABLE]);
    "cluster|nodes" 2 [STALE] "3.0.0" Cluster(ClusterKind::Nodes),
        "Returns the members and the slots of which each is the primary", tips(&[UNSTABLE]);
    "cluster|myid" 2 [STALE] "3.0.0" Cluster(ClusterKind::MyId), "Returns the id of the answering member or router";
    "cluster|myshardid" 2 [STALE] "7.2.0" Cluster(ClusterKind::MyShardId),
        "Returns the shard id of the answering member or router", tips(&[UNSTABLE]);
    "cluster|info" 2 [STALE] "3.0.0" Cluster(ClusterKind::Info),
        "Returns facts about the cluster", tips(&[UNSTABLE]);
    "cluster|links" 2 [STALE] "7.0.0" Cluster(ClusterKind::Links),
        "Returns an empty array: there is no cluster bus", tips(&[UNSTABLE]);
    "cluster|keyslot" 3 [STALE] "3.0.0" Cluster(ClusterKind::KeySlot), "Returns the slot of a key";
    "cluster|countkeysinslot" 3 [STALE] "3.0.0" Cluster(ClusterKind::CountInSlot),
        "Returns how many keys of a slot the database holds";
    "cluster|count-failure-reports" 3 [ADMIN | STALE] "3.0.0" Cluster(ClusterKind::FailureReports),
        "Returns 0: members agree on failed members", tips(&[UNSTABLE]);
    "cluster|replicas" 3 [ADMIN | STALE] "5.0.0" Cluster(ClusterKind::Replicas),
        "Returns the members that only have copies of the slots of a member", tips(&[UNSTABLE]);
    "cluster|slaves" 3 [ADMIN | STALE] "3.0.0" Cluster(ClusterKind::Replicas),
        "Returns the same as CLUSTER REPLICAS: its old name", tips(&[UNSTABLE]);
    "cluster|help" 2 [LOADING | STALE] "5.0.0" Cluster(ClusterKind::Help),
        "Returns what the subcommands do";
};

/// All commands, group by group.
pub(super) const ROWS: &[CommandInfo] = {
    const GROUPS: [&[CommandInfo]; 7] = [
        STRING,
        BITMAP,
        GENERIC,
        TRANSACTIONS,
        CONNECTION,
        SERVER,
        CLUSTER,
    ];
    const COUNT: usize = STRING.len()
        + BITMAP.len()
        + GENERIC.len()
        + TRANSACTIONS.len()
        + CONNECTION.len()
        + SERVER.len()
        + CLUSTER.len();
    const ALL: [CommandInfo; COUNT] = {
        let mut all = [STRING[0]; COUNT];
        let (mut group, mut filled) = (0, 0);
        while group < GROUPS.len() {
            let mut index = 0;
            while index < GROUPS[group].len() {
                all[filled] = GROUPS[group][index];
                filled += 1;
                index += 1;
            }
            group += 1;
        }
        all
    };
    &ALL
};
