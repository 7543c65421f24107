//! Scaling, other autoscalers, schedulers and queues.

use std::collections::BTreeSet;

use eto_engine::contract::{Framework, MetricKind, MetricTarget, Quality, SignalShape, WorkerPhase};
use eto_engine::plan::{Action, PlanFacts, effective_target, plan};
use eto_engine::signals::{Sample, builtin};
use eto_engine::state::{JobState, MAX_HISTORY, Phase, RoundOrder};

use crate::agents::world::AgentWorld;
use crate::common::*;
use crate::plan::{created, deleted, step};

#[test]
fn trainer_1751_a_worker_that_is_pending_when_the_others_are_done_ends_with_the_job() {
    let mut world = AgentWorld::running(job(1, 2, 5));
    (world.room, world.job.replicas) = (2, 4);
    world.go(10);
    assert_eq!(world.pods.iter().filter(|p| p.phase == WorkerPhase::Pending).count(), 2);
    // One that is not the coordinator is not enough.
    world.exit(1, 0);
    world.go(3);
    assert_eq!(world.state.phase, Phase::Running);
    world.exit(0, 0);
    world.go(10);
    assert_eq!(world.state.phase, Phase::Succeeded);
    assert!(
        world.pods.iter().all(|p| p.phase == WorkerPhase::Succeeded),
        "those who waited are gone: {:?}",
        world.pods
    );
    world.check_settled();
}

#[test]
fn trainer_1891_1220_a_job_can_be_sized_by_what_it_trains() {
    let throughput = metric(MetricKind::External, builtin::THROUGHPUT, MetricTarget::AverageValue(100.0));
    let mut spec = job(1, 2, 10);
    spec.scaling = Some(scaling(vec![throughput], false));
    let mine = format!("elastic_job={:?}", spec.key.name);
    let mut look = Look::new(spec, 2, vec![], &[]);
    for data in look.signals.signals.values_mut() {
        data.per_key.insert("team-a".into(), [(mine.clone(), Sample { value: 640.0, at: NOW })].into());
    }
    let seen = look.view().input.signals.remove(0);
    assert_eq!((seen.shape, seen.quality, seen.values), (SignalShape::Job, Quality::Ok, vec![640.0]));
}

#[test]
fn trainer_3654_what_the_policy_decides_is_no_field_of_the_users() {
    let mut spec = job(1, 3, 8);
    spec.scaling = Some(scaling(vec![cpu(50)], true));
    let mut state = running(&spec, 3);
    state.target = 6;
    let p = step(&spec, &state, &pods(3));
    assert_eq!((p.state.target, p.state.based_on), (6, 3), "spec.replicas says 3 all the time");
    // It is applied again, as a GitOps tool does: nothing happens. A change of it counts.
    assert_eq!(effective_target(&spec, &p.state), 6);
    spec.replicas = 5;
    assert_eq!(effective_target(&spec, &p.state), 5);
}

#[test]
fn kuberay_1192_1238_1936_3286_a_cache_that_lags_behind_costs_no_further_pod() {
    let spec = job(1, 4, 4);
    let mut state = running(&spec, 5);
    state.target = 4;
    let stale = pods(5);
    // By recreation: the same pods are asked for again, by UID, and no others.
    let first = step(&spec, &state, &stale);
    assert_eq!(first.state.victims.len(), 1);
    for _ in 0..5 {
        let again = step(&spec, &first.state, &stale);
        assert_eq!((&again.state, &again.actions), (&first.state, &first.actions));
    }
    // With an agent: five looks at a cache in which nothing has happened yet.
    let mut world = AgentWorld::running(job(1, 5, 5));
    world.job.replicas = 4;
    world.go(3);
    let named = world.state.victims.clone();
    let old = world.pods.clone();
    for _ in 0..5 {
        world.operate(usize::MAX);
        world.pods.clone_from(&old);
        let gone: BTreeSet<String> = deleted(&world.plan(&world.state)).iter().map(|n| (*n).to_owned()).collect();
        assert!(gone.len() <= 1 && named.iter().all(|v| gone.is_empty() || gone.contains(&v.pod)), "{gone:?}");
        assert!(created(&world.plan(&world.state)).is_empty());
    }
    world.go(20);
    world.check_settled();
    assert_eq!(world.members(), [0, 1, 2, 3]);
}

