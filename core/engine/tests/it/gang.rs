//! Rounds that do not start as they should.

use std::collections::BTreeSet;

use eto_engine::contract::{Readiness, WorkerPhase};
use eto_engine::job::{JobSpec, LegalSizes};
use eto_engine::observe::Pod;
use eto_engine::plan::{Plan, PlanFacts, Refused, plan};
use eto_engine::state::{ConditionKind, ConditionReason, JobState};
use eto_engine::time::Time;

use crate::common::*;
use crate::plan::{condition, created, deleted, step, why};

/// Pods of round 2 that wait for a node.
fn waiting(size: u32) -> Vec<Pod> {
    let new = |i| Pod {
        phase: WorkerPhase::Pending,
        ready: Readiness::Unknown,
        node: None,
        started: None,
        ..pod(i, 2, size)
    };
    (0..size).map(new).collect()
}

fn starting(spec: &JobSpec, size: u32, complete: Time) -> JobState {
    let mut state = running(spec, size);
    state.last_generation = 2;
    let round = state.round.as_mut().unwrap();
    (round.generation, round.running_since, round.complete) = (2, None, Some(complete));
    state
}

#[test]
fn a_growth_that_gets_no_nodes_is_taken_back() {
    let spec = job(2, 5, 5);
    let mut all = waiting(5);
    all[..3].iter_mut().for_each(|p| p.node = Some("n".into()));
    let p = step(&spec, &starting(&spec, 5, ago(119)), &all);
    assert_eq!((p.actions.len(), p.next_look), (0, Some(NOW.plus(secs(1)))));
    let p = step(&spec, &starting(&spec, 5, ago(120)), &all);
    assert_eq!((p.state.target, deleted(&p).len()), (3, 5));
    let resize = p.state.last_resize.clone().unwrap();
    assert_eq!((resize.from, resize.to, resize.refused, resize.refusals), (5, 3, true, 1));
    let named: Vec<u32> = p.state.victims.iter().map(|v| v.index).collect();
    assert_eq!(named, [4, 3], "the pending ones");
    assert_eq!(why(&p, ConditionKind::Resizing), (false, ConditionReason::GrowthRefused));
    // A legal size below, if there are only some.
    let mut even = spec.clone();
    even.legal = LegalSizes::List(vec![2, 5]);
    assert_eq!(step(&even, &starting(&even, 5, ago(120)), &all).state.target, 2);
}

#[test]
fn a_gang_that_does_not_start_is_released_as_a_whole() {
    let spec = job(3, 5, 5);
    let mut all = waiting(5);
    all[..2].iter_mut().for_each(|p| p.node = Some("n".into()));
    let state = starting(&spec, 5, ago(599));
    assert_eq!(step(&spec, &state, &all).actions, [], "two are fewer than the minimum: wait for the deadline");
    let p = step(&spec, &starting(&spec, 5, ago(600)), &all);
    assert_eq!((deleted(&p).len(), p.state.target, p.state.start_attempts), (5, 5, 1));
    assert_eq!(p.state.not_before, Some(NOW.plus(secs(10))));
    assert_eq!(why(&p, ConditionKind::Restarting), (true, ConditionReason::StartTimedOut));
    assert_eq!(p.state.failures, 0, "it is not the job's fault");
    // All have a node, but some do not come up.
    for p in &mut all {
        p.node = Some("n".into());
    }
    all[..4].iter_mut().for_each(|p| p.phase = WorkerPhase::Running);
    let p = step(&spec, &starting(&spec, 5, ago(600)), &all);
    assert_eq!(p.state.target, 4);
}

#[test]
fn refused_pods_clamp_the_size_or_are_tried_again() {
    let spec = job(2, 5, 5);
    let mut state = starting(&spec, 5, NOW);
    state.round.as_mut().unwrap().complete = None;
    let refused = |round, created| Refused { round, created, message: "exceeded quota: gpus".into() };
    let with = |r: &Refused, n| {
        plan(&spec, &state, &waiting(5)[..n], &PlanFacts { refused: Some(r), ..PlanFacts::default() }, NOW)
    };
    let p = with(&refused(2, 3), 3);
    assert_eq!((p.state.target, deleted(&p).len()), (3, 3));
    assert_eq!(why(&p, ConditionKind::Scheduled), (false, ConditionReason::PodsRefused));
    assert!(condition(&p, ConditionKind::Scheduled).message.contains("exceeded quota"));
    let p = with(&refused(2, 1), 1);
    assert_eq!((p.state.target, deleted(&p).len(), p.state.not_before), (5, 1, Some(NOW.plus(secs(10)))));
    // The reason stays until the pods are there.
    let next = step(&spec, &p.state, &[]);
    assert_eq!(why(&next, ConditionKind::Scheduled), (false, ConditionReason::PodsRefused));
    // A refusal of an earlier round is history.
    let p = with(&refused(1, 1), 1);
    assert_eq!((p.state.target, created(&p).len()), (5, 4));
}

