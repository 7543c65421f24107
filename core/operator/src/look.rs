//! One evaluation of one job, and what it leaves behind.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use eto_engine::conditions;
use eto_engine::contract::{Capacity, NONE, ScalingInput, SignalWant, WorkerPhase};
use eto_engine::decision::Decision;
use eto_engine::guard;
use eto_engine::job::{JobSpec, Mode, ScalingSpec};
use eto_engine::observe::Pod;
use eto_engine::plan::{self, Event, EventReason};
use eto_engine::policy::{CallFailure, ScalingPolicy};
use eto_engine::signals::SignalSet;
use eto_engine::state::{Condition, JobState, Memory};
use eto_engine::time::Time;
use eto_engine::view;
use eto_policy_host::Snapshot;

use crate::cache::jobs::{Job, Mind};
use crate::context::Context;
use crate::telemetry::Evaluated;

/// What an evaluation came to.
pub struct Looked {
    pub decision: Decision,
    /// What the policy was shown, if one was asked.
    pub input: Option<ScalingInput>,
    /// How long until the policy wants to be asked again.
    pub next_look: Option<Duration>,
}

/// Name of the built-in policy that stands in where a job asks for that.
const FALLBACK: &str = "hpa";

/// What the policies want, by module digest and config: asked once, not each time.
#[derive(Default)]
pub struct Wanting {
    known: Mutex<HashMap<(String, String), Known>>,
}

struct Known {
    wants: Arc<[SignalWant]>,
    used: bool,
}

impl Wanting {
    /// What the job's policy wants; nothing where no policy is asked.
    pub fn of(&self, spec: &JobSpec, snapshot: &Snapshot) -> Result<Arc<[SignalWant]>, CallFailure> {
        let Some(scaling) = asked(spec) else { return Ok(Arc::default()) };
        let policy = snapshot.scaling(&scaling.module)?;
        let key = (policy.id().digest.clone(), scaling.config.clone());
        {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(known) = known.get_mut(&key) {
                known.used = true;
                return Ok(Arc::clone(&known.wants));
            }
        }
        let wants: Arc<[SignalWant]> = policy.wants(&scaling.config)?.value.into();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(key, Known { wants: Arc::clone(&wants), used: true });
        Ok(wants)
    }

    /// Drops what no job has asked for since the last time.
    pub fn forget_unused(&self) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        // Not all jobs are due in each gathering; a bound is enough.
        if known.len() > 1024 {
            known.retain(|_, k| std::mem::replace(&mut k.used, false));
        }
    }
}

fn asked(spec: &JobSpec) -> Option<&ScalingSpec> {
    spec.scaling.as_ref().filter(|s| s.mode != Mode::Off)
}

/// Evaluates a job: `None` where there is nothing to evaluate. The job's lock is not held while the policy runs; an
/// answer that comes late is dropped.
pub fn look(
    context: &Context,
    job: &Job,
    wanting: &Wanting,
    snapshot: &Snapshot,
    signals: &SignalSet,
    now: Time,
) -> Option<Looked> {
    let pods = context.caches.pods.of(&job.uid);
    let (spec, state, mut memory) = {
        let entry = job.entry();
        let mind = entry.mind.as_ref()?;
        let spec = entry.spec.as_ref().ok()?;
        if entry.is_leaving() || mind.state.phase.is_terminal() {
            return None;
        }
        (Arc::clone(spec), mind.state.clone(), mind.memory.clone())
    };
    let sequence = memory.sequence;
    let decided = decide(&spec, &state, &mut memory, &pods, wanting, snapshot, signals, now);
    let (decision, input) = decided;
    let mut entry = job.entry();
    let same = entry.spec.as_ref().is_ok_and(|s| Arc::ptr_eq(s, &spec));
    let mind = entry.mind.as_mut().filter(|m| same && m.memory.sequence == sequence);
    let Some(mind) = mind else {
        context.telemetry.evaluated(Evaluated::Late);
        return None;
    };
    let before = mind.memory.last.take();
    mind.memory = memory;
    let worth = take(mind, &spec, &decision, before.as_ref(), now);
    drop(entry);
    if worth {
        context.plans.add(job.key.clone());
    }
    count(context, &decision);
    let next_look = decision.next_look.map(|at| at.since(now).max(Duration::from_secs(1)));
    Some(Looked { decision, input, next_look })
}

