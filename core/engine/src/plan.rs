//! What to do: actions as data, for an adapter to carry out.

use crate::state::{ConditionReason, JobState};
use crate::time::Time;

/// The next step for one job. Planning again on the same facts gives no actions (idempotent).
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The state to keep. If it differs from the one handed in, it is written *before* the actions are carried out,
    /// so that a crash in between continues with the same round and the same victims.
    pub state: JobState,
    pub actions: Vec<Action>,
    pub events: Vec<Event>,
    /// When to look again even if nothing happens (deadlines, back-off).
    pub next_look: Option<Time>,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// The headless service of the job must exist.
    EnsureService,
    CreatePod(NewPod),
    DeletePod { name: String, uid: String, why: String },
    /// The time to live has passed: delete the job itself.
    DeleteJob,
}

/// A pod to make.
#[derive(Clone, Debug, PartialEq)]
pub struct NewPod {
    pub index: u32,
    /// Generation of its round.
    pub round: u64,
    /// Workers in the round.
    pub size: u32,
    /// Framework environment of this member (ranks, addresses), to override the user's.
    pub env: Vec<(String, String)>,
}

/// An event to tell.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    pub warning: bool,
    pub reason: EventReason,
    pub message: String,
}

/// The closed set of event reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventReason {
    RoundStarted,
    RoundRunning,
    SuccessfulRescale,
    WorkerLost,
    StartTimedOut,
    GrowthRefused,
    Suspended,
    Resumed,
    JobSucceeded,
    JobFailed,
    RankVariablesOverridden,
    ScalingNotActive,
    PolicyFailed,
    CircuitOpened,
    PolicySwapped,
    /// A condition turned False or True with this reason.
    Condition(ConditionReason),
}
