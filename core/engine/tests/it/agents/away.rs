//! Jobs that begin, or have lost their status, while etcd is away.

use eto_engine::plan::{Action, GATEWAY_PATIENCE, Group, needs_group, recover};
use eto_engine::state::{ConditionKind, ConditionReason, RoundMode, RoundOrder};

use super::world::AgentWorld;
use crate::common::{job, pods, secs};

#[test]
fn a_job_that_begins_without_etcd_goes_on_by_recreation_after_a_while_and_one_that_trains_does_not() {
    let mut world = AgentWorld::new(job(1, 2, 5));
    world.gateway = false;
    let patience = u32::try_from(GATEWAY_PATIENCE.as_secs()).unwrap();
    world.go(patience - 1);
    assert_eq!((world.order(), world.generation(), world.pods.len()), (RoundOrder::Gather, 1, 2));
    world.pass(secs(1), u16::MAX);
    let p = world.plan(&world.state);
    let round = p.state.round.as_ref().unwrap();
    assert_eq!((round.mode(), round.generation, round.size), (RoundMode::Recreate, 2, 2));
    let deleted = p.actions.iter().filter(|a| matches!(a, Action::DeletePod { .. })).count();
    assert_eq!((deleted, p.actions.len()), (2, 2), "the pods with agents go before others are made");
    let told = p.state.conditions.iter().find(|c| c.kind == ConditionKind::AgentRounds).unwrap();
    assert_eq!((told.status, told.reason), (false, ConditionReason::GatewayNotReached));
    assert!(p.events.iter().any(|e| e.message.contains("not reached for 300 s")), "{:?}", p.events);
    // The next round of new pods has agents again, when etcd is back.
    world.pods.clear();
    world.gateway = true;
    world.job.replicas = 3;
    let next = world.plan(&p.state).state;
    assert_eq!(next.round.unwrap().mode(), RoundMode::Agent);

    let mut world = AgentWorld::running(job(1, 2, 5));
    world.gateway = false;
    world.go(2 * patience);
    assert_eq!((world.generation(), world.order(), world.starts.len()), (1, RoundOrder::Run, 2));
    // Nor does one whose status was lost, whatever is known of it.
    world.state = recover(&world.job, &world.pods, None, world.now);
    world.go(2 * patience);
    assert_eq!(world.starts.len(), 2);
    world.gateway = true;
    world.go(20);
    world.check_settled();
    assert_eq!(world.starts.len(), 2);
}

#[test]
fn the_size_of_a_job_without_status_is_the_published_one_or_what_its_pods_were_made_for() {
    let mut world = AgentWorld::new(job(1, 3, 5));
    world.operate(usize::MAX);
    world.pods.remove(1);
    let none = Group::default();
    assert_eq!(recover(&world.job, &world.pods, Some(&none), world.now).target, 3, "one is missing just now");
    let mut world = AgentWorld::running(job(1, 4, 5));
    world.job.replicas = 2;
    world.go(20);
    assert_eq!(
        recover(&world.job, &world.pods, Some(&world.group), world.now).target,
        2,
        "not for what they were made"
    );
    assert!(needs_group(&world.pods, true, None) && !needs_group(&world.pods, false, None));
    assert!(!needs_group(&world.pods, true, Some(&world.group)) && !needs_group(&[], true, None));
    assert!(!needs_group(&pods(2), true, None), "no agent drives these");
}
