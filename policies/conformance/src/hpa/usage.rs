//! Metrics with a sample per pod: `TestReplicaCalcResourceScale`, the single-case functions, `TestReplicaCalcConfigurableTolerance`,
//! and the ratio helpers of `utilization_test.go`.

use eto_policy_sdk::testing::Fixture;
use serde_json::json;

use super::build::{cpu as row, pods as raw};

const DOWN: &[f64] = &[100.0, 300.0, 500.0, 250.0, 250.0];

/// CPU utilisation.
pub(super) fn cpu() -> Vec<Fixture> {
    let mut rows = growth();
    rows.extend(shrinking());
    rows.extend(tolerances());
    rows.extend(missing());
    rows.extend(errors());
    rows
}

fn growth() -> Vec<Fixture> {
    let up = &[300.0, 500.0, 700.0];
    vec![
        row("scale up", 3, 30, up).gives(5, 50.0),
        row("scale up: container metric", 3, 30, up).container().gives(5, 50.0),
        row("scale up: unready pod scales less", 3, 30, up).ready("FTT").gives(4, 60.0),
        row("scale up: hot-CPU pod", 3, 30, up).start("HCC").gives(4, 60.0),
        row("scale up: hot-CPU container", 3, 30, up).container().start("HCC").gives(4, 60.0),
        row("no scale: unready pods ignored", 3, 30, &[400.0, 500.0, 700.0]).ready("TFF").gives(3, 40.0),
        row("no scale: hot-CPU pods ignored", 3, 30, &[400.0, 500.0, 700.0]).ready("TFF").start("CHH").gives(3, 40.0),
        row("scale up: failed pods ignored", 2, 30, &[500.0, 700.0]).phases("RRFF").gives(4, 60.0),
        row("scale up: failed pods ignored, container2", 2, 30, &[500.0, 700.0])
            .container()
            .phases("RRFF")
            .gives(4, 60.0),
        row("scale up: pods being deleted ignored", 2, 30, &[500.0, 700.0]).deleted("  DD").gives(4, 60.0),
        row("SuperfluousMetrics", 4, 100, &[4000.0, 9500.0, 3000.0, 7000.0]).gives(24, 587.0),
    ]
}

fn shrinking() -> Vec<Fixture> {
    vec![
        row("scale down", 5, 50, DOWN).gives(3, 28.0),
        row("scale down: exclude unready pods", 5, 50, DOWN).ready("TTTFF").gives(2, 30.0),
        row("scale down: exclude unscheduled pods", 5, 50, &[100.0]).phases("RPPPP").gives(1, 10.0),
        row("scale down: ignore hot-CPU pods", 5, 50, DOWN).start("CCCHH").gives(2, 30.0),
        row("scale down: failed pods ignored", 5, 50, DOWN).phases("RRRRRFF").gives(3, 28.0),
        row("scale down: deleted ignored", 5, 50, DOWN).deleted("     DD").gives(3, 28.0),
        row("DuringRollingUpdateWithMaxSurge", 2, 50, &[100.0, 100.0]).phases("RRR").gives(2, 10.0),
    ]
}

fn tolerances() -> Vec<Fixture> {
    let requests = &[900.0, 1000.0, 1100.0];
    let mixed = &[400.0, 200.0, 310.0, 290.0, 302.0, 298.0, 301.0, 299.0, 300.0, 300.0];
    vec![
        row("Tolerance", 3, 100, &[1010.0, 1030.0, 1020.0]).requests(requests).gives(3, 102.0),
        row("ConfigTol outside 0%", 3, 100, &[909.0, 1010.0, 1111.0])
            .requests(requests)
            .tolerance(0.0, 0.0)
            .gives(4, 101.0),
        row("ConfigTol within 200% up", 3, 100, &[1890.0, 1910.0, 1900.0]).tolerance(0.1, 2.0).gives(3, 190.0),
        row("ConfigTol outside 8% up", 3, 100, &[1100.0, 1080.0, 1090.0]).tolerance(2.0, 0.08).gives(4, 109.0),
        row("ConfigTol within 36% down", 3, 100, &[660.0, 640.0, 650.0]).tolerance(0.36, 0.1).gives(3, 65.0),
        row("ConfigTol outside 34% down", 3, 100, &[660.0, 640.0, 650.0]).tolerance(0.34, 0.1).gives(2, 65.0),
        row("ComputedToleranceAlg, just outside", 10, 56, &[150.0; 10]).requests(mixed).gives(9, 50.0),
        row("ComputedToleranceAlg, just inside", 10, 55, &[150.0; 10]).requests(mixed).gives(10, 50.0),
        row("exactly +10%", 10, 50, &[550.0; 10]).gives(10, 55.0),
        row("exactly -10%", 10, 50, &[450.0; 10]).gives(10, 45.0),
        row("ceil(7/50*50) in floats", 50, 50, &[70.0; 50]).gives(8, 7.0),
        row("ceil(45/70*42) in floats", 42, 70, &[450.0; 42]).gives(28, 45.0),
    ]
}

