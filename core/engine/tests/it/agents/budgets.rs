//! How many failures a job may have, of which class, within which time.

use eto_engine::observe::ContainerEnd;
use eto_engine::state::{ConditionKind, ConditionReason, LossClass, Phase};

use super::world::AgentWorld;
use crate::common::{job, secs};

fn reason(world: &AgentWorld) -> ConditionReason {
    world.state.conditions.iter().find(|c| c.kind == ConditionKind::Failed).unwrap().reason
}

/// A failure, and long enough afterwards that all is as it was.
fn fail(world: &mut AgentWorld) {
    world.exit(1, 1);
    world.go(400);
}

#[test]
fn failures_that_are_older_than_the_window_do_not_count() {
    let mut spec = job(1, 2, 5);
    (spec.backoff_limit, spec.elasticity.failure_window) = (2, Some(secs(1000)));
    let mut world = AgentWorld::running(spec);
    // One each 400 s: at most three within the window and its quarter would be one too many.
    for _ in 0..10 {
        fail(&mut world);
        world.go(200);
        assert_eq!(world.state.phase, Phase::Running);
        assert!((1..=2).contains(&world.state.failures), "{:?}", world.state.charges);
    }
    world.go(1300);
    world.job.generation += 1;
    world.go(1);
    assert_eq!((world.state.failures, world.state.charges.len()), (0, 0));
    for _ in 0..3 {
        world.exit(1, 1);
        world.go(60);
    }
    assert_eq!((world.state.phase, reason(&world)), (Phase::Failed, ConditionReason::BackoffLimitExceeded));
    let told = world.state.message.clone().unwrap();
    assert!(told.contains("3 failures within 1000 s"), "{told}");
}

#[test]
fn a_class_may_have_a_limit_of_its_own() {
    let mut spec = job(1, 2, 5);
    spec.elasticity.failure_limits = [(LossClass::OutOfMemory, 1), (LossClass::Hung, 0)].into();
    let mut world = AgentWorld::running(spec.clone());
    for _ in 0..3 {
        fail(&mut world);
    }
    assert_eq!(
        (world.state.phase, world.state.failures),
        (Phase::Running, 3),
        "of this class it may have what it likes"
    );
    for second in [false, true] {
        world.pods[1].last_end =
            Some(Box::new(ContainerEnd { code: 137, reason: "OOMKilled".into(), ..ContainerEnd::default() }));
        world.exit(1, 137);
        world.go(60);
        assert_eq!(world.state.phase == Phase::Failed, second, "{:?}", world.state.charges);
        world.go(340);
    }
    assert_eq!(reason(&world), ConditionReason::FailureLimitExceeded);
    let told = world.state.message.clone().unwrap();
    assert!(told.contains("2 failures of the class OutOfMemory") && told.contains("(1)"), "{told}");
    // A hang is one too many where none is allowed.
    spec.elasticity.hang_timeout = Some(secs(60));
    let mut world = AgentWorld::running(spec);
    world.progress(0, 1);
    world.go(80);
    assert_eq!((world.state.phase, reason(&world)), (Phase::Failed, ConditionReason::FailureLimitExceeded));
}

#[test]
fn a_failure_that_was_another_members_loss_is_taken_off_its_class() {
    let mut world = AgentWorld::running(job(1, 3, 5));
    world.sick.insert(world.pods[2].node.clone().unwrap());
    for at in 0..2 {
        world.exit(at, 1);
    }
    world.go(1);
    assert_eq!(world.state.charged(LossClass::ProcessFailed), 1);
    world.go(90);
    assert_eq!((world.state.charged(LossClass::ProcessFailed), world.state.failures), (0, 0));
}

#[test]
fn what_is_nobodys_fault_and_a_resize_count_for_nothing() {
    let mut spec = job(1, 3, 5);
    spec.backoff_limit = 0;
    spec.elasticity.failure_limits = [(LossClass::PodFailed, 0), (LossClass::ProcessFailed, 0)].into();
    let mut world = AgentWorld::running(spec);
    for turn in 0..5 {
        world.evict(1);
        world.go(30);
        world.job.replicas = 3 + turn % 2;
        world.go(30);
    }
    assert_eq!((world.state.failures, world.state.charges.len()), (0, 0));
    world.check_settled();
}
