//! The claims of a token, as texts that conditions compare with.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// What a token says about its subject. The claims of a verified token alone become one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claims(BTreeMap<String, Vec<String>>);

impl Claims {
    /// The claims of a JSON object. A text, a number or a truth value is one text; an array is the
    /// texts of its elements. Claims of other forms are left out.
    pub(crate) fn of(object: Map<String, Value>) -> Self {
        let texts = |value: Value| match value {
            Value::Array(elements) => elements.into_iter().filter_map(text).collect(),
            single => text(single).into_iter().collect::<Vec<_>>(),
        };
        let claims = object.into_iter().map(|(name, value)| (name, texts(value)));
        Self(claims.filter(|(_, texts)| !texts.is_empty()).collect())
    }

    /// The texts of a claim; none if the token has no such claim.
    #[must_use]
    pub fn texts(&self, name: &str) -> &[String] {
        self.0.get(name).map_or(&[], Vec::as_slice)
    }

    /// The text of a claim that has exactly one.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.texts(name) {
            [single] => Some(single),
            _ => None,
        }
    }
}

fn text(value: Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(truth) => Some(truth.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_truth_values_are_texts_and_nested_claims_are_left_out() {
        let object = serde_json::json!({
            "sub": "job", "repository_id": 123, "protected": true, "groups": ["a", 7, null],
            "none": null, "nested": {"sub": "other"}, "empty": [],
        });
        let Value::Object(object) = object else {
            unreachable!()
        };
        let claims = Claims::of(object);
        assert_eq!(claims.text("sub"), Some("job"));
        assert_eq!(claims.text("repository_id"), Some("123"));
        assert_eq!(claims.text("protected"), Some("true"));
        assert_eq!(claims.texts("groups"), ["a", "7"]);
        assert_eq!(claims.text("groups"), None);
        for absent in ["none", "nested", "empty", "other"] {
            assert!(claims.texts(absent).is_empty(), "{absent}");
        }
    }
}
