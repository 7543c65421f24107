// Long because it is the job as one whole, with the documents of its fields.
//! What a user asked for: an `ElasticJob`, validated and with its defaults filled in.
//!
//! Adapters build a [`JobSpec`] from their own source (a Kubernetes object, a YAML file); from here on no
//! Kubernetes type appears.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

pub use eto_membership::{CHIEF, GlobalBatch, MAX_GLOBAL_BATCH, ReplicaType, ReplicaTypes, WORKER, is_default};
use serde::{Deserialize, Serialize};

use crate::contract::{Framework, MetricKind, MetricTarget, WorkerRequest};
use crate::state::LossClass;
use crate::time::Time;

/// Namespace and name of a job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct JobKey {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl fmt::Display for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// An elastic job as the engine knows it.
#[derive(Clone, Debug, PartialEq)]
pub struct JobSpec {
    /// Who it is.
    pub key: JobKey,
    /// `metadata.uid`: another job of the same name has another.
    pub uid: String,
    /// `metadata.generation`.
    pub generation: u64,
    /// `metadata.creationTimestamp`.
    pub created: Time,
    /// Which environment its workers get.
    pub framework: Framework,
    /// What the user set; the size at the start and by hand.
    pub replicas: u32,
    /// The effective range: the job's and the scaling policy's ranges intersected, `1 <= min <= max`.
    pub min: u32,
    /// Largest size.
    pub max: u32,
    /// Which sizes between them it may have.
    pub legal: LegalSizes,
    /// Members that are something else than workers, fewer than `min`: they have the first indexes, are in every round and
    /// are never given up. They count towards every size of the job.
    pub types: ReplicaTypes,
    /// `None` while `spec.template` is missing: the job waits and says so.
    pub template: Option<TemplateFacts>,
    /// What follows a failed worker.
    pub restart: RestartPolicy,
    /// Failures after which the job has failed.
    pub backoff_limit: u32,
    /// No pods while true; the target is kept.
    pub suspend: bool,
    /// How long it may be active before it has failed.
    pub active_deadline: Option<Duration>,
    /// How long after its end the job itself is deleted.
    pub ttl_after_finished: Option<Duration>,
    /// Which pods are deleted at its end.
    pub clean_pods: CleanPods,
    /// `spec.scalingPolicy`; `None` = sized by hand.
    pub scaling: Option<ScalingSpec>,
    /// `spec.placementPolicy`; `None` = the scheduler's choice.
    pub placement: Option<PlacementSpec>,
    /// `spec.elasticity`.
    pub elasticity: Elasticity,
}

/// What the engine needs to know of the pod template.
#[derive(Clone, Debug, PartialEq)]
pub struct TemplateFacts {
    /// Changes exactly when pods made from the template would differ; a change is a new round with new pods.
    pub hash: String,
    /// What one worker requests (its limit where it has no request), summed over its containers.
    pub request: WorkerRequest,
    /// The same for each container (restartable init containers among them), by name; 0.0 = neither request nor limit.
    pub containers: BTreeMap<String, WorkerRequest>,
    /// Processes that one worker runs where an agent or `eto run` starts what its command does not, at least 1.
    pub processes: u32,
    /// The same where there is the command alone, at least 1.
    pub processes_without_agent: u32,
    /// Variables of the first container, in the template of any role, that each round sets anew; sorted.
    pub overridden: Vec<String>,
    /// The first container has a `command`, in the template of every role: an agent can be put around it.
    pub command: bool,
}

impl JobSpec {
    /// Processes that one worker runs, at least 1: what sizes are legal by.
    pub fn processes(&self) -> u32 {
        self.processes_of_worker(false)
    }

    fn processes_of_worker(&self, alone: bool) -> u32 {
        let alone = alone || self.elasticity.agent == AgentChoice::Off;
        self.template.as_ref().map_or(1, |t| if alone { t.processes_without_agent } else { t.processes }.max(1))
    }

    /// Processes that the member with this index runs, at least 1. `alone`: there is the command alone, and neither an agent
    /// nor `eto run`.
    pub fn processes_of(&self, index: u32, alone: bool) -> u32 {
        if self.types.is_worker(index) { self.processes_of_worker(alone) } else { 1 }
    }

    /// Whether the member with this index may be given up: not the master, and only workers.
    pub fn may_give_up(&self, index: u32) -> bool {
        index != 0 && self.types.is_worker(index)
    }

