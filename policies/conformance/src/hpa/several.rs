//! Several metrics at once, and the controller-level rows of `horizontal_test.go` that the policy decides.

use eto_policy_sdk::testing::Fixture;
use serde_json::{Value, json};

use super::build::{CONFIG, NOW, cpu, fixture};

pub(super) fn rows() -> Vec<Fixture> {
    let low = [0.2, 0.6, 1.0, 0.5, 0.5]; // TestNoScaleDownOneMetric*: two containers of 100, 300, 500, 250, 250 milli
    let high = [0.6, 0.8, 1.0];
    let empty = json!({ "values": null, "quality": "Absent" });
    let broken = json!({ "values": 5.0, "quality": "Invalid" });
    let old = json!({ "values": 5.0, "quality": "Stale" });
    vec![
        cpu("L TestMoreReplicasThanSpecNoScale", 4, 50, &[500.0; 5]).gives(4, 50.0),
        cpu("L TestEventCreated", 1, 50, &[100.0]).requests(&[100.0]).gives(2, 100.0),
        cpu("L TestEventNotCreated", 2, 50, &[100.0, 100.0]).requests(&[200.0]).gives(2, 50.0),
        cpu("L TestZeroMinReplicasDesiredZero", 3, 90, &[0.0, 0.0, 0.0]).gives(0, 0.0),
        two("TestScaleUpOneMetricEmpty", 3, (30, &high), &empty, &json!({ "target": 4 })),
        two("TestScaleUpOneMetricInvalid", 3, (30, &high), &broken, &json!({ "target": 4 })),
        two("TestNoScaleDownOneMetricEmpty", 5, (50, &low), &empty, &blocked()),
        two("TestNoScaleDownOneMetricInvalid", 5, (50, &low), &broken, &blocked()),
        two("no shrink while one metric is stale", 5, (50, &low), &old, &blocked()),
        two(
            "the larger proposal counts",
            5,
            (50, &low),
            &json!(70.0),
            &json!({ "target": 7, "reasons": ["AboveTarget", "BelowTarget"] }),
        ),
        no_backoff(),
        failed("Resource", "FailedGetResourceMetric", &json!({ "Utilization": 50 })),
        failed("ContainerResource", "FailedGetContainerResourceMetric", &json!({ "Utilization": 50 })),
        failed("Pods", "FailedGetPodsMetric", &json!({ "AverageValue": 5.0 })),
        failed("Object", "FailedGetObjectMetric", &json!({ "Value": 5.0 })),
        failed("External", "FailedGetExternalMetric", &json!({ "AverageValue": 5.0 })),
    ]
}

fn blocked() -> Value {
    json!({ "target": null, "reasons": ["FailedGetExternalMetric", "BelowTarget"] })
}

/// CPU (target in per cent, levels as shares of a request of 2 cores) beside an External metric with a target of 10 per
/// worker.
fn two(name: &str, size: u32, (percent, levels): (u32, &[f64]), queue: &Value, expect: &Value) -> Fixture {
    let input = json!({
        "now_ms": NOW, "config": CONFIG, "workers": levels.len(),
        "signals": { "cpu": { "values": levels, "requests": vec![2.0; levels.len()] }, "queue": queue },
        "metrics": [
            { "kind": "Resource", "name": "cpu", "signal": 0, "target": { "Utilization": percent } },
            { "kind": "External", "name": "queue", "signal": 1, "target": { "AverageValue": 10.0 } },
        ],
        "sizes": { "target": size },
    });
    fixture(&format!("L {name}"), input, expect)
}

/// CPU and requests per second, which have the same levels. The maximum, 5, is the guard's.
fn no_backoff() -> Fixture {
    let levels = [20.0, 10.0, 30.0];
    let input = json!({
        "now_ms": NOW, "config": CONFIG, "workers": 3,
        "signals": { "cpu": { "values": levels.map(|l| 2.0 * l), "requests": [2.0, 2.0, 2.0] }, "qps": levels },
        "metrics": [
            { "kind": "Pods", "name": "qps", "signal": 1, "target": { "AverageValue": 15.0 } },
            { "kind": "Resource", "name": "cpu", "signal": 0, "target": { "Utilization": 10 } },
        ],
        "sizes": { "target": 3 },
    });
    fixture(
        "L TestNoBackoffUpscaleCMNoBackoffCpu",
        input,
        &json!({ "target": 600, "reasons": ["AboveTarget", "AboveTarget"] }),
    )
}

/// `TestConditionFailedGetMetrics`.
fn failed(kind: &str, code: &str, target: &Value) -> Fixture {
    let input = json!({
        "config": CONFIG,
        "signals": { "m": { "values": [null, null], "quality": "Absent" } },
        "metrics": [{ "kind": kind, "name": "m", "signal": 0, "target": target }],
    });
    fixture(&format!("L TestConditionFailedGetMetrics, {kind}"), input, &json!({ "target": null, "reasons": [code] }))
}
