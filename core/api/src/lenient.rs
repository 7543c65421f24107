//! Decoding that never fails, for types whose objects arrive in lists.
//!
//! The types derive their (strict) decoding as inherent functions with serde's `remote = "Self"`; the trait
//! implementations here call those on a JSON value and turn a failure into data.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use serde_path_to_error::{Deserializer as PathDeserializer, Track};

use crate::{ElasticJobSpec, ElasticJobStatus};

/// `spec.replicas: must be a whole number, and is a string`
fn told(root: &str, track: Track, why: &serde_json::Error) -> String {
    let path = track.path().to_string();
    let why = without_value(&why.to_string());
    if path == "." { format!("{root}: {why}") } else { format!("{root}.{path}: {why}") }
}

/// What a decoder says of a value of the wrong type, in plain words and without the value: a password that was written in
/// the wrong place must not be read by everybody who may read a status.
pub fn without_value(why: &str) -> String {
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
    let expected = match expected.split(" at line ").next().unwrap_or_default() {
        "a sequence" => "a list",
        "a string" => "text, in quotes",
        "a boolean" => "true or false",
        "f32" | "f64" => "a number",
        whole if whole.trim_start_matches(['i', 'u']).parse::<u8>().is_ok() => "a whole number",
        // The names of our types say nothing to who writes a file.
        named if named.starts_with("struct ") || named.contains("tagged enum ") => "a map",
        other => other,
    };
    format!("must be {expected}, and is {kind}")
}

impl<'de> Deserialize<'de> for ElasticJobSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let mut track = Track::new();
        Ok(ElasticJobSpec::deserialize(PathDeserializer::new(value, &mut track)).unwrap_or_else(|why| ElasticJobSpec {
            undecodable: Some(told("spec", track, &why)),
            ..ElasticJobSpec::default()
        }))
    }
}

impl Serialize for ElasticJobSpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        ElasticJobSpec::serialize(self, serializer)
    }
}

impl<'de> Deserialize<'de> for ElasticJobStatus {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let mut track = Track::new();
        Ok(ElasticJobStatus::deserialize(PathDeserializer::new(value, &mut track)).unwrap_or_else(|why| {
            ElasticJobStatus { undecodable: Some(told("status", track, &why)), ..ElasticJobStatus::default() }
        }))
    }
}

impl Serialize for ElasticJobStatus {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        ElasticJobStatus::serialize(self, serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_not_told() {
        for (why, told) in [
            (r#"invalid type: string "hunter2, expected x", expected a sequence"#, "must be a list, and is a string"),
            (r#"invalid type: string "2", expected i64"#, "must be a whole number, and is a string"),
            ("invalid type: integer `991234567`, expected a string", "must be text, in quotes, and is a number"),
            (
                "invalid type: floating point `1.5`, expected u32 at line 1 column 3",
                "must be a whole number, and is a number",
            ),
            ("invalid value: string \"s3cret\", expected RFC3339", "must be RFC3339, and is a string"),
            ("invalid type: integer `5`, expected struct ElasticJobSpec", "must be a map, and is a number"),
            ("invalid type: sequence, expected internally tagged enum Metric", "must be a map, and is a list"),
            ("missing field `name`", "missing field `name`"),
        ] {
            assert_eq!(without_value(why), told);
        }
    }
}
