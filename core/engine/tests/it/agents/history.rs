//! What the history says of rounds with an agent.

use eto_engine::contract::Reason;
use eto_engine::decision::Decision;
use eto_engine::job::JobSpec;
use eto_engine::plan::{EventReason, apply};
use eto_engine::policy::PolicyId;
use eto_engine::state::{ChangeBy, ChangeKind, ChangeOutcome, HistoryEntry, LossClass, MAX_HISTORY, Memory};

use super::world::AgentWorld;
use crate::common::{job, secs};

fn last(world: &AgentWorld) -> &HistoryEntry {
    world.state.history.first().expect("something has happened")
}

fn sizes(e: &HistoryEntry) -> (ChangeKind, u32, u32) {
    (e.kind, e.from, e.to)
}

fn names(world: &AgentWorld) -> Vec<String> {
    world.pods.iter().map(|p| p.name.clone()).collect()
}

fn made(job: &JobSpec, from: u32, target: u32, why: &str) -> Decision {
    let reason = Reason { code: "Idle".into(), message: why.into(), signal: None, value: None, target: None };
    Decision {
        at: crate::common::NOW,
        uid: job.uid.clone(),
        sequence: 0,
        generation: job.generation,
        policy: Some(PolicyId { name: "mine".into(), version: "1".into(), digest: String::new() }),
        answered: true,
        from,
        proposed: Some(target),
        target,
        apply: true,
        limits: vec![],
        reasons: vec![reason],
        signals: vec![],
        fuel: 0,
        failure: None,
        mend: None,
        placement: None,
        next_look: None,
    }
}

#[test]
fn a_start_is_one_entry_and_a_steady_job_adds_none() {
    let mut world = AgentWorld::new(job(1, 3, 5));
    world.operate(usize::MAX);
    let open = last(&world);
    assert_eq!((sizes(open), open.is_open(), open.outcome), ((ChangeKind::Start, 0, 3), true, None));
    world.go(20);
    let before = world.state.clone();
    world.go(300);
    assert_eq!(world.state.history, before.history, "nothing happens, nothing is written");
    let [start] = &world.state.history[..] else { panic!("{:?}", world.state.history) };
    assert_eq!((start.by, start.outcome, start.attempts), (ChangeBy::User, Some(ChangeOutcome::Done), 1));
    assert_eq!((start.paused_ms, start.joined.len(), start.before.len()), (None, 0, 0));
    assert_eq!(start.ended, world.state.round.as_ref().unwrap().running_since);
}

#[test]
fn a_resize_says_who_wanted_it_which_pods_came_and_what_it_cost() {
    let mut world = AgentWorld::running(job(1, 2, 5));
    world.job.replicas = 4;
    let decided = world.now;
    world.operate(usize::MAX);
    assert_eq!(world.state.history.len(), 1, "it trains on until all have joined");
    world.go(20);
    let grown = last(&world).clone();
    assert_eq!(
        (sizes(&grown), grown.by, grown.outcome),
        ((ChangeKind::Resize, 2, 4), ChangeBy::User, Some(ChangeOutcome::Done))
    );
    assert_eq!((grown.why.as_str(), grown.started, grown.generation), ("spec.replicas is 4", decided, 2));
    assert_eq!((&grown.joined[..], grown.left.len()), (&names(&world)[2..], 0));
    let cost = world.state.last_resize.as_ref().unwrap().cost.unwrap();
    assert_eq!(grown.paused_ms, Some(cost.paused_ms), "the same measure as the resize's");
    // A policy wants less.
    let going = names(&world)[3].clone();
    world.progress(0, 130);
    world.checkpoint(0, 100);
    world.pass(secs(1), u16::MAX);
    world.operate(usize::MAX);
    let mut memory = Memory::new(world.now);
    let decision = made(&world.job, 4, 3, "idle");
    assert!(apply(&world.job, &mut world.state, &mut memory, &decision, world.now));
    world.go(90);
    let shrunk = last(&world);
    assert_eq!((sizes(shrunk), shrunk.by), ((ChangeKind::Resize, 4, 3), ChangeBy::Policy));
    assert_eq!((shrunk.why.as_str(), &shrunk.left[..]), ("mine: idle", &[going][..]));
    assert_eq!(shrunk.steps_lost, Some(30));
    world.check_settled();
}

#[test]
fn a_lost_worker_and_the_one_that_comes_for_it_are_two_changes() {
    let mut world = AgentWorld::running(job(2, 3, 5));
    let lost = world.pods[1].name.clone();
    world.room = 2;
    world.evict(1);
    world.go(8);
    let e = last(&world).clone();
    assert_eq!(
        (sizes(&e), e.by, e.loss),
        ((ChangeKind::Replacement, 3, 2), ChangeBy::Loss, Some(LossClass::Disrupted))
    );
    assert_eq!((&e.left[..], e.joined.len(), e.outcome), (&[lost][..], 0, Some(ChangeOutcome::Done)));
    assert!(e.why.contains("worker 1 was disrupted") && e.paused_ms.is_some(), "{e:?}");
    world.room = 9;
    world.go(15);
    let back = last(&world);
    assert_eq!((sizes(back), back.by, back.left.len()), ((ChangeKind::Replacement, 2, 3), ChangeBy::Loss, 0));
    let new: Vec<String> = names(&world).into_iter().filter(|n| n.starts_with("demo-worker-1-")).collect();
    assert_eq!(back.joined, new);
}

