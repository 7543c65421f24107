//! What is told of a script that tells of no checkpoint.

use eto_engine::plan::{Event, EventReason, is_first_checkpoint};
use eto_engine::state::{ConditionKind, ConditionReason};

use super::world::AgentWorld;
use crate::common::{job, secs};

fn warnings(events: &[Event]) -> Vec<&str> {
    events.iter().filter(|e| e.reason == EventReason::NoCheckpoint && e.warning).map(|e| e.message.as_str()).collect()
}

fn told(w: &AgentWorld) -> Option<(bool, ConditionReason)> {
    let condition = w.state.conditions.iter().find(|c| c.kind == ConditionKind::CheckpointsReported)?;
    Some((condition.status, condition.reason))
}

/// So many seconds, and what was warned of in them.
fn pass(w: &mut AgentWorld, seconds: u32) -> Vec<String> {
    let mut all = Vec::new();
    for _ in 0..seconds {
        w.pass(secs(1), u16::MAX);
        all.extend(warnings(&w.plan(&w.state).events).into_iter().map(str::to_owned));
        w.operate(usize::MAX);
    }
    all
}

#[test]
fn training_without_a_checkpoint_is_told_of_once_and_again_when_it_is_stopped() {
    let mut w = AgentWorld::running(job(1, 2, 5));
    assert_eq!((pass(&mut w, 270), told(&w)), (vec![], None), "it may still come");
    let look = w.plan(&w.state).next_look.unwrap();
    assert!(look.since(w.now) <= secs(40), "the plan is to be asked when the time has come");
    let events = pass(&mut w, 900);
    assert_eq!(events.len(), 1, "{events:?}");
    assert!(events[0].contains("loses all training so far"), "{events:?}");
    assert_eq!(told(&w), Some((false, ConditionReason::NoCheckpoint)));
    w.job.replicas = 3;
    let events = pass(&mut w, 60);
    assert_eq!(events.len(), 1, "{events:?}");
    assert!(events[0].contains("round 2 starts all processes again"), "{events:?}");
    // The first that is told takes it back.
    assert!(!is_first_checkpoint(&w.state, Some(&w.group)));
    w.checkpoint(0, 7);
    w.pass(secs(1), u16::MAX);
    assert!(is_first_checkpoint(&w.state, Some(&w.group)), "so it is planned for");
    assert!(pass(&mut w, 1).is_empty());
    assert_eq!(told(&w), Some((true, ConditionReason::CheckpointTold)));
    w.job.replicas = 2;
    assert!(pass(&mut w, 900).is_empty());
}

#[test]
fn a_resize_before_the_first_checkpoint_says_what_it_costs() {
    let mut w = AgentWorld::running(job(1, 2, 5));
    w.job.replicas = 1;
    let events = pass(&mut w, 30);
    assert_eq!(events.len(), 1, "{events:?}");
}
