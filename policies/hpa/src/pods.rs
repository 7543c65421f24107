//! Metrics with a sample per worker: Resource, `ContainerResource` and Pods.

use eto_policy_sdk::prelude::*;

use crate::amounts::{Tolerance, ceil_times, from_milli, milli, ratio, total};
use crate::config::HpaConfig;
use crate::proposal::{Fault, Proposal};

/// The workers by what their sample is worth, as rows of the columns.
#[derive(Debug, Default)]
struct Groups {
    /// Their sample counts.
    measured: Vec<usize>,
    /// Not running yet, or not yet trusted: no sample counts.
    unready: Vec<usize>,
    /// Should have a sample and have none.
    missing: Vec<usize>,
}

/// What the samples are compared with.
enum Aim {
    /// Per cent of the request.
    Utilization(i64),
    /// Milli-units per worker.
    Average(i64),
}

/// A worker's sample with the request it is measured against, in milli-units.
#[derive(Clone, Copy)]
struct Sample {
    used: i64,
    request: i64,
}

pub(crate) fn propose(
    input: &ScalingInput,
    metric: &Metric,
    signal: &Signal,
    config: &HpaConfig,
) -> Result<Proposal, Fault> {
    let aim = aim(metric)?;
    let groups = group(input, metric, signal, config);
    let sample =
        |row: usize| Sample { used: signal.value(row).map_or(0, milli), request: signal.request(row).map_or(0, milli) };
    if let Aim::Utilization(_) = aim {
        check_requests(input, metric, signal)?;
    }
    let samples: Vec<Sample> = groups.measured.iter().map(|row| sample(*row)).collect();
    if samples.is_empty() {
        return Err(Fault::no_sample(metric, "no worker that counts has a sample"));
    }
    let (first, measured) = usage(metric, &aim, &samples)?;
    let current = input.sizes.target;
    let replicas = calculate(&aim, &groups, samples, sample, first, current, tolerance(input));
    let (measured, target, unit) = match aim {
        #[allow(clippy::cast_precision_loss, reason = "per cent")]
        Aim::Utilization(target) => (measured as f64, target as f64, "% of the request"),
        Aim::Average(target) => (from_milli(measured), from_milli(target), "per worker"),
    };
    Ok(Proposal { replicas, current, metric: metric.name.clone(), measured, target, unit })
}

fn tolerance(input: &ScalingInput) -> Tolerance {
    Tolerance { down: input.bounds.tolerance_down, up: input.bounds.tolerance_up }
}

fn aim(metric: &Metric) -> Result<Aim, Fault> {
    let aim = match metric.target {
        MetricTarget::Utilization(percent) => Aim::Utilization(i64::from(percent)),
        MetricTarget::AverageValue(value) => Aim::Average(milli(value)),
        MetricTarget::Value(_) => {
            return Err(Fault::mend(metric, "`value` fits metrics of kind Object or External; use `averageValue`"));
        }
    };
    match aim {
        Aim::Utilization(target) | Aim::Average(target) if target > 0 => Ok(aim),
        _ => Err(Fault::mend(metric, "its target must be above 0")),
    }
}

/// One worker without a request makes the whole job's utilisation meaningless.
fn check_requests(input: &ScalingInput, metric: &Metric, signal: &Signal) -> Result<(), Fault> {
    match input.workers.iter().find(|w| signal.request(w.row).is_none()) {
        None => Ok(()),
        Some(worker) => Err(Fault::mend(
            metric,
            format!(
                "missing request for {0} in worker {1}: set resources.requests.{0} (or a limit) in the job's template",
                metric.name, worker.index
            ),
        )),
    }
}

/// The controller's `groupPods`.
fn group(input: &ScalingInput, metric: &Metric, signal: &Signal, config: &HpaConfig) -> Groups {
    let is_cpu = metric.kind != MetricKind::Pods && metric.name == "cpu";
    let mut groups = Groups::default();
    for worker in input.workers.iter() {
        if worker.deleting || worker.phase == WorkerPhase::Failed {
            continue;
        }
        let rows = if worker.phase == WorkerPhase::Pending {
            &mut groups.unready
        } else if signal.value(worker.row).is_none() {
            &mut groups.missing
        } else if is_cpu && !cpu_counts(input.now_ms, &worker, signal, config) {
            &mut groups.unready
        } else {
            &mut groups.measured
        };
        rows.push(worker.row);
    }
    groups
}

