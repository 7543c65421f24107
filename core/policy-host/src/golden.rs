//! Golden cases: inputs beside a module with what it must answer to them. A version that answers otherwise is not served.

use eto_engine::contract::{PlacementInput, ScalingInput};
use eto_engine::policy::{Asked, PlacementPolicy, ScalingPolicy};
use eto_policy_expect::{Answered, hold};
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

fn ask<I: DeserializeOwned, D: Serialize>(case: &Case, ask: impl FnOnce(&I) -> Asked<D>) -> Result<Answered, String> {
    let input = serde_path_to_error::deserialize(&case.input).map_err(|e| format!("its input can't be read: {e}"))?;
    match ask(&input) {
        Ok(answer) => serde_json::to_value(answer.value).map(Ok).map_err(|e| e.to_string()),
        Err(failure) => Ok(Err((format!("{:?}", failure.kind), failure.message))),
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
    use super::*;

    #[test]
    fn a_file_that_could_not_fail_is_refused() {
        assert!(read("[]").unwrap().is_empty());
        assert!(read(r#"[{"name": "a", "input": {}, "expect": {}}]"#).unwrap_err().contains("could not fail"));
        assert!(read(r#"[{"name": "a", "input": {}, "expects": {}}]"#).unwrap_err().contains("expects"));
        assert!(read("{").is_err());
    }
}
