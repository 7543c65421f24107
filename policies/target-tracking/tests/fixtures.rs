//! The fixtures, natively. `policies/conformance` runs the same ones in the real host.
#![allow(clippy::unwrap_used)]

use eto_policy_sdk::testing::run_scaling;

#[test]
fn fixtures_hold() {
    let cases = run_scaling::<policy_target_tracking::TargetTracking>(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/fixtures/target-tracking.json"
    ))
    .unwrap();
    assert!(cases >= 5, "only {cases} cases");
}