/// Whether the CPU use of a worker counts: a starting process burns CPU that says nothing of its load.
fn cpu_counts(now_ms: u64, worker: &Worker, signal: &Signal, config: &HpaConfig) -> bool {
    if worker.ready == Readiness::Unknown || worker.started_ms == 0 {
        return false;
    }
    let not_ready = worker.ready == Readiness::NotReady;
    let after_start = |seconds: u32| worker.started_ms.saturating_add(u64::from(seconds) * 1000);
    if now_ms < after_start(config.cpu_initialization_period_seconds) {
        let sampled = signal.sampled_ms.get(worker.row).copied().unwrap_or(0);
        !not_ready && sampled >= worker.ready_changed_ms.saturating_add(signal.window_ms)
    } else {
        // Unready since (about) its start: it never served. Unready later: it did, so its use counts.
        !(not_ready && worker.ready_changed_ms < after_start(config.initial_readiness_delay_seconds))
    }
}

/// Ratio to the target, and what is reported as measured.
fn usage(metric: &Metric, aim: &Aim, samples: &[Sample]) -> Result<(f64, i64), Fault> {
    let used = total(samples.iter().map(|s| s.used));
    match aim {
        Aim::Utilization(target) => {
            let requested = total(samples.iter().map(|s| s.request));
            if requested == 0 {
                return Err(Fault::no_sample(metric, "no worker with a sample has a request"));
            }
            let percent = clamp_i64(i128::from(used) * 100 / i128::from(requested));
            Ok((ratio(percent, *target), percent))
        }
        Aim::Average(target) => {
            let average = used / i64::try_from(samples.len()).unwrap_or(i64::MAX);
            Ok((ratio(average, *target), average))
        }
    }
}

fn clamp_i64(value: i128) -> i64 {
    i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
}

/// The controller's `calcPlainMetricReplicas` and `GetResourceReplicas` after the first ratio.
fn calculate(
    aim: &Aim,
    groups: &Groups,
    mut samples: Vec<Sample>,
    sample: impl Fn(usize) -> Sample,
    first: f64,
    current: u32,
    tolerance: Tolerance,
) -> u32 {
    let rebalance = !groups.unready.is_empty() && first > 1.0;
    if !rebalance && groups.missing.is_empty() {
        return if tolerance.covers(first) { current } else { ceil_times(first, groups.measured.len()) };
    }
    // Missing samples are taken as what speaks against the move: full use against a shrink, none against a growth.
    let fill = |row: usize| {
        let request = sample(row).request;
        let used = match aim {
            _ if first > 1.0 => 0,
            Aim::Utilization(target) => clamp_i64(i128::from(request) * i128::from(*target.max(&100)) / 100),
            Aim::Average(target) => *target,
        };
        Sample { used, request }
    };
    #[allow(clippy::float_cmp, reason = "exactly at the target, a missing sample speaks neither way")]
    if first != 1.0 {
        samples.extend(groups.missing.iter().map(|row| fill(*row)));
    }
    if rebalance {
        samples.extend(groups.unready.iter().map(|row| Sample { used: 0, ..sample(*row) }));
    }
    let second = second_ratio(aim, &samples);
    let crossed = (first < 1.0 && second > 1.0) || (first > 1.0 && second < 1.0);
    if tolerance.covers(second) || crossed {
        return current;
    }
    let wanted = ceil_times(second, samples.len());
    // Surplus pods of an update must not turn a shrink into a growth, or the other way round.
    if (second < 1.0 && wanted > current) || (second > 1.0 && wanted < current) { current } else { wanted }
}

fn second_ratio(aim: &Aim, samples: &[Sample]) -> f64 {
    let used = total(samples.iter().map(|s| s.used));
    match aim {
        Aim::Utilization(target) => {
            let requested = total(samples.iter().map(|s| s.request)).max(1);
            ratio(clamp_i64(i128::from(used) * 100 / i128::from(requested)), *target)
        }
        Aim::Average(target) => ratio(used / i64::try_from(samples.len()).unwrap_or(i64::MAX).max(1), *target),
    }
}
