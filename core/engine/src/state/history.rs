//! What has happened to a job's members lately, for people. Nothing is decided by it.

use serde::{Deserialize, Serialize};

use crate::time::Time;

/// Entries that are kept, newest first.
pub const MAX_HISTORY: usize = 10;
/// Entries that keep the last lines of who failed.
pub const MAX_LOGS: usize = 3;
/// Pods that an entry names at most of those who came, and of those who went.
pub const MAX_NAMES: usize = 8;
/// Members that a change can begin with whose names are kept while it is under way, to tell who came and who went.
pub const MAX_BEFORE: usize = 512;

/// One change of a job's members or of their processes: from the moment it was decided to the moment all of the members
/// it led to were at work.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HistoryEntry {
    /// What it was.
    pub kind: ChangeKind,
    /// Whose doing.
    pub by: ChangeBy,
    /// What kind of loss it began with; `None` = it began with none.
    pub loss: Option<LossClass>,
    /// Why, for people.
    pub why: String,
    /// Workers before.
    pub from: u32,
    /// Workers after; while it is under way those aimed at.
    pub to: u32,
    /// Generation of the (last) round that it made.
    pub generation: u64,
    /// Rounds that it took; of containers that restarted in place: how often they did.
    pub attempts: u32,
    /// When it was decided.
    pub started: Time,
    /// When training stopped for it; `None` = nothing trained, or nothing was stopped.
    pub stopped: Option<Time>,
    /// When all members were at work, or it was given up; `None` = under way.
    pub ended: Option<Time>,
    /// How it ended; `None` = under way.
    pub outcome: Option<ChangeOutcome>,
    /// How long there was no training, in milliseconds; `None` = not known.
    pub paused_ms: Option<u64>,
    /// Steps that had to be done again; `None` = not known.
    pub steps_lost: Option<u64>,
    /// The worker whose failure it began with; `None` = nobody's.
    pub failed: Option<FailedWorker>,
    /// Names of pods that are no members any more, at most [`MAX_NAMES`].
    pub left: Vec<String>,
    /// Names of pods that have become members, at most [`MAX_NAMES`]. Empty where all have, or where who was
    /// there before is not kept ([`MAX_BEFORE`]).
    pub joined: Vec<String>,
    /// Names of the pods that were members before (by recreation: of those that were not lost). Empty once it has ended,
    /// and where there were more than [`MAX_BEFORE`].
    pub before: Vec<String>,
}

/// A worker that failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FailedWorker {
    /// Its pod.
    pub pod: String,
    /// Exit code of its processes or its container.
    pub exit_code: Option<i32>,
    /// The kubelet's word for it; empty = none.
    pub reason: String,
    /// The end of its log or of what its processes wrote to stderr. Of the [`MAX_LOGS`] newest entries that have some.
    pub last_lines: String,
}

/// What changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ChangeKind {
    /// The first round.
    #[default]
    Start,
    /// The first round after a suspension.
    Resume,
    /// Another size.
    Resize,
    /// Another pod template.
    Update,
    /// Workers are lost, or come in place of lost ones.
    Replacement,
    /// Processes start again in the pods that they were in.
    Restart,
    /// The job's end.
    End,
}

/// Whose doing a change is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ChangeBy {
    /// Of who writes the job's spec or its scale subresource.
    #[default]
    User,
    /// Of its scaling policy.
    Policy,
    /// Of nobody: something was lost.
    Loss,
    /// Of the operator.
    Operator,
}

/// What was lost, as in the table of `docs/lifecycle.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum LossClass {
    /// The pod is gone.
    PodGone,
    /// The pod is being stopped.
    PodStopped,
    /// The pod was evicted, preempted, or ended with its node.
    Disrupted,
    /// The pod failed by itself.
    PodFailed,
    /// A container ran out of memory.
    OutOfMemory,
    /// The node is not ready or gone.
    NodeLost,
    /// Processes failed in a pod that lives on.
    ProcessFailed,
    /// The kubelet has started containers again.
    ContainerRestarted,
    /// A member was done before a round began.
    Finished,
    /// A member is not heard of and keeps the others waiting.
    NotHeard,
    /// A member did not start its processes in time.
    NotStarted,
    /// There was no progress any more.
    Hung,
    /// A member was much slower than the others.
    Straggler,
}

/// How a change ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ChangeOutcome {
    /// All members it led to were at work.
    Done,
    /// The cluster did not have what it asked for; the job goes on with what it has.
    Refused,
    /// Something else came before it was done.
    Interrupted,
}

impl HistoryEntry {
    /// Whether it is under way.
    pub fn is_open(&self) -> bool {
        self.ended.is_none()
    }

    /// It ends, one way or the other.
    pub(crate) fn end(&mut self, outcome: ChangeOutcome, at: Time) {
        self.outcome.get_or_insert(outcome);
        self.ended = Some(at);
        self.before.clear();
    }
}
