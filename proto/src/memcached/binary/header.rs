//! The 24 bytes in front of every packet. The table of offsets is in the module above.

use bytes::BufMut;

use super::Status;
use super::parse::{be32, be64};

/// Length of a header in bytes.
pub const HEADER_LEN: usize = 24;

/// First byte of every request.
pub const MAGIC_REQUEST: u8 = 0x80;

/// First byte of every reply.
pub const MAGIC_RESPONSE: u8 = 0x81;

/// A request's header, decoded and not yet checked.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestHeader {
    pub(super) opcode: u8,
    pub(super) key_len: u16,
    pub(super) extras_len: u8,
    /// Length of extras, key and value together.
    pub(super) body_len: u32,
    pub(super) opaque: u32,
    pub(super) cas: u64,
}

impl RequestHeader {
    /// Reads the fields. The magic byte is the caller's to check; data type and virtual bucket mean
    /// nothing to a server that owns every key.
    #[inline]
    pub(super) fn decode(bytes: &[u8; HEADER_LEN]) -> Self {
        let [_, opcode, k0, k1, extras_len, _, _, _, rest @ ..] = bytes;
        let (body_len, rest) = rest.split_at(4);
        let (opaque, cas) = rest.split_at(4);
        Self {
            opcode: *opcode,
            key_len: u16::from_be_bytes([*k0, *k1]),
            extras_len: *extras_len,
            body_len: be32(body_len),
            opaque: be32(opaque),
            cas: be64(cas),
        }
    }

    /// Bytes of the whole packet.
    #[inline]
    pub(super) fn packet_len(&self) -> u64 {
        u64::from(self.body_len).saturating_add(HEADER_LEN as u64)
    }

    /// Bytes of the value, or None if extras and key do not fit into the body.
    #[inline]
    pub(super) fn value_len(&self) -> Option<u32> {
        self.body_len
            .checked_sub(u32::from(self.extras_len))?
            .checked_sub(u32::from(self.key_len))
    }
}

/// A reply's header.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplyHeader {
    pub(super) opcode: u8,
    pub(super) key_len: u16,
    pub(super) extras_len: u8,
    pub(super) status: Status,
    pub(super) body_len: u32,
    pub(super) opaque: u32,
    pub(super) cas: u64,
}

impl ReplyHeader {
    /// The bytes to send.
    #[inline]
    pub(super) fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        // The fields' lengths add up to the header's.
        let mut rest = bytes.as_mut_slice();
        rest.put_u8(MAGIC_RESPONSE);
        rest.put_u8(self.opcode);
        rest.put_u16(self.key_len);
        rest.put_u8(self.extras_len);
        rest.put_u8(0);
        rest.put_u16(self.status.code());
        rest.put_u32(self.body_len);
        rest.put_u32(self.opaque);
        rest.put_u64(self.cas);
        bytes
    }
}