fn missing() -> Vec<Fixture> {
    vec![
        row("MissingMetrics", 4, 100, &[400.0, 95.0]).phases("RRRR").gives(3, 24.0),
        row("MissingMetricsNoChangeEq", 2, 100, &[1000.0]).phases("RR").gives(2, 100.0),
        row("MissingMetricsNoChangeGt", 2, 100, &[1900.0]).phases("RR").gives(2, 190.0),
        row("MissingMetricsNoChangeLt", 2, 100, &[600.0]).phases("RR").gives(2, 60.0),
        row("MissingMetricsUnreadyChange", 3, 50, &[100.0, 450.0]).ready("FTT").gives(3, 45.0),
        row("MissingMetricsHotCpuNoChange", 3, 50, &[100.0, 450.0]).start("HCC").gives(3, 45.0),
        row("MissingMetricsUnreadyScaleUp", 3, 50, &[100.0, 2000.0]).ready("FTT").gives(4, 200.0),
        row("MissingMetricsHotCpuScaleUp", 3, 50, &[100.0, 2000.0]).start("HCC").gives(4, 200.0),
        row("MissingMetricsUnreadyScaleDown", 4, 50, &[100.0, 100.0, 100.0]).ready("FTTT").gives(3, 10.0),
        row("MissingMetricsScaleDownTargetOver100", 4, 300, &[200.0, 100.0, 100.0])
            .ready("FTTT")
            .requests(&[1000.0, 1000.0, 2000.0, 2000.0])
            .gives(2, 6.0),
    ]
}

fn errors() -> Vec<Fixture> {
    vec![
        row("EmptyMetrics", 3, 100, &[])
            .phases("RRR")
            .expecting(&json!({ "target": null, "reasons": ["FailedGetResourceMetric"] })),
        row("EmptyCPURequest", 1, 100, &[200.0])
            .requests(&[0.0])
            .expecting(&json!({ "error": { "UnusableInput": "missing request for cpu" } })),
    ]
}

/// Pods metrics, and the raw target of a resource.
pub(super) fn pods() -> Vec<Fixture> {
    let near = &[20000.0, 21000.0, 21000.0];
    vec![
        raw("ScaleUpCM", 3, 15000.0, &[20000.0, 10000.0, 30000.0]).gives(4, 20.0),
        raw("ScaleUpCMUnreadyHotCpuNoLessScale", 3, 15000.0, &[50000.0, 10000.0, 30000.0])
            .ready("TTF")
            .start("CCH")
            .gives(6, 30.0),
        raw("ScaleUpCMUnreadyHotCpuScaleWouldScaleDown", 3, 15000.0, &[50000.0, 15000.0, 30000.0])
            .ready("FTF")
            .start("CCH")
            .gives(7, 31.666),
        raw("ScaleDownCM", 5, 20000.0, &[12000.0; 5]).gives(3, 12.0),
        raw("ToleranceCM", 3, 20000.0, near).gives(3, 20.666),
        raw("ConfigTolCM up .01", 3, 20000.0, near).tolerance(0.1, 0.01).gives(4, 20.666),
        raw("PlainMetricMissingNoChangeEq", 5, 20000.0, &[20000.0, 19000.0, 21000.0]).phases("RRRRR").gives(5, 20.0),
        raw("DuringRollingUpdateWithMaxSurgeCM", 2, 17000.0, &[10000.0, 10000.0]).phases("RRR").gives(2, 10.0),
    ]
}

/// `utilization_test.go`, through the policy.
pub(super) fn helper() -> Vec<Fixture> {
    vec![
        row("E GetResourceUtilizationRatio", 2, 50, &[25.0, 38.0]).requests(&[50.0]).gives(3, 63.0),
        row("E GetResourceUtilizationRatio, no requests", 2, 50, &[25.0, 38.0])
            .requests(&[0.0])
            .expecting(&json!({ "error": { "UnusableInput": "resources.requests.cpu" } })),
        raw("E GetMetricUsageRatio", 2, 10000.0, &[5000.0, 10000.0]).gives(2, 7.5),
        row("100 of 300 requested is 33%", 1, 33, &[50.0]).requests(&[150.0]).tolerance(0.0, 0.0).gives(1, 33.0),
    ]
}
