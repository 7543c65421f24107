//! What the history says of rounds by recreation.

use eto_engine::contract::WorkerPhase;
use eto_engine::observe::ContainerEnd;
use eto_engine::plan::{PlanFacts, plan};
use eto_engine::state::{ChangeBy, ChangeKind, ChangeOutcome, JobState, LossClass};

use crate::common::{NOW, job, pod, pods, running, secs};
use crate::world::World;

#[test]
fn a_failed_pod_is_replaced_and_both_are_named() {
    let mut world = World::new(job(1, 3, 5));
    assert!(world.settle());
    assert_eq!(world.state.history[0].kind, ChangeKind::Start);
    world.pods[1].phase = WorkerPhase::Failed;
    world.pods[1].last_end =
        Some(Box::new(ContainerEnd { code: 1, reason: "Error".into(), lines: "KeyError: 'x'".into() }));
    let lost = world.pods[1].name.clone();
    assert!(world.settle());
    let e = &world.state.history[0];
    assert_eq!((e.kind, e.by, e.loss), (ChangeKind::Replacement, ChangeBy::Loss, Some(LossClass::PodFailed)));
    assert_eq!((e.from, e.to, e.outcome), (3, 3, Some(ChangeOutcome::Done)));
    let failed = e.failed.as_ref().unwrap();
    assert_eq!((&failed.pod, failed.exit_code, failed.last_lines.as_str()), (&lost, Some(1), "KeyError: 'x'"));
    assert_eq!((&e.left[..], &e.joined[..]), (&[lost][..], &[world.pods[1].name.clone()][..]));
    assert!(e.paused_ms.is_some_and(|ms| ms > 0), "{e:?}");
}

#[test]
fn resizes_name_who_came_and_who_was_given_up() {
    let mut world = World::new(job(1, 2, 5));
    assert!(world.settle());
    world.job.replicas = 4;
    assert!(world.settle());
    let e = &world.state.history[0];
    assert_eq!((e.kind, e.by, e.from, e.to), (ChangeKind::Resize, ChangeBy::User, 2, 4));
    let new: Vec<String> = world.pods.iter().filter(|p| p.index >= 2).map(|p| p.name.clone()).collect();
    assert_eq!((&e.joined, e.left.len(), new.len()), (&new, 0, 2));
    world.job.replicas = 3;
    let going = world.pods.iter().find(|p| p.index == 3).unwrap().name.clone();
    assert!(world.settle());
    let e = &world.state.history[0];
    assert_eq!((e.from, e.to, &e.left[..], e.joined.len()), (4, 3, &[going][..], 0));
}

#[test]
fn a_start_that_is_tried_again_is_one_entry() {
    let mut world = World::new(job(3, 3, 5));
    world.room = 2;
    for _ in 0..40 {
        world.operate(usize::MAX);
        world.pass(secs(60));
    }
    let [start] = &world.state.history[..] else { panic!("{:?}", world.state.history) };
    assert!(start.is_open() && start.attempts > 1, "{start:?}");
    world.room = 9;
    assert!(world.settle());
    let [start] = &world.state.history[..] else { panic!("{:?}", world.state.history) };
    assert_eq!((start.outcome, start.generation), (Some(ChangeOutcome::Done), world.state.last_generation));
}

#[test]
fn containers_that_restart_in_place_are_counted_in_one_entry() {
    let spec = job(1, 2, 5);
    let mut state: JobState = running(&spec, 2);
    for restarts in 1..=3 {
        let mut all = pods(2);
        all[1].restarts = restarts;
        state = plan(&spec, &state, &all, &PlanFacts::default(), NOW.plus(secs(restarts.into()))).state;
    }
    let [e] = &state.history[..] else { panic!("{:?}", state.history) };
    assert_eq!((e.kind, e.loss, e.attempts), (ChangeKind::Restart, Some(LossClass::ContainerRestarted), 3));
}

#[test]
fn the_end_of_a_job_ends_what_is_under_way() {
    let mut spec = job(1, 2, 5);
    spec.replicas = 4;
    let state = JobState { based_on: 2, ..running(&spec, 2) };
    let resizing = plan(&spec, &state, &pods(2), &PlanFacts::default(), NOW).state;
    assert!(resizing.history[0].is_open());
    let mut done = pod(0, 1, 2);
    done.phase = WorkerPhase::Succeeded;
    let ended = plan(&spec, &resizing, &[done], &PlanFacts::default(), NOW.plus(secs(5))).state;
    assert!(ended.phase.is_terminal());
    assert_eq!((ended.history[0].kind, ended.history[0].from), (ChangeKind::End, 4));
    assert_eq!(
        (ended.history[1].kind, ended.history[1].outcome),
        (ChangeKind::Resize, Some(ChangeOutcome::Interrupted))
    );
    let again = plan(&spec, &ended, &[], &PlanFacts::default(), NOW.plus(secs(9))).state;
    assert_eq!(again.history, ended.history, "it ends once");
}
