//! Members whose end was announced: others take their place before they go, or they go in time without.

use std::collections::BTreeSet;

use eto_engine::job::ElasticityMode;
use eto_engine::plan::EventReason;
use eto_engine::state::{ChangeStep, ConditionKind, ConditionReason, Phase, RoundCause, RoundOrder};
use eto_membership::Order;

use super::world::AgentWorld;
use crate::common::{job, secs};

fn step(world: &AgentWorld) -> Option<ChangeStep> {
    world.state.change.as_ref().map(|c| c.step)
}

fn sizes(world: &AgentWorld) -> Vec<usize> {
    world.published.values().map(|r| r.members.len()).collect()
}

#[test]
fn a_member_that_is_to_go_is_replaced_before_it_goes() {
    for index in [2, 0] {
        let mut world = AgentWorld::running(job(3, 3, 5));
        let uid = world.pods[index].uid.clone();
        world.announce(index, None);
        let told: Vec<_> = world.plan(&world.state).events.into_iter().map(|e| e.reason).collect();
        assert_eq!(told, [EventReason::WorkerLeaving]);
        world.go(1);
        assert_eq!((world.pods.len(), world.generation(), world.order()), (4, 1, RoundOrder::Run));
        assert_eq!(world.state.change.as_ref().map(|c| (c.cause, c.from, c.to)), Some((RoundCause::Moved, 3, 3)));
        world.go(12);
        assert!(world.pods.iter().all(|p| p.uid != uid), "{index} has gone");
        assert_eq!((sizes(&world), world.state.round.as_ref().unwrap().cause), (vec![3, 3], RoundCause::Moved));
        assert_eq!((world.state.failures, world.state.disruptions, world.state.not_before), (0, 0, None));
        assert_eq!(world.group.assignment.as_ref().unwrap().grace_ms, 30_000);
        world.check_settled();
    }
}

#[test]
fn without_room_it_goes_when_its_replacement_has_waited_long_enough() {
    let mut world = AgentWorld::running(job(1, 3, 5));
    world.room = 3;
    world.announce(1, None);
    world.go(100);
    assert_eq!((world.generation(), step(&world)), (1, Some(ChangeStep::WaitingForJoins)));
    world.go(25);
    assert_eq!((world.generation(), world.members()), (2, vec![0, 2]), "the others go on");
    world.go(20);
    assert_eq!((sizes(&world), world.state.failures), (vec![3, 2, 3], 0), "then there is room");
    world.check_settled();
}

#[test]
fn at_the_minimum_it_trains_on_until_there_is_room() {
    let mut world = AgentWorld::running(job(3, 3, 5));
    world.room = 3;
    world.announce(1, None);
    world.go(900);
    assert_eq!((world.generation(), world.state.phase, world.state.target), (1, Phase::Running, 3));
    world.room = 4;
    world.go(12);
    assert_eq!((sizes(&world), world.state.disruptions), (vec![3, 3], 0));
    world.check_settled();
}

#[test]
fn a_known_end_is_stopped_for_in_time_with_the_grace_that_is_left() {
    let mut world = AgentWorld::running(job(1, 3, 5));
    world.room = 3;
    world.announce(1, Some(secs(60)));
    world.go(24);
    assert_eq!(world.generation(), 1, "its replacement may still come");
    world.go(2);
    assert_eq!((world.generation(), world.members()), (2, vec![0, 2]));
    assert_eq!(world.group.assignment.as_ref().unwrap().grace_ms, 30_000);
    world.go(30);
    world.check_settled();
    // Too short for the whole grace: at once, and below the minimum too.
    let mut world = AgentWorld::running(job(3, 3, 5));
    world.room = 3;
    world.announce(1, Some(secs(12)));
    world.go(1);
    assert_eq!((world.generation(), world.order()), (2, RoundOrder::Stop));
    assert_eq!(world.group.assignment.as_ref().unwrap().grace_ms, 7_000, "what comes after it has to be done by then");
    world.go(30);
    assert_eq!((world.state.failures, world.members().len()), (0, 3));
    world.check_settled();
}

#[test]
fn an_announcement_that_is_taken_back_changes_nothing() {
    let mut world = AgentWorld::running(job(1, 3, 5));
    world.room = 3;
    world.announce(1, None);
    world.go(5);
    assert_eq!(world.pods.len(), 4);
    world.leaving.clear();
    world.go(5);
    assert_eq!((world.generation(), world.state.change.is_none()), (1, true));
    world.check_settled();
}

