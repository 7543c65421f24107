//! What a policy is shown of one job: the facts of this moment as columns, each signal with its quality.

mod measure;
mod requests;

use std::collections::HashMap;

use crate::contract::{
    Bounds, Capacity, Framework, JobFacts, Metric, NONE, ResizeFacts, ScalingInput, Signal, SignalWant, Sizes,
    WorkerColumns, WorkerPhase,
};
use crate::decision::{Failure, Mend, SignalSeen};
use crate::guard::behavior::TOLERANCE;
use crate::guard::sizes;
use crate::job::JobSpec;
use crate::observe::Pod;
use crate::plan::effective_target;
use crate::signals::SignalSet;
use crate::state::{JobState, Memory};
use crate::time::{Time, millis};
use crate::wants::{Wanted, wanted};

pub use measure::{STALE_MARGIN_MS, remember};

/// What a view is built from.
#[derive(Clone, Copy)]
pub struct Facts<'a> {
    /// The job as its user wants it.
    pub job: &'a JobSpec,
    /// Its durable state.
    pub state: &'a JobState,
    /// Its volatile state.
    pub memory: &'a Memory,
    /// Its pods (those of other jobs must not be among them).
    pub pods: &'a [Pod],
    /// The latest answers of the source of signals, for all jobs.
    pub signals: &'a SignalSet,
    /// What the job's policy wants with the job's config.
    pub wants: &'a [SignalWant],
    /// What the cluster could still take (see `placement::fits`).
    pub capacity: Capacity,
    /// The time of the decision.
    pub now: Time,
}

/// A signal of a view with what the guard needs to know of it. Parallel to `ScalingInput::signals`.
#[derive(Clone, Debug, PartialEq)]
pub struct Gauge {
    /// What was asked for.
    pub wanted: Wanted,
    /// Per element of the signal's columns: there should be a sample that can be trusted, and there is none. The guard
    /// fills these to find the worst and the best case.
    pub suspect: Vec<bool>,
    /// Since when its source answers without a gap; `None` = it does not, or nobody can serve the signal.
    pub healthy_since: Option<Time>,
    /// Milliseconds after a start or an outage in which its values may be of the time before.
    pub window_ms: u64,
}

/// What is shown to the policy, and what is remembered of how it came about.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    /// The argument of the policy.
    pub input: ScalingInput,
    /// Its signals in short, for the decision. In the same order.
    pub seen: Vec<SignalSeen>,
    /// Its signals, for the guard. In the same order.
    pub gauges: Vec<Gauge>,
    /// What only the job's owner can mend.
    pub mend: Option<Mend>,
    /// What is known against the job's placement policy. Whoever knows which policies are served puts it in.
    pub placement: Option<Failure>,
}

/// Builds the view of one job. Reads the facts and nothing else; costs O(pods x signals).
///
/// It is of the job's workers alone: members of other types are in no column, no signal and no size, since an idle
/// parameter server says nothing of how many workers there should be.
pub fn build(facts: &Facts<'_>) -> View {
    let Facts { job, state, memory, now, .. } = *facts;
    let mut pods: Vec<&Pod> = facts.pods.iter().filter(|p| job.types.is_worker(p.index)).collect();
    pods.sort_by(|a, b| (a.index, a.created, &a.uid).cmp(&(b.index, b.created, &b.uid)));
    let all = wanted(job, facts.wants);
    let mut signals: Vec<Signal> = Vec::with_capacity(all.len());
    let mut seen = Vec::with_capacity(all.len());
    let mut gauges = Vec::with_capacity(all.len());
    let mut metrics = Vec::new();
    let scaling = job.scaling.as_ref();
    for wanted in all {
        let measured = measure::measure(facts, &pods, wanted);
        let spec = measured.gauge.wanted.metric.and_then(|at| scaling.and_then(|s| s.metrics.get(at)));
        if let Some(spec) = spec {
            let signal = u32::try_from(signals.len()).unwrap_or(NONE);
            let metric = Metric { kind: spec.kind, name: spec.name.clone(), signal, target: spec.target };
            metrics.push((measured.gauge.wanted.metric, metric));
        }
        signals.push(measured.signal);
        seen.push(measured.seen);
        gauges.push(measured.gauge);
    }
    metrics.sort_by_key(|(at, _)| *at);
    let behavior = scaling.and_then(|s| s.behavior.as_ref());
    let input = ScalingInput {
        now_ms: now.0,
        seed: seed(&job.uid, memory.sequence.saturating_add(1)),
        job: job_facts(job, state),
        bounds: Bounds {
            min: workers(job, job.min),
            max: workers(job, job.max),
            legal: sizes::legal(job).into_iter().map(|size| workers(job, size)).filter(|n| *n > 0).collect(),
            tolerance_up: behavior.map_or(TOLERANCE, |b| b.up.tolerance),
            tolerance_down: behavior.map_or(TOLERANCE, |b| b.down.tolerance),
        },
        sizes: sizes_of(job, state, &pods),
        workers: columns(&pods),
        signals,
        metrics: metrics.into_iter().map(|(_, metric)| metric).collect(),
        capacity: facts.capacity,
        resize: resize_facts(job, state),
        config: scaling.map_or_else(|| "{}".to_owned(), |s| s.config.clone()),
        state: memory.policy_state.clone(),
    };
    let mend = requests::mend(job, &pods, &gauges);
    View { input, seen, gauges, mend, placement: None }
}

