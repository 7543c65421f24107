//! Builders for what a policy answers.

use serde::Serialize;

use crate::{Direction, MAX_TARGET, Place, PlacementDecision, PolicyError, Reason, ScalingDecision, SignalWant};

/// Limits of the contract, see `reason` and `scaling-decision` in the WIT file.
const MAX_CODE: usize = 63;
const MAX_MESSAGE: usize = 256;
const MAX_REASONS: usize = 16;

impl Reason {
    /// A reason: `code` is CamelCase and stable (at most 63 characters), `message` one sentence for people. Longer
    /// texts are cut to what the contract allows.
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Reason {
            code: cut(code.into(), MAX_CODE),
            message: cut(message.into(), MAX_MESSAGE),
            signal: None,
            value: None,
            target: None,
        }
    }

    /// Names the signal it rests on.
    #[must_use]
    pub fn signal(mut self, name: impl Into<String>) -> Self {
        self.signal = Some(name.into());
        self
    }

    /// The value seen, in the signal's unit. NaN and infinities are left out.
    #[must_use]
    pub fn value(mut self, value: f64) -> Self {
        self.value = value.is_finite().then_some(value);
        self
    }

    /// The value aimed at, in the signal's unit. NaN and infinities are left out.
    #[must_use]
    pub fn target(mut self, target: f64) -> Self {
        self.target = target.is_finite().then_some(target);
        self
    }
}

/// The first `max` characters.
fn cut(mut text: String, max: usize) -> String {
    if let Some((at, _)) = text.char_indices().nth(max) {
        text.truncate(at);
    }
    text
}

impl ScalingDecision {
    /// Wants `target` workers (at most [`MAX_TARGET`]; more is cut to it).
    pub fn to(target: u32, reason: Reason) -> Self {
        ScalingDecision {
            target: Some(target.min(MAX_TARGET)),
            reasons: vec![reason],
            next_look_seconds: None,
            state: None,
        }
    }

    /// Wants the size to stay as it is.
    pub fn hold(reason: Reason) -> Self {
        ScalingDecision { target: None, reasons: vec![reason], next_look_seconds: None, state: None }
    }

    /// One more reason, less important than those before. More than 16 are dropped.
    #[must_use]
    pub fn because(mut self, reason: Reason) -> Self {
        if self.reasons.len() < MAX_REASONS {
            self.reasons.push(reason);
        }
        self
    }

    /// Ask again after `seconds` (at least 1) even if nothing else calls for it.
    #[must_use]
    pub fn look_again_in(mut self, seconds: u32) -> Self {
        self.next_look_seconds = Some(seconds.max(1));
        self
    }

    /// Keeps `state` for the next call of this job, as JSON. The policy's `STATE_VERSION` must be above 0.
    ///
    /// # Errors
    /// If it can't be written as JSON (a map with keys that are not text), an error of the policy.
    pub fn keep<S: Serialize>(mut self, state: &S) -> Result<Self, PolicyError> {
        let bytes = serde_json::to_vec(state).map_err(|e| PolicyError::Internal(format!("state: {e}")))?;
        self.state = Some(bytes);
        Ok(self)
    }
}

impl PlacementDecision {
    /// An answer without places and victims: the scheduler and the host choose.
    pub fn new(reason: Reason) -> Self {
        PlacementDecision { places: Vec::new(), victims: Vec::new(), reasons: vec![reason], state: None }
    }

    /// One more reason. More than 16 are dropped.
    #[must_use]
    pub fn because(mut self, reason: Reason) -> Self {
        if self.reasons.len() < MAX_REASONS {
            self.reasons.push(reason);
        }
        self
    }
}

impl Place {
    /// Worker `worker` (one of `add`) should go to the node at position `node`; the scheduler has the last word.
    pub fn preferred(worker: u32, node: u32) -> Self {
        Place { worker, node, required: false }
    }
}

impl SignalWant {
    /// A utilisation, 0.0 to 1.0, more of which asks for more workers: one of the built-in signals.
    pub fn utilisation(name: impl Into<String>) -> Self {
        SignalWant {
            name: name.into(),
            query: None,
            window_seconds: 0,
            history_seconds: 0,
            required: false,
            direction: Direction::MoreMeansGrow,
            low: 0.0,
            high: 1.0,
        }
    }

    /// A custom signal: PromQL that the operator runs in the job's namespace. `low` and `high` are the range that a
    /// sample can have.
    pub fn query(name: impl Into<String>, query: impl Into<String>, direction: Direction, low: f64, high: f64) -> Self {
        SignalWant { query: Some(query.into()), direction, low, high, ..SignalWant::utilisation(name) }
    }

    /// The policy can't decide without it: the guard acts when it is not `Ok`.
    #[must_use]
    pub fn required(mut self) -> Self {
        self.required = true;
        self
    }

    /// Averaged over `seconds` (15 to 3600).
    #[must_use]
    pub fn window(mut self, seconds: u32) -> Self {
        self.window_seconds = seconds;
        self
    }

    /// With `seconds` of history (at most 86400).
    #[must_use]
    pub fn history(mut self, seconds: u32) -> Self {
        self.history_seconds = seconds;
        self
    }
}
