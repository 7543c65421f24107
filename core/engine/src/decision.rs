//! A decision as data: what was proposed, what limited it, and why.

use serde::{Deserialize, Serialize};

use crate::contract::{Quality, Reason};
use crate::policy::{CallFailure, PolicyId};
use crate::time::Time;

/// The outcome of one evaluation of one job. Everything in it is for people and machines to read; acting on it is
/// `plan`'s business.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// When it was made.
    pub at: Time,
    /// The job it was made for.
    pub uid: String,
    /// Grows by one with each evaluation of the job; fences answers that come late.
    pub sequence: u64,
    /// Generation of the spec it was made for.
    pub generation: u64,
    /// Who was asked; `None` where no policy was (sizes by hand, mode Off).
    pub policy: Option<PolicyId>,
    /// Whether a policy answered: the job's own or, where that failed and the job wants it so, the built-in one.
    pub answered: bool,
    /// The size aimed at before.
    pub from: u32,
    /// What the policy proposed; `None` = hold, or it was not asked, or failed.
    pub proposed: Option<u32>,
    /// The size aimed at from now on (in mode Recommend: what it would be).
    pub target: u32,
    /// Whether `target` is to be carried out: false in mode Recommend.
    pub apply: bool,
    /// Everything that changed the proposal on its way to `target`, in order.
    pub limits: Vec<Limit>,
    /// The policy's reasons.
    pub reasons: Vec<Reason>,
    /// What was read.
    pub signals: Vec<SignalSeen>,
    /// Fuel burnt by all calls of this evaluation.
    pub fuel: u64,
    /// Why the job's own policy did not answer; `None` = it did, or was not asked.
    pub failure: Option<Failure>,
    /// What the job's owner has to mend before it can be scaled (for example a missing request), with the field to set.
    #[serde(default)]
    pub mend: Option<Mend>,
    /// Why the job's placement policy can't be asked, or did not answer when it was asked last; `None` = nothing is known
    /// against it, or there is none.
    #[serde(default)]
    pub placement: Option<Failure>,
    /// When the job wants to be looked at again, if before its period.
    pub next_look: Option<Time>,
}

/// A signal as it was when the decision was made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SignalSeen {
    /// Name of the signal.
    pub name: String,
    /// Position in `metrics[]` of the entry that it serves; `None` = it is a want of the policy alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<usize>,
    /// How far it can be trusted.
    pub quality: Quality,
    /// Share of the workers that should have a fresh sample and do, 0.0 to 1.0.
    pub coverage: f64,
    /// Age of the oldest sample used, in milliseconds.
    pub age_ms: u64,
    /// Mean over the workers with a sample: value/request where there are requests, else the value.
    pub mean: Option<f64>,
    /// Why it is not Ok, for people.
    pub note: Option<String>,
}

/// A limiter that changed a proposal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// Which limiter.
    pub by: Limiter,
    /// The size before it.
    pub from: u32,
    /// The size after it.
    pub to: u32,
    /// Until when it holds, if that is known.
    pub until: Option<Time>,
    /// The same for people.
    pub message: String,
}

/// The closed set of limiters. The first block has HPA's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Limiter {
    /// Below the minimum.
    TooFewReplicas,
    /// Above the maximum.
    TooManyReplicas,
    /// `behavior.scaleUp` rate, or the legacy cap max(2 x current, 4).
    ScaleUpLimit,
    /// `behavior.scaleDown` rate.
    ScaleDownLimit,
    /// Lower proposals within the up window.
    ScaleUpStabilized,
    /// Higher proposals within the down window.
    ScaleDownStabilized,
    /// Rounded to a legal size.
    LegalSize,
    /// A required signal is not Ok and its worst (or best) case does not ask for the change.
    SignalQuality,
    /// A required signal that is not monotone is not Ok.
    SignalHold,
    /// The source of the signals was away less than a window ago.
    SourceRecovering,
    /// State was lost or is old: no shrink for one stabilisation window.
    StateRecovering,
    /// A resize is in flight.
    ResizeInFlight,
    /// The last resize cost more than has passed since.
    CoolDown,
    /// The last growth did not get its nodes; it is not repeated before this passes.
    GrowthRefused,
    /// The circuit of this policy is open for this job.
    CircuitOpen,
    /// Mode Recommend: shown, not applied.
    RecommendOnly,
}

/// What a placement policy was asked last, and what came of it. For people: acting on an answer is `plan`'s business.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Placed {
    /// When it was asked.
    pub at: Time,
    /// Generation of the spec then.
    pub generation: u64,
    /// Who was asked; `None` = nothing of that name is served.
    pub policy: Option<PolicyId>,
    /// Whether the answer counts: false in mode Recommend.
    pub apply: bool,
    /// Nodes for new workers, by name.
    pub nodes: Vec<PlacedOn>,
    /// Workers that got a node and are not listed above, to keep this short.
    pub unlisted: u32,
    /// Indexes of the workers to give up, most dispensable first.
    pub victims: Vec<u32>,
    /// The policy's reasons.
    pub reasons: Vec<Reason>,
    /// Fuel burnt by the call.
    pub fuel: u64,
    /// Why there is no answer; `None` = there is.
    pub failure: Option<Failure>,
}

/// New workers of one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedOn {
    /// Name of the node.
    pub node: String,
    /// They are to wait for it rather than run elsewhere.
    pub required: bool,
    /// Their indexes, ascending.
    pub workers: Vec<u32>,
}

/// A policy that did not answer, as kept in a decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// In which way it failed.
    pub kind: crate::policy::FailureKind,
    /// The same for people.
    pub message: String,
    /// Failures in a row for this job and digest.
    pub in_a_row: u32,
}

impl From<(CallFailure, u32)> for Failure {
    fn from((f, in_a_row): (CallFailure, u32)) -> Self {
        Failure { kind: f.kind, message: f.message, in_a_row }
    }
}

/// Something that only the job's owner can mend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mend {
    /// Which condition reason it is.
    pub reason: crate::state::ConditionReason,
    /// Which metric, what is wrong and which field to set.
    pub message: String,
}
