//! Rounds of a run: members come and go, and nobody stops for it while the coordinator stays.

use eto_engine::job::{ElasticityMode, JobSpec, LegalSizes};
use eto_engine::plan::Action;
use eto_engine::state::{ConditionKind, ConditionReason, Phase, RoundOrder};
use eto_membership::{GlobalBatch, Native, Order};

use super::world::AgentWorld;
use crate::common::{job, secs};

fn native(min: u32, replicas: u32, max: u32) -> JobSpec {
    let mut spec = job(min, replicas, max);
    spec.elasticity.mode = ElasticityMode::Native;
    spec
}

fn run(world: &AgentWorld) -> Option<Native> {
    world.group.assignment.as_ref().unwrap().native
}

fn reason(world: &AgentWorld) -> ConditionReason {
    world.state.conditions.iter().find(|c| c.kind == ConditionKind::AgentRounds).unwrap().reason
}

/// Starts of each index.
fn starts(world: &AgentWorld, index: u32) -> usize {
    world.starts.iter().filter(|(i, _)| *i == index).count()
}

#[test]
fn a_growth_starts_who_joins_and_stops_nobody() {
    let mut world = AgentWorld::running(native(1, 2, 5));
    assert_eq!(
        (run(&world), reason(&world)),
        (Some(Native { run: 1, min: 1, max: 5, alone: false }), ConditionReason::NativeElasticity)
    );
    world.job.replicas = 4;
    for _ in 0..20 {
        world.operate(usize::MAX);
        assert_eq!(world.group.assignment.as_ref().map(|a| a.order), Some(Order::Run), "nobody is told to stop");
        world.pass(secs(1), u16::MAX);
    }
    assert!(world.settle());
    world.check_settled();
    assert_eq!(
        (world.generation(), world.members().len(), run(&world)),
        (2, 4, Some(Native { run: 1, min: 1, max: 5, alone: false }))
    );
    assert_eq!([0, 1, 2, 3].map(|index| starts(&world, index)), [1, 1, 1, 1]);
    let resize = world.state.last_resize.as_ref().unwrap();
    assert_eq!((resize.done.is_some(), resize.cost), (true, None), "what torchrun takes is not ours to measure");
}

#[test]
fn a_shrink_stops_the_victim_alone_and_deletes_it_when_it_has_stopped() {
    let mut world = AgentWorld::running(native(1, 3, 5));
    world.stop_time = secs(6);
    world.job.replicas = 2;
    world.operate(usize::MAX);
    let told = world.group.assignment.clone().unwrap();
    assert_eq!((told.order, told.round.members.len(), told.round.generation), (Order::Run, 2, 2));
    let victim = world.state.victims[0].uid.clone();
    for second in 0..20 {
        let plan = world.plan(&world.state);
        let deletes = plan.actions.iter().any(|a| matches!(a, Action::DeletePod { uid, .. } if *uid == victim));
        let runs = world.containers.get(&victim).is_some_and(|c| c.runs.is_some());
        assert!(!(deletes && runs), "deleted in second {second}, while it stops");
        world.operate(usize::MAX);
        world.pass(secs(1), u16::MAX);
    }
    assert!(world.settle());
    world.check_settled();
    assert_eq!([0, 1].map(|index| starts(&world, index)), [1, 1]);
    assert_eq!(world.generation(), 2);
}

#[test]
fn a_victim_that_does_not_stop_is_deleted_all_the_same() {
    let mut world = AgentWorld::running(native(1, 3, 5));
    world.job.replicas = 2;
    world.operate(usize::MAX);
    let victim = world.state.victims[0].uid.clone();
    world.cut.insert(victim.clone());
    world.go(39);
    assert!(world.pods.iter().any(|p| p.uid == victim && p.deleting.is_none()), "it has its grace");
    world.go(3);
    assert!(world.pods.iter().all(|p| p.uid != victim || p.deleting.is_some()));
}

