//! The rules find what they are there for.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use eto_sim::{Defect, run_with};

#[test]
fn every_rule_finds_its_defect() {
    let missed: Vec<_> = Defect::ALL
        .into_iter()
        .filter(|(defect, rule)| {
            let mut found = (0..120).filter_map(|seed| run_with(Some(*defect), seed, 0).violation);
            !found.any(|v| v.rule == *rule)
        })
        .collect();
    assert_eq!(missed, [], "not found in 120 stories");
}