    /// Index of the member whose success is the job's: the chief, else the master where there are workers alone. `None` =
    /// all workers have to succeed.
    pub fn leader(&self) -> Option<u32> {
        let master = match self.framework {
            Framework::PyTorch | Framework::TensorFlow | Framework::Jax => Some(0),
            Framework::Custom => None,
        };
        self.types.chief().or(master.filter(|_| self.types.is_empty()))
    }
}

/// Which sizes a job may have between its bounds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LegalSizes {
    /// Every size.
    #[default]
    Any,
    /// Ascending, without duplicates.
    List(Vec<u32>),
    /// Multiples of this, at least 1.
    MultipleOf(u32),
}

/// As in `batch/v1` and Kubeflow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RestartPolicy {
    /// A failed container restarts in place.
    #[default]
    OnFailure,
    /// A failed pod is replaced until `backoff_limit` failures.
    Never,
    /// As `Never`, but exit codes 1 to 127 are final and those from 128 (signals) are tried again.
    ExitCode,
}

/// Which pods are deleted when the job has finished.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CleanPods {
    /// Those still running.
    #[default]
    Running,
    /// All of them.
    All,
    /// None of them.
    None,
}

/// Who applies the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// Decide and act.
    #[default]
    Auto,
    /// Decide and show; do not act.
    Recommend,
    /// Do not ask.
    Off,
}

/// What happens while a policy can't answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailurePolicy {
    /// The size stays as it is.
    #[default]
    Hold,
    /// Ask the built-in `hpa` policy (needs `metrics`).
    BuiltIn,
}

/// `spec.scalingPolicy`.
#[derive(Clone, Debug, PartialEq)]
pub struct ScalingSpec {
    /// Name of the module to ask; `hpa` for `metrics[]` alone.
    pub module: String,
    /// Whether the user named a module (else HPA's defaults of `behavior` hold).
    pub own_module: bool,
    /// The config as a JSON object in text.
    pub config: String,
    /// `metrics[]`, as in HPA v2.
    pub metrics: Vec<MetricSpec>,
    /// `None` = the user gave none (HPA's legacy path for `metrics[]` alone).
    pub behavior: Option<Behavior>,
    /// Who applies the answer.
    pub mode: Mode,
    /// What happens while the policy can't answer.
    pub on_failure: FailurePolicy,
}

/// `spec.placementPolicy`.
#[derive(Clone, Debug, PartialEq)]
pub struct PlacementSpec {
    /// Name of the module to ask.
    pub module: String,
    /// The config as a JSON object in text.
    pub config: String,
    /// Who applies the answer.
    pub mode: Mode,
}

/// One entry of `metrics[]` (HPA v2).
#[derive(Clone, Debug, PartialEq)]
pub struct MetricSpec {
    /// `type` of the metric.
    pub kind: MetricKind,
    /// Resource or metric name as the user wrote it.
    pub name: String,
    /// `ContainerResource`: which container.
    pub container: Option<String>,
    /// Label selector of the metric (`Pods`, `Object`, `External`): exact matches.
    pub selector: BTreeMap<String, String>,
    /// The same: what can't be said by one value.
    pub expressions: Vec<LabelExpression>,
    /// `Object`: kind and name of the described object.
    pub object: Option<(String, String)>,
    /// What to aim at.
    pub target: MetricTarget,
}

/// A label that a series must have, or must not, as in metav1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelExpression {
    /// Name of the label.
    pub key: String,
    /// Which values it may have.
    pub is: LabelIs,
}

/// Which values a label may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LabelIs {
    /// One of these.
    In(Vec<String>),
    /// None of these; it may be missing.
    NotIn(Vec<String>),
    /// Any.
    Exists,
    /// None at all.
    DoesNotExist,
}

/// HPA's `behavior`, with HPA's defaults filled in where the user left fields out.
#[derive(Clone, Debug, PartialEq)]
pub struct Behavior {
    /// `scaleUp`.
    pub up: ScalingRules,
    /// `scaleDown`.
    pub down: ScalingRules,
}

/// `behavior.scaleUp` / `behavior.scaleDown`.
#[derive(Clone, Debug, PartialEq)]
pub struct ScalingRules {
    /// `stabilizationWindowSeconds`, 0 to 3600 s.
    pub stabilization: Duration,
    /// `selectPolicy`.
    pub select: SelectPolicy,
    /// `policies`; empty = no rate limit.
    pub policies: Vec<RatePolicy>,
    /// Relative; 0.1 by default.
    pub tolerance: f64,
}

