//! Every command of the memcached dialects, as tables: what the reference of the protocols is made
//! of.
//!
//! The parsers do not read these tables (a `match` is faster). The tests hold both together: what
//! is listed is understood, what is not listed is unknown, and a meta flag acts, returns or is
//! ignored exactly where its row says so.

#[cfg(test)]
mod tests;

/// What a command is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Reads entries.
    Retrieval,
    /// Writes a value.
    Storage,
    /// Adds to a number.
    Arithmetic,
    /// Changes an entry, or removes it, without a value.
    Change,
    /// Concerns the server or the connection.
    Server,
}

impl Kind {
    /// Its name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Retrieval => "retrieval",
            Self::Storage => "storage",
            Self::Arithmetic => "arithmetic",
            Self::Change => "change",
            Self::Server => "server",
        }
    }
}

/// A command of the text dialect.
#[derive(Clone, Copy, Debug)]
pub struct TextCommand {
    /// Its line without the end; the first word is the name.
    pub syntax: &'static str,
    /// What it is for.
    pub kind: Kind,
    /// What it does, in one sentence without a full stop.
    pub summary: &'static str,
}

const fn text(syntax: &'static str, kind: Kind, summary: &'static str) -> TextCommand {
    TextCommand {
        syntax,
        kind,
        summary,
    }
}

/// The commands of the text dialect.
#[rustfmt::skip]
pub const TEXT: [TextCommand; 19] = [
    text("get <key>*", Kind::Retrieval, "Returns the values and flags of keys"),
    text("gets <key>*", Kind::Retrieval, "As `get`, with the CAS token of each"),
    text("gat <exptime> <key>*", Kind::Retrieval, "As `get`, and sets a new expiry"),
    text("gats <exptime> <key>*", Kind::Retrieval, "As `gets`, and sets a new expiry"),
    text("set <key> <flags> <exptime> <bytes> [noreply]", Kind::Storage, "Stores a value"),
    text("add <key> <flags> <exptime> <bytes> [noreply]", Kind::Storage, "Stores a value if the key does not exist"),
    text("replace <key> <flags> <exptime> <bytes> [noreply]", Kind::Storage, "Stores a value if the key exists"),
    text("append <key> <flags> <exptime> <bytes> [noreply]", Kind::Storage, "Puts bytes behind a value; flags and exptime are ignored"),
    text("prepend <key> <flags> <exptime> <bytes> [noreply]", Kind::Storage, "Puts bytes before a value; flags and exptime are ignored"),
    text("cas <key> <flags> <exptime> <bytes> <cas> [noreply]", Kind::Storage, "Stores a value if the entry still has this CAS token"),
    text("delete <key> [noreply]", Kind::Change, "Removes an entry"),
    text("incr <key> <delta> [noreply]", Kind::Arithmetic, "Adds to a number; wraps around at 2^64"),
    text("decr <key> <delta> [noreply]", Kind::Arithmetic, "Takes from a number; stops at 0"),
    text("touch <key> <exptime> [noreply]", Kind::Change, "Sets a new expiry"),
    text("flush_all [delay] [noreply]", Kind::Server, "Makes all entries of database 0 invisible, now or after so many seconds"),
    text("verbosity <level> [noreply]", Kind::Server, "Accepted without effect"),
    text("stats [items | settings | conns | slabs | sizes | reset]", Kind::Server, "Returns facts and figures about the server"),
    text("version", Kind::Server, "Returns the version"),
    text("quit", Kind::Server, "Closes the connection"),
];

/// A command of the meta dialect.
#[derive(Clone, Copy, Debug)]
pub struct MetaCommand {
    /// Its line without the end; the first word is the name.
    pub syntax: &'static str,
    /// What it is for.
    pub kind: Kind,
    /// The codes that it answers with.
    pub codes: &'static str,
    /// The codes that are left out with `q`.
    pub quiet: &'static str,
    /// The flags that change what it does or how it answers.
    pub acts: &'static str,
    /// The flags that return something.
    pub returns: &'static str,
    /// What it does, in one sentence without a full stop.
    pub summary: &'static str,
}

impl MetaCommand {
    /// The first word of the line.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.syntax.split(' ').next().unwrap_or_default()
    }
}

