//! The 24 bytes in front of every packet. The table of offsets is in the module above.

use super::Status;

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
        let [_, opcode, k0, k1, extras_len, _, _, _, rest @ ..] = *bytes;
        let [
            b0,
            b1,
            b2,
            b3,
            o0,
            o1,
            o2,
            o3,
            c0,
            c1,
            c2,
            c3,
            c4,
            c5,
            c6,
            c7,
        ] = rest;
        Self {
            opcode,
            key_len: u16::from_be_bytes([k0, k1]),
            extras_len,
            body_len: u32::from_be_bytes([b0, b1, b2, b3]),
            opaque: u32::from_be_bytes([o0, o1, o2, o3]),
            cas: u64::from_be_bytes([c0, c1, c2, c3, c4, c5, c6, c7]),
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
        let [k0, k1] = self.key_len.to_be_bytes();
        let [s0, s1] = self.status.code().to_be_bytes();
        let [b0, b1, b2, b3] = self.body_len.to_be_bytes();
        let [o0, o1, o2, o3] = self.opaque.to_be_bytes();
        let [c0, c1, c2, c3, c4, c5, c6, c7] = self.cas.to_be_bytes();
        [
            MAGIC_RESPONSE,
            self.opcode,
            k0,
            k1,
            self.extras_len,
            0,
            s0,
            s1,
            b0,
            b1,
            b2,
            b3,
            o0,
            o1,
            o2,
            o3,
            c0,
            c1,
            c2,
            c3,
            c4,
            c5,
            c6,
            c7,
        ]
    }
}
