//! What is told to people: conditions as data, with closed reasons.
//!
//! A message says nothing that changes from one evaluation to the next while the facts stay the same (no ages, no
//! measured values): the decision's record has those, and a status is not written for them.

use std::time::Duration;

use crate::contract::MetricKind;
use crate::decision::{Decision, Limiter, SignalSeen};
use crate::job::{JobSpec, Mode};
use crate::policy::FailureKind;
use crate::state::{Condition, ConditionKind as Kind, ConditionReason as Why, Steadiness};
use crate::time::Time;

/// A condition that begins now.
pub fn new(kind: Kind, status: bool, reason: Why, message: impl Into<String>, now: Time) -> Condition {
    Condition { kind, status, reason, message: message.into(), since: now }
}

/// Puts conditions into a list, one per kind, ordered by kind. `since` moves only when the status changes.
pub fn merge(all: &mut Vec<Condition>, fresh: Vec<Condition>) {
    for mut condition in fresh {
        match all.iter_mut().find(|c| c.kind == condition.kind) {
            Some(old) => {
                if old.status == condition.status {
                    condition.since = old.since;
                }
                *old = condition;
            }
            None => all.push(condition),
        }
    }
    all.sort_by_key(|c| c.kind);
}

/// `ScalingActive`, `ScalingLimited` and `PolicyHealthy` as a decision leaves them. [`merge`] them into the state.
pub fn scaling(job: &JobSpec, decision: &Decision, now: Time) -> Vec<Condition> {
    vec![active(job, decision, now), limited(decision, now), healthy(decision, now)]
}

/// How long what a condition says must stand before its changes are shown at once again.
const CALM: Duration = Duration::from_secs(300);
/// Changes that are shown at once before it is held to that.
const AT_ONCE: u32 = 4;

/// Takes out of `fresh` a `ScalingLimited` that goes back and forth: where two limiters (or one that just touches) take
/// turns with each evaluation, a status would be written each time. It is shown again when it has stood for five minutes,
/// and whenever the target moves, since that is written anyway. The decision itself names its limits all the same.
pub fn steady(seen: &mut Steadiness, fresh: &mut Vec<Condition>, moved: bool, now: Time) {
    let Some(limited) = fresh.iter().find(|c| c.kind == Kind::ScalingLimited) else { return };
    let says = Some((limited.status, limited.reason));
    if seen.says != says {
        let was_calm = now.since(seen.since) >= CALM;
        let changes = if was_calm { 1 } else { seen.changes.saturating_add(1) };
        *seen = Steadiness { says, since: now, changes };
    }
    if !moved && seen.changes > AT_ONCE && now.since(seen.since) < CALM {
        fresh.retain(|c| c.kind != Kind::ScalingLimited);
    }
}

fn active(job: &JobSpec, decision: &Decision, now: Time) -> Condition {
    let is = |status, reason, message: String| new(Kind::ScalingActive, status, reason, message, now);
    let Some(scaling) = job.scaling.as_ref().filter(|s| s.mode != Mode::Off) else {
        return is(false, Why::ScalingDisabled, "no scaling policy is active: the size is spec.replicas".to_owned());
    };
    if let Some(mend) = &decision.mend {
        return is(false, mend.reason, mend.message.clone());
    }
    if let Some(failure) = decision.failure.as_ref().filter(|_| !decision.answered) {
        let reason = match failure.kind {
            FailureKind::Missing => Why::PolicyMissing,
            FailureKind::InvalidConfig => Why::InvalidConfig,
            FailureKind::UnusableInput => missing_metric(job, decision).unwrap_or(Why::PolicyFailed),
            _ if limited_by(decision, Limiter::CircuitOpen) => Why::CircuitOpen,
            _ => Why::PolicyFailed,
        };
        return is(false, reason, failure.message.clone());
    }
    if let Some(reason) = missing_metric(job, decision) {
        let bad = of_metrics(decision).find(|s| s.mean.is_none());
        let note = bad.and_then(|s| s.note.as_deref()).unwrap_or("there is no sample");
        let name = bad.map_or("", |s| s.name.as_str());
        return is(false, reason, format!("signal {name}: {note}"));
    }
    // A module may do without a signal; one that holds and has none at all waits for them.
    let holds = decision.proposed.is_none() || limited_by(decision, Limiter::SignalHold);
    let blind = decision.signals.iter().all(|s| s.mean.is_none());
    if let Some(first) = decision.signals.first().filter(|_| holds && blind) {
        let note = first.note.as_deref().unwrap_or("there is no sample");
        return is(false, Why::SignalQuality, format!("signal {}: {note}", first.name));
    }
    is(true, Why::ValidMetricFound, format!("the policy {:?} decides", scaling.module))
}

fn of_metrics(decision: &Decision) -> impl Iterator<Item = &SignalSeen> {
    decision.signals.iter().filter(|s| s.metric.is_some())
}

/// HPA's reason, where none of the metrics has a value.
fn missing_metric(job: &JobSpec, decision: &Decision) -> Option<Why> {
    let metrics = job.scaling.as_ref().map(|s| s.metrics.as_slice()).unwrap_or_default();
    let first = metrics.first()?;
    let blind = of_metrics(decision).next().is_some() && of_metrics(decision).all(|s| s.mean.is_none());
    if !blind {
        return None;
    }
    Some(match first.kind {
        MetricKind::Resource => Why::FailedGetResourceMetric,
        MetricKind::ContainerResource => Why::FailedGetContainerResourceMetric,
        MetricKind::Pods => Why::FailedGetPodsMetric,
        MetricKind::Object => Why::FailedGetObjectMetric,
        MetricKind::External => Why::FailedGetExternalMetric,
    })
}

