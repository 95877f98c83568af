//! Packets of the binary protocol of memcached.

use std::fmt;

/// Length of the header in front of every packet.
pub const HEADER_LEN: usize = 24;

/// Which CAS token a request carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cas {
    None,
    /// The newest token that the server told for the key.
    Last,
    /// The oldest one.
    Old,
    /// A token that no entry has.
    Unused,
}

/// One request.
pub struct Request {
    pub opcode: u8,
    pub extras: Vec<u8>,
    pub key: String,
    pub value: &'static str,
    pub cas: Cas,
    /// The length of the body in the header, where it is not the true one.
    pub body_len: Option<u32>,
}

impl Request {
    pub const fn new(opcode: u8, key: String) -> Self {
        Self {
            opcode,
            extras: Vec::new(),
            key,
            value: "",
            cas: Cas::None,
            body_len: None,
        }
    }

    /// A request without extras, key and value.
    pub const fn bare(opcode: u8) -> Self {
        Self::new(opcode, String::new())
    }

    /// The bytes of the request with this CAS token.
    pub fn encode(&self, cas: u64) -> Vec<u8> {
        let Self {
            opcode,
            extras,
            key,
            value,
            body_len,
            ..
        } = self;
        let len = (extras.len() + key.len() + value.len()) as u32;
        let mut packet = vec![0x80, *opcode];
        packet.extend((key.len() as u16).to_be_bytes());
        packet.extend([extras.len() as u8, 0, 0, 0]);
        packet.extend(body_len.unwrap_or(len).to_be_bytes());
        packet.extend(b"opaq");
        packet.extend(cas.to_be_bytes());
        packet.extend([extras, key.as_bytes(), value.as_bytes()].concat());
        packet
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            opcode,
            extras,
            key,
            value,
            cas,
            body_len,
        } = self;
        write!(
            f,
            "{opcode:#04x} extras {extras:02x?} key {key:?} value {value:?}"
        )?;
        write!(f, " cas {cas:?} body length {body_len:?}")
    }
}

/// One reply.
#[derive(Debug, PartialEq, Eq)]
pub struct Reply {
    pub opcode: u8,
    pub status: u16,
    pub opaque: [u8; 4],
    pub cas: u64,
    pub extras: Vec<u8>,
    pub key: Vec<u8>,
    pub value: Vec<u8>,
}

impl Reply {
    /// Reads the header of a packet and the body behind it; None where its lengths do not fit.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (header, body) = bytes.split_first_chunk::<HEADER_LEN>()?;
        let key_len = usize::from(u16::from_be_bytes([header[2], header[3]]));
        let (extras, rest) = body.split_at_checked(usize::from(header[4]))?;
        let (key, value) = rest.split_at_checked(key_len)?;
        let mut cas = [0; 8];
        cas.copy_from_slice(&header[16..]);
        Some(Self {
            opcode: header[1],
            status: u16::from_be_bytes([header[6], header[7]]),
            opaque: [header[12], header[13], header[14], header[15]],
            cas: u64::from_be_bytes(cas),
            extras: extras.to_vec(),
            key: key.to_vec(),
            value: value.to_vec(),
        })
    }
}
