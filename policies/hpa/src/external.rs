//! Metrics of kind Object and External: one value for the whole job.

use eto_policy_sdk::prelude::*;

use crate::amounts::{Tolerance, ceil_times, from_milli, milli, ratio, replicas, total};
use crate::proposal::{Fault, Proposal};

pub(crate) fn propose(input: &ScalingInput, metric: &Metric, signal: &Signal) -> Result<Proposal, Fault> {
    let mut samples = (0..signal.values.len()).filter_map(|row| signal.value(row)).map(milli).peekable();
    if samples.peek().is_none() {
        return Err(Fault::no_sample(metric, "it has no sample"));
    }
    let used = total(samples);
    let tolerance = Tolerance { down: input.bounds.tolerance_down, up: input.bounds.tolerance_up };
    match metric.target {
        MetricTarget::Value(target) => whole(input, metric, used, aim(metric, target)?, tolerance),
        MetricTarget::AverageValue(target) => Ok(per_worker(input, metric, used, aim(metric, target)?, tolerance)),
        MetricTarget::Utilization(_) => Err(Fault::mend(
            metric,
            "a metric of kind Object or External takes `value` or `averageValue` as its target",
        )),
    }
}

fn aim(metric: &Metric, target: f64) -> Result<i64, Fault> {
    match milli(target) {
        target if target > 0 => Ok(target),
        _ => Err(Fault::mend(metric, "its target must be above 0")),
    }
}

/// `value`: in proportion to the workers that run and are ready.
fn whole(
    input: &ScalingInput,
    metric: &Metric,
    used: i64,
    target: i64,
    tolerance: Tolerance,
) -> Result<Proposal, Fault> {
    let current = input.sizes.target;
    let ratio = ratio(used, target);
    let replicas = if current == 0 {
        replicas(ratio.ceil())
    } else if tolerance.covers(ratio) {
        current
    } else {
        if input.workers.is_empty() {
            return Err(Fault::no_sample(metric, "the job has no workers"));
        }
        let ready = |w: &Worker| w.phase == WorkerPhase::Running && w.ready == Readiness::Ready;
        ceil_times(ratio, input.workers.iter().filter(ready).count())
    };
    Ok(Proposal {
        replicas,
        current,
        metric: metric.name.clone(),
        measured: from_milli(used),
        target: from_milli(target),
        unit: "in all",
    })
}

/// `averageValue`: what one worker may carry.
fn per_worker(input: &ScalingInput, metric: &Metric, used: i64, target: i64, tolerance: Tolerance) -> Proposal {
    let current = input.sizes.current;
    #[allow(clippy::cast_precision_loss, reason = "as the controller")]
    let (load, one) = (used as f64, target as f64);
    let covered = current > 0 && tolerance.covers(load / (one * f64::from(current)));
    let replicas = if covered { current } else { replicas((load / one).ceil()) };
    let average = (load / f64::from(current.max(1))).ceil() / 1000.0;
    Proposal {
        replicas,
        current: input.sizes.target,
        metric: metric.name.clone(),
        measured: average,
        target: from_milli(target),
        unit: "per worker",
    }
}