fn limited_by(decision: &Decision, by: Limiter) -> bool {
    decision.limits.iter().any(|l| l.by == by)
}

/// The last limiter that changed the size says why it is what it is.
fn limited(decision: &Decision, now: Time) -> Condition {
    let last = decision.limits.iter().rev().find(|l| l.by != Limiter::RecommendOnly).or(decision.limits.last());
    if let Some(limit) = last {
        return new(Kind::ScalingLimited, true, reason(limit.by), limit.message.clone(), now);
    }
    let message = "the proposed size is within the acceptable range";
    new(Kind::ScalingLimited, false, Why::DesiredWithinRange, message, now)
}

fn fault(kind: FailureKind) -> Why {
    match kind {
        FailureKind::Missing => Why::PolicyMissing,
        FailureKind::InvalidConfig => Why::InvalidConfig,
        _ => Why::PolicyFailed,
    }
}

fn healthy(decision: &Decision, now: Time) -> Condition {
    let is = |status, reason, message: String| new(Kind::PolicyHealthy, status, reason, message, now);
    match (&decision.failure, &decision.placement, &decision.policy) {
        (Some(failure), ..) => {
            let open = limited_by(decision, Limiter::CircuitOpen);
            if failure.kind == FailureKind::UnusableInput && !open {
                // The policy works; the input is what has to be mended, and ScalingActive says so.
                return is(true, Why::PolicyAnswers, "the policy answers".to_owned());
            }
            let reason = match fault(failure.kind) {
                Why::PolicyFailed if open => Why::CircuitOpen,
                reason => reason,
            };
            is(false, reason, failure.message.clone())
        }
        // What it leaves undone is done without it, so nothing waits for a mend.
        (None, Some(failure), _) => {
            is(false, fault(failure.kind), format!("the placement policy: {}", failure.message))
        }
        (None, None, Some(policy)) => {
            is(true, Why::PolicyAnswers, format!("{} {} answers", policy.name, policy.version))
        }
        (None, None, None) => is(true, Why::NotAsked, "no policy was asked".to_owned()),
    }
}

/// The condition reason of a limiter.
pub fn reason(by: Limiter) -> Why {
    match by {
        Limiter::TooFewReplicas => Why::TooFewReplicas,
        Limiter::TooManyReplicas => Why::TooManyReplicas,
        Limiter::ScaleUpLimit => Why::ScaleUpLimit,
        Limiter::ScaleDownLimit => Why::ScaleDownLimit,
        Limiter::ScaleUpStabilized => Why::ScaleUpStabilized,
        Limiter::ScaleDownStabilized => Why::ScaleDownStabilized,
        Limiter::LegalSize => Why::LegalSize,
        Limiter::SignalQuality | Limiter::SignalHold => Why::SignalQuality,
        Limiter::SourceRecovering => Why::SourceRecovering,
        Limiter::StateRecovering => Why::StateRecovering,
        Limiter::ResizeInFlight => Why::ResizeInFlight,
        Limiter::CoolDown => Why::CoolDown,
        Limiter::GrowthRefused => Why::GrowthRefused,
        Limiter::CircuitOpen => Why::CircuitOpen,
        Limiter::RecommendOnly => Why::RecommendOnly,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds at which a change of `ScalingLimited` was shown, of one that says at each second what `says` gives.
    fn shown(says: impl Fn(u64) -> bool, moved: impl Fn(u64) -> bool, seconds: u64) -> Vec<u64> {
        let (mut seen, mut all, mut at) = (Steadiness::default(), Vec::new(), Vec::new());
        for second in 0..seconds {
            let now = Time(1_000_000 + second * 1000);
            let status = says(second);
            let why = if status { Why::ScaleUpLimit } else { Why::DesiredWithinRange };
            let mut fresh = vec![new(Kind::ScalingLimited, status, why, "", now)];
            steady(&mut seen, &mut fresh, moved(second), now);
            let before = all.clone();
            merge(&mut all, fresh);
            if before != all {
                at.push(second);
            }
        }
        at
    }

    #[test]
    fn a_limiter_that_goes_back_and_forth_costs_a_few_writes_in_all() {
        assert_eq!(shown(|s| s % 2 == 1, |_| false, 3600), [0, 1, 2, 3]);
        assert_eq!(shown(|s| s / 60 % 2 == 1, |_| false, 3600), [0, 60, 120, 180]);
    }

    #[test]
    fn what_stands_is_shown_and_after_a_calm_at_once_again() {
        let restless_until_100 = |s: u64| if s < 100 { s % 2 != 1 } else { s < 500 };
        assert_eq!(shown(restless_until_100, |_| false, 1000)[4..], [400, 500], "it stood from 100 on");
    }

    #[test]
    fn a_move_shows_it_as_it_is() {
        assert_eq!(shown(|s| s % 2 == 1, |s| s == 50, 100), [0, 1, 2, 3, 50]);
    }
}
