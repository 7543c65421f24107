//! `ElasticJob.status`: what the operator has seen, decided and done.
//!
//! Everything durable about a job is here, so that any replica can go on from it. If it is lost it is rebuilt from
//! the live pods.
//!
//! **Size.** The budget is 32 KiB for a job of up to 100 workers, of which the policy's own state is at most 4 KiB
//! encoded (a larger one is kept in a `ConfigMap` of the job's own). What grows with the job is `victims` and `deleting`, and
//! only while they go, the members of a round with an agent and those who stop for it, and while a change is under way the
//! names of the pods before it, 512 at most. With 4,096 workers, the most there can be, it stays below 1 MiB.
//! Lists and texts of a decision are cut to 16 limits,
//! 16 reasons, 32 signals and 256 characters. The API server's own limit is about 1.5 MiB.
//!
//! Times are RFC 3339 with milliseconds, UTC. Closed sets (phases, causes, reasons) are text, so that an older
//! operator can read what a newer one wrote.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema;

macro_rules! status {
    ($($(#[$m:meta])* pub struct $name:ident { $($(#[$fm:meta])* pub $f:ident: $t:ty,)* })*) => {$(
        $(#[$m])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(rename_all = "camelCase", default)]
        pub struct $name { $($(#[$fm])* pub $f: $t,)* }
    )*};
}

mod history;
mod memory;
mod placement;
mod round;

pub use history::{ChargeStatus, FailedWorkerStatus, GrownMemoryStatus, HistoryStatus, StragglerStatus};
pub use memory::{CircuitStatus, MemoryStatus, PolicyStateStatus, SizeAt};
pub use placement::{PlacedOnStatus, PlacementStatus};
pub use round::{AgentRoundStatus, ChangeStatus, CheckpointStatus, NativeRunStatus, RoundMemberStatus, RoundStatus};

/// What the operator has seen, decided and done.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, remote = "Self")]
#[schemars(!remote)]
pub struct ElasticJobStatus {
    /// `Pending`, `Starting`, `Running`, `Resizing`, `Restarting`, `Suspended`, `Succeeded` or `Failed`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub phase: String,
    /// The `metadata.generation` that this status speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Workers that exist and are not being deleted.
    pub replicas: i64,
    /// Workers that are running and ready.
    pub ready_replicas: i64,
    /// The size aimed at; 0 = not decided yet.
    pub target_replicas: i64,
    /// The `spec.replicas` that the target was last based on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub based_on_replicas: Option<i64>,
    /// The range in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_replicas: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_replicas: Option<i64>,
    /// The scaling policy in force, with its version where it has answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Label selector of the job's pods in text, for the scale subresource.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub selector: String,
    /// The present round of members.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub round: Option<RoundStatus>,
    /// Generation of the last round there was; 0 = none yet.
    #[serde(skip_serializing_if = "is_zero")]
    pub last_generation: i64,
    /// Workers about to be given up; named here before they are touched.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub victims: Vec<VictimStatus>,
    /// UIDs of other pods whose deletion was decided and is not under way yet.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deleting: Vec<String>,
    /// Failures that count against `backoffLimit`.
    pub failures: i64,
    /// The same by class and time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub charges: Vec<ChargeStatus>,
    /// Losses that were nobody's fault; never charged.
    pub disruptions: i64,
    /// Rounds in a row that ended before they had run for a while.
    #[serde(skip_serializing_if = "is_zero")]
    pub start_attempts: i64,
    /// No new round before this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_before: Option<String>,
    /// The last resize, in flight or done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_resize: Option<ResizeStatus>,
    /// The change of members on its way, with how far it is; where an agent drives rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub change: Option<ChangeStatus>,
    /// Members that have been much slower than the others for long, by their own word.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stragglers: Vec<StragglerStatus>,
    /// More memory for new pods, since workers ran out of what their template gives them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grown_memory: Option<GrownMemoryStatus>,
    /// The last 10 changes of members, newest first; the first may be under way.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<HistoryStatus>,
    /// When the first round was decided; again after a suspension.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<String>,
    /// When the job ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<String>,
    /// One sentence on the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// As in `metav1.Condition`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// What was read for the last decision shown here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub signals: Vec<SignalStatus>,
    /// The last decision that changed something or failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_decision: Option<DecisionStatus>,
    /// What the placement policy was asked last, and what came of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_placement: Option<PlacementStatus>,
    /// History that decisions rest on, as of the last write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryStatus>,

    /// Why the stored status could not be decoded; it counts as lost then. Never stored.
    #[serde(skip)]
    pub undecodable: Option<String>,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde hands out references.
fn is_zero(n: &i64) -> bool {
    *n == 0
}

status! {
    /// A worker about to be given up.
    pub struct VictimStatus {
        pub pod: String,
        pub uid: String,
        pub index: i64,
        pub reason: String,
    }

    /// A resize.
    pub struct ResizeStatus {
        pub from: i64,
        pub to: i64,
        pub decided: String,
        /// When all workers of the new size were ready; absent = in flight.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub done: Option<String>,
        /// The cluster had no room for it and it was taken back.
        #[serde(skip_serializing_if = "is_false")]
        pub refused: bool,
        /// Refused growths in a row.
        #[serde(skip_serializing_if = "is_zero")]
        pub refusals: i64,
        /// How long there was no training; absent = not measured.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub paused_milliseconds: Option<i64>,
        /// Steps that had to be done again; absent = not known.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub steps_lost: Option<i64>,
        /// Who decided it: `User`, `Policy`, `Loss` or `Operator`.
        #[serde(skip_serializing_if = "String::is_empty")]
        pub by: String,
        /// Why, in a sentence.
        #[serde(skip_serializing_if = "String::is_empty")]
        pub why: String,
    }

    /// As in `metav1.Condition`.
    pub struct Condition {
        #[serde(rename = "type")]
        pub kind: String,
        /// `True`, `False` or `Unknown`.
        pub status: String,
        pub reason: String,
        pub message: String,
        pub last_transition_time: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        pub observed_generation: Option<i64>,
    }

    /// A signal as it was when the decision was made.
    pub struct SignalStatus {
        pub name: String,
        /// `Ok`, `Partial`, `Stale`, `Absent`, `Invalid` or `Warming`.
        pub quality: String,
        /// Share of the workers with a fresh sample, 0 to 1.
        pub coverage: f64,
        /// Age of the oldest sample used.
        pub age_milliseconds: i64,
        /// Mean over the workers: of value/request where there are requests, else of the value.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub mean: Option<f64>,
        /// Why it is not Ok.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub note: Option<String>,
    }

    /// A decision: what was proposed, what limited it, and why.
    pub struct DecisionStatus {
        pub time: String,
        /// Grows by one with each evaluation.
        pub sequence: i64,
        /// Generation of the spec it was made for.
        pub generation: i64,
        /// Who was asked; absent = nobody.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub policy: Option<PolicyRef>,
        /// The size aimed at before.
        pub from: i64,
        /// What the policy proposed; absent = hold, or no answer.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub proposed: Option<i64>,
        /// The size aimed at from then on (mode Recommend: what it would be).
        pub target: i64,
        /// What changed the proposal on its way to the target, in order.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub limits: Vec<LimitStatus>,
        /// The policy's reasons.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub reasons: Vec<ReasonStatus>,
        /// Fuel burnt by the calls.
        pub fuel: i64,
        /// Whether a policy answered.
        pub answered: bool,
        /// Whether the target was to be carried out (mode Recommend: false).
        pub apply: bool,
        /// What the job's owner has to mend before it can be scaled.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub mend: Option<String>,
        /// Why there was no answer.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub failure: Option<FailureStatus>,
        #[serde(skip_serializing_if = "Option::is_none")]
        pub next_look: Option<String>,
    }

    /// Which code answered.
    pub struct PolicyRef {
        pub name: String,
        pub version: String,
        /// `sha256:` and 64 hex digits.
        pub digest: String,
    }

    /// A limiter that changed a proposal.
    pub struct LimitStatus {
        pub by: String,
        pub from: i64,
        pub to: i64,
        #[serde(skip_serializing_if = "Option::is_none")]
        pub until: Option<String>,
        pub message: String,
    }

    /// A reason that the policy gave.
    pub struct ReasonStatus {
        pub code: String,
        pub message: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        pub signal: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        pub value: Option<f64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        pub target: Option<f64>,
    }

    /// Why a policy did not answer.
    pub struct FailureStatus {
        pub kind: String,
        pub message: String,
        /// Failures in a row of this module for this job.
        pub in_a_row: i64,
    }
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde hands out references.
fn is_false(b: &bool) -> bool {
    !*b
}