#[test]
fn the_loss_of_a_member_stops_nobody_and_its_replacement_joins() {
    let mut world = AgentWorld::running(native(1, 3, 5));
    world.evict(2);
    world.operate(usize::MAX);
    let told = world.group.assignment.clone().unwrap();
    assert_eq!((told.order, told.round.generation, told.round.members.len()), (Order::Run, 2, 2));
    assert_eq!(world.state.phase, Phase::Restarting);
    assert!(world.settle());
    world.check_settled();
    assert_eq!((world.members().len(), run(&world).map(|n| n.run)), (3, Some(1)));
    assert_eq!([0, 1].map(|index| starts(&world, index)), [1, 1]);
    assert_eq!((world.state.disruptions, world.state.failures), (1, 0));
}

#[test]
fn torchrun_that_a_signal_ended_joins_again_and_one_that_ended_by_itself_has_closed_the_run() {
    let mut world = AgentWorld::running(native(1, 3, 5));
    world.exit(1, 137);
    world.pass(secs(1), u16::MAX);
    world.operate(usize::MAX);
    assert_eq!((run(&world).map(|n| n.run), world.order(), world.generation()), (Some(1), RoundOrder::Run, 2));
    world.go(5);
    assert_eq!([0, 1, 2].map(|index| starts(&world, index)), [1, 2, 1]);
    assert_eq!(world.state.failures, 1, "it is a failure all the same");
    world.go(400);
    world.exit(1, 1);
    world.pass(secs(1), u16::MAX);
    world.operate(usize::MAX);
    assert_eq!((world.order(), world.generation()), (RoundOrder::Stop, 3));
    assert!(world.settle());
    world.check_settled();
    assert_eq!(run(&world).map(|n| n.run), Some(3));
    assert_eq!([0, 1, 2].map(|index| starts(&world, index)), [2, 3, 2]);
}

/// 127 is what a shell says of a command that is not there, 129 and more of one that a signal ended.
#[test]
fn only_codes_above_128_are_signals() {
    for (code, order) in [(127, RoundOrder::Stop), (128, RoundOrder::Stop), (129, RoundOrder::Run)] {
        let mut world = AgentWorld::running(native(1, 3, 5));
        world.exit(1, code);
        world.pass(secs(1), u16::MAX);
        world.operate(usize::MAX);
        assert_eq!((world.order(), world.generation()), (order, 2), "code {code}");
    }
}

#[test]
fn the_loss_of_the_coordinator_begins_another_run() {
    for restarts in [false, true] {
        let mut world = AgentWorld::running(native(1, 3, 5));
        if restarts {
            world.kill_container(0);
        } else {
            world.evict(0);
        }
        world.pass(secs(1), u16::MAX);
        world.operate(usize::MAX);
        assert_eq!((world.order(), world.generation()), (RoundOrder::Stop, 2), "its store went with it");
        assert!(world.settle());
        world.check_settled();
        let told = world.group.assignment.clone().unwrap();
        let run = told.native.unwrap().run;
        assert!(run >= 2 && world.published[&run].port == told.round.port && told.round.port != 29501);
        assert!(starts(&world, 1) >= 2 && starts(&world, 2) >= 2);
    }
}

#[test]
fn a_node_that_is_cut_off_sends_no_last_word_so_all_start_anew() {
    let mut world = AgentWorld::running(native(1, 3, 5));
    let (uid, node) = (world.pods[2].uid.clone(), world.pods[2].node.clone().unwrap());
    world.sick.insert(node);
    world.go(20);
    assert!(world.published.len() > 1 && !world.members().is_empty());
    assert!(run(&world).unwrap().run > 1, "{uid} is lost by force");
}

#[test]
fn what_needs_another_run_stops_all() {
    // Below what torchrun was told is enough; a job that no longer wants it; other sizes than the run was told of.
    let changes: [fn(&mut AgentWorld); 3] = [
        |world| world.job.elasticity.mode = ElasticityMode::Rounds,
        |world| world.job.max = 9,
        |world| world.job.template.as_mut().unwrap().hash = "t2".into(),
    ];
    for (at, change) in changes.into_iter().enumerate() {
        let mut world = AgentWorld::running(native(1, 2, 4));
        change(&mut world);
        world.job.replicas = if at == 1 { 6 } else { 3 };
        assert!(world.settle());
        world.check_settled();
        assert_eq!(run(&world).map(|n| (n.run > 1, n.max)), [None, Some((true, 9)), Some((true, 4))][at], "{at}");
        assert!(starts(&world, 0) > 1, "{at}");
    }
}

