//! One decision: ask, doubt, limit.

use super::brake::{self, Course};
use super::fill::{self, Case};
use super::{ask, behavior, rules, sizes};
use crate::decision::{Decision, Limiter};
use crate::job::{FailurePolicy, JobSpec, Mode, ScalingSpec};
use crate::plan::effective_target;
use crate::policy::{CallFailure, ScalingPolicy};
use crate::state::{JobState, Memory};
use crate::time::{Time, millis};
use crate::view::{View, remember};

/// Decides the size of a job.
///
/// `policy` is the module that the job names, or why there is none to ask; `fallback` the built-in `hpa` policy. The
/// memory takes up what later decisions need: the sequence, HPA's recommendations, the policy's state, circuits,
/// history. Nothing is acted on; see [`crate::plan::apply`].
///
/// A job without a scaling policy, or with mode Off, is sized by hand and no policy is asked.
pub fn decide(
    job: &JobSpec,
    state: &JobState,
    memory: &mut Memory,
    view: &View,
    policy: Result<&dyn ScalingPolicy, CallFailure>,
    fallback: Option<&dyn ScalingPolicy>,
    now: Time,
) -> Decision {
    memory.sequence = memory.sequence.saturating_add(1);
    let mut decision = blank(job, state, memory, view, now);
    remember(memory, view);
    let scaling = job.scaling.as_ref().filter(|s| s.mode != Mode::Off);
    if state.phase.is_terminal() || job.suspend || outside(job, state, &mut decision) {
        // Nothing to ask.
    } else if let Some(scaling) = scaling {
        by_policy(job, scaling, state, memory, view, (policy, fallback), &mut decision);
    } else {
        by_hand(job, state, view, &mut decision);
    }
    memory.last = Some(decision.clone());
    decision
}

/// Whether a decision still counts: it was made for this job and this spec, and no later one was made since.
pub fn accept(decision: &Decision, job: &JobSpec, memory: &Memory) -> bool {
    decision.uid == job.uid && decision.generation == job.generation && decision.sequence == memory.sequence
}

fn blank(job: &JobSpec, state: &JobState, memory: &Memory, view: &View, now: Time) -> Decision {
    let target = effective_target(job, state);
    Decision {
        at: now,
        uid: job.uid.clone(),
        sequence: memory.sequence,
        generation: job.generation,
        policy: None,
        answered: false,
        from: target,
        proposed: None,
        target,
        apply: job.scaling.as_ref().is_none_or(|s| s.mode != Mode::Recommend),
        limits: Vec::new(),
        reasons: Vec::new(),
        signals: view.seen.clone(),
        fuel: 0,
        failure: None,
        mend: view.mend.clone(),
        placement: view.placement.clone(),
        next_look: None,
    }
}

/// HPA's rule: a size outside its bounds moves into them at once, without metrics and without rates.
fn outside(job: &JobSpec, state: &JobState, decision: &mut Decision) -> bool {
    let size = state.target;
    let by = if size > job.max {
        Limiter::TooManyReplicas
    } else if size != 0 && size < job.min {
        Limiter::TooFewReplicas
    } else {
        return false;
    };
    decision.from = size;
    decision.apply = true;
    let message = format!("the size was outside the range {} to {}", job.min, job.max);
    decision.limits.push(crate::decision::Limit { by, from: size, to: decision.target, until: None, message });
    true
}

/// By hand the target is `spec.replicas` from the moment that it is set (see `effective_target`). What is left is a
/// growth that was taken back for want of room: it is tried again when the back-off has passed and there is room.
fn by_hand(job: &JobSpec, state: &JobState, view: &View, decision: &mut Decision) {
    let wanted = sizes::down(job, job.replicas);
    if wanted <= decision.from {
        return;
    }
    let mut course = Course::new(job, state, decision, wanted);
    brake::in_flight(&mut course);
    brake::growth_refused(&mut course);
    let fits = view.input.capacity.fits;
    let refused = state.last_resize.as_ref().is_some_and(|r| r.refused);
    if refused && course.size.saturating_sub(course.from()) > fits {
        let from = course.from();
        course.limit(Limiter::GrowthRefused, from, None, "there is no room for all of spec.replicas yet");
    }
    course.done();
}

