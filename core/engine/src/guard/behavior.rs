//! HPA's normalisation: bounds, rate policies and stabilisation windows, as pure functions.
//!
//! Percentages are computed in binary floating point, as the Go controller does, and not in exact arithmetic: 100 pods
//! and +10 % allow 111, because 100 x 1.1 is a little over 110 there. Who moves a job from an HPA gets the same sizes.

use std::time::Duration;

use crate::decision::Limiter;
use crate::job::{Behavior, RateKind, ScalingRules, SelectPolicy};
use crate::time::Time;

/// HPA's tolerance where the user sets none: a ratio to the target within it changes nothing.
pub const TOLERANCE: f64 = 0.1;
/// HPA's window for shrinking where the user sets none: 5 minutes.
pub const LEGACY_WINDOW: Duration = Duration::from_secs(300);

/// The most that a job without `behavior` grows to in one step: twice its size, or 4.
pub fn legacy_cap(current: u32) -> u32 {
    current.saturating_mul(2).max(4)
}

/// Scale events, or recommendations: how many, and when.
pub type Events<'a> = &'a [(Time, u32)];

/// A size after its limits, and the limit that changed it.
pub type Limited = (u32, Option<Limiter>);

/// Bounds of a job without `behavior`.
pub fn limit_legacy(current: u32, desired: u32, min: u32, max: u32) -> Limited {
    if desired < min {
        return (min, Some(Limiter::TooFewReplicas));
    }
    let cap = legacy_cap(current);
    let (limit, by) = if max > cap { (cap, Limiter::ScaleUpLimit) } else { (max, Limiter::TooManyReplicas) };
    if desired > limit { (limit, Some(by)) } else { (desired, None) }
}

/// Rates and bounds of a job with `behavior`. `ups` and `downs` are its scale events.
pub fn limit_rates(
    (current, desired): (u32, u32),
    (min, max): (u32, u32),
    behavior: &Behavior,
    (ups, downs): (Events<'_>, Events<'_>),
    now: Time,
) -> Limited {
    if desired > current {
        let limit = up_limit(current, &behavior.up, ups, downs, now).max(current);
        let (allowed, by) = if max > limit { (limit, Limiter::ScaleUpLimit) } else { (max, Limiter::TooManyReplicas) };
        if desired > allowed {
            return (allowed, Some(by));
        }
    } else if desired < current {
        let limit = down_limit(current, &behavior.down, ups, downs, now).min(current);
        let (allowed, by) = if min < limit { (limit, Limiter::ScaleDownLimit) } else { (min, Limiter::TooFewReplicas) };
        if desired < allowed {
            return (allowed, Some(by));
        }
    }
    (desired, None)
}

/// The size at the beginning of a policy's period: what was added since is taken off, what was removed is put back.
fn period_start(current: u32, ups: Events<'_>, downs: Events<'_>, period: Duration, now: Time) -> f64 {
    f64::from(current) - change_since(ups, period, now) + change_since(downs, period, now)
}

/// Sum of the changes that are younger than the period.
pub fn change_since(events: Events<'_>, period: Duration, now: Time) -> f64 {
    let from = now.minus(period);
    events.iter().filter(|(at, _)| *at > from).map(|(_, n)| f64::from(*n)).sum()
}

fn up_limit(current: u32, rules: &ScalingRules, ups: Events<'_>, downs: Events<'_>, now: Time) -> u32 {
    if rules.select == SelectPolicy::Disabled {
        return current;
    }
    let limits = rules.policies.iter().map(|p| {
        let start = period_start(current, ups, downs, p.period, now);
        match p.kind {
            RateKind::Pods => whole(start + f64::from(p.value)),
            RateKind::Percent => whole((start * (1.0 + f64::from(p.value) / 100.0)).ceil()),
        }
    });
    let limit = if rules.select == SelectPolicy::Min { limits.min() } else { limits.max() };
    limit.unwrap_or(u32::MAX)
}

fn down_limit(current: u32, rules: &ScalingRules, ups: Events<'_>, downs: Events<'_>, now: Time) -> u32 {
    if rules.select == SelectPolicy::Disabled {
        return current;
    }
    let limits = rules.policies.iter().map(|p| {
        let start = period_start(current, ups, downs, p.period, now);
        match p.kind {
            RateKind::Pods => whole(start - f64::from(p.value)),
            RateKind::Percent => whole((start * (1.0 - f64::from(p.value) / 100.0)).trunc()),
        }
    });
    // The policy that allows the largest change wins with `Max`: going down, that is the smallest size.
    let limit = if rules.select == SelectPolicy::Min { limits.max() } else { limits.min() };
    limit.unwrap_or(0)
}

/// Saturating: below 0 is 0.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn whole(size: f64) -> u32 {
    size as u32
}

/// Stabilisation without `behavior`: the highest recommendation of the window counts. Records `desired`.
pub fn stabilize_legacy(recommendations: &mut Vec<(Time, u32)>, desired: u32, now: Time) -> u32 {
    let from = now.minus(LEGACY_WINDOW);
    let highest = recommendations.iter().filter(|(at, _)| *at >= from).map(|(_, n)| *n).fold(desired, u32::max);
    note(recommendations, desired, LEGACY_WINDOW, now);
    highest
}

/// Stabilisation with `behavior`: growing, the lowest recommendation of the up window counts; shrinking, the highest
/// of the down window. Records the unstabilised `desired`.
pub fn stabilize(
    recommendations: &mut Vec<(Time, u32)>,
    current: u32,
    desired: u32,
    (up_window, down_window): (Duration, Duration),
    now: Time,
) -> Limited {
    let within = |window: Duration| {
        let from = now.minus(window);
        recommendations.iter().filter(move |(at, _)| *at > from).map(|(_, n)| *n)
    };
    let up = within(up_window).fold(desired, u32::min);
    let down = within(down_window).fold(desired, u32::max);
    let stable = current.max(up).min(down);
    note(recommendations, desired, up_window.max(down_window), now);
    let by = if desired >= current { Limiter::ScaleUpStabilized } else { Limiter::ScaleDownStabilized };
    (stable, (stable != desired).then_some(by))
}

/// Records a recommendation in the place of one that is older than the longest window, if there is one. Where the
/// newest one says the same its time is moved on: it is in every window that the older one was in, so a job at rest
/// keeps one entry however often it is looked at.
pub fn note(recommendations: &mut Vec<(Time, u32)>, desired: u32, window: Duration, now: Time) {
    if let Some(newest) = recommendations.iter_mut().max_by_key(|(at, _)| *at).filter(|(_, n)| *n == desired) {
        newest.0 = newest.0.max(now);
        return;
    }
    let from = now.minus(window);
    let old = recommendations.iter().rposition(|(at, _)| *at < from);
    match old.and_then(|at| recommendations.get_mut(at)) {
        Some(slot) => *slot = (now, desired),
        None => recommendations.push((now, desired)),
    }
}

/// Records a scale event in the place of one that is older than the longest period of the rules, if there is one.
/// Rules without policies never look back, so nothing is kept for them.
pub fn store_event(events: &mut Vec<(Time, u32)>, change: u32, longest: Duration, now: Time) {
    if longest.is_zero() {
        return;
    }
    let from = now.minus(longest);
    let old = events.iter().rposition(|(at, _)| *at < from);
    match old.and_then(|at| events.get_mut(at)) {
        Some(slot) => *slot = (now, change),
        None => events.push((now, change)),
    }
}

/// The longest period of the rules' policies; zero if there are none.
pub fn longest(rules: &ScalingRules) -> Duration {
    rules.policies.iter().map(|p| p.period).max().unwrap_or_default()
}
