//! The Kubernetes API of the product, `elastic.ai/v1alpha1`: types only.
//!
//! Two rules hold for every type here:
//! - **One broken object never breaks a list.** A watch decodes all objects with one type, so an object that does not
//!   fit (stored under an older schema, or written by a newer operator) must decode all the same. A spec that does not
//!   fit becomes an empty one with [`ElasticJobSpec::undecodable`] set, a status that does not fit counts as lost.
//! - **Parts of the pod are not typed here.** `template`, `affinity`, `volumes` and the other core/v1 parts are kept
//!   as JSON and checked when a pod is built. That keeps the CRD small (plain `kubectl apply` stores it in an
//!   annotation of at most 256 KiB) and accepts fields of Kubernetes versions to come.

mod crd;
mod decode;
mod job;
pub mod labels;
mod lenient;
mod scaling;
mod schema;
mod status;

pub use crd::{MAX_NAME, MAX_TENSORFLOW_WORKERS, MAX_WORKERS, crd};
pub use decode::{Misfit, decode};
pub use job::{
    AgentMode, BudgetMode, Checkpointing, CleanPodPolicy, ElasticJob, ElasticJobSpec, Elasticity, ElasticityMode,
    FailureLimits, FrameworkType, Launcher, Master, MemoryGrowth, ReplicaSizes, ReplicaType, RestartPolicy,
    RestartScope, SchedulingPolicy,
};
pub use scaling::{
    Behavior, ContainerResourceMetric, DescribedObject, ExternalMetric, FailurePolicy, MetricIdentifier, MetricSpec,
    MetricTarget, ObjectMetric, PlacementPolicy, PodsMetric, PolicyMode, RatePolicy, ResourceMetric, ScalingPolicy,
    ScalingRules,
};
pub use status::{
    AgentRoundStatus, ChangeStatus, ChargeStatus, CheckpointStatus, CircuitStatus, Condition, DecisionStatus,
    ElasticJobStatus, FailedWorkerStatus, FailureStatus, GrownMemoryStatus, HistoryStatus, LimitStatus, MemoryStatus,
    NativeRunStatus, PlacedOnStatus, PlacementStatus, PolicyRef, PolicyStateStatus, ReasonStatus, ResizeStatus,
    RoundMemberStatus, RoundStatus, SignalStatus, SizeAt, StragglerStatus, VictimStatus,
};

/// API group.
pub const GROUP: &str = "elastic.ai";
/// API version.
pub const VERSION: &str = "v1alpha1";
