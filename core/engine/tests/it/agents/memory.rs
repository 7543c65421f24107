//! Workers that run out of memory, with an agent.

use eto_engine::job::{JobSpec, MemoryGrowth};
use eto_engine::observe::ContainerEnd;
use eto_engine::state::{ChangeKind, LossClass, Phase};

use super::world::AgentWorld;
use crate::common::{job, secs};

const GIB: u64 = 1 << 30;

fn growing(most: u64) -> JobSpec {
    let mut spec = job(1, 2, 5);
    spec.elasticity.memory_growth = Some(MemoryGrowth { percent: 50, max_bytes: most });
    spec
}

fn out_of_memory(world: &mut AgentWorld, at: usize, limit: u64) {
    world.kill_container(at);
    tell(world, at, limit);
}

/// The kubelet's word comes into the pod's status.
fn tell(world: &mut AgentWorld, at: usize, limit: u64) {
    let end = ContainerEnd { code: 137, reason: "OOMKilled".into(), lines: String::new() };
    (world.pods[at].last_end, world.pods[at].memory_limit) = (Some(Box::new(end)), limit);
}

#[test]
fn its_pod_is_replaced_by_one_with_more_and_that_is_free() {
    let mut world = AgentWorld::running(growing(16 * GIB));
    let (lost, other) = (world.pods[1].uid.clone(), world.pods[0].uid.clone());
    out_of_memory(&mut world, 1, 4 * GIB);
    world.go(20);
    world.check_settled();
    assert!(world.pods.iter().all(|p| p.uid != lost), "it is replaced");
    assert!(world.pods.iter().any(|p| p.uid == other), "who has enough stays");
    assert_eq!((world.state.failures, world.state.memory.as_ref().unwrap().bytes), (0, 6 * GIB));
    assert_eq!(world.memories.last(), Some(&Some(6 * GIB)));
    let e = world.state.history.iter().find(|e| e.loss == Some(LossClass::OutOfMemory)).unwrap();
    assert_eq!((e.kind, &e.failed.as_ref().unwrap().reason[..]), (ChangeKind::Replacement, "OOMKilled"));
    assert!(
        e.why.contains("worker 1 ran out of memory at 4096 MiB; in its place comes one with 6144 MiB"),
        "{}",
        e.why
    );
    // Another that had the same runs out of it too: it gets what the first has got, not more.
    out_of_memory(&mut world, 0, 4 * GIB);
    world.go(20);
    assert_eq!(world.state.memory.as_ref().unwrap().bytes, 6 * GIB);
    assert_eq!((world.state.phase, world.state.failures), (Phase::Running, 0));
}

#[test]
fn the_agent_s_word_is_as_good_where_the_kernel_took_a_process_alone() {
    for grows in [true, false] {
        let spec = if grows { growing(16 * GIB) } else { job(1, 2, 5) };
        let mut world = AgentWorld::running(spec);
        let lost = world.pods[1].uid.clone();
        world.pods[1].memory_limit = 4 * GIB;
        world.containers.get_mut(&lost).unwrap().out_of_memory = true;
        world.exit(1, 137);
        world.go(20);
        world.check_settled();
        assert_eq!(world.pods.iter().all(|p| p.uid != lost), grows, "its pod is replaced where it gets more");
        let bytes = world.state.memory.as_ref().map(|m| m.bytes);
        assert_eq!((world.state.failures, bytes), if grows { (0, Some(6 * GIB)) } else { (1, None) });
        let failed = world.state.history.iter().find_map(|e| e.failed.as_ref()).unwrap();
        assert_eq!((&failed.reason[..], failed.exit_code), ("OOMKilled", Some(137)));
        if !grows {
            assert_eq!(world.state.charges[0].class, LossClass::OutOfMemory);
        }
    }
}

#[test]
fn at_the_cap_and_without_growth_it_starts_again_and_is_charged() {
    for (spec, limit) in [(growing(4 * GIB), 4 * GIB), (growing(16 * GIB), 0), (job(1, 2, 5), 4 * GIB)] {
        let mut world = AgentWorld::running(spec);
        let before: Vec<String> = world.pods.iter().map(|p| p.uid.clone()).collect();
        out_of_memory(&mut world, 1, limit);
        world.go(20);
        world.check_settled();
        assert_eq!(world.pods.iter().map(|p| p.uid.clone()).collect::<Vec<_>>(), before);
        assert_eq!((world.state.failures, &world.state.memory), (1, &None));
    }
    // The last step is cut to the cap.
    let mut world = AgentWorld::running(growing(5 * GIB));
    out_of_memory(&mut world, 1, 4 * GIB);
    world.go(20);
    assert_eq!(world.state.memory.as_ref().unwrap().bytes, 5 * GIB);
}

#[test]
fn the_kubelet_s_word_may_come_after_the_agent_s() {
    let mut world = AgentWorld::running(growing(16 * GIB));
    let lost = world.pods[1].uid.clone();
    world.kill_container(1);
    world.go(10);
    assert_eq!((world.generation(), world.state.failures), (2, 1), "it is a failure like any other so far");
    tell(&mut world, 1, 4 * GIB);
    world.go(20);
    world.check_settled();
    assert!(world.pods.iter().all(|p| p.uid != lost));
    assert_eq!((world.state.failures, world.state.memory.as_ref().unwrap().bytes), (1, 6 * GIB));
}

#[test]
fn another_template_begins_with_what_it_says_itself() {
    let mut world = AgentWorld::running(growing(16 * GIB));
    out_of_memory(&mut world, 1, 4 * GIB);
    world.go(20);
    world.job.template.as_mut().unwrap().hash = "t2".into();
    world.pass(secs(1), u16::MAX);
    world.go(30);
    world.check_settled();
    assert_eq!(world.memories.last(), Some(&None));
}