#[allow(clippy::too_many_arguments, reason = "the facts of one decision, each of them needed")]
fn decide(
    spec: &JobSpec,
    state: &JobState,
    memory: &mut Memory,
    pods: &[Pod],
    wanting: &Wanting,
    snapshot: &Snapshot,
    signals: &SignalSet,
    now: Time,
) -> (Decision, Option<ScalingInput>) {
    let wants = wanting.of(spec, snapshot);
    let policy = asked(spec).map(|s| wants.as_ref().map_err(Clone::clone).and_then(|_| snapshot.scaling(&s.module)));
    let wants = wants.unwrap_or_default();
    let capacity = Capacity { fits: NONE, pending: pending(pods) };
    let facts = view::Facts { job: spec, state, memory, pods, signals, wants: &wants, capacity, now };
    let view = view::build(&facts);
    let fallback = snapshot.scaling(FALLBACK).ok();
    let fallback = fallback.as_deref().map(|p| p as &dyn ScalingPolicy);
    let (policy, was_asked): (Result<&dyn ScalingPolicy, CallFailure>, bool) = match &policy {
        Some(Ok(policy)) => (Ok(&**policy), true),
        Some(Err(failure)) => (Err(failure.clone()), true),
        None => (Err(not_asked()), false),
    };
    let decision = guard::decide(spec, state, memory, &view, policy, fallback, now);
    (decision, was_asked.then_some(view.input))
}

fn not_asked() -> CallFailure {
    CallFailure { kind: eto_engine::policy::FailureKind::Missing, message: "no policy is asked".into() }
}

fn pending(pods: &[Pod]) -> u32 {
    let waiting = pods.iter().filter(|p| p.phase == WorkerPhase::Pending && p.deleting.is_none()).count();
    u32::try_from(waiting).unwrap_or(u32::MAX)
}

/// Puts a decision into the mind of the job. True if it is worth a look at the job: the target moved, a condition
/// changed, or there is something to tell.
fn take(mind: &mut Mind, spec: &JobSpec, decision: &Decision, before: Option<&Decision>, now: Time) -> bool {
    let moved = plan::apply(spec, &mut mind.state, &mut mind.memory, decision, now);
    let shown = summary(&mind.state.conditions);
    conditions::merge(&mut mind.state.conditions, conditions::scaling(spec, decision, now));
    let changed = shown != summary(&mind.state.conditions);
    let events = events(decision, before);
    let told = !events.is_empty();
    mind.untold.extend(events);
    moved || changed || told
}

fn summary(conditions: &[Condition]) -> Vec<(bool, eto_engine::state::ConditionReason)> {
    conditions.iter().map(|c| (c.status, c.reason)).collect()
}

/// What is new since the decision before.
fn events(decision: &Decision, before: Option<&Decision>) -> Vec<Event> {
    let mut events = Vec::new();
    let failure = decision.failure.as_ref();
    let known = before.and_then(|b| b.failure.as_ref());
    if let Some(failure) = failure.filter(|f| known.is_none_or(|k| k.kind != f.kind)) {
        let message = format!("{:?}: {}; the size is held", failure.kind, failure.message);
        events.push(Event { warning: true, reason: EventReason::PolicyFailed, message });
    }
    if let (Some(now), Some(then)) = (&decision.policy, before.and_then(|b| b.policy.as_ref()))
        && now.digest != then.digest
    {
        let message = format!("{} {} answers now (was {} {})", now.name, now.version, then.name, then.version);
        events.push(Event { warning: false, reason: EventReason::PolicySwapped, message });
    }
    events
}

fn count(context: &Context, decision: &Decision) {
    let outcome = match decision.target.cmp(&decision.from) {
        _ if decision.failure.is_some() => Evaluated::Failed,
        std::cmp::Ordering::Less => Evaluated::Shrink,
        std::cmp::Ordering::Equal => Evaluated::Unchanged,
        std::cmp::Ordering::Greater => Evaluated::Grow,
    };
    context.telemetry.evaluated(outcome);
    for limit in &decision.limits {
        context.telemetry.limited(limit.by);
    }
    for signal in &decision.signals {
        context.telemetry.signal_seen(signal.quality);
    }
    if let Some(policy) = &decision.policy {
        context.telemetry.fuel(&policy.name, decision.fuel);
        if let Some(failure) = &decision.failure {
            context.telemetry.policy_failed(&policy.name, failure.kind);
        }
    }
}
