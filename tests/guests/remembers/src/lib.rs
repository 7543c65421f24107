//! A guest for tests: it keeps 40 KiB of state that change with each call, and is never shrunk or grown by what it says.
use eto_policy_sdk::prelude::*;

/// Nothing to set.
#[derive(Default, serde::Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {}

#[derive(serde::Deserialize, serde::Serialize)]
struct Memory {
    /// Time of the first call of all; another one is a state that was lost.
    born_ms: u64,
    calls: u64,
    ballast: String,
}

/// The policy.
pub struct Remembers;

impl ScalingPolicy for Remembers {
    const NAME: &'static str = "remembers";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const SUMMARY: &'static str = "Keeps 40 KiB of state";
    const STATE_VERSION: u32 = 1;
    type Config = Config;

    fn evaluate(input: &ScalingInput, _: &Config) -> Result<ScalingDecision, PolicyError> {
        let new = || Memory { born_ms: input.now_ms, calls: 0, ballast: "0123456789abcdef".repeat(40 * 1024 / 16) };
        let mut memory = kept(input.state.as_ref(), Self::STATE_VERSION).unwrap_or_else(new);
        memory.calls += 1;
        ScalingDecision::hold(Reason::new("Remembers", "the size is held")).keep(&memory)
    }
}

export_policy!(Scaling: Remembers);
