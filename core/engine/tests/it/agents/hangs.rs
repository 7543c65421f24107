//! Members that live and make no progress any more.

use eto_engine::plan::EventReason;
use eto_engine::state::{ConditionKind, ConditionReason, LossClass, Phase, RoundCause, RoundOrder};
use eto_membership::Progress;

use super::world::AgentWorld;
use crate::common::{job, secs};

/// A job of two workers whose hang timeout is 60 s.
fn watched() -> AgentWorld {
    let mut spec = job(1, 2, 5);
    spec.elasticity.hang_timeout = Some(secs(60));
    AgentWorld::running(spec)
}

impl AgentWorld {
    /// So many seconds in which worker 0 tells a step each second, from this one on.
    fn train(&mut self, seconds: u32, from: u64) {
        for second in 0..seconds {
            self.progress(0, from + u64::from(second));
            self.go(1);
        }
    }

    fn restarting(&self) -> (bool, ConditionReason) {
        let told = self.state.conditions.iter().find(|c| c.kind == ConditionKind::Restarting).unwrap();
        (told.status, told.reason)
    }

    fn uids(&self) -> Vec<String> {
        self.pods.iter().map(|p| p.uid.clone()).collect()
    }
}

#[test]
fn members_that_make_no_progress_any_more_start_again_in_their_pods() {
    let mut world = watched();
    let before = world.uids();
    world.train(100, 1);
    assert_eq!((world.generation(), world.state.failures), (1, 0), "it trains");
    world.go(58);
    assert_eq!(world.generation(), 1, "not yet");
    let look = world.plan(&world.state).next_look.unwrap();
    assert!(look.since(world.now) <= secs(2), "the plan is to be asked when the time has come");
    while world.generation() == 1 {
        world.pass(secs(1), u16::MAX);
        assert!(world.now <= look, "it is not later than it said");
        let seen = world.plan(&world.state);
        if seen.state.last_generation == 2 {
            let told = seen.events.iter().find(|e| e.reason == EventReason::Hung).unwrap();
            assert!(told.warning && told.message.contains("no progress for 60 s, the last at step 100"), "{told:?}");
        }
        world.operate(usize::MAX);
    }
    assert_eq!((world.order(), world.state.phase), (RoundOrder::Stop, Phase::Restarting));
    assert_eq!(world.group.assignment.as_ref().unwrap().grace_ms, 30_000, "a checkpoint may be written");
    assert_eq!((world.state.failures, world.restarting()), (1, (true, ConditionReason::Hung)));
    world.go(6);
    world.check_settled();
    assert_eq!((world.generation(), world.uids(), world.restarting().0), (2, before, false), "in place");
    // No progress was told in this round: it is not judged.
    world.go(600);
    assert_eq!((world.generation(), world.state.failures), (2, 1));
}

#[test]
fn without_reports_of_progress_or_without_a_timeout_nothing_hangs() {
    let mut world = watched();
    world.go(1000);
    assert_eq!((world.generation(), world.state.phase), (1, Phase::Running));
    let mut world = AgentWorld::running(job(1, 2, 5));
    world.train(10, 1);
    world.go(1000);
    assert_eq!((world.generation(), world.state.phase), (1, Phase::Running));
}

#[test]
fn a_timeout_that_is_too_short_for_reports_that_are_late_is_longer() {
    let mut spec = job(1, 2, 5);
    spec.elasticity.hang_timeout = Some(secs(1));
    let mut world = AgentWorld::running(spec);
    for step in 0..20 {
        world.progress(0, step);
        world.go(29);
    }
    assert_eq!(world.generation(), 1);
    world.go(4);
    assert_eq!(world.generation(), 2);
}

#[test]
fn the_same_step_told_again_and_a_checkpoint_are_signs_of_life() {
    let mut world = watched();
    for told in 0..10 {
        if told % 2 == 0 {
            world.progress(1, 7);
        } else {
            world.checkpoint(1, told);
        }
        world.go(50);
    }
    assert_eq!((world.generation(), world.state.failures), (1, 0));
}

