//! The course of planned changes, step by step.

use eto_engine::contract::{Framework, WorkerPhase};
use eto_engine::placement::NodeChoice;
use eto_engine::plan::{Action, EventReason, Group, PlanFacts, plan};
use eto_engine::state::{ChangeStep, ConditionKind, ConditionReason, JobState, Phase, RoundMode, RoundOrder};
use eto_membership::{GlobalBatch, Order};

use super::world::AgentWorld;
use crate::common::{job, pods, running, secs};

fn step_of(world: &AgentWorld) -> Option<ChangeStep> {
    world.state.change.as_ref().map(|c| c.step)
}

#[test]
fn the_first_round_waits_for_all_and_starts_at_once() {
    let mut world = AgentWorld::new(job(1, 3, 5));
    world.operate(usize::MAX);
    assert_eq!((world.pods.len(), world.order(), world.group.assignment.is_some()), (3, RoundOrder::Gather, false));
    world.pass(secs(1), 0);
    world.pass(secs(1), 0b011);
    world.operate(usize::MAX);
    assert_eq!(world.order(), RoundOrder::Gather, "one has not joined");
    world.pass(secs(1), u16::MAX);
    world.operate(usize::MAX);
    let told = world.group.assignment.clone().unwrap();
    assert_eq!((told.round.generation, told.order, told.round.members.len()), (1, Order::Run, 3));
    assert_eq!(told.round.members[0].address, "10.0.0.0", "the lowest index coordinates");
    world.go(2);
    assert_eq!((world.state.phase, world.starts.len()), (Phase::Running, 3));
    world.check_settled();
}

#[test]
fn agents_are_told_how_the_global_batch_is_shared_and_it_stays_within_a_generation() {
    let share = |world: &AgentWorld| {
        let env = &world.group.assignment.as_ref().unwrap().env;
        ["ETO_GLOBAL_BATCH_SIZE", "ETO_MICRO_BATCH_SIZE", "ETO_GRADIENT_ACCUMULATION_STEPS"]
            .map(|name| env.get(name).and_then(|v| v.parse::<u32>().ok()))
    };
    let mut job = job(1, 2, 4);
    job.elasticity.batch = Some(GlobalBatch { samples: 48, max_micro: Some(8) });
    let mut world = AgentWorld::running(job);
    assert_eq!(share(&world), [Some(48), Some(8), Some(3)]);
    world.job.replicas = 3;
    world.job.elasticity.batch = Some(GlobalBatch { samples: 48, max_micro: Some(16) });
    world.operate(usize::MAX);
    assert_eq!(share(&world), [Some(48), Some(8), Some(3)], "the round that stands keeps what it was told");
    world.go(20);
    assert_eq!((world.members().len(), share(&world)), (3, [Some(48), Some(16), Some(1)]));
}

#[test]
fn who_has_not_joined_in_time_is_left_out_of_the_first_round() {
    let mut world = AgentWorld::new(job(2, 4, 5));
    world.room = 3;
    world.go(119);
    assert_eq!((world.order(), world.pods.len()), (RoundOrder::Gather, 4));
    world.go(5);
    assert_eq!((world.state.target, world.state.phase, world.members().len()), (3, Phase::Running, 3));
    assert!(world.state.last_resize.as_ref().unwrap().refused);
    world.go(5);
    world.check_settled();
}

#[test]
fn a_growth_trains_on_until_all_have_joined() {
    let mut world = AgentWorld::running(job(1, 2, 5));
    world.job.replicas = 4;
    world.operate(usize::MAX);
    assert_eq!((world.pods.len(), world.generation(), step_of(&world)), (4, 1, Some(ChangeStep::CreatingPods)));
    world.pass(secs(1), u16::MAX);
    world.operate(usize::MAX);
    assert_eq!((step_of(&world), world.state.phase), (Some(ChangeStep::WaitingForJoins), Phase::Running));
    world.pass(secs(1), 0b0111);
    world.operate(usize::MAX);
    assert_eq!((world.generation(), world.containers.values().filter(|c| c.runs == Some(1)).count()), (1, 2));
    world.pass(secs(1), u16::MAX);
    world.operate(usize::MAX);
    assert_eq!((world.generation(), world.order(), step_of(&world)), (2, RoundOrder::Stop, Some(ChangeStep::Stopping)));
    assert_eq!(world.group.assignment.as_ref().unwrap().order, Order::Stop);
    world.go(3);
    assert_eq!((world.order(), world.members()), (RoundOrder::Run, vec![0, 1, 2, 3]));
    world.go(3);
    world.check_settled();
    let resize = world.state.last_resize.clone().unwrap();
    let paused = resize.cost.unwrap().paused_ms;
    assert!((2_000..6_000).contains(&paused), "{paused} ms: the stop alone takes 2 s");
    assert!(resize.pause() < resize.done.unwrap().since(resize.decided));
}

