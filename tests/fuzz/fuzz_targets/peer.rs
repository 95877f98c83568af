//! Any bytes from a peer are followed or refused: no panic, no standstill, no more asked for than a
//! head with a right checksum says; and what is read is written as it came.
#![no_main]

use fonn_proto::Out;
use fonn_proto::peer::hello::Hello;
use fonn_proto::peer::{CHECKED_LEN, HEAD_LEN, Kind, Reply, Request, Step, next};
use libfuzzer_sys::fuzz_target;

const BODY_LEN_MAX: u32 = 4096;

fuzz_target!(|input: (bool, Vec<u8>)| {
    let (is_request, mut bytes) = input;
    let _ = Hello::decode(&bytes);
    let kind = if is_request {
        Kind::Request
    } else {
        Kind::Reply
    };
    mend(kind, &mut bytes);
    let mut rest = bytes.as_slice();
    loop {
        match next(kind, rest, BODY_LEN_MAX) {
            Err(_) => return,
            Ok(Step::Need { total }) => {
                assert!(total > rest.len());
                assert!(total <= HEAD_LEN + (BODY_LEN_MAX as usize).max(CHECKED_LEN));
                return;
            }
            Ok(Step::TooLong { len, .. }) => {
                assert!(len > u64::from(BODY_LEN_MAX));
                let Some(behind) = rest.get(len as usize..) else {
                    return;
                };
                rest = behind;
            }
            Ok(Step::Frame { head, body, len }) => {
                assert_eq!(len, HEAD_LEN + body.len());
                let mut out = Out::new();
                match kind {
                    Kind::Request => {
                        if let Ok(request) = Request::decode(&head, body, None) {
                            let written = request.encode(head.envelope, u32::MAX, None, &mut out);
                            assert!(written.is_ok() && out.len() <= len);
                        }
                    }
                    Kind::Reply => match Reply::decode(&head, body, None) {
                        Ok(Reply::Page(page)) => assert!(page.iter().count() <= body.len()),
                        Ok(reply) => {
                            let written = reply.encode(head.envelope, u32::MAX, &mut out);
                            assert!(written.is_ok() && out.len() <= len);
                        }
                        Err(_) => {}
                    },
                }
                rest = &rest[len..];
            }
        }
    }
});

/// Gives every frame of the stream its right kind and checksum, as far as lengths lead: a fuzzer
/// does not find checksums.
fn mend(kind: Kind, stream: &mut [u8]) {
    let mut start = 0;
    while let Some(frame) = stream.get_mut(start..).filter(|it| it.len() >= HEAD_LEN) {
        frame[0] = if kind == Kind::Request { 0xfb } else { 0xfc };
        // Lengths of two bytes, or no frame would ever be whole.
        frame[14..16].fill(0);
        let body_len = usize::from(u16::from_le_bytes([frame[12], frame[13]]));
        let end = (HEAD_LEN + body_len.min(CHECKED_LEN)).min(frame.len());
        let start_value = u32::from_le_bytes([frame[0], frame[1], frame[2], frame[3]]);
        let sum = crc32c::crc32c_append(start_value, &frame[8..end]);
        frame[4..8].copy_from_slice(&sum.to_le_bytes());
        start += HEAD_LEN + body_len;
    }
}
