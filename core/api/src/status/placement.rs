//! What a placement policy answered last.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{FailureStatus, PolicyRef, ReasonStatus, is_false, is_zero};

status! {
    /// What the placement policy was asked last, and what came of it.
    pub struct PlacementStatus {
        pub time: String,
        /// Generation of the spec it was asked for.
        pub generation: i64,
        /// Who was asked; absent = nothing of that name is served.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub policy: Option<PolicyRef>,
        /// Whether the answer counts (mode Recommend: false).
        pub apply: bool,
        /// Nodes for new workers.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub nodes: Vec<PlacedOnStatus>,
        /// Workers that got a node and are not listed.
        #[serde(skip_serializing_if = "is_zero")]
        pub unlisted: i64,
        /// Indexes of the workers to give up, most dispensable first.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub victims: Vec<i64>,
        /// The policy's reasons.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub reasons: Vec<ReasonStatus>,
        /// Fuel burnt by the call.
        pub fuel: i64,
        /// Why there was no answer; workers are placed without it then.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub failure: Option<FailureStatus>,
    }

    /// New workers of one node.
    pub struct PlacedOnStatus {
        pub node: String,
        /// They wait for it rather than run elsewhere.
        #[serde(skip_serializing_if = "is_false")]
        pub required: bool,
        /// Their indexes.
        pub workers: Vec<i64>,
    }
}
