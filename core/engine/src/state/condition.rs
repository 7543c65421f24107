//! What is told to people.

use serde::{Deserialize, Serialize};

use crate::time::Time;

/// A condition as in `metav1.Condition`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    /// Which condition.
    pub kind: ConditionKind,
    /// Whether it holds.
    pub status: bool,
    /// Why.
    pub reason: ConditionReason,
    /// The same for people.
    pub message: String,
    /// When `status` last changed.
    pub since: Time,
}

/// The closed set of condition types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ConditionKind {
    /// The job was accepted.
    Created,
    /// All workers have a node.
    Scheduled,
    /// All workers are at work.
    Running,
    /// A resize is in flight.
    Resizing,
    /// A round starts again after a loss.
    Restarting,
    /// `spec.suspend` is true; there are no pods.
    Suspended,
    /// The end: the work is done.
    Succeeded,
    /// The end: it can't be done.
    Failed,
    /// The size can be computed (HPA's meaning).
    ScalingActive,
    /// A limit changed the proposed size (HPA's meaning).
    ScalingLimited,
    /// The policy answers.
    PolicyHealthy,
    /// True: rounds are driven by an agent in the pods; False: pods are recreated per round.
    AgentRounds,
    /// True: members tell of their checkpoints; False: a restart loses what was trained, as far as is known.
    CheckpointsReported,
    /// False: a part of the template gives way to what the operator sets.
    TemplateApplied,
}

/// The closed set of condition reasons. HPA's names where HPA has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ConditionReason {
    // life
    /// The job was accepted.
    JobCreated,
    /// `spec.template` is missing.
    TemplateMissing,
    /// The spec contradicts itself.
    InvalidSpec,
    /// The scheduler finds no node for a worker.
    PodsUnschedulable,
    /// The API server refuses to make pods.
    PodsRefused,
    /// The API server (or a webhook that it asks) fails each time pods are to be made.
    PodsNotCreated,
    /// All workers have a node.
    AllScheduled,
    /// Not all workers are there yet.
    WaitingForPods,
    /// A container can't be started, and the kubelet says why.
    ContainersWaiting,
    /// The next try waits for its back-off.
    BackOff,
    /// All workers are ready.
    AllReady,
    /// The job has ended.
    NotRunning,
    /// A resize is in flight.
    ResizeStarted,
    /// The last resize is done.
    ResizeDone,
    /// There was no resize.
    NoResize,
    /// A worker failed or went away.
    WorkerLost,
    /// The workers made no progress any more.
    Hung,
    /// The workers did not start in time.
    StartTimedOut,
    /// All workers are back.
    Recovered,
    /// Nothing was lost.
    NotRestarting,
    /// `spec.suspend` is true.
    SuspendedByUser,
    /// `spec.suspend` is false.
    NotSuspended,
    /// The work is done.
    JobSucceeded,
    /// More failures than `backoffLimit`.
    BackoffLimitExceeded,
    /// More failures of one class than `elasticity.failureLimits` has for it.
    FailureLimitExceeded,
    /// Active longer than `activeDeadlineSeconds`.
    DeadlineExceeded,
    /// Restart policy `ExitCode` and an exit code of 1 to 127.
    NonRetryableExit,
    // scaling
    /// The size can be computed.
    ValidMetricFound,
    /// There is no scaling policy, or its mode is Off.
    ScalingDisabled,
    /// A Resource metric has no value.
    FailedGetResourceMetric,
    /// A `ContainerResource` metric has no value.
    FailedGetContainerResourceMetric,
    /// A Pods metric has no value.
    FailedGetPodsMetric,
    /// An Object metric has no value.
    FailedGetObjectMetric,
    /// An External metric has no value.
    FailedGetExternalMetric,
    /// A utilisation needs a request that a container lacks.
    MissingRequest,
    /// Nothing serves this metric.
    InvalidMetricSourceType,
    /// The policy refuses its config.
    InvalidConfig,
    /// No module of that name is served.
    PolicyMissing,
    /// The policy did not answer.
    PolicyFailed,
    /// The policy failed too often and is not asked for a while.
    CircuitOpen,
    /// The policy answers.
    PolicyAnswers,
    /// No policy was asked.
    NotAsked,
    /// No limit changed the proposed size.
    DesiredWithinRange,
    /// See `Limiter`.
    TooFewReplicas,
    /// See `Limiter`.
    TooManyReplicas,
    /// See `Limiter`.
    ScaleUpLimit,
    /// See `Limiter`.
    ScaleDownLimit,
    /// See `Limiter`.
    ScaleUpStabilized,
    /// See `Limiter`.
    ScaleDownStabilized,
    /// See `Limiter`.
    LegalSize,
    /// See `Limiter` (`SignalHold` too).
    SignalQuality,
    /// See `Limiter`.
    SourceRecovering,
    /// See `Limiter`.
    StateRecovering,
    /// See `Limiter`.
    ResizeInFlight,
    /// See `Limiter`.
    CoolDown,
    /// See `Limiter`; of a resize: it was taken back.
    GrowthRefused,
    /// See `Limiter`.
    RecommendOnly,
    // rounds
    /// No membership gateway is set up: pods are recreated for each round.
    NoAgent,
    /// `spec.elasticity.agent` is Off.
    AgentOff,
    /// The template's first container has no `command` that an agent could be put around, and images are not read.
    NoCommand,
    /// The image of a template without `command` is being asked for its own; pods are made when it is known.
    ReadingImage,
    /// It could not be had.
    ImageNotRead,
    /// An agent in the pods drives rounds.
    AgentDrivesRounds,
    /// The round that stands goes on as it was begun; the next new pods change the way.
    ModeKept,
    /// `torchrun` changes the members of the round by itself.
    NativeElasticity,
    /// `spec.elasticity.mode` is Native, and the command of a worker is no `torchrun`.
    NotTorchrun,
    /// `spec.elasticity.mode` is Native, and not every size will do.
    SizesNotNative,
    /// The gateway's etcd is away: pods are recreated for each round until it is back.
    GatewayNotReached,
    // checkpoints
    /// Members tell of their checkpoints.
    CheckpointTold,
    /// No member has told of any.
    NoCheckpoint,
    // template
    /// The template sets variables that belong to the operator.
    RankVariablesOverridden,
    /// Nothing of the template gives way.
    TemplateAsWritten,
}
