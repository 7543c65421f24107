//! What failures lead to: who starts again, and how many there may be.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Who starts again when a worker is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RestartScope {
    /// All members of the round.
    Group,
    /// The worker that was lost.
    Pod,
}

/// Most failures of each class. Default of each: no limit but `backoffLimit`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FailureLimits {
    /// Processes ended with a code other than 0 in a pod that lives on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2_147_483_647_i64))]
    pub process_failed: Option<i64>,
    /// Pods failed by themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2_147_483_647_i64))]
    pub pod_failed: Option<i64>,
    /// The kubelet has started containers again, where pods are recreated for each round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2_147_483_647_i64))]
    pub container_restarted: Option<i64>,
    /// Containers ran out of memory, and were not given more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2_147_483_647_i64))]
    pub out_of_memory: Option<i64>,
    /// Members did not start their processes within `roundTimeoutSeconds`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2_147_483_647_i64))]
    pub not_started: Option<i64>,
    /// Rounds made no progress for `hangTimeoutSeconds`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2_147_483_647_i64))]
    pub hung: Option<i64>,
}
