//! The volatile part: history that the guard needs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::ConditionReason;
use crate::contract::KeptState;
use crate::decision::{Decision, Placed};
use crate::time::Time;

/// The volatile part: history that the guard needs. Kept in memory and saved now and then beside the policy's state;
/// after a restart without it there is no shrink for one stabilisation window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// When this memory began (operator start, or first sight of the job); see [`Memory::new`].
    pub since: Time,
    /// Decisions made so far; the number of the last one.
    pub sequence: u64,
    /// `spec.replicas` at the last decision; `None` = there was none.
    #[serde(default)]
    pub replicas: Option<u32>,
    /// HPA's recommendations: unstabilised targets.
    pub recommendations: Vec<(Time, u32)>,
    /// HPA's scale events: sizes added and removed.
    pub ups: Vec<(Time, u32)>,
    /// HPA's scale events: how many were removed when.
    pub downs: Vec<(Time, u32)>,
    /// What the policy returned as `state` from its last call.
    pub policy_state: Option<KeptState>,
    /// Name of the policy that wrote it; another policy is not given it.
    #[serde(default)]
    pub policy_state_of: Option<String>,
    /// What is remembered of the placement policy.
    #[serde(default)]
    pub placement: PlacementMemory,
    /// Failures in a row and open circuits, by module digest.
    pub circuits: BTreeMap<String, Circuit>,
    /// Past means by [`SignalId::key`](crate::signals::SignalId::key), oldest first, for policies that asked for history.
    pub history: BTreeMap<String, Vec<(Time, f64)>>,
    /// The last decision.
    pub last: Option<Decision>,
    /// How steady `ScalingLimited` has been.
    #[serde(default)]
    pub limited: Steadiness,
}

/// What is remembered of a job's placement policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PlacementMemory {
    /// The state that it keeps.
    pub kept: Kept,
    /// Failures in a row and open circuits, by module digest. Not kept over a restart: it is asked seldom.
    pub circuits: BTreeMap<String, Circuit>,
    /// What it was asked last, and what came of it.
    pub last: Option<Placed>,
}

/// The state that a policy keeps from one call to the next.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    /// What it returned last; `None` = nothing.
    pub state: Option<KeptState>,
    /// Name of the policy that wrote it; another policy is not given it.
    pub of: Option<String>,
}

impl Memory {
    /// A memory that begins now: nothing is known of what was before.
    pub fn new(now: Time) -> Self {
        Memory { since: now, ..Memory::default() }
    }
}

/// How often what a condition says has changed lately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Steadiness {
    /// Status and reason at the last decision; `None` = there was none.
    pub says: Option<(bool, ConditionReason)>,
    /// Since when it says so.
    pub since: Time,
    /// Changes since it last stood still for a while.
    pub changes: u32,
}

/// Circuit breaker of one policy digest for one job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Circuit {
    /// Failures in a row.
    pub failures: u32,
    /// Not asked again before this; then one half-open try.
    pub open_until: Option<Time>,
    /// When it last failed; `None` = before this memory began.
    #[serde(default)]
    pub last: Option<Time>,
}
