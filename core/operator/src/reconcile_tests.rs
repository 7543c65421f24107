#![allow(clippy::unwrap_used)]
use std::sync::Arc;

use eto_engine::contract::KeptState;

use super::*;
use crate::cache::jobs::Jobs;

const NOW: Time = Time(1_800_000_000_000);

/// A job as the watch brings it, its status written at `second`.
fn seen(jobs: &Jobs, version: u64, second: u32, target: u32) -> Arc<Job> {
    let object = serde_json::from_value(json!({
        "apiVersion": "elastic.ai/v1alpha1", "kind": "ElasticJob",
        "metadata": {"namespace": "n", "name": "j", "uid": "u", "resourceVersion": version.to_string(), "generation": 1},
        "spec": {"replicas": 2, "minReplicas": 1, "maxReplicas": 9},
        "status": {
            "phase": "Running", "targetReplicas": target, "basedOnReplicas": 2, "lastGeneration": 3,
            "memory": {"saved": format!("2027-01-15T07:59:{second:02}.000Z"), "since": "2027-01-15T07:00:00.000Z", "sequence": 7},
        },
    }));
    let (key, _) = jobs.seen(object.unwrap()).unwrap();
    let job = jobs.get(&key).unwrap();
    adopt(&mut job.entry(), &[], None, AgentFacts::default(), NOW);
    job
}

fn mind<T>(job: &Job, of: impl FnOnce(&mut Mind) -> T) -> T {
    of(job.entry().mind.as_mut().unwrap())
}

#[test]
fn what_another_replica_wrote_is_gone_on_from() {
    let jobs = Jobs::default();
    let job = seen(&jobs, 5, 10, 4);
    mind(&job, |m| {
        m.state.target = 3;
        m.acting = true;
    });
    seen(&jobs, 6, 10, 4);
    assert_eq!(mind(&job, |m| m.state.target), 3, "a change of the spec is no reason to forget");
    seen(&jobs, 7, 20, 6);
    assert_eq!(mind(&job, |m| (m.state.target, m.acting)), (6, true));
}

#[test]
fn a_status_that_was_lost_is_written_again_by_the_leader_that_remembers() {
    let jobs = Jobs::default();
    let job = seen(&jobs, 5, 10, 4);
    mind(&job, |m| m.state.target = 3);
    let object = serde_json::from_value(json!({
        "apiVersion": "elastic.ai/v1alpha1", "kind": "ElasticJob",
        "metadata": {"namespace": "n", "name": "j", "uid": "u", "resourceVersion": "6", "generation": 1},
        "spec": {"replicas": 2, "minReplicas": 1, "maxReplicas": 9},
    }));
    jobs.seen(object.unwrap()).unwrap();
    adopt(&mut job.entry(), &[], None, AgentFacts::default(), NOW);
    assert_eq!((mind(&job, |m| m.state.target), job.entry().stored.phase.as_str()), (3, ""));
}

#[test]
fn an_own_write_is_known_again_whatever_became_of_its_answer() {
    let jobs = Jobs::default();
    let job = seen(&jobs, 5, 10, 4);
    mind(&job, |m| {
        m.memory.history.insert("cpu-utilisation".to_owned(), vec![(NOW, 0.5)]);
        m.tried = Some("2027-01-15T07:59:20.000Z".to_owned());
    });
    seen(&jobs, 6, 20, 3);
    assert_eq!(mind(&job, |m| m.memory.history.len()), 1);
}

#[test]
fn a_policy_state_is_saved_though_nothing_else_is_written() {
    let jobs = Jobs::default();
    let job = seen(&jobs, 5, 10, 4);
    assert!(!job.entry().is_checkpoint_due(Duration::ZERO), "there is nothing to save");
    mind(&job, |m| m.memory.policy_state = Some(KeptState { version: 1, bytes: vec![7] }));
    assert!(job.entry().is_checkpoint_due(Duration::ZERO));
    assert!(!job.entry().is_checkpoint_due(Duration::from_secs(300)), "it was read just now");
    mind(&job, |m| m.memory.policy_state = Some(KeptState { version: 1, bytes: vec![7; 60_000] }));
    assert!(!job.entry().is_checkpoint_due(Duration::ZERO), "status can't hold it");
}
