//! A policy's state that is kept outside status.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use eto_api::ElasticJob;
use eto_cycle::checkpoint::{self, PolicyCheckpoint};
use eto_cycle::status::{MAX_STORED_POLICY_STATE, Restored, StatusFacts, restore, take_up, to_status};
use eto_engine::contract::{KeptState, MAX_STATE};
use eto_engine::state::{JobState, Kept, Memory};
use eto_engine::time::Time;

const NOW: Time = Time(1_800_000_000_000);
const BEFORE: Time = Time(1_799_000_000_000);

fn job() -> ElasticJob {
    serde_json::from_value(serde_json::json!({
        "apiVersion": "elastic.ai/v1alpha1", "kind": "ElasticJob",
        "metadata": {"namespace": "n", "name": "j", "uid": "u-1", "generation": 1},
        "spec": {"replicas": 2},
    }))
    .unwrap()
}

fn memory(sequence: u64, bytes: usize) -> Memory {
    Memory {
        sequence,
        policy_state: Some(KeptState { version: 3, bytes: vec![u8::try_from(sequence).unwrap(); bytes] }),
        policy_state_of: Some("mine".to_owned()),
        ..Memory::new(BEFORE)
    }
}

/// The same state, of the placement policy.
fn placement(sequence: u64, bytes: usize) -> Memory {
    let mut memory = memory(sequence, bytes);
    memory.placement.kept = Kept { state: memory.policy_state.take(), of: memory.policy_state_of.take() };
    memory
}

/// What a restart finds where status was written with `memory` at `NOW`.
fn after_restart(memory: &Memory, checkpoint: Option<PolicyCheckpoint>, now: Time) -> Restored {
    let (job, state) = (job(), JobState::default());
    let facts =
        StatusFacts { job: &job, spec: None, state: &state, memory, decision: None, replicas: 0, ready: 0, now: NOW };
    restore(&to_status(&facts), checkpoint, now).unwrap()
}

#[test]
fn a_state_makes_the_way_there_and_back() {
    for bytes in [MAX_STORED_POLICY_STATE + 1, MAX_STATE] {
        let checkpoint = PolicyCheckpoint::of(&memory(7, bytes), NOW).unwrap();
        let map = checkpoint::build(&job(), &checkpoint).unwrap();
        assert_eq!(map.metadata.owner_references.as_ref().unwrap()[0].uid, "u-1", "it goes with the job");
        let (of, read) = checkpoint::read(map).unwrap();
        assert_eq!((of.job.namespace.as_str(), of.job.name.as_str(), of.uid.as_str()), ("n", "j", "u-1"));
        assert_eq!(read, checkpoint);
        assert_eq!(read.digest(), PolicyCheckpoint::of(&memory(7, bytes), Time(0)).unwrap().digest());
    }
    assert_eq!(PolicyCheckpoint::of(&memory(7, MAX_STORED_POLICY_STATE), NOW), None, "status holds it");
    assert_eq!(PolicyCheckpoint::of(&Memory::new(NOW), NOW), None);
}

#[test]
fn the_placement_policys_state_is_kept_in_the_same_way() {
    let both = |sequence, bytes| Memory { placement: placement(sequence, bytes).placement, ..memory(sequence, bytes) };
    for memory in [placement(7, MAX_STATE), both(7, MAX_STATE)] {
        let checkpoint = PolicyCheckpoint::of(&memory, NOW).unwrap();
        assert_eq!(checkpoint::digest(&memory), Some(checkpoint.digest()));
        let (_, read) = checkpoint::read(checkpoint::build(&job(), &checkpoint).unwrap()).unwrap();
        assert_eq!(read, checkpoint);
        assert_eq!(after_restart(&memory, Some(read), NOW).memory, memory);
    }
    assert_eq!(PolicyCheckpoint::of(&placement(7, MAX_STORED_POLICY_STATE), NOW), None, "status holds it");
    assert_eq!(checkpoint::digest(&placement(7, MAX_STORED_POLICY_STATE)), None);
    // The size does not rest on it: one that is lost or old holds nothing.
    let (then, now) = (placement(5, 5000), placement(7, 5000));
    let older = after_restart(&now, PolicyCheckpoint::of(&then, NOW), NOW).memory;
    assert_eq!((older.placement.kept, older.since), (then.placement.kept, BEFORE));
    assert_eq!(after_restart(&now, None, NOW).memory.since, BEFORE);
    let small = placement(9, 100);
    assert_eq!(after_restart(&small, PolicyCheckpoint::of(&now, NOW), NOW).memory, small, "it has become small since");
}

#[test]
fn what_is_not_a_checkpoint_is_not_taken_for_one() {
    let map = checkpoint::build(&job(), &PolicyCheckpoint::of(&memory(7, 5000), NOW).unwrap()).unwrap();
    assert!(checkpoint::read(map.clone()).is_some());
    let broken: [fn(&mut k8s_openapi::api::core::v1::ConfigMap); 6] = [
        |m| m.metadata.owner_references = None,
        |m| m.metadata.owner_references.as_mut().unwrap()[0].kind = "Job".into(),
        |m| m.metadata.owner_references.as_mut().unwrap()[0].uid = "u-2".into(),
        |m| m.binary_data = None,
        |m| m.binary_data.as_mut().unwrap().get_mut("state").unwrap().0 = vec![0; MAX_STATE + 1],
        |m| drop(m.data.as_mut().unwrap().insert("sequence".into(), "many".into())),
    ];
    for (i, change) in broken.iter().enumerate() {
        let mut map = map.clone();
        change(&mut map);
        assert_eq!(checkpoint::read(map), None, "{i}");
    }
}

#[test]
fn a_fresh_checkpoint_is_gone_on_from_as_if_nothing_had_happened() {
    let memory = memory(7, 5000);
    let back = after_restart(&memory, PolicyCheckpoint::of(&memory, NOW), NOW);
    assert_eq!(back.memory, memory);
}

#[test]
fn an_old_or_lost_state_shrinks_nothing_for_a_window() {
    let at = |ms| Time(NOW.0 + ms);
    let (then, now) = (memory(5, 5000), memory(7, 5000));
    let older = after_restart(&now, PolicyCheckpoint::of(&then, NOW), at(1000)).memory;
    assert_eq!((older.policy_state, older.since, older.sequence), (then.policy_state.clone(), at(1000), 7));
    let aged = after_restart(&now, PolicyCheckpoint::of(&now, Time(NOW.0 - 61_000)), at(1000)).memory;
    assert_eq!((aged.policy_state, aged.since), (now.policy_state.clone(), at(1000)));
    let lost = after_restart(&now, None, at(1000)).memory;
    assert_eq!((lost.policy_state, lost.since), (None, at(1000)));
}

#[test]
fn the_newer_one_of_status_and_checkpoint_counts() {
    let (small, large) = (memory(9, 100), memory(7, 5000));
    let back = after_restart(&small, PolicyCheckpoint::of(&large, NOW), NOW).memory;
    assert_eq!(back, small, "the state has become small since");
    let (small, large) = (memory(7, 100), memory(9, 5000));
    let back = after_restart(&small, PolicyCheckpoint::of(&large, NOW), NOW).memory;
    assert_eq!((back.policy_state, back.sequence), (large.policy_state.clone(), 9), "it has become large since");
    let mut none = Memory::new(NOW);
    take_up(&mut none, PolicyCheckpoint::of(&large, NOW), NOW);
    assert_eq!((none.policy_state, none.since), (large.policy_state, NOW), "the status was lost, the state was not");
}
