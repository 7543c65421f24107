//! What differs from seed to seed before anything has happened: the job, its script, the cluster and its clocks.

use std::collections::BTreeMap;
use std::time::Duration;

use eto_engine::contract::{Framework, WorkerRequest};
use eto_engine::job::{
    CHIEF, CleanPods, Elasticity, ElasticityMode, JobKey, JobSpec, LegalSizes, ReplicaType, ReplicaTypes,
    RestartPolicy, RestartScope, TemplateFacts,
};
use eto_engine::state::LossClass;
use eto_engine::time::Time;

use crate::random::Random;
use crate::world::BEGIN;

/// Where hangs are looked for, after how long: longer than anything else may keep the operator from hearing of progress.
const HANG_TIMEOUT: Duration = Duration::from_secs(300);

/// What processes do when they are asked to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnTerm {
    /// They die of the signal.
    Die,
    /// They write a checkpoint and end with 143.
    Drain,
    /// They go on.
    Ignore,
}

/// See the module's text. Times are in milliseconds.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) job: JobSpec,
    /// Faults come one at a time, each after the job has recovered from the last, and what each may cost is checked to
    /// the letter; else they come as they like.
    pub(crate) calm: bool,
    pub(crate) faults: u64,
    pub(crate) fault_every: u64,
    pub(crate) step_time: u64,
    pub(crate) import_time: u64,
    /// Steps between two checkpoints; 0 = the script knows none.
    pub(crate) checkpoint_every: u64,
    pub(crate) save_time: u64,
    pub(crate) on_term: OnTerm,
    /// Processes fail when a peer of theirs is gone; else they wait for it.
    pub(crate) peers_fail: bool,
    /// The step at which the work is done.
    pub(crate) goal: Option<u64>,
    /// Watches of the operator bring news so late at most.
    pub(crate) lag: u64,
    /// Reports and watches of agents take so long at most.
    pub(crate) latency: u64,
    /// Per cent of the messages between agents and gateway that are lost, and as many that come twice, while faults
    /// strike.
    pub(crate) loss: u64,
    /// How long a pod takes from its node to its first process, at most.
    pub(crate) pull_time: u64,
    /// How long pods stay on a node that is not ready.
    pub(crate) toleration: u64,
    /// Clocks of the operator's replicas against true time.
    pub(crate) skews: [i64; 2],
    /// Clocks of nodes are off by this much at most.
    pub(crate) node_skew: u64,
    pub(crate) nodes: u64,
    /// The command is torchrun, which changes its members by itself.
    pub(crate) native: bool,
    /// The operator ends before one of its writes or actions, per cent of them, while faults strike.
    pub(crate) kill: u64,
}

impl Scenario {
    pub(crate) fn draw(random: &mut Random, calm: bool) -> Self {
        let mut job = job(random, calm);
        let native = job.framework == Framework::PyTorch && job.legal == LegalSizes::Any && random.percent(30);
        if native {
            job.elasticity.mode = ElasticityMode::Native;
        } else if random.percent(if job.framework == Framework::Custom { 60 } else { 10 }) {
            job.elasticity.restart_scope = RestartScope::Pod;
        }
        if [Framework::Custom, Framework::TensorFlow].contains(&job.framework) {
            job.types = types(random, job.min);
        }
        if random.percent(50) && job.elasticity.restart_scope != RestartScope::Pod {
            job.elasticity.hang_timeout = Some(HANG_TIMEOUT);
        }
        let off = random.percent(30);
        let mut skew = || if off { i64::try_from(random.between(0, 10_000)).unwrap_or(0) - 5_000 } else { 0 };
        let skews = [skew(), skew()];
        let term = random.below(10);
        Scenario {
            job,
            calm,
            faults: if calm { random.between(1, 4) } else { random.between(1, 12) },
            fault_every: random.pick(&[2_000, 10_000, 30_000, 90_000]).unwrap_or(10_000),
            step_time: random.between(500, 4_000),
            import_time: random.between(200, 6_000),
            checkpoint_every: if random.percent(80) { random.between(3, 40) } else { 0 },
            save_time: random.between(100, 8_000),
            on_term: match term {
                0..6 => OnTerm::Drain,
                6..9 => OnTerm::Die,
                _ => OnTerm::Ignore,
            },
            peers_fail: random.percent(60),
            goal: (!calm && random.percent(30)).then(|| random.between(30, 400)),
            lag: random.pick(&[20, 300, 3_000]).unwrap_or(300),
            latency: random.pick(&[10, 200, 2_000]).unwrap_or(200),
            loss: if calm { 0 } else { random.pick(&[0, 0, 10, 40]).unwrap_or(0) },
            pull_time: random.between(500, 15_000),
            toleration: random.pick(&[20_000, 60_000, 300_000]).unwrap_or(60_000),
            skews,
            node_skew: if off { random.between(0, 30_000) } else { 0 },
            nodes: random.between(2, 5),
            native,
            kill: if random.percent(50) { random.between(1, 12) } else { 0 },
        }
    }
}

