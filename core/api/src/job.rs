//! `ElasticJob`: what a training user writes.
#![allow(clippy::duplicated_attributes)] // Several printer columns have the same type.

mod failures;

pub use failures::{FailureLimits, RestartScope};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::scaling::{PlacementPolicy, ScalingPolicy};
use crate::schema;
use crate::status::ElasticJobStatus;

/// What an elastic training job is to be.
///
/// Numbers are `i64` so that any value decodes; their ranges are in the schema and are checked again when the job is
/// read.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "elastic.ai",
    version = "v1alpha1",
    kind = "ElasticJob",
    plural = "elasticjobs",
    shortname = "ej",
    category = "all",
    namespaced,
    status = "ElasticJobStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "A distributed training job whose number of workers can change while it runs.",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Desired", type_ = "integer", json_path = ".status.targetReplicas"),
    printcolumn(name = "Ready", type_ = "integer", json_path = ".status.readyReplicas"),
    printcolumn(name = "Min", type_ = "integer", json_path = ".status.minReplicas"),
    printcolumn(name = "Max", type_ = "integer", json_path = ".status.maxReplicas"),
    printcolumn(name = "Policy", type_ = "string", json_path = ".status.policy"),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.lastDecision.reasons[0].message",
        priority = 1
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase", remote = "Self")]
#[schemars(!remote, extend("x-kubernetes-validations" = crate::crd::spec_rules()))]
pub struct ElasticJobSpec {
    /// Workers at the start and by hand (the scale subresource), the master among them. At least 1; to stop a job
    /// set `suspend`. Default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100_000), default = "one", with = "i64")]
    pub replicas: Option<i64>,
    /// Fewest workers the job can train with. Default: `replicas`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub min_replicas: Option<i64>,
    /// Most workers the job can make use of. Default: `replicas`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub max_replicas: Option<i64>,
    /// Framework of the training program; decides which environment variables a worker gets. It can't be changed.
    /// Default `PyTorch`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub framework_type: Option<FrameworkType>,
    /// Processes that each worker runs, as in Kubeflow: started by the agent, or by the `torchrun` of the template's
    /// command. 1 to 1024, or `gpu` or `cpu` for one per GPU or whole CPU that the template's first container asks for, or
    /// `auto` for one per GPU, or per CPU where it asks for none. Default: `PET_NPROC_PER_NODE` of that container, else 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::processes")]
    pub nproc_per_node: Option<IntOrString>,
    /// Which sizes between the bounds are legal. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica_sizes: Option<ReplicaSizes>,
    /// Pod template of the workers, as in core/v1. While it is missing the job waits. A change makes a new round of
    /// new pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_object")]
    pub template: Option<Value>,
    /// The worker with index 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master: Option<Master>,
    /// Members that are something else than workers: a chief, parameter servers, an evaluator. Their number is fixed and
    /// counts towards every size of the job; all other members are workers. In the order of this list they have the
    /// first indexes; they are in every round and never given up. Needs frameworkType TensorFlow or Custom; names and
    /// numbers can't be changed. Default: all are workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub replica_types: Option<Vec<ReplicaType>>,
    /// What happens when a worker fails. Default `OnFailure`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_policy: Option<RestartPolicy>,
    /// Failures after which the job has failed. Losses that are nobody's fault and resizes are not counted. Default 6.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2_147_483_647_i64))]
    pub backoff_limit: Option<i64>,
    /// Short form of the template's `affinity`, as in core/v1; a part that the template has too is the template's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_object")]
    pub affinity: Option<Value>,
    /// Short form of the template's `topologySpreadConstraints`, as in core/v1. One without a selector means the pods
    /// of this job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_objects")]
    pub topology_spread_constraints: Option<Value>,
    /// Short form of the template's `volumes`, as in core/v1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_objects")]
    pub volumes: Option<Value>,
    /// Volume mounts for all containers of the template, as in core/v1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_objects")]
    pub volume_mounts: Option<Value>,
    /// Environment variables for all containers of the template, as in core/v1; a variable that a container sets
    /// itself is the container's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_objects")]
    pub env: Option<Value>,
    /// Who decides how many workers there are. Missing: `replicas` alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaling_policy: Option<ScalingPolicy>,
    /// Who decides where workers run and which are given up. Missing: the scheduler, and the newest first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement_policy: Option<PlacementPolicy>,
    /// How resizes are carried out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elasticity: Option<Elasticity>,
    /// Stop the job and keep its progress; its pods are deleted. Default false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,
    /// Delete the job this many seconds after it has finished. Default: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2_147_483_647_i64))]
    pub ttl_seconds_after_finished: Option<i64>,
    /// Which pods are deleted when the job has finished. Default `Running`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clean_pod_policy: Option<CleanPodPolicy>,
    /// The job fails if it has not finished this many seconds after its start. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub active_deadline_seconds: Option<i64>,
    /// How the pods are queued and ranked by the cluster's scheduler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduling_policy: Option<SchedulingPolicy>,

