//! Jobs with as many workers as there can be, and those that ask for more.

use std::sync::Arc;

use eto_engine::contract::Framework;
use eto_engine::job::JobSpec;
use eto_engine::plan::{PlanFacts, PodEnv, effective_target, plan, recover};
use eto_engine::state::JobState;
use eto_membership::{GlobalBatch, MAX_HOSTS_BYTES, MAX_MEMBERS, MAX_TENSORFLOW_MEMBERS};

use crate::common::{NOW, job, pod, pods, running};
use crate::plan::{created, step};

#[test]
fn the_environments_of_a_round_are_one_until_pods_are_made() {
    let p = step(&job(1, MAX_MEMBERS, MAX_MEMBERS), &JobState::default(), &[]);
    let created = created(&p);
    assert_eq!(created.len(), usize::try_from(MAX_MEMBERS).unwrap());
    let PodEnv::Member(first, 0) = &created[0].env else { panic!("{:?}", created[0].env) };
    for (rank, new) in created.iter().enumerate() {
        assert!(matches!(&new.env, PodEnv::Member(of, at) if Arc::ptr_eq(of, first) && *at == rank));
    }
    let last = created.last().unwrap().env.variables();
    let get = |name: &str| last.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str());
    assert_eq!((get("RANK"), get("WORLD_SIZE")), (Some("4095"), Some("4096")));
    assert_eq!((get("ETO_HOSTS"), get("ETO_HOST_PATTERN")), (None, Some("demo-worker-[0-4095].demo.team-a.svc")));
    let bytes: usize = last.iter().map(|(name, value)| name.len() + value.len()).sum();
    assert!(bytes < MAX_HOSTS_BYTES, "{bytes}");
}

/// What a spec or a status of another version may say must not cost memory without end.
#[test]
fn no_round_has_more_members_than_it_can() {
    let absurd = |framework, most| {
        let spec = JobSpec { framework, ..job(1, u32::MAX, u32::MAX) };
        let p = step(&spec, &JobState::default(), &[]);
        assert_eq!((p.state.target, created(&p).len()), (most, usize::try_from(most).unwrap()), "{framework:?}");
        p
    };
    absurd(Framework::PyTorch, MAX_MEMBERS);
    absurd(Framework::TensorFlow, MAX_TENSORFLOW_MEMBERS);
    let mut batch = job(1, 6, u32::MAX);
    batch.elasticity.batch = Some(GlobalBatch { samples: 1 << 24, max_micro: None });
    assert_eq!(effective_target(&batch, &JobState::default()), 4, "of all sizes that divide it");

    let spec = job(1, 4, 8);
    let mut state = running(&spec, 4);
    state.round.as_mut().unwrap().size = u32::MAX;
    let p = plan(&spec, &state, &pods(4), &PlanFacts::default(), NOW);
    assert_eq!(p.state.target, 4);

    let wild = [pod(0, 1, u32::MAX), pod(u32::MAX, 1, u32::MAX)];
    let state = recover(&spec, &wild, None, NOW);
    assert_eq!((state.round.unwrap().size, state.target), (MAX_MEMBERS, 8));
}