/// The commands of the meta dialect.
pub const META: [MetaCommand; 6] = [
    MetaCommand {
        syntax: "mg <key> <flag>*",
        kind: Kind::Retrieval,
        codes: "VA HD EN",
        quiet: "EN",
        acts: "bENqRTuv",
        returns: "cfhklOst",
        summary: "Returns an entry or facts about it; the flags `W`, `X` and `Z` of the reply steer recaching",
    },
    MetaCommand {
        syntax: "ms <key> <bytes> <flag>*",
        kind: Kind::Storage,
        codes: "HD NS EX NF",
        quiet: "HD",
        acts: "bCEFIMNqT",
        returns: "ckOs",
        summary: "Stores a value",
    },
    MetaCommand {
        syntax: "md <key> <flag>*",
        kind: Kind::Change,
        codes: "HD EX NF",
        quiet: "HD",
        acts: "bCEIqTx",
        returns: "kO",
        summary: "Removes an entry, or marks it stale",
    },
    MetaCommand {
        syntax: "ma <key> <flag>*",
        kind: Kind::Arithmetic,
        codes: "VA HD NS EX NF",
        quiet: "VA HD",
        acts: "bCDEJMNqTv",
        returns: "ckOt",
        summary: "Adds to a number or takes from it",
    },
    MetaCommand {
        syntax: "me <key> [b]",
        kind: Kind::Server,
        codes: "ME EN",
        quiet: "",
        acts: "b",
        returns: "",
        summary: "Returns what is known about an entry, for people",
    },
    MetaCommand {
        syntax: "mn",
        kind: Kind::Server,
        codes: "MN",
        quiet: "",
        acts: "",
        returns: "",
        summary: "Does nothing: its answer shows that all requests before it were answered",
    },
];

/// A flag of the meta dialect.
#[derive(Clone, Copy, Debug)]
pub struct MetaFlag {
    /// The flag with its argument.
    pub syntax: &'static str,
    /// What it means, in one sentence without a full stop.
    pub summary: &'static str,
}

impl MetaFlag {
    /// The character itself.
    #[must_use]
    pub fn flag(&self) -> char {
        self.syntax.chars().next().unwrap_or_default()
    }
}

const fn flag(syntax: &'static str, summary: &'static str) -> MetaFlag {
    MetaFlag { syntax, summary }
}

/// The flags of the meta dialect. Every command accepts all of them.
#[rustfmt::skip]
pub const META_FLAGS: [MetaFlag; 25] = [
    flag("b", "The key is base64, in request and reply"),
    flag("c", "Returns the CAS token"),
    flag("C<cas>", "Only if the entry still has this CAS token"),
    flag("D<delta>", "The number to add or take; 1 without it"),
    flag("E<cas>", "The CAS token that the entry gets instead of a fresh one"),
    flag("f", "Returns the client's flags"),
    flag("F<flags>", "The client's flags to store; 0 without it"),
    flag("h", "Returns 1 if the entry was read before, else 0"),
    flag("I", "`ms` with `C`: an older token stores and marks the entry stale; `md`: marks it stale instead of removing it"),
    flag("J<number>", "The number that `N` creates; 0 without it"),
    flag("k", "Returns the key"),
    flag("l", "Returns the seconds since the last use"),
    flag("L<text>", "For proxies: ignored"),
    flag("M<mode>", "`ms`: `S` set, `E` add, `A` append, `P` prepend, `R` replace; `ma`: `I` or `+` increment, `D` or `-` decrement"),
    flag("N<exptime>", "Creates the entry with this expiry where there is none (`ms`: for append and prepend)"),
    flag("O<text>", "Returned as it is, at most 31 bytes"),
    flag("P<text>", "For proxies: ignored"),
    flag("q", "Leaves out the nominal reply"),
    flag("R<seconds>", "The first client that reads with less time than this left is told to recache (`W`)"),
    flag("s", "Returns the length of the value in bytes"),
    flag("t", "Returns the seconds left to live; -1 for ever"),
    flag("T<exptime>", "Sets the expiry (`md`: only with `I` or `x`)"),
    flag("u", "Does not count as a use"),
    flag("v", "Returns the value"),
    flag("x", "Removes value and client flags and keeps the entry"),
];

