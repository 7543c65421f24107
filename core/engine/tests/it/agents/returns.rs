//! What is heard late, or again: agents that had been given up, a gateway that was away, orders that etcd has lost.

use eto_engine::plan::{Action, recover};
use eto_engine::state::{Phase, RoundOrder};
use eto_membership::{MemberState, Order};

use super::world::AgentWorld;
use crate::common::{job, secs};

fn uids(world: &AgentWorld) -> Vec<String> {
    world.pods.iter().map(|p| p.uid.clone()).collect()
}

fn in_force_since(world: &AgentWorld) -> Option<u64> {
    world.state.round.as_ref().unwrap().agent.as_ref().unwrap().in_force.map(|t| t.0)
}

#[test]
fn a_round_of_silent_members_does_not_keep_those_waiting_who_are_heard() {
    let mut world = AgentWorld::running(job(1, 2, 5));
    let silent = world.pods[1].uid.clone();
    world.cut.insert(silent.clone());
    world.evict(0);
    world.go(10);
    assert_eq!((world.members(), world.order()), (vec![1], RoundOrder::Stop));
    world.go(120);
    assert!(world.pods.iter().all(|p| p.uid != silent), "it is replaced");
    assert_eq!((world.state.phase, world.state.failures), (Phase::Running, 0));
    world.check_settled();
}

#[test]
fn a_gateway_that_comes_back_hears_one_before_the_next_and_nobody_is_lost_for_that() {
    let mut world = AgentWorld::running(job(1, 3, 5));
    let before = uids(&world);
    // Since the status was lost it is not known that all run; the leases of all records have ended meanwhile.
    world.group.members.clear();
    world.state = recover(&world.job, &world.pods, Some(&world.group), world.now);
    for _ in 0..60 {
        world.operate(usize::MAX);
        world.pass(secs(1), 0);
    }
    for heard in [0b001, 0b001, 0b011, 0b011, 0b011, 0b111] {
        world.pass(secs(2), heard);
        world.operate(usize::MAX);
    }
    world.go(3);
    assert_eq!((world.generation(), world.starts.len(), uids(&world)), (1, 3, before));
    world.check_settled();
    // One that does not come while the others have long been heard is missed.
    world.state = recover(&world.job, &world.pods, Some(&world.group), world.now);
    let lost = world.pods[2].uid.clone();
    world.cut.insert(lost.clone());
    world.group.members.remove(&lost);
    world.go(90);
    assert!(world.pods.iter().all(|p| p.uid != lost));
    world.check_settled();
}

#[test]
fn who_was_given_up_and_is_heard_again_is_waited_for_like_the_others() {
    let mut world = AgentWorld::running(job(1, 3, 5));
    world.stop_time = secs(8);
    let away: Vec<String> = world.pods[..2].iter().map(|p| p.node.clone().unwrap()).collect();
    world.sick.extend(away);
    world.go(16);
    assert_eq!((world.generation(), world.order(), world.members()), (2, RoundOrder::Stop, vec![2]));
    let old = uids(&world)[..2].to_vec();
    world.sick.clear();
    // That nobody is told to run before the last of them has stopped is checked at each order.
    world.go(60);
    assert!(old.iter().all(|uid| world.pods.iter().all(|p| p.uid != *uid)));
    world.check_settled();
}

#[test]
fn who_returns_before_the_members_are_told_to_start_is_waited_for() {
    let mut world = AgentWorld::running(job(1, 3, 5));
    world.stop_time = secs(4);
    world.sick.extend(world.pods[..2].iter().filter_map(|p| p.node.clone()));
    let old = uids(&world)[..2].to_vec();
    let runs = |world: &AgentWorld| {
        let run = |a: &Action| matches!(a, Action::Assign(next) if next.order == Order::Run);
        world.plan(&world.state).actions.iter().any(run)
    };
    while !runs(&world) {
        world.operate(usize::MAX);
        world.pass(secs(1), u16::MAX);
    }
    // The operator ends when it has decided, and has told nobody.
    world.operate(1);
    let decided = world.generation();
    assert_eq!((world.order(), world.containers[&old[0]].runs), (RoundOrder::Run, Some(1)));
    world.sick.clear();
    world.pass(secs(1), u16::MAX);
    world.operate(usize::MAX);
    assert_eq!((world.generation(), world.order()), (decided, RoundOrder::Stop));
    // That nobody is told to run before they have stopped is checked at each order.
    world.go(60);
    assert!(old.iter().all(|uid| world.pods.iter().all(|p| p.uid != *uid)));
    world.check_settled();
}

