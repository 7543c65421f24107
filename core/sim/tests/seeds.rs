//! The first seeds, as every change has to pass them. Many more: `make simulate`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use eto_sim::{Counts, Outcome, run};

fn all_hold(seeds: std::ops::Range<u64>) -> Vec<Outcome> {
    let outcomes: Vec<Outcome> = seeds.map(|seed| run(seed, 0)).collect();
    for outcome in &outcomes {
        if let Some(violation) = &outcome.violation {
            let end = run(outcome.seed, 40).trace.join("\n");
            panic!("{end}\nseed {}: {violation}\nreplay: {}", outcome.seed, outcome.replay());
        }
    }
    outcomes
}

/// Not an empty world: each of these has to have happened, and often.
fn much_has_happened(outcomes: &[Outcome]) {
    let sum = |of: fn(&Counts) -> u64| outcomes.iter().map(|o| of(&o.counts)).sum::<u64>();
    let n = u64::try_from(outcomes.len()).unwrap();
    assert!(sum(|c| c.faults) >= n, "{} faults", sum(|c| c.faults));
    assert!(sum(|c| c.rounds) >= 2 * n, "{} rounds", sum(|c| c.rounds));
    assert!(sum(|c| c.steps) >= 20 * n, "{} steps of training", sum(|c| c.steps));
    assert!(sum(|c| c.kills) > 0, "the operator was never killed");
}

#[test]
fn the_first_seeds_hold() {
    much_has_happened(&all_hold(0..100));
}

#[test]
fn the_next_seeds_hold() {
    much_has_happened(&all_hold(100..200));
}

#[test]
fn the_seeds_after_them_hold() {
    much_has_happened(&all_hold(200..300));
}

#[test]
fn a_seed_tells_the_same_story_each_time() {
    let longest = (0..10).map(|seed| run(seed, usize::MAX)).max_by_key(|o| o.trace.len()).unwrap();
    assert!(longest.trace.len() > 50, "{} lines", longest.trace.len());
    assert_eq!(longest, run(longest.seed, usize::MAX));
    assert_ne!(longest.trace, run(longest.seed + 1, usize::MAX).trace);
}
