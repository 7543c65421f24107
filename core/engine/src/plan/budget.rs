//! How many workers others may evict at a time.

use std::time::Duration;

use crate::job::JobSpec;
use crate::observe::Pod;
use crate::state::{ConditionKind, JobState, Phase, RoundState};
use crate::time::Time;

/// A job that has not trained for so long has nothing more that a budget could keep; nor has a worker that was not ready.
const IDLE: Duration = Duration::from_secs(120);

/// How many workers must stay when others are evicted (`minAvailable` of a `PodDisruptionBudget`); `None` = none is
/// wanted: the job says so, or has no round.
///
/// Of a round above the minimum as many may go as it has beyond it; of one at the minimum, one at a time, so that a node
/// can always be drained. Where nothing trains, for want of a node or for long, all may go: a worker that never comes would
/// keep every drain waiting. A member that has not been ready for long counts as gone, so that one which stays so does not
/// keep the others from being drained. One that has just left or come does not: each eviction would be followed by the next,
/// and the number would be written with each pod's readiness.
pub fn budget(job: &JobSpec, state: &JobState, pods: &[Pod], now: Time) -> Option<u32> {
    if !job.elasticity.disruption_budget || job.suspend || state.phase.is_terminal() {
        return None;
    }
    let round = state.round.as_ref()?;
    let size = round.size;
    let finds_no_node = |p: &Pod| p.node.is_none() && p.unschedulable.is_some();
    let is_idle = || idle_from(state).is_some_and(|at| at <= now);
    if state.phase != Phase::Running && (pods.iter().any(finds_no_node) || is_idle()) {
        return Some(0);
    }
    let gone = pods.iter().filter(|p| gone_from(p).is_some_and(|at| at <= now) && is_member(round, p)).count();
    let one_may = size.saturating_sub(u32::try_from(gone).unwrap_or(u32::MAX)).saturating_sub(1);
    Some(if size > job.min { job.min.min(one_may) } else { one_may })
}

fn is_member(round: &RoundState, pod: &Pod) -> bool {
    match &round.agent {
        Some(agent) => agent.members.iter().any(|m| m.uid == pod.uid),
        None => pod.round == round.generation,
    }
}

/// When a pod that is not ready will have been so for long; `None` = it is ready, or on its way out.
pub(super) fn gone_from(pod: &Pod) -> Option<Time> {
    let stays = !pod.is_ready() && !pod.is_ended() && pod.deleting.is_none();
    stays.then(|| pod.ready_changed.unwrap_or(pod.created).plus(IDLE))
}

/// When a job that does not train will have been so for long; `None` = it trains, or has no round.
pub(super) fn idle_from(state: &JobState) -> Option<Time> {
    state.round.as_ref()?;
    let running = state.conditions.iter().find(|c| c.kind == ConditionKind::Running);
    running.filter(|c| !c.status && !state.phase.is_terminal()).map(|c| c.since.plus(IDLE))
}
