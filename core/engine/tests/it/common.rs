//! Builders of jobs, pods, states and policies.

use std::collections::BTreeMap;
use std::time::Duration;

use eto_engine::contract::{
    Capacity, Framework, MetricKind, MetricTarget, NONE, Readiness, Reason, ScalingDecision, ScalingInput, SignalWant,
    WorkerPhase, WorkerRequest,
};
use eto_engine::job::{
    CleanPods, Elasticity, FailurePolicy, JobKey, JobSpec, LegalSizes, MetricSpec, Mode, ReplicaType, ReplicaTypes,
    RestartPolicy, ScalingSpec, TemplateFacts,
};
use eto_engine::observe::Pod;
use eto_engine::policy::{Answer, Asked, CallFailure, FailureKind, PolicyId, ScalingPolicy};
use eto_engine::signals::{Sample, SignalData, SignalSet};
use eto_engine::state::{JobState, Memory, RoundCause, RoundMode, RoundState};
use eto_engine::time::Time;
use eto_engine::view::{self, View};
use eto_engine::wants;

/// A moment far enough from the epoch that windows reach back.
pub(crate) const NOW: Time = Time(1_700_000_000_000);

pub(crate) fn secs(s: u64) -> Duration {
    Duration::from_secs(s)
}

pub(crate) fn ago(s: u64) -> Time {
    NOW.minus(secs(s))
}

pub(crate) fn job(min: u32, replicas: u32, max: u32) -> JobSpec {
    let request = WorkerRequest { cpu: 1.0, memory: 1e9, gpus: 0.0 };
    JobSpec {
        key: JobKey { namespace: "team-a".into(), name: "demo".into() },
        uid: "uid-1".into(),
        generation: 1,
        created: ago(100_000),
        framework: Framework::PyTorch,
        replicas,
        min,
        max,
        legal: LegalSizes::Any,
        types: ReplicaTypes::default(),
        template: Some(TemplateFacts {
            hash: "t1".into(),
            request,
            containers: BTreeMap::from([("train".into(), request)]),
            processes: 1,
            processes_without_agent: 1,
            overridden: Vec::new(),
            command: true,
        }),
        restart: RestartPolicy::OnFailure,
        backoff_limit: 6,
        suspend: false,
        active_deadline: None,
        ttl_after_finished: None,
        clean_pods: CleanPods::Running,
        scaling: None,
        placement: None,
        elasticity: Elasticity::default(),
    }
}

/// A job that has members of these types beside its workers.
pub(crate) fn job_with(types: &[(&str, u32)], min: u32, replicas: u32, max: u32) -> JobSpec {
    let of = |(name, replicas): &(&str, u32)| ReplicaType { name: (*name).into(), replicas: *replicas };
    JobSpec {
        framework: Framework::TensorFlow,
        types: ReplicaTypes(types.iter().map(of).collect()),
        ..job(min, replicas, max)
    }
}

pub(crate) fn scaling(metrics: Vec<MetricSpec>, own_module: bool) -> ScalingSpec {
    ScalingSpec {
        module: if own_module { "mine".into() } else { "hpa".into() },
        own_module,
        config: "{}".into(),
        metrics,
        behavior: None,
        mode: Mode::Auto,
        on_failure: FailurePolicy::Hold,
    }
}

pub(crate) fn cpu(target: u32) -> MetricSpec {
    metric(MetricKind::Resource, "cpu", MetricTarget::Utilization(target))
}

pub(crate) fn metric(kind: MetricKind, name: &str, target: MetricTarget) -> MetricSpec {
    let (selector, expressions) = (BTreeMap::new(), vec![]);
    MetricSpec { kind, name: name.into(), container: None, selector, expressions, object: None, target }
}

