//! Action results as JSON: the JSON mapping of Protocol Buffers, as moon and bazel-remote use it.
//!
//! Fields that this server does not know are left out, in both directions. Source of the mapping:
//! <https://protobuf.dev/programming-guides/json/>.

use std::sync::OnceLock;

use bytes::Bytes;
use prost::Message as _;
use prost_reflect::{DescriptorPool, DeserializeOptions, DynamicMessage, MessageDescriptor};

/// Length in bytes up to which results are turned from one form into the other: it is done at once,
/// on the thread that serves the connection.
pub const JSON_RESULT_LEN_MAX: usize = 1 << 20;

/// The encoded result as JSON; `None` if it is longer than [`JSON_RESULT_LEN_MAX`] or no result.
#[must_use]
pub fn result_to_json(result: &[u8]) -> Option<String> {
    let is_short = result.len() <= JSON_RESULT_LEN_MAX;
    let message = is_short.then(|| DynamicMessage::decode(descriptor(), result))?;
    serde_json::to_string(&message.ok()?).ok()
}

/// The encoded result that a JSON text stands for; `None` if the text is longer than
/// [`JSON_RESULT_LEN_MAX`] or no result.
#[must_use]
pub fn result_of_json(text: &[u8]) -> Option<Bytes> {
    if text.len() > JSON_RESULT_LEN_MAX {
        return None;
    }
    let mut json = serde_json::Deserializer::from_slice(text);
    let options = DeserializeOptions::new().deny_unknown_fields(false);
    let message = DynamicMessage::deserialize_with_options(descriptor(), &mut json, &options);
    let message = message.ok()?;
    json.end().ok()?;
    Some(Bytes::from(message.encode_to_vec()))
}

fn descriptor() -> MessageDescriptor {
    static DESCRIPTOR: OnceLock<MessageDescriptor> = OnceLock::new();
    let descriptor = DESCRIPTOR.get_or_init(|| {
        let set: &[u8] = include!("gen/result_descriptors.rs");
        let pool = DescriptorPool::decode(set).expect("generated, and a test reads it");
        let message = pool.get_message_by_name("fonn.reapi.json.ActionResult");
        message.expect("generated, and a test reads it")
    });
    descriptor.clone()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages;

    /// What moon 2.5 writes for a task with one output, and the result that it stands for.
    const TEXT: &str = r#"{
        "outputFiles": [{
            "path": "dist/out.txt",
            "digest": { "hash": "aa", "sizeBytes": "8000000" },
            "isExecutable": true,
            "nodeProperties": { "mtime": "2026-01-02T03:04:05.5Z", "unixMode": 420 }
        }],
        "exitCode": 0,
        "stdoutRaw": "aGk=",
        "executionMetadata": { "worker": "w", "virtualExecutionDuration": "1.250s" },
        "ofALaterVersion": [1, 2]
    }"#;

    #[test]
    fn a_result_reads_the_same_in_both_forms() {
        let encoded = result_of_json(TEXT.as_bytes()).unwrap();
        let result = messages::ActionResult::decode(encoded.clone()).unwrap();
        let file = result.output_files[0].digest.as_ref().unwrap();
        assert_eq!((file.hash.as_str(), file.size_bytes), ("aa", 8_000_000));
        assert_eq!(&result.stdout_raw[..], b"hi");
        let text = result_to_json(&encoded).unwrap();
        assert_eq!(
            text,
            "{\"outputFiles\":[{\"path\":\"dist/out.txt\",\"digest\":{\"hash\":\"aa\",\
             \"sizeBytes\":\"8000000\"},\"isExecutable\":true,\"nodeProperties\":{\"mtime\":\
             \"2026-01-02T03:04:05.500Z\",\"unixMode\":420}}],\"stdoutRaw\":\"aGk=\",\
             \"executionMetadata\":{\"worker\":\"w\",\"virtualExecutionDuration\":\"1.250s\"}}"
        );
        assert_eq!(result_of_json(text.as_bytes()).unwrap(), encoded);
    }

    #[test]
    fn names_of_the_proto_file_are_read_as_well() {
        let text = br#"{"stdout_digest": {"hash": "bb", "size_bytes": 3}}"#;
        let encoded = result_of_json(text).unwrap();
        let result = messages::ActionResult::decode(encoded).unwrap();
        assert_eq!(result.stdout_digest.unwrap().size_bytes, 3);
    }

    #[test]
    fn what_is_no_result_has_no_other_form() {
        for text in [
            "",
            "[]",
            "{\"exitCode\": \"x\"}",
            "{} {}",
            "{\"outputFiles\": 3}",
        ] {
            assert_eq!(result_of_json(text.as_bytes()), None, "{text}");
        }
        assert_eq!(result_to_json(TEXT.as_bytes()), None);
        let long = [b"{}".as_slice(), &vec![b' '; JSON_RESULT_LEN_MAX]].concat();
        assert_eq!(result_of_json(&long), None);
        assert!(result_of_json(&long[..JSON_RESULT_LEN_MAX]).is_some());
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_break_it(bytes: Vec<u8>) {
            let _ = result_to_json(&bytes);
            let _ = result_of_json(&bytes);
        }
    }
}