#[test]
fn a_pending_pod_keeps_a_growth_for_no_longer_than_its_deadline() {
    let mut world = AgentWorld::running(job(1, 2, 5));
    (world.room, world.job.replicas) = (3, 5);
    world.go(118);
    assert_eq!((world.generation(), world.state.target), (1, 5));
    world.go(10);
    assert_eq!((world.state.target, world.members()), (3, vec![0, 1, 2]), "with the one that has joined");
    world.go(10);
    world.check_settled();
    assert!(world.state.last_resize.as_ref().unwrap().refused);
}

#[test]
fn a_demanded_node_that_never_comes_is_given_up_before_the_growth_is() {
    let demand = |indexes: &[u32]| {
        let choice = NodeChoice { node: "full".into(), required: true };
        indexes.iter().map(|i| (*i, choice.clone())).collect()
    };
    let mut world = AgentWorld::running(job(1, 2, 5));
    (world.places, world.job.replicas) = (demand(&[2]), 4);
    world.go(118);
    assert_eq!((world.generation(), world.state.target, world.pods.len()), (1, 4, 4));
    world.go(15);
    assert_eq!((world.members(), world.state.target), (vec![0, 1, 2, 3], 4), "on any node");
    world.check_settled();
    assert!(!world.state.last_resize.as_ref().unwrap().refused);
    // One that is lost is replaced in the same way, and the next growth may demand again.
    world.places = demand(&[1, 4]);
    world.evict(1);
    world.go(140);
    assert_eq!(world.members(), [0, 1, 2, 3]);
    world.check_settled();
    world.job.replicas = 5;
    world.go(100);
    assert_eq!((world.members().len(), world.pods.len()), (4, 5));
    world.go(35);
    world.check_settled();
    assert_eq!(world.members().len(), 5);
}

#[test]
fn a_refused_growth_takes_nothing_from_those_who_train() {
    let mut world = AgentWorld::running(job(1, 3, 5));
    (world.quota, world.job.replicas) = (3, 5);
    world.go(10);
    assert_eq!((world.state.target, world.generation()), (3, 1));
    world.check_settled();
}

#[test]
fn a_growth_that_is_taken_back_stops_nobody() {
    let mut world = AgentWorld::running(job(1, 2, 5));
    (world.room, world.job.replicas) = (2, 5);
    world.go(10);
    world.job.replicas = 2;
    world.go(10);
    assert_eq!((world.generation(), world.pods.len()), (1, 2));
    world.check_settled();
    // One that turns into a shrink cancels its pods too.
    world.job.replicas = 4;
    world.go(3);
    world.job.replicas = 1;
    world.go(20);
    assert_eq!((world.generation(), world.members()), (2, vec![0]));
    world.check_settled();
}

#[test]
fn victims_are_named_then_stopped_then_deleted() {
    let mut world = AgentWorld::running(job(1, 4, 5));
    world.job.replicas = 2;
    world.operate(usize::MAX);
    let named: Vec<u32> = world.state.victims.iter().map(|v| v.index).collect();
    assert_eq!((named, world.order(), world.generation()), (vec![3, 2], RoundOrder::Stop, 2));
    assert!(world.pods.iter().all(|p| p.deleting.is_none()), "they stop first");
    world.pass(secs(1), u16::MAX);
    world.operate(usize::MAX);
    assert_eq!(world.order(), RoundOrder::Stop, "the processes take two seconds");
    world.pass(secs(2), u16::MAX);
    world.operate(usize::MAX);
    assert_eq!(world.order(), RoundOrder::Run);
    let going: Vec<u32> = world.pods.iter().filter(|p| p.deleting.is_some()).map(|p| p.index).collect();
    assert_eq!(going, [2, 3]);
    world.pass(secs(0), u16::MAX);
    world.operate(usize::MAX);
    world.go(3);
    world.check_settled();
}

#[test]
fn what_does_not_stop_is_waited_for_until_its_grace_has_passed() {
    let mut world = AgentWorld::running(job(1, 2, 5));
    (world.stop_time, world.job.replicas) = (secs(3600), 1);
    world.go(28);
    assert_eq!(world.order(), RoundOrder::Stop);
    world.go(6);
    assert_eq!((world.order(), world.members()), (RoundOrder::Run, vec![0]), "the agent has killed it");
}

