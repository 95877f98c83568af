//! What is absent, or differs on purpose, from memcached 1.6.18 and Redis 7.0: the table of
//! `docs/protocols.md`. The differential tests allow only what has a row here.

/// One difference on purpose.
#[derive(Clone, Copy, Debug)]
pub struct Difference {
    /// Its name, by which tests refer to it.
    pub id: &'static str,
    /// What it is about.
    pub protocol: Protocol,
    /// What is absent or different.
    pub what: &'static str,
    /// Why.
    pub reason: &'static str,
    /// Commands that do not exist here: names, `container|subcommand`, or with `*` their
    /// beginnings.
    pub absent: &'static [&'static str],
}

/// The protocol of a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Memcached text and meta.
    Text,
    /// Memcached binary.
    Binary,
    /// All of memcached.
    Memcached,
    /// RESP.
    Redis,
}

impl Protocol {
    /// Its name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Text => "memcached text, meta",
            Self::Binary => "memcached binary",
            Self::Memcached => "memcached",
            Self::Redis => "Redis",
        }
    }
}

impl Difference {
    /// Whether the row says that a command does not exist here.
    #[must_use]
    pub fn covers(&self, command: &str) -> bool {
        self.absent.iter().any(|name| match name.strip_suffix('*') {
            Some(beginning) => command.starts_with(beginning),
            None => command == *name,
        })
    }
}

const fn row(
    id: &'static str,
    protocol: Protocol,
    what: &'static str,
    reason: &'static str,
) -> Difference {
    Difference {
        id,
        protocol,
        what,
        reason,
        absent: &[],
    }
}

impl Difference {
    const fn absent(self, absent: &'static [&'static str]) -> Self {
        Self { absent, ..self }
    }
}

use Protocol::{Binary, Memcached, Redis, Text};

