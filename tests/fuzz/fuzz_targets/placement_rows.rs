//! Any bytes are the owners of slots, or are refused: no panic; and what is read is written as it
//! came.
#![no_main]

use fonn_proto::placement::SLOT_COUNT;
use fonn_proto::placement::rows::{self, RowsError};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    // The slots that the input does not reach have no owners.
    let mut bytes = input.to_vec();
    bytes.resize(input.len() + usize::from(SLOT_COUNT), 0);
    if let Err(RowsError::Rest { len }) = rows::decode(&bytes) {
        bytes.truncate(bytes.len() - len);
        let rows = rows::decode(&bytes).expect("nothing follows the last slot");
        assert_eq!(rows::encode(rows), bytes);
    }
});
