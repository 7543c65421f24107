//! What is remembered of a job between looks: the durable part (status) and the volatile part (memory).

mod charges;
mod condition;
mod history;
mod memory;
mod round;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::time::Time;

pub use charges::Charge;
pub use condition::{Condition, ConditionKind, ConditionReason};
pub use history::{
    ChangeBy, ChangeKind, ChangeOutcome, FailedWorker, HistoryEntry, LossClass, MAX_BEFORE, MAX_HISTORY, MAX_LOGS,
    MAX_NAMES,
};
pub use memory::{Circuit, Kept, Memory, PlacementMemory, Steadiness};
pub use round::{AgentRound, RoundMember, RoundMode, RoundOrder, RoundState};

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
    /// UIDs of other pods whose deletion was decided, named before it is asked for, until it is under way. It is not taken
    /// back: a leader that stood still may ask for it when another leads already.
    pub deleting: Vec<String>,
    /// Failures that count, within `Elasticity::failure_window` where there is one: one for each round that ended by a fault
    /// of the job's own, or each worker that fails while the others go on, and one for each
    /// time its containers restarted in place, however many peers went down with the first.
    pub failures: u32,
    /// The same by class and time; what a release before this one charged is in the number alone.
    pub charges: Vec<Charge>,
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
    /// Members that have been much slower than the others for long, by their own word.
    pub stragglers: Vec<Straggler>,
    /// What workers that ran out of memory have taught; `None` = nothing.
    pub memory: Option<GrownMemory>,
    /// The last changes of its members, newest first, at most [`MAX_HISTORY`]; the first may be under way.
    pub history: Vec<HistoryEntry>,
    /// When the first round was decided (again after a suspension); `activeDeadlineSeconds` counts from here.
    pub started_at: Option<Time>,
    /// When it came to its end.
    pub finished_at: Option<Time>,
    /// One sentence on the end, for people.
    pub message: Option<String>,
    /// What is told to people, one per kind.
    pub conditions: Vec<Condition>,
}

/// Memory that new pods get because it was found that what their template says is too little.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrownMemory {
    /// The template; another begins with what it says itself.
    pub template_hash: String,
    /// Limit of the training container, in bytes.
    pub bytes: u64,
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
    /// Nodes that the placement policy demands were waited for in vain: its demands are wishes from then on.
    #[serde(default)]
    pub anywhere: bool,
}

impl Change {
    /// One that begins now, at this step.
    pub fn begin(cause: RoundCause, from: u32, to: u32, step: ChangeStep, now: Time) -> Self {
        Change {
            cause,
            from,
            to,
            step,
            decided: now,
            since: now,
            checkpoint: None,
            stopped: None,
            steps_lost: None,
            anywhere: false,
        }
    }
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
    /// The members of the round before made no progress any more.
    Hung,
    /// The end of members was announced, and others took their place.
    Moved,
}

/// A member that is much slower than the others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Straggler {
    /// Name of the pod.
    pub pod: String,
    /// UID of the pod.
    pub uid: String,
    /// Since when.
    pub since: Time,
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
    /// Who decided it.
    #[serde(default)]
    pub by: ChangeBy,
    /// Why, for people.
    #[serde(default)]
    pub why: String,
}

impl ResizeRecord {
    /// A resize that begins.
    pub fn new(from: u32, to: u32, decided: Time) -> Self {
        let (by, why) = (ChangeBy::Operator, String::new());
        ResizeRecord { from, to, decided, done: None, refused: false, refusals: 0, cost: None, by, why }
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
