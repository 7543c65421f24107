//! What is a loss, what is not, and how long it takes.

use eto_engine::contract::WorkerPhase;
use eto_engine::job::{LegalSizes, RestartPolicy};
use eto_engine::state::{ConditionKind, ConditionReason, Phase, RoundCause, RoundOrder};
use eto_membership::{LOSS_GRACE_MS, MemberState};

use super::world::AgentWorld;
use crate::common::{job, secs};

#[test]
fn survivors_go_on_and_a_replacement_joins_later() {
    let mut world = AgentWorld::running(job(2, 3, 5));
    world.evict(1);
    world.operate(usize::MAX);
    assert_eq!((world.generation(), world.order(), world.members()), (2, RoundOrder::Stop, vec![0, 2]));
    assert_eq!(world.group.assignment.as_ref().unwrap().grace_ms, LOSS_GRACE_MS);
    assert_eq!((world.state.failures, world.state.disruptions), (0, 1));
    world.room = 2;
    world.go(5);
    assert_eq!((world.members(), world.state.phase), (vec![0, 2], Phase::Running), "they do not wait");
    world.room = 9;
    world.go(10);
    assert_eq!((world.members().len(), world.generation()), (3, 3));
    world.check_settled();
    let index = world.pods.iter().filter(|p| p.index == 1).map(|p| p.incarnation).max();
    assert_eq!((index, world.state.target), (Some(2), 3));
}

#[test]
fn a_replacement_that_is_there_in_time_joins_the_same_round() {
    let mut world = AgentWorld::running(job(1, 3, 5));
    world.stop_time = secs(4);
    world.pods[1].deleting = Some(world.now);
    world.go(15);
    world.check_settled();
    let rounds: Vec<usize> = world.published.values().map(|r| r.members.len()).collect();
    assert_eq!(rounds, [3, 2, 3], "the second was never told to run");
    assert!(world.starts.iter().all(|(_, generation)| *generation != 2));
}

#[test]
fn below_the_minimum_all_wait_for_the_replacement() {
    let mut world = AgentWorld::running(job(3, 3, 5));
    world.room = 2;
    world.evict(2);
    world.go(5);
    assert_eq!((world.order(), world.state.phase), (RoundOrder::Gather, Phase::Restarting));
    assert!(world.containers.values().all(|c| c.runs.is_none()), "those who can't train are stopped");
    world.room = 9;
    world.go(6);
    world.check_settled();
    assert_eq!(world.state.failures, 0);
}

#[test]
fn an_agent_that_is_not_heard_of_is_not_lost() {
    let mut world = AgentWorld::running(job(1, 3, 5));
    let uid = world.pods[2].uid.clone();
    world.cut.insert(uid.clone());
    world.go(300);
    assert!(world.group.members[&uid].suspected);
    assert_eq!((world.generation(), world.state.phase), (1, Phase::Running));
    // With its node it is.
    world.sick.insert(world.pods[2].node.clone().unwrap());
    world.go(1);
    assert_eq!((world.generation(), world.members()), (2, vec![0, 1]));
    world.go(20);
    assert_eq!(world.members().len(), 3, "it is replaced");
}

#[test]
fn a_scheduler_that_takes_a_dead_node_for_a_good_one_is_given_new_pods_in_moderation() {
    let mut world = AgentWorld::running(job(1, 3, 5));
    world.cut.insert(world.pods[2].uid.clone());
    world.sick.insert(world.pods[2].node.clone().unwrap());
    world.puts_on = world.pods[2].node.clone();
    let before = world.next_uid;
    world.go(120);
    assert_eq!((world.members(), world.state.failures), (vec![0, 1], 0));
    let made = world.next_uid - before;
    assert!((2..=8).contains(&made), "one in the time that an agent is waited for, not {made}");
    world.puts_on = None;
    world.go(40);
    assert_eq!(world.members().len(), 3, "it is replaced");
}

