//! The worst and the best case: what the input would be if the missing samples were such that they call for the most,
//! or the fewest, workers.

use crate::contract::{Direction, MetricTarget, Quality, ScalingInput, Signal, SignalShape};
use crate::view::{Gauge, View};
use crate::wants::Fill;

/// Which case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Case {
    /// The missing samples call for as many workers as they can: what has to be true before a shrink.
    Worst,
    /// They call for as few as they can: what has to be true before a growth.
    Best,
}

/// Whether the guard has to doubt a signal.
pub(super) fn is_doubtful(gauge: &Gauge, signal: &Signal) -> bool {
    gauge.wanted.required && signal.quality != Quality::Ok
}

/// Whether asking again with filled samples can tell anything: more of the signal means one thing, and there is a
/// sample to fill.
pub(super) fn is_fillable(gauge: &Gauge) -> bool {
    gauge.wanted.direction != Direction::None && gauge.suspect.contains(&true)
}

/// The input with the missing samples of required signals filled.
pub(super) fn filled(view: &View, base: &ScalingInput, case: Case) -> ScalingInput {
    let mut input = base.clone();
    let workers = f64::from(input.sizes.current.max(1));
    for (gauge, signal) in view.gauges.iter().zip(&mut input.signals) {
        if !is_doubtful(gauge, signal) || !is_fillable(gauge) {
            continue;
        }
        let many = (case == Case::Worst) == (gauge.wanted.direction == Direction::MoreMeansGrow);
        for (at, suspect) in gauge.suspect.iter().enumerate() {
            let request = signal.requests.get(at).copied().unwrap_or(0.0);
            let (true, Some(value), Some(when)) = (*suspect, signal.values.get_mut(at), signal.sampled_ms.get_mut(at))
            else {
                continue;
            };
            let per_job = if signal.shape == SignalShape::Job { workers } else { 1.0 };
            *value = assumed(gauge.wanted.fill, many, request, per_job);
            *when = input.now_ms;
        }
        signal.quality = Quality::Ok;
        signal.coverage = 1.0;
    }
    input
}

/// The value of a sample that is missing. HPA's assumptions for `metrics[]`: the whole request (or the target, if that
/// is above 100 %) or the target itself where that prevents a shrink, and nothing where it prevents a growth.
fn assumed(fill: Fill, many: bool, request: f64, workers: f64) -> f64 {
    let value = match (fill, many) {
        (Fill::Metric(_), false) => 0.0,
        (Fill::Metric(MetricTarget::Utilization(target)), true) => request * f64::from(target.max(100)) / 100.0,
        (Fill::Metric(MetricTarget::AverageValue(target)), true) => target * workers,
        (Fill::Metric(MetricTarget::Value(target)), true) => target,
        (Fill::Range { low, high }, _) => {
            // Resource signals come as amounts, their range is a share of the request.
            let unit = if request > 0.0 { request } else { 1.0 };
            unit * if many { high } else { low }
        }
    };
    if value.is_finite() { value } else { 0.0 }
}
