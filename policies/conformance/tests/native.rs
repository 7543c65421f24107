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

/// The tests of `horizontal_test.go` that decide a size or say why there is none; `core/engine` reads the same list.
const CONTROLLER: &str = include_str!("horizontal_test.txt");

#[test]
fn every_row_of_the_controller_is_run_or_says_why_not() {
    let rows = policy_conformance::hpa::rows();
    let words = |text: &str| -> Vec<String> {
        text.split(|c: char| !c.is_ascii_alphanumeric() && c != '*').map(str::to_owned).collect()
    };
    let run: Vec<String> = rows.iter().flat_map(|row| words(&row.name)).collect();
    let not: Vec<String> = policy_conformance::hpa::NOT_THE_POLICYS.iter().flat_map(|(name, _)| words(name)).collect();
    let is = |word: &String, row: &str| word.strip_suffix('*').map_or(word == row, |prefix| row.starts_with(prefix));
    for row in CONTROLLER.lines() {
        let there = run.iter().chain(&not).any(|word| is(word, row));
        assert!(there, "{row} is neither a row nor in NOT_THE_POLICYS");
    }
}
