//! Helpers, on inputs from the test kit.
#![cfg(feature = "testing")]
#![allow(clippy::unwrap_used, clippy::float_cmp)]

use eto_policy_sdk::testing::{Kind, parse, placement_input, run_all, scaling_input};
use eto_policy_sdk::{Crowd, Domain, Quality, Reason, ScalingDecision, ScalingInput, Step, kept};
use serde_json::json;

fn scaling(short: &serde_json::Value) -> ScalingInput {
    scaling_input(short).unwrap()
}

#[test]
fn the_wit_file_is_the_contract_s() {
    assert_eq!(include_str!("../wit/policy.wit"), include_str!("../../../wit/v0.1/policy.wit"));
}

#[test]
fn means_read_only_samples_that_are_there() {
    let input = scaling(&json!({ "signals": { "gpu": { "values": [0.5, null, 3.0], "requests": [1.0, 1.0, 2.0] } } }));
    let gpu = input.signal("gpu").unwrap();
    assert_eq!(gpu.quality, Quality::Partial);
    assert_eq!(gpu.mean_ok(), Some(1.0));
    assert_eq!((gpu.value(1), gpu.utilisation(1), gpu.value(9)), (None, None, None));
    assert_eq!(gpu.levels().collect::<Vec<_>>(), [(0, 0.5), (2, 1.5)]);
}

#[test]
fn history_is_no_present_value() {
    for quality in ["Stale", "Absent", "Invalid"] {
        let input = scaling(&json!({ "signals": { "gpu": { "values": [0.5], "quality": quality } } }));
        assert_eq!(input.signal("gpu").unwrap().mean_ok(), None, "{quality}");
        assert_eq!(input.signal("gpu").unwrap().percentile(0.5), None, "{quality}");
    }
}

#[test]
fn percentiles_lie_between_neighbours() {
    let input = scaling(&json!({ "signals": { "gpu": [0.4, 0.1, 0.2, 0.3] } }));
    let gpu = input.signal("gpu").unwrap();
    assert_eq!(gpu.percentile(0.0), Some(0.1));
    assert_eq!(gpu.percentile(0.5), Some(0.25));
    assert_eq!(gpu.percentile(1.0), Some(0.4));
    assert_eq!((gpu.percentile(1.1), gpu.percentile(f64::NAN)), (None, None));
}

#[test]
fn slopes_are_per_second() {
    let with = |times: &[u64], values: &[f64]| {
        let input =
            scaling(&json!({ "signals": { "gpu": { "values": [0.5], "history_ms": times, "history": values } } }));
        input.signal("gpu").unwrap().slope()
    };
    assert_eq!(with(&[0, 10_000, 20_000], &[1.0, 2.0, 3.0]), Some(0.1));
    assert_eq!(with(&[0, 10_000], &[3.0, 3.0]), Some(0.0));
    assert_eq!((with(&[], &[]), with(&[5], &[1.0]), with(&[5, 5], &[1.0, 2.0])), (None, None, None));
}

#[test]
fn sizes_keep_to_bounds_and_legal_sizes() {
    let free = scaling(&json!({ "workers": 4, "bounds": { "min": 2, "max": 10 } }));
    assert_eq!((free.clamp(1), free.clamp(7), free.clamp(99)), (2, 7, 10));
    assert_eq!((free.next_size(10, Step::Up), free.next_size(2, Step::Down)), (None, None));
    let legal = scaling(&json!({ "workers": 4, "bounds": { "min": 2, "max": 10, "legal": [2, 4, 8] } }));
    assert_eq!((legal.clamp(7), legal.clamp(3), legal.clamp(99), legal.clamp(0)), (4, 4, 8, 2));
    assert_eq!((legal.next_size(4, Step::Up), legal.next_size(4, Step::Down)), (Some(8), Some(2)));
}

#[test]
fn reasons_fit_the_contract() {
    let reason = Reason::new("C".repeat(80), "ä".repeat(400)).value(f64::NAN);
    assert_eq!((reason.code.len(), reason.message.chars().count(), reason.value), (63, 256, None));
    let many = (0..40).fold(ScalingDecision::to(u32::MAX, reason.clone()), |d, _| d.because(reason.clone()));
    assert_eq!((many.reasons.len(), many.target), (16, Some(100_000)));
}