#[test]
fn a_planned_change_waits_for_a_checkpoint_where_members_tell_of_them() {
    let mut world = AgentWorld::running(job(1, 3, 5));
    world.checkpoint(0, 100);
    world.go(1);
    world.job.replicas = 2;
    world.go(20);
    assert_eq!((step_of(&world), world.generation()), (Some(ChangeStep::WaitingForCheckpoint), 1));
    world.progress(0, 150);
    world.checkpoint(0, 140);
    world.go(10);
    assert_eq!((world.generation(), world.state.phase), (2, Phase::Running));
    assert_eq!(world.state.last_resize.as_ref().unwrap().cost.unwrap().steps_lost, Some(10));
    // No longer than it may.
    world.job.replicas = 1;
    world.go(59);
    assert_eq!(world.generation(), 2);
    world.go(3);
    assert_eq!(world.generation(), 3);
}

#[test]
fn another_template_stops_the_round_and_makes_new_pods() {
    let mut world = AgentWorld::running(job(1, 2, 5));
    world.job.template.as_mut().unwrap().hash = "t2".into();
    world.operate(usize::MAX);
    assert_eq!((world.generation(), world.order(), world.pods.len()), (2, RoundOrder::Stop, 2));
    world.go(12);
    assert!(world.pods.iter().all(|p| p.template_hash == "t2"));
    world.check_settled();
}

/// What the kubelet says of an image that it can't have is what people look for.
#[test]
fn what_keeps_a_pod_from_starting_is_told() {
    let mut world = AgentWorld::running(job(1, 2, 5));
    world.job.template.as_mut().unwrap().hash = "t2".into();
    world.room = 0;
    world.go(20);
    assert!(world.pods.iter().all(|p| p.template_hash == "t2"));
    world.pods[1].waiting = Some("train: ErrImagePull: no such image".into());
    world.operate(usize::MAX);
    let running = world.state.conditions.iter().find(|c| c.kind == ConditionKind::Running).unwrap();
    assert_eq!((running.status, running.message.as_str()), (false, "train: ErrImagePull: no such image"));
    assert_eq!(running.reason, ConditionReason::ContainersWaiting, "a message alone would not be written");
}

#[test]
fn a_suspension_lets_processes_stop_before_the_pods_go() {
    let mut world = AgentWorld::running(job(1, 2, 5));
    world.job.suspend = true;
    world.operate(usize::MAX);
    assert_eq!((world.state.phase, world.order()), (Phase::Suspended, RoundOrder::Stop));
    assert!(world.pods.iter().all(|p| p.deleting.is_none()));
    world.go(6);
    assert_eq!((world.pods.len(), world.state.round.is_some()), (0, false));
    world.job.suspend = false;
    world.go(10);
    world.check_settled();
    assert!(world.generation() > 2);
}

#[test]
fn a_resumption_in_time_keeps_the_pods() {
    let mut world = AgentWorld::running(job(1, 2, 5));
    let before: Vec<String> = world.pods.iter().map(|p| p.uid.clone()).collect();
    world.job.suspend = true;
    world.operate(usize::MAX);
    world.job.suspend = false;
    world.go(10);
    assert_eq!(world.pods.iter().map(|p| p.uid.clone()).collect::<Vec<_>>(), before);
    world.check_settled();
}

#[test]
fn the_coordinators_success_is_the_jobs() {
    for framework in [Framework::PyTorch, Framework::Custom] {
        let mut world = AgentWorld::running(job(1, 2, 5));
        world.job.framework = framework;
        world.exit(1, 0);
        world.go(3);
        assert_eq!(world.state.phase, Phase::Running, "the other still works");
        world.exit(0, 0);
        world.go(5);
        assert_eq!(world.state.phase, Phase::Succeeded);
        assert_eq!(world.group.assignment.as_ref().unwrap().order, Order::End);
        assert!(world.pods.iter().all(|p| p.phase == WorkerPhase::Succeeded));
    }
}

#[test]
fn a_lost_status_takes_the_published_round_over() {
    let mut world = AgentWorld::running(job(1, 3, 5));
    world.job.replicas = 4;
    world.go(15);
    let (generation, starts) = (world.generation(), world.starts.len());
    for group in [true, false] {
        let read = group.then_some(&world.group);
        world.state = eto_engine::plan::recover(&world.job, &world.pods, read, world.now);
        assert_eq!(world.state.target, 4);
        world.go(5);
        assert_eq!((world.generation(), world.starts.len()), (generation, starts), "nothing starts anew");
        world.check_settled();
    }
}

#[test]
fn without_the_group_all_goes_on_as_it_is() {
    let mut world = AgentWorld::running(job(1, 2, 5));
    world.gateway = false;
    world.job.replicas = 1;
    world.pods[1].deleting = Some(world.now);
    world.go(60);
    assert_eq!((world.generation(), world.order()), (1, RoundOrder::Run));
    world.gateway = true;
    world.go(20);
    world.check_settled();
}

