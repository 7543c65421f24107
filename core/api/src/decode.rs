//! Decoding that says where a value does not fit, in plain words.

use std::fmt;

use serde::de::DeserializeOwned;
use serde_json::Value;

/// A value that is not what its place asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfit {
    /// `spec.template.spec.containers[0].name`; empty for a document as a whole.
    pub path: String,
    /// What must be there and what is, without the value.
    pub why: String,
}

impl Misfit {
    /// `inner`: the path below `root` as a decoder tells it, `.` for the root itself.
    pub(crate) fn of(root: &str, inner: &str, why: &str) -> Misfit {
        let path = match inner {
            "." => root.to_owned(),
            inner if root.is_empty() || inner.starts_with('[') => format!("{root}{inner}"),
            inner => format!("{root}.{inner}"),
        };
        Misfit { path, why: without_value(why) }
    }
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() { f.write_str(&self.why) } else { write!(f, "{}: {}", self.path, self.why) }
    }
}

/// Decodes the value at the path `root` of a document; an empty `root` is the document.
///
/// # Errors
/// Where it does not fit, and why.
pub fn decode<T: DeserializeOwned>(root: &str, value: &Value) -> Result<T, Misfit> {
    serde_path_to_error::deserialize(value).map_err(|e| Misfit::of(root, &e.path().to_string(), &e.inner().to_string()))
}

/// What a decoder says of a value of the wrong type, in plain words and without the value: a password that was written in
/// the wrong place must not be read by everybody who may read a status.
pub(crate) fn without_value(why: &str) -> String {
    let told = why.strip_prefix("invalid type: ").or_else(|| why.strip_prefix("invalid value: "));
    let Some((found, expected)) = told.and_then(|t| t.rsplit_once(", expected ")) else { return why.to_owned() };
    let kind = found.split(['"', '`']).next().unwrap_or_default().trim();
    let kind = match kind {
        "string" | "byte array" => "a string",
        "integer" | "floating point" => "a number",
        "boolean" => "true or false",
        "sequence" => "a list",
        "map" => "a map",
        "null" | "unit value" => "empty",
        _ => "something else",
    };
    let expected = expected.split(" at line ").next().unwrap_or_default();
    let is_whole = |kind: char| expected.strip_prefix(kind).is_some_and(|bits| bits.parse::<u8>().is_ok());
    // "is a number" would not say what is wrong with it.
    let kind = match (kind, is_whole('u') || is_whole('i')) {
        ("a number", true) if found.starts_with("floating") => "one with a fraction",
        ("a number", true) => "one out of range",
        (kind, _) => kind,
    };
    let expected = match expected {
        "a sequence" => "a list",
        "a string" => "text, in quotes",
        "a boolean" => "true or false",
        "f32" | "f64" => "a number",
        _ if is_whole('u') => "a whole number, 0 or more",
        _ if is_whole('i') => "a whole number",
        // The names of our types say nothing to who writes a file.
        named if named.starts_with("struct ") || named.contains("tagged enum ") => "a map",
        other => other,
    };
    format!("must be {expected}, and is {kind}")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_not_told() {
        for (why, told) in [
            (r#"invalid type: string "hunter2, expected x", expected a sequence"#, "must be a list, and is a string"),
            (r#"invalid type: string "2", expected i64"#, "must be a whole number, and is a string"),
            ("invalid type: integer `991234567`, expected a string", "must be text, in quotes, and is a number"),
            (
                "invalid type: floating point `1.5`, expected u32 at line 1 column 3",
                "must be a whole number, 0 or more, and is one with a fraction",
            ),
            ("invalid value: integer `-1`, expected u64", "must be a whole number, 0 or more, and is one out of range"),
            ("invalid value: integer `3000000000`, expected i32", "must be a whole number, and is one out of range"),
            ("invalid value: string \"s3cret\", expected RFC3339", "must be RFC3339, and is a string"),
            ("invalid type: integer `5`, expected struct ElasticJobSpec", "must be a map, and is a number"),
            ("invalid type: sequence, expected internally tagged enum Metric", "must be a map, and is a list"),
            ("missing field `name`", "missing field `name`"),
        ] {
            assert_eq!(without_value(why), told);
        }
    }

    #[test]
    fn the_place_is_a_path_from_the_root() {
        #[derive(Debug, Deserialize)]
        struct Item {
            #[allow(dead_code)]
            n: u8,
        }
        let told = |root: &str, value| decode::<Vec<Item>>(root, &value).unwrap_err().to_string();
        assert_eq!(
            told("spec.items", json!([{"n": "x"}])),
            "spec.items[0].n: must be a whole number, 0 or more, and is a string"
        );
        assert_eq!(told("", json!([{"n": 1}, {"n": []}])), "[1].n: must be a whole number, 0 or more, and is a list");
        assert_eq!(told("spec.items", json!(true)), "spec.items: must be a list, and is true or false");
        assert_eq!(told("", json!(true)), "must be a list, and is true or false");
        assert_eq!(Misfit::of("spec", "a.b", "no").path, "spec.a.b");
    }
}
