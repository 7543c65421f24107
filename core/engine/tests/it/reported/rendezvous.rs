//! Rendezvous and membership.

use eto_engine::job::{ElasticityMode, RestartPolicy};
use eto_engine::state::{ChangeStep, Phase, RoundOrder};
use eto_membership::{FrameworkKind, Native, Order, Round, member_env, native_env};
use std::collections::BTreeSet;

use crate::agents::world::AgentWorld;
use crate::common::{job, secs};
use crate::plan::{created, step};

fn variable(env: &[(String, String)], name: &str) -> String {
    env.iter().find(|(k, _)| k == name).map(|(_, v)| v.clone()).unwrap_or_default()
}

/// What the members of the newest round find in their environment.
fn environments(round: &Round) -> Vec<Vec<(String, String)>> {
    (0..round.members.len()).map(|rank| member_env(FrameworkKind::PyTorch, round, rank)).collect()
}

fn native(min: u32, replicas: u32, max: u32) -> AgentWorld {
    let mut spec = job(min, replicas, max);
    spec.elasticity.mode = ElasticityMode::Native;
    AgentWorld::running(spec)
}

fn run(world: &AgentWorld) -> u64 {
    world.group.assignment.as_ref().unwrap().native.unwrap().run
}

#[test]
fn trainer_1638_a_deleted_pod_takes_no_other_with_it_and_no_rendezvous_is_met_twice() {
    let mut world = AgentWorld::running(job(1, 3, 5));
    let before = world.pods_by_index();
    for index in [0, 1] {
        let now = world.now;
        world.pods.iter_mut().filter(|p| p.index == index).for_each(|p| p.deleting = Some(now));
        world.go(20);
        world.check_settled();
    }
    assert!(world.pods_by_index().contains(&before[2]), "the other pods stay");
    let ids: BTreeSet<String> = world.published.values().map(|r| r.id.clone()).collect();
    assert_eq!(ids.len(), world.published.len(), "each round has an id of its own");
}

#[test]
fn trainer_1509_a_shrink_is_one_round_and_pods_go_after_their_processes() {
    let mut world = AgentWorld::running(job(1, 4, 5));
    world.job.replicas = 2;
    let mut deleted = false;
    for _ in 0..20 {
        world.operate(usize::MAX);
        let running = |uid: &str| world.containers.get(uid).is_some_and(|c| c.runs.is_some());
        deleted |= world.pods.iter().any(|p| p.deleting.is_some());
        assert!(!deleted || world.order() == RoundOrder::Run, "the others have formed the round");
        assert!(world.pods.iter().all(|p| p.deleting.is_none() || !running(&p.uid)), "what is deleted has stopped");
        world.pass(secs(1), u16::MAX);
    }
    world.check_settled();
    assert_eq!((world.generation(), [0, 1, 2, 3].map(|i| world.starts_of(i))), (2, [2, 2, 1, 1]), "once for all of it");
}

#[test]
fn pytorch_67742_67616_a_torchrun_that_is_stopped_closes_the_rendezvous_for_nobody() {
    let mut world = native(1, 3, 5);
    world.job.replicas = 2;
    world.go(30);
    world.check_settled();
    assert_eq!((world.generation(), run(&world)), (2, 1), "it is the same run");
    assert_eq!([0, 1].map(|i| world.starts_of(i)), [1, 1], "those who stay were not started anew");
}

#[test]
fn pytorch_91943_150916_147064_a_rendezvous_that_was_closed_is_left_for_a_new_one() {
    let mut world = native(1, 3, 5);
    world.exit(1, 1);
    world.go(20);
    world.check_settled();
    assert_eq!((run(&world), world.generation()), (2, 2));
    let ids = |g: u64| {
        let native = Native { run: g, min: 1, max: 5, alone: false };
        variable(&native_env(&world.published[&g], 1, native), "PET_RDZV_ID")
    };
    assert_ne!(ids(1), ids(2));
}

#[test]
fn pytorch_111646_the_others_of_a_node_that_vanished_start_anew() {
    for mode in [ElasticityMode::Rounds, ElasticityMode::Native] {
        let mut spec = job(1, 3, 5);
        spec.elasticity.mode = mode;
        let mut world = AgentWorld::running(spec);
        world.lose_node_of(2);
        let uid = world.pods[2].uid.clone();
        world.room = 2;
        // Its agent falls silent, and nobody waits for a time-out of the framework.
        world.go(30);
        assert_eq!((world.members(), world.state.phase), (vec![0, 1], Phase::Running), "{mode:?}");
        assert_eq!([0, 1].map(|i| world.starts_of(i)), [2, 2]);
        assert!(!world.group.assignment.as_ref().unwrap().round.members.iter().any(|m| m.uid.as_ref() == Some(&uid)));
    }
}

