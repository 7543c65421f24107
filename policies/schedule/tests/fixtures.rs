//! The fixtures, natively. `policies/conformance` runs the same ones in the real host.
#![allow(clippy::unwrap_used)]

use eto_policy_sdk::testing::run_scaling;

#[test]
fn fixtures_hold() {
    let cases =
        run_scaling::<policy_schedule::Schedule>(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/schedule.json"))
            .unwrap();
    assert!(cases >= 5, "only {cases} cases");
}
