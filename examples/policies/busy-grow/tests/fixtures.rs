//! `cargo test` runs the policy as plain Rust.

#[test]
fn fixtures_hold() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/busy-grow.json");
    eto_policy_sdk::testing::run_scaling::<busy_grow::BusyGrow>(file).unwrap();
}