#[test]
fn a_replacement_over_the_quota_is_not_waited_for() {
    let mut world = AgentWorld::running(job(1, 3, 5));
    world.quota = 3;
    world.announce(1, None);
    world.go(4);
    assert_eq!((world.generation(), world.state.target), (2, 3), "the target stays");
    world.go(30);
    assert_eq!((sizes(&world), world.state.failures), (vec![3, 2, 3], 0));
    world.check_settled();
    // At the minimum it stays as long as its node does, and is tried for more and more seldom.
    let mut world = AgentWorld::running(job(3, 3, 5));
    world.quota = 3;
    world.announce(1, None);
    let mut tries = BTreeSet::new();
    for second in 0..3_600 {
        world.go(1);
        tries.extend(world.state.not_before);
        let scheduled = world.state.conditions.iter().find(|c| c.kind == ConditionKind::Scheduled).unwrap();
        assert!(second < 2 || scheduled.reason == ConditionReason::PodsRefused, "{second}: {scheduled:?}");
    }
    assert!((10..=20).contains(&tries.len()), "tried again in an hour at {tries:?}");
    assert_eq!((world.generation(), world.state.phase), (1, Phase::Running));
    world.quota = 4;
    world.go(400);
    assert_eq!((sizes(&world), world.state.disruptions), (vec![3, 3], 0));
    world.check_settled();
}

#[test]
fn what_a_dead_node_holds_keeps_no_replacement_waiting() {
    let mut world = AgentWorld::running(job(2, 3, 5));
    world.announce(1, Some(secs(12)));
    world.go(1);
    assert_eq!((world.generation(), world.order()), (2, RoundOrder::Stop), "at once: too little time is left");
    let node = world.pods[1].node.clone().unwrap();
    world.sick.insert(node.clone());
    world.go(60);
    assert!(world.pods.iter().any(|p| p.node.as_ref() == Some(&node)), "its pod stays as it was");
    assert_eq!((world.members().len(), world.state.phase), (3, Phase::Running));
}

#[test]
fn a_loss_does_not_wait_for_the_back_off_of_who_was_to_join() {
    let mut world = AgentWorld::running(job(1, 3, 5));
    world.state.not_before = Some(world.now.plus(secs(300)));
    world.evict(2);
    world.go(15);
    assert_eq!((world.members().len(), world.state.phase, world.state.disruptions), (3, Phase::Running, 1));
    world.check_settled();
}

#[test]
fn a_node_that_goes_before_is_a_disruption() {
    let mut world = AgentWorld::running(job(1, 3, 5));
    world.announce(2, None);
    world.go(1);
    world.evict(2);
    world.go(15);
    assert_eq!((world.state.failures, world.state.disruptions), (0, 1));
    world.check_settled();
}

#[test]
fn a_growth_and_a_move_are_one_round() {
    let mut world = AgentWorld::running(job(1, 3, 5));
    world.announce(1, None);
    world.job.replicas = 5;
    world.go(15);
    assert_eq!(sizes(&world), [3, 5]);
    world.check_settled();
}

#[test]
fn who_is_to_go_is_given_up_first() {
    let mut world = AgentWorld::running(job(1, 4, 5));
    world.announce(1, None);
    world.job.replicas = 2;
    world.operate(usize::MAX);
    let victims: Vec<u32> = world.state.victims.iter().map(|v| v.index).collect();
    assert_eq!(victims, [1, 3]);
    world.go(15);
    assert_eq!(sizes(&world), [4, 2]);
    world.check_settled();
}

#[test]
fn all_members_may_be_told_at_once() {
    let mut world = AgentWorld::running(job(2, 3, 5));
    for at in 0..3 {
        world.announce(at, Some(secs(120)));
    }
    world.go(15);
    assert_eq!((sizes(&world), world.state.failures), (vec![3, 3], 0));
    world.check_settled();
}

#[test]
fn a_checkpoint_is_waited_for_before_places_are_changed() {
    let mut world = AgentWorld::running(job(1, 3, 5));
    world.checkpoint(0, 10);
    world.go(1);
    world.announce(1, None);
    world.go(10);
    assert_eq!((world.generation(), step(&world)), (1, Some(ChangeStep::WaitingForCheckpoint)));
    world.checkpoint(0, 20);
    world.go(10);
    assert_eq!((world.generation(), world.state.phase), (2, Phase::Running));
    world.check_settled();
}

#[test]
fn a_run_of_torchrun_goes_on_while_a_member_moves() {
    let mut spec = job(1, 3, 5);
    spec.elasticity.mode = ElasticityMode::Native;
    let mut world = AgentWorld::running(spec);
    let run = world.group.assignment.as_ref().unwrap().native;
    world.announce(2, None);
    for _ in 0..20 {
        world.operate(usize::MAX);
        assert_eq!(world.group.assignment.as_ref().map(|a| a.order), Some(Order::Run), "nobody is told to stop");
        world.pass(secs(1), u16::MAX);
    }
    assert_eq!((sizes(&world), world.state.failures), (vec![3, 3], 0));
    assert_eq!(world.group.assignment.as_ref().unwrap().native, run);
    world.check_settled();
}

#[test]
fn a_round_of_which_all_are_to_go_at_once_stops_in_time_and_begins_anew_elsewhere() {
    let mut world = AgentWorld::running(job(2, 3, 5));
    world.room = 3;
    for at in 0..3 {
        world.announce(at, Some(secs(12)));
    }
    world.go(1);
    assert_eq!((world.generation(), world.order()), (2, RoundOrder::Stop));
    world.go(40);
    assert_eq!((world.members().len(), world.state.phase, world.state.failures), (3, Phase::Running, 0));
    world.check_settled();
}
