//! HPA's rows against the policy as plain Rust.
#![allow(clippy::unwrap_used, clippy::panic)]

use eto_policy_sdk::testing::{Kind, ask_scaling, run_all};
use policy_hpa::Hpa;

#[test]
fn hpa_answers_every_row_as_the_controller_does() {
    let rows = policy_conformance::hpa::rows();
    assert!(rows.len() > 90, "only {} rows", rows.len());
    if let Err(wrong) = run_all(&rows, Kind::Scaling, 0, ask_scaling::<Hpa>) {
        panic!("{wrong}");
    }
}
