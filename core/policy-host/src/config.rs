//! The config of a job over the defaults of the module, checked before the guest sees it.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use jsonschema::error::ValidationErrorKind;
use jsonschema::{ValidationError, Validator};
use serde_json::{Map, Value};

use crate::error::ConfigError;
use crate::registry::nearest;

/// Most distinct configs whose merged form is remembered per policy, and most bytes of them: jobs' owners write both.
const REMEMBERED: usize = 1024;
const REMEMBERED_BYTES: usize = 8 * 1024 * 1024;
/// Longest config of a job, in bytes.
const MAX_CONFIG: usize = 64 * 1024;
/// Most problems named in one message.
const MAX_PROBLEMS: usize = 8;

/// A merged config, or why there is none.
type Merged = Result<Arc<str>, ConfigError>;

/// Merges and checks configs for one policy.
pub(crate) struct Configs {
    defaults: Map<String, Value>,
    /// `None`: the policy takes no config.
    schema: Option<Validator>,
    /// The keys that the schema names.
    keys: Vec<String>,
    /// Jobs ask every period with the same text; what came of it does not change.
    merged: RwLock<Remembered>,
}

#[derive(Default)]
struct Remembered {
    by_text: HashMap<Box<str>, Merged>,
    bytes: usize,
}

impl Remembered {
    fn add(&mut self, text: &str, merged: &Merged) {
        let bytes = text.len() + merged.as_ref().map_or_else(|error| error.0.len(), |merged| merged.len());
        if self.by_text.len() >= REMEMBERED || self.bytes + bytes > REMEMBERED_BYTES {
            *self = Self::default();
        }
        if self.by_text.insert(text.into(), merged.clone()).is_none() {
            self.bytes += bytes;
        }
    }
}

impl Configs {
    /// The error says what is wrong with the schema.
    pub(crate) fn new(schema: &str, defaults: Map<String, Value>) -> Result<Self, String> {
        let (schema, keys) = compile(schema)?.unzip();
        Ok(Self { defaults, schema, keys: keys.unwrap_or_default(), merged: RwLock::default() })
    }

    /// Checks the defaults alone. Keys that the schema requires may be left to the jobs.
    pub(crate) fn check_defaults(&self) -> Result<(), ConfigError> {
        let Some(schema) = &self.schema else {
            return self.check(&Value::Object(self.defaults.clone()));
        };
        let defaults = Value::Object(self.defaults.clone());
        let missing = |error: &ValidationError<'_>| matches!(error.kind(), ValidationErrorKind::Required { .. });
        match schema.iter_errors(&defaults).find(|error| !missing(error)) {
            Some(error) => Err(self.problem(&error)),
            None => Ok(()),
        }
    }

    /// The config that the guest is given for this text.
    pub(crate) fn merge(&self, text: &str) -> Merged {
        if let Some(known) = self.merged.read().unwrap_or_else(PoisonError::into_inner).by_text.get(text) {
            return known.clone();
        }
        let fresh = self.merge_fresh(text).map(Arc::from);
        self.merged.write().unwrap_or_else(PoisonError::into_inner).add(text, &fresh);
        fresh
    }

    fn merge_fresh(&self, text: &str) -> Result<String, ConfigError> {
        if text.len() > MAX_CONFIG {
            return Err(ConfigError(format!("config: {} bytes, but at most {MAX_CONFIG} are allowed", text.len())));
        }
        let given = match text.trim() {
            "" => Value::Object(Map::new()),
            text => serde_json::from_str(text).map_err(|error| ConfigError(format!("config: not JSON: {error}")))?,
        };
        let Value::Object(given) = given else {
            return Err(ConfigError("config: must be an object of keys and values".to_owned()));
        };
        let mut whole = self.defaults.clone();
        lay_over(&mut whole, given);
        let whole = Value::Object(whole);
        self.check(&whole)?;
        Ok(whole.to_string())
    }

    fn check(&self, whole: &Value) -> Result<(), ConfigError> {
        let Some(schema) = &self.schema else {
            let keys: Vec<&str> = whole.as_object().into_iter().flatten().map(|(key, _)| key.as_str()).collect();
            if keys.is_empty() {
                return Ok(());
            }
            return Err(ConfigError(format!("config: this policy takes none, remove {}", keys.join(", "))));
        };
        let problems: Vec<String> =
            schema.iter_errors(whole).take(MAX_PROBLEMS).map(|error| self.problem(&error).0).collect();
        if problems.is_empty() { Ok(()) } else { Err(ConfigError(problems.join("; "))) }
    }

    /// Which key, and what it must be.
    fn problem(&self, error: &ValidationError<'_>) -> ConfigError {
        let path = error.instance_path().to_string().trim_start_matches('/').replace('/', ".");
        ConfigError(match error.kind() {
            ValidationErrorKind::AdditionalProperties { unexpected } if path.is_empty() => {
                unexpected.iter().map(|key| self.no_key(key)).collect::<Vec<_>>().join("; ")
            }
            _ if path.is_empty() => format!("config: {error}"),
            _ => format!("config.{path}: {error}"),
        })
    }

