//! Reading what the last call kept.

use serde::de::DeserializeOwned;

use crate::KeptState;

/// The state that the last call kept with [`crate::ScalingDecision::keep`]: `kept::<MyState>(input.state.as_ref(), VERSION)`.
///
/// `None` at first, after a loss, when it was written with another version, and when it can't be read. A policy must
/// do without it, carefully: after a loss it should not shrink on what it no longer knows.
pub fn kept<S: DeserializeOwned>(state: Option<&KeptState>, version: u32) -> Option<S> {
    state.filter(|s| s.version == version).and_then(|s| serde_json::from_slice(&s.bytes).ok())
}