#[test]
fn pytorch_107021_69197_121944_who_hosts_the_rendezvous_is_told_and_not_guessed_by_name() {
    let world = native(2, 3, 4);
    let round = &world.published[&1];
    let native = Native { run: 1, min: 2, max: 4, alone: false };
    for rank in 0..3 {
        let env = native_env(round, rank, native);
        // The store is the agent's: no torchrun compares the endpoint with what it takes for its own name.
        assert!(variable(&env, "PET_RDZV_CONF").contains("is_host=false"));
        assert_eq!(variable(&env, "PET_RDZV_ENDPOINT"), format!("{}:{}", round.members[0].address, round.port));
    }
    for (rank, env) in environments(round).iter().enumerate() {
        let place = (variable(env, "PET_RDZV_BACKEND"), variable(env, "PET_NODE_RANK"));
        assert_eq!(place, ("static".into(), rank.to_string()));
    }
}

#[test]
fn trainer_2041_nobody_needs_a_pod_to_resolve_its_own_name() {
    // With an agent the address is the pod's IP.
    let world = AgentWorld::running(job(1, 2, 5));
    for env in environments(&world.published[&1]) {
        assert_eq!(variable(&env, "MASTER_ADDR"), "10.0.0.0");
    }
    // By recreation it is the name under the job's service, for the first worker as for the others.
    let p = step(&job(1, 2, 5), &eto_engine::state::JobState::default(), &[]);
    for new in created(&p) {
        assert_eq!(variable(&new.env.variables(), "MASTER_ADDR"), "demo-worker-0.demo.team-a.svc");
    }
}

#[test]
fn pytorch_158326_170707_etcd_21249_no_rendezvous_speaks_the_protocol_that_etcd_has_dropped() {
    let world = native(1, 2, 4);
    let round = &world.published[&1];
    let mut backends: BTreeSet<String> =
        environments(round).iter().map(|env| variable(env, "PET_RDZV_BACKEND")).collect();
    backends
        .insert(variable(&native_env(round, 0, Native { run: 1, min: 1, max: 4, alone: false }), "PET_RDZV_BACKEND"));
    assert_eq!(backends, BTreeSet::from(["c10d".to_owned(), "static".to_owned()]));
}

#[test]
fn dlrover_1534_those_who_join_come_as_one_batch_and_no_size_is_out_of_range() {
    let mut world = AgentWorld::running(job(2, 4, 8));
    world.job.replicas = 8;
    // They come one after the other.
    for second in 0..12 {
        world.room = 4 + second / 2;
        world.go(1);
    }
    world.go(20);
    world.check_settled();
    assert_eq!((world.generation(), world.members().len()), (2, 8), "in one round");
    world.job.replicas = 1;
    world.go(20);
    assert_eq!((world.generation(), world.members().len()), (3, 2), "and never fewer than the minimum");
    world.check_settled();
}

#[test]
fn dlrover_1175_a_pending_pod_makes_nobody_wait_or_start_again() {
    let mut world = AgentWorld::new(job(2, 4, 5));
    world.room = 3;
    world.go(130);
    assert_eq!((world.members().len(), world.state.phase), (3, Phase::Running));
    let before = world.generation();
    world.go(5400);
    assert_eq!((world.generation(), world.starts.len()), (before, 3), "each was started once");
    assert_eq!((world.state.failures, world.state.phase), (0, Phase::Running));
}

#[test]
fn dlrover_724_a_pod_that_is_up_and_never_joins_is_left_out() {
    let mut world = AgentWorld::new(job(1, 3, 5));
    world.operate(usize::MAX);
    let mute = world.pods[2].uid.clone();
    world.cut.insert(mute.clone());
    world.go(605);
    assert_eq!((world.members(), world.state.phase), (vec![0, 1], Phase::Running));
    world.go(10);
    assert!(world.pods.iter().all(|p| p.uid != mute || p.deleting.is_some()), "{:?}", world.pods);
}

