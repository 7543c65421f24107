//! How the engine sees a policy: something that can be asked. The WASM host implements it.

use serde::{Deserialize, Serialize};

use crate::contract::{PlacementDecision, PlacementInput, ScalingDecision, ScalingInput, SignalWant};

/// Which code answered.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PolicyId {
    /// Name under which it is served (the file's stem).
    pub name: String,
    /// The version it says it has.
    pub version: String,
    /// `sha256:` and 64 hex digits of the module's bytes.
    pub digest: String,
}

/// A policy's answer with what it cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer<T> {
    /// The answer.
    pub value: T,
    /// Fuel burnt: wasm instructions, roughly; deterministic for a digest and an input.
    pub fuel: u64,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{kind:?}: {message}")]
pub struct CallFailure {
    /// In which way it failed.
    pub kind: FailureKind,
    /// What happened, where (file and line of the guest, if it said so) and what to do.
    pub message: String,
}

/// The closed set of ways a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FailureKind {
    /// No module of that name is served.
    Missing,
    /// It burnt all of its fuel.
    OutOfFuel,
    /// It took too long.
    Deadline,
    /// It wanted more memory than it may have.
    Memory,
    /// It overflowed its stack.
    StackOverflow,
    /// It trapped (a panic, a division by zero, ...).
    Trap,
    /// The answer breaks the contract (target too large, NaN, text or state too long, ...).
    BadAnswer,
    /// The policy said its config is not usable.
    InvalidConfig,
    /// The policy said the input lacks something the job's owner can mend.
    UnusableInput,
    /// The policy reported a fault of its own, or the host had one.
    Internal,
}

impl FailureKind {
    /// Whether it counts towards opening the circuit of this job and digest.
    pub fn is_fault(self) -> bool {
        !matches!(self, FailureKind::UnusableInput | FailureKind::InvalidConfig | FailureKind::Missing)
    }
}

/// The result of asking.
pub type Asked<T> = Result<Answer<T>, CallFailure>;

/// A scaling policy that can be asked.
pub trait ScalingPolicy {
    /// Which code it is.
    fn id(&self) -> &PolicyId;
    /// `state-version` of its description; 0 = keeps no state.
    fn state_version(&self) -> u32;
    /// The signals it wants with this config (a JSON object).
    fn wants(&self, config: &str) -> Asked<Vec<SignalWant>>;
    /// Proposes a size.
    fn evaluate(&self, input: &ScalingInput) -> Asked<ScalingDecision>;
    /// Carries state of an older layout over to the present one.
    fn migrate(&self, version: u32, state: &[u8]) -> Asked<Vec<u8>>;
}

/// A placement policy that can be asked.
pub trait PlacementPolicy {
    /// Which code it is.
    fn id(&self) -> &PolicyId;
    /// `state-version` of its description; 0 = keeps no state.
    fn state_version(&self) -> u32;
    /// Proposes nodes and victims.
    fn place(&self, input: &PlacementInput) -> Asked<PlacementDecision>;
    /// Carries state of an older layout over to the present one.
    fn migrate(&self, version: u32, state: &[u8]) -> Asked<Vec<u8>>;
}
