//! What has happened to a job's members lately.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::is_zero;

status! {
    /// One change of a job's members or of their processes.
    pub struct HistoryStatus {
        /// `Start`, `Resume`, `Resize`, `Update` (another template), `Replacement`, `Restart` (of processes, in their pods) or
        /// `End`.
        pub kind: String,
        /// Whose doing: `User`, `Policy`, `Loss` or `Operator`.
        pub by: String,
        /// What kind of loss it began with: `PodGone`, `PodStopped`, `Disrupted`, `PodFailed`, `OutOfMemory`, `NodeLost`,
        /// `ProcessFailed`, `ContainerRestarted`, `Finished`, `NotHeard`, `NotStarted`, `Hung` or
        /// `Straggler`.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub loss: Option<String>,
        /// Why, in a sentence.
        pub why: String,
        /// Workers before.
        pub from: i64,
        /// Workers after; while it is under way those aimed at.
        pub to: i64,
        /// Generation of the last round that it made.
        pub generation: i64,
        /// Rounds that it took; of containers that restarted in place: how often.
        #[serde(skip_serializing_if = "is_zero")]
        pub attempts: i64,
        /// When it was decided.
        pub started: String,
        /// When training stopped for it; absent = nothing was stopped.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub stopped: Option<String>,
        /// When all members were at work, or it was given up; absent = under way.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub ended: Option<String>,
        /// `Done`, `Refused` (the cluster did not have what it asked for) or `Interrupted` (something else came before it
        /// was done); absent = under way.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub outcome: Option<String>,
        /// How long there was no training; absent = not known.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub paused_milliseconds: Option<i64>,
        /// Steps that had to be done again; absent = not known.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub steps_lost: Option<i64>,
        /// The worker whose failure it began with; absent = nobody's.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub failed: Option<FailedWorkerStatus>,
        /// Pods that are no members any more; at most 8 are named.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub left: Vec<String>,
        /// Pods that have become members; at most 8 are named.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub joined: Vec<String>,
        /// Pods that were members before, while it is under way.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub before: Vec<String>,
    }

    /// Failures of one class at about the same time.
    pub struct ChargeStatus {
        /// `PodFailed`, `ProcessFailed`, `ContainerRestarted`, `OutOfMemory`, `NotStarted` or `Hung`.
        pub class: String,
        /// When the first of them was charged.
        pub first: String,
        /// When the last of them was.
        pub last: String,
        pub count: i64,
    }

    /// More memory for new pods.
    pub struct GrownMemoryStatus {
        /// The template; another begins with what it says itself.
        pub template_hash: String,
        /// Limit of the training container.
        pub bytes: i64,
    }

    /// A member that is much slower than the others.
    pub struct StragglerStatus {
        pub pod: String,
        pub uid: String,
        pub since: String,
    }

    /// A worker that failed.
    pub struct FailedWorkerStatus {
        /// Its pod.
        pub pod: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        pub exit_code: Option<i32>,
        /// The kubelet's word for it, such as `OOMKilled`.
        #[serde(skip_serializing_if = "String::is_empty")]
        pub reason: String,
        /// The end of its log; kept for the last three that failed, unless `elasticity.keepFailureLogs` is false.
        #[serde(skip_serializing_if = "String::is_empty")]
        pub last_lines: String,
    }
}