#[test]
fn a_job_that_waits_for_an_etcd_that_is_away_says_so() {
    let mut world = AgentWorld::new(job(1, 2, 5));
    world.gateway = false;
    world.go(60);
    let running = world.state.conditions.iter().find(|c| c.kind == ConditionKind::Running).unwrap();
    assert!(!running.status && running.message.contains("does not reach its etcd"), "{}", running.message);
    world.gateway = true;
    world.go(20);
    world.check_settled();
}

#[test]
fn a_round_by_recreation_goes_on_by_recreation_until_it_makes_new_pods() {
    let spec = job(1, 2, 5);
    let mut state = running(&spec, 2);
    let mut world = AgentWorld::new(spec);
    let facts = PlanFacts { agent: eto_engine::plan::AgentFacts { gateway: true }, ..PlanFacts::default() };
    let p = plan(&world.job, &state, &pods(2), &facts, world.now);
    assert_eq!((p.actions.len(), p.state.round.as_ref().unwrap().mode()), (0, RoundMode::Recreate));
    let told = p.state.conditions.iter().find(|c| c.kind == ConditionKind::AgentRounds).unwrap();
    assert_eq!((told.status, told.reason), (false, ConditionReason::GatewayNotReached));
    let known = Group::default();
    let p = plan(&world.job, &state, &pods(2), &PlanFacts { group: Some(&known), ..facts }, world.now);
    assert_eq!((p.actions.len(), p.state.round.as_ref().unwrap().mode()), (0, RoundMode::Recreate));
    let told = p.state.conditions.iter().find(|c| c.kind == ConditionKind::AgentRounds).unwrap();
    assert_eq!((told.status, told.reason), (false, ConditionReason::ModeKept));
    state = p.state;
    (world.state, world.pods, world.job.replicas) = (state, pods(2), 3);
    world.operate(usize::MAX);
    assert!(world.pods.iter().all(|p| p.deleting.is_some()), "pods without an agent are of no use to it");
    world.pods.clear();
    world.go(5);
    world.check_settled();
    assert_eq!(world.generation(), 2);
}

#[test]
fn a_job_that_does_without_agents_does_not_wait_for_etcd() {
    let spec = job(1, 2, 5);
    let state = running(&spec, 2);
    let mut world = AgentWorld::new(spec);
    (world.gateway, world.pods, world.job.replicas) = (false, pods(2), 3);
    let p = world.plan(&state);
    let round = p.state.round.as_ref().unwrap();
    assert_eq!((round.generation, round.size, round.mode()), (2, 3, RoundMode::Recreate));
}

#[test]
fn the_condition_says_which_way_and_why() {
    let facts = PlanFacts { agent: eto_engine::plan::AgentFacts { gateway: true }, ..PlanFacts::default() };
    let reason = |spec: &eto_engine::job::JobSpec, facts: &PlanFacts<'_>| {
        let p = plan(spec, &JobState::default(), &[], facts, crate::common::NOW);
        let told = p.state.conditions.iter().find(|c| c.kind == ConditionKind::AgentRounds).unwrap().clone();
        (told.status, told.reason)
    };
    let mut spec = job(1, 2, 5);
    assert_eq!(reason(&spec, &facts), (true, ConditionReason::AgentDrivesRounds));
    assert_eq!(reason(&spec, &PlanFacts::default()), (false, ConditionReason::NoAgent));
    spec.template.as_mut().unwrap().command = false;
    assert_eq!(reason(&spec, &facts), (false, ConditionReason::NoCommand));
    spec.elasticity.agent = eto_engine::job::AgentChoice::Off;
    assert_eq!(reason(&spec, &facts), (false, ConditionReason::AgentOff));
}

#[test]
fn a_gateway_that_is_gone_for_good_restarts_nothing_until_something_has_to_change() {
    let mut world = AgentWorld::running(job(1, 2, 5));
    let facts = PlanFacts::default();
    let p = plan(&world.job, &world.state, &world.pods, &facts, world.now);
    assert_eq!((p.actions.len(), p.state.phase), (0, Phase::Running));
    world.job.replicas = 3;
    let p = plan(&world.job, &world.state, &world.pods, &facts, world.now);
    assert_eq!(p.state.round.as_ref().unwrap().mode(), RoundMode::Recreate);
    assert_eq!(p.actions.iter().filter(|a| matches!(a, Action::DeletePod { .. })).count(), 2);
    assert!(p.events.iter().any(|e| e.reason == EventReason::RoundStarted));
}
