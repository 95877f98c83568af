//! Placeholders in names of namespaces: `acme-pr-{ref}` has one overlay for each value of the claim
//! `ref`.

use fonn_proto::overlay::OVERLAY_ID_LEN;
use ring::digest::{Context, SHA256};

/// Names an overlay among those of all issuers and namespaces.
pub(super) type OverlayId = [u8; OVERLAY_ID_LEN];

/// Whether a name has placeholders, or would have if they were well formed.
pub(super) fn has_placeholders(name: &str) -> bool {
    name.contains(['{', '}'])
}

/// The claims that a name has placeholders for, in their order.
///
/// # Errors
/// What would be accepted.
pub(super) fn claims_of(name: &str) -> Result<Vec<&str>, String> {
    let mut claims = Vec::new();
    let mut rest = name;
    loop {
        let Some((before, behind)) = rest.split_once('{') else {
            return match rest.contains('}') {
                true => Err(malformed(name)),
                false => Ok(claims),
            };
        };
        let (claim, after) = behind.split_once('}').ok_or_else(|| malformed(name))?;
        if before.contains('}') || claim.is_empty() || claim.contains('{') {
            return Err(malformed(name));
        }
        claims.push(claim);
        rest = after;
    }
}

fn malformed(name: &str) -> String {
    format!(
        "the namespace `{name}` is not accepted: expected a placeholder with the name of a claim, like `{{ref}}`"
    )
}

/// The id of the overlay of an issuer's identity, in a namespace whose placeholders stand for
/// `values`.
///
/// It is of the values and not of the name that they make: `{a}-{b}` makes `1-2-3` of `1` and
/// `2-3`, and of `1-2` and `3`.
pub(super) fn overlay_id(issuer: &str, namespace: &str, values: &[&str]) -> OverlayId {
    let mut digest = Context::new(&SHA256);
    digest.update(b"fonn overlay\0");
    for field in [issuer, namespace].iter().chain(values) {
        digest.update(&(field.len() as u64).to_le_bytes());
        digest.update(field.as_bytes());
    }
    let mut id = [0; OVERLAY_ID_LEN];
    id.copy_from_slice(&digest.finish().as_ref()[..OVERLAY_ID_LEN]);
    id
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_placeholder_is_the_name_of_a_claim_in_braces() {
        assert_eq!(claims_of("acme").unwrap(), [""; 0]);
        assert_eq!(claims_of("acme-{ref}").unwrap(), ["ref"]);
        let two = claims_of("{repository_id}/{ref}").unwrap();
        assert_eq!(two, ["repository_id", "ref"]);
        assert_eq!(claims_of("{https://x.example/pr}").unwrap().len(), 1);
        for wrong in ["{", "}", "a{}", "a{b", "a}b", "{a}}", "{{a}", "}{", "{a}b}"] {
            let error = claims_of(wrong).expect_err(wrong);
            assert_eq!(
                error,
                format!(
                    "the namespace `{wrong}` is not accepted: expected a placeholder with the name of a claim, like `{{ref}}`"
                )
            );
        }
    }

    #[test]
    fn an_overlay_has_the_same_id_everywhere_and_for_ever() {
        // Entries in buckets depend on it.
        let id = overlay_id("https://ci.example", "pr-{ref}", &["refs/pull/7/merge"]);
        let hex = id.map(|byte| format!("{byte:02x}")).concat();
        assert_eq!(hex, "67cd5da80b6ced84f31d0f229be22714");
    }

    proptest! {
        /// Fields of the shortest texts, so that different ones are often the same when they are
        /// put together.
        #[test]
        fn what_differs_in_any_field_has_another_id(
            all in prop::collection::vec(
                ("[ab]{0,2}", "[ab]{0,2}", prop::collection::vec("[ab]{0,2}", 0..3)), 2..20),
        ) {
            let mut known = HashMap::new();
            for fields in &all {
                let (issuer, namespace, values) = fields;
                let values: Vec<&str> = values.iter().map(String::as_str).collect();
                let id = overlay_id(issuer, namespace, &values);
                prop_assert_eq!(*known.entry(id).or_insert(fields), fields);
            }
        }
    }
}
