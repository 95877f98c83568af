//! The messages of `ByteStream.Write` as they arrive: data are handed on before their message is
//! whole, from where they are.
//!
//! Source: google/bytestream/bytestream.proto, and the wire format of Protocol Buffers
//! (protobuf.dev, "Encoding"). A field with a length is skipped unless it is the data or the name.

use bytes::{Buf as _, Bytes, BytesMut};

use crate::error::ReapiError;
use crate::frame::{HEAD_LEN, head};

/// Longest name of a resource in a message behind the first: longer than any that is served.
const NAME_LEN_MAX: u64 = 4096;

/// Why a message is none whose last field goes on behind it.
const CUT: &str = "a field is longer than its message";

const RESOURCE_NAME: u64 = 1;
const WRITE_OFFSET: u64 = 2;
const FINISH_WRITE: u64 = 3;
const DATA: u64 = 10;

/// What a request to write says beside its data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteEnd {
    /// The name of the blob; it may be empty.
    pub resource_name: Bytes,
    /// Bytes that were sent before.
    pub write_offset: i64,
    /// Whether these were the last bytes.
    pub finish_write: bool,
}

/// What a body has next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UploadPart {
    /// The next bytes of the blob.
    Data(Bytes),
    /// The end of a request.
    End(WriteEnd),
    /// The rest has not come.
    More,
}

/// Where the next byte belongs to.
#[derive(Clone, Copy, Debug, Default)]
enum Place {
    /// The head of a message.
    #[default]
    Head,
    /// A field, or the end of the message.
    Field,
    /// A field with so many bytes left.
    Bytes(Target, u64),
}

/// What becomes of the bytes of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Data,
    Name,
    Nothing,
}

/// A field without its bytes, if it has any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Number(u64, u64),
    Bytes(u64, u64),
}

/// What was parsed, and its length in bytes; `None` if more has to come.
type Parsed<T> = Result<Option<(T, usize)>, ReapiError>;

/// Cuts requests to write out of a body as it comes.
#[derive(Debug, Default)]
pub struct Upload {
    /// What has come and was not looked at.
    rest: Bytes,
    /// The beginning of a head or field that has not come as a whole.
    carry: BytesMut,
    place: Place,
    /// Bytes of the message that were not looked at.
    left: u64,
    has_data: bool,
    end: WriteEnd,
    name: BytesMut,
}

impl Upload {
    /// Takes the next bytes of the body; to be called when there is [`UploadPart::More`].
    pub fn push(&mut self, bytes: Bytes) {
        debug_assert!(self.rest.is_empty(), "not all was pulled");
        self.rest = bytes;
    }

    /// Bytes that are held.
    #[must_use]
    pub fn held_len(&self) -> usize {
        self.rest.len() + self.carry.len() + self.name.len()
    }

    /// Whether the body may end here.
    #[must_use]
    pub fn is_between_messages(&self) -> bool {
        self.rest.is_empty() && self.carry.is_empty() && matches!(self.place, Place::Head)
    }

    /// The next part, if it has come.
    ///
    /// # Errors
    /// [`ReapiError`]; the body is not to be read on.
    pub fn pull(&mut self) -> Result<UploadPart, ReapiError> {
        loop {
            match self.place {
                Place::Head => {
                    let head = |bytes: &[u8]| Ok(head(bytes)?.map(|len| (len, HEAD_LEN)));
                    let Some((len, _)) = self.item(HEAD_LEN, head)? else {
                        return Ok(UploadPart::More);
                    };
                    (self.place, self.left) = (Place::Field, len as u64);
                }
                Place::Field if self.left == 0 => {
                    self.place = Place::Head;
                    self.has_data = false;
                    self.end.resource_name = self.name.split().freeze();
                    return Ok(UploadPart::End(std::mem::take(&mut self.end)));
                }
                Place::Field => {
                    let Some((field, len)) = self.item(self.left as usize, field)? else {
                        return Ok(UploadPart::More);
                    };
                    self.begin(field, len)?;
                }
                Place::Bytes(_, 0) => self.place = Place::Field,
                Place::Bytes(target, len) => {
                    let here = len.min(self.rest.len() as u64);
                    if here == 0 {
                        return Ok(UploadPart::More);
                    }
                    let bytes = self.rest.split_to(here as usize);
                    self.place = Place::Bytes(target, len - here);
                    match target {
                        Target::Data => return Ok(UploadPart::Data(bytes)),
                        Target::Name => self.name.extend_from_slice(&bytes),
                        Target::Nothing => {}
                    }
                }
            }
        }
    }

