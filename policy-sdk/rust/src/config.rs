//! Typed configs: read from the JSON object of `spec.scalingPolicy.config`, described by their JSON schema.

use schemars::{JsonSchema, generate::SchemaSettings};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use crate::PolicyError;

/// A policy's config. Every type with serde's `Deserialize`, schemars' `JsonSchema` and `Default` is one.
///
/// Use `#[serde(default, deny_unknown_fields, rename_all = "camelCase")]`: each key may then be left out, and a
/// misspelt one is an error that names it.
pub trait Config: DeserializeOwned + JsonSchema + Default {}
impl<T: DeserializeOwned + JsonSchema + Default> Config for T {}

/// The config of a policy that takes none: any key is an error, and the schema is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NoConfig {}

/// Reads a config. The error says of each wrong key what is wrong with it.
pub(crate) fn read<C: Config>(text: &str) -> Result<C, PolicyError> {
    let text = if text.trim().is_empty() { "{}" } else { text };
    let object: Map<String, Value> = serde_json::from_str(text)
        .map_err(|e| PolicyError::InvalidConfig(format!("the config must be a JSON object: {e}")))?;
    C::deserialize(&object).map_err(|error| PolicyError::InvalidConfig(explain::<C>(&error, &object)))
}

/// serde's errors of values do not say which key they are about, so each key is tried alone.
fn explain<C: Config>(error: &serde_json::Error, object: &Map<String, Value>) -> String {
    let mut lines = Vec::new();
    for (key, value) in object {
        let alone = Map::from_iter([(key.clone(), value.clone())]);
        if let Err(error) = C::deserialize(&alone) {
            let text = error.to_string();
            if text.starts_with("missing field") {
                continue;
            }
            lines.push(if text.contains(&format!("`{key}`")) { text } else { format!("config.{key}: {text}") });
        }
    }
    if lines.is_empty() { format!("config: {error}") } else { lines.join("; ") }
}

/// The JSON schema (2020-12) of a config; empty if it has no keys.
pub(crate) fn schema<C: Config>() -> String {
    let schema = SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<C>();
    let keys = schema.get("properties").and_then(Value::as_object).is_some_and(|p| !p.is_empty());
    let free = schema.get("additionalProperties").is_none_or(|a| *a != Value::Bool(false));
    if keys || free { schema.as_value().to_string() } else { String::new() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;

    #[derive(Debug, Deserialize, JsonSchema, PartialEq)]
    #[serde(default, deny_unknown_fields, rename_all = "camelCase")]
    struct Limits {
        /// The most.
        high: u32,
        low_mark: f64,
    }
    impl Default for Limits {
        fn default() -> Self {
            Limits { high: 7, low_mark: 0.5 }
        }
    }

    fn text(error: PolicyError) -> String {
        match error {
            PolicyError::InvalidConfig(text) => text,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn absent_keys_take_the_default() {
        assert_eq!(read::<Limits>("{}").unwrap(), Limits::default());
        assert_eq!(read::<Limits>("").unwrap(), Limits::default());
        assert_eq!(read::<Limits>(r#"{"high":3}"#).unwrap(), Limits { high: 3, low_mark: 0.5 });
    }

    #[test]
    fn every_wrong_key_is_named() {
        let text = text(read::<Limits>(r#"{"high":"x","hihg":1,"lowMark":1}"#).unwrap_err());
        assert!(text.contains("config.high: invalid type: string \"x\", expected u32"), "{text}");
        assert!(text.contains("unknown field `hihg`"), "{text}");
        assert!(!text.contains("lowMark:"), "{text}");
    }

    #[test]
    fn what_is_no_object_is_refused() {
        for bad in ["[]", "3", "{", "null", "\"x\""] {
            assert!(text(read::<Limits>(bad).unwrap_err()).starts_with("the config must be a JSON object"), "{bad}");
        }
    }

    #[test]
    fn the_schema_shows_keys_and_their_texts() {
        let schema: Value = serde_json::from_str(&schema::<Limits>()).unwrap();
        assert_eq!(schema["properties"]["high"]["description"], "The most.");
        assert_eq!(schema["properties"]["high"]["default"], 7);
        assert!(schema["$schema"].as_str().unwrap().contains("2020-12"));
        assert_eq!(super::schema::<NoConfig>(), "");
    }
}
