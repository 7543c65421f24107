//! The size that is aimed at: who moves it and how that is recorded.

use crate::decision::Decision;
use crate::guard::{self, behavior, sizes};
use crate::job::JobSpec;
use crate::state::{ChangeBy, JobState, Memory, ResizeRecord};
use crate::time::Time;

/// The size that is aimed at, with a changed `spec.replicas` and changed bounds taken into account.
///
/// `spec.replicas` belongs to the user: when it changes, with or without a scaling policy, it becomes the target.
/// Where the target has moved on by itself (a policy's, or one rebuilt from live pods), `spec.replicas` is not a
/// reason to move it back.
pub fn effective_target(job: &JobSpec, state: &JobState) -> u32 {
    let wanted = if state.target == 0 || state.based_on != job.replicas { job.replicas } else { state.target };
    sizes::down(job, wanted)
}

pub(super) fn rebase(job: &JobSpec, state: &mut JobState, now: Time) {
    let target = effective_target(job, state);
    if state.target != 0 && state.target != target {
        let why = if state.based_on == job.replicas {
            "the range or the legal sizes have changed".to_owned()
        } else {
            format!("spec.replicas is {}", job.replicas)
        };
        record(state, target, ChangeBy::User, why, now);
    }
    state.target = target;
    state.based_on = job.replicas;
}

/// Moves the target to what was decided. True if it moved.
///
/// Nothing happens if the decision is only a recommendation, or comes late: another job of that name, another spec,
/// or a later decision (see [`guard::accept`]). Scale events are kept in `memory` for the rates of `behavior`, and
/// only when the size really moves.
pub fn apply(job: &JobSpec, state: &mut JobState, memory: &mut Memory, decision: &Decision, now: Time) -> bool {
    if !decision.apply || state.phase.is_terminal() || job.suspend || !guard::accept(decision, job, memory) {
        return false;
    }
    let before = state.target;
    rebase(job, state, now);
    let (from, to) = (state.target, decision.target);
    if to == from || ![before, from].contains(&decision.from) || sizes::down(job, to) != to {
        return to == from && from != before;
    }
    record(state, to, ChangeBy::Policy, why_of(decision), now);
    state.target = to;
    if let Some(behavior) = guard::rules(job).behavior() {
        let (events, longest, change) = if to > from {
            (&mut memory.ups, behavior::longest(&behavior.up), to - from)
        } else {
            (&mut memory.downs, behavior::longest(&behavior.down), from - to)
        };
        behavior::store_event(events, change, longest, now);
    }
    true
}

/// A resize begins. Refusals in a row are carried over until a growth succeeds. Before the first round there is nothing
/// to resize: the job starts at its target.
pub(super) fn record(state: &mut JobState, to: u32, by: ChangeBy, why: String, now: Time) {
    let Some(from) = state.round.as_ref().map(|r| r.size) else { return };
    let refusals = state.last_resize.as_ref().map_or(0, |r| r.refusals);
    state.last_resize = Some(ResizeRecord { refusals, by, why, ..ResizeRecord::new(from, to, now) });
}

/// A policy's decision in a line: who decided, and the first of its reasons.
fn why_of(decision: &Decision) -> String {
    let name = decision.policy.as_ref().map_or("the policy", |p| p.name.as_str());
    decision.reasons.first().map_or_else(|| name.to_owned(), |reason| format!("{name}: {}", reason.message))
}
