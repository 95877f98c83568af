//! Bodies of `ByteStream.Write`: no bytes may panic, and requests come out however the body is cut.
#![no_main]

use fonn_reapi::{Upload, UploadPart, WriteEnd};
use libfuzzer_sys::fuzz_target;

/// The requests with their data, and whether the body is one.
fn requests(body: &[u8], step: usize) -> (Vec<(WriteEnd, Vec<u8>)>, bool) {
    let (mut upload, mut found, mut data) = (Upload::default(), Vec::new(), Vec::new());
    for piece in body.chunks(step) {
        upload.push(piece.to_vec().into());
        loop {
            match upload.pull() {
                Ok(UploadPart::Data(bytes)) => data.extend_from_slice(&bytes),
                Ok(UploadPart::End(end)) => found.push((end, std::mem::take(&mut data))),
                Ok(UploadPart::More) => break,
                Err(_) => return (found, false),
            }
        }
    }
    (found, upload.is_between_messages())
}

fuzz_target!(|input: &[u8]| {
    let whole = requests(input, usize::MAX);
    for step in [1, 7] {
        assert_eq!(whole, requests(input, step));
    }
});
