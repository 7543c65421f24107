//! The config and what is wrong with one.

use schemars::JsonSchema;
use serde::Deserialize;

/// The config.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct GpuEfficiencyConfig {
    /// GPUs at or above this share are busy.
    pub grow_above: f64,
    /// GPUs at or below this share idle.
    pub shrink_below: f64,
    /// Seconds that they must be busy before the job grows.
    pub grow_after_seconds: u32,
    /// Seconds that they must idle before the job shrinks.
    pub shrink_after_seconds: u32,
    /// Largest growth at once, as a share of the size (at least one worker).
    pub grow_by: f64,
    /// PromQL for the job's training throughput (samples or steps per second, summed over workers or per pod). Without
    /// it the built-in signal `training-throughput` is taken, which agents in the pods tell; without that too the policy
    /// goes by utilisation alone.
    pub throughput_query: Option<String>,
    /// What a worker more must give at least, as a share of what a worker gives at the smaller size.
    pub min_marginal_efficiency: f64,
    /// Seconds within which a resize must have earned what it cost.
    pub payback_seconds: u32,
    /// Seconds after which a throughput measured at a size is forgotten, so that the size may be tried again.
    pub forget_after_seconds: u32,
    /// Seconds over which the operator averages, 15 to 3600.
    pub window_seconds: u32,
}

impl Default for GpuEfficiencyConfig {
    fn default() -> Self {
        GpuEfficiencyConfig {
            grow_above: 0.85,
            shrink_below: 0.4,
            grow_after_seconds: 120,
            shrink_after_seconds: 300,
            grow_by: 0.5,
            throughput_query: None,
            min_marginal_efficiency: 0.6,
            payback_seconds: 1800,
            forget_after_seconds: 7200,
            window_seconds: 60,
        }
    }
}

impl GpuEfficiencyConfig {
    /// The share that a shrink aims at: between the two marks, so that neither acts right after it.
    pub(crate) fn middle(&self) -> f64 {
        f64::midpoint(self.grow_above, self.shrink_below)
    }

    pub(crate) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut check = |good: bool, text: String| {
            if !good {
                problems.push(text);
            }
        };
        let share = |v: f64| v > 0.0 && v <= 1.0;
        check(share(self.grow_above), format!("config.growAbove: above 0, at most 1, is {}", self.grow_above));
        check(
            (0.0..1.0).contains(&self.shrink_below),
            format!("config.shrinkBelow: 0 to below 1, is {}", self.shrink_below),
        );
        check(
            self.grow_by > 0.0 && self.grow_by <= 10.0,
            format!("config.growBy: above 0, at most 10, is {}", self.grow_by),
        );
        check(
            self.shrink_below < self.grow_above / (1.0 + self.grow_by),
            format!(
                "config.shrinkBelow: must be below growAbove / (1 + growBy) = {:.2}, or each growth would call for a shrink",
                self.grow_above / (1.0 + self.grow_by)
            ),
        );
        check(
            (0.0..=1.0).contains(&self.min_marginal_efficiency),
            format!("config.minMarginalEfficiency: 0 to 1, is {}", self.min_marginal_efficiency),
        );
        check(self.payback_seconds > 0, "config.paybackSeconds: must be above 0".to_owned());
        check(
            (15..=3600).contains(&self.window_seconds),
            format!("config.windowSeconds: 15 to 3600, is {}", self.window_seconds),
        );
        problems
    }
}
