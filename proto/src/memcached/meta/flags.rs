//! The flags of a meta command: single characters, some with an argument attached.

use crate::memcached::text::{
    BAD_FORMAT, Tokens, parse_exptime, parse_signed, parse_u32, parse_unsigned,
};
use crate::{ExpirySpec, Version};

const BAD_TOKEN: &str = "CLIENT_ERROR bad token in command line format";
const BAD_MODE_LEN: &str = "CLIENT_ERROR incorrect length for M token";
const BAD_INITIAL: &str = "CLIENT_ERROR invalid numeric initial value";
const BAD_DELTA: &str = "CLIENT_ERROR invalid numeric delta value";
const DUPLICATE: &str = "CLIENT_ERROR duplicate flag";
const UNKNOWN: &str = "CLIENT_ERROR invalid flag";
pub(super) const OPAQUE_TOO_LONG: &str = "CLIENT_ERROR opaque token too long";

/// Longest opaque flag in bytes, its `O` included.
const OPAQUE_FLAG_LEN_MAX: usize = 32;

/// What the flags of a command ask for. Flags that only return something are read when the reply is
/// worded.
#[derive(Debug, Default)]
pub(super) struct Flags {
    /// `b`: the key is base64.
    pub(super) base64: bool,
    /// `q`: nominal replies are left out.
    pub(super) quiet: bool,
    /// `v`: the value is returned.
    pub(super) value: bool,
    /// `u`: the read does not count as a use.
    pub(super) no_bump: bool,
    /// `I`.
    pub(super) invalidate: bool,
    /// `x`: only the value is removed.
    pub(super) remove_value: bool,
    /// `C`.
    pub(super) compare: Option<Version>,
    /// `E`.
    pub(super) new_version: Option<Version>,
    /// `F`.
    pub(super) client_flags: u32,
    /// `D`.
    pub(super) delta: Option<u64>,
    /// `J`.
    pub(super) initial: u64,
    /// `M`.
    pub(super) mode: Option<u8>,
    /// `T`.
    pub(super) ttl: Option<ExpirySpec>,
    /// `N`.
    pub(super) vivify: Option<ExpirySpec>,
    /// `R`.
    pub(super) recache_below_s: Option<u32>,
}

/// Why flags are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlagsError {
    /// An unknown or repeated flag, or one with a wrong argument. Some commands have one line for
    /// all of these.
    Invalid(&'static str),
    /// The opaque is too long, which memcached notices after everything else.
    OpaqueTooLong,
}

impl Flags {
    /// Reads the flags in `tail`, the part of the line behind the key or the length.
    ///
    /// # Errors
    /// The first unknown or repeated flag; without such, the last wrong argument with a line of its
    /// own.
    pub(super) fn parse(tail: &[u8]) -> Result<Self, FlagsError> {
        let mut flags = Self::default();
        let mut seen = 0_u128;
        let mut error = None;
        let mut is_opaque_long = false;
        for token in Tokens::new(tail) {
            let Some((&flag, argument)) = token.split_first() else {
                continue;
            };
            let bit = 1_u128.checked_shl(flag.into()).unwrap_or(0);
            // Memcached says the same of a flag that is no ASCII character.
            if bit == 0 || seen & bit != 0 {
                return Err(FlagsError::Invalid(DUPLICATE));
            }
            seen |= bit;
            is_opaque_long |= flag == b'O' && token.len() > OPAQUE_FLAG_LEN_MAX;
            match flags.set(flag, argument) {
                Ok(()) => {}
                Err(UNKNOWN) => return Err(FlagsError::Invalid(UNKNOWN)),
                // The line that memcached has where no flag gives another one.
                Err(BAD_FORMAT) => error = error.or(Some(BAD_FORMAT)),
                Err(line) => error = Some(line),
            }
        }
        match error {
            Some(line) => Err(FlagsError::Invalid(line)),
            None if is_opaque_long => Err(FlagsError::OpaqueTooLong),
            None => Ok(flags),
        }
    }

    fn set(&mut self, flag: u8, argument: &[u8]) -> Result<(), &'static str> {
        match flag {
            b'b' => self.base64 = true,
            b'q' => self.quiet = true,
            b'v' => self.value = true,
            b'u' => self.no_bump = true,
            b'I' => self.invalidate = true,
            b'x' => self.remove_value = true,
            b'C' => self.compare = Some(parse_unsigned(argument).ok_or(BAD_TOKEN)?),
            b'E' => {
                // 0 is no version of an entry, so the entry gets a fresh one.
                let version = parse_unsigned(argument).ok_or(BAD_TOKEN)?;
                self.new_version = Some(version).filter(|version| *version != 0);
            }
            b'F' => self.client_flags = parse_u32(argument).ok_or(BAD_FORMAT)?,
            b'D' => self.delta = Some(parse_unsigned(argument).ok_or(BAD_DELTA)?),
            b'J' => self.initial = parse_unsigned(argument).ok_or(BAD_INITIAL)?,
            b'M' => match argument {
                [mode] => self.mode = Some(*mode),
                _ => return Err(BAD_MODE_LEN),
            },
            b'T' => self.ttl = Some(parse_exptime(argument).ok_or(BAD_TOKEN)?),
            b'N' => self.vivify = Some(parse_exptime(argument).ok_or(BAD_TOKEN)?),
            b'R' => {
                // No entry has less than no time left.
                let below_s = parse_signed(argument).ok_or(BAD_TOKEN)?.max(0);
                let below_s = u32::try_from(below_s).unwrap_or(u32::MAX);
                self.recache_below_s = Some(below_s).filter(|below_s| *below_s > 0);
            }
            b'O' | b'P' | b'L' | b'k' | b's' | b't' | b'c' | b'f' | b'h' | b'l' => {}
            _ => return Err(UNKNOWN),
        }
        Ok(())
    }
}
