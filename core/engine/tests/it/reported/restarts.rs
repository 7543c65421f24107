//! Restarts, status, and what is cleaned up.

use eto_engine::contract::{Readiness, WorkerPhase};
use eto_engine::job::{CleanPods, RestartPolicy};
use eto_engine::plan::{Action, PlanFacts, plan};
use eto_engine::state::{Condition, ConditionKind, JobState, LossClass, Phase, RoundCause};

use crate::agents::world::AgentWorld;
use crate::common::*;
use crate::plan::{deleted, step};

fn holds(state: &JobState, kind: ConditionKind) -> bool {
    let of = |c: &&Condition| c.kind == kind;
    state.conditions.iter().find(of).is_some_and(|c| c.status)
}

#[test]
fn trainer_2045_1589_2342_failures_are_counted_whatever_becomes_of_the_pods_and_the_operator() {
    let mut spec = job(1, 2, 5);
    (spec.restart, spec.backoff_limit) = (RestartPolicy::ExitCode, 3);
    let mut world = AgentWorld::running(spec);
    for failures in 1..=3 {
        world.exit(1, 137);
        world.go(90);
        assert_eq!((world.state.failures, world.state.phase), (failures, Phase::Running), "each in a pod of its own");
        // Another operator knows what is in the status, and no more.
        world.progress_seen = None;
    }
    world.exit(1, 137);
    world.go(10);
    assert_eq!((world.state.failures, world.state.phase), (4, Phase::Failed));
}

#[test]
fn trainer_2044_1560_a_pod_that_somebody_deletes_is_no_exit_code() {
    for code in [1, 137, 143] {
        let mut spec = job(1, 3, 5);
        (spec.restart, spec.backoff_limit) = (RestartPolicy::ExitCode, 0);
        let mut world = AgentWorld::running(spec.clone());
        let now = world.now;
        let pod = &mut world.pods[1];
        (pod.deleting, pod.exit_code) = (Some(now), Some(code));
        world.go(30);
        world.check_settled();
        assert_eq!((world.state.failures, world.state.disruptions), (0, 1));
        // By recreation it has failed as well when it is seen.
        let mut all = pods(3);
        (all[1].deleting, all[1].phase, all[1].exit_code) = (Some(NOW), WorkerPhase::Failed, Some(code));
        let p = step(&spec, &running(&spec, 3), &all);
        assert_eq!((p.state.phase, p.state.failures), (Phase::Restarting, 0));
    }
}

#[test]
fn trainer_1570_1572_a_pod_that_failed_as_a_whole_is_replaced_with_any_policy() {
    for restart in [RestartPolicy::OnFailure, RestartPolicy::Never, RestartPolicy::ExitCode] {
        for reason in ["Evicted", "NodeShutdown", "Terminated", "Preempting", "UnexpectedAdmissionError"] {
            let mut spec = job(1, 2, 5);
            spec.restart = restart;
            let mut all = pods(2);
            (all[1].phase, all[1].reason) = (WorkerPhase::Failed, Some(reason.into()));
            let p = step(&spec, &running(&spec, 2), &all);
            assert_eq!((p.state.phase, p.state.failures), (Phase::Restarting, 0), "{restart:?} {reason}");
            let mut world = AgentWorld::running(spec);
            world.evict(1);
            world.pods[1].reason = Some(reason.into());
            world.go(30);
            world.check_settled();
            assert_eq!(world.state.failures, 0);
        }
    }
}

#[test]
fn trainer_2072_956_720_959_a_pod_that_is_terminating_for_ever_is_in_nobodys_way() {
    let mut world = AgentWorld::running(job(1, 3, 5));
    world.lose_node_of(1);
    let now = world.now;
    world.pods[1].deleting = Some(now);
    let stuck = world.pods[1].uid.clone();
    world.go(60);
    assert!(world.pods.iter().any(|p| p.uid == stuck), "it is still there");
    assert_eq!(
        (world.members().len(), world.state.phase),
        (3, Phase::Running),
        "and the job trains with all its workers"
    );
    world.check_settled();
}

#[test]
fn trainer_2185_a_node_that_is_not_ready_costs_its_workers_alone_and_no_failure() {
    let mut spec = job(1, 3, 5);
    spec.backoff_limit = 0;
    let mut world = AgentWorld::running(spec);
    let stay = world.pods[0].uid.clone();
    world.lose_node_of(1);
    world.go(60);
    world.check_settled();
    assert!(world.pods.iter().any(|p| p.uid == stay));
    assert_eq!((world.state.failures, world.members().len()), (0, 3));
    assert_eq!(world.state.history.iter().find_map(|h| h.loss), Some(LossClass::NodeLost));
}

#[test]
fn jobset_574_another_pod_of_the_same_name_is_another_member() {
    // It was deleted and made anew before anybody looked.
    let spec = job(1, 2, 5);
    let mut world = AgentWorld::running(spec.clone());
    let before = world.pods[1].uid.clone();
    world.containers.remove(&before);
    world.pods[1].uid = "another".into();
    (world.pods[1].phase, world.pods[1].ready) = (WorkerPhase::Pending, Readiness::Unknown);
    world.go(20);
    assert_eq!((world.generation() > 1, world.state.disruptions), (true, 1), "all start again");
    // By recreation its name has the round in it, and a pod that is gone is a loss.
    let p = step(&spec, &running(&spec, 2), &pods(1));
    assert_eq!(p.state.round.as_ref().unwrap().cause, RoundCause::WorkerLost);
}