#[test]
fn kuberay_208_1253_the_policys_victims_are_taken_and_chosen_once() {
    let spec = job(1, 5, 5);
    let mut state = running(&spec, 5);
    state.target = 3;
    let facts = PlanFacts { victims: &[2, 1], ..PlanFacts::default() };
    let p = plan(&spec, &state, &pods(5), &facts, NOW);
    let named = |s: &JobState| s.victims.iter().map(|v| v.index).collect::<Vec<_>>();
    assert_eq!(named(&p.state), [2, 1]);
    // Another wish comes too late, and the list is empty when they are gone.
    let other = PlanFacts { victims: &[4, 3], ..PlanFacts::default() };
    let later = plan(&spec, &p.state, &pods(5), &other, NOW);
    assert_eq!(named(&later.state), [2, 1]);
    assert!(step(&spec, &p.state, &[]).state.victims.is_empty());
}

#[test]
fn kuberay_3738_ray_52264_a_victim_that_is_gone_is_gone() {
    let mut world = AgentWorld::running(job(1, 3, 5));
    world.job.replicas = 1;
    world.operate(usize::MAX);
    assert_eq!(world.state.victims.len(), 2);
    // Somebody else was faster.
    world.pods.retain(|p| p.index == 0);
    world.go(20);
    world.check_settled();
    assert_eq!((world.members(), world.state.victims.len()), (vec![0], 0));
}

#[test]
fn dlrover_1136_a_hundred_resizes_leave_ten_lines() {
    let mut world = AgentWorld::running(job(1, 2, 5));
    for turn in 0..100 {
        world.job.replicas = 2 + turn % 2;
        world.go(12);
    }
    assert_eq!(world.state.history.len(), MAX_HISTORY);
    assert!(world.state.victims.is_empty());
    world.check_settled();
}

#[test]
fn dlrover_1535_et_4_12_16_it_is_sized_by_its_replicas_and_pauses_below_them_where_it_is_to() {
    let mut world = AgentWorld::running(job(1, 2, 6));
    for size in [5, 3, 6] {
        world.job.replicas = size;
        world.go(20);
        assert_eq!(world.members().len(), usize::try_from(size).unwrap());
    }
    // All or nothing, for runs that are to be repeated to the letter.
    let mut world = AgentWorld::running(job(4, 4, 4));
    world.room = 3;
    world.evict(3);
    world.go(60);
    assert!(world.containers.values().all(|c| c.runs.is_none()), "it waits for the fourth");
    world.room = 4;
    world.go(30);
    world.check_settled();
    assert_eq!(world.state.failures, 0);
}

#[test]
fn volcano_2074_pending_pods_go_first_whatever_their_index() {
    let mut world = AgentWorld::running(job(1, 4, 8));
    (world.room, world.job.replicas) = (5, 6);
    world.go(5);
    let pending: BTreeSet<String> =
        world.pods.iter().filter(|p| p.phase == WorkerPhase::Pending).map(|p| p.uid.clone()).collect();
    assert_eq!(pending.len(), 1);
    world.job.replicas = 5;
    world.operate(usize::MAX);
    assert_eq!(world.state.victims.iter().map(|v| v.uid.clone()).collect::<BTreeSet<_>>(), pending);
    world.go(10);
    world.check_settled();
}

#[test]
fn volcano_3979_3595_3332_what_an_eviction_leaves_is_no_half_gang() {
    let mut world = AgentWorld::running(job(3, 4, 4));
    world.room = 2;
    world.evict(2);
    world.evict(3);
    world.go(10);
    assert!(world.containers.values().all(|c| c.runs.is_none()), "two are too few, and stop");
    let waited: BTreeSet<String> = world.pods.iter().map(|p| p.uid.clone()).collect();
    world.go(620);
    assert!(world.pods.iter().all(|p| !waited.contains(&p.uid)), "they do not hold what they can't use for ever");
    assert_eq!(world.state.failures, 0);
}

