//! What is remembered of a job between looks: the durable part (status) and the volatile part (memory).

use std::collections::BTreeMap;
use std::time::Duration;

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
    /// All workers are at work.
    Running,
    /// Going from one size (or template) to another.
    Resizing,
    /// Coming back after a loss.
    Restarting,
    /// `spec.suspend` is true; there are no pods.
    Suspended,
    /// The end: the work is done.
    Succeeded,
    /// The end: it can't be done.
    Failed,
}

impl Phase {
    /// Whether the job has ended.
    pub fn is_terminal(self) -> bool {
        matches!(self, Phase::Succeeded | Phase::Failed)
    }
}

/// Everything durable about a job; adapters keep it (in `status`) and hand it back. If it is lost it is rebuilt from
/// the live pods (`plan::recover`), never by shrinking to `spec.replicas`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobState {
    /// Where it is in its life.
    pub phase: Phase,
    /// The size aimed at; 0 = not decided yet.
    pub target: u32,
    /// The `spec.replicas` that `target` was last based on; when the user changes it the target is re-based.
    pub based_on: u32,
    /// The present round; `None` before the first and while suspended.
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
    /// The last resize, in flight or done; `None` = there was none.
    pub last_resize: Option<ResizeRecord>,
    /// The change of members that is on its way, with how far it is. Rounds with an agent alone; `None` = none.
    pub change: Option<Change>,
    /// When the first round was decided (again after a suspension); `activeDeadlineSeconds` counts from here.
    pub started_at: Option<Time>,
    /// When it came to its end.
    pub finished_at: Option<Time>,
    /// One sentence on the end, for people.
    pub message: Option<String>,
    /// What is told to people, one per kind.
    pub conditions: Vec<Condition>,
}

/// The present round, as kept in status.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundState {
    /// Grows by one with each round, from 1.
    pub generation: u64,
    /// Workers in it.
    pub size: u32,
    /// `TemplateFacts::hash` that its pods are made from.
    pub template_hash: String,
    /// When it was decided.
    pub since: Time,
    /// When all of its workers were ready; `None` = not yet.
    pub running_since: Option<Time>,
    /// Why it began.
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
    /// What an agent in the pods drives; `None` = the pods are recreated for each round, as in all versions before
    /// there was an agent.
    #[serde(default)]
    pub agent: Option<AgentRound>,
}

impl RoundState {
    /// How it is carried out. It stays what it is while the round stands.
    pub fn mode(&self) -> RoundMode {
        if self.agent.is_some() { RoundMode::Agent } else { RoundMode::Recreate }
    }
}

/// How a round is carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RoundMode {
    /// Its pods are made for it, with a fixed environment.
    #[default]
    Recreate,
    /// Its pods stay; an agent in each of them starts the processes with the environment of the round.
    Agent,
}

/// A round that an agent drives: who is in it, and what they were told to do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AgentRound {
    /// What is to be done about it.
    pub order: RoundOrder,
    /// When that order was seen to be in force; `None` = it is not published yet. Deadlines count from here.
    pub in_force: Option<Time>,
    /// In rank order; empty while they are not chosen (`Gather`).
    pub members: Vec<RoundMember>,
    /// UIDs of the pods whose processes of an earlier round are to be gone before anybody starts. Known while the
    /// order is `Stop`.
    pub stopping: Vec<String>,
    /// What processes of earlier rounds get to stop, in milliseconds.
    pub grace_ms: u64,
    /// Why it began, for people.
    pub why: String,
    /// A failure was charged when it began.
    pub charged: bool,
    /// Pods made for an earlier generation than this are released: the gang starts anew. 0 = all pods will do.
    pub pods_from: u64,
}

/// How far the members of a round have been told to go. Within one generation it only moves forward, in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum RoundOrder {
    /// Nothing is published: pods are made, and their agents are waited for.
    #[default]
    Gather,
    /// Published as [`eto_membership::Order::Stop`]: what runs of earlier rounds stops.
    Stop,
    /// Published as [`eto_membership::Order::Run`]: members start, or have started.
    Run,
}

/// A member of a round with an agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RoundMember {
    /// Index in the job.
    pub index: u32,
    /// UID of its pod.
    pub uid: String,
    /// Address that its peers reach it by.
    pub address: String,
    /// Processes that it runs, at least 1.
    pub processes: u32,
}

/// A change of members on its way (rounds with an agent): a transaction that goes on after a crash at any of its steps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Why.
    pub cause: RoundCause,
    /// Members before.
    pub from: u32,
    /// Members aimed at.
    pub to: u32,
    /// How far it is.
    pub step: ChangeStep,
    /// When it began.
    pub decided: Time,
    /// When the present step began.
    pub since: Time,
    /// The newest checkpoint there was when a newer one began to be waited for; `None` = no member has told of any.
    #[serde(default)]
    pub checkpoint: Option<eto_membership::Checkpoint>,
    /// When training was stopped for it.
    #[serde(default)]
    pub stopped: Option<Time>,
    /// Steps done since the checkpoint that training goes on from, as far as members have told.
    #[serde(default)]
    pub steps_lost: Option<u64>,
}

/// The steps of a change. Up to [`ChangeStep::WaitingForCheckpoint`] training goes on and the change can be taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ChangeStep {
    /// Pods are made for those who are to join.
    CreatingPods,
    /// Their agents are waited for.
    WaitingForJoins,
    /// A checkpoint newer than the one at its decision is waited for.
    WaitingForCheckpoint,
    /// The next round is published; processes of the old one stop.
    Stopping,
    /// The next round runs; its members start.
    Starting,
    /// The next round trains; pods that were given up go.
    RemovingPods,
}