    /// Why the object could not be decoded; everything else is empty then. Never stored.
    #[serde(skip)]
    pub undecodable: Option<String>,
}

#[allow(clippy::unnecessary_wraps)] // A default has the type of its field.
fn one() -> Option<i64> {
    Some(1)
}

/// Framework of a training program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum FrameworkType {
    PyTorch,
    TensorFlow,
    JAX,
    Custom,
}

/// Legal sizes: a list, or multiples of a number.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = crate::crd::sizes_rules()))]
pub struct ReplicaSizes {
    /// Exactly these sizes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1000), inner(range(min = 1, max = 100_000)))]
    pub list: Option<Vec<i64>>,
    /// Multiples of this number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub multiple_of: Option<i64>,
}

/// The worker with index 0: it has rank 0, the role label `master`, and is never given up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Master {
    /// Pod template of its own, as in core/v1. Default: the workers' template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_object")]
    pub template: Option<Value>,
}

/// Members of one type.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaType {
    /// `chief`, `ps` or `evaluator`; with frameworkType Custom any name but `worker` and `master`. The role label of its
    /// pods, and a part of their names. The job has succeeded when its `chief` has, where there is one, else when all
    /// workers have.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// How many there are. Default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000), default = "one", with = "i64")]
    pub replicas: Option<i64>,
    /// Pod template of its own, as in core/v1, so that it need not have what workers need, such as a GPU. Default: the
    /// workers' template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_object")]
    pub template: Option<Value>,
}

/// What happens when a worker fails, as in batch/v1 and Kubeflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RestartPolicy {
    /// The failed container restarts in its pod.
    OnFailure,
    /// The failed pod is replaced.
    Never,
    /// As `Never`; exit codes from 1 to 127 are final, from 128 (signals) on it is replaced.
    ExitCode,
}

/// Which pods are deleted when a job has finished, as in Kubeflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum CleanPodPolicy {
    /// Those that still run.
    Running,
    All,
    None,
}

