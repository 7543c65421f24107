//! What has happened to a job's members lately.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::is_zero;

status! {
    /// One change of a job's members or of their processes.
    pub struct HistoryStatus {
        /// `Start`, `Resume`, `Resize`, `Update` (another template), `Replacement` or `Restart` (of processes, in their pods).
        pub kind: String,
        /// Whose doing: `User`, `Policy`, `Loss` or `Operator`.
        pub by: String,
        /// What kind of loss it began with: `PodGone`, `PodStopped`, `Disrupted`, `PodFailed`, `NodeLost`, `ProcessFailed`,
        /// `ContainerRestarted`, `Finished`, `NotHeard`, `NotStarted` or `Hung`.
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
}
