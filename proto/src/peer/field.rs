//! Reading and writing the fields of a body.

use bytes::{BufMut, Bytes};

use super::frame::seal;
use super::head::{Envelope, HEAD_LEN, Head, Kind};
use super::{DecodeError, KEY_LEN_MAX, TooLong};
use crate::out::SHARE_LEN_MIN;
use crate::outcome::Value;
use crate::{ExpirySpec, Failure, Out};

/// Reads fields from the front of a body. Every length is checked against what is there before
/// anything is done with it.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
    /// The allocation that the body lies in, to share large values from.
    source: Option<&'a Bytes>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(body: &'a [u8], source: Option<&'a Bytes>) -> Self {
        Self { rest: body, source }
    }

    pub(super) fn take(
        &mut self,
        len: usize,
        field: &'static str,
    ) -> Result<&'a [u8], DecodeError> {
        let (taken, rest) = self
            .rest
            .split_at_checked(len)
            .ok_or(DecodeError::Truncated(field))?;
        self.rest = rest;
        Ok(taken)
    }

    fn chunk<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], DecodeError> {
        let (chunk, rest) = self
            .rest
            .split_first_chunk()
            .ok_or(DecodeError::Truncated(field))?;
        self.rest = rest;
        Ok(*chunk)
    }

    pub(super) fn u8(&mut self, field: &'static str) -> Result<u8, DecodeError> {
        self.chunk(field).map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self, field: &'static str) -> Result<u16, DecodeError> {
        self.chunk(field).map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        self.chunk(field).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, field: &'static str) -> Result<u64, DecodeError> {
        self.chunk(field).map(u64::from_le_bytes)
    }

    /// A field that is there if its flag is set.
    pub(super) fn optional<T>(
        &mut self,
        present: bool,
        read: impl FnOnce(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Option<T>, DecodeError> {
        present.then(|| read(self)).transpose()
    }

    pub(super) fn len(&mut self, field: &'static str) -> Result<usize, DecodeError> {
        let value = self.u64(field)?;
        usize::try_from(value).map_err(|_| DecodeError::Meaningless { field, value })
    }

    /// Bytes behind their length in 16 bits.
    pub(super) fn short(&mut self, field: &'static str) -> Result<&'a [u8], DecodeError> {
        let len = self.u16(field)?;
        self.take(usize::from(len), field)
    }

    /// Bytes behind their length in 32 bits.
    pub(super) fn long(&mut self, field: &'static str) -> Result<&'a [u8], DecodeError> {
        let len = self.u32(field)?;
        self.take(len as usize, field)
    }

    /// A text behind its length in 32 bits.
    pub(super) fn text(&mut self, field: &'static str) -> Result<String, DecodeError> {
        let text = std::str::from_utf8(self.long(field)?);
        text.map(str::to_owned)
            .map_err(|_| DecodeError::NotText(field))
    }

    /// As many elements as the body still holds.
    pub(super) fn list<T>(
        &mut self,
        mut read: impl FnMut(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        // Grown as elements are found: a count in the frame would be a promise.
        let mut list = Vec::new();
        while !self.rest.is_empty() {
            list.push(read(self)?);
        }
        Ok(list)
    }

    pub(super) fn expiry(&mut self, field: &'static str) -> Result<ExpirySpec, DecodeError> {
        Ok(match self.u8(field)? {
            0 => ExpirySpec::Never,
            1 => ExpirySpec::Keep,
            2 => ExpirySpec::InMs(self.u64(field)?),
            3 => ExpirySpec::AtMs(self.u64(field)?),
            4 => ExpirySpec::Immediately,
            other => {
                return Err(DecodeError::Meaningless {
                    field,
                    value: u64::from(other),
                });
            }
        })
    }

    /// An element with an opcode and flags of its own: see [`Writer::nested`].
    pub(super) fn nested<T>(
        &mut self,
        read: impl FnOnce(u8, &mut Flags, &mut Self) -> Result<T, DecodeError>,
    ) -> Result<T, DecodeError> {
        let opcode = self.u8("opcode")?;
        let mut flags = Flags::of(opcode, self.u16("flags")?);
        let mut element = Self::new(self.long("element")?, self.source);
        let value = read(opcode, &mut flags, &mut element)?;
        flags.end()?;
        element.end(value)
    }

    /// All that is left: a key or a text.
    pub(super) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    /// All that is left, as a value.
    pub(super) fn value(&mut self) -> Value<'a> {
        let rest = self.rest();
        match self.source {
            Some(source) if rest.len() >= SHARE_LEN_MIN => Value::Shared(source.slice_ref(rest)),
            _ => Value::Copied(rest),
        }
    }

    /// All that is left, as bytes of their own, or a part of the source if they are many.
    pub(super) fn owned(&mut self) -> Bytes {
        match self.value() {
            Value::Copied(bytes) => Bytes::copy_from_slice(bytes),
            Value::Shared(bytes) => bytes,
        }
    }

    /// Checks that nothing is left.
    pub(super) fn end<T>(&self, value: T) -> Result<T, DecodeError> {
        match self.rest.len() {
            0 => Ok(value),
            left => Err(DecodeError::Trailing(left)),
        }
    }
}

/// Opcode, flags and length of an element: see [`Writer::nested`].
const NESTED_HEAD_LEN: usize = 1 + 2 + 4;

/// Writes one frame into an [`Out`]: first the fields, then, with [`Writer::finish`], the payload
/// and the head in front.
pub(super) struct Writer<'o> {
    out: &'o mut Out,
    /// Where the frame begins in the buffer for copied bytes.
    start: usize,
}

/// A frame's head, as far as its encoder knows it.
pub(super) struct Sealed {
    pub(super) kind: Kind,
    pub(super) opcode: u8,
    pub(super) flags: u16,
    pub(super) envelope: Envelope,
    pub(super) body_len_max: u32,
}

impl<'o> Writer<'o> {
    #[inline]
    pub(super) fn new(out: &'o mut Out) -> Self {
        let tail = out.tail_mut();
        let start = tail.len();
        tail.extend_from_slice(&[0; HEAD_LEN]);
        Self { out, start }
    }

    #[inline]
    pub(super) fn put(&mut self, bytes: &[u8]) {
        self.out.put(bytes);
    }

    pub(super) fn u8(&mut self, value: u8) {
        self.out.tail_mut().put_u8(value);
    }

    pub(super) fn u16(&mut self, value: u16) {
        self.out.tail_mut().put_u16_le(value);
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.out.tail_mut().put_u32_le(value);
    }

    pub(super) fn u64(&mut self, value: u64) {
        self.out.tail_mut().put_u64_le(value);
    }

    /// A field whose flag says whether it is there.
    pub(super) fn optional<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        if let Some(value) = value {
            write(self, value);
        }
    }

    pub(super) fn expiry(&mut self, expiry: ExpirySpec) {
        match expiry {
            ExpirySpec::Never => self.u8(0),
            ExpirySpec::Keep => self.u8(1),
            ExpirySpec::InMs(ms) => {
                self.u8(2);
                self.u64(ms);
            }
            ExpirySpec::AtMs(ms) => {
                self.u8(3);
                self.u64(ms);
            }
            ExpirySpec::Immediately => self.u8(4),
        }
    }

    /// Bytes behind their length in 16 bits.
    pub(super) fn short(&mut self, bytes: &[u8], what: &'static str) -> Result<(), TooLong> {
        let len = u16::try_from(bytes.len()).map_err(|_| TooLong {
            what,
            len: bytes.len(),
            max: KEY_LEN_MAX,
        })?;
        self.u16(len);
        self.put(bytes);
        Ok(())
    }

    /// Bytes behind their length in 32 bits.
    pub(super) fn long(&mut self, bytes: &[u8], what: &'static str) -> Result<(), TooLong> {
        let len = u32::try_from(bytes.len()).map_err(|_| TooLong {
            what,
            len: bytes.len(),
            max: u32::MAX as usize,
        })?;
        self.u32(len);
        self.put(bytes);
        Ok(())
    }

    /// An element with an opcode and flags of its own: opcode, flags:2, length:4, fields, payload.
    pub(super) fn nested<'v>(
        &mut self,
        write: impl FnOnce(&mut Self) -> Result<(u8, u16, Value<'v>), TooLong>,
    ) -> Result<(), TooLong> {
        const LEN: usize = size_of::<u32>();
        let start = self.out.tail_mut().len();
        self.put(&[0; NESTED_HEAD_LEN]);
        let (opcode, flags, payload) = write(self)?;
        self.put(payload.as_slice());
        let tail = self.out.tail_mut();
        let element = tail.get_mut(start..).unwrap_or_default();
        let len = element.len().saturating_sub(NESTED_HEAD_LEN);
        let len = u32::try_from(len).map_err(|_| TooLong {
            what: "an element",
            len,
            max: u32::MAX as usize,
        })?;
        if let [opcode_at, low, high, rest @ ..] = element {
            *opcode_at = opcode;
            [*low, *high] = flags.to_le_bytes();
            if let Some(len_at) = rest.get_mut(..LEN) {
                len_at.copy_from_slice(&len.to_le_bytes());
            }
        }
        Ok(())
    }

    /// Takes back all that was written.
    pub(super) fn undo(self) {
        let start = self.start;
        self.out.tail_mut().truncate(start);
    }

    /// Puts the payload behind the fields and the head in front of them. Writes nothing at all if
    /// the frame is too long.
    #[inline]
    pub(super) fn finish(self, sealed: &Sealed, payload: &Value<'_>) -> Result<(), TooLong> {
        let Self { out, start } = self;
        let fields_len = out
            .tail_mut()
            .len()
            .saturating_sub(start)
            .saturating_sub(HEAD_LEN);
        let bytes = payload.as_slice();
        let len = fields_len.saturating_add(bytes.len());
        let body_len = match u32::try_from(len) {
            Ok(body_len) if body_len <= sealed.body_len_max => body_len,
            _ => {
                out.tail_mut().truncate(start);
                return Err(TooLong {
                    what: "the body of a frame",
                    len,
                    max: sealed.body_len_max as usize,
                });
            }
        };
        let head = Head {
            opcode: sealed.opcode,
            flags: sealed.flags,
            envelope: sealed.envelope,
            body_len,
        };
        let shared = match payload {
            Value::Shared(shared) if shared.len() >= SHARE_LEN_MIN => Some(shared),
            _ => {
                out.put(bytes);
                None
            }
        };
        let frame = out.tail_mut().get_mut(start..).unwrap_or_default();
        let elsewhere = shared.map_or(&[][..], |shared| shared);
        seal(frame, sealed.kind, &head, elsewhere);
        if let Some(shared) = shared {
            out.put_shared(shared);
        }
        Ok(())
    }
}

/// A value as it goes into a frame: a part of `source`, if it is a large one and lies in it.
pub(super) fn payload<'v>(value: &'v [u8], source: Option<&Bytes>) -> Value<'v> {
    match source {
        Some(source) if value.len() >= SHARE_LEN_MIN && contains(source, value) => {
            Value::Shared(source.slice_ref(value))
        }
        _ => Value::Copied(value),
    }
}