#[test]
fn a_replacement_in_time_is_one_change_and_a_wait_below_the_minimum_too() {
    let mut world = AgentWorld::running(job(3, 3, 5));
    let lost = world.pods[2].name.clone();
    world.room = 2;
    world.evict(2);
    world.go(10);
    assert!(last(&world).is_open());
    world.room = 9;
    world.go(15);
    assert_eq!(world.state.history.len(), 2);
    let e = last(&world);
    assert_eq!((sizes(e), &e.left[..], e.joined.len()), ((ChangeKind::Replacement, 3, 3), &[lost][..], 1));
    assert!(e.attempts >= 2 && e.paused_ms.is_some_and(|ms| ms >= 10_000), "{e:?}");
}

#[test]
fn processes_that_fail_in_their_pods_are_a_restart_and_hung_ones_too() {
    let mut spec = job(1, 2, 5);
    spec.elasticity.hang_timeout = Some(secs(60));
    let mut world = AgentWorld::running(spec);
    world.exit(1, 3);
    world.pass(secs(0), u16::MAX);
    world.go(8);
    let e = last(&world);
    assert_eq!((sizes(e), e.loss), ((ChangeKind::Restart, 2, 2), Some(LossClass::ProcessFailed)));
    assert_eq!(
        (e.why.as_str(), e.left.len(), e.joined.len()),
        ("the processes of worker 1 ended with exit code 3", 0, 0)
    );
    world.progress(0, 5);
    world.go(90);
    let e = last(&world);
    assert_eq!((e.kind, e.loss, e.outcome), (ChangeKind::Restart, Some(LossClass::Hung), Some(ChangeOutcome::Done)));
}

#[test]
fn the_last_lines_of_who_failed_are_kept_for_three_and_where_they_may() {
    for keeps in [true, false] {
        let mut spec = job(1, 2, 5);
        spec.backoff_limit = 4;
        spec.elasticity.failure_logs = keeps;
        let mut world = AgentWorld::running(spec);
        let pod = world.pods[1].name.clone();
        for n in 0..5 {
            let uid = world.pods[1].uid.clone();
            world.containers.get_mut(&uid).unwrap().lines = format!("Traceback\r\nValueError: {n}\n");
            world.exit(1, 1);
            world.pass(secs(0), u16::MAX);
            world.go(400);
        }
        assert!(world.state.phase.is_terminal());
        let end = last(&world);
        assert_eq!((end.kind, end.by, end.loss), (ChangeKind::End, ChangeBy::Loss, Some(LossClass::ProcessFailed)));
        let failed: Vec<_> = world.state.history.iter().filter_map(|e| e.failed.as_ref()).collect();
        assert_eq!(failed.len(), 5);
        assert!(failed.iter().all(|f| f.exit_code == Some(1) && f.pod == pod), "{failed:?}");
        let lines: Vec<&str> = failed.iter().map(|f| f.last_lines.as_str()).collect();
        let kept = ["Traceback\nValueError: 4", "Traceback\nValueError: 3", "Traceback\nValueError: 2", "", ""];
        assert_eq!(lines, if keeps { kept } else { [""; 5] });
    }
}

#[test]
fn what_can_not_be_had_and_what_is_overtaken_is_said() {
    let mut world = AgentWorld::running(job(1, 2, 5));
    (world.room, world.job.replicas) = (2, 4);
    world.go(130);
    let e = last(&world);
    assert_eq!((sizes(e), e.outcome, e.by), ((ChangeKind::Resize, 2, 2), Some(ChangeOutcome::Refused), ChangeBy::User));
    assert!(e.why.starts_with("spec.replicas is 4; ") && e.why.contains("did not get a node"), "{}", e.why);
    // A suspension comes while processes stop for another size.
    (world.room, world.job.replicas) = (9, 1);
    world.operate(usize::MAX);
    assert!(last(&world).is_open());
    world.job.suspend = true;
    world.go(5);
    assert_eq!((last(&world).kind, last(&world).outcome), (ChangeKind::Resize, Some(ChangeOutcome::Interrupted)));
    world.job.suspend = false;
    world.go(20);
    assert_eq!(sizes(last(&world)), (ChangeKind::Resume, 0, 1));
}

#[test]
fn the_history_is_short_whatever_happens() {
    let mut spec = job(1, 3, 20);
    spec.backoff_limit = 100;
    let mut world = AgentWorld::running(spec);
    for at in 0..14 {
        world.job.replicas = if at % 2 == 0 { 16 } else { 3 };
        world.go(20);
    }
    assert_eq!(world.state.history.len(), MAX_HISTORY);
    assert!(world.state.history.iter().all(|e| e.joined.len() <= 8 && e.left.len() <= 8 && !e.is_open()));
    assert!(world.state.history.windows(2).all(|w| w[0].started >= w[1].started), "newest first");
    world.check_settled();
}

#[test]
fn who_started_how_many_processes_is_told_when_they_are_at_work() {
    let mut world = AgentWorld::new(job(1, 2, 5));
    let told = (0..60).find_map(|_| {
        world.pass(secs(1), u16::MAX);
        let events = world.plan(&world.state).events;
        world.operate(usize::MAX);
        events.into_iter().find(|e| e.reason == EventReason::RoundRunning)
    });
    assert_eq!(told.unwrap().message, "all 2 workers of round 1 are at work; their agents started 2 processes");
}
