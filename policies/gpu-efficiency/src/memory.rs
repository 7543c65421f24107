//! What the policy remembers from call to call.

use std::collections::BTreeMap;

use eto_policy_sdk::ScalingInput;
use serde::{Deserialize, Serialize};

use crate::config::GpuEfficiencyConfig;

/// Most sizes remembered; the oldest go first.
const MOST: usize = 64;
/// Weight of a new sample in the running mean.
const WEIGHT: f64 = 0.3;

/// The state, layout 1.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Memory {
    /// The size that the clocks below speak of.
    size: u32,
    /// Since when the GPUs have been busy, or idle, at that size; milliseconds, 0 = they are not.
    busy_since: u64,
    idle_since: u64,
    /// What was measured, by size.
    seen: BTreeMap<u32, Seen>,
}

/// A throughput measured at a size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Seen {
    /// Running mean of the job's throughput.
    pub(crate) throughput: f64,
    /// When it was last measured.
    at: u64,
}

impl Memory {
    /// A change of size starts the clocks anew.
    pub(crate) fn see_size(&mut self, size: u32) {
        if self.size != size {
            self.size = size;
            self.reset_clocks();
        }
    }

    pub(crate) fn reset_clocks(&mut self) {
        (self.busy_since, self.idle_since) = (0, 0);
    }

    /// Milliseconds that the GPUs have been busy; starts the clock at the first call.
    pub(crate) fn busy_for(&mut self, now: u64) -> u64 {
        self.idle_since = 0;
        if self.busy_since == 0 || self.busy_since > now {
            self.busy_since = now;
        }
        now - self.busy_since
    }

    /// The same for idling.
    pub(crate) fn idle_for(&mut self, now: u64) -> u64 {
        self.busy_since = 0;
        if self.idle_since == 0 || self.idle_since > now {
            self.idle_since = now;
        }
        now - self.idle_since
    }

    /// Takes a measurement in, once the averaging window lies within the present round.
    pub(crate) fn learn(&mut self, input: &ScalingInput, throughput: Option<f64>, config: &GpuEfficiencyConfig) {
        let Some(throughput) = throughput else { return };
        if input.since_ms(input.job.running_since_ms) < u64::from(config.window_seconds) * 1000 {
            return;
        }
        let seen = self.seen.entry(input.sizes.target).or_insert(Seen { throughput, at: input.now_ms });
        seen.throughput += WEIGHT * (throughput - seen.throughput);
        seen.at = input.now_ms;
        while self.seen.len() > MOST {
            let Some(oldest) = self.seen.iter().min_by_key(|(_, s)| s.at).map(|(size, _)| *size) else { break };
            self.seen.remove(&oldest);
        }
    }

    pub(crate) fn forget(&mut self, now: u64, config: &GpuEfficiencyConfig) {
        let keep = u64::from(config.forget_after_seconds) * 1000;
        self.seen.retain(|_, seen| {
            seen.throughput.is_finite() && seen.throughput > 0.0 && now.saturating_sub(seen.at) <= keep
        });
    }

    pub(crate) fn at(&self, size: u32) -> Option<f64> {
        self.seen.get(&size).map(|s| s.throughput)
    }

    /// The next smaller size that was measured.
    pub(crate) fn below(&self, size: u32) -> Option<(u32, f64)> {
        self.seen.range(..size).next_back().map(|(size, seen)| (*size, seen.throughput))
    }

    /// The next larger size that was measured.
    pub(crate) fn above(&self, size: u32) -> Option<(u32, f64)> {
        self.seen.range(size.saturating_add(1)..).next().map(|(size, seen)| (*size, seen.throughput))
    }
}
