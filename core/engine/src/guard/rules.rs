//! Which limits hold for a job.

use std::borrow::Cow;
use std::time::Duration;

use super::behavior::{LEGACY_WINDOW, TOLERANCE};
use crate::job::{Behavior, JobSpec, ScalingRules, SelectPolicy};

/// How long a module's proposals to grow must agree where the user gave no `behavior`: each growth restarts training,
/// so one batched jump a minute rather than many small ones.
pub const MODULE_UP_WINDOW: Duration = Duration::from_secs(60);

/// The limits of a job.
#[derive(Clone, Debug, PartialEq)]
pub enum Rules<'a> {
    /// `metrics[]` alone, without `behavior`: a cap of max(2 x current, 4), and a down window of 5 minutes.
    Legacy,
    /// The user's `behavior`, or the defaults for modules: windows of 60 s up and 300 s down, no rates.
    Behavior(Cow<'a, Behavior>),
}

impl Rules<'_> {
    /// The behavior, if it is not the legacy way.
    pub fn behavior(&self) -> Option<&Behavior> {
        match self {
            Rules::Legacy => None,
            Rules::Behavior(b) => Some(b),
        }
    }

    /// How long proposals to shrink must agree.
    pub fn down_window(&self) -> Duration {
        self.behavior().map_or(LEGACY_WINDOW, |b| b.down.stabilization)
    }

    /// How far back recommendations are looked at.
    pub fn longest_window(&self) -> Duration {
        self.behavior().map_or(LEGACY_WINDOW, |b| b.up.stabilization.max(b.down.stabilization))
    }
}

/// The limits of a job.
pub fn rules(job: &JobSpec) -> Rules<'_> {
    match &job.scaling {
        Some(scaling) => match &scaling.behavior {
            Some(behavior) => Rules::Behavior(Cow::Borrowed(behavior)),
            None if scaling.own_module => {
                Rules::Behavior(Cow::Owned(Behavior { up: free(MODULE_UP_WINDOW), down: free(LEGACY_WINDOW) }))
            }
            None => Rules::Legacy,
        },
        None => Rules::Legacy,
    }
}

fn free(stabilization: Duration) -> ScalingRules {
    ScalingRules { stabilization, select: SelectPolicy::Max, policies: Vec::new(), tolerance: TOLERANCE }
}
