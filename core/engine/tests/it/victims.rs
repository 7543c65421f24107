//! Workers that are to go, by recreation: who is given up first, and who moves.

use std::collections::BTreeSet;

use eto_engine::plan::{Announced, EventReason, PlanFacts, plan};
use eto_engine::state::{Phase, RoundCause};

use crate::common::*;
use crate::plan::deleted;

#[test]
fn who_is_to_go_or_on_a_faulty_node_goes_first() {
    let mut spec = job(1, 6, 6);
    let mut all = pods(6);
    for pod in &mut all {
        pod.node = Some(format!("n{}", pod.index));
    }
    let state = running(&spec, 6);
    spec.replicas = 2;
    let announced = Announced { why: "taint drain of node n1".into(), by: None };
    let leaving = [(all[1].uid.clone(), announced)].into();
    let (sick, faulty): (BTreeSet<String>, BTreeSet<String>) = (["n2".into()].into(), ["n3".into()].into());
    let facts = PlanFacts {
        sick_nodes: Some(&sick),
        faulty_nodes: Some(&faulty),
        leaving: Some(&leaving),
        ..PlanFacts::default()
    };
    let victims = plan(&spec, &state, &all, &facts, NOW).state.victims;
    let said: Vec<(u32, &str)> = victims.iter().map(|v| (v.index, v.reason.as_str())).collect();
    assert_eq!(
        said,
        [
            (1, "its end is announced"),
            (2, "its node is not ready"),
            (3, "its node has a fault"),
            (5, "it has the highest index"),
        ]
    );
}

#[test]
fn a_worker_that_is_to_go_makes_a_new_round_where_there_is_room() {
    let spec = job(1, 2, 5);
    let all = pods(2);
    let announced = Announced { why: "taint drain of node n".into(), by: None };
    let leaving = [(all[1].uid.clone(), announced)].into();
    let with_room = |room| {
        let facts = PlanFacts { leaving: Some(&leaving), room, ..PlanFacts::default() };
        plan(&spec, &running(&spec, 2), &all, &facts, NOW)
    };
    let p = with_room(Some(1));
    assert_eq!((p.state.last_generation, deleted(&p).len()), (2, 2));
    assert_eq!(p.state.round.as_ref().map(|r| (r.size, r.cause)), Some((2, RoundCause::Moved)));
    assert_eq!(
        (p.state.failures, p.state.disruptions, p.state.not_before, p.state.phase),
        (0, 0, None, Phase::Resizing)
    );
    assert_eq!(p.events[0].reason, EventReason::WorkerLeaving);
    for room in [None, Some(0)] {
        let p = with_room(room);
        assert_eq!((p.state.last_generation, p.actions.len()), (1, 0), "it trains on as long as it can");
    }
}