#[test]
fn a_script_says_how_long_its_next_report_may_take() {
    let mut world = watched();
    world.train(5, 1);
    world.progress_until_next(1, 6, Some(600_000));
    world.go(595);
    assert_eq!((world.generation(), world.state.failures), (1, 0), "an evaluation of one worker, say");
    let look = world.plan(&world.state).next_look.unwrap();
    assert!(look.since(world.now) <= secs(10), "the plan is to be asked when the time has come");
    // With its next report the timeout is the job's again.
    world.progress_until_next(1, 7, None);
    world.go(58);
    assert_eq!(world.generation(), 1);
    world.go(5);
    assert_eq!((world.generation(), world.state.failures), (2, 1));
    // What it asked for has passed. A shorter time than the job's changes nothing.
    let mut world = watched();
    world.progress_until_next(1, 1, Some(10_000));
    world.go(58);
    assert_eq!(world.generation(), 1);
    world.progress_until_next(1, 2, Some(120_000));
    world.go(125);
    assert!(world.why().contains("no progress for 120 s, the last at step 2"), "{}", world.why());
    // Nobody is waited for without end.
    let mut world = watched();
    world.progress_until_next(1, 1, Some(u64::MAX));
    world.go(24 * 3600 + 5);
    assert_eq!((world.generation(), world.state.failures), (2, 1));
}

#[test]
fn an_operator_that_starts_again_waits_anew() {
    let mut world = watched();
    world.train(5, 1);
    for _ in 0..5 {
        world.go(50);
        world.operate(0);
        assert_eq!(world.progress_seen, None, "what it had seen is lost");
    }
    assert_eq!(world.generation(), 1);
    world.go(63);
    assert_eq!(world.generation(), 2);
}

#[test]
fn what_can_not_be_seen_is_no_hang() {
    // The gateway is away.
    let mut world = watched();
    world.train(5, 1);
    world.gateway = false;
    world.go(300);
    world.gateway = true;
    world.go(50);
    assert_eq!(world.generation(), 1);
    // The only one that tells is not heard of: that alone does nothing.
    world.train(5, 10);
    world.cut.insert(world.pods[0].uid.clone());
    world.go(300);
    assert_eq!((world.generation(), world.state.phase), (1, Phase::Running));
    world.cut.clear();
    world.go(50);
    assert_eq!(world.generation(), 1);
    world.go(15);
    assert_eq!(world.generation(), 2, "it is heard of again, and tells nothing new");
}

#[test]
fn a_clock_that_is_wrong_changes_nothing() {
    let mut world = watched();
    for step in 0..200 {
        world.progress(0, step);
        world.pass(secs(1), u16::MAX);
        // Worker 1 told a step once, and its clock is an hour ahead.
        let uid = world.pods[1].uid.clone();
        let ahead =
            Progress { generation: 1, step: 900, at_ms: crate::common::NOW.0 + 3_600_000, ..Progress::default() };
        world.group.members.get_mut(&uid).unwrap().report.progress = Some(ahead);
        world.operate(usize::MAX);
    }
    assert_eq!((world.generation(), world.progress_seen.is_some()), (1, true));
}

#[test]
fn a_second_hang_soon_after_makes_new_pods_and_a_later_one_does_not() {
    let mut world = watched();
    let first = world.uids();
    world.train(5, 1);
    world.go(75);
    world.check_settled();
    assert_eq!((world.generation(), world.uids() == first), (2, true));
    // It works for long: the next is a first one.
    world.train(90, 5);
    world.go(85);
    world.check_settled();
    assert_eq!((world.generation(), world.uids() == first, world.state.failures), (3, true, 2));
    // It hangs at once.
    world.train(5, 50);
    world.go(130);
    world.check_settled();
    assert_eq!((world.state.failures, world.state.disruptions), (3, 0));
    assert!(world.uids().iter().all(|uid| !first.contains(uid)), "all pods are new");
    assert_eq!(world.state.round.as_ref().unwrap().cause, RoundCause::Hung);
}

#[test]
fn a_round_that_never_gets_to_its_first_progress_hangs_where_the_script_is_known_to_tell() {
    let mut world = watched();
    world.train(30, 1);
    let before = world.uids();
    // Its next round begins for a resize, and nothing comes of it.
    world.job.replicas = 3;
    world.go(20);
    assert_eq!(world.generation(), 2);
    world.go(870);
    assert_eq!((world.generation(), world.state.failures), (2, 0), "15 minutes at least");
    world.go(60);
    world.check_settled();
    assert_eq!((world.generation(), world.state.failures), (3, 1));
    assert!(before.iter().all(|uid| world.uids().contains(uid)), "in place");
    assert_eq!(world.hung_told, 1, "agents were told why they stop");
    let e = &world.state.history[0];
    assert!(e.why.contains("no progress within 900 s of its start"), "{}", e.why);
    // Again: new pods, which are watched too, though none of them has told anything.
    world.go(940);
    assert_eq!((world.state.phase, world.state.failures), (Phase::Running, 2));
    assert!(world.uids().iter().all(|uid| !before.contains(uid)), "all pods are new");
    world.go(940);
    assert_eq!(world.state.failures, 3);
}

