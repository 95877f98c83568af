//! Bytes of a connection to frames.

use super::head::{CHECKED_LEN, HEAD_LEN, Head, Kind, checksum};
use super::{FrameError, head};

/// What [`next`] found at the front of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// No whole frame yet: call again when there are at least `total` bytes, counted from the start
    /// of the same frame. Only the head, once its checksum was right, makes `total` large.
    Need {
        /// Bytes needed in all, more than there are.
        total: usize,
    },
    /// A frame whose body is longer than is taken: drop `len` bytes from the stream as they arrive,
    /// its head among them, and refuse the request.
    TooLong {
        /// Its head.
        head: Head,
        /// Length of the whole frame; may exceed what is there.
        len: u64,
    },
    /// A frame, made of the first `len` bytes.
    Frame {
        /// Its head.
        head: Head,
        /// Its body.
        body: &'a [u8],
        /// Length of the whole frame.
        len: usize,
    },
}

/// Takes the next frame of `kind` from the front of `buf`, the unconsumed bytes of a connection.
/// Copies and allocates nothing. Bodies of more than `body_len_max` bytes are not taken.
///
/// # Errors
/// If the bytes are no frame: the connection has to be closed.
#[inline]
pub fn next(kind: Kind, buf: &[u8], body_len_max: u32) -> Result<Step<'_>, FrameError> {
    let Some((head_bytes, rest)) = buf.split_first_chunk::<HEAD_LEN>() else {
        if let Some(&first) = buf.first() {
            kind.check(first)?;
        }
        return Ok(Step::Need { total: HEAD_LEN });
    };
    kind.check(head_bytes[0])?;
    let (head, found) = Head::decode(head_bytes);
    let body_len = head.body_len as usize;
    let len = HEAD_LEN.saturating_add(body_len);
    let checked_len = HEAD_LEN.saturating_add(body_len.min(CHECKED_LEN));
    let Some(checked) = buf.get(..checked_len) else {
        return Ok(Step::Need { total: checked_len });
    };
    let expected = head::checksum(checked, &[]);
    if expected != found {
        return Err(FrameError::Checksum { expected, found });
    }
    if head.body_len > body_len_max {
        return Ok(Step::TooLong {
            head,
            len: len as u64,
        });
    }
    Ok(match rest.get(..body_len) {
        Some(body) => Step::Frame { head, body, len },
        None => Step::Need { total: len },
    })
}

/// Fills in head and checksum of a frame. `frame` begins with room for the head; `payload` is the
/// rest of its body, elsewhere.
pub(super) fn seal(frame: &mut [u8], kind: Kind, head: &Head, payload: &[u8]) {
    if let Some(place) = frame.first_chunk_mut() {
        *place = head.encode(kind);
    }
    let sum = checksum(frame, payload);
    if let Some(place) = frame.get_mut(4..8) {
        place.copy_from_slice(&sum.to_le_bytes());
    }
}