/// All of them.
#[rustfmt::skip]
pub const DIFFERENCES: &[Difference] = &[
    row("clock", Memcached, "Times to live that are counted from a read may differ by the time between two requests",
        "Two servers do not read the clock at the same moment"),
    row("cas", Memcached, "CAS tokens are other numbers, and are never given twice for a key, also across restarts",
        "A token is the version that orders all copies of an entry"),
    row("refused line", Text, "The data block of a storage command that is refused for its line is swallowed; memcached reads it as commands",
        "Data of a client must not be executed"),
    row("number range", Text, "Flags and lengths that do not fit their field are refused, not cut", "A silent change of a value is a wrong byte"),
    row("line length", Text, "Lines have an upper bound, also those of `get`", "Everything from a socket is bounded"),
    row("decr", Memcached, "`decr` does not pad a number that gets shorter with blanks", "The value is the number, for Redis clients too"),
    row("number text", Memcached, "A number is digits, with blanks behind them; memcached also takes a sign or blanks before them and ignores what stands behind a blank",
        "An increment must not cut a value"),
    row("verbosity", Memcached, "`verbosity` is accepted and changes nothing, also as opcode 0x1b, which memcached does not know", "The level of the log is the operator's"),
    row("meta key", Text, "A key is returned in the form of the request; memcached forgets that a key was base64 when `N` creates its entry or `MA` or `MP` extends it. There is no bound on the number of flags; `me` tells the size of key and value",
        "A client compares the key with the one that it sent"),
    row("meta q", Text, "`q` also leaves out the success of an `ma` that created its number", "`HD` is the nominal reply in both cases"),
    row("meta vivify", Text, "`mg` and `ma` with `N` and `t` tell the expiry of the entry that they have just created; memcached tells -1. `T` does not change that expiry",
        "It is the expiry that the entry has"),
    row("meta order", Text, "`R` looks at the expiry before `T` changes it, and `t` tells it afterwards; memcached goes through the flags from left to right",
        "The order of flags is the order of the reply alone"),
    row("meta opaque", Text, "An opaque that is too long is refused before anything is changed; memcached notices it in `mg`, `md` and `ma` afterwards", "An error must not hide a change"),
    row("meta later", Text, "`E`, `x`, `s` in `ms` and `N` in `ms` are those of later versions of memcached", "Clients of later versions use them"),
    row("stats", Memcached, "`stats slabs` and `stats sizes` have no rows; counters and settings have other names and values", "There are no slabs"),
    row("text commands", Text, "`shutdown`, `cache_memlimit`, `slabs`, `lru`, `lru_crawler`, `watch`, `refresh_certs`, `extstore` and `stats cachedump` do not exist",
        "Operation belongs to the admin port, which has roles")
        .absent(&["shutdown", "cache_memlimit", "slabs", "lru", "lru_crawler", "watch", "refresh_certs", "extstore"]),
    row("udp", Memcached, "There is no UDP", "Its replies can be sent to a victim that asked for nothing"),
    row("binary error bodies", Binary, "A status other than 0 and 1 has an empty body, where memcached sends a text. `Not found` is sent; a miss of `GetK` and `GATK` has the key",
        "sccache and others do not read these texts, and take them for the next header"),
    row("binary lengths", Binary, "A packet whose lengths do not fit its opcode is swallowed and answered with 0x0004; only a wrong magic byte and lengths that cannot be close the connection. Memcached closes it for all of these, answers lengths that cannot be with 0x0081, ignores a value of Touch and GAT, and swallows key and extras of an unknown opcode twice",
        "The header says how long the packet is, so the stream stays in step"),
    row("binary sasl", Binary, "SASL list mechs names PLAIN, and SASL Step is an authentication error, also where there are no users; memcached without SASL answers 0x0081",
        "The reply does not depend on whether there are users"),
    row("types", Redis, "Only strings: the commands of lists, sets, sorted sets, hashes, streams, positions and HyperLogLogs do not exist",
        "A cache of values has no use for them")
        .absent(&[
            "bl*", "br*", "lindex", "linsert", "llen", "lmove", "lmpop", "lpop", "lpos", "lpush*", "lrange", "lrem", "lset", "ltrim", "rpop*", "rpush*",
            "sadd", "scard", "sdiff*", "sinter*", "sismember", "smembers", "smismember", "smove", "sort*", "spop", "srandmember", "srem", "sscan", "sunion*",
            "bz*", "z*", "hdel", "hexists", "hget*", "hincrby*", "hkeys", "hlen", "hmget", "hmset", "hrandfield", "hscan", "hset*", "hstrlen", "hvals",
            "x*", "geo*", "pf*",
        ]),
    row("hello", Redis, "`HELLO` and `INFO` tell facts of their own: another server, version and id, and a field `fonn_version`", "A client must be able to tell the servers apart"),
    row("unknown command", Redis, "The error for an unknown command tells its arguments whole; Redis cuts each at a NUL byte", "Redis prints them as C strings"),
    row("scripts", Redis, "`EVAL`, `FCALL`, `SCRIPT` and `FUNCTION` do not exist", "A script has no bound in time, and would run on one member for keys of many")
        .absent(&["eval*", "fcall*", "function*", "script*"]),
    row("pubsub", Redis, "`SUBSCRIBE`, `PUBLISH` and their kin do not exist", "A cache keeps no messages")
        .absent(&["subscribe", "psubscribe", "ssubscribe", "unsubscribe", "punsubscribe", "sunsubscribe", "publish", "spublish", "pubsub*"]),
    row("transaction commands", Redis, "`MULTI` takes commands on keys, `PING`, `ECHO`, `UNWATCH`, `COPY` and `RENAME`; other commands are answered with `ERR Command not allowed inside a transaction`",
        "A batch is carried out by the owner of its keys, which knows nothing else of the connection"),
    row("transaction slots", Redis, "In a cluster all keys of a transaction, of `COPY` and of `RENAME` are of one slot, as in Redis Cluster; a node in no cluster takes any",
        "One member carries them out"),
    row("transaction bounds", Redis, "A transaction has at most 512 steps (one a key) and 16 MiB of arguments, and returns at most 16 MiB of values, or one value. It waits at most 5 s for a turn and for what RAM does not have (`TRYAGAIN`)",
        "The owner holds locks and memory meanwhile"),
    row("transaction refusals", Redis, "A step that finds the queue of the disk full fails alone (`TRYAGAIN`), as one that Redis has no memory for",
        "Steps before it cannot be taken back"),
    row("watch", Redis, "A watched key that did not exist, was created and removed again until `EXEC` counts as unchanged, and so does one that got the expiry that it had. `SETBIT` to the value that the bit has counts as a change", "Versions belong to entries that exist"),
    row("rename", Redis, "`RENAME` and `COPY` do not look into the namespace below that of the user", "What lies there is not the user's to move"),
    row("getex", Redis, "`GETEX` with an invalid time is refused, whether the key exists or not; Redis answers null for a key that does not exist", "Arguments are judged before the key is looked up"),
    row("bits", Redis, "`BITPOS`, `BITOP` and `BITFIELD` do not exist", "No client of a cache was found that sends them")
        .absent(&["bitpos", "bitop", "bitfield", "bitfield_ro"]),
    row("bitcount", Redis, "`BITCOUNT` refuses an unknown unit in any case; Redis answers 0 if the range is empty and both its ends are negative", "Arguments are judged before the key is looked up"),
    row("lcs", Redis, "`LCS` refuses values whose lengths multiply to more than 262,144", "It holds a reactor meanwhile"),
    row("keys", Redis, "`KEYS` is for administrators, and refuses more than 100,000 keys, 8 MiB of keys, or 1,000,000 keys visited", "Use `SCAN`"),
    row("object", Redis, "`OBJECT REFCOUNT` does not exist; `OBJECT ENCODING` tells what Redis would choose for a value that was just set", "Values are kept in another form")
        .absent(&["object|refcount"]),
    row("key length", Redis, "Keys are at most 32,768 bytes long; Redis allows 512 MiB", "The disk tier keeps keys in its index"),
    row("incrbyfloat", Redis, "`INCRBYFLOAT` counts in 64-bit floating point, where Redis uses the platform's `long double`", "Members on different platforms have to agree"),
    row("setrange limit", Redis, "`SETBIT`, `SETRANGE` and `APPEND` make values of at most 1 MiB, or of 16 times the bytes that the request brings; so do `append` and `prepend` of memcached", "A request of a few bytes must not cost the copy of a large value"),
    row("config", Redis, "`CONFIG SET` changes `ram_budget` (`maxmemory`), `disk_budget`, `cold_budget`, `codec`, `codec_min_bytes` and `log` (`loglevel`) of the node, until SIGHUP or a restart; routers take none. `CONFIG REWRITE` and `CONFIG HELP` do not exist",
        "What else there is takes a restart, and the file is the operator's")
        .absent(&["config|rewrite", "config|help"]),
    row("scan", Redis, "`SCAN` cursors are given out by the server, with a disk tier at most 1,024 at a time for each namespace; one that was forgotten is answered with `ERR invalid cursor`. A page ends at 256 KiB of keys, whatever `COUNT` says, and may be empty. The patterns of `SCAN`, `KEYS` and `CONFIG GET` have at most 256 bytes",
        "The keys are those of the disk tier, which are not in a hash table"),
    row("dbsize", Redis, "`DBSIZE` is exact up to 200,000 records or 64 MiB of keys; above, it is an estimate, or what was counted last. `SCAN`, `DBSIZE`, `RANDOMKEY` and `CLUSTER COUNTKEYSINSLOT` of a namespace are carried out one after the other; a command that waits longer than 2 s for its turn is answered with `TRYAGAIN`",
        "An exact count visits every entry"),
    row("transaction growth", Redis, "`EXEC` is refused (`ERR value is too large`) if its `APPEND`, `SETRANGE` and `SETBIT` would copy more than 256 KiB of values that steps before them have made, or make more than 16 MiB, or one value", "They are carried out under the locks of all shards of the transaction"),
    row("msetnx", Redis, "`MSETNX` takes at most 256 pairs", "They are stored under the locks of all their shards, within a millisecond"),
    row("bulk end", Redis, "A bulk string that is not followed by CR LF is a protocol error; Redis does not look at these two bytes", "A stream that is out of step must not be executed"),
    row("touch", Redis, "A user with the role `read` may not `TOUCH`", "It is carried out as a change"),
    row("cluster", Redis, "`INFO` says `cluster_enabled:1` in any case, and `SELECT` works beside `CLUSTER`. Keys of one request may be of different slots; only those of `MSETNX` may not behind a router",
        "A member finds the owners of all keys itself"),
    row("cluster view", Redis, "In `CLUSTER NODES` a member is a master if it is the first owner of any slot. There is no cluster bus: its port is 0, pings and pongs are 0, `LINKS` is empty, `COUNT-FAILURE-REPORTS` is 0. `SHARDS` has a shard for each combination of owners; replication offsets are 0. `COUNTKEYSINSLOT` is an estimate above 200,000 keys",
        "Owners are chosen slot by slot"),
    row("cluster changes", Redis, "Subcommands that change a cluster, and `GETKEYSINSLOT`, do not exist", "`fonnctl` changes a cluster, by the members' agreement")
        .absent(&["cluster|*"]),
    row("admin", Redis, "Commands that operate a server (`ACL`, `DEBUG`, `SHUTDOWN`, `SAVE`, `MODULE`, `MONITOR`, `SLOWLOG`, `LATENCY`, `MEMORY`, `REPLICAOF` and others) do not exist",
        "Operation belongs to the admin port, which has roles")
        .absent(&["acl*", "bgrewriteaof", "bgsave", "debug", "failover", "lastsave", "latency*", "memory*", "module*", "monitor", "save", "shutdown", "slowlog*", "swapdb", "role", "replicaof", "slaveof", "psync", "replconf", "sync", "wait", "lolwut"]),
    row("client", Redis, "`CLIENT` has `ID`, `INFO`, `SETNAME`, `GETNAME`, `SETINFO`, `NO-EVICT` and `NO-TOUCH` alone; `COMMAND` has `COUNT`, `DOCS` and `INFO` alone",
        "A client is told nothing of others; there is no tracking of keys")
        .absent(&["client|*", "command|*"]),
    row("serialised values", Redis, "`DUMP`, `RESTORE`, `MIGRATE` and `MOVE` do not exist", "The forms of values are other ones; members hand slots over themselves")
        .absent(&["dump", "restore", "restore-asking", "migrate", "move"]),
    row("key specifications", Redis, "`COMMAND` gives `COPY`, `RENAME` and `RENAMENX` one key specification for both keys", "Positions are the same, and clients need those"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_rows_are_sentences_without_a_full_stop() {
        let mut names: Vec<_> = DIFFERENCES.iter().map(|it| it.id).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), DIFFERENCES.len());
        for it in DIFFERENCES {
            assert!(
                !it.what.ends_with('.') && !it.reason.ends_with('.'),
                "{}",
                it.id
            );
        }
    }

    #[test]
    fn a_row_covers_names_and_beginnings() {
        let row = row("x", Redis, "", "").absent(&["acl*", "wait"]);
        assert!(row.covers("acl") && row.covers("acl|cat") && row.covers("wait"));
        assert!(!row.covers("waitaof") && !row.covers("get"));
    }
}
