//! How many workers others may evict at a time.

use std::time::Duration;

use crate::job::JobSpec;
use crate::observe::Pod;
use crate::state::{ConditionKind, JobState, Phase};
use crate::time::Time;

/// A job that has not trained for so long has nothing more that a budget could keep.
const IDLE: Duration = Duration::from_secs(120);

/// How many workers must stay when others are evicted (`minAvailable` of a `PodDisruptionBudget`); `None` = none is
/// wanted: the job says so, or has no round.
///
/// Of a round above the minimum as many may go as it has beyond it; of one at the minimum, one at a time, so that a node
/// can always be drained. Where nothing trains, for want of a node or for long, all may go: a worker that never comes would
/// keep every drain waiting. It is a number that changes with the round and not with each pod's readiness, so that it need
/// not be written often.
pub fn budget(job: &JobSpec, state: &JobState, pods: &[Pod], now: Time) -> Option<u32> {
    if !job.elasticity.disruption_budget || job.suspend || state.phase.is_terminal() {
        return None;
    }
    let size = state.round.as_ref()?.size;
    let finds_no_node = |p: &Pod| p.node.is_none() && p.unschedulable.is_some();
    let is_idle = || idle_from(state).is_some_and(|at| at <= now);
    if state.phase != Phase::Running && (pods.iter().any(finds_no_node) || is_idle()) {
        return Some(0);
    }
    Some(if size > job.min { job.min } else { size.saturating_sub(1) })
}

/// When a job that does not train will have been so for long; `None` = it trains, or has no round.
pub(super) fn idle_from(state: &JobState) -> Option<Time> {
    state.round.as_ref()?;
    let running = state.conditions.iter().find(|c| c.kind == ConditionKind::Running);
    running.filter(|c| !c.status && !state.phase.is_terminal()).map(|c| c.since.plus(IDLE))
}