#[test]
fn pytorch_64926_the_address_is_the_pods_and_the_interface_is_the_users_to_choose() {
    let world = native(1, 2, 4);
    let round = &world.published[&1];
    let mut all = environments(round);
    all.push(native_env(round, 1, Native { run: 1, min: 1, max: 4, alone: false }));
    assert_eq!(variable(&all[2], "PET_LOCAL_ADDR"), "10.0.0.1");
    assert!(all.iter().flatten().all(|(name, _)| !name.contains("SOCKET_IFNAME")), "what the template says stands");
}

#[test]
fn trainer_2000_two_hundred_that_fail_at_different_moments_meet_again() {
    let mut spec = job(150, 200, 200);
    spec.backoff_limit = 100;
    let mut world = AgentWorld::new(spec);
    (world.room, world.quota) = (200, 200);
    world.go(20);
    for wave in 0..3 {
        for second in 0..10 {
            for at in (0..200).filter(|at| at % 10 == second && at % 3 == wave) {
                world.exit(at, 1);
            }
            world.go(1);
        }
    }
    world.go(120);
    world.check_settled();
    assert_eq!(world.members().len(), 200);
    let of_last = world.starts.iter().filter(|(_, g)| *g == world.generation()).count();
    assert_eq!(of_last, 200, "all of them start in the round in which all of them are");
}

#[test]
fn trainer_2269_1478_2300_pytorch_operator_359_364_a_replaced_worker_trains_with_the_others() {
    let mut spec = job(1, 3, 5);
    spec.restart = RestartPolicy::Never;
    let mut world = AgentWorld::running(spec);
    world.evict(2);
    world.go(30);
    world.check_settled();
    let last = world.generation();
    let started: BTreeSet<u32> = world.starts.iter().filter(|(_, g)| *g == last).map(|(i, _)| *i).collect();
    assert_eq!(started, BTreeSet::from([0, 1, 2]), "the others do not go on in a world that it is not in");
}

#[test]
fn trainer_1504_the_job_ends_when_its_coordinator_does_whoever_was_done_before() {
    let mut world = AgentWorld::running(job(1, 3, 5));
    world.exit(1, 0);
    world.exit(2, 0);
    world.go(60);
    assert_eq!((world.generation(), world.state.phase), (1, Phase::Running), "nobody is started again");
    world.exit(0, 0);
    world.go(5);
    assert_eq!(world.state.phase, Phase::Succeeded);
    world.check_settled();
}

#[test]
fn pytorch_elastic_97_who_joins_waits_for_a_checkpoint_of_the_others() {
    let mut world = AgentWorld::running(job(1, 2, 5));
    world.checkpoint(0, 100);
    world.go(1);
    world.job.replicas = 3;
    world.go(20);
    assert_eq!(world.state.change.as_ref().map(|c| c.step), Some(ChangeStep::WaitingForCheckpoint));
    assert_eq!((world.generation(), world.starts.len()), (1, 2), "they train on");
    world.progress(0, 200);
    world.checkpoint(0, 200);
    world.go(10);
    world.check_settled();
    assert_eq!(world.state.last_resize.as_ref().unwrap().cost.unwrap().steps_lost, Some(0));
}

#[test]
fn trainer_3559_the_first_round_waits_for_those_who_are_slow() {
    let mut world = AgentWorld::new(job(1, 4, 4));
    world.operate(usize::MAX);
    for second in 0..60 {
        // One more is heard every 15 s.
        world.pass(secs(1), (1 << (1 + second / 15)) - 1);
        world.operate(usize::MAX);
        assert!(second > 45 || world.starts.is_empty(), "{:?} after {second} s", world.starts);
    }
    world.go(5);
    assert_eq!((world.generation(), world.members().len(), world.starts.len()), (1, 4, 4));
    assert_eq!(world.group.assignment.as_ref().map(|a| a.order), Some(Order::Run));
}

#[test]
fn torchft_71_70_of_two_halves_that_do_not_see_each_other_one_trains() {
    let mut world = AgentWorld::running(job(2, 4, 4));
    world.room = 4;
    let lost: Vec<String> = world.pods[2..].iter().map(|p| p.uid.clone()).collect();
    world.lose_node_of(2);
    world.lose_node_of(3);
    world.go(40);
    assert_eq!((world.members(), world.state.phase), (vec![0, 1], Phase::Running));
    // They come back, and find that the round does not name them.
    world.sick.clear();
    for _ in 0..60 {
        world.go(1);
        let newest = world.generation();
        let at_work = |uid: &String| world.containers.get(uid).is_some_and(|c| c.runs == Some(newest));
        assert!(!lost.iter().any(at_work), "who was given up joins no round again");
    }
    world.check_settled();
}