/// `selectPolicy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SelectPolicy {
    /// The policy that allows the largest change.
    #[default]
    Max,
    /// The policy that allows the smallest change.
    Min,
    /// No change in this direction.
    Disabled,
}

/// One rate: so much change within so much time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RatePolicy {
    /// Unit of `value`.
    pub kind: RateKind,
    /// How much may change within the period, above 0.
    pub value: u32,
    /// `periodSeconds`, 1 to 1800 s.
    pub period: Duration,
}

/// What a rate counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateKind {
    /// Workers.
    Pods,
    /// Per cent of the size at the beginning of the period.
    Percent,
}

/// `spec.elasticity`: how resizes are carried out.
#[derive(Clone, Debug, PartialEq)]
pub struct Elasticity {
    /// How long the pods of a round may take to reach the minimum before all are released and tried again.
    pub start_deadline: Duration,
    /// How long a worker of a growth may stay pending before the target is taken back.
    pub pending_deadline: Duration,
    /// How long pods get to stop (their `terminationGracePeriodSeconds` bounds it).
    pub drain_deadline: Duration,
    /// Whether an agent may drive rounds.
    pub agent: AgentChoice,
    /// Who changes the members of a round.
    pub mode: ElasticityMode,
    /// Who starts again when a worker is lost.
    pub restart_scope: RestartScope,
    /// How long a planned change waits for a checkpoint, where members tell of checkpoints.
    pub checkpoint_wait: Duration,
    /// Without progress for this long a round counts as hung, where members tell of progress; `None` = never. Less than
    /// 30 s is taken as 30 s.
    pub hang_timeout: Option<Duration>,
    /// The same before the first progress of a round, where that was told in earlier ones; `None` = three times
    /// `hang_timeout`, and 15 min at least.
    pub hang_start_timeout: Option<Duration>,
    /// What follows a container that ran out of memory; `None` = it starts again with what it had.
    pub memory_growth: Option<MemoryGrowth>,
    /// Members that are much slower than the others for long are replaced.
    pub replace_stragglers: bool,
    /// Failures are forgotten after so long; `None` = never.
    pub failure_window: Option<Duration>,
    /// Failures of a class that the job may have, beside its back-off limit, which counts all of them.
    pub failure_limits: BTreeMap<LossClass, u32>,
    /// The last lines of workers that failed are kept in the status.
    pub failure_logs: bool,
    /// Samples of one optimiser step over all processes, where a resize is not to change them.
    pub batch: Option<GlobalBatch>,
    /// Whether evictions are held to a budget, see [`crate::plan::budget`].
    pub disruption_budget: bool,
}

/// `spec.elasticity.memoryGrowth`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryGrowth {
    /// How much more each time, 1 to 400.
    pub percent: u32,
    /// Never more than this, in bytes.
    pub max_bytes: u64,
}

/// `spec.elasticity.agent`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AgentChoice {
    /// Where there is a gateway and a command.
    #[default]
    Auto,
    /// Pods are recreated for each round.
    Off,
}

/// `spec.elasticity.mode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ElasticityMode {
    /// All processes are started anew for each round.
    #[default]
    Rounds,
    /// `torchrun` takes members in and lets them go by itself, where it is the command and any size will do.
    Native,
}

/// `spec.elasticity.restartScope`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RestartScope {
    /// All members of the round: none can go on without the others.
    #[default]
    Group,
    /// The worker that was lost; the others go on.
    Pod,
}

impl Default for Elasticity {
    fn default() -> Self {
        Elasticity {
            start_deadline: Duration::from_secs(600),
            pending_deadline: Duration::from_secs(120),
            drain_deadline: Duration::from_secs(30),
            agent: AgentChoice::Auto,
            mode: ElasticityMode::Rounds,
            restart_scope: RestartScope::Group,
            checkpoint_wait: Duration::from_secs(60),
            hang_timeout: None,
            hang_start_timeout: None,
            replace_stragglers: false,
            failure_window: None,
            failure_limits: BTreeMap::new(),
            failure_logs: true,
            memory_growth: None,
            batch: None,
            disruption_budget: true,
        }
    }
}
