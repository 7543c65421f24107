//! What a policy is expected to answer: the one meaning of `expect` in the fixtures of the SDK and in the golden cases that
//! the operator asks before it serves a module.
//!
//! - A field of the decision has the value that is given for it. Of an object only the keys that are given count; numbers
//!   are compared by value; a field that the decision leaves out is null.
//! - `reasons` are the first of those given, as codes or as objects with some of their fields.
//! - `error` has one kind of failure, with a part of its text.

use serde_json::{Map, Value};

/// What a policy answered: the decision as JSON, or the kind and the text of the failure.
pub type Answered = Result<Value, (String, String)>;

/// Whether an answer is as expected.
///
/// # Errors
/// The first difference: what was wanted, and what there is. Nothing expected is an error too: it could not fail.
pub fn hold(expect: &Map<String, Value>, answer: &Answered) -> Result<(), String> {
    if expect.is_empty() {
        return Err("`expect` is empty, so the case could not fail".to_owned());
    }
    let error = expect.get("error").and_then(Value::as_object).and_then(|e| e.iter().next());
    match (error, answer) {
        (Some((kind, part)), Err((got, text))) => {
            let part = part.as_str().unwrap_or_default();
            let same = kind == got && text.contains(part);
            if same { Ok(()) } else { Err(format!("wanted the error {kind} with {part:?}, got {got}: {text}")) }
        }
        (Some((kind, _)), Ok(decision)) => Err(format!("wanted the error {kind}, got {decision}")),
        (None, Err((kind, text))) => Err(format!("wanted an answer, got {kind}: {text}")),
        (None, Ok(decision)) => expect.iter().try_for_each(|(key, wanted)| {
            let got = decision.get(key).unwrap_or(&Value::Null);
            let same = if key == "reasons" { leads(wanted, got) } else { matches(wanted, got) };
            if same { Ok(()) } else { Err(format!("wanted {key} {wanted}, got {got}")) }
        }),
    }
}

/// The reasons wanted are the first of those given.
fn leads(wanted: &Value, got: &Value) -> bool {
    let mut given = got.as_array().into_iter().flatten();
    let same = |wanted: &Value, got: &Value| match wanted {
        Value::String(_) => got.get("code") == Some(wanted),
        fields => matches(fields, got),
    };
    wanted.as_array().is_some_and(|all| all.iter().all(|wanted| given.next().is_some_and(|got| same(wanted, got))))
}

fn matches(wanted: &Value, got: &Value) -> bool {
    match (wanted, got) {
        (Value::Object(w), Value::Object(g)) => w.iter().all(|(k, v)| g.get(k).is_some_and(|g| matches(v, g))),
        (Value::Array(w), Value::Array(g)) => w.len() == g.len() && w.iter().zip(g).all(|(w, g)| matches(w, g)),
        (Value::Number(w), Value::Number(g)) => w.as_f64() == g.as_f64(),
        _ => wanted == got,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_expected_is_a_part_of_what_is_said() {
        let said: Answered = Ok(json!({"target": 3, "reasons": [{"code": "Busy", "value": 0.9}, {"code": "Bound"}]}));
        let holds = |expect: Value| hold(expect.as_object().unwrap(), &said);
        for good in [
            json!({"target": 3.0}),
            json!({"reasons": ["Busy"]}),
            json!({"target": 3, "reasons": [{"value": 0.9}, "Bound"]}),
            json!({"state": null}),
        ] {
            assert_eq!(holds(good.clone()), Ok(()), "{good}");
        }
        for bad in [json!({"target": null}), json!({"reasons": ["Bound"]}), json!({"error": {"Trap": ""}}), json!({})] {
            assert!(holds(bad.clone()).is_err(), "{bad}");
        }
        let failed: Answered = Err(("InvalidConfig".into(), "no key `hihg`".into()));
        let holds = |expect: Value| hold(expect.as_object().unwrap(), &failed).is_ok();
        assert!(holds(json!({"error": {"InvalidConfig": "hihg"}})));
        assert!(!holds(json!({"error": {"Trap": "hihg"}})) && !holds(json!({"target": 3})));
    }
}
