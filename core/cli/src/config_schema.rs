//! What a config's JSON schema says of each key, in the words of a table.

use serde_json::{Map, Value};

/// Heads of the columns of `rows`.
pub(crate) const HEADS: [&str; 5] = ["key", "type", "allowed", "default", "meaning"];

/// The properties of a schema, one row each. What a key may hold is looked up where the schema only points to it.
pub(crate) fn rows(schema: &Value) -> Vec<Vec<String>> {
    let properties = schema.get("properties").and_then(Value::as_object);
    let row = |(key, given): (&String, &Value)| {
        let forms = forms(schema, given, 0);
        let meaning = given.get("description").or_else(|| forms.iter().find_map(|f| f.get("description")));
        let default = given.get("default").filter(|d| !d.is_null()).map(word).unwrap_or_default();
        vec![key.clone(), types(&forms), allowed(&forms), default, meaning.map(word).unwrap_or_default()]
    };
    properties.into_iter().flatten().map(row).collect()
}

/// Deepest chain of references that is followed; one that points to itself ends here.
const DEEPEST: u8 = 8;

/// What a schema allows: itself, what it refers to, or each of its alternatives.
fn forms<'a>(root: &'a Value, schema: &'a Value, depth: u8) -> Vec<&'a Map<String, Value>> {
    let Some(object) = schema.as_object().filter(|_| depth < DEEPEST) else { return Vec::new() };
    if let Some(Value::String(reference)) = object.get("$ref") {
        let target = reference.strip_prefix('#').and_then(|pointer| root.pointer(pointer));
        return target.map(|target| forms(root, target, depth + 1)).unwrap_or_default();
    }
    let alternatives = ["oneOf", "anyOf", "allOf"].iter().find_map(|word| object.get(*word)?.as_array());
    match alternatives {
        Some(all) => all.iter().flat_map(|one| forms(root, one, depth + 1)).collect(),
        None => vec![object],
    }
}

fn types(forms: &[&Map<String, Value>]) -> String {
    let of = |form: &&Map<String, Value>| match form.get("type") {
        Some(Value::Array(several)) => several.iter().map(word).collect(),
        Some(one) => vec![word(one)],
        None => Vec::new(),
    };
    joined(forms.iter().flat_map(of), " or ")
}

/// Words that may be written, or the range of a number, or the form of a text.
fn allowed(forms: &[&Map<String, Value>]) -> String {
    let of = |form: &&Map<String, Value>| {
        let words: Vec<String> = match (form.get("const"), form.get("enum").and_then(Value::as_array)) {
            (Some(one), _) => vec![word(one)],
            (None, Some(several)) => several.iter().map(word).collect(),
            (None, None) => Vec::new(),
        };
        let range = [("minimum", ">="), ("exclusiveMinimum", ">"), ("maximum", "<="), ("exclusiveMaximum", "<")]
            .iter()
            .filter_map(|(key, sign)| form.get(*key).map(|bound| format!("{sign} {}", word(bound))));
        let range = joined(range, ", ");
        let pattern = form.get("pattern").map(|p| format!("/{}/", word(p)));
        words.into_iter().chain(Some(range).filter(|r| !r.is_empty())).chain(pattern).collect::<Vec<_>>()
    };
    joined(forms.iter().flat_map(of), " | ")
}

fn joined(words: impl Iterator<Item = String>, by: &str) -> String {
    let mut all: Vec<String> = Vec::new();
    for word in words.filter(|word| word != "null") {
        if !all.contains(&word) {
            all.push(word);
        }
    }
    all.join(by)
}

/// A value on one line, text without its quotes.
fn word(value: &Value) -> String {
    match value {
        Value::String(text) => text.replace('\n', " "),
        Value::Number(number) => number.as_f64().map_or_else(|| number.to_string(), |n| n.to_string()),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn row(key: &Value, definitions: &Value) -> Vec<String> {
        rows(&json!({"properties": {"k": key}, "$defs": definitions})).remove(0)
    }

    #[test]
    fn what_a_key_may_hold_is_told_wherever_the_schema_says_it() {
        let none = json!({});
        let modes = json!({"Mode": {"description": "Which way.", "oneOf": [
            {"type": "string", "const": "up", "description": "Up."}, {"type": "string", "enum": ["down", "off"]}]}});
        for (key, definitions, want) in [
            (json!({"$ref": "#/$defs/Mode", "default": "up"}), &modes, ["string", "up | down | off", "up", ""]),
            (
                json!({"anyOf": [{"$ref": "#/$defs/Mode"}, {"type": "null"}]}),
                &modes,
                ["string", "up | down | off", "", ""],
            ),
            (
                json!({"type": "integer", "minimum": 0.0, "maximum": 100, "default": 5, "description": "How\nmany."}),
                &none,
                ["integer", ">= 0, <= 100", "5", "How many."],
            ),
            (json!({"type": ["number", "null"], "exclusiveMinimum": 0.5}), &none, ["number", "> 0.5", "", ""]),
            (json!({"type": "string", "pattern": "^a+$"}), &none, ["string", "/^a+$/", "", ""]),
            (json!({"type": "boolean", "default": false}), &none, ["boolean", "", "false", ""]),
        ] {
            let got = row(&key, definitions);
            let meaning = if want[3].is_empty() { &got[4] } else { want[3] };
            assert_eq!(got[1..], [want[0], want[1], want[2], meaning], "{key}");
        }
    }

    #[test]
    fn a_schema_that_points_to_itself_or_nowhere_or_is_none_is_shown_without() {
        let loops = json!({"A": {"$ref": "#/$defs/A"}});
        assert_eq!(row(&json!({"$ref": "#/$defs/A", "description": "d"}), &loops), ["k", "", "", "", "d"]);
        assert_eq!(row(&json!({"$ref": "#/$defs/B"}), &loops), ["k", "", "", "", ""]);
        assert_eq!(row(&json!(true), &loops), ["k", "", "", "", ""]);
        assert!(rows(&json!({"type": "object"})).is_empty());
        assert!(rows(&Value::Null).is_empty());
    }
}
