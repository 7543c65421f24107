//! What others may evict, and that a node can always be drained.

use std::time::Duration;

use eto_engine::contract::{Readiness, WorkerPhase};
use eto_engine::plan::{PlanFacts, budget, plan};
use eto_engine::state::Phase;

use crate::common::*;

#[test]
fn what_is_above_the_minimum_may_go_and_one_at_the_minimum() {
    for (min, size, stay) in [(1, 3, 1), (2, 3, 2), (3, 3, 2), (1, 1, 0), (2, 9, 2)] {
        let spec = job(min, size, 9);
        let got = budget(&spec, &running(&spec, size), &pods(size), NOW).unwrap();
        assert_eq!(got, stay, "{min} {size}");
        assert!(size - got >= 1.max(size - min), "a drain always goes on");
    }
}

#[test]
fn a_job_that_waits_for_a_node_keeps_nobody_from_draining() {
    let spec = job(3, 3, 3);
    let mut state = running(&spec, 3);
    let mut all = pods(3);
    (all[2].node, all[2].unschedulable) = (None, Some("0/2 nodes".into()));
    assert_eq!(budget(&spec, &state, &all, NOW), Some(2), "while it trains its members are kept");
    state.phase = Phase::Restarting;
    assert_eq!(budget(&spec, &state, &all, NOW), Some(0));
    all[2].unschedulable = None;
    assert_eq!(budget(&spec, &state, &all, NOW), Some(2), "a replacement that is on its way is waited for");
}

#[test]
fn a_job_that_does_not_train_for_long_keeps_nobody_from_draining() {
    let spec = job(3, 3, 3);
    let mut all = pods(3);
    (all[2].phase, all[2].ready) = (WorkerPhase::Pending, Readiness::NotReady);
    let mut state = running(&spec, 3);
    state.phase = Phase::Restarting;
    let lost = plan(&spec, &state, &all[..2], &PlanFacts::default(), NOW);
    let wait = Duration::from_secs(120);
    let at = |seconds: u64| budget(&spec, &lost.state, &all, NOW.plus(Duration::from_secs(seconds)));
    assert_eq!((at(119), at(120)), (Some(2), Some(0)), "its image can't be pulled, or its quota is used up");
    assert!(lost.next_look.is_some_and(|at| at <= NOW.plus(wait)), "and it is looked at then");
}

#[test]
fn a_worker_that_stays_unready_keeps_the_others_from_no_drain_and_a_new_one_does() {
    for (min, size, before, after) in [(3, 4, 3, 2), (3, 3, 2, 1), (1, 1, 0, 0), (2, 9, 2, 2)] {
        let spec = job(min, size, 9);
        let state = running(&spec, size);
        let mut all = pods(size);
        let last = all.len() - 1;
        (all[last].ready, all[last].ready_changed) = (Readiness::NotReady, Some(NOW));
        let at = |seconds: u64| budget(&spec, &state, &all, NOW.plus(Duration::from_secs(seconds)));
        assert_eq!((at(119), at(120)), (Some(before), Some(after)), "{min} {size}");
        // What the API server makes of it: healthy pods beyond the number may go.
        let healthy = size - 1;
        assert_eq!(healthy.saturating_sub(after), 1.max(healthy.saturating_sub(min)).min(healthy), "{min} {size}");
        let seen = plan(&spec, &state, &all, &PlanFacts::default(), NOW);
        assert!(seen.next_look.is_some_and(|at| at <= NOW.plus(Duration::from_secs(120))), "and it is looked at then");
        // Its replacement has just been made: nobody goes because of it.
        all[last].ready_changed = None;
        all[last].created = NOW.plus(Duration::from_secs(60));
        assert_eq!(budget(&spec, &state, &all, NOW.plus(Duration::from_secs(120))), Some(before));
        all[last].deleting = Some(NOW);
        assert_eq!(
            budget(&spec, &state, &all, NOW.plus(Duration::from_secs(900))),
            Some(before),
            "nor of one that goes"
        );
    }
}

#[test]
fn none_is_wanted_by_who_says_so_and_after_the_end() {
    let mut spec = job(1, 3, 5);
    let mut state = running(&spec, 3);
    spec.elasticity.disruption_budget = false;
    assert_eq!(budget(&spec, &state, &pods(3), NOW), None);
    spec.elasticity.disruption_budget = true;
    spec.suspend = true;
    assert_eq!(budget(&spec, &state, &pods(3), NOW), None);
    spec.suspend = false;
    state.phase = Phase::Succeeded;
    assert_eq!(budget(&spec, &state, &pods(3), NOW), None);
    state.phase = Phase::Pending;
    state.round = None;
    assert_eq!(budget(&spec, &state, &[], NOW), None);
}
