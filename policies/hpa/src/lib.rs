//! `hpa`: the replica calculation of Kubernetes' `HorizontalPodAutoscaler` v2 for `spec.scalingPolicy.metrics`.
//!
//! The answers equal the Go controller's, its integer truncations and float ceilings included. What the controller
//! does *after* the calculation (bounds, `behavior`, stabilisation) is the guard's and not done here.
#![warn(missing_docs)]

mod amounts;
mod config;
mod external;
mod pods;
mod proposal;

pub use config::HpaConfig;

use eto_policy_sdk::prelude::*;
use proposal::{Fault, Proposal};

/// The policy.
pub struct Hpa;

impl ScalingPolicy for Hpa {
    const NAME: &'static str = "hpa";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const SUMMARY: &'static str =
        "The replica calculation of HorizontalPodAutoscaler v2 for spec.scalingPolicy.metrics";
    type Config = HpaConfig;

    fn evaluate(input: &ScalingInput, config: &HpaConfig) -> Result<ScalingDecision, PolicyError> {
        let proposals: Vec<_> = input.metrics.iter().map(|m| propose(input, m, config)).collect();
        decide(input, &proposals)
    }
}

export_policy!(Scaling: Hpa);

/// What one metric asks for.
fn propose(input: &ScalingInput, metric: &Metric, config: &HpaConfig) -> Result<Proposal, Fault> {
    let signal = input.signal_of(metric).ok_or_else(|| Fault::no_sample(metric, "the operator gave no signal"))?;
    if !signal.quality.is_fresh() {
        return Err(Fault::no_sample(metric, quality_text(signal.quality)));
    }
    match metric.kind {
        MetricKind::Resource | MetricKind::ContainerResource | MetricKind::Pods => {
            pods::propose(input, metric, signal, config)
        }
        MetricKind::Object | MetricKind::External => external::propose(input, metric, signal),
    }
}

fn quality_text(quality: Quality) -> &'static str {
    match quality {
        Quality::Stale => "its newest sample is too old",
        Quality::Invalid => "the source gave NaN, infinities or blanks",
        _ => "it has no sample",
    }
}

/// The largest proposal counts. A metric that can't be judged blocks shrinking: it might have asked for more.
fn decide(input: &ScalingInput, proposals: &[Result<Proposal, Fault>]) -> Result<ScalingDecision, PolicyError> {
    let faults: Vec<&Fault> = proposals.iter().filter_map(|p| p.as_ref().err()).collect();
    let mut good: Vec<&Proposal> = proposals.iter().filter_map(|p| p.as_ref().ok()).collect();
    good.sort_by_key(|p| std::cmp::Reverse(p.replicas)); // stable: of equal ones the first listed leads
    let blocked = |best: u32| !faults.is_empty() && best < input.sizes.target;
    match good.first() {
        Some(best) if !blocked(best.replicas) => {
            let mut decision = ScalingDecision::to(best.replicas, best.reason());
            for reason in good.iter().skip(1).map(|p| p.reason()).chain(faults.iter().map(|f| f.reason())) {
                decision = decision.because(reason);
            }
            Ok(decision)
        }
        _ => held(&faults, &good),
    }
}

/// Nothing to act on, or a shrink that a faulty metric blocks.
fn held(faults: &[&Fault], good: &[&Proposal]) -> Result<ScalingDecision, PolicyError> {
    if let Some(mend) = faults.iter().find_map(|f| f.to_mend()) {
        return Err(PolicyError::UnusableInput(mend));
    }
    let first = match faults.first() {
        Some(fault) => fault.reason(),
        None => Reason::new("NoMetrics", "spec.scalingPolicy.metrics is empty, so there is nothing to go by"),
    };
    let others = faults.iter().skip(1).map(|f| f.reason()).chain(good.iter().map(|p| p.reason()));
    Ok(others.fold(ScalingDecision::hold(first), ScalingDecision::because))
}
