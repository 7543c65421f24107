//! Object and External metrics: `TestReplicaCalc*CMObject*`, `*CMExternal*`, `*PerPodCMObject*`, `*PerPodCMExternal*`.

use eto_policy_sdk::testing::Fixture;
use serde_json::json;

use super::build::{fixture, input};

/// The largest amount in milli-units that the Go tests use.
const MAX_INT64: f64 = 9_223_372_036_854_775_807.0;
/// Where they expect 2^31 - 1, the contract's own maximum stands.
const MAX_TARGET: u32 = 100_000;

/// `value`: present size, target and usage in milli-units, ready pods.
fn whole(
    name: &str,
    kind: &str,
    (current, ready): (u32, u32),
    target: f64,
    usage: f64,
    up: f64,
    gives: u32,
) -> Fixture {
    let pods = current.max(ready);
    let workers = (0..pods).map(|p| json!({ "ready": if p < ready { "Ready" } else { "NotReady" } }));
    let workers = serde_json::Value::Array(workers.collect());
    let metric = json!({ "kind": kind, "name": "queue", "signal": 0, "target": { "Value": target / 1000.0 } });
    let input = input(current, None, &workers, &json!(usage / 1000.0), &metric, (0.1, up));
    fixture(&format!("C {name}, {kind}"), input, &json!({ "target": gives }))
}

/// `averageValue`: replicas of the status, target and usage in milli-units.
fn average(name: &str, status: u32, target: f64, usage: f64, up: f64, (gives, reported): (u32, f64)) -> Vec<Fixture> {
    let row = |kind: &str| {
        let workers = serde_json::Value::Array((0..status).map(|_| json!({})).collect());
        let metric =
            json!({ "kind": kind, "name": "queue", "signal": 0, "target": { "AverageValue": target / 1000.0 } });
        let input = input(status, Some(status), &workers, &json!(usage / 1000.0), &metric, (0.1, up));
        let expect = if reported > 0.0 {
            json!({ "target": gives, "reasons": [{ "value": reported / 1000.0 }] })
        } else {
            json!({ "target": gives })
        };
        fixture(&format!("D {name}, {kind}"), input, &expect)
    };
    vec![row("Object"), row("External")]
}

pub(super) fn value() -> Vec<Fixture> {
    let both = |name, sizes, target, usage, up, gives| {
        ["Object", "External"].map(|kind| whole(name, kind, sizes, target, usage, up, gives))
    };
    let mut rows = vec![
        whole("ScaleUp unready", "Object", (3, 1), 10000.0, 50000.0, 0.1, 5),
        whole("ScaleUp unready", "External", (3, 1), 4400.0, 8600.0, 0.1, 2),
        whole("ScaleDown", "Object", (5, 5), 20000.0, 12000.0, 0.1, 3),
        whole("ScaleDown", "External", (5, 5), 14334.0, 8600.0, 0.1, 3),
        whole("Tolerance", "Object", (3, 3), 20000.0, 20666.0, 0.1, 3),
        whole("Tolerance", "External", (3, 3), 8888.0, 8600.0, 0.1, 3),
        whole("ConfigTol up .01", "Object", (3, 3), 20000.0, 20666.0, 0.01, 4),
        whole("ConfigTol up .01", "External", (3, 3), 8800.0, 8900.0, 0.01, 4),
    ];
    rows.extend(both("ScaleUp", (3, 3), 15000.0, 20000.0, 0.1, 4));
    rows.extend(both("overflow", (3, 3), 1.0, MAX_INT64, 0.1, MAX_TARGET));
    rows.extend(both("from zero", (0, 0), 15000.0, 20000.0, 0.1, 2));
    rows.extend(both("from zero ignores tolerance", (0, 0), 1000.0, 1000.0, 0.1, 1));
    rows.extend(both("down to zero", (5, 5), 20000.0, 0.0, 0.1, 0));
    rows
}

pub(super) fn average_rows() -> Vec<Vec<Fixture>> {
    vec![
        average("ScaleUpPerPod", 3, 5000.0, 20000.0, 0.1, (4, 6667.0)),
        average("ScaleUpPerPod, external", 3, 2150.0, 8600.0, 0.1, (4, 2867.0)),
        average("ScaleDownPerPod", 5, 2000.0, 6000.0, 0.1, (3, 1200.0)),
        average("ScaleDownPerPod, external", 5, 2867.0, 8600.0, 0.1, (3, 1720.0)),
        average("TolerancePerPod", 4, 5000.0, 20166.0, 0.1, (4, 5042.0)),
        average("TolerancePerPod, external", 3, 2900.0, 8600.0, 0.1, (3, 2867.0)),
        average("ConfigTolPerPod up .01", 4, 5000.0, 20208.0, 0.01, (5, 5052.0)),
        average("ConfigTolPerPod up .01, external", 3, 2800.0, 8600.0, 0.01, (4, 2867.0)),
        average("overflow", 1, 1.0, MAX_INT64, 0.1, (MAX_TARGET, 0.0)),
        average("overflow of both", 1, MAX_INT64, MAX_INT64, 0.1, (1, 0.0)),
        average("no pods yet", 0, 5000.0, 20000.0, 0.1, (4, 0.0)),
    ]
}

pub(super) fn average_all() -> Vec<Fixture> {
    average_rows().into_iter().flatten().collect()
}