    /// A head or field, which takes `len_max` bytes at most, and its length. Its beginning may have
    /// come before.
    fn item<T>(&mut self, len_max: usize, parse: fn(&[u8]) -> Parsed<T>) -> Parsed<T> {
        let here = self.rest.get(..len_max).unwrap_or(&self.rest);
        if self.carry.is_empty()
            && let Some((item, len)) = parse(here)?
        {
            self.rest.advance(len);
            return Ok(Some((item, len)));
        }
        while !self.rest.is_empty() && self.carry.len() < len_max {
            self.carry.extend_from_slice(&self.rest.split_to(1));
            if let Some((item, len)) = parse(&self.carry)? {
                self.carry.clear();
                return Ok(Some((item, len)));
            }
        }
        match self.carry.len() < len_max {
            true => Ok(None),
            false => Err(malformed(CUT)),
        }
    }

    /// Goes on behind a field of `len` bytes, or with its bytes.
    fn begin(&mut self, field: Field, len: usize) -> Result<(), ReapiError> {
        let bytes = match field {
            Field::Bytes(_, bytes) => bytes,
            Field::Number(..) => 0,
        };
        let left = self.left.checked_sub(len as u64);
        let left = left.and_then(|left| left.checked_sub(bytes));
        self.left = left.ok_or(malformed(CUT))?;
        match field {
            Field::Number(WRITE_OFFSET, value) => self.end.write_offset = value.cast_signed(),
            Field::Number(FINISH_WRITE, value) => self.end.finish_write = value != 0,
            Field::Number(RESOURCE_NAME | DATA, _)
            | Field::Bytes(WRITE_OFFSET | FINISH_WRITE, _) => {
                return Err(malformed("a field has another type"));
            }
            Field::Number(..) => {}
            Field::Bytes(number, bytes) => {
                let target = match number {
                    DATA if self.has_data => {
                        return Err(malformed("the data come twice"));
                    }
                    DATA => Target::Data,
                    RESOURCE_NAME if bytes > NAME_LEN_MAX => {
                        return Err(malformed("the resource name is too long"));
                    }
                    RESOURCE_NAME => Target::Name,
                    _ => Target::Nothing,
                };
                match target {
                    Target::Data => self.has_data = true,
                    // The last one counts.
                    Target::Name => self.name.clear(),
                    Target::Nothing => {}
                }
                self.place = Place::Bytes(target, bytes);
            }
        }
        Ok(())
    }
}

fn malformed(why: &'static str) -> ReapiError {
    ReapiError::Upload { why }
}

/// The field at the start of `bytes`, and how long its key and value, or key and length, are;
/// `None` if more has to come.
fn field(bytes: &[u8]) -> Parsed<Field> {
    let Some((key, key_len)) = varint(bytes)? else {
        return Ok(None);
    };
    let rest = bytes.get(key_len..).unwrap_or_default();
    let number = key >> 3;
    if number == 0 {
        return Err(malformed("a field has the number 0"));
    }
    // The bytes of fixed numbers are skipped as those of any other field.
    let (field, len) = match key & 7 {
        0 | 2 => match varint(rest)? {
            Some((value, len)) if key & 7 == 0 => (Field::Number(number, value), len),
            Some((value, len)) => (Field::Bytes(number, value), len),
            None => return Ok(None),
        },
        1 | 5 if matches!(number, RESOURCE_NAME | WRITE_OFFSET | FINISH_WRITE | DATA) => {
            return Err(malformed("a field has another type"));
        }
        1 => (Field::Bytes(number, 8), 0),
        5 => (Field::Bytes(number, 4), 0),
        _ => return Err(malformed("a field is of an unknown type")),
    };
    Ok(Some((field, key_len + len)))
}

/// The varint at the start of `bytes`, and its length; `None` if more has to come.
fn varint(bytes: &[u8]) -> Parsed<u64> {
    let mut value = 0_u64;
    for (at, byte) in bytes.iter().take(10).enumerate() {
        let part = u64::from(byte & 0x7f);
        if at == 9 && part > 1 {
            break;
        }
        value |= part << (7 * at);
        if byte & 0x80 == 0 {
            return Ok(Some((value, at + 1)));
        }
    }
    match bytes.len() < 10 {
        true => Ok(None),
        false => Err(malformed("a number is longer than 64 bits")),
    }
}

#[cfg(test)]
mod tests;
