use proptest::prelude::*;
use prost::Message as _;

use super::*;
use crate::frame;
use crate::messages::WriteRequest;

/// Requests with their data, and whether the body ends behind one.
type Requests = (Vec<(WriteEnd, Vec<u8>)>, bool);

/// The requests of a body that comes in pieces of `step` bytes.
fn requests(body: &[u8], step: usize) -> Result<Requests, ReapiError> {
    let (mut upload, mut found, mut data) = (Upload::default(), Vec::new(), Vec::new());
    for piece in body.chunks(step.max(1)) {
        upload.push(Bytes::copy_from_slice(piece));
        loop {
            match upload.pull()? {
                UploadPart::Data(bytes) => data.extend_from_slice(&bytes),
                UploadPart::End(end) => found.push((end, std::mem::take(&mut data))),
                UploadPart::More => break,
            }
        }
    }
    Ok((found, upload.is_between_messages()))
}

fn framed(message: &[u8]) -> Vec<u8> {
    [&[0][..], &(message.len() as u32).to_be_bytes(), message].concat()
}

fn is_malformed(message: &[u8]) -> bool {
    matches!(
        requests(&framed(message), usize::MAX),
        Err(ReapiError::Upload { .. })
    )
}

#[test]
fn data_are_handed_on_before_their_message_is_whole_and_are_not_copied() {
    let request = WriteRequest {
        data: Bytes::from(vec![7; 1000]),
        ..WriteRequest::default()
    };
    let body = frame(&request);
    let mut upload = Upload::default();
    upload.push(body.slice(..500));
    let UploadPart::Data(data) = upload.pull().unwrap() else {
        panic!("no data");
    };
    assert_eq!(data.as_ptr_range().end, body[..500].as_ptr_range().end);
    assert_eq!(upload.pull(), Ok(UploadPart::More));
    assert!(!upload.is_between_messages());
    upload.push(body.slice(500..));
    assert!(matches!(upload.pull(), Ok(UploadPart::Data(rest)) if rest.len() + data.len() == 1000));
    assert_eq!(upload.pull(), Ok(UploadPart::End(WriteEnd::default())));
    assert_eq!(upload.pull(), Ok(UploadPart::More));
    assert!(upload.is_between_messages());
}

#[test]
fn other_fields_are_skipped_and_the_last_of_a_field_counts() {
    // 4: a varint, 5: eight bytes, 6: four, 7: three.
    let others = [
        &[4 << 3, 200, 1][..],
        &[5 << 3 | 1, 0, 0, 0, 0, 0, 0, 0, 0],
        &[6 << 3 | 5, 0, 0, 0, 0],
        &[7 << 3 | 2, 3, 0, 0, 0],
        &[2 << 3, 5, 2 << 3, 6],
        &[1 << 3 | 2, 1, b'a', 1 << 3 | 2, 1, b'b'],
    ];
    for step in [1, 2, 3, usize::MAX] {
        let (found, is_whole) = requests(&framed(&others.concat()), step).unwrap();
        let end = WriteEnd {
            resource_name: Bytes::from_static(b"b"),
            write_offset: 6,
            finish_write: false,
        };
        assert_eq!((found, is_whole), (vec![(end, Vec::new())], true));
    }
}

#[test]
fn what_is_no_request_is_refused() {
    for message in [
        &[10 << 3 | 2, 1, 0, 10 << 3 | 2, 1, 0][..],
        &[10 << 3 | 2, 2, 0],
        &[10 << 3, 1],
        &[2 << 3 | 2, 0],
        &[1 << 3 | 1, 0, 0, 0, 0, 0, 0, 0, 0],
        &[4 << 3 | 3],
        &[0, 0],
        &[0xff; 11],
        &[
            2 << 3,
            0xff,
            0xff,
            0xff,
            0xff,
            0xff,
            0xff,
            0xff,
            0xff,
            0xff,
            2,
        ],
        &[1 << 3 | 2, 0x81, 0x20],
    ] {
        assert!(is_malformed(message), "{message:?}");
    }
    // A field that ends behind its message.
    let body = [&[0, 0, 0, 0, 1, 2 << 3][..], &[5]].concat();
    assert!(requests(&body, 1).is_err());
    let error = requests(&[1, 0, 0, 0, 0], 5).unwrap_err();
    assert_eq!(error, ReapiError::CompressedMessage);
}

proptest! {
    #[test]
    fn requests_come_out_however_the_body_is_cut(
        sent in prop::collection::vec(
            (".{0,20}", any::<i64>(), any::<bool>(), prop::collection::vec(any::<u8>(), 0..300)),
            0..6,
        ),
        step in 1..400_usize,
    ) {
        let (mut body, mut expected) = (Vec::new(), Vec::new());
        for (resource_name, write_offset, finish_write, data) in sent {
            let end = WriteEnd {
                resource_name: Bytes::from(resource_name.clone()),
                write_offset,
                finish_write,
            };
            expected.push((end, data.clone()));
            let data = Bytes::from(data);
            let request = WriteRequest { resource_name, write_offset, finish_write, data };
            body.extend_from_slice(&frame(&request));
        }
        prop_assert_eq!(requests(&body, step), Ok((expected, true)));
    }

    #[test]
    fn any_message_is_read_as_its_library_reads_it_or_refused(
        message in prop::collection::vec(prop::sample::select(vec![
            0_u8, 1, 2, 3, 8, 10, 16, 24, 26, 80, 82, 128, 255,
        ]), 0..24),
        step in 1..30_usize,
    ) {
        let body = framed(&message);
        let Ok((found, is_whole)) = requests(&body, step) else {
            return Ok(());
        };
        prop_assert!(is_whole);
        let decoded = WriteRequest::decode(&message[..]);
        if let Ok(decoded) = decoded {
            let (end, data) = &found[0];
            prop_assert_eq!(&decoded.data, data);
            prop_assert_eq!(decoded.write_offset, end.write_offset);
            prop_assert_eq!(decoded.finish_write, end.finish_write);
            prop_assert_eq!(decoded.resource_name.as_bytes(), &end.resource_name[..]);
        }
    }
}