/// A ready pod that has run for long.
pub(crate) fn pod(index: u32, round: u64, size: u32) -> Pod {
    Pod {
        name: format!("demo-worker-{index}-{round}"),
        uid: format!("pod-{index}-{round}"),
        index,
        round,
        round_size: size,
        incarnation: round,
        mode: RoundMode::Recreate,
        template_hash: "t1".into(),
        phase: WorkerPhase::Running,
        reason: None,
        ready: Readiness::Ready,
        created: ago(50_000),
        started: Some(ago(50_000)),
        ready_changed: Some(ago(50_000)),
        ended: None,
        node: Some(format!("node-{index}")),
        unschedulable: None,
        waiting: None,
        deleting: None,
        restarts: 0,
        exit_code: None,
        last_end: None,
        memory_limit: 0,
        disrupted: false,
        request: WorkerRequest { cpu: 1.0, memory: 1e9, gpus: 0.0 },
    }
}

pub(crate) fn pods(size: u32) -> Vec<Pod> {
    (0..size).map(|i| pod(i, 1, size)).collect()
}

/// The state of a job whose round 1 of `size` workers has run for long.
pub(crate) fn running(job: &JobSpec, size: u32) -> JobState {
    JobState {
        phase: eto_engine::state::Phase::Running,
        target: size,
        based_on: job.replicas,
        last_generation: 1,
        started_at: Some(ago(50_000)),
        round: Some(RoundState {
            generation: 1,
            size,
            template_hash: "t1".into(),
            since: ago(50_000),
            running_since: Some(ago(49_000)),
            cause: RoundCause::Start,
            complete: Some(ago(49_500)),
            required_nodes: false,
            gaps: vec![],
            restarts_charged: 0,
            agent: None,
        }),
        ..JobState::default()
    }
}

/// A memory that has seen everything there was to see.
pub(crate) fn memory() -> Memory {
    Memory::new(ago(100_000))
}

/// A source that has answered for long, with one value per pod for every signal that the job needs.
pub(crate) fn signals(job: &JobSpec, wants: &[SignalWant], values: &[(&str, f64)]) -> SignalSet {
    let sample = |value: f64| Sample { value, at: NOW };
    let per_pod = values.iter().map(|(pod, v)| ((*pod).to_owned(), sample(*v))).collect();
    let data = SignalData {
        per_pod: [("team-a".to_owned(), per_pod)].into(),
        healthy_since: Some(ago(10_000)),
        ..SignalData::default()
    };
    let ids = wants::signal_ids(job, wants);
    SignalSet { at: NOW, signals: ids.into_iter().map(|id| (id, data.clone())).collect(), ..SignalSet::default() }
}

pub(crate) const ANY_ROOM: Capacity = Capacity { fits: NONE, pending: 0 };

/// Everything around one look at a job.
pub(crate) struct Look {
    pub(crate) job: JobSpec,
    pub(crate) state: JobState,
    pub(crate) memory: Memory,
    pub(crate) pods: Vec<Pod>,
    pub(crate) signals: SignalSet,
    pub(crate) wants: Vec<SignalWant>,
    pub(crate) capacity: Capacity,
    pub(crate) now: Time,
}

impl Look {
    /// A job of `size` workers that run, each with this value of each of its signals.
    pub(crate) fn new(job: JobSpec, size: u32, wants: Vec<SignalWant>, values: &[f64]) -> Self {
        let pods = pods(size);
        let named: Vec<(&str, f64)> = pods.iter().map(|p| p.name.as_str()).zip(values.iter().copied()).collect();
        let signals = signals(&job, &wants, &named);
        let state = running(&job, size);
        Look { state, memory: memory(), signals, wants, capacity: ANY_ROOM, now: NOW, pods, job }
    }

    pub(crate) fn view(&self) -> View {
        view::build(&view::Facts {
            job: &self.job,
            state: &self.state,
            memory: &self.memory,
            pods: &self.pods,
            signals: &self.signals,
            wants: &self.wants,
            capacity: self.capacity,
            now: self.now,
        })
    }

