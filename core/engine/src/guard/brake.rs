//! What limits a proposal on its way to a target, one limiter after the other. Each is recorded if it changes the size.

use std::time::Duration;

use super::{Rules, behavior, sizes};
use crate::decision::{Decision, Limit, Limiter};
use crate::job::JobSpec;
use crate::state::{JobState, Memory};
use crate::time::{Time, millis};
use crate::view::View;

/// How long a growth that was taken back is not tried again; doubles with each refusal in a row.
const REFUSED_FIRST: Duration = Duration::from_secs(300);
/// The longest of these pauses.
const REFUSED_CAP: Duration = Duration::from_secs(3600);

/// A proposal on its way.
pub(super) struct Course<'a> {
    pub(super) job: &'a JobSpec,
    pub(super) state: &'a JobState,
    pub(super) decision: &'a mut Decision,
    /// The size as it stands.
    pub(super) size: u32,
}

impl<'a> Course<'a> {
    pub(super) fn new(job: &'a JobSpec, state: &'a JobState, decision: &'a mut Decision, size: u32) -> Self {
        Course { job, state, decision, size }
    }

    pub(super) fn from(&self) -> u32 {
        self.decision.from
    }

    fn now(&self) -> Time {
        self.decision.at
    }

    /// Changes the size, and says so.
    pub(super) fn limit(&mut self, by: Limiter, to: u32, until: Option<Time>, message: &str) {
        if to != self.size {
            self.decision.limits.push(Limit { by, from: self.size, to, until, message: message.to_owned() });
            self.size = to;
            if let Some(until) = until {
                self.decision.next_look = Some(self.decision.next_look.map_or(until, |t| t.min(until)));
            }
        }
    }

    fn hold(&mut self, by: Limiter, until: Option<Time>, message: &str) {
        let from = self.from();
        self.limit(by, from, until, message);
    }

    /// What is left is the target.
    pub(super) fn done(mut self) {
        self.decision.target = self.size;
        if !self.decision.apply && self.size != self.from() {
            let size = self.size;
            let message = "mode Recommend: shown, not applied".to_owned();
            let from = self.decision.from;
            self.decision.limits.push(Limit { by: Limiter::RecommendOnly, from: size, to: from, until: None, message });
            self.size = from;
        }
    }
}

/// Stabilisation, rates and bounds as HPA does them.
pub(super) fn normalise(course: &mut Course<'_>, rules: &Rules<'_>, memory: &mut Memory) {
    let (now, from, desired) = (course.now(), course.from(), course.size);
    let (min, max) = (course.job.min, course.job.max);
    let Some(behavior) = rules.behavior() else {
        let stable = behavior::stabilize_legacy(&mut memory.recommendations, desired, now);
        // An HPA would grow here for the sake of an old recommendation while all of its metrics ask for less. The
        // window is there to hold a shrink, so it holds.
        let stable = stable.min(from.max(desired));
        course.limit(Limiter::ScaleDownStabilized, stable, None, "recent proposals were for more workers");
        let (size, by) = behavior::limit_legacy(from, course.size, min, max);
        if let Some(by) = by {
            course.limit(by, size, None, bound_message(by));
        }
        return;
    };
    let windows = (behavior.up.stabilization, behavior.down.stabilization);
    let (stable, by) = behavior::stabilize(&mut memory.recommendations, from, desired, windows, now);
    if let Some(by) = by {
        let message = match by {
            Limiter::ScaleUpStabilized => "recent proposals were for fewer workers",
            _ => "recent proposals were for more workers",
        };
        course.limit(by, stable, None, message);
    }
    let events = (memory.ups.as_slice(), memory.downs.as_slice());
    let (size, by) = behavior::limit_rates((from, course.size), (min, max), behavior, events, now);
    if let Some(by) = by {
        course.limit(by, size, None, bound_message(by));
    }
    // A hold may stand outside the bounds only if the rates do not let it in; the bounds win.
    let within = course.size.min(max).max(min);
    let by = if within < course.size { Limiter::TooManyReplicas } else { Limiter::TooFewReplicas };
    course.limit(by, within, None, bound_message(by));
}

fn bound_message(by: Limiter) -> &'static str {
    match by {
        Limiter::TooFewReplicas => "the proposed size is below the minimum",
        Limiter::TooManyReplicas => "the proposed size is above the maximum",
        Limiter::ScaleUpLimit => "the proposed growth is faster than the rate allows",
        _ => "the proposed shrink is faster than the rate allows",
    }
}

pub(super) fn legal(course: &mut Course<'_>) {
    let to = sizes::toward(course.job, course.from(), course.size);
    course.limit(Limiter::LegalSize, to, None, "rounded to a legal size");
}

/// No shrink while a source of signals has not been back for a whole window, or while the memory of this job is
/// younger than the down window.
pub(super) fn recovering(course: &mut Course<'_>, view: &View, since: Time, down_window_ms: u64) {
    if course.size >= course.from() {
        return;
    }
    let now = course.now();
    for gauge in view.gauges.iter().filter(|g| g.wanted.required && g.wanted.id.is_some()) {
        let until = gauge.healthy_since.map(|t| Time(t.0.saturating_add(gauge.window_ms)));
        if until.is_none_or(|t| t > now) {
            let message = format!("the source of {} was away less than a window ago", gauge.wanted.name);
            course.hold(Limiter::SourceRecovering, until, &message);
        }
    }
    let until = Time(since.0.saturating_add(down_window_ms));
    if until > now {
        let message = "what was proposed before is not known: no shrink for one stabilisation window";
        course.hold(Limiter::StateRecovering, Some(until), message);
    }
}

/// One resize at a time. A job that waits for its template has nothing in flight: it is sized all the same, so that it
/// starts at the right size.
pub(super) fn in_flight(course: &mut Course<'_>) {
    if course.state.round.is_none() && course.job.template.is_none() {
        return;
    }
    let resizing = course.state.last_resize.as_ref().is_some_and(|r| r.done.is_none());
    let running = course.state.round.as_ref().is_some_and(|r| r.running_since.is_some());
    if resizing || !running {
        let message = if resizing { "a resize is in flight" } else { "the workers of this round are not all ready" };
        course.hold(Limiter::ResizeInFlight, None, message);
    }
}

/// A resize has to pay for itself: none before as much time has passed since the last one as that one cost.
pub(super) fn cool_down(course: &mut Course<'_>) {
    let Some(last) = course.state.last_resize.as_ref().filter(|r| !r.refused) else { return };
    let Some(done) = last.done else { return };
    let until = done.plus(last.pause());
    if until > course.now() {
        course.hold(Limiter::CoolDown, Some(until), "the last resize took longer than has passed since");
    }
}

/// A growth that was taken back is not tried again at once.
pub(super) fn growth_refused(course: &mut Course<'_>) {
    let Some(last) = course.state.last_resize.as_ref().filter(|r| r.refused) else { return };
    let pause = REFUSED_FIRST.saturating_mul(1 << last.refusals.saturating_sub(1).min(8)).min(REFUSED_CAP);
    let until = Time(last.done.unwrap_or(last.decided).0.saturating_add(millis(pause)));
    if course.size > course.from() && until > course.now() {
        course.hold(Limiter::GrowthRefused, Some(until), "the last growth was taken back for want of room");
    }
}