#[test]
fn who_has_not_stopped_in_time_is_not_waited_for_again() {
    let mut world = AgentWorld::running(job(1, 2, 5));
    world.stop_time = secs(1_000);
    world.job.replicas = 1;
    while world.order() == RoundOrder::Run {
        world.go(1);
    }
    while world.order() == RoundOrder::Stop {
        world.pass(secs(1), u16::MAX);
        world.operate(1);
    }
    assert_eq!((world.order(), world.generation()), (RoundOrder::Run, 2), "decided, and nobody is told yet");
    world.operate(usize::MAX);
    assert_eq!(world.group.assignment.as_ref().map(|a| (a.round.generation, a.order)), Some((2, Order::Run)));
}

#[test]
fn an_order_to_run_that_etcd_has_lost_is_not_put_off() {
    let mut world = AgentWorld::running(job(1, 3, 5));
    world.job.replicas = 2;
    world.go(20);
    // Restored from a backup: what members did then is taken for what they do now.
    world.group.assignment.as_mut().unwrap().round.generation = 1;
    world.group.members.values_mut().for_each(|r| r.report.state = MemberState::Running { generation: 1 });
    world.operate(usize::MAX);
    assert_eq!((world.generation(), world.order()), (2, RoundOrder::Run));
}

#[test]
fn an_order_to_run_that_was_told_holds_for_a_state_that_puts_it_off() {
    let mut world = AgentWorld::running(job(1, 2, 5));
    world.state.round.as_mut().unwrap().agent.as_mut().unwrap().order = RoundOrder::Stop;
    world.go(3);
    assert_eq!((world.generation(), world.order(), world.starts.len()), (1, RoundOrder::Run, 2));
    world.check_settled();
}

#[test]
fn an_order_to_stop_that_etcd_has_lost_is_given_anew_with_all_its_time() {
    let mut world = AgentWorld::running(job(1, 2, 5));
    world.stop_time = secs(200);
    world.job.replicas = 1;
    world.go(20);
    assert_eq!(world.order(), RoundOrder::Stop);
    let (told, lost) = (in_force_since(&world).unwrap(), world.now.0);
    world.group.assignment = None;
    world.operate(usize::MAX);
    assert_eq!((in_force_since(&world), world.group.assignment.as_ref().unwrap().order), (None, Order::Stop));
    world.go(1);
    assert!(in_force_since(&world).unwrap() >= lost && told < lost);
    assert_eq!(world.generation(), 2);
}

#[test]
fn a_suspension_waits_for_processes_that_were_told_late_or_not_at_all() {
    // The operator ends before it has told anybody; its successor comes when a drain would have been over.
    for suspended_before in [true, false] {
        let mut world = AgentWorld::running(job(1, 2, 5));
        world.stop_time = secs(25);
        (world.job.suspend, world.job.replicas) = (suspended_before, 1);
        world.operate(1);
        assert_eq!(world.order(), RoundOrder::Stop);
        world.pass(secs(if suspended_before { 35 } else { 300 }), 0);
        world.job.suspend = true;
        world.go(20);
        assert!(world.pods.iter().all(|p| p.deleting.is_none()), "they stop, and may write a checkpoint");
        world.go(40);
        assert_eq!((world.pods.len(), world.state.phase), (0, Phase::Suspended));
    }
}

#[test]
fn a_lost_status_lets_processes_stop_for_a_round_of_nobody() {
    let mut world = AgentWorld::running(job(1, 2, 5));
    world.stop_time = secs(8);
    world.pods.iter_mut().for_each(|p| p.disrupted = true);
    world.go(3);
    assert_eq!((world.members().len(), world.order()), (0, RoundOrder::Stop));
    let before = uids(&world);
    world.state = recover(&world.job, &world.pods, Some(&world.group), world.now);
    world.operate(usize::MAX);
    assert_eq!((world.generation(), world.order()), (2, RoundOrder::Stop), "it is known what they do");
    world.go(3);
    let stays = |uid: &String| world.pods.iter().any(|p| p.uid == *uid && p.deleting.is_none());
    assert!(before.iter().all(stays), "they have their time to stop");
    world.go(30);
    world.check_settled();
}

/// A job in which a round trains that its status does not know: the next one was decided, and pods were made for it, but the
/// status was lost before anybody was told.
fn forgotten() -> AgentWorld {
    let mut world = AgentWorld::running(job(1, 3, 5));
    world.stop_time = secs(4);
    world.evict(2);
    // The state, the pod that goes, the service and the pod that comes.
    world.operate(4);
    assert_eq!((world.generation(), world.order(), world.pods.len()), (2, RoundOrder::Stop, 4));
    world.state = recover(&world.job, &world.pods, Some(&world.group), world.now);
    world.operate(usize::MAX);
    assert_eq!((world.order(), world.containers[&world.pods[0].uid].runs), (RoundOrder::Gather, Some(1)));
    world
}