#[test]
fn a_node_that_is_not_ready_takes_nobody_who_is_heard_of() {
    let mut world = AgentWorld::running(job(1, 2, 5));
    world.operate(usize::MAX);
    world.sick.insert(world.pods[1].node.clone().unwrap());
    // The agent goes on speaking: nothing is lost for the first seconds, nor later.
    let p = world.plan(&world.state);
    assert_eq!((p.actions.len(), p.state.last_generation), (0, 1));
}

#[test]
fn a_member_that_keeps_all_others_waiting_is_replaced() {
    let mut world = AgentWorld::running(job(1, 3, 5));
    world.cut.insert(world.pods[2].uid.clone());
    world.job.replicas = 4;
    world.go(8);
    assert_eq!((world.generation(), world.order()), (2, RoundOrder::Stop));
    world.go(90);
    assert_eq!(world.state.phase, Phase::Running);
    assert_eq!((world.members().len(), world.state.failures), (4, 0));
    world.check_settled();
}

/// docs/faults.md: 30 s from the order to start.
#[test]
fn a_member_that_is_not_heard_of_at_a_start_is_waited_for_for_half_a_minute() {
    let mut world = AgentWorld::running(job(1, 3, 5));
    world.job.replicas = 4;
    while world.generation() < 2 || world.order() != RoundOrder::Run {
        world.pass(secs(1), u16::MAX);
        world.operate(usize::MAX);
    }
    world.cut.insert(world.pods[2].uid.clone());
    let mut waited = 0;
    while world.generation() == 2 {
        world.go(1);
        waited += 1;
        assert!(waited < 60, "{:?}", world.state);
    }
    assert!((30..33).contains(&waited), "it was waited for for {waited} s");
}

#[test]
fn a_member_that_is_heard_and_does_not_start_is_replaced() {
    let mut world = AgentWorld::new(job(1, 2, 5));
    world.operate(usize::MAX);
    let uid = world.pods[1].uid.clone();
    let mut waited = 0;
    while world.generation() < 2 {
        world.pass(secs(1), u16::MAX);
        if let Some(record) = world.group.members.get_mut(&uid) {
            record.report.state = MemberState::Idle;
        }
        world.operate(usize::MAX);
        waited += 1;
        assert!(waited < 700, "{:?}", world.state);
    }
    assert!(waited >= 600, "it was given {waited} s");
    world.go(20);
    assert!(world.pods.iter().all(|p| p.uid != uid), "its pod is replaced");
    assert_eq!(world.state.failures, 1);
    world.check_settled();
}

#[test]
fn a_process_that_fails_is_started_again_in_place_at_once_then_later_each_time() {
    let mut world = AgentWorld::running(job(1, 2, 5));
    let before: Vec<String> = world.pods.iter().map(|p| p.uid.clone()).collect();
    world.exit(1, 1);
    world.pass(secs(0), u16::MAX);
    world.go(6);
    assert_eq!((world.state.failures, world.generation(), world.state.phase), (1, 2, Phase::Running));
    assert_eq!(world.state.round.as_ref().unwrap().cause, RoundCause::WorkerLost);
    world.exit(1, 1);
    world.pass(secs(0), u16::MAX);
    world.go(8);
    assert_eq!((world.order(), world.state.failures), (RoundOrder::Stop, 2), "the second waits 10 s");
    world.go(10);
    assert_eq!((world.state.phase, world.generation()), (Phase::Running, 3));
    assert_eq!(world.pods.iter().map(|p| p.uid.clone()).collect::<Vec<_>>(), before, "all in place");
    world.check_settled();
}

#[test]
fn a_container_that_ran_out_of_memory_counts_as_a_process_that_failed() {
    let mut world = AgentWorld::running(job(1, 2, 5));
    world.kill_container(0);
    world.go(6);
    assert_eq!((world.state.failures, world.generation(), world.state.phase), (1, 2, Phase::Running));
    world.check_settled();
}

