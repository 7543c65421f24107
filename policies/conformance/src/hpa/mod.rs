//! Rows of the unit tests of Kubernetes' HPA controller (`replica_calculator_test.go`, `horizontal_test.go`) that speak
//! of the replica calculation, each as a fixture. The groups keep the names of the tests they stand for.

mod build;
mod groups;
mod jobwide;
mod several;
mod usage;

use eto_policy_sdk::testing::Fixture;

/// Every row that applies to the policy.
pub fn rows() -> Vec<Fixture> {
    [
        usage::cpu(),
        usage::pods(),
        usage::helper(),
        jobwide::value(),
        jobwide::average_all(),
        groups::rows(),
        several::rows(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Rows of the same tests that the policy does not answer for, with the reason.
pub const NOT_THE_POLICYS: &[(&str, &str)] = &[
    (
        "SuperfluousMetrics, the two samples of unknown pods",
        "columns have an element per worker: there is no place for a sample of another pod (the row itself is run)",
    ),
    ("DisjointResourcesMetrics", "the same; a job whose workers have no sample is row EmptyMetrics"),
    (
        "GetResourceUtilizationRatio, extra sample without request",
        "a worker without a request makes the whole metric an error before the helper is reached (row EmptyCPURequest)",
    ),
    (
        "GetResourceUtilizationRatio, extra request without sample",
        "a worker without a sample is `missing` before the helper is reached (rows MissingMetrics)",
    ),
    (
        "TestConvertDesiredReplicasWithRules, TestNormalizeDesiredReplicas",
        "bounds without `behavior` are the guard's (core/engine)",
    ),
    ("TestScalingWithRules", "rate policies are the guard's (core/engine)"),
    (
        "TestNormalizeDesiredReplicasWithBehavior, TestScaleDownStabilizeInitialSize, TestStabilizeDownscale",
        "stabilisation windows are the guard's (core/engine); what the policy proposes there is row `scale down`",
    ),
    ("TestStoreScaleEvents", "the log of scale events is the guard's (core/engine)"),
    (
        "TestMaxReplicas, TestMinReplicas, TestMinReplicasDesiredZero, TestUpscaleCap*, TestTooFewReplicas, TestTooManyReplicas, \
         TestScaleUpRCImmediately, TestScaleDownRCImmediately",
        "clamping to minReplicas and maxReplicas is the guard's (core/engine)",
    ),
    ("TestZeroReplicas, TestScaleToZeroBehavior", "a job is stopped by `suspend`; `minReplicas` is at least 1"),
    (
        "TestConditionInvalidSelector*, TestConditionFailedGetScale, TestConditionFailedUpdateScale, TestConditionNoAmbiguousSelector*, \
         TestConditionAmbiguousSelector*",
        "workers are found by owner, not by a selector, and the size is not read from a scale subresource",
    ),
    ("TestInvalidMetricSourceType", "a metric of another type is refused before a policy is asked"),
    (
        "TestReconciliationDurationIsRecorded, TestHPARescaleWithSuccessfulConflictRetry, TestReconcileKeyEnsureReadyStaleCache, \
         TestScaleTimingBehavior",
        "how the controller goes about it: its own metrics, conflicts, caches and pauses are the operator's",
    ),
    ("TestEventCreated, TestEventNotCreated: the events", "events are the operator's; the sizes are run"),
    (
        "TestCalculateRequests: sums over containers, pod-level resources",
        "the operator sums a worker's containers before the policy sees it (column `requests`)",
    ),
];
