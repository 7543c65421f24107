//! The operator ends at every step of every transaction, and other faults at every step of one that resizes. All faults at
//! all steps: `make simulate`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;

use eto_sim::{Change, Outcome, Point, run_at, sweep};

fn all_hold(seed: u64, from: Point) -> Vec<Outcome> {
    let outcomes: Vec<Outcome> = sweep(seed, from).collect();
    if let Some(broken) = outcomes.iter().find(|o| o.violation.is_some()) {
        let end = run_at(seed, broken.point.unwrap(), 40).unwrap().trace.join("\n");
        panic!("{end}\n{}\nreplay: {}", broken.violation.as_ref().unwrap(), broken.replay());
    }
    outcomes
}

/// A seed whose job takes part in all transactions: it can grow and shrink, and hangs are looked for.
const SEED: u64 = 3;

#[test]
fn the_operator_may_end_at_any_step() {
    let kills = Point::firsts().filter(|p| p.kills_operator());
    let steps: BTreeMap<Change, Vec<Outcome>> = kills.map(|p| (p.change(), all_hold(SEED, p))).collect();
    for change in Change::ALL {
        let outcomes = &steps[&change];
        // Each is a story of its own, and in each the operator has ended.
        assert!(outcomes.len() >= 10, "{change:?} has {} steps", outcomes.len());
        let killed = outcomes.iter().filter(|o| o.counts.kills > 0).count();
        // No replica may lead at the very first steps of a start.
        assert!(killed + 2 >= outcomes.len(), "{change:?}: killed at {killed} of {} steps", outcomes.len());
    }
}

#[test]
fn any_fault_may_strike_at_any_step_of_a_shrink() {
    let all: Vec<Outcome> =
        Point::firsts().filter(|p| p.change() == Change::Shrink).flat_map(|p| all_hold(SEED, p)).collect();
    let (stories, faults) = (all.len(), all.iter().filter(|o| o.counts.faults > 0).count());
    // Between two rounds there is no process that could fail or hang.
    assert!(faults * 4 >= stories * 3, "a fault struck in {faults} of {stories} stories");
}

#[test]
fn a_point_tells_the_same_story_each_time() {
    let point: Point = "Grow/KillOperator/5".parse().unwrap();
    let once = run_at(SEED, point, usize::MAX).unwrap();
    assert!(once.trace.iter().any(|line| line.contains("is killed")), "{:?}", once.trace);
    assert_eq!(Some(once), run_at(SEED, point, usize::MAX));
    assert_eq!(run_at(SEED, "Grow/KillOperator/5000".parse().unwrap(), 0), None);
}