#[test]
fn all_that_fails_with_one_fault_is_charged_once() {
    let mut world = AgentWorld::running(job(1, 3, 5));
    for at in 0..3 {
        world.exit(at, 1);
    }
    world.go(8);
    assert_eq!((world.state.failures, world.generation()), (1, 2));
    // Where a node was lost, its peers' processes failed for that.
    world.sick.insert(world.pods[2].node.clone().unwrap());
    for at in 0..2 {
        world.exit(at, 1);
    }
    world.go(1);
    assert_eq!(world.state.failures, 2, "the exits are seen first");
    world.go(90);
    assert_eq!((world.state.failures, world.state.phase), (1, Phase::Running), "then what was behind them");
    world.check_settled();
}

#[test]
fn a_failure_that_follows_from_the_loss_of_one_who_was_left_out_is_free() {
    let mut spec = job(2, 4, 4);
    (spec.restart, spec.legal) = (RestartPolicy::Never, LegalSizes::MultipleOf(2));
    let mut world = AgentWorld::running(spec);
    world.stop_time = secs(30);
    // Node and worker are gone, which is not known yet; a peer that can't start again in its pod has failed for it.
    world.cut.insert(world.pods[3].uid.clone());
    world.exit(2, 1);
    world.pass(secs(1), u16::MAX);
    world.operate(usize::MAX);
    assert_eq!((world.members(), world.state.failures), (vec![0, 1], 1), "two of the three that seem to be left");
    world.sick.insert(world.pods.iter().find(|p| p.index == 3).unwrap().node.clone().unwrap());
    world.go(18);
    assert_eq!((world.state.failures, world.state.disruptions), (0, 1));
    world.go(90);
    world.check_settled();
}

#[test]
fn a_container_that_fails_after_its_peers_is_of_the_same_failure() {
    let mut spec = job(1, 3, 5);
    spec.restart = RestartPolicy::Never;
    let mut world = AgentWorld::running(spec);
    world.exit(0, 1);
    world.pass(secs(1), u16::MAX);
    world.operate(usize::MAX);
    assert_eq!((world.order(), world.state.failures), (RoundOrder::Stop, 1));
    world.kill_container(1);
    world.go(30);
    assert_eq!((world.state.failures, world.state.start_attempts), (1, 1));
    world.check_settled();
    // Its agent is heard before the kubelet is: a pod that was in the round did not fail before it.
    let mut spec = job(2, 2, 5);
    spec.restart = RestartPolicy::Never;
    let mut world = AgentWorld::running(spec);
    for at in 0..2 {
        world.exit(at, 1);
        (world.pods[at].phase, world.pods[at].exit_code) = (WorkerPhase::Running, None);
    }
    world.pass(secs(1), u16::MAX);
    world.operate(1);
    for pod in &mut world.pods {
        (pod.phase, pod.exit_code) = (WorkerPhase::Failed, Some(1));
    }
    world.go(30);
    assert_eq!(world.state.failures, 1);
    world.check_settled();
}

#[test]
fn more_failures_than_the_limit_end_the_job() {
    let mut spec = job(1, 2, 5);
    spec.backoff_limit = 0;
    let mut world = AgentWorld::running(spec);
    world.exit(1, 1);
    world.go(3);
    assert_eq!(world.state.phase, Phase::Failed);
    let failed = world.state.conditions.iter().find(|c| c.kind == ConditionKind::Failed).unwrap();
    assert_eq!(failed.reason, ConditionReason::BackoffLimitExceeded);
    world.go(5);
    world.check_settled();
}

#[test]
fn final_exit_codes_are_final_and_signals_are_tried_again_in_a_new_pod() {
    for (code, phase) in [(3, Phase::Failed), (137, Phase::Running)] {
        let mut spec = job(1, 3, 5);
        spec.restart = RestartPolicy::ExitCode;
        let mut world = AgentWorld::running(spec);
        let before = world.pods[1].uid.clone();
        world.exit(1, code);
        world.go(15);
        assert_eq!(world.state.phase, phase, "{code}");
        if phase == Phase::Running {
            assert!(world.pods.iter().all(|p| p.uid != before), "the pod is replaced");
            world.check_settled();
        }
    }
}