#[test]
fn a_demanded_node_that_never_comes_is_given_up_before_the_size_is() {
    let spec = job(1, 3, 3);
    let mut state = starting(&spec, 3, ago(120));
    state.round.as_mut().unwrap().required_nodes = true;
    let mut all = waiting(3);
    all[..2].iter_mut().for_each(|p| p.node = Some("n".into()));
    let p = step(&spec, &state, &all);
    assert_eq!((p.state.target, p.state.start_attempts, deleted(&p).len()), (3, 1, 3));
    let places = (0..3).map(|i| (i, eto_engine::placement::NodeChoice { node: "n".into(), required: true })).collect();
    let facts = PlanFacts { places: Some(&places), ..PlanFacts::default() };
    let next = plan(&spec, &p.state, &[], &facts, NOW.plus(secs(10)));
    assert!(created(&next).iter().all(|n| n.node.as_ref().is_some_and(|c| !c.required)));
}

#[test]
fn a_pod_stuck_on_a_dead_node_is_not_waited_for_for_ever() {
    let spec = job(1, 2, 5);
    let mut all = pods(2);
    all[1].deleting = Some(NOW);
    let p = step(&spec, &running(&spec, 2), &all);
    all.remove(0);
    let sick = BTreeSet::from(["node-1".to_owned()]);
    let at = |s, sick: Option<&BTreeSet<String>>| {
        let facts = PlanFacts { sick_nodes: sick, ..PlanFacts::default() };
        created(&plan(&spec, &p.state, &all, &facts, NOW.plus(secs(s)))).len()
    };
    assert_eq!((at(89, Some(&sick)), at(90, Some(&sick))), (0, 2), "grace of 30 s and a minute");
    assert_eq!(at(10_000, None), 0, "its node is well: it will go");
}

#[test]
fn refusals_in_a_row_are_counted_until_a_growth_works() {
    let spec = job(1, 4, 4);
    let mut some = waiting(4);
    for p in &mut some[..2] {
        p.node = Some("n".into());
    }
    let refuse = |state: &JobState| {
        let mut state = state.clone();
        let round = state.round.as_mut().unwrap();
        (round.generation, round.size, round.complete, round.running_since) = (2, 4, Some(ago(120)), None);
        (state.target, state.last_generation) = (4, 2);
        step(&spec, &state, &some).state
    };
    let first = refuse(&running(&spec, 4));
    assert_eq!(first.last_resize.as_ref().unwrap().refusals, 1);
    // It is told to grow again.
    let grow = |mut state: JobState| {
        state.target = 4;
        step(&spec, &state, &[]).state
    };
    let second = refuse(&grow(first));
    assert_eq!(second.last_resize.as_ref().unwrap().refusals, 2);
    // And again, and this time all workers come up.
    let grown = grow(second);
    let pods: Vec<Pod> = (0..4).map(|i| pod(i, grown.last_generation, 4)).collect();
    let ready = step(&spec, &step(&spec, &grown, &pods).state, &pods).state;
    assert_eq!(ready.last_resize.map(|r| (r.refused, r.refusals)), Some((false, 0)));
}

#[test]
fn an_api_server_that_fails_is_told_while_pods_are_missing() {
    let spec = job(2, 5, 5);
    let mut state = starting(&spec, 5, NOW);
    state.round.as_mut().unwrap().complete = None;
    let facts = PlanFacts { failing: Some("failed calling webhook"), ..PlanFacts::default() };
    let p = plan(&spec, &state, &waiting(5)[..2], &facts, NOW);
    assert_eq!(why(&p, ConditionKind::Scheduled), (false, ConditionReason::PodsNotCreated));
    assert!(condition(&p, ConditionKind::Scheduled).message.contains("failed calling webhook"));
    assert_eq!((created(&p).len(), p.state.target), (3, 5), "it is tried again, and no size is taken back");
    let next = step(&spec, &p.state, &waiting(5));
    assert_eq!(why(&next, ConditionKind::Scheduled), (false, ConditionReason::WaitingForPods));
}

#[test]
fn variables_of_the_template_that_give_way_are_in_a_condition_until_they_are_taken_out() {
    let mut spec = job(1, 2, 4);
    let first = plan(&spec, &JobState::default(), &[], &PlanFacts::default(), NOW);
    let told = |p: &Plan| p.state.conditions.iter().find(|c| c.kind == ConditionKind::TemplateApplied).cloned();
    assert_eq!(told(&first), None, "most templates are as they should be");
    spec.template.as_mut().unwrap().overridden = vec!["RANK".into(), "WORLD_SIZE".into()];
    let p = plan(&spec, &first.state, &[], &PlanFacts::default(), NOW);
    let condition = told(&p).unwrap();
    assert_eq!((condition.status, condition.reason), (false, ConditionReason::RankVariablesOverridden));
    assert!(condition.message.contains("RANK, WORLD_SIZE"), "{condition:?}");
    spec.template.as_mut().unwrap().overridden.clear();
    let p = plan(&spec, &p.state, &[], &PlanFacts::default(), NOW);
    assert_eq!(told(&p).map(|c| (c.status, c.reason)), Some((true, ConditionReason::TemplateAsWritten)));
}
