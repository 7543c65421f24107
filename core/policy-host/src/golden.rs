//! Golden cases: inputs beside a module with what it must answer to them. A version that answers otherwise is not served.

use eto_engine::contract::{PlacementInput, ScalingInput};
use eto_engine::policy::{Asked, PlacementPolicy, ScalingPolicy};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::LoadError;
use crate::policy::{Policy, PolicyKind};

/// Most cases of one module: they are run each time that it is loaded.
const MAX_CASES: usize = 256;

/// One case.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Case {
    name: String,
    /// The argument, whole, as `eto policy eval` takes it.
    input: Value,
    /// Fields of the decision with what they must be, or `error` with a kind and a part of its text.
    expect: Map<String, Value>,
}

/// The cases of a file's text.
pub(crate) fn read(text: &str) -> Result<Vec<Case>, String> {
    let cases: Vec<Case> = serde_json::from_str(text).map_err(|e| e.to_string())?;
    if cases.len() > MAX_CASES {
        return Err(format!("{} cases, at most {MAX_CASES}", cases.len()));
    }
    match cases.iter().find(|case| case.expect.is_empty()) {
        Some(case) => Err(format!("the case {:?} expects nothing, so it could not fail", case.name)),
        None => Ok(cases),
    }
}

/// Asks the policy each case. The error is the first one that it answers otherwise.
pub(crate) fn run(policy: &Policy, cases: &[Case]) -> Result<(), LoadError> {
    for case in cases {
        let said = match policy.kind() {
            PolicyKind::Scaling => ask(case, |input: &ScalingInput| policy.evaluate(input)),
            PolicyKind::Placement => ask(case, |input: &PlacementInput| policy.place(input)),
        };
        said.and_then(|said| hold(&case.expect, &said))
            .map_err(|detail| LoadError::GoldenFailed { case: short(&case.name), detail: short(&detail) })?;
    }
    Ok(())
}

/// The decision as JSON, or the kind and the text of the failure.
type Said = Result<Value, (String, String)>;

fn ask<I: DeserializeOwned, D: Serialize>(case: &Case, ask: impl FnOnce(&I) -> Asked<D>) -> Result<Said, String> {
    let input = serde_path_to_error::deserialize(&case.input).map_err(|e| format!("its input can't be read: {e}"))?;
    match ask(&input) {
        Ok(answer) => serde_json::to_value(answer.value).map(Ok).map_err(|e| e.to_string()),
        Err(failure) => Ok(Err((format!("{:?}", failure.kind), failure.message))),
    }
}

fn hold(expect: &Map<String, Value>, said: &Said) -> Result<(), String> {
    let error = expect.get("error").and_then(Value::as_object).and_then(|e| e.iter().next());
    match (error, said) {
        (Some((kind, part)), Err((said, text))) => {
            let part = part.as_str().unwrap_or_default();
            let same = kind == said && text.contains(part);
            if same { Ok(()) } else { Err(format!("wanted the error {kind} with {part:?}, got {said}: {text}")) }
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

/// The reasons wanted, as codes or as some of their fields, are the first of those given.
fn leads(wanted: &Value, got: &Value) -> bool {
    let mut given = got.as_array().into_iter().flatten();
    let same = |wanted: &Value, got: &Value| match wanted {
        Value::String(_) => got.get("code") == Some(wanted),
        fields => matches(fields, got),
    };
    wanted.as_array().is_some_and(|all| all.iter().all(|wanted| given.next().is_some_and(|got| same(wanted, got))))
}

/// Objects: each key wanted; lists element by element; numbers by value; all else equal.
fn matches(wanted: &Value, got: &Value) -> bool {
    match (wanted, got) {
        (Value::Object(w), Value::Object(g)) => w.iter().all(|(k, v)| g.get(k).is_some_and(|g| matches(v, g))),
        (Value::Array(w), Value::Array(g)) => w.len() == g.len() && w.iter().zip(g).all(|(w, g)| matches(w, g)),
        (Value::Number(w), Value::Number(g)) => w.as_f64() == g.as_f64(),
        _ => wanted == got,
    }
}

/// Short enough for a log line and a condition.
fn short(text: &str) -> String {
    const MAX: usize = 400;
    match text.char_indices().nth(MAX) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_expected_is_a_part_of_what_is_said() {
        let said: Said = Ok(json!({"target": 3, "reasons": [{"code": "Busy", "value": 0.9}, {"code": "Bound"}]}));
        let holds = |expect: Value| hold(expect.as_object().unwrap(), &said);
        for good in [
            json!({"target": 3.0}),
            json!({"reasons": ["Busy"]}),
            json!({"target": 3, "reasons": [{"value": 0.9}, "Bound"]}),
            json!({"state": null}),
        ] {
            assert_eq!(holds(good.clone()), Ok(()), "{good}");
        }
        for bad in [json!({"target": null}), json!({"reasons": ["Bound"]}), json!({"error": {"Trap": ""}})] {
            assert!(holds(bad.clone()).is_err(), "{bad}");
        }
        let failed: Said = Err(("InvalidConfig".into(), "no key `hihg`".into()));
        let holds = |expect: Value| hold(expect.as_object().unwrap(), &failed).is_ok();
        assert!(holds(json!({"error": {"InvalidConfig": "hihg"}})));
        assert!(!holds(json!({"error": {"Trap": "hihg"}})) && !holds(json!({"target": 3})));
    }

    #[test]
    fn a_file_that_could_not_fail_is_refused() {
        assert!(read("[]").unwrap().is_empty());
        assert!(read(r#"[{"name": "a", "input": {}, "expect": {}}]"#).unwrap_err().contains("could not fail"));
        assert!(read(r#"[{"name": "a", "input": {}, "expects": {}}]"#).unwrap_err().contains("expects"));
        assert!(read("{").is_err());
    }
}
