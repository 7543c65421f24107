//! The fixtures, natively. `policies/conformance` runs the same ones in the real host.
#![allow(clippy::unwrap_used)]

use eto_policy_sdk::testing::run_placement;

#[test]
fn fixtures_hold() {
    let cases = run_placement::<policy_binpack::Binpack>(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/binpack.json"))
        .unwrap();
    assert!(cases >= 5, "only {cases} cases");
}
