//! The two settings that the controller takes as flags.

use eto_policy_sdk::schemars::{self, JsonSchema};
use serde::Deserialize;

/// When the CPU use of a starting worker counts. Other metrics do not use it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct HpaConfig {
    /// Seconds after its start in which a worker's CPU use counts only while it is ready and the sample was taken a
    /// whole window after it became so.
    pub cpu_initialization_period_seconds: u32,
    /// Seconds after its start in which a worker that became unready is taken as not having been ready yet.
    pub initial_readiness_delay_seconds: u32,
}

impl Default for HpaConfig {
    fn default() -> Self {
        HpaConfig { cpu_initialization_period_seconds: 300, initial_readiness_delay_seconds: 30 }
    }
}
