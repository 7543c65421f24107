//! Whether a resize pays.

use eto_policy_sdk::prelude::*;

use crate::config::GpuEfficiencyConfig;
use crate::memory::Memory;

/// What comes of wanting to grow.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// To this size; what each new worker is expected to give, as a share of what one gives now.
    Grow { to: u32, efficiency: f64 },
    /// Not now.
    Stay(Reason),
}

/// What a worker between two sizes gives, as a share of what one gives at the smaller size.
fn marginal((small, low): (u32, f64), (large, high): (u32, f64)) -> Option<f64> {
    let more = f64::from(large.checked_sub(small)?);
    let share = (high - low) / more / (low / f64::from(small));
    share.is_finite().then_some(share)
}

/// If the growth to the present size gave too little, the size to go back to and what it gave.
pub(crate) fn step_back(input: &ScalingInput, config: &GpuEfficiencyConfig, memory: &Memory) -> Option<(u32, f64)> {
    let size = input.sizes.target;
    let trial = u64::from(config.window_seconds.saturating_add(config.grow_after_seconds)) * 1000;
    if input.since_ms(input.job.running_since_ms) < trial {
        return None; // the new size has not had its time yet
    }
    let (smaller, low) = memory.below(size)?;
    let efficiency = marginal((smaller, low), (size, memory.at(size)?))?;
    let to = input.clamp(smaller);
    (efficiency < config.min_marginal_efficiency && to < size && shrink_pays(input, config, to))
        .then_some((to, efficiency))
}

/// Whether to grow, and how far.
pub(crate) fn growth(input: &ScalingInput, config: &GpuEfficiencyConfig, memory: &Memory) -> Verdict {
    let size = input.sizes.target;
    let stay = |code: &str, text: String| Verdict::Stay(Reason::new(code, text));
    if input.capacity.pending > 0 {
        return stay("WorkersPending", format!("{} workers still wait for a node", input.capacity.pending));
    }
    let refused = input.resize.last_refused && input.since_ms(input.resize.last_ms) < payback_ms(config);
    if refused {
        return stay("GrowthRefused", "the last growth found no nodes; tried again after paybackSeconds".to_owned());
    }
    let room = if input.capacity.fits == NONE { u32::MAX } else { input.capacity.fits };
    let wish = size.saturating_add(step(size, config.grow_by).min(room));
    let to = match input.clamp(wish) {
        to if to > size => to,
        // Sizes can lie further apart than one step.
        _ => match input.next_size(size, Step::Up).filter(|next| next - size <= room) {
            Some(next) => next,
            None if room == 0 => return stay("NoRoom", "no node has room for a worker more".to_owned()),
            None => return stay("AtMaximum", format!("{size} is the largest size that is allowed and fits")),
        },
    };
    let efficiency = match expected(size, to, memory) {
        Some(efficiency) if efficiency < config.min_marginal_efficiency => {
            let text = format!(
                "a worker beyond {size} gives {efficiency:.2} of a share, less than {}",
                config.min_marginal_efficiency
            );
            return stay("DiminishingReturns", text);
        }
        Some(efficiency) => efficiency,
        None => 1.0,
    };
    // A resize stops the whole job for its cost; the new workers must make up for that within the payback time.
    let gain = f64::from(to - size) * efficiency * f64::from(config.payback_seconds);
    let cost = f64::from(size) * cost_seconds(input);
    if gain < cost {
        let text =
            format!("a resize costs {:.0} s of {size} workers, more than {to} would earn back", cost_seconds(input));
        return stay("ResizeTooDear", text);
    }
    Verdict::Grow { to, efficiency }
}

/// What each worker between `size` and `to` may be expected to give: measured there, or as at the last growth.
fn expected(size: u32, to: u32, memory: &Memory) -> Option<f64> {
    let here = memory.at(size)?;
    let tried = memory.above(size).filter(|(larger, _)| *larger <= to);
    match tried {
        Some(larger) => marginal((size, here), larger),
        None => memory.below(size).and_then(|smaller| marginal(smaller, (size, here))),
    }
}

/// Whether the workers saved are worth stopping all of them for the time of a resize.
pub(crate) fn shrink_pays(input: &ScalingInput, config: &GpuEfficiencyConfig, to: u32) -> bool {
    let size = input.sizes.target;
    let saved = f64::from(size.saturating_sub(to)) * f64::from(config.payback_seconds);
    saved >= f64::from(size) * cost_seconds(input)
}

/// How many workers carry at `aim` what `size` of them carry at `busy`.
pub(crate) fn size_for(size: u32, busy: f64, aim: f64) -> u32 {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates")]
    let wanted = (f64::from(size) * busy.max(0.0) / aim).ceil() as u32;
    wanted.min(MAX_TARGET)
}

fn step(size: u32, share: f64) -> u32 {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates")]
    let step = (f64::from(size) * share).floor() as u32;
    step.max(1)
}

fn payback_ms(config: &GpuEfficiencyConfig) -> u64 {
    u64::from(config.payback_seconds) * 1000
}

#[allow(clippy::cast_precision_loss, reason = "milliseconds of a resize")]
fn cost_seconds(input: &ScalingInput) -> f64 {
    input.resize.last_cost_ms as f64 / 1000.0
}