#[test]
fn volcano_5805_a_gang_that_fell_below_its_minimum_comes_back_by_itself() {
    let mut world = AgentWorld::running(job(3, 4, 4));
    world.room = 2;
    for at in 1..4 {
        world.evict(at);
    }
    world.go(2000);
    assert_eq!(world.order(), RoundOrder::Gather);
    world.room = 4;
    world.go(700);
    world.check_settled();
    assert_eq!((world.members().len(), world.state.failures), (4, 0));
}

#[test]
fn kueue_11977_13923_14616_what_is_not_granted_is_not_used() {
    let mut world = AgentWorld::running(job(1, 2, 8));
    (world.quota, world.job.replicas) = (3, 5);
    world.go(10);
    world.check_settled();
    assert_eq!((world.state.target, world.members().len()), (3, 3), "as many as were let in");
    assert!(world.state.last_resize.as_ref().unwrap().refused);
}

#[test]
fn kueue_11198_12964_11553_changes_within_one_second_are_one_resize_at_a_time() {
    let mut world = AgentWorld::running(job(1, 2, 8));
    for size in [3, 8, 4, 7, 5] {
        world.job.replicas = size;
        world.operate(usize::MAX);
        let flight = world.state.last_resize.as_ref().unwrap();
        assert_eq!((flight.from, flight.to, flight.done), (2, size, None), "the last word counts");
    }
    world.go(20);
    world.check_settled();
    assert_eq!((world.generation(), world.members().len()), (2, 5), "one round for all of it");
    let mut generations: Vec<u64> = world.published.keys().copied().collect();
    generations.dedup();
    assert_eq!(generations, [1, 2]);
}

#[test]
fn kueue_9329_a_shrink_in_the_middle_of_a_growth_is_one_change() {
    let mut world = AgentWorld::running(job(1, 4, 8));
    world.room = 4;
    world.job.replicas = 8;
    world.go(5);
    assert_eq!(world.pods.len(), 8);
    world.job.replicas = 2;
    world.go(20);
    world.check_settled();
    assert_eq!((world.generation(), world.members(), world.pods.len()), (2, vec![0, 1], 2));
}

#[test]
fn kueue_12766_13044_13178_a_shrink_below_what_is_done_already_is_no_trap() {
    for size in [1, 2] {
        let mut world = AgentWorld::new(job(1, 4, 4));
        world.job.framework = Framework::Custom;
        world.go(20);
        for at in [1, 2, 3] {
            world.exit(at, 0);
        }
        world.go(2);
        world.job.replicas = size;
        world.go(60);
        // Those who are left work on, and when they are done the job is.
        let left: Vec<usize> =
            (0..world.pods.len()).filter(|at| world.pods[*at].phase == WorkerPhase::Running).collect();
        assert_eq!(left.len(), usize::try_from(size).unwrap());
        for at in left {
            world.exit(at, 0);
        }
        world.go(60);
        assert_eq!(world.state.phase, Phase::Succeeded, "{:?}", world.state);
    }
}

#[test]
fn kueue_10272_14283_14139_a_pod_that_is_held_back_by_a_gate_is_not_waited_for_for_ever() {
    // To the operator it is a pod without a node.
    let mut world = AgentWorld::running(job(1, 3, 8));
    (world.room, world.job.replicas) = (4, 5);
    world.go(130);
    assert_eq!((world.members().len(), world.state.target), (4, 4));
    world.check_settled();
}

#[test]
fn kueue_12890_of_a_growth_beyond_the_quota_what_fits_is_taken() {
    let mut world = AgentWorld::running(job(1, 2, 60));
    (world.quota, world.job.replicas) = (7, 60);
    world.go(20);
    world.check_settled();
    assert_eq!((world.members().len(), world.state.target), (7, 7));
}

#[test]
fn trainer_2361_1063_dlrover_1690_all_pods_are_made_and_deleted_in_one_step() {
    let spec = job(1, 300, 300);
    let p = step(&spec, &JobState::default(), &[]);
    assert_eq!(created(&p).len(), 300);
    let mut state = running(&spec, 300);
    state.target = 100;
    assert_eq!(deleted(&step(&spec, &state, &pods(300))).len(), 300);
    let mut world = AgentWorld::running(job(1, 2, 40));
    world.job.replicas = 32;
    let new = world.plan(&world.state).actions.iter().filter(|a| matches!(a, Action::CreatePod(_))).count();
    assert_eq!(new, 30);
}