    pub(crate) fn decide(&mut self, policy: &dyn ScalingPolicy) -> eto_engine::decision::Decision {
        let view = self.view();
        eto_engine::guard::decide(&self.job, &self.state, &mut self.memory, &view, Ok(policy), None, self.now)
    }

    /// Lets the source of signals and its samples grow with the time.
    pub(crate) fn at(&mut self, now: Time) -> &mut Self {
        self.now = now;
        for data in self.signals.signals.values_mut() {
            let per_pod = data.per_pod.values_mut().flat_map(|m| m.values_mut());
            per_pod.chain(data.per_namespace.values_mut()).for_each(|s| s.at = now);
        }
        self
    }
}

type Evaluate = dyn Fn(&ScalingInput) -> Asked<ScalingDecision>;

/// A policy that is a function.
pub(crate) struct Native {
    pub(crate) id: PolicyId,
    pub(crate) state_version: u32,
    pub(crate) evaluate: Box<Evaluate>,
}

pub(crate) fn native(evaluate: impl Fn(&ScalingInput) -> Option<u32> + 'static) -> Native {
    fallible(move |input| Ok(decision(evaluate(input))))
}

pub(crate) fn fallible(evaluate: impl Fn(&ScalingInput) -> Result<ScalingDecision, CallFailure> + 'static) -> Native {
    Native {
        id: PolicyId { name: "mine".into(), version: "1.0.0".into(), digest: "sha256:1".into() },
        state_version: 1,
        evaluate: Box::new(move |input| evaluate(input).map(|value| Answer { value, fuel: 10 })),
    }
}

pub(crate) fn decision(target: Option<u32>) -> ScalingDecision {
    let reason = Reason { code: "Test".into(), message: "because".into(), signal: None, value: None, target: None };
    ScalingDecision { target, reasons: vec![reason], next_look_seconds: None, state: None }
}

pub(crate) fn trap() -> CallFailure {
    CallFailure { kind: FailureKind::Trap, message: "unreachable at policy.rs:1".into() }
}

impl ScalingPolicy for Native {
    fn id(&self) -> &PolicyId {
        &self.id
    }
    fn state_version(&self) -> u32 {
        self.state_version
    }
    fn wants(&self, _config: &str) -> Asked<Vec<SignalWant>> {
        Ok(Answer { value: vec![], fuel: 0 })
    }
    fn evaluate(&self, input: &ScalingInput) -> Asked<ScalingDecision> {
        (self.evaluate)(input)
    }
    fn migrate(&self, version: u32, state: &[u8]) -> Asked<Vec<u8>> {
        let mut bytes = state.to_vec();
        bytes.push(u8::try_from(version).unwrap_or(0));
        Ok(Answer { value: bytes, fuel: 0 })
    }
}

/// HPA's ratio for its first metric, as far as the tests of the guard need it: samples that are there, without its
/// rules for unready pods. `None` where nothing can be computed.
pub(crate) fn ratio_policy() -> Native {
    native(|input| {
        let mut best = None;
        for metric in &input.metrics {
            let signal = &input.signals[usize::try_from(metric.signal).unwrap()];
            let there = || signal.sampled_ms.iter().enumerate().filter(|(_, t)| **t > 0).map(|(at, _)| at);
            let n = f64::from(u32::try_from(there().count()).unwrap());
            let usage: f64 = there().map(|at| signal.values[at]).sum();
            let request: f64 = there().map(|at| signal.requests[at]).sum();
            let ratio = match metric.target {
                MetricTarget::Utilization(t) => (usage * 100.0 / request).trunc() / f64::from(t),
                MetricTarget::AverageValue(t) => usage / n / t,
                MetricTarget::Value(t) => usage / t,
            };
            if n == 0.0 || !ratio.is_finite() {
                continue;
            }
            let within = (1.0 - input.bounds.tolerance_down..=1.0 + input.bounds.tolerance_up).contains(&ratio);
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            let size = if within { input.sizes.target } else { (ratio * n).ceil() as u32 };
            best = best.max(Some(size));
        }
        best
    })
}
