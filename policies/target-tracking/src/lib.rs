//! `target-tracking`: as many workers as keep one signal at a target.
#![warn(missing_docs)]

use eto_policy_sdk::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the target speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Per {
    /// Of each worker: the mean over the workers, or a value of the whole job divided by its size.
    Worker,
    /// Of the whole job: its value, or the sum over the workers.
    Job,
}

/// Which way the signal pulls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Pull {
    /// More of it asks for more workers: utilisation, queue length.
    MoreMeansGrow,
    /// More of it asks for fewer: idle share, steps per second beyond what is needed.
    MoreMeansShrink,
}

/// The config.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct TargetTrackingConfig {
    /// A built-in signal, or the name of the one that `query` defines (`[a-z0-9-]`, at most 63 characters).
    pub signal: String,
    /// PromQL for a custom signal. The operator keeps it inside the job's namespace; `$job` in it stands for the job's name.
    pub query: Option<String>,
    /// What the signal is held at: a share (0.8 is 80 %) for a utilisation, else in the signal's unit. Above 0
    /// and, of each worker, at most `high`.
    pub target: f64,
    /// Whether `target` speaks of each worker or of the whole job.
    pub per: Per,
    /// Which way the signal pulls.
    pub direction: Pull,
    /// Seconds over which the operator averages, 15 to 3600.
    pub window_seconds: u32,
    /// The lowest and the highest sample that is possible: what missing samples are filled with to find out whether
    /// they could change the decision. By default 0 and 1 for a utilisation, 0 and ten times the target for any other signal.
    pub low: Option<f64>,
    /// See `low`.
    pub high: Option<f64>,
}

impl Default for TargetTrackingConfig {
    fn default() -> Self {
        TargetTrackingConfig {
            signal: "gpu-utilisation".to_owned(),
            query: None,
            target: 0.8,
            per: Per::Worker,
            direction: Pull::MoreMeansGrow,
            window_seconds: 60,
            low: None,
            high: None,
        }
    }
}

impl TargetTrackingConfig {
    fn range(&self) -> (f64, f64) {
        let share = self.query.is_none() && self.signal != THROUGHPUT;
        let high = if share { 1.0 } else { self.target * 10.0 };
        (self.low.unwrap_or(0.0), self.high.unwrap_or(high))
    }
}

/// Samples per second of the whole job: the one built-in signal that is no share.
const THROUGHPUT: &str = "training-throughput";
const BUILT_IN: [&str; 5] =
    ["cpu-utilisation", "memory-utilisation", "gpu-utilisation", "gpu-memory-utilisation", THROUGHPUT];

/// The policy.
pub struct TargetTracking;

impl ScalingPolicy for TargetTracking {
    const NAME: &'static str = "target-tracking";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const SUMMARY: &'static str = "As many workers as keep one signal at a target";
    type Config = TargetTrackingConfig;

    fn signals(config: &TargetTrackingConfig) -> Vec<SignalWant> {
        let (low, high) = config.range();
        let direction = match config.direction {
            Pull::MoreMeansGrow => Direction::MoreMeansGrow,
            Pull::MoreMeansShrink => Direction::MoreMeansShrink,
        };
        let want = SignalWant::utilisation(&*config.signal).required().window(config.window_seconds);
        vec![SignalWant { query: config.query.clone(), direction, low, high, ..want }]
    }

    fn problems(config: &TargetTrackingConfig) -> Vec<String> {
        let mut problems = Vec::new();
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if config.signal.is_empty() || config.signal.len() > 63 || !config.signal.chars().all(plain) {
            problems.push("config.signal: 1 to 63 characters of a-z, 0-9 and -".to_owned());
        }
        match (&config.query, BUILT_IN.contains(&&*config.signal)) {
            (None, false) => problems.push(format!(
                "config.signal: `{}` is not built in ({}); give its PromQL in `query`",
                config.signal,
                BUILT_IN.join(", ")
            )),
            (Some(_), true) => {
                problems.push(format!("config.query: `{}` is built in and takes no query", config.signal));
            }
            _ => {}
        }
        if !(config.target > 0.0 && config.target.is_finite()) {
            problems.push(format!("config.target: must be above 0, is {}", config.target));
        }
        if !(15..=3600).contains(&config.window_seconds) {
            problems.push(format!("config.windowSeconds: 15 to 3600, is {}", config.window_seconds));
        }
        let (low, high) = config.range();
        if !(low.is_finite() && high.is_finite() && low < high) {
            problems.push(format!("config.low, config.high: {low} must be below {high}"));
        }
        // A sum over the workers may be above what one of them can reach.
        if config.per == Per::Worker && config.target.is_finite() && config.target > high {
            problems.push(format!(
                "config.target: {} is above the highest sample, {high}, so the job would only shrink; a utilisation is a \
                 share, 0.8 is 80 %{}",
                config.target,
                if config.high.is_none() { " (`high` is for one that can be above 1)" } else { "" }
            ));
        }
        problems
    }

    fn evaluate(input: &ScalingInput, config: &TargetTrackingConfig) -> Result<ScalingDecision, PolicyError> {
        let Some((signal, value)) = input.signal(&config.signal).and_then(|s| Some((s, measured(input, s, config)?)))
        else {
            let text = format!("{} has no fresh sample, so the size stays", config.signal);
            return Ok(ScalingDecision::hold(Reason::new("NoSample", text).signal(&*config.signal)));
        };
        let ratio = match config.direction {
            Pull::MoreMeansGrow => value / config.target,
            Pull::MoreMeansShrink => config.target / value.max(f64::MIN_POSITIVE),
        };
        let size = input.sizes.target;
        let within = ratio >= 1.0 - input.bounds.tolerance_down && ratio <= 1.0 + input.bounds.tolerance_up;
        let wanted = if within { size } else { times(size, ratio) };
        let (code, wanted) = match wanted.cmp(&size) {
            std::cmp::Ordering::Equal => ("AtTarget", size),
            std::cmp::Ordering::Greater => ("AboveTarget", input.clamp(wanted)),
            std::cmp::Ordering::Less => ("BelowTarget", input.clamp(wanted)),
        };
        let text = format!("{} is {value:.3}, the target {}: {wanted} workers", signal.name, config.target);
        let reason = Reason::new(code, text).signal(&*signal.name).value(value).target(config.target);
        Ok(ScalingDecision::to(input.clamp(wanted), reason))
    }
}

export_policy!(Scaling: TargetTracking);

/// The signal as the target speaks of it.
fn measured(input: &ScalingInput, signal: &Signal, config: &TargetTrackingConfig) -> Option<f64> {
    let mean = signal.mean_ok()?;
    let size = f64::from(input.sizes.target.max(1));
    let value = match (signal.shape, config.per) {
        (SignalShape::PerWorker, Per::Worker) | (SignalShape::Job, Per::Job) => mean,
        (SignalShape::PerWorker, Per::Job) => mean * size,
        (SignalShape::Job, Per::Worker) => mean / size,
    };
    Some(value.max(0.0))
}

/// `ceil(size * ratio)`, at least from one worker on, never more than the contract takes.
fn times(size: u32, ratio: f64) -> u32 {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates")]
    let wanted = (f64::from(size.max(1)) * ratio).ceil() as u32;
    wanted.min(MAX_TARGET)
}