/// What a resize took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResizeCost {
    /// How long there was no training, in milliseconds.
    pub paused_ms: u64,
    /// Steps that had to be done again; `None` = not known.
    #[serde(default)]
    pub steps_lost: Option<u64>,
}

/// Why a round began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RoundCause {
    /// The first.
    Start,
    /// A larger size.
    Grow,
    /// A smaller size.
    Shrink,
    /// Another pod template.
    TemplateChanged,
    /// A worker failed or went away.
    WorkerLost,
    /// After a suspension.
    Resumed,
    /// The round before did not reach its minimum in time.
    StartTimedOut,
    /// The pods of a growth did not get a node in time.
    GrowthRefused,
}

/// A worker to be given up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Victim {
    /// Name of the pod.
    pub pod: String,
    /// UID of the pod.
    pub uid: String,
    /// Index of the worker, never 0.
    pub index: u32,
    /// Why this one, for people.
    pub reason: String,
}

/// A resize, in flight or done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResizeRecord {
    /// The size before.
    pub from: u32,
    /// The size after.
    pub to: u32,
    /// When it was decided.
    pub decided: Time,
    /// When all workers of the new size were ready; `None` = in flight.
    pub done: Option<Time>,
    /// The cluster did not have room (or quota) and it was taken back.
    pub refused: bool,
    /// Refused growths in a row, this one counted; 0 if this one was not refused.
    #[serde(default)]
    pub refusals: u32,
    /// What it took, where that was measured (rounds with an agent).
    #[serde(default)]
    pub cost: Option<ResizeCost>,
}

impl ResizeRecord {
    /// A resize that begins.
    pub fn new(from: u32, to: u32, decided: Time) -> Self {
        ResizeRecord { from, to, decided, done: None, refused: false, refusals: 0, cost: None }
    }

    /// What it cost the training: the measured pause, else the time from its decision to its end. Zero while it is in
    /// flight and if it was refused.
    pub fn pause(&self) -> Duration {
        let whole = self.done.filter(|_| !self.refused).map(|done| done.since(self.decided));
        match (&self.cost, whole) {
            (Some(cost), Some(_)) => Duration::from_millis(cost.paused_ms),
            (_, whole) => whole.unwrap_or_default(),
        }
    }
}

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
    /// The pods of the round exist.
    PodsCreated,
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
    /// Active longer than `activeDeadlineSeconds`.
    DeadlineExceeded,
    /// Restart policy `ExitCode` and an exit code of 1 to 127.
    NonRetryableExit,
    /// The job goes on.
    NotFinished,
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
    /// The template's first container has no `command` that an agent could be put around.
    NoCommand,
    /// An agent in the pods drives rounds.
    AgentDrivesRounds,
    /// The round that stands goes on as it was begun; the next new pods change the way.
    ModeKept,
}

/// The volatile part: history that the guard needs. Kept in memory and saved now and then beside the policy's state;
/// after a restart without it there is no shrink for one stabilisation window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// When this memory began (operator start, or first sight of the job); see [`Memory::new`].
    pub since: Time,
    /// Decisions made so far; the number of the last one.
    pub sequence: u64,
    /// `spec.replicas` at the last decision; `None` = there was none.
    #[serde(default)]
    pub replicas: Option<u32>,
    /// HPA's recommendations: unstabilised targets.
    pub recommendations: Vec<(Time, u32)>,
    /// HPA's scale events: sizes added and removed.
    pub ups: Vec<(Time, u32)>,
    /// HPA's scale events: how many were removed when.
    pub downs: Vec<(Time, u32)>,
    /// What the policy returned as `state` from its last call.
    pub policy_state: Option<KeptState>,
    /// Name of the policy that wrote it; another policy is not given it.
    #[serde(default)]
    pub policy_state_of: Option<String>,
    /// What the placement policy keeps.
    #[serde(default)]
    pub placement: Kept,
    /// Failures in a row and open circuits, by module digest.
    pub circuits: BTreeMap<String, Circuit>,
    /// Past means per signal name, oldest first, for policies that asked for history.
    pub history: BTreeMap<String, Vec<(Time, f64)>>,
    /// The last decision.
    pub last: Option<Decision>,
    /// How steady `ScalingLimited` has been.
    #[serde(default)]
    pub limited: Steadiness,
}

/// The state that a policy keeps from one call to the next.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    /// What it returned last; `None` = nothing.
    pub state: Option<KeptState>,
    /// Name of the policy that wrote it; another policy is not given it.
    pub of: Option<String>,
}

impl Memory {
    /// A memory that begins now: nothing is known of what was before.
    pub fn new(now: Time) -> Self {
        Memory { since: now, ..Memory::default() }
    }
}

/// How often what a condition says has changed lately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Steadiness {
    /// Status and reason at the last decision; `None` = there was none.
    pub says: Option<(bool, ConditionReason)>,
    /// Since when it says so.
    pub since: Time,
    /// Changes since it last stood still for a while.
    pub changes: u32,
}

/// Circuit breaker of one policy digest for one job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Circuit {
    /// Failures in a row.
    pub failures: u32,
    /// Not asked again before this; then one half-open try.
    pub open_until: Option<Time>,
    /// When it last failed; `None` = before this memory began.
    #[serde(default)]
    pub last: Option<Time>,
}