/// How many workers a job of this size has.
fn workers(job: &JobSpec, size: u32) -> u32 {
    size.saturating_sub(job.types.count())
}

/// Facts of a job that do not change with the moment, as policies of both kinds are given them.
pub fn job_facts(job: &JobSpec, state: &JobState) -> JobFacts {
    let round = state.round.as_ref();
    JobFacts {
        namespace: job.key.namespace.clone(),
        name: job.key.name.clone(),
        uid: job.uid.clone(),
        framework: job.framework,
        generation: job.generation,
        round: state.last_generation,
        created_ms: job.created.0,
        running_since_ms: round.and_then(|r| r.running_since).map_or(0, |t| t.0),
        failures: state.failures,
    }
}

/// A number that differs from decision to decision and is the same in a replay (FNV-1a of the job's UID, stirred with
/// the sequence).
pub fn seed(uid: &str, sequence: u64) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in uid.bytes().chain(sequence.to_le_bytes()) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash
}

fn sizes_of(job: &JobSpec, state: &JobState, pods: &[&Pod]) -> Sizes {
    let there = |p: &&&Pod| p.deleting.is_none();
    let ready = |p: &&&Pod| there(p) && p.is_ready();
    Sizes {
        replicas: workers(job, job.replicas),
        target: workers(job, effective_target(job, state)),
        current: count(pods.iter().filter(there)),
        ready: count(pods.iter().filter(ready)),
    }
}

fn count<T>(items: impl Iterator<Item = T>) -> u32 {
    u32::try_from(items.count()).unwrap_or(u32::MAX)
}

fn columns(pods: &[&Pod]) -> WorkerColumns {
    let mut nodes: HashMap<&str, u32> = HashMap::new();
    let mut node = Vec::with_capacity(pods.len());
    for pod in pods {
        let next = u32::try_from(nodes.len()).unwrap_or(NONE);
        node.push(pod.node.as_deref().map_or(NONE, |n| *nodes.entry(n).or_insert(next)));
    }
    WorkerColumns {
        index: pods.iter().map(|p| p.index).collect(),
        phase: pods.iter().map(|p| p.phase).collect(),
        ready: pods.iter().map(|p| p.ready).collect(),
        started_ms: pods.iter().map(|p| p.started.map_or(0, |t| t.0)).collect(),
        ready_changed_ms: pods.iter().map(|p| p.ready_changed.map_or(0, |t| t.0)).collect(),
        deleting: pods.iter().map(|p| p.deleting.is_some()).collect(),
        node,
    }
}

fn resize_facts(job: &JobSpec, state: &JobState) -> ResizeFacts {
    state.last_resize.as_ref().map_or(
        ResizeFacts { last_ms: 0, last_cost_ms: 0, last_steps_lost: None, last_from: 0, last_refused: false },
        |r| ResizeFacts {
            last_ms: r.decided.0,
            last_cost_ms: millis(r.pause()),
            last_steps_lost: r.cost.as_ref().and_then(|c| c.steps_lost),
            last_from: workers(job, r.from),
            last_refused: r.refused,
        },
    )
}

impl From<Framework> for eto_membership::FrameworkKind {
    fn from(framework: Framework) -> Self {
        match framework {
            Framework::PyTorch => Self::PyTorch,
            Framework::TensorFlow => Self::TensorFlow,
            Framework::Jax => Self::Jax,
            Framework::Custom => Self::Custom,
        }
    }
}

/// Whether a worker should have a sample: it runs and is meant to go on.
pub(crate) fn should_have_sample(pod: &Pod) -> bool {
    pod.phase == WorkerPhase::Running && pod.deleting.is_none()
}