#[test]
fn with_fewer_than_the_minimum_all_stop_and_wait() {
    let mut world = AgentWorld::running(native(3, 3, 5));
    world.room = 2;
    world.evict(2);
    world.operate(usize::MAX);
    assert_eq!(world.order(), RoundOrder::Stop);
    world.room = 9;
    assert!(world.settle());
    world.check_settled();
}

#[test]
fn where_it_can_not_be_the_condition_says_why() {
    let mut spec = native(1, 2, 4);
    spec.elasticity.batch = Some(GlobalBatch { samples: 24, max_micro: None });
    assert_eq!(reason(&AgentWorld::running(spec)), ConditionReason::SizesNotNative);
    let mut spec = native(2, 2, 4);
    spec.legal = LegalSizes::MultipleOf(2);
    assert_eq!(reason(&AgentWorld::running(spec)), ConditionReason::SizesNotNative);

    let mut world = AgentWorld::running(native(1, 2, 4));
    world.torchrun = false;
    world.job.template.as_mut().unwrap().hash = "t2".into();
    assert!(world.settle());
    assert_eq!((run(&world), reason(&world)), (None, ConditionReason::NotTorchrun));
    world.gateway = false;
    world.operate(usize::MAX);
    assert_eq!(reason(&world), ConditionReason::NotTorchrun, "it says what it said");
    assert_eq!(reason(&AgentWorld::running(job(1, 2, 4))), ConditionReason::AgentDrivesRounds);
}

#[test]
fn a_lost_status_takes_the_run_over() {
    let mut world = AgentWorld::running(native(1, 2, 4));
    world.job.replicas = 3;
    assert!(world.settle());
    let before = (world.generation(), run(&world), world.starts.len());
    world.state = eto_engine::plan::recover(&world.job, &world.pods, Some(&world.group), world.now);
    world.job.replicas = 3;
    assert!(world.settle());
    assert_eq!((world.generation(), run(&world), world.starts.len()), before, "nothing was restarted");
    world.job.replicas = 4;
    assert!(world.settle());
    assert_eq!((run(&world).map(|n| n.run), starts(&world, 0)), (Some(1), 1), "and it is still the same run");
}

#[test]
fn a_lost_status_lets_those_stop_whom_the_others_went_on_without() {
    let mut world = AgentWorld::running(native(1, 3, 5));
    world.stop_time = secs(8);
    world.job.replicas = 2;
    world.go(3);
    let left = world.pods[2].uid.clone();
    assert_eq!((world.generation(), world.containers[&left].runs), (2, Some(1)));
    world.state = eto_engine::plan::recover(&world.job, &world.pods, Some(&world.group), world.now);
    world.go(3);
    assert!(world.pods.iter().any(|p| p.uid == left && p.deleting.is_none()), "it has its time to stop");
    world.go(20);
    world.check_settled();
    assert_eq!([0, 1].map(|index| starts(&world, index)), [1, 1]);
}

#[test]
fn a_run_that_nobody_was_told_of_is_not_gone_on_in() {
    let mut world = AgentWorld::new(native(1, 3, 5));
    while world.order() != RoundOrder::Run {
        // The operator ends before it has told of the round.
        world.operate(1);
        world.pass(secs(1), u16::MAX);
        if world.pods.is_empty() {
            world.operate(usize::MAX);
        }
    }
    assert_eq!((world.generation(), world.group.assignment.is_none()), (1, true));
    world.pods[2].deleting = Some(world.now);
    world.go(20);
    world.check_settled();
    assert!(run(&world).is_some_and(|n| n.run > 1), "{:?}", run(&world));
}