#[test]
fn a_drained_pod_gets_its_grace_and_is_free() {
    let mut world = AgentWorld::running(job(1, 3, 5));
    world.stop_time = secs(8);
    world.pods[2].disrupted = true;
    world.operate(usize::MAX);
    assert_eq!(world.group.assignment.as_ref().unwrap().grace_ms, 30_000, "a checkpoint may be written");
    world.go(6);
    assert_eq!(world.order(), RoundOrder::Stop);
    world.go(15);
    assert_eq!((world.state.failures, world.state.disruptions), (0, 1));
    world.check_settled();
}

#[test]
fn the_master_is_replaced_like_any_other_and_nobody_waits_for_it() {
    let mut world = AgentWorld::running(job(1, 3, 5));
    world.evict(0);
    world.room = 2;
    world.go(4);
    assert_eq!((world.members(), world.state.phase), (vec![1, 2], Phase::Running));
    world.room = 9;
    world.go(10);
    assert_eq!(world.members(), [1, 0, 2], "one that has trained coordinates");
    world.check_settled();
}

#[test]
fn all_workers_lost_is_a_new_start() {
    let mut world = AgentWorld::running(job(1, 3, 5));
    for at in 0..3 {
        world.evict(at);
    }
    world.go(10);
    assert_eq!((world.state.disruptions, world.state.failures), (1, 0));
    world.check_settled();
}

#[test]
fn a_gateway_that_starts_again_loses_nobody() {
    let mut world = AgentWorld::running(job(1, 3, 5));
    world.group.members.clear();
    for _ in 0..30 {
        world.operate(usize::MAX);
        world.pass(secs(1), 0);
    }
    assert_eq!((world.generation(), world.state.phase), (1, Phase::Running));
    world.go(2);
    world.check_settled();
}

#[test]
fn growth_pods_that_fail_cost_the_job_nothing() {
    let mut spec = job(1, 2, 5);
    (spec.restart, spec.backoff_limit) = (RestartPolicy::Never, 0);
    let mut world = AgentWorld::running(spec);
    world.job.replicas = 3;
    for _ in 0..700 {
        world.operate(usize::MAX);
        world.pass(secs(1), 0b11);
        if world.pods.len() > 2 {
            world.kill_container(2);
        }
    }
    assert_eq!((world.state.phase, world.state.failures, world.generation()), (Phase::Running, 0, 1));
    assert_eq!(world.state.target, 2, "the growth was taken back");
}

/// Only one that has trained coordinates, and it stays that one: a master that came back is the youngest of all.
#[test]
fn a_master_that_came_back_does_not_coordinate_again() {
    let mut world = AgentWorld::running(job(1, 3, 5));
    world.evict(0);
    world.room = 2;
    world.go(4);
    world.room = 9;
    world.go(10);
    assert_eq!(world.members(), [1, 0, 2]);
    world.job.replicas = 4;
    world.go(20);
    assert_eq!(world.members(), [1, 0, 2, 3], "worker 1 stays");
    let coordinator = world.pods.iter().position(|p| p.index == 1).unwrap();
    world.evict(coordinator);
    world.go(4);
    assert_eq!(world.members()[0], 2, "worker 2 has lived longer than the master and worker 3");
    world.go(20);
    world.check_settled();
}

/// Too few are left, so that the others wait for a new pod.
#[test]
fn who_had_to_wait_for_others_coordinates_all_the_same() {
    let mut world = AgentWorld::running(job(3, 3, 5));
    world.evict(0);
    world.room = 2;
    world.go(20);
    assert_eq!(world.order(), RoundOrder::Gather);
    world.room = 9;
    world.go(30);
    assert_eq!((world.members(), world.state.phase), (vec![1, 0, 2], Phase::Running));
}

#[test]
fn who_is_preempted_leaves_the_job_at_its_minimum() {
    let mut world = AgentWorld::running(job(3, 5, 5));
    world.room = 3;
    world.evict(4);
    world.evict(3);
    world.go(200);
    assert_eq!((world.members().len(), world.state.phase, world.state.target), (3, Phase::Running, 3));
    assert_eq!((world.state.failures, world.pods.len()), (0, 3), "and nobody waits for the room that others took");
    world.check_settled();
}
