//! `ElasticJob`: what a training user writes.
#![allow(clippy::duplicated_attributes)] // Several printer columns have the same type.

mod elasticity;
mod failures;

pub use elasticity::{AgentMode, BudgetMode, Checkpointing, Elasticity, ElasticityMode, MemoryGrowth};
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
    /// Processes that each worker runs, as in Kubeflow; `launcher` says who starts them. 1 to 1024, or `gpu` or `cpu` for
    /// one per GPU or whole CPU that the template's first container asks for, or `auto` for one per GPU, or per CPU where it
    /// asks for none. Default: `PET_NPROC_PER_NODE` of that container, else what its `torchrun` is given. With PyTorch and
    /// none of these one per GPU where the command is `torchrun` or Python's (without an agent: `torchrun`'s alone), else 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::processes")]
    pub nproc_per_node: Option<IntOrString>,
    /// Who starts the processes of a worker. `Command`: the template's command does, as `torchrun` or `mpirun`; it is started
    /// once. `Agent`: the agent (or `eto run`) starts the command once for each process. Default: `Command` where the command
    /// is `torchrun`, `accelerate`, `deepspeed`, `horovodrun` or `mpirun`, or a shell script that calls one, else `Agent`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launcher: Option<Launcher>,
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

/// The worker with index 0: it has the role label `master`, and is never given up. It has rank 0 until it is lost; with an
/// agent another worker has it from then on.
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

/// Who starts the processes of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Launcher {
    Agent,
    Command,
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