/// docs/faults.md: three times `hangTimeoutSeconds`, where that is more than 15 minutes.
#[test]
fn a_long_timeout_gives_a_start_three_times_as_long() {
    let mut world = watched();
    world.job.elasticity.hang_timeout = Some(secs(400));
    world.train(30, 1);
    world.job.replicas = 3;
    world.go(20);
    assert_eq!(world.generation(), 2);
    world.go(1_170);
    assert_eq!((world.generation(), world.state.failures), (2, 0));
    world.go(40);
    assert_eq!((world.generation(), world.state.failures), (3, 1));
}

#[test]
fn the_time_to_the_first_progress_is_the_job_s_to_say() {
    let mut world = watched();
    world.job.elasticity.hang_start_timeout = Some(secs(120));
    world.go(600);
    assert_eq!(world.generation(), 1, "nobody knows whether this script will ever tell");
    world.train(30, 1);
    world.job.replicas = 3;
    world.go(20);
    world.go(90);
    assert_eq!(world.generation(), 2);
    world.go(40);
    assert_eq!((world.generation(), world.state.failures), (3, 1));
    // Another template may have another script.
    world.job.template.as_mut().unwrap().hash = "t2".into();
    world.go(600);
    world.check_settled();
    assert_eq!(world.state.failures, 1);
}

#[test]
fn more_hangs_than_the_limit_end_the_job() {
    let mut world = watched();
    world.job.backoff_limit = 0;
    world.train(5, 1);
    world.go(62);
    assert_eq!(world.state.phase, Phase::Failed);
    let failed = world.state.conditions.iter().find(|c| c.kind == ConditionKind::Failed).unwrap();
    assert_eq!(failed.reason, ConditionReason::BackoffLimitExceeded);
}

impl AgentWorld {
    /// All three workers make some steps, the one of this index fewer, and then nobody makes any until that is a hang.
    fn stall(&mut self, first: usize) {
        for step in 1..=10 {
            for at in (0..3).filter(|at| *at != first || step <= 8) {
                self.progress(at, step);
            }
            self.go(1);
        }
        let failures = self.state.failures;
        for _ in 0..100 {
            if self.state.failures == failures {
                self.go(1);
            }
        }
        for _ in 0..100 {
            if self.state.phase != Phase::Running {
                self.go(1);
            }
        }
        self.go(20);
        self.check_settled();
    }

    fn why(&self) -> &str {
        let hung = self.state.history.iter().find(|e| e.loss == Some(LossClass::Hung));
        hung.map_or("", |e| e.why.as_str())
    }
}

#[test]
fn the_worker_that_twice_stops_before_the_others_gets_a_new_pod_and_then_all_do() {
    let mut spec = job(1, 3, 5);
    spec.elasticity.hang_timeout = Some(secs(60));
    let mut world = AgentWorld::running(spec);
    let first = world.uids();
    world.stall(1);
    assert_eq!((world.uids(), world.state.failures), (first.clone(), 1), "in place");
    let told = "no progress for 60 s, the last at step 10; worker 1 stopped at step 8, before all others";
    assert_eq!(world.why(), format!("{told}: all processes start again"));
    world.stall(1);
    let second = world.uids();
    let kept: Vec<bool> = first.iter().map(|uid| second.contains(uid)).collect();
    assert_eq!((kept, world.state.failures), (vec![true, false, true], 2));
    assert_eq!(world.why(), format!("{told}: it did so before, and the pod of worker 1 is replaced"));
    assert_eq!(world.state.disruptions, 0);
    world.stall(1);
    assert!(world.uids().iter().all(|uid| !second.contains(uid)), "all pods are new");
    assert!(world.why().ends_with(": it hangs again soon after, and all pods are replaced"), "{}", world.why());
    // It works for long: the next is a first one.
    let third = world.uids();
    world.train(90, 20);
    world.stall(2);
    assert_eq!((world.uids(), world.state.failures), (third, 4));
}

#[test]
fn another_worker_that_stops_first_is_no_second_time() {
    let mut spec = job(1, 3, 5);
    spec.elasticity.hang_timeout = Some(secs(60));
    let mut world = AgentWorld::running(spec);
    let first = world.uids();
    world.stall(1);
    world.stall(2);
    assert!(world.uids().iter().all(|uid| !first.contains(uid)), "all pods are new");
}

#[test]
fn the_only_one_that_is_not_heard_of_is_named() {
    let mut world = watched();
    world.train(5, 1);
    world.cut.insert(world.pods[1].uid.clone());
    world.go(130);
    assert!(world.why().contains("worker 1 was not heard of: all processes start again"), "{}", world.why());
    assert_eq!((world.members(), world.state.phase), (vec![0, 1], Phase::Running), "another has taken its place");
}