/// A command of the binary dialect.
#[derive(Clone, Copy, Debug)]
pub struct BinaryCommand {
    /// The opcode.
    pub opcode: u8,
    /// Its name in `protocol_binary.txt`; the quiet forms end in `Q`.
    pub name: &'static str,
    /// What it is for.
    pub kind: Kind,
    /// What it does, in one sentence without a full stop.
    pub summary: &'static str,
}

const fn binary(
    opcode: u8,
    name: &'static str,
    kind: Kind,
    summary: &'static str,
) -> BinaryCommand {
    BinaryCommand {
        opcode,
        name,
        kind,
        summary,
    }
}

/// The commands of the binary dialect.
#[rustfmt::skip]
pub const BINARY: [BinaryCommand; 36] = [
    binary(0x00, "Get", Kind::Retrieval, "Returns value, flags and CAS token of a key"),
    binary(0x01, "Set", Kind::Storage, "Stores a value; with a CAS token only over that version"),
    binary(0x02, "Add", Kind::Storage, "Stores a value if the key does not exist"),
    binary(0x03, "Replace", Kind::Storage, "Stores a value if the key exists"),
    binary(0x04, "Delete", Kind::Change, "Removes an entry"),
    binary(0x05, "Increment", Kind::Arithmetic, "Adds to a number, which may be created; wraps around at 2^64"),
    binary(0x06, "Decrement", Kind::Arithmetic, "Takes from a number, which may be created; stops at 0"),
    binary(0x07, "Quit", Kind::Server, "Closes the connection"),
    binary(0x08, "Flush", Kind::Server, "Makes all entries of database 0 invisible, now or after so many seconds"),
    binary(0x09, "GetQ", Kind::Retrieval, "As Get; a miss is not answered"),
    binary(0x0a, "No-op", Kind::Server, "Answers, which shows that everything before it was done"),
    binary(0x0b, "Version", Kind::Server, "Returns the version"),
    binary(0x0c, "GetK", Kind::Retrieval, "As Get; the reply names the key"),
    binary(0x0d, "GetKQ", Kind::Retrieval, "As GetK; a miss is not answered"),
    binary(0x0e, "Append", Kind::Storage, "Puts bytes behind a value"),
    binary(0x0f, "Prepend", Kind::Storage, "Puts bytes before a value"),
    binary(0x10, "Stat", Kind::Server, "Returns facts and figures; groups as in the text dialect"),
    binary(0x11, "SetQ", Kind::Storage, "As Set; success is not answered"),
    binary(0x12, "AddQ", Kind::Storage, "As Add; success is not answered"),
    binary(0x13, "ReplaceQ", Kind::Storage, "As Replace; success is not answered"),
    binary(0x14, "DeleteQ", Kind::Change, "As Delete; success is not answered"),
    binary(0x15, "IncrementQ", Kind::Arithmetic, "As Increment; success is not answered"),
    binary(0x16, "DecrementQ", Kind::Arithmetic, "As Decrement; success is not answered"),
    binary(0x17, "QuitQ", Kind::Server, "Closes the connection without an answer"),
    binary(0x18, "FlushQ", Kind::Server, "As Flush; success is not answered"),
    binary(0x19, "AppendQ", Kind::Storage, "As Append; success is not answered"),
    binary(0x1a, "PrependQ", Kind::Storage, "As Prepend; success is not answered"),
    binary(0x1b, "Verbosity", Kind::Server, "Accepted without effect"),
    binary(0x1c, "Touch", Kind::Change, "Sets a new expiry"),
    binary(0x1d, "GAT", Kind::Retrieval, "As Get, and sets a new expiry"),
    binary(0x1e, "GATQ", Kind::Retrieval, "As GAT; a miss is not answered"),
    binary(0x20, "SASL list mechs", Kind::Server, "Returns the mechanisms: PLAIN"),
    binary(0x21, "SASL Auth", Kind::Server, "Authenticates the connection"),
    binary(0x22, "SASL Step", Kind::Server, "Refused: PLAIN has one step"),
    binary(0x23, "GATK", Kind::Retrieval, "As GAT; the reply names the key"),
    binary(0x24, "GATKQ", Kind::Retrieval, "As GATK; a miss is not answered"),
];
