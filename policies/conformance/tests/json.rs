//! The JSON form of the contract is one: what the SDK writes the host's types read, and the other way round.
#![allow(clippy::unwrap_used, clippy::panic)]

use eto_engine::contract as host;
use eto_policy_sdk as guest;
use eto_policy_sdk::testing::{Source, any_placement, any_scaling};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

/// Writes `value`, reads it as `H`, writes that, reads it as `G` again.
fn there_and_back<G: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug, H: Serialize + DeserializeOwned>(
    value: &G,
) {
    let written = serde_json::to_value(value).unwrap();
    let there: H = serde_json::from_value(written.clone()).unwrap_or_else(|e| panic!("{e}: {written}"));
    let again = serde_json::to_value(&there).unwrap();
    assert_eq!(written, again);
    assert_eq!(*value, serde_json::from_value::<G>(again).unwrap());
}

/// JSON has no NaN: such inputs are written with null and are no inputs.
fn is_json(value: &impl Serialize) -> bool {
    fn numbers(value: &Value) -> bool {
        match value {
            Value::Array(items) => items.iter().all(|v| !v.is_null() && numbers(v)),
            Value::Object(fields) => fields.values().all(numbers),
            _ => true,
        }
    }
    numbers(&serde_json::to_value(value).unwrap())
}

#[test]
fn inputs_have_one_form() {
    let mut seen = 0;
    for seed in 0..400 {
        let scaling = any_scaling(&mut Source::new(seed), &["gpu-utilisation", "queue"], "{}");
        if is_json(&scaling) && is_finite(&scaling) {
            there_and_back::<guest::ScalingInput, host::ScalingInput>(&scaling);
            seen += 1;
        }
        let placement = any_placement(&mut Source::new(seed), "{}");
        if is_json(&placement) {
            there_and_back::<guest::PlacementInput, host::PlacementInput>(&placement);
            seen += 1;
        }
    }
    assert!(seen > 100, "only {seen} inputs");
}

fn is_finite(input: &guest::ScalingInput) -> bool {
    let covered = input.signals.iter().all(|s| s.coverage.is_finite());
    covered
        && input.metrics.iter().all(|m| match m.target {
            guest::MetricTarget::AverageValue(v) | guest::MetricTarget::Value(v) => v.is_finite(),
            guest::MetricTarget::Utilization(_) => true,
        })
}

#[test]
fn answers_have_one_form() {
    let reason = guest::Reason::new("AboveTarget", "text").signal("cpu").value(0.5).target(0.25);
    let decision = guest::ScalingDecision::to(3, reason.clone()).because(guest::Reason::new("Other", "text"));
    there_and_back::<guest::ScalingDecision, host::ScalingDecision>(&decision.clone().look_again_in(30));
    there_and_back::<guest::ScalingDecision, host::ScalingDecision>(&decision.keep(&json!({ "a": 1 })).unwrap());
    let mut placement = guest::PlacementDecision::new(reason);
    placement.places.push(guest::Place::preferred(3, 1));
    placement.victims.push(7);
    there_and_back::<guest::PlacementDecision, host::PlacementDecision>(&placement);
    let plain = guest::SignalWant::utilisation("gpu-utilisation").required().window(120).history(600);
    there_and_back::<guest::SignalWant, host::SignalWant>(&plain);
    let query = guest::SignalWant::query("q", "sum(x)", guest::Direction::MoreMeansShrink, 0.0, 9.0);
    there_and_back::<guest::SignalWant, host::SignalWant>(&query);
    for error in [
        guest::PolicyError::InvalidConfig("a".to_owned()),
        guest::PolicyError::UnusableInput("b".to_owned()),
        guest::PolicyError::Internal("c".to_owned()),
    ] {
        there_and_back::<guest::PolicyError, host::PolicyError>(&error);
    }
}