fn contains(source: &[u8], part: &[u8]) -> bool {
    let (outer, inner) = (source.as_ptr_range(), part.as_ptr_range());
    outer.start <= inner.start && inner.end <= outer.end
}

/// The opcode of what no process sends to another. It is never assigned, so it is refused as
/// unknown.
pub(super) const NOT_SENT: u8 = 0x3f;

/// The number of a failure on the wire. Numbers never change meaning.
pub(super) const fn failure_code(failure: Failure) -> u16 {
    match failure {
        Failure::Busy => 1,
        Failure::OutOfSpace => 2,
        Failure::TooLarge => 3,
        Failure::ReadOnly => 4,
        Failure::AuthRequired => 5,
        Failure::Unavailable => 6,
    }
}

pub(super) fn failure(code: u16) -> Result<Failure, DecodeError> {
    Failure::ALL
        .into_iter()
        .find(|&failure| failure_code(failure) == code)
        .ok_or(DecodeError::Meaningless {
            field: "failure",
            value: u64::from(code),
        })
}

/// The flag `bit`, if the condition holds.
pub(super) const fn bit(condition: bool, bit: u16) -> u16 {
    if condition { bit } else { 0 }
}

/// Flags of a frame, each asked for once; what is left at the end is unknown.
pub(super) struct Flags {
    opcode: u8,
    all: u16,
    left: u16,
}

