//! Members that are something else than workers, where agents drive rounds.

use eto_engine::job::JobSpec;
use eto_engine::state::{Phase, RoundOrder};
use eto_membership::Order;

use super::world::AgentWorld;
use crate::common::{job_with, secs};

fn parameter_server(replicas: u32) -> JobSpec {
    job_with(&[("chief", 1), ("ps", 2)], 4, replicas, 8)
}

#[test]
fn rounds_say_who_is_what() {
    let world = AgentWorld::running(parameter_server(5));
    world.check_settled();
    let round = &world.group.assignment.as_ref().unwrap().round;
    let types: Vec<&str> = round.members.iter().map(|m| round.types.name(m.index)).collect();
    assert_eq!(types, ["chief", "ps", "ps", "worker", "worker"]);
}

#[test]
fn a_lost_worker_stops_nobody_for_long_and_a_lost_server_is_waited_for() {
    let mut world = AgentWorld::running(parameter_server(6));
    world.room = 5;
    world.evict(4);
    world.go(6);
    assert_eq!((world.members(), world.state.phase), (vec![0, 1, 2, 3, 5], Phase::Running));
    world.room = 64;
    world.go(20);
    world.check_settled();
    world.room = 5;
    world.evict(1);
    world.go(6);
    assert_eq!(
        (world.order(), world.state.phase),
        (RoundOrder::Gather, Phase::Restarting),
        "five are left, and no server 0"
    );
    assert!(world.containers.values().all(|c| c.runs.is_none()));
    world.room = 64;
    world.go(10);
    world.check_settled();
    assert_eq!((world.state.target, world.state.failures), (6, 0));
}

#[test]
fn a_shrink_gives_up_workers_alone() {
    let mut world = AgentWorld::running(parameter_server(6));
    world.job.replicas = 4;
    world.go(20);
    world.check_settled();
    assert_eq!(world.members(), [0, 1, 2, 3]);
}

#[test]
fn a_server_that_is_lost_while_the_job_shrinks_has_its_place() {
    let mut world = AgentWorld::running(parameter_server(6));
    world.room = 5;
    world.evict(1);
    world.job.replicas = 5;
    world.go(20);
    world.check_settled();
    assert_eq!(world.members().len(), 5);
    assert!(world.members().contains(&1), "a worker made room for it");
}

#[test]
fn a_server_without_a_node_shrinks_nothing() {
    let mut world = AgentWorld::running(parameter_server(6));
    world.room = 5;
    world.evict(1);
    // By the deadline of nodes the workers wait; by that of the round all are released, and it is first in the queue.
    world.go(300);
    assert_eq!((world.state.target, world.order()), (6, RoundOrder::Gather));
    world.go(400);
    assert!(world.state.start_attempts > 0);
    world.go(300);
    assert_eq!((world.state.target, world.members().len()), (5, 5), "with a server, and one worker less");
    world.check_settled();
}

#[test]
fn the_chiefs_success_is_the_jobs() {
    let mut world = AgentWorld::running(parameter_server(5));
    world.exit(3, 0);
    world.go(3);
    assert_eq!(world.state.phase, Phase::Running, "a worker's end is not the job's");
    world.exit(0, 0);
    world.go(5);
    assert_eq!((world.state.phase, world.state.failures), (Phase::Succeeded, 0));
    assert_eq!(world.group.assignment.as_ref().unwrap().order, Order::End);
    world.go(60);
    world.check_settled();
}

#[test]
fn without_a_chief_the_job_ends_with_its_workers_and_servers_are_no_failure() {
    let mut world = AgentWorld::running(job_with(&[("ps", 1)], 2, 3, 3));
    world.exit(1, 0);
    world.go(3);
    assert_eq!(world.state.phase, Phase::Running);
    world.exit(2, 0);
    // It is stopped with a code of its own.
    world.stop_time = secs(1);
    world.go(5);
    assert_eq!((world.state.phase, world.state.failures), (Phase::Succeeded, 0));
}
