//! One worker more while the median GPU is busy, one less while it idles.
use eto_policy_sdk::prelude::*;

#[derive(serde::Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct BusyGrowConfig {
    /// Above this share the GPUs are busy.
    busy: f64,
    /// Below this share they idle.
    idle: f64,
}
impl Default for BusyGrowConfig {
    fn default() -> Self {
        BusyGrowConfig { busy: 0.9, idle: 0.3 }
    }
}
pub struct BusyGrow;
impl ScalingPolicy for BusyGrow {
    const NAME: &'static str = "busy-grow";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const SUMMARY: &'static str = "One worker more while GPUs are busy, one less while they idle";
    type Config = BusyGrowConfig;

    fn signals(_: &BusyGrowConfig) -> Vec<SignalWant> {
        vec![SignalWant::utilisation("gpu-utilisation").required().window(120)]
    }
    fn evaluate(input: &ScalingInput, config: &BusyGrowConfig) -> Result<ScalingDecision, PolicyError> {
        let Some(median) = input.signal("gpu-utilisation").and_then(|s| s.percentile(0.5)) else {
            return Ok(ScalingDecision::hold(Reason::new("NoSample", "no fresh GPU utilisation")));
        };
        let step = if median > config.busy { Some(Step::Up) } else { (median < config.idle).then_some(Step::Down) };
        let size = step.and_then(|s| input.next_size(input.sizes.target, s)).unwrap_or(input.sizes.target);
        Ok(ScalingDecision::to(size, Reason::new("Median", format!("the median GPU is at {median:.2}")).value(median)))
    }
}
export_policy!(Scaling: BusyGrow);