impl Flags {
    pub(super) fn new(head: &Head) -> Self {
        Self::of(head.opcode, head.flags)
    }

    fn of(opcode: u8, flags: u16) -> Self {
        Self {
            opcode,
            all: flags,
            left: flags,
        }
    }

    pub(super) fn has(&mut self, bit: u16) -> bool {
        let is_set = self.left & bit != 0;
        self.left &= !bit;
        is_set
    }

    /// The number in the bits of `mask`, which are the lowest.
    pub(super) fn number(&mut self, mask: u16) -> u16 {
        let number = self.left & mask;
        self.left &= !mask;
        number
    }

    pub(super) fn meaningless(&self) -> DecodeError {
        DecodeError::UnknownFlags {
            opcode: self.opcode,
            flags: self.all,
        }
    }

    /// Checks that all flags that are set were asked for.
    pub(super) fn end(&self) -> Result<(), DecodeError> {
        match self.left {
            0 => Ok(()),
            _ => Err(self.meaningless()),
        }
    }
}

/// Writes a frame with the fields that `write` writes. Nothing is written if it is too long.
#[inline]
pub(super) fn encode<'v>(
    kind: Kind,
    envelope: Envelope,
    body_len_max: u32,
    out: &mut Out,
    write: impl FnOnce(&mut Writer<'_>) -> Result<(u8, u16, Value<'v>), TooLong>,
) -> Result<(), TooLong> {
    let mut writer = Writer::new(out);
    match write(&mut writer) {
        Ok((opcode, flags, payload)) => {
            let sealed = Sealed {
                kind,
                opcode,
                flags,
                envelope,
                body_len_max,
            };
            writer.finish(&sealed, &payload)
        }
        Err(error) => {
            writer.undo();
            Err(error)
        }
    }
}
