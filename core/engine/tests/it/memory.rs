//! Workers that run out of memory, by recreation.

use eto_engine::contract::WorkerPhase;
use eto_engine::job::{MemoryGrowth, RestartPolicy};
use eto_engine::observe::{ContainerEnd, Pod};
use eto_engine::state::LossClass;

use crate::common::job;
use crate::world::World;

const GIB: u64 = 1 << 30;

#[test]
fn the_next_round_s_pods_have_more() {
    for restarts_in_place in [true, false] {
        let mut spec = job(1, 2, 5);
        spec.elasticity.memory_growth = Some(MemoryGrowth { percent: 100, max_bytes: 16 * GIB });
        if !restarts_in_place {
            spec.restart = RestartPolicy::Never;
        }
        let mut world = World::new(spec);
        assert!(world.settle());
        let end = ContainerEnd { code: 137, reason: "OOMKilled".into(), lines: String::new() };
        let pod: &mut Pod = &mut world.pods[1];
        (pod.last_end, pod.memory_limit) = (Some(Box::new(end)), 4 * GIB);
        if restarts_in_place {
            pod.restarts = 1;
        } else {
            pod.phase = WorkerPhase::Failed;
        }
        let lost = pod.name.clone();
        assert!(world.settle());
        world.check_settled();
        let e = &world.state.history[0];
        assert_eq!((e.loss, &e.left[..]), (Some(LossClass::OutOfMemory), &[lost][..]), "{restarts_in_place}");
        let given: Vec<Option<u64>> = world.pods.iter().map(|p| world.envs[&p.uid].memory).collect();
        assert_eq!(given, [Some(8 * GIB); 2]);
        // What the kubelet charges in place is charged; the growth itself is not.
        assert_eq!(world.state.failures, u32::from(restarts_in_place));
    }
}
