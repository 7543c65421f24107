//! What is remembered of a job between looks: the durable part (status) and the volatile part (memory).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::contract::KeptState;
use crate::decision::Decision;
use crate::time::Time;

/// Where a job is in its life. Terminal phases are terminal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Phase {
    /// Seen; its pods are not all there yet, or its template is missing.
    #[default]
    Pending,
    /// The pods of a round exist and are on their way to Ready.
    Starting,
    Running,
    /// Going from one size (or template) to another.
    Resizing,
    /// Coming back after a loss.
    Restarting,
    Suspended,
    Succeeded,
    Failed,
}

impl Phase {
    pub fn is_terminal(self) -> bool {
        matches!(self, Phase::Succeeded | Phase::Failed)
    }
}

/// Everything durable about a job; adapters keep it (in `status`) and hand it back. If it is lost it is rebuilt from
/// the live pods (`plan::recover`), never by shrinking to `spec.replicas`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobState {
    pub phase: Phase,
    /// The size aimed at; 0 = not decided yet.
    pub target: u32,
    /// The `spec.replicas` that `target` was last based on; when the user changes it the target is re-based.
    pub based_on: u32,
    pub round: Option<RoundState>,
    /// Generation of the last round there was; 0 = none yet. Kept while there is no round (suspended), so that
    /// generations never repeat.
    pub last_generation: u64,
    /// Workers to be given up, named before they are touched.
    pub victims: Vec<Victim>,
    /// Failures charged to `backoffLimit`: one for each round that ended by a fault of the job's own and one for each
    /// time its containers restarted in place, however many peers went down with the first.
    pub failures: u32,
    /// Losses that were nobody's fault (evictions, deletions, lost nodes); never charged.
    pub disruptions: u32,
    /// Rounds in a row that ended before they had run for a while; sets the back-off.
    pub start_attempts: u32,
    /// No new round before this.
    pub not_before: Option<Time>,
    pub last_resize: Option<ResizeRecord>,
    /// When the first round was decided (again after a suspension); `activeDeadlineSeconds` counts from here.
    pub started_at: Option<Time>,
    pub finished_at: Option<Time>,
    /// One sentence on the end, for people.
    pub message: Option<String>,
    pub conditions: Vec<Condition>,
}

/// The present round, as kept in status.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundState {
    pub generation: u64,
    pub size: u32,
    pub template_hash: String,
    /// When it was decided.
    pub since: Time,
    /// When all of its workers were ready; `None` = not yet.
    pub running_since: Option<Time>,
    pub cause: RoundCause,
    /// When all of its pods were seen to exist; `None` = not yet. Before it a missing pod is made, after it a missing
    /// pod is a loss.
    #[serde(default)]
    pub complete: Option<Time>,
    /// A pod of it was told to wait for a certain node.
    #[serde(default)]
    pub required_nodes: bool,
    /// Indexes below the highest member that are not in the round (their workers were given up). Empty in most
    /// rounds: the members are then 0 to `size` - 1.
    #[serde(default)]
    pub gaps: Vec<u32>,
    /// Restarts in place that were charged in this round.
    #[serde(default)]
    pub restarts_charged: u32,
}

/// Why a round began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RoundCause {
    Start,
    Grow,
    Shrink,
    TemplateChanged,
    WorkerLost,
    Resumed,
    /// The round before did not reach its minimum in time.
    StartTimedOut,
    /// The pods of a growth did not get a node in time.
    GrowthRefused,
}

/// A worker to be given up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Victim {
    pub pod: String,
    pub uid: String,
    pub index: u32,
    pub reason: String,
}

/// A resize, in flight or done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResizeRecord {
    pub from: u32,
    pub to: u32,
    pub decided: Time,
    /// When all workers of the new size were ready; `None` = in flight.
    pub done: Option<Time>,
    /// The cluster did not have room (or quota) and it was taken back.
    pub refused: bool,
    /// Refused growths in a row, this one counted; 0 if this one was not refused.
    #[serde(default)]
    pub refusals: u32,
}

/// A condition as in `metav1.Condition`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    pub kind: ConditionKind,
    pub status: bool,
    pub reason: ConditionReason,
    pub message: String,
    /// When `status` last changed.
    pub since: Time,
}

/// The closed set of condition types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ConditionKind {
    Created,
    Scheduled,
    Running,
    Resizing,
    Restarting,
    Suspended,
    Succeeded,
    Failed,
    ScalingActive,
    ScalingLimited,
    PolicyHealthy,
    /// True: rounds are driven by an agent in the pods; False: pods are recreated per round.
    AgentRounds,
}

/// The closed set of condition reasons. HPA's names where HPA has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ConditionReason {
    // life
    JobCreated,
    TemplateMissing,
    InvalidSpec,
    PodsCreated,
    PodsUnschedulable,
    PodsRefused,
    AllScheduled,
    WaitingForPods,
    AllReady,
    NotRunning,
    ResizeStarted,
    ResizeDone,
    NoResize,
    WorkerLost,
    StartTimedOut,
    Recovered,
    NotRestarting,
    SuspendedByUser,
    NotSuspended,
    JobSucceeded,
    BackoffLimitExceeded,
    DeadlineExceeded,
    NonRetryableExit,
    NotFinished,
    // scaling
    ValidMetricFound,
    ScalingDisabled,
    FailedGetResourceMetric,
    FailedGetContainerResourceMetric,
    FailedGetPodsMetric,
    FailedGetObjectMetric,
    FailedGetExternalMetric,
    MissingRequest,
    InvalidMetricSourceType,
    InvalidConfig,
    PolicyMissing,
    PolicyFailed,
    CircuitOpen,
    PolicyAnswers,
    NotAsked,
    DesiredWithinRange,
    TooFewReplicas,
    TooManyReplicas,
    ScaleUpLimit,
    ScaleDownLimit,
    ScaleUpStabilized,
    ScaleDownStabilized,
    LegalSize,
    SignalQuality,
    SourceRecovering,
    StateRecovering,
    ResizeInFlight,
    CoolDown,
    GrowthRefused,
    RecommendOnly,
    // rounds
    NoAgent,
}

/// The volatile part: history that the guard needs. Kept in memory and saved now and then beside the policy's state;
/// after a restart without it there is no shrink for one stabilisation window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// When this memory began (operator start, or first sight of the job); see [`Memory::new`].
    pub since: Time,
    pub sequence: u64,
    /// HPA's recommendations: unstabilised targets.
    pub recommendations: Vec<(Time, u32)>,
    /// HPA's scale events: sizes added and removed.
    pub ups: Vec<(Time, u32)>,
    pub downs: Vec<(Time, u32)>,
    pub policy_state: Option<KeptState>,
    /// Name of the policy that wrote it; another policy is not given it.
    #[serde(default)]
    pub policy_state_of: Option<String>,
    /// Failures in a row and open circuits, by module digest.
    pub circuits: BTreeMap<String, Circuit>,
    /// Past means per signal name, oldest first, for policies that asked for history.
    pub history: BTreeMap<String, Vec<(Time, f64)>>,
    pub last: Option<Decision>,
}

impl Memory {
    /// A memory that begins now: nothing is known of what was before.
    pub fn new(now: Time) -> Self {
        Memory { since: now, ..Memory::default() }
    }
}

/// Circuit breaker of one policy digest for one job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Circuit {
    pub failures: u32,
    /// Not asked again before this; then one half-open try.
    pub open_until: Option<Time>,
}
