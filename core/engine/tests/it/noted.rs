//! What is remembered of questions to placement policies.

use std::collections::BTreeMap;

use eto_engine::contract::{KeptState, Reason};
use eto_engine::decision::PlacedOn;
use eto_engine::guard::{CIRCUIT_AFTER, CIRCUIT_FIRST};
use eto_engine::job::{Mode, PlacementSpec};
use eto_engine::placement::{Asked, MAX_PLACES, NodeChoice, Settled, is_open, need, note};
use eto_engine::plan::{PlanFacts, plan};
use eto_engine::policy::{CallFailure, FailureKind, PolicyId};
use eto_engine::state::{JobState, Kept, PlacementMemory};
use eto_engine::time::Time;

use crate::common::*;

fn id(digest: &str) -> PolicyId {
    PolicyId { name: "near".into(), version: "1.0.0".into(), digest: digest.into() }
}

fn asked(policy: &PolicyId, now: Time) -> Asked<'_> {
    Asked { policy: Some(policy), generation: 3, apply: true, fuel: 9, now }
}

fn settled(places: impl IntoIterator<Item = (u32, &'static str, bool)>) -> Settled {
    let choice = |(worker, node, required): (u32, &str, bool)| (worker, NodeChoice { node: node.into(), required });
    Settled { places: places.into_iter().map(choice).collect(), victims: vec![7] }
}

fn failure(kind: FailureKind) -> CallFailure {
    CallFailure { kind, message: "at src/lib.rs:3".into() }
}

#[test]
fn an_answer_is_kept_by_node_and_without_a_new_state_the_old_one_stays() {
    let (policy, mut memory) = (id("a"), PlacementMemory::default());
    let reasons =
        vec![Reason { code: "Near".into(), message: "one rack".into(), signal: None, value: None, target: None }];
    let answer = settled([(1, "b", false), (2, "a", false), (4, "b", false), (5, "b", true)]);
    let kept = Kept { state: Some(KeptState { version: 1, bytes: vec![7] }), of: Some("near".into()) };
    note(&mut memory, asked(&policy, NOW), Ok((&answer, reasons.clone())), Some(kept.clone()));
    let last = memory.last.clone().unwrap();
    let on = |node: &str, required, workers: &[u32]| PlacedOn { node: node.into(), required, workers: workers.into() };
    assert_eq!(last.nodes, [on("a", false, &[2]), on("b", false, &[1, 4]), on("b", true, &[5])]);
    assert_eq!((last.victims, last.reasons, last.fuel, last.generation, last.failure), (vec![7], reasons, 9, 3, None));
    note(&mut memory, asked(&policy, NOW), Ok((&settled([]), vec![])), None);
    assert_eq!(memory.kept, kept);
    // What people are shown is bounded.
    let many = settled((0..300).map(|worker| (worker, "a", false)));
    note(&mut memory, asked(&policy, NOW), Ok((&many, vec![])), None);
    let last = memory.last.unwrap();
    assert_eq!((last.nodes[0].workers.len(), last.unlisted), (MAX_PLACES, 300 - 128));
}

#[test]
fn three_faults_in_a_row_open_the_circuit_of_this_digest_alone() {
    let (policy, mut memory) = (id("a"), PlacementMemory::default());
    for kind in [FailureKind::Missing, FailureKind::InvalidConfig, FailureKind::UnusableInput] {
        note(&mut memory, asked(&policy, NOW), Err(&failure(kind)), None);
        assert_eq!(memory.last.as_ref().unwrap().failure.as_ref().unwrap().in_a_row, 0, "{kind:?} is not its fault");
    }
    for n in 1..=CIRCUIT_AFTER {
        assert!(!is_open(&memory, "a", 3, NOW));
        note(&mut memory, asked(&policy, NOW), Err(&failure(FailureKind::Trap)), None);
        assert_eq!(memory.last.as_ref().unwrap().failure.as_ref().unwrap().in_a_row, n);
    }
    assert!(is_open(&memory, "a", 3, NOW) && !is_open(&memory, "b", 3, NOW));
    assert!(!is_open(&memory, "a", 3, NOW.plus(CIRCUIT_FIRST)), "one try");
    assert!(!is_open(&memory, "a", 4, NOW), "another spec has a try of its own");
    note(&mut memory, asked(&policy, NOW), Ok((&settled([]), vec![])), None);
    assert_eq!(memory.circuits, BTreeMap::new());
}

#[test]
fn it_is_asked_in_mode_recommend_too_and_not_in_mode_off() {
    let mut spec = job(1, 3, 4);
    let state = JobState::default();
    let mut added = |mode| {
        spec.placement = Some(PlacementSpec { module: "near".into(), config: "{}".into(), mode });
        let draft = plan(&spec, &state, &[], &PlanFacts::default(), NOW);
        need(&spec, &state, &draft).map(|need| need.add)
    };
    assert_eq!(added(Mode::Auto), Some(vec![0, 1, 2]));
    assert_eq!(added(Mode::Recommend), Some(vec![0, 1, 2]));
    assert_eq!(added(Mode::Off), None);
}