/// Members of a job that are no workers, where its smallest size leaves room for them and for one worker; often none.
fn types(random: &mut Random, min: u32) -> ReplicaTypes {
    let (chief, ps) = (random.percent(40), random.size(0, 2));
    let of = |name: &str, replicas| ReplicaType { name: name.to_owned(), replicas };
    let mut all = Vec::new();
    if chief && min > 1 {
        all.push(of(CHIEF, 1));
    }
    let room = min.saturating_sub(1 + u32::from(!all.is_empty()));
    if ps.min(room) > 0 {
        all.push(of("ps", ps.min(room)));
    }
    ReplicaTypes(all)
}

fn job(random: &mut Random, calm: bool) -> JobSpec {
    let min = random.size(1, 3);
    let replicas = min + random.size(0, 4);
    let max = replicas + random.size(0, 4);
    let request = WorkerRequest { cpu: 1.0, memory: 1e9, gpus: 0.0 };
    let restart = match random.below(6) {
        0 => RestartPolicy::Never,
        1 => RestartPolicy::ExitCode,
        _ => RestartPolicy::OnFailure,
    };
    let frameworks = [Framework::PyTorch, Framework::PyTorch, Framework::Jax, Framework::TensorFlow, Framework::Custom];
    JobSpec {
        key: JobKey { namespace: "team".into(), name: "sim".into() },
        uid: "job-uid".into(),
        generation: 1,
        created: Time(BEGIN),
        framework: random.pick(&frameworks).unwrap_or(Framework::PyTorch),
        replicas,
        min,
        max,
        legal: if random.percent(15) && min <= 2 && max >= 2 { LegalSizes::MultipleOf(2) } else { LegalSizes::Any },
        types: ReplicaTypes::default(),
        template: Some(TemplateFacts {
            hash: "t0".into(),
            request,
            containers: BTreeMap::from([("train".into(), request)]),
            processes: 1,
            processes_without_agent: 1,
            overridden: Vec::new(),
            command: true,
        }),
        restart,
        backoff_limit: if calm { 100 } else { random.size(0, 8) },
        suspend: false,
        active_deadline: (!calm && random.percent(5)).then(|| Duration::from_secs(random.between(60, 900))),
        ttl_after_finished: None,
        clean_pods: random.pick(&[CleanPods::Running, CleanPods::All]).unwrap_or_default(),
        scaling: None,
        placement: None,
        elasticity: Elasticity {
            hang_timeout: None,
            disruption_budget: true,
            start_deadline: Duration::from_secs(300),
            pending_deadline: Duration::from_secs(random.between(30, 120)),
            drain_deadline: Duration::from_secs(random.between(5, 30)),
            checkpoint_wait: Duration::from_secs(random.pick(&[0, 20, 60]).unwrap_or(60)),
            failure_window: random.percent(30).then(|| Duration::from_secs(random.between(60, 1_200))),
            failure_limits: if calm { BTreeMap::new() } else { limits(random) },
            ..Elasticity::default()
        },
    }
}

/// Most failures of some classes.
fn limits(random: &mut Random) -> BTreeMap<LossClass, u32> {
    let classes = [LossClass::ProcessFailed, LossClass::PodFailed, LossClass::NotStarted];
    let drawn: Vec<LossClass> = classes.into_iter().filter(|_| random.percent(10)).collect();
    drawn.into_iter().map(|class| (class, random.size(0, 4))).collect()
}
