//! Who starts again when a worker is lost: all of them, or it alone.

use eto_engine::contract::Framework;
use eto_engine::job::{JobSpec, RestartPolicy, RestartScope};
use eto_engine::state::{Phase, RoundOrder};
use eto_membership::{Native, Order};

use super::world::AgentWorld;
use crate::common::{job, job_with, secs};

fn alone(min: u32, replicas: u32, max: u32) -> JobSpec {
    let mut spec = job(min, replicas, max);
    spec.framework = Framework::Custom;
    spec.elasticity.restart_scope = RestartScope::Pod;
    spec
}

fn starts(world: &AgentWorld) -> Vec<usize> {
    (0..4).map(|index| world.starts.iter().filter(|(i, _)| *i == index).count()).collect()
}

fn run(world: &AgentWorld) -> Option<Native> {
    world.group.assignment.as_ref().unwrap().native
}

#[test]
fn by_default_all_start_again_whatever_the_framework() {
    for framework in [Framework::PyTorch, Framework::TensorFlow, Framework::Jax, Framework::Custom] {
        let mut spec = job(1, 3, 5);
        spec.framework = framework;
        let mut world = AgentWorld::running(spec);
        world.exit(1, 1);
        world.go(10);
        assert_eq!((starts(&world), run(&world)), (vec![2, 2, 2, 0], None), "{framework:?}");
    }
}

#[test]
fn a_process_that_fails_is_started_again_alone_in_its_pod_with_its_rank() {
    let mut world = AgentWorld::running(alone(1, 3, 5));
    assert_eq!(run(&world), Some(Native { run: 1, min: 1, max: 5, alone: true }));
    for failures in 1..=3 {
        world.exit(1, 1);
        for _ in 0..10 {
            world.operate(usize::MAX);
            assert_eq!(world.group.assignment.as_ref().map(|a| a.order), Some(Order::Run), "nobody is told to stop");
            world.pass(secs(1), u16::MAX);
        }
        let done = usize::try_from(failures).unwrap() + 1;
        assert_eq!((starts(&world), world.state.failures), (vec![1, done, 1, 0], failures));
        assert_eq!((world.members(), world.state.phase), (vec![0, 1, 2], Phase::Running));
    }
    assert_eq!(run(&world).map(|n| n.run), Some(1));
    world.check_settled();
}

#[test]
fn a_pod_that_is_lost_is_replaced_and_has_the_rank_of_the_one_before() {
    for restart in [RestartPolicy::OnFailure, RestartPolicy::Never] {
        let mut spec = alone(1, 4, 5);
        spec.restart = restart;
        let mut world = AgentWorld::running(spec);
        world.room = 3;
        world.evict(1);
        world.go(10);
        assert_eq!((world.members(), world.state.phase), (vec![0, 2, 3], Phase::Running));
        world.room = 4;
        world.go(20);
        world.check_settled();
        assert_eq!((world.members(), starts(&world)), (vec![0, 1, 2, 3], vec![1, 2, 1, 1]));
        assert_eq!((run(&world).map(|n| n.run), world.state.failures), (Some(1), 0));
    }
}

#[test]
fn a_rank_that_would_be_anothers_starts_all_anew() {
    // Both are seen at once, or the second when the others go on already.
    two_are_lost(true);
    two_are_lost(false);
}

fn two_are_lost(seen: bool) {
    let mut world = AgentWorld::running(alone(1, 4, 5));
    // Without worker 1 there is one place less before worker 2, whose processes failed.
    world.room = 3;
    world.evict(1);
    world.exit(2, 1);
    if seen {
        world.pass(secs(0), u16::MAX);
    }
    world.go(30);
    assert_eq!((starts(&world)[0], world.state.phase), (2, Phase::Running));
    world.room = 4;
    world.go(60);
    world.check_settled();
    let newest = world.published.values().last().unwrap();
    let ranks: Vec<u32> = newest.members.iter().map(|m| m.index).collect();
    assert_eq!(ranks, [0, 1, 2, 3]);
}

