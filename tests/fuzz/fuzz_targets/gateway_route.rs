//! Methods, paths and queries: no request may panic, and a key names one entry alone.
//!
//! The input is text of up to three lines: method, path, query.
#![no_main]

use fonn_gateway::{Dialect, Operation, route};
use libfuzzer_sys::fuzz_target;

/// The path that names a key, with every byte escaped.
fn path_of(key: &[u8]) -> String {
    let escapes: String = key.iter().map(|byte| format!("%{byte:02x}")).collect();
    format!("/{escapes}")
}

fuzz_target!(|input: &str| {
    let mut lines = input.splitn(3, '\n');
    let method = lines.next().unwrap_or_default();
    let path = lines.next().unwrap_or_default();
    let Ok(found) = route(method, path, lines.next()) else {
        return;
    };
    assert_eq!(
        found.digest.is_some(),
        method != "OPTIONS"
            && match found.dialect {
                Dialect::BazelCas => true,
                Dialect::Actions => found.key.starts_with(b"actions/"),
                _ => false,
            }
    );
    if found.operation == Operation::TellMethods || found.dialect == Dialect::Turborepo {
        return;
    }
    // Escapes are another spelling of the same request.
    assert_eq!(route(method, &path_of(&found.key), None), Ok(found));
});
