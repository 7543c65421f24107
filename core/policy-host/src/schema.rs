//! What a config schema may cost. It comes from a guest, and the host runs it: on each config, without fuel.
//!
//! References are what makes a short schema long: twenty definitions that each refer twice to the next are a million
//! checks. So they are counted out before the schema is used, and what can't be counted is refused.

use std::collections::HashMap;

use serde_json::Value;

/// Most parts that the schema may have with all references written out. Schemas of whole products have some hundreds.
const MAX_PARTS: u64 = 10_000;
/// Deepest nesting, through references too.
const MAX_DEPTH: u32 = 200;

/// The error says what the schema has too much of.
pub(crate) fn check(schema: &Value) -> Result<(), String> {
    let mut count = Count { root: schema, known: HashMap::new() };
    let parts = count.parts(schema, 0)?;
    if parts > MAX_PARTS {
        return Err(format!(
            "a config-schema of {parts} parts with its references written out, but at most {MAX_PARTS} are allowed"
        ));
    }
    Ok(())
}

struct Count<'s> {
    root: &'s Value,
    /// The parts behind each reference; `None` while they are being counted.
    known: HashMap<&'s str, Option<u64>>,
}

impl<'s> Count<'s> {
    fn parts(&mut self, value: &'s Value, depth: u32) -> Result<u64, String> {
        if depth > MAX_DEPTH {
            return Err(format!("a config-schema nested deeper than {MAX_DEPTH}, references written out"));
        }
        let mut sum = 1_u64;
        let mut add = |parts: u64| sum = sum.saturating_add(parts);
        match value {
            Value::Array(items) => {
                for item in items {
                    add(self.parts(item, depth + 1)?);
                }
            }
            Value::Object(map) => {
                for (key, inner) in map {
                    add(match (key.as_str(), inner) {
                        ("$ref", Value::String(to)) => self.behind(to, depth)?,
                        // They can make a reference lead elsewhere than it seems to.
                        ("$dynamicRef" | "$recursiveRef" | "$anchor" | "$dynamicAnchor", Value::String(_)) => {
                            return Err(format!("a config-schema with {key}, which is not supported: use $ref"));
                        }
                        ("$id" | "id", Value::String(_)) if depth > 0 => {
                            return Err(format!("a config-schema with a document in it ({key}): use $defs"));
                        }
                        _ => self.parts(inner, depth + 1)?,
                    });
                }
            }
            _ => {}
        }
        Ok(sum)
    }

    fn behind(&mut self, to: &'s str, depth: u32) -> Result<u64, String> {
        let short = || to.chars().take(80).collect::<String>();
        match self.known.get(to) {
            Some(Some(parts)) => return Ok(*parts),
            Some(None) => return Err(format!("a config-schema that refers to itself at {:?}", short())),
            None => {}
        }
        let target = to.strip_prefix('#').and_then(|pointer| self.root.pointer(pointer)).ok_or_else(|| {
            format!("a config-schema with the reference {:?}: it must lead to a part of the schema itself", short())
        })?;
        self.known.insert(to, None);
        let parts = self.parts(target, depth + 1)?;
        self.known.insert(to, Some(parts));
        Ok(parts)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::{Map, Value, json};

    use super::check;

    /// `links` definitions, each of which is made of the next by `step`.
    fn chain(links: u32, step: impl Fn(Value) -> Value) -> Value {
        let mut defs: Map<String, Value> =
            (0..links).map(|at| (format!("d{at}"), step(json!({"$ref": format!("#/$defs/d{}", at + 1)})))).collect();
        defs.insert(format!("d{links}"), json!({"type": "integer"}));
        json!({"properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": defs})
    }

    #[test]
    fn references_are_counted_as_often_as_they_are_used() {
        let doubled = |next: Value| json!({"allOf": [next.clone(), next]});
        check(&chain(8, doubled)).unwrap();
        let error = check(&chain(64, doubled)).unwrap_err();
        assert!(error.contains("references written out") && error.contains("10000"), "{error}");
    }

    #[test]
    fn what_has_no_end_is_refused() {
        let own = json!({"properties": {"child": {"$ref": "#"}}});
        let mutual = json!({"$ref": "#/$defs/a", "$defs": {
            "a": {"anyOf": [{"$ref": "#/$defs/b"}]}, "b": {"not": {"$ref": "#/$defs/a"}}}});
        for schema in [own, mutual] {
            let error = check(&schema).unwrap_err();
            assert!(error.contains("refers to itself"), "{error}");
        }
        let error = check(&chain(5_000, |next| next)).unwrap_err();
        assert!(error.contains("deeper"), "{error}");
    }

    #[test]
    fn what_cannot_be_counted_is_refused() {
        for (schema, says) in [
            (json!({"$ref": "https://example.com/x.json"}), "itself"),
            (json!({"$ref": "#/$defs/gone"}), "itself"),
            (json!({"$dynamicRef": "#x"}), "$dynamicRef"),
            (json!({"properties": {"a": {"$id": "urn:x", "$ref": "#/$defs/b"}}}), "$id"),
        ] {
            let error = check(&schema).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn keys_of_a_config_may_be_called_as_keywords_are() {
        let properties = json!({"id": {"type": "string"}, "$ref": {"type": "string"}, "$id": {"type": "integer"}});
        check(&json!({"$id": "urn:whole", "properties": properties})).unwrap();
    }
}