type Policies<'a> = (Result<&'a dyn ScalingPolicy, CallFailure>, Option<&'a dyn ScalingPolicy>);

fn by_policy(
    job: &JobSpec,
    scaling: &ScalingSpec,
    state: &JobState,
    memory: &mut Memory,
    view: &View,
    (policy, fallback): Policies<'_>,
    decision: &mut Decision,
) {
    let now = decision.at;
    let rules = rules(job);
    // The size at first sight counts as proposed, as in an HPA. So does one that the user has set since the last
    // decision: it is not reverted before it has stood for a window.
    let moved = memory.replicas.replace(job.replicas).is_some_and(|seen| seen != job.replicas);
    if memory.recommendations.is_empty() || moved {
        behavior::note(&mut memory.recommendations, decision.from, rules.longest_window(), now);
    }
    let mut heard = ask::own(job, memory, &view.input, policy, now);
    let use_fallback = scaling.on_failure == FailurePolicy::BuiltIn && !scaling.metrics.is_empty();
    if let (true, Some(fallback)) = (heard.failure.is_some() && use_fallback, fallback) {
        ask::instead(job, &mut heard, &view.input, fallback);
    }
    decision.policy = heard.id.take();
    decision.fuel = heard.fuel;
    decision.failure = heard.failure.take();
    if let Some(until) = heard.open_until {
        let message = "the policy failed too often and is not asked for a while";
        let (by, from) = (Limiter::CircuitOpen, decision.from);
        decision.limits.push(crate::decision::Limit {
            by,
            from,
            to: from,
            until: Some(until),
            message: message.into(),
        });
    }
    let (Some(answer), Some((policy, input))) = (heard.answer, heard.by) else { return };
    decision.answered = true;
    decision.proposed = answer.target;
    decision.reasons = answer.reasons;
    decision.next_look = answer.next_look_seconds.map(|s| Time(now.0.saturating_add(u64::from(s.max(1)) * 1000)));
    let proposed = answer.target.unwrap_or(decision.from);
    let mut course = Course::new(job, state, decision, proposed);
    doubt(&mut course, memory, view, policy, &input);
    brake::normalise(&mut course, &rules, memory);
    brake::legal(&mut course);
    brake::recovering(&mut course, view, memory.since, millis(rules.down_window()));
    brake::in_flight(&mut course);
    brake::cool_down(&mut course);
    brake::growth_refused(&mut course);
    course.done();
}

/// Absent is not zero: where a required signal can't be trusted, a shrink has to be right in the worst case too, and a
/// growth in the best.
fn doubt(
    course: &mut Course<'_>,
    memory: &mut Memory,
    view: &View,
    policy: &dyn ScalingPolicy,
    input: &crate::contract::ScalingInput,
) {
    let from = course.from();
    if course.size == from {
        return;
    }
    let doubtful: Vec<_> =
        view.gauges.iter().zip(&view.input.signals).filter(|(g, s)| fill::is_doubtful(g, s)).collect();
    let names = doubtful.iter().map(|(g, _)| g.wanted.name.as_str()).collect::<Vec<_>>().join(", ");
    if doubtful.is_empty() {
        return;
    }
    if doubtful.iter().any(|(g, _)| !fill::is_fillable(g)) {
        course.limit(Limiter::SignalHold, from, None, &format!("held: {names} can't be trusted"));
        return;
    }
    let shrinks = course.size < from;
    let case = if shrinks { Case::Worst } else { Case::Best };
    match ask::check(course.job, policy.evaluate(&fill::filled(view, input, case))) {
        Ok(answer) => {
            course.decision.fuel += answer.fuel;
            let sure = answer.value.target.unwrap_or(from);
            let to = if shrinks { course.size.max(sure).min(from) } else { course.size.min(sure).max(from) };
            let case = if shrinks { "least favourable" } else { "most favourable" };
            let message = format!("{names} can't be trusted: only what the {case} values ask for too");
            course.limit(Limiter::SignalQuality, to, None, &message);
        }
        Err(failure) => {
            course.decision.failure = Some(ask::charge(memory, policy.id(), failure, course.decision.at));
            course.limit(Limiter::SignalQuality, from, None, &format!("held: {names} can't be trusted"));
        }
    }
}
