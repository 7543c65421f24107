//! Members that are something else than workers, where pods are recreated for each round, and what policies see of them.

use eto_engine::contract::{Framework, WorkerPhase};
use eto_engine::job::{JobSpec, MemoryGrowth, Mode, PlacementSpec};
use eto_engine::observe::ContainerEnd;
use eto_engine::placement::need;
use eto_engine::plan::{PlanFacts, plan, process_envs};
use eto_engine::state::{JobState, Phase};

use crate::common::*;
use crate::plan::{created, deleted, step};
use crate::world::World;

fn parameter_server(replicas: u32) -> JobSpec {
    job_with(&[("chief", 1), ("ps", 2)], 4, replicas, 8)
}

#[test]
fn each_is_told_the_cluster_and_its_own_task() {
    let spec = parameter_server(5);
    let p = step(&spec, &JobState::default(), &[]);
    let env = |index: usize, name: &str| {
        created(&p)[index].env.variables().iter().find(|(k, _)| k == name).map(|(_, v)| v.clone()).unwrap()
    };
    let at = |index: u32| format!("\"demo-worker-{index}.demo.team-a.svc:29501\"");
    let lists = [("chief", at(0)), ("ps", at(1) + "," + &at(2)), ("worker", at(3) + "," + &at(4))];
    for (name, addresses) in lists {
        assert!(env(2, "TF_CONFIG").contains(&format!("\"{name}\":[{addresses}]")), "{}", env(2, "TF_CONFIG"));
    }
    for (index, task) in [(2, r#""task":{"index":1,"type":"ps"}"#), (3, r#""task":{"index":0,"type":"worker"}"#)] {
        assert!(env(index, "TF_CONFIG").contains(task), "{}", env(index, "TF_CONFIG"));
    }
    assert_eq!((env(0, "ETO_REPLICA_TYPE"), env(2, "ETO_REPLICA_TYPE_INDEX")), ("chief".into(), "1".into()));
    assert_eq!(env(4, "ETO_REPLICA_TYPES"), "chief,ps,ps,worker,worker");
}

#[test]
fn processes_of_a_worker_are_not_those_of_others() {
    let mut spec = parameter_server(4);
    spec.framework = Framework::Custom;
    spec.template.as_mut().unwrap().processes = 3;
    let p = step(&spec, &JobState::default(), &[]);
    let of = |index| process_envs(&spec, &p.state, &PlanFacts::default(), index).len();
    assert_eq!((of(0), of(2), of(3)), (1, 1, 3));
}

/// A round that counts processes which nobody starts would wait for them for ever.
#[test]
fn a_round_without_an_agent_counts_what_the_command_starts() {
    let world = |without_agent| {
        let mut spec = job(2, 2, 2);
        let template = spec.template.as_mut().unwrap();
        (template.processes, template.processes_without_agent) = (8, without_agent);
        let p = step(&spec, &JobState::default(), &[]);
        let env = created(&p)[0].env.variables().into_owned();
        env.into_iter().find(|(name, _)| name == "WORLD_SIZE").map(|(_, value)| value)
    };
    assert_eq!((world(1).as_deref(), world(8).as_deref()), (Some("2"), Some("16")));
}

#[test]
fn a_shrink_gives_up_workers_alone() {
    let mut spec = parameter_server(4);
    let mut state = running(&spec, 6);
    (state.based_on, spec.replicas) = (6, 4);
    let mut there = pods(6);
    // Not even one that is the first to go by all other rules.
    there[2].node = None;
    there[2].phase = WorkerPhase::Pending;
    let victims = [1, 2, 3];
    let facts = PlanFacts { victims: &victims, ..PlanFacts::default() };
    let p = plan(&spec, &state, &there, &facts, NOW);
    let mut named: Vec<u32> = p.state.victims.iter().map(|v| v.index).collect();
    named.sort_unstable();
    assert_eq!(named, [3, 5]);
}

#[test]
fn one_that_is_lost_is_replaced() {
    let spec = parameter_server(5);
    let mut there = pods(5);
    there[1].phase = WorkerPhase::Failed;
    let p = step(&spec, &running(&spec, 5), &there);
    assert_eq!((p.state.failures, p.state.phase, deleted(&p).len()), (1, Phase::Restarting, 5));
    let later = plan(&spec, &p.state, &[], &PlanFacts::default(), NOW.plus(secs(60)));
    assert_eq!(created(&later).iter().map(|n| n.index).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
}

#[test]
fn without_one_of_them_a_job_is_tried_again_and_not_shrunk() {
    let mut world = World::new(parameter_server(6));
    world.go_on(3);
    // It finds no node, and the workers have theirs.
    for pod in &mut world.pods {
        let waits = pod.index == 2;
        (pod.phase, pod.node) = if waits { (WorkerPhase::Pending, None) } else { (pod.phase, pod.node.take()) };
    }
    world.state.round.as_mut().unwrap().running_since = None;
    world.room = 5;
    for _ in 0..130 {
        world.operate(usize::MAX);
        world.now = world.now.plus(secs(5));
    }
    assert_eq!((world.state.target, world.state.start_attempts > 0), (6, true), "{:?}", world.state.last_resize);
    world.room = 64;
    assert!(world.settle());
    world.check_settled();
}

#[test]
fn the_chiefs_success_is_the_jobs_and_what_serves_is_ended() {
    let mut world = World::new(parameter_server(5));
    world.go_on(10);
    world.check_settled();
    world.pods.iter_mut().filter(|p| p.index == 3).for_each(|p| p.phase = WorkerPhase::Succeeded);
    world.go_on(3);
    assert_eq!(world.state.phase, Phase::Running, "a worker's end is not the job's");
    world.pods.iter_mut().filter(|p| p.index == 0).for_each(|p| p.phase = WorkerPhase::Succeeded);
    assert!(world.settle());
    assert_eq!((world.state.phase, world.state.failures), (Phase::Succeeded, 0));
    assert_eq!(world.pods.iter().map(|p| p.index).collect::<Vec<_>>(), [0, 3], "servers that still ran are gone");
}

#[test]
fn without_a_chief_the_job_ends_with_its_workers() {
    let mut world = World::new(job_with(&[("ps", 1)], 2, 3, 3));
    world.go_on(10);
    let end = |world: &mut World, index| {
        world.pods.iter_mut().filter(|p| p.index == index).for_each(|p| p.phase = WorkerPhase::Succeeded);
        world.go_on(3);
        world.state.phase
    };
    assert_eq!((end(&mut world, 1), end(&mut world, 2)), (Phase::Running, Phase::Succeeded));
}

#[test]
fn policies_see_and_size_the_workers() {
    let mut spec = parameter_server(5);
    spec.scaling = Some(scaling(vec![cpu(50)], false));
    spec.legal = eto_engine::job::LegalSizes::List(vec![4, 5, 7]);
    // The chief and the parameter servers idle, the workers do not.
    let mut look = Look::new(spec, 5, vec![], &[0.0, 0.0, 0.0, 0.9, 0.9]);
    look.memory.recommendations = vec![(ago(3600), 5)];
    let input = look.view().input;
    assert_eq!((input.sizes.target, input.sizes.current, input.sizes.ready, input.sizes.replicas), (2, 2, 2, 2));
    assert_eq!((input.bounds.min, input.bounds.max, input.bounds.legal), (1, 5, vec![1, 2, 4]));
    assert_eq!((input.workers.index, input.signals[0].values.as_slice()), (vec![3, 4], &[0.9, 0.9][..]));
    let d = look.decide(&ratio_policy());
    assert_eq!((d.from, d.proposed, d.target), (5, Some(7), 7), "four workers: 1.8 times as many, and three others");
}

#[test]
fn nodes_are_chosen_for_workers() {
    let mut spec = parameter_server(5);
    spec.placement = Some(PlacementSpec { module: "spread".into(), config: "{}".into(), mode: Mode::Auto });
    let draft = step(&spec, &JobState::default(), &[]);
    assert_eq!(need(&spec, &JobState::default(), &draft).unwrap().add, [3, 4]);
}

#[test]
fn memory_grows_for_workers() {
    let mut spec = parameter_server(5);
    spec.elasticity.memory_growth = Some(MemoryGrowth { percent: 50, max_bytes: 8 << 30 });
    let mut there = pods(5);
    let killed = ContainerEnd { code: 137, reason: "OOMKilled".into(), lines: String::new() };
    (there[1].last_end, there[1].memory_limit) = (Some(Box::new(killed.clone())), 1 << 30);
    there[1].phase = WorkerPhase::Failed;
    assert_eq!(
        step(&spec, &running(&spec, 5), &there).state.memory,
        None,
        "a server's need says nothing of a worker's"
    );
    there[1] = pod(1, 1, 5);
    (there[4].last_end, there[4].memory_limit) = (Some(Box::new(killed)), 1 << 30);
    let p = step(&spec, &running(&spec, 5), &there);
    let later = plan(&spec, &p.state, &[], &PlanFacts::default(), NOW.plus(secs(60)));
    let memory: Vec<Option<u64>> = created(&later).iter().map(|n| n.memory).collect();
    assert_eq!(memory, [None, None, None, Some(3 << 29), Some(3 << 29)]);
}
