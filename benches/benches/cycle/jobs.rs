//! The jobs: 8 running workers each, 100 jobs a namespace, sized by `hpa` at 50 % of CPU.

use eto_api::ElasticJob;
use eto_cycle::spec::job_spec;
use eto_engine::contract::{Readiness, WorkerPhase, WorkerRequest};
use eto_engine::job::JobSpec;
use eto_engine::observe::Pod;
use eto_engine::state::{JobState, Memory, Phase, RoundCause, RoundMode, RoundState};
use eto_engine::time::Time;
use serde_json::json;

pub(crate) const WORKERS: usize = 8;
/// The first cycle is at this moment.
pub(crate) const START: Time = Time(1_800_000_000_000);
const LONG_AGO: Time = Time(START.0 - 7_200_000);

/// A job with all that an operator keeps of it between cycles.
pub(crate) struct Job {
    pub(crate) spec: JobSpec,
    pub(crate) state: JobState,
    pub(crate) memory: Memory,
    pub(crate) pods: Vec<Pod>,
}

pub(crate) fn namespace(job: usize) -> String {
    format!("team-{:03}", job / 100)
}

pub(crate) fn name(job: usize) -> String {
    format!("train-{job:05}")
}

pub(crate) fn pod_name(job: &str, worker: usize) -> String {
    format!("{job}-worker-{worker}-b7k2x")
}

/// Cores that a worker uses: about its target, so that nothing changes; in one job of a hundred far more, where the
/// growth that the policy asks for runs into the job's maximum.
#[allow(clippy::cast_precision_loss)]
pub(crate) fn cores(job: usize, worker: usize) -> f64 {
    if job.is_multiple_of(100) { 0.9 } else { 0.48 + ((job * 7 + worker * 13) % 40) as f64 / 1000.0 }
}

pub(crate) fn all(count: usize) -> Vec<Job> {
    (0..count).map(job).collect()
}

fn job(number: usize) -> Job {
    let object: ElasticJob = serde_json::from_value(json!({
        "apiVersion": "elastic.ai/v1alpha1", "kind": "ElasticJob",
        "metadata": {
            "name": name(number), "namespace": namespace(number), "generation": 1,
            "uid": format!("4f1c2a70-0000-4000-8000-{number:012}"), "creationTimestamp": "2026-11-30T00:00:00Z",
        },
        "spec": {
            "replicas": WORKERS, "minReplicas": 2, "maxReplicas": WORKERS, "frameworkType": "PyTorch",
            "scalingPolicy": {"metrics": [{
                "type": "Resource",
                "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}},
            }]},
            "template": {"spec": {"containers": [{
                "name": "train", "image": "example.com/train:1", "resources": {"requests": {"cpu": "1", "memory": "2Gi"}},
            }]}},
        },
    }))
    .expect("an ElasticJob");
    let spec = job_spec(&object).expect("a job without problems");
    let hash = spec.template.as_ref().expect("it has a template").hash.clone();
    let size = u32::try_from(WORKERS).expect("few");
    let round = RoundState {
        generation: 1,
        size,
        template_hash: hash.clone(),
        since: LONG_AGO,
        running_since: Some(LONG_AGO),
        cause: RoundCause::Start,
        complete: Some(LONG_AGO),
        required_nodes: false,
        gaps: Vec::new(),
        restarts_charged: 0,
        agent: None,
    };
    let state = JobState {
        phase: Phase::Running,
        target: size,
        based_on: size,
        last_generation: 1,
        round: Some(round),
        started_at: Some(LONG_AGO),
        ..JobState::default()
    };
    let pods = (0..size).map(|i| pod(&spec, i, &hash)).collect();
    Job { spec, state, memory: Memory::new(LONG_AGO), pods }
}

fn pod(spec: &JobSpec, index: u32, hash: &str) -> Pod {
    Pod {
        name: pod_name(&spec.key.name, usize::try_from(index).expect("few")),
        uid: format!("{}-{index}", spec.uid),
        index,
        round: 1,
        round_size: u32::try_from(WORKERS).expect("few"),
        incarnation: 1,
        mode: RoundMode::Recreate,
        template_hash: hash.to_owned(),
        phase: WorkerPhase::Running,
        reason: None,
        ready: Readiness::Ready,
        created: LONG_AGO,
        started: Some(LONG_AGO),
        ready_changed: Some(LONG_AGO),
        ended: None,
        node: Some(format!("node-{}", index % 4)),
        unschedulable: None,
        waiting: None,
        deleting: None,
        restarts: 0,
        exit_code: None,
        last_end: None,
        memory_limit: 0,
        disrupted: false,
        request: WorkerRequest { cpu: 1.0, memory: 2_147_483_648.0, gpus: 0.0 },
    }
}
