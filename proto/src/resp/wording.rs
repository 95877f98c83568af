//! The words of errors: those of Redis where it has the same error.

use std::borrow::Cow;

use super::frame::Args;
use super::table::CommandInfo;
use crate::Moved;
use crate::batch::ABSENT_STEPS_MAX;
use crate::command::RESP_KEY_LEN_MAX;
use crate::outcome::Failure;

/// An error reply without its `-` and line end: a prefix in capitals, a space, a sentence.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct ReplyError(Cow<'static, [u8]>);

impl ReplyError {
    pub(super) const fn fixed(text: &'static str) -> Self {
        Self(Cow::Borrowed(text.as_bytes()))
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl From<String> for ReplyError {
    fn from(text: String) -> Self {
        Self(Cow::Owned(text.into_bytes()))
    }
}

impl std::fmt::Debug for ReplyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

pub(super) const SYNTAX: ReplyError = ReplyError::fixed("ERR syntax error");
pub(super) const NOT_AN_INTEGER: ReplyError =
    ReplyError::fixed("ERR value is not an integer or out of range");
pub(super) const NOT_A_FLOAT: ReplyError = ReplyError::fixed("ERR value is not a valid float");
pub(super) const NOT_FINITE: ReplyError =
    ReplyError::fixed("ERR increment would produce NaN or Infinity");
pub(super) const OVERFLOW: ReplyError =
    ReplyError::fixed("ERR increment or decrement would overflow");
pub(super) const DECREMENT_OVERFLOW: ReplyError = ReplyError::fixed("ERR decrement would overflow");
pub(super) const OFFSET_OUT_OF_RANGE: ReplyError = ReplyError::fixed("ERR offset is out of range");
pub(super) const STRING_TOO_LONG: ReplyError =
    ReplyError::fixed("ERR string exceeds maximum allowed size (proto-max-bulk-len)");
pub(super) const INVALID_CURSOR: ReplyError = ReplyError::fixed("ERR invalid cursor");
pub(super) const CONDITIONS_EXCLUDE_NX: ReplyError =
    ReplyError::fixed("ERR NX and XX, GT or LT options at the same time are not compatible");
pub(super) const CONDITIONS_GT_LT: ReplyError =
    ReplyError::fixed("ERR GT and LT options at the same time are not compatible");
pub(super) const DATABASE_OUT_OF_RANGE: ReplyError =
    ReplyError::fixed("ERR DB index is out of range");
pub(super) const INT_OUT_OF_RANGE: ReplyError =
    ReplyError::fixed("ERR value is out of range, value must between -2147483648 and 2147483647");
pub(super) const NOT_A_PROTOCOL_VERSION: ReplyError =
    ReplyError::fixed("ERR Protocol version is not an integer or out of range");
pub(super) const UNSUPPORTED_PROTOCOL: ReplyError =
    ReplyError::fixed("NOPROTO unsupported protocol version");
pub(super) const BAD_CLIENT_NAME: ReplyError =
    ReplyError::fixed("ERR Client names cannot contain spaces, newlines or special characters.");
pub(super) const WRONG_PASSWORD: ReplyError =
    ReplyError::fixed("WRONGPASS invalid username-password pair or user is disabled.");
pub(super) const AUTH_NOT_CONFIGURED: ReplyError = ReplyError::fixed(
    "ERR AUTH <password> called without any password configured for the default user. Are you sure \
     your configuration is correct?",
);
pub(super) const TOO_MANY_NAMES: ReplyError = ReplyError::fixed("ERR too many command names");
pub(super) const INVALID_SLOT: ReplyError = ReplyError::fixed("ERR Invalid slot");
pub(super) const BIT_OFFSET: ReplyError =
    ReplyError::fixed("ERR bit offset is not an integer or out of range");
pub(super) const BIT_VALUE: ReplyError =
    ReplyError::fixed("ERR bit is not an integer or out of range");
pub(super) const NO_FREQUENCY: ReplyError = ReplyError::fixed(
    "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that \
     when switching between policies at runtime LRU and LFU data will take some time to adjust.",
);
pub(super) const LCS_LEN_AND_IDX: ReplyError =
    ReplyError::fixed("ERR If you want both the length and indexes, please just use IDX.");
pub(super) const LCS_TOO_LONG: ReplyError = ReplyError::fixed(
    "ERR Insufficient memory, transient memory for LCS exceeds proto-max-bulk-len",
);
pub(super) const SAME_OBJECT: ReplyError =
    ReplyError::fixed("ERR source and destination objects are the same");
pub(super) const NO_SUCH_KEY: ReplyError = ReplyError::fixed("ERR no such key");
pub(super) const CROSS_SLOT: ReplyError =
    ReplyError::fixed("CROSSSLOT Keys in request don't hash to the same slot");
pub(super) const TOO_MANY_KEYS: ReplyError =
    ReplyError::fixed("ERR there are too many keys for KEYS, use SCAN");
pub(super) const NESTED_MULTI: ReplyError = ReplyError::fixed("ERR MULTI calls can not be nested");
pub(super) const WATCH_INSIDE_MULTI: ReplyError =
    ReplyError::fixed("ERR WATCH inside MULTI is not allowed");
pub(super) const EXEC_WITHOUT_MULTI: ReplyError = ReplyError::fixed("ERR EXEC without MULTI");
pub(super) const DISCARD_WITHOUT_MULTI: ReplyError = ReplyError::fixed("ERR DISCARD without MULTI");
pub(super) const NOT_IN_TRANSACTION: ReplyError =
    ReplyError::fixed("ERR Command not allowed inside a transaction");
pub(super) const TRANSACTION_TOO_LARGE: ReplyError =
    ReplyError::fixed("ERR the transaction has too many commands or bytes");
pub(super) const TRANSACTION_DISCARDED: ReplyError =
    ReplyError::fixed("EXECABORT Transaction discarded because of previous errors.");
/// For an outcome that a command cannot have.
pub(super) const INTERNAL: ReplyError = ReplyError::fixed("ERR internal error");

/// The error for a command that was not carried out. Clients act on the prefix alone: `OOM`,
/// `NOPERM` and `NOAUTH` are Redis's, `TRYAGAIN` makes clients repeat the command after a pause.
pub(super) const fn failure(failure: Failure) -> ReplyError {
    ReplyError::fixed(match failure {
        Failure::Busy => "TRYAGAIN the server is busy, try again later",
        Failure::OutOfSpace => "OOM command not allowed when memory or disk space is used up",
        Failure::TooLarge => "ERR value is too large",
        Failure::ReadOnly => "NOPERM this user has no permissions to change anything",
        Failure::AuthRequired => "NOAUTH Authentication required.",
        Failure::Unavailable => "ERR unavailable, the storage of this key cannot be reached",
    })
}

/// Sends a client to the owner of a key.
pub(super) fn moved(moved: &Moved) -> ReplyError {
    format!("MOVED {} {}:{}", moved.slot, moved.host, moved.port).into()
}

pub(super) fn unknown_node(id: &[u8]) -> ReplyError {
    about("ERR Unknown node ", id, "")
}

pub(super) fn wrong_arity(name: &str) -> ReplyError {
    format!("ERR wrong number of arguments for '{name}' command").into()
}

/// `EXEC` behind `MULTI` with arguments: the transaction is over.
pub(super) fn discarded_for(error: &ReplyError) -> ReplyError {
    let reason = error.as_bytes();
    let reason = reason.strip_prefix(b"ERR ").unwrap_or(reason);
    let text: &[u8] = b"EXECABORT Transaction discarded because of: ";
    ReplyError(Cow::Owned([text, reason].concat()))
}

/// Why an argument is not accepted.
pub(super) fn invalid(reason: &str) -> ReplyError {
    format!("ERR {reason}").into()
}

pub(super) fn invalid_expire_time(command: &CommandInfo) -> ReplyError {
    format!("ERR invalid expire time in '{}' command", command.name).into()
}

pub(super) fn value_too_large(len_max: usize) -> ReplyError {
    format!("ERR value is too large (max {len_max} bytes)").into()
}

pub(super) fn too_many_pairs(command: &CommandInfo) -> ReplyError {
    format!(
        "ERR too many pairs for '{}' command (max {ABSENT_STEPS_MAX})",
        command.name
    )
    .into()
}

pub(super) fn pattern_too_long(len_max: usize) -> ReplyError {
    format!("ERR pattern is too long (max {len_max} bytes)").into()
}

pub(super) fn too_many_arguments(command: &CommandInfo, count_max: usize) -> ReplyError {
    format!(
        "ERR too many arguments for '{}' command (max {count_max})",
        command.name
    )
    .into()
}

pub(super) fn key_too_long() -> ReplyError {
    format!("ERR key is too long (max {RESP_KEY_LEN_MAX} bytes)").into()
}

pub(super) fn argument_too_long(len_max: usize) -> ReplyError {
    format!("ERR argument is too long (max {len_max} bytes)").into()
}

pub(super) fn request_too_large(len_max: usize) -> ReplyError {
    format!("ERR request is too large (max {len_max} bytes)").into()
}

pub(super) fn protocol_error(reason: &[u8]) -> ReplyError {
    ReplyError(Cow::Owned([b"ERR Protocol error: ", reason].concat()))
}

/// Bytes of a name or of all arguments that an error about them repeats.
const REPEATED_LEN_MAX: usize = 128;

pub(super) fn unknown_command(args: Args<'_>) -> ReplyError {
    let mut text = b"ERR unknown command '".to_vec();
    text.extend(args.get(0).iter().take(REPEATED_LEN_MAX));
    text.extend(b"', with args beginning with: ");
    let start = text.len();
    for argument in args.from(1) {
        let repeated = text.len() - start;
        if repeated >= REPEATED_LEN_MAX {
            break;
        }
        text.push(b'\'');
        text.extend(argument.iter().take(REPEATED_LEN_MAX - repeated));
        text.extend(b"' ");
    }
    ReplyError(Cow::Owned(text))
}

/// `container` is the name as in the command table.
pub(super) fn unknown_subcommand(container: &str, subcommand: &[u8]) -> ReplyError {
    let mut text = b"ERR unknown subcommand '".to_vec();
    text.extend(subcommand.iter().take(REPEATED_LEN_MAX));
    text.extend(b"'. Try ");
    text.extend(container.to_ascii_uppercase().into_bytes());
    text.extend(b" HELP.");
    ReplyError(Cow::Owned(text))
}

/// An error that ends with what the client sent.
pub(super) fn about(before: &str, sent: &[u8], after: &str) -> ReplyError {
    let sent = sent.get(..REPEATED_LEN_MAX).unwrap_or(sent);
    ReplyError(Cow::Owned(
        [before.as_bytes(), sent, after.as_bytes()].concat(),
    ))
}