#[test]
fn state_of_another_version_is_none() {
    let decision = ScalingDecision::hold(Reason::new("A", "b")).keep(&7u32).unwrap();
    let state = eto_policy_sdk::KeptState { version: 2, bytes: decision.state.unwrap() };
    assert_eq!(kept::<u32>(Some(&state), 2), Some(7));
    assert_eq!(
        (kept::<u32>(Some(&state), 1), kept::<String>(Some(&state), 2), kept::<u32>(None, 2)),
        (None, None, None)
    );
}

#[test]
fn placing_keeps_the_books() {
    let input = placement_input(&json!({
        "nodes": [{ "free_cpu": 2 }, { "free_cpu": 1 }], "add": [4, 5, 6, 7],
    }))
    .unwrap();
    let places = input.place_by(Domain::Node, |node, tally| Some((tally.members(node), node.row)));
    let chosen: Vec<_> = places.iter().map(|p| (p.worker, p.node)).collect();
    assert_eq!(chosen, [(4, 0), (5, 1), (6, 0)]);
}

#[test]
fn victims_even_out_or_empty() {
    let input = placement_input(&json!({
        "nodes": [{ "zone": 0 }, { "zone": 0 }, { "zone": 1 }],
        "members": [{ "node": 0, "protected": true }, { "node": 0 }, { "node": 1 }, { "node": 1 }, { "node": 2 }],
        "drop": 2,
    }))
    .unwrap();
    assert_eq!(input.victims_from(Crowd::Most, Domain::Zone), [3, 1]);
    assert_eq!(input.victims_from(Crowd::Fewest, Domain::Zone), [4, 3]);
    assert_eq!(input.victims_from(Crowd::Fewest, Domain::Node), [4, 3]);
}

#[test]
fn a_fixture_that_could_not_fail_is_an_error() {
    let run = |text: &str, answer: serde_json::Value| {
        run_all(&parse(text).unwrap(), Kind::Scaling, 0, |_| Ok(answer.clone()))
    };
    let answer = json!({ "target": 3, "reasons": [{ "code": "A", "value": 1.0 }], "state": null });
    assert_eq!(run(r#"[{"name":"n","input":{},"expect":{"target":3,"reasons":["A"]}}]"#, answer.clone()), Ok(1));
    let wrong = run(r#"[{"name":"n","input":{},"expect":{"target":4}}]"#, answer.clone()).unwrap_err();
    assert!(wrong.starts_with("n: wanted target 4, got 3"), "{wrong}");
    let other = run(r#"[{"name":"n","input":{},"expect":{"reasons":["B"]}}]"#, answer.clone()).unwrap_err();
    assert!(other.contains("wanted reasons"), "{other}");
    assert!(run(r#"[{"name":"n","input":{},"expect":{}}]"#, answer.clone()).unwrap_err().contains("could not fail"));
    assert!(run(r#"[{"name":"n","input":{"nodes":3},"expect":{"error":{"Internal":""}}}]"#, answer).is_err());
    assert!(parse("[]").is_err() && parse("{}").is_err());
}

#[test]
fn fields_that_the_contract_does_not_have_are_refused_at_any_depth() {
    for (short, path) in [
        (json!({ "bouds": { "min": 2 } }), "bouds"),
        (json!({ "bounds": { "mni": 2 } }), "bounds.mni"),
        (json!({ "resize": { "last_steps_lots": 3 } }), "resize.last_steps_lots"),
        (json!({ "nodes": 3 }), "nodes"),
    ] {
        assert_eq!(scaling_input(&short).unwrap_err(), format!("there is no field `{path}`"));
    }
    assert_eq!(placement_input(&json!({ "workers": 3 })).unwrap_err(), "there is no field `workers`");
    let known = json!({ "resize": { "last_steps_lost": 3 }, "state": { "version": 1, "bytes": [1] }, "seed": 7 });
    assert!(scaling_input(&known).is_ok());
    assert!(parse(r#"[{"name":"n","input":{},"expect":{"target":3},"setps":[]}]"#).is_err());
}
