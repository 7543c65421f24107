//! Fixtures: JSON files that say what a policy must answer, run natively by `cargo test` and in the real host by the
//! same files.
//!
//! A file holds a list of cases:
//!
//! ```json
//! [
//!   { "name": "grows while the GPUs are busy",
//!     "input": { "workers": 2, "signals": { "gpu-utilisation": [0.9, 0.95] } },
//!     "expect": { "target": 3, "reasons": ["Busy"] } },
//!   { "name": "holds once the config is wrong",
//!     "input": { "config": { "hihg": 1 } },
//!     "expect": { "error": { "InvalidConfig": "hihg" } } }
//! ]
//! ```
//!
//! - `input` is the JSON form of the contract's input; what it leaves out is that of a plain job, and [`expand`]
//!   knows short forms (`workers` as a number, signals by name, `config` as an object, nodes and members row by row).
//! - `expect` lists what is asked of the answer ([`eto_policy_expect`]): fields of the decision (`"target": null` is a
//!   hold), `reasons` as codes or as objects with some of their fields, in order (more may follow), or `error` with a part
//!   of its text.
//! - `steps` instead of `input` and `expect` is a list of such pairs; the state of each answer goes into the next.

mod arbitrary;
mod expand;

use std::path::Path;

use eto_policy_expect::hold;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::{PlacementPolicy, PolicyError, ScalingPolicy};

pub use eto_policy_expect::Answered;

pub use arbitrary::{Source, any_placement, any_scaling, check_placement, check_scaling};
pub use expand::{Kind, expand, placement_input, scaling_input};

/// One named case.
#[derive(Clone, Debug)]
pub struct Fixture {
    /// What it shows.
    pub name: String,
    /// Calls in a row, most often one.
    pub steps: Vec<FixtureStep>,
}

/// One call.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FixtureStep {
    /// The input, short forms allowed.
    pub input: Value,
    /// What the answer must have.
    pub expect: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum Written {
    One { name: String, input: Value, expect: Map<String, Value> },
    Steps { name: String, steps: Vec<FixtureStep> },
}

/// Reads the cases of a text.
///
/// # Errors
/// What is wrong with it.
pub fn parse(text: &str) -> Result<Vec<Fixture>, String> {
    let written: Vec<Written> = serde_json::from_str(text).map_err(|e| format!("not a list of fixtures: {e}"))?;
    if written.is_empty() {
        return Err("no fixtures in it".to_owned());
    }
    Ok(written
        .into_iter()
        .map(|w| match w {
            Written::One { name, input, expect } => Fixture { name, steps: vec![FixtureStep { input, expect }] },
            Written::Steps { name, steps } => Fixture { name, steps },
        })
        .collect())
}

/// Reads a file of cases.
///
/// # Errors
/// The path and what is wrong with it.
#[allow(clippy::disallowed_methods, reason = "tests read fixtures from files")]
pub fn read(path: impl AsRef<Path>) -> Result<Vec<Fixture>, String> {
    let path = path.as_ref();
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    parse(&text).map_err(|e| format!("{}: {e}", path.display()))
}

impl Fixture {
    /// Asks for each step and compares.
    ///
    /// # Errors
    /// The first difference, with the case's name and the whole answer.
    pub fn check(&self, kind: Kind, state_version: u32, mut ask: impl FnMut(Value) -> Answered) -> Result<(), String> {
        let mut state = None;
        for (number, step) in self.steps.iter().enumerate() {
            let at = if self.steps.len() > 1 { format!(", step {}", number + 1) } else { String::new() };
            let fail = |what: String| format!("{}{at}: {what}", self.name);
            let mut input = expand(kind, &step.input).map_err(&fail)?;
            if let (Some(kept), Some(input)) = (state.take(), input.as_object_mut()) {
                input.insert("state".to_owned(), json!({ "version": state_version, "bytes": kept }));
            }
            let kept = input.get("state").and_then(|s| s.get("bytes")).cloned();
            let answer = ask(input);
            hold(&step.expect, &answer).map_err(|what| fail(format!("{what}; the answer was {answer:?}")))?;
            let newer = answer.ok().and_then(|a| a.get("state").cloned()).filter(|s| !s.is_null());
            state = newer.or(kept);
        }
        Ok(())
    }
}

/// Runs the cases of a file against a scaling policy, natively. Gives their number.
///
/// # Errors
/// Every case that differs, one a line.
pub fn run_scaling<P: ScalingPolicy>(path: impl AsRef<Path>) -> Result<usize, String> {
    run_all(&read(path)?, Kind::Scaling, P::STATE_VERSION, ask_scaling::<P>)
}

/// Runs the cases of a file against a placement policy, natively. Gives their number.
///
/// # Errors
/// Every case that differs, one a line.
pub fn run_placement<P: PlacementPolicy>(path: impl AsRef<Path>) -> Result<usize, String> {
    run_all(&read(path)?, Kind::Placement, P::STATE_VERSION, ask_placement::<P>)
}

/// Runs cases against whatever answers. Gives their number.
///
/// # Errors
/// Every case that differs, one a line.
pub fn run_all(
    fixtures: &[Fixture],
    kind: Kind,
    state_version: u32,
    mut ask: impl FnMut(Value) -> Answered,
) -> Result<usize, String> {
    let wrong: Vec<String> = fixtures.iter().filter_map(|f| f.check(kind, state_version, &mut ask).err()).collect();
    if wrong.is_empty() { Ok(fixtures.len()) } else { Err(wrong.join("\n")) }
}

/// Asks a scaling policy natively, the way its component is asked.
pub fn ask_scaling<P: ScalingPolicy>(input: Value) -> Answered {
    let input: crate::ScalingInput = expand::read(input).map_err(|e| ("Fixture".to_owned(), e))?;
    answered(P::read_config(&input.config).and_then(|config| P::evaluate(&input, &config)))
}

/// Asks a placement policy natively, the way its component is asked.
pub fn ask_placement<P: PlacementPolicy>(input: Value) -> Answered {
    let input: crate::PlacementInput = expand::read(input).map_err(|e| ("Fixture".to_owned(), e))?;
    answered(P::read_config(&input.config).and_then(|config| P::evaluate(&input, &config)))
}

fn answered<D: serde::Serialize>(result: Result<D, PolicyError>) -> Answered {
    match result {
        Ok(decision) => serde_json::to_value(decision).map_err(|e| ("Fixture".to_owned(), e.to_string())),
        Err(PolicyError::InvalidConfig(text)) => Err(("InvalidConfig".to_owned(), text)),
        Err(PolicyError::UnusableInput(text)) => Err(("UnusableInput".to_owned(), text)),
        Err(PolicyError::Internal(text)) => Err(("Internal".to_owned(), text)),
    }
}
