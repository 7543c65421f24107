//! The fixtures, natively. `policies/conformance` runs the same ones in the real host.
#![allow(clippy::unwrap_used)]

use eto_policy_sdk::testing::run_placement;

#[test]
fn fixtures_hold() {
    let cases =
        run_placement::<policy_topology::Topology>(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/topology.json"))
            .unwrap();
    assert!(cases >= 5, "only {cases} cases");
}