    fn no_key(&self, key: &str) -> String {
        let keys = self.keys.iter().map(String::as_str);
        match nearest(key, keys) {
            Some(near) => format!("config.{key}: there is no such key; did you mean `{near}`?"),
            None => format!("config.{key}: there is no such key; there are: {}", self.keys.join(", ")),
        }
    }
}

/// Compiles the schema that a policy gave, and gives the keys that it names. References to other documents are refused:
/// nothing is ever fetched.
fn compile(schema: &str) -> Result<Option<(Validator, Vec<String>)>, String> {
    if schema.trim().is_empty() {
        return Ok(None);
    }
    let value: Value =
        serde_json::from_str(schema).map_err(|error| format!("a config-schema that is not JSON: {error}"))?;
    if !value.is_object() {
        return Err("a config-schema that is not an object".to_owned());
    }
    crate::schema::check(&value)?;
    let named = value.get("properties").and_then(Value::as_object);
    let keys = named.into_iter().flatten().map(|(key, _)| key.clone()).collect();
    jsonschema::validator_for(&value)
        .map(|validator| Some((validator, keys)))
        .map_err(|error| format!("a config-schema that is not JSON Schema: {error}"))
}

/// Puts `over` on `under`: objects key by key, all else as a whole.
fn lay_over(under: &mut Map<String, Value>, over: Map<String, Value>) {
    for (key, value) in over {
        match (under.get_mut(&key), value) {
            (Some(Value::Object(below)), Value::Object(above)) => lay_over(below, above),
            (_, value) => {
                under.insert(key, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use serde_json::{Value, json};

    use super::Configs;

    fn configs(schema: &str, defaults: Value) -> Configs {
        let Value::Object(defaults) = defaults else { panic!("defaults are an object") };
        Configs::new(schema, defaults).unwrap()
    }

    const SCHEMA: &str = r#"{"type":"object","additionalProperties":false,"properties":{
        "target":{"type":"number","maximum":1},"deep":{"type":"object"}}}"#;

    #[test]
    fn lays_the_job_over_the_module() {
        let configs = configs(SCHEMA, json!({"target": 0.5, "deep": {"a": 1, "b": 2}}));
        let merged: Value = serde_json::from_str(&configs.merge(r#"{"deep":{"b":3}}"#).unwrap()).unwrap();
        assert_eq!(merged, json!({"target": 0.5, "deep": {"a": 1, "b": 3}}));
        // What was merged once may be merged again: callers need not know whether it was.
        assert_eq!(*configs.merge(&merged.to_string()).unwrap(), merged.to_string());
        assert_eq!(&*configs.merge("").unwrap(), &*configs.merge("{}").unwrap());
    }

    #[test]
    fn names_every_problem() {
        let configs = configs(SCHEMA, json!({}));
        let error = configs.merge(r#"{"target": 2, "traget": 1}"#).unwrap_err().to_string();
        assert!(error.contains("config.target: 2"), "{error}");
        assert!(error.contains("config.traget: there is no such key; did you mean `target`?"), "{error}");
        let error = configs.merge(r#"{"colour": "red"}"#).unwrap_err().to_string();
        assert_eq!(error, "config.colour: there is no such key; there are: deep, target");
        assert!(configs.merge("[]").unwrap_err().to_string().contains("object"));
        assert!(configs.merge("{").unwrap_err().to_string().contains("not JSON"));
        assert!(configs.merge(&" ".repeat(70_000)).is_err());
    }

    #[test]
    fn a_policy_without_config_says_so() {
        let configs = configs("", json!({}));
        assert_eq!(&*configs.merge("{}").unwrap(), "{}");
        assert!(configs.merge(r#"{"a":1}"#).unwrap_err().to_string().contains("takes none"));
    }

    #[test]
    fn remembers_a_bounded_amount() {
        let configs = configs(r#"{"type":"object"}"#, json!({}));
        for number in 0..200 {
            configs.merge(&json!({"long": "x".repeat(60_000), "number": number}).to_string()).unwrap();
        }
        let kept = configs.merged.read().unwrap();
        let bytes: usize = kept.by_text.iter().map(|(text, merged)| text.len() + merged.as_ref().unwrap().len()).sum();
        assert_eq!(bytes, kept.bytes);
        assert!(bytes > 0 && bytes <= super::REMEMBERED_BYTES, "{bytes}");
    }

    #[test]
    fn refuses_schemas_that_are_none() {
        for bad in ["{", "[]", r#"{"type": 5}"#, r#"{"$ref": "https://example.com/x.json"}"#] {
            assert!(Configs::new(bad, serde_json::Map::new()).is_err(), "{bad}");
        }
    }
}
