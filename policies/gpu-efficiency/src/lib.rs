//! `gpu-efficiency`: grows a job while its GPUs stay busy and another worker is worth its cost, shrinks it when they idle.
//!
//! Busy GPUs alone do not say that more of them help: each worker of data-parallel training is near 100 % at any size.
//! So where the job's throughput can be measured, the policy remembers it by size, and a growth must have paid.
#![warn(missing_docs)]

mod config;
mod memory;
mod worth;

use eto_policy_sdk::prelude::*;

pub use config::GpuEfficiencyConfig;

use memory::Memory;
use worth::{Verdict, growth, shrink_pays, step_back};

/// Name of the optional signal, a built-in one.
const THROUGHPUT: &str = "training-throughput";
const UTILISATION: &str = "gpu-utilisation";

/// The policy.
pub struct GpuEfficiency;

impl ScalingPolicy for GpuEfficiency {
    const NAME: &'static str = "gpu-efficiency";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const SUMMARY: &'static str = "Grows while GPUs are busy and another worker pays, shrinks when they idle";
    const STATE_VERSION: u32 = 1;
    type Config = GpuEfficiencyConfig;

    fn signals(config: &GpuEfficiencyConfig) -> Vec<SignalWant> {
        let utilisation = SignalWant::utilisation(UTILISATION).required().window(config.window_seconds);
        // Not required: without it, the policy goes by utilisation alone. Without a query it is the built-in signal.
        let throughput = SignalWant {
            query: config.throughput_query.clone(),
            direction: Direction::None,
            high: 1e12,
            ..SignalWant::utilisation(THROUGHPUT)
        };
        vec![utilisation, throughput.window(config.window_seconds)]
    }

    fn problems(config: &GpuEfficiencyConfig) -> Vec<String> {
        config.problems()
    }

    fn evaluate(input: &ScalingInput, config: &GpuEfficiencyConfig) -> Result<ScalingDecision, PolicyError> {
        let mut memory: Memory = kept(input.state.as_ref(), Self::STATE_VERSION).unwrap_or_default();
        memory.see_size(input.sizes.target);
        memory.forget(input.now_ms, config);
        let decision = match settled(input) {
            Err(reason) => {
                memory.reset_clocks();
                ScalingDecision::hold(reason)
            }
            Ok(()) => match input.signal(UTILISATION).and_then(Signal::mean_ok) {
                None => {
                    memory.reset_clocks();
                    let text = "no fresh GPU utilisation, so the size stays";
                    ScalingDecision::hold(Reason::new("NoSample", text).signal(UTILISATION))
                }
                Some(busy) => {
                    let throughput = throughput(input);
                    memory.learn(input, throughput, config);
                    decide(input, config, &mut memory, busy)
                }
            },
        };
        decision.keep(&memory)
    }
}

export_policy!(Scaling: GpuEfficiency);

/// While a resize is under way, nothing measured speaks of a size.
fn settled(input: &ScalingInput) -> Result<(), Reason> {
    let sizes = &input.sizes;
    if sizes.ready >= sizes.target && sizes.current == sizes.target && input.job.running_since_ms > 0 {
        return Ok(());
    }
    let text = format!("{} of {} workers are ready", sizes.ready, sizes.target);
    Err(Reason::new("Settling", text))
}

/// Samples per second (or whatever the query counts) of the whole job.
fn throughput(input: &ScalingInput) -> Option<f64> {
    let signal = input.signal(THROUGHPUT).filter(|s| s.quality == Quality::Ok)?;
    let all: f64 = signal.levels().map(|(_, level)| level).sum();
    (all > 0.0 && all.is_finite()).then_some(all)
}

fn decide(input: &ScalingInput, config: &GpuEfficiencyConfig, memory: &mut Memory, busy: f64) -> ScalingDecision {
    let size = input.sizes.target;
    let measured =
        |code: &str, text: String, target: f64| Reason::new(code, text).signal(UTILISATION).value(busy).target(target);
    if busy > config.shrink_below
        && let Some((to, efficiency)) = step_back(input, config, memory)
    {
        memory.reset_clocks();
        let text = format!("the last growth gave {efficiency:.2} of a worker's share: back to {to}");
        return ScalingDecision::to(to, Reason::new("GrowthDidNotPay", text).signal(THROUGHPUT).value(efficiency));
    }
    if busy >= config.grow_above {
        let long = memory.busy_for(input.now_ms);
        if long < u64::from(config.grow_after_seconds) * 1000 {
            let text = format!("GPUs at {busy:.2}, for {} s of {}", long / 1000, config.grow_after_seconds);
            return ScalingDecision::hold(measured("BusySince", text, config.grow_above));
        }
        return match growth(input, config, memory) {
            Verdict::Grow { to, efficiency } => {
                memory.reset_clocks();
                let text = format!(
                    "GPUs at {busy:.2} for {} s: {to} workers, each expected to give {efficiency:.2}",
                    long / 1000
                );
                ScalingDecision::to(to, measured("Busy", text, config.grow_above))
            }
            Verdict::Stay(reason) => ScalingDecision::hold(reason.value(busy)),
        };
    }
    if busy <= config.shrink_below {
        let long = memory.idle_for(input.now_ms);
        if long < u64::from(config.shrink_after_seconds) * 1000 {
            let text = format!("GPUs at {busy:.2}, for {} s of {}", long / 1000, config.shrink_after_seconds);
            return ScalingDecision::hold(measured("IdleSince", text, config.shrink_below));
        }
        let to = input.clamp(worth::size_for(size, busy, config.middle())).min(size);
        if to == size || !shrink_pays(input, config, to) {
            let text = format!("GPUs at {busy:.2}, but fewer than {size} workers would not pay or are not allowed");
            return ScalingDecision::hold(measured("NotWorthIt", text, config.shrink_below));
        }
        memory.reset_clocks();
        let text = format!("GPUs at {busy:.2} for {} s: {to} workers", long / 1000);
        return ScalingDecision::to(to, measured("Idle", text, config.shrink_below));
    }
    memory.reset_clocks();
    let text = format!("GPUs at {busy:.2}, between {} and {}", config.shrink_below, config.grow_above);
    ScalingDecision::hold(measured("Steady", text, config.grow_above))
}