/// Of members that are not heard of it is not known that they have started, where not all were seen to run: with a rank that
/// would be another's they would never be started.
#[test]
fn who_was_not_told_to_start_is_not_taken_for_one_that_runs() {
    let mut world = AgentWorld::running(alone(1, 4, 5));
    // All start anew and nobody is told so: the gateway goes when all have stopped, and the leases of all records end.
    world.exit(0, 1);
    for _ in 0..20 {
        world.operate(usize::MAX);
        if world.order() == RoundOrder::Run && world.generation() == 2 {
            break;
        }
        world.pass(secs(1), u16::MAX);
    }
    assert_eq!(run(&world).map(|n| n.run), Some(2));
    world.group.members.clear();
    world.evict(1);
    for _ in 0..3 {
        world.operate(usize::MAX);
        world.pass(secs(1), 0);
    }
    world.go(60);
    world.check_settled();
    assert_eq!((world.state.failures, world.state.phase), (1, Phase::Running));
    assert!(starts(&world).iter().all(|n| *n >= 2), "{:?}", world.starts);
}

#[test]
fn the_coordinator_another_size_and_another_template_start_all_anew() {
    let mut world = AgentWorld::running(alone(1, 3, 5));
    world.exit(0, 1);
    world.go(10);
    assert_eq!(starts(&world), [2, 2, 2, 0]);
    world.job.replicas = 4;
    world.go(20);
    assert_eq!(starts(&world), [3, 3, 3, 1]);
    world.job.replicas = 3;
    world.go(20);
    assert_eq!(starts(&world), [4, 4, 4, 1]);
    world.job.template.as_mut().unwrap().hash = "t2".into();
    world.go(30);
    assert_eq!(starts(&world), [5, 5, 5, 1]);
    world.check_settled();
    // A job that is told so while it runs begins with its next round.
    let mut world = AgentWorld::running(job(1, 3, 5));
    world.job.elasticity.restart_scope = RestartScope::Pod;
    world.exit(1, 1);
    world.go(10);
    assert_eq!(starts(&world), [2, 2, 2, 0]);
    world.exit(1, 1);
    world.go(20);
    assert_eq!(starts(&world), [2, 3, 2, 0]);
}

#[test]
fn who_is_done_is_done_while_others_start_again() {
    let mut world = AgentWorld::running(alone(1, 3, 3));
    world.exit(2, 0);
    world.go(5);
    world.exit(1, 1);
    world.go(20);
    assert_eq!((starts(&world), world.state.phase), (vec![1, 2, 1, 0], Phase::Running));
    world.exit(1, 0);
    world.exit(0, 0);
    world.go(10);
    assert_eq!((starts(&world), world.state.phase), (vec![1, 2, 1, 0], Phase::Succeeded));
}

#[test]
fn a_status_that_was_lost_costs_no_process() {
    let mut world = AgentWorld::running(alone(1, 3, 5));
    world.exit(1, 1);
    world.go(10);
    world.state = eto_engine::plan::recover(&world.job, &world.pods, Some(&world.group), world.now);
    world.go(10);
    world.exit(2, 1);
    world.go(10);
    assert_eq!(starts(&world), [1, 2, 2, 0]);
    world.check_settled();
}

#[test]
fn servers_are_no_workers_and_the_loss_of_one_starts_all_anew() {
    let mut spec = job_with(&[("ps", 2)], 3, 5, 6);
    spec.elasticity.restart_scope = RestartScope::Pod;
    let mut world = AgentWorld::running(spec);
    let all = |world: &AgentWorld| [0, 1, 2, 3, 4].map(|i| world.starts.iter().filter(|(at, _)| *at == i).count());
    world.exit(3, 1);
    world.go(10);
    assert_eq!(all(&world), [1, 1, 1, 2, 1]);
    world.exit(1, 1);
    world.go(30);
    assert_eq!(all(&world), [2, 2, 2, 3, 2]);
    world.check_settled();
}

#[test]
fn each_who_fails_alone_is_charged_whatever_befalls_others() {
    let mut world = AgentWorld::running(alone(1, 4, 5));
    world.exit(1, 1);
    world.exit(2, 1);
    world.pass(secs(0), u16::MAX);
    world.evict(3);
    world.go(30);
    assert_eq!((world.state.failures, world.state.disruptions), (2, 1));
    assert_eq!((starts(&world), world.state.phase), (vec![1, 2, 2, 2], Phase::Running));
    world.check_settled();
}
