//! The present round, and the change of members that is on its way.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{is_false, is_zero};

status! {
    /// The present round of members.
    pub struct RoundStatus {
        /// Grows by one with each round.
        pub generation: i64,
        /// Workers in it.
        pub size: i64,
        pub template_hash: String,
        /// When it was decided.
        pub since: String,
        /// When all of its workers were ready; absent = not yet.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub running_since: Option<String>,
        /// Why it began.
        pub cause: String,
        /// When all of its pods were seen to exist; absent = not yet.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub complete: Option<String>,
        /// A pod of it was told to wait for a certain node.
        #[serde(skip_serializing_if = "is_false")]
        pub required_nodes: bool,
        /// Indexes below the highest member that are not in the round.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub gaps: Vec<i64>,
        /// Restarts in place that were charged in this round.
        #[serde(skip_serializing_if = "is_zero")]
        pub restarts_charged: i64,
        /// What an agent in the pods drives; absent = the pods are recreated for each round.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub agent: Option<AgentRoundStatus>,
    }

    /// A round that an agent drives.
    pub struct AgentRoundStatus {
        /// `Gather` (pods are waited for), `Stop` (what runs of earlier rounds stops) or `Run`.
        pub order: String,
        /// When that order was seen to be in force; absent = not published yet.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub in_force: Option<String>,
        /// With the order `Run`: it is not put off any more, since it was told once, or given when the time to stop was over for
        /// somebody.
        #[serde(skip_serializing_if = "is_false")]
        pub firm: bool,
        /// In rank order; empty while they are not chosen.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub members: Vec<RoundMemberStatus>,
        /// UIDs of the pods whose earlier processes are waited for.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub stopping: Vec<String>,
        /// What earlier processes get to stop.
        #[serde(skip_serializing_if = "is_zero")]
        pub grace_milliseconds: i64,
        /// The run that it is a part of, where others go on when a member is lost; absent = all processes are started anew
        /// for it.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub native: Option<NativeRunStatus>,
        /// A round before it hung, not long before: UID of the pod in which that began; empty where it was not known, or
        /// where the pod was replaced for it.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub hung: Option<String>,
        /// Why it began.
        #[serde(skip_serializing_if = "String::is_empty")]
        pub why: String,
        /// A failure was charged when it began.
        #[serde(skip_serializing_if = "is_false")]
        pub charged: bool,
        /// Pods of earlier generations than this are released.
        #[serde(skip_serializing_if = "is_zero")]
        pub pods_from: i64,
        /// Members of an earlier round have told progress.
        #[serde(skip_serializing_if = "is_false")]
        pub tells: bool,
    }

    /// A run over one or more rounds: of `torchrun`, or of members that are started alone.
    pub struct NativeRunStatus {
        /// Generation of the round that it began with.
        pub run: i64,
        /// Fewest members that it trains with.
        pub min: i64,
        /// Most members that it takes.
        pub max: i64,
        /// Members are started alone (`restartScope: Pod`).
        #[serde(skip_serializing_if = "is_false")]
        pub alone: bool,
        /// Indexes in rank order that it began with, where they are.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub ranks: Vec<i64>,
    }

    /// A member of a round with an agent.
    pub struct RoundMemberStatus {
        pub index: i64,
        /// UID of its pod.
        pub uid: String,
        pub address: String,
        /// Processes that it runs.
        pub processes: i64,
    }

    /// A change of members on its way.
    pub struct ChangeStatus {
        /// Why.
        pub cause: String,
        /// Members before.
        pub from: i64,
        /// Members aimed at.
        pub to: i64,
        /// `CreatingPods`, `WaitingForJoins`, `WaitingForCheckpoint`, `Stopping`, `Starting` or `RemovingPods`.
        pub step: String,
        /// When it began.
        pub decided: String,
        /// When the present step began.
        pub since: String,
        /// The newest checkpoint when a newer one began to be waited for.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub checkpoint: Option<CheckpointStatus>,
        /// When training was stopped for it.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub stopped: Option<String>,
        /// Steps to be done again.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub steps_lost: Option<i64>,
        /// The nodes that the placement policy demands were waited for in vain: new workers may run anywhere.
        #[serde(skip_serializing_if = "is_false")]
        pub anywhere: bool,
    }

    /// A checkpoint that a member told of.
    pub struct CheckpointStatus {
        /// The round that wrote it.
        pub generation: i64,
        pub step: i64,
        pub time: String,
    }
}