#[test]
fn a_round_that_was_forgotten_stops_before_its_pods_go() {
    for what in ["template", "suspension", "size"] {
        let mut world = forgotten();
        let before: Vec<String> = uids(&world)[..2].to_vec();
        match what {
            "template" => world.job.template.as_mut().unwrap().hash = "t2".into(),
            "suspension" => world.job.suspend = true,
            _ => world.state.target = 1,
        }
        world.operate(usize::MAX);
        let told = world.group.assignment.as_ref().unwrap();
        assert_eq!(told.order, Order::Stop, "{what}: {told:?}");
        for _ in 0..20 {
            if !before.iter().any(|uid| world.containers.get(uid).is_some_and(|c| c.runs.is_some())) {
                break;
            }
            let there = |uid: &String| world.pods.iter().any(|p| p.uid == *uid && p.deleting.is_none());
            assert!(before.iter().all(there), "{what}: {:?}", world.pods);
            world.pass(secs(1), u16::MAX);
            world.operate(usize::MAX);
        }
        world.job.suspend = false;
        world.go(90);
        world.check_settled();
        assert_eq!((world.state.phase, world.state.failures), (Phase::Running, 0), "{what}");
    }
}

#[test]
fn generations_that_nobody_knows_of_any_more_are_not_given_out_again() {
    // Status and etcd are lost: agents tell what they know, and that may be less than there was.
    let mut world = AgentWorld::running(job(1, 2, 5));
    world.job.replicas = 3;
    world.go(30);
    assert_eq!(world.generation(), 2);
    world.group = eto_membership::Group::default();
    world.state = recover(&world.job, &world.pods, Some(&world.group), world.now);
    world.go(40);
    assert!(world.generation() > 100_000, "above all that it can have had in its age: {}", world.generation());
    assert_eq!(world.state.phase, Phase::Running);
    // The pods are gone too, or etcd has what was in force long ago.
    let age = world.now.since(world.job.created).as_secs();
    let last = |world: &AgentWorld| recover(&world.job, &[], Some(&world.group), world.now).last_generation;
    assert!(last(&world) >= age);
    world.group.members.clear();
    world.group.assignment.as_mut().unwrap().round.generation = 1;
    assert_eq!(last(&world), age);
    // The pods that are left are of a later round than what etcd has, and the agents that knew of it are gone.
    world.pods[0].round = 2;
    let there = recover(&world.job, &world.pods, Some(&world.group), world.now);
    assert!(there.last_generation >= age && there.round.unwrap().generation > age);
    // A new job has had none.
    world.group.assignment = None;
    world.job.created = world.now.minus(secs(4));
    assert_eq!(last(&world), 0);
}

#[test]
fn a_deletion_that_was_decided_is_not_taken_back() {
    // The operator ends, or stands still, before it has deleted anything. The next leader finds things changed.
    let mut world = AgentWorld::running(job(1, 3, 5));
    let old = uids(&world);
    world.sick.insert(world.pods[2].node.clone().unwrap());
    let useless = |world: &AgentWorld| {
        let plan = world.plan(&world.state);
        plan.actions.iter().any(|a| matches!(a, Action::DeletePod { uid, .. } if *uid == old[2]))
    };
    for _ in 0..60 {
        if useless(&world) {
            break;
        }
        world.operate(usize::MAX);
        world.pass(secs(1), u16::MAX);
    }
    assert!(useless(&world));
    world.operate(1);
    world.sick.clear();
    world.pass(secs(1), u16::MAX);
    world.go(60);
    assert!(world.pods.iter().all(|p| p.uid != old[2]), "the world holds that it is in no round either");
    assert_eq!(world.state.deleting, Vec::<String>::new());
    world.check_settled();

    // As with a job that is resumed before its pods are gone.
    let mut world = AgentWorld::running(job(1, 3, 5));
    let old = uids(&world);
    world.job.suspend = true;
    while world.state.round.is_some() {
        world.operate(1);
        world.pass(secs(1), u16::MAX);
        world.operate(2);
    }
    assert!(world.pods.iter().any(|p| p.deleting.is_none()), "the operator ended before it had deleted all of them");
    world.job.suspend = false;
    world.go(60);
    assert!(old.iter().all(|uid| world.pods.iter().all(|p| p.uid != *uid)));
    world.check_settled();
}