/// How resizes are carried out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = crate::crd::elasticity_rules()))]
pub struct Elasticity {
    /// Whether an agent in the pods drives rounds where one is there. The condition `AgentRounds` says which way is
    /// taken and why. `Auto` or `"Off"` (in quotes: YAML reads a bare Off as false). Default `Auto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentMode>,
    /// Who changes the members while a job trains. `Rounds`: all processes stop and start anew, which is the fastest way
    /// and works with every framework. `Native`: `torchrun` takes members in and lets them go by itself, as its own
    /// elasticity does; needs an agent, frameworkType PyTorch, `torchrun` (or `python -m torch.distributed.run`) as the
    /// command of all workers, and neither replicaSizes nor globalBatchSize. Where that is not so, `Rounds` it is, and the
    /// condition `AgentRounds` says why. A change counts from the next round that all start in. Default `Rounds`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<ElasticityMode>,
    /// Who starts again when a worker is lost, where an agent drives rounds. `Group`: all members, since the collectives of
    /// PyTorch, JAX and TensorFlow go on with all of them or not at all. `Pod`: the worker alone, with the rank that it had;
    /// for workers that do not wait for each other. The loss of the coordinator, another size and another template start
    /// all of them anew in any case. Default `Group`; with `mode: Native` it is `torchrun` that restarts what it has to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_scope: Option<RestartScope>,
    /// How long workers get to stop, in seconds; the pods' `terminationGracePeriodSeconds` unless the template sets
    /// it. Default 30.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86_400))]
    pub drain_deadline_seconds: Option<i64>,
    /// How long the pods of a round may take to reach the minimum before all are released and tried again, in
    /// seconds. Default 600.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 604_800))]
    pub round_timeout_seconds: Option<i64>,
    /// How long a worker of a growth may wait for a node before the growth is taken back, in seconds. Default 120.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 604_800))]
    pub pending_deadline_seconds: Option<i64>,
    /// Checkpoints that the training program tells of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Checkpointing>,
    /// Samples of one optimiser step over all processes. With it, a size is legal only if its processes can share them
    /// evenly, and the scripts are told their part as `ETO_GLOBAL_BATCH_SIZE`, `ETO_MICRO_BATCH_SIZE` and
    /// `ETO_GRADIENT_ACCUMULATION_STEPS`, whose product over all processes is always this number. A change counts from
    /// the next round on. Default: the scripts' own affair.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub global_batch_size: Option<i64>,
    /// Most samples that one process can take at once: a larger share of `globalBatchSize` is gone through in equal
    /// pieces, whose gradients are added up. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub max_micro_batch_size: Option<i64>,
    /// Without progress for this long a round counts as hung: its processes are started again from the last checkpoint,
    /// which counts as a failure. Acts where an agent drives rounds and the script has told its progress in the round.
    /// In seconds; less than 30 is taken as 30. Choose more than the longest pause between two reports of progress
    /// (an evaluation, a checkpoint). Default: no detection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 604_800))]
    pub hang_timeout_seconds: Option<i64>,
    /// The same for the time from the start of a round's processes to the first progress that they tell: they load
    /// their data and their checkpoint, and compile. Acts where the script has told progress in an earlier round.
    /// Never less than `hangTimeoutSeconds`. Default: three times `hangTimeoutSeconds`, and 900 at least.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 604_800))]
    pub hang_start_timeout_seconds: Option<i64>,
    /// Failures older than this are forgotten, and count neither for `backoffLimit` nor for `failureLimits`. In seconds.
    /// Default: none is forgotten.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 60, max = 31_536_000))]
    pub failure_window_seconds: Option<i64>,
    /// Most failures of a class, beside `backoffLimit`, which is the most of all of them. One more ends the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_limits: Option<FailureLimits>,
    /// Keep the last lines of workers that failed: in their pods (`terminationMessagePolicy: FallbackToLogsOnError`, where
    /// the template says nothing of it), and the last three in `status.history`. Whoever can read the job can read them
    /// there. Default true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_failure_logs: Option<bool>,
    /// Replace a worker that is much slower than the others for long (`status.stragglers`), once its round has run for half
    /// an hour, where the others are enough to train on. The master stays. Default false: they are told of, and no more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replace_stragglers: Option<bool>,
    /// What follows a training container that ran out of memory. Default: it starts again with what it had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_growth: Option<MemoryGrowth>,
    /// Whether the job gets a `PodDisruptionBudget`: of a round above `minReplicas` as many workers may be evicted at a time
    /// as it has beyond it, of one at the minimum one at a time. None is made where another budget selects the pods.
    /// `Auto` or `"Off"` (in quotes: YAML reads a bare Off as false). Default `Auto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_disruption_budget: Option<BudgetMode>,
}

/// More memory for workers that ran out of it. The training container (the first) needs a memory limit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MemoryGrowth {
    /// How much more the worker in its place gets each time, in per cent of its limit; its request grows in proportion.
    /// Default 50.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 400))]
    pub percent: Option<i64>,
    /// The limit never becomes more than this quantity, such as `64Gi`.
    #[schemars(schema_with = "schema::quantity")]
    pub max_memory: Value,
}

/// Who changes the members while a job trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ElasticityMode {
    /// All processes stop, and start in the next round.
    Rounds,
    /// `torchrun` does, by itself.
    Native,
}

/// What a job does about checkpoints. Acts where the training program tells its agent of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Checkpointing {
    /// How long a planned change of the workers waits for a checkpoint newer than the last, in seconds; 0 = it does
    /// not wait. Default 60.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 604_800))]
    pub max_wait_seconds: Option<i64>,
}

/// Whether evictions are held to a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum BudgetMode {
    Auto,
    Off,
}

/// Whether an agent drives rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AgentMode {
    Auto,
    Off,
}

/// How pods are queued and ranked, as in Kubeflow and Volcano.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SchedulingPolicy {
    /// Volcano queue; written to the annotation `scheduling.volcano.sh/queue-name` of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub queue: Option<String>,
    /// Priority class of the pods unless the template has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub priority_class: Option<String>,
    /// `elasticity.roundTimeoutSeconds` under Kubeflow's name; that one wins where both are set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 604_800))]
    pub schedule_timeout_seconds: Option<i64>,
}
