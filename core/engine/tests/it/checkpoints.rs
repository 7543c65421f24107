//! What is told of a restart where no agent could tell of a checkpoint.

use eto_engine::plan::{EventReason, Plan};
use eto_engine::state::{ConditionKind, ConditionReason};

use crate::common::{job, secs};
use crate::plan::why;
use crate::world::World;

fn warnings(plan: &Plan) -> Vec<&str> {
    let of = plan.events.iter().filter(|e| e.reason == EventReason::NoCheckpoint && e.warning);
    of.map(|e| e.message.as_str()).collect()
}

/// A job of two workers in round 1 that has trained for so many seconds.
fn trained(seconds: u64) -> World {
    let mut w = World::new(job(1, 2, 5));
    assert!(w.settle());
    w.state.round.as_mut().unwrap().running_since = Some(w.now);
    for _ in 0..seconds {
        w.pass(secs(1));
        assert_eq!(warnings(&w.plan(&w.state)), [""; 0], "nothing was lost yet");
        w.operate(usize::MAX);
    }
    w
}

#[test]
fn the_first_resize_without_an_agent_says_what_it_may_cost_and_further_ones_do_not() {
    let mut w = trained(400);
    w.job.replicas = 3;
    let plan = w.plan(&w.state);
    let told = warnings(&plan);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("round 2 starts all pods again"), "{told:?}");
    assert!(told[0].contains("(400 s of round 1)"), "{told:?}");
    assert_eq!(why(&plan, ConditionKind::CheckpointsReported), (false, ConditionReason::NoCheckpoint));
    assert!(w.settle());
    w.job.replicas = 2;
    assert_eq!(warnings(&w.plan(&w.state)), [""; 0], "it was told");
    assert!(w.settle());
    assert_eq!(why(&w.plan(&w.state), ConditionKind::CheckpointsReported), (false, ConditionReason::NoCheckpoint));
}

#[test]
fn a_suspension_without_an_agent_says_what_it_may_cost_and_the_resumption_does_not_again() {
    let mut w = trained(20);
    w.job.suspend = true;
    let plan = w.plan(&w.state);
    let told = warnings(&plan);
    assert!(told.len() == 1 && told[0].contains("the suspension deletes all pods"), "{told:?}");
    assert!(told[0].contains("(20 s of round 1)"), "{told:?}");
    assert_eq!(why(&plan, ConditionKind::CheckpointsReported), (false, ConditionReason::NoCheckpoint));
    w.operate(usize::MAX);
    assert_eq!(warnings(&w.plan(&w.state)), [""; 0], "it was told");
    w.job.suspend = false;
    assert_eq!(warnings(&w.plan(&w.state)), [""; 0], "nothing has trained since");
}

#[test]
fn a_lost_worker_without_an_agent_says_what_it_may_cost() {
    let mut w = trained(20);
    w.pods.retain(|p| p.index != 1);
    let plan = w.plan(&w.state);
    let told = warnings(&plan);
    assert!(told.len() == 1 && told[0].contains("(20 s of round 1)"), "{told:?}");
}

#[test]
fn containers_that_restart_in_place_say_what_it_may_cost() {
    let mut w = trained(20);
    w.pods[1].restarts = 1;
    let plan = w.plan(&w.state);
    let told = warnings(&plan);
    assert!(told.len() == 1 && told[0].contains("in their pods"), "{told:?}");
    assert!(told[0].contains("(20 s of round 1)"), "{told:?}");
}

#[test]
fn a_round_that_never_trained_loses_nothing() {
    let mut w = World::new(job(1, 2, 5));
    w.room = 1;
    w.operate(usize::MAX);
    w.job.replicas = 1;
    let plan = w.plan(&w.state);
    assert!(plan.events.iter().any(|e| e.reason == EventReason::RoundStarted), "{:?}", plan.events);
    assert_eq!(warnings(&plan), [""; 0]);
}