#[test]
fn trainer_3779_an_end_is_an_end_and_no_deletion_brings_the_job_back() {
    let mut spec = job(1, 2, 5);
    (spec.backoff_limit, spec.ttl_after_finished) = (0, Some(secs(60)));
    let mut world = AgentWorld::running(spec);
    world.exit(1, 1);
    world.go(5);
    assert_eq!(world.state.phase, Phase::Failed);
    // Its pods are taken away, its status is as it is.
    world.pods.clear();
    world.go(30);
    assert_eq!((world.pods.len(), world.state.phase, world.deleted), (0, Phase::Failed, false));
    world.go(40);
    assert!(world.deleted, "what the time deletes is the job itself");
}

#[test]
fn trainer_3419_kubernetes_74848_pods_and_logs_of_a_job_that_failed_stay_where_they_are_to() {
    let mut spec = job(1, 2, 5);
    (spec.restart, spec.backoff_limit, spec.clean_pods) = (RestartPolicy::Never, 0, CleanPods::None);
    let mut all = pods(2);
    all[1].phase = WorkerPhase::Failed;
    let p = step(&spec, &running(&spec, 2), &all);
    assert_eq!((p.state.phase, deleted(&p)), (Phase::Failed, vec![]), "on this path as on all others");
    assert_eq!(deleted(&step(&spec, &p.state, &all)), Vec::<&str>::new());
    // Where they go, the last lines are kept.
    let mut world = AgentWorld::running(job(1, 2, 5));
    world.job.backoff_limit = 0;
    let uid = world.pods[1].uid.clone();
    world.containers.get_mut(&uid).unwrap().lines = "ValueError: no such layer".into();
    world.exit(1, 1);
    world.go(5);
    let kept = world.state.history.iter().find_map(|h| h.failed.as_ref()).unwrap();
    assert!(kept.last_lines.contains("no such layer"), "{kept:?}");
}

#[test]
fn trainer_2239_kueue_2923_a_time_to_live_is_no_matter_of_a_suspended_job() {
    let mut spec = job(1, 2, 5);
    spec.ttl_after_finished = Some(secs(1));
    let mut world = AgentWorld::running(spec);
    for _ in 0..2 {
        world.job.suspend = true;
        world.go(100);
        assert_eq!((world.state.phase, world.pods.len(), world.deleted), (Phase::Suspended, 0, false));
        world.job.suspend = false;
        world.go(30);
        world.check_settled();
    }
}

#[test]
fn trainer_1711_pytorch_elastic_130_each_phase_is_told_by_conditions_that_can_be_waited_for() {
    use ConditionKind as Kind;
    let mut world = AgentWorld::new(job(1, 2, 5));
    world.operate(usize::MAX);
    assert!(holds(&world.state, Kind::Created) && !holds(&world.state, Kind::Running));
    world.go(20);
    assert!(holds(&world.state, Kind::Running) && holds(&world.state, Kind::Scheduled));
    world.job.replicas = 1;
    world.go(2);
    assert!(holds(&world.state, Kind::Resizing) && !holds(&world.state, Kind::Running));
    world.go(20);
    assert!(!holds(&world.state, Kind::Resizing) && holds(&world.state, Kind::Running));
    world.exit(0, 1);
    world.go(1);
    assert!(holds(&world.state, Kind::Restarting));
    world.go(20);
    world.job.suspend = true;
    world.go(20);
    assert!(holds(&world.state, Kind::Suspended) && !holds(&world.state, Kind::Running));
    world.job.suspend = false;
    world.go(20);
    world.exit(0, 0);
    world.go(5);
    assert!(
        holds(&world.state, Kind::Succeeded)
            && !holds(&world.state, Kind::Failed)
            && !holds(&world.state, Kind::Running)
    );
}

#[test]
fn trainer_3315_3316_a_preempted_worker_is_made_again() {
    let mut world = AgentWorld::running(job(1, 3, 5));
    world.pods[1].disrupted = true;
    world.evict(1);
    world.go(30);
    world.check_settled();
    assert_eq!((world.members().len(), world.state.failures), (3, 0));
    // By recreation too.
    let spec = job(1, 2, 5);
    let mut all = pods(2);
    (all[1].phase, all[1].disrupted) = (WorkerPhase::Failed, true);
    let p = step(&spec, &running(&spec, 2), &all);
    let made = |a: &&Action| matches!(a, Action::CreatePod(_));
    let next = plan(&spec, &p.state, &[], &PlanFacts::default(), NOW);
    assert_eq!(next.actions.iter().filter(made).count(), 2);
}

#[test]
fn ray_64928_marin_7350_a_run_that_is_frozen_is_noticed() {
    let mut spec = job(1, 4, 5);
    spec.elasticity.hang_timeout = Some(secs(60));
    let mut world = AgentWorld::running(spec);
    world.progress(0, 512);
    world.go(70);
    assert_eq!((world.state.failures, world.generation(), world.hung_told), (1, 2, 1));
    assert_eq!(world.state.history[0].loss, Some(LossClass::Hung));
    world.go(20);
    world.check_settled();
}
