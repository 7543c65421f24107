//! One decision, from what was gathered to what is kept: the same for every adapter.
//!
//! [`evaluate`] asks, [`settle`] puts the answer into the job's state. Between the two an adapter may drop an answer
//! that comes late.

use eto_engine::contract::{Capacity, Quality, ScalingInput, SignalWant};
use eto_engine::decision::{Decision, Failure};
use eto_engine::job::{JobSpec, Mode};
use eto_engine::observe::Pod;
use eto_engine::plan::{self, Event, EventReason};
use eto_engine::policy::{CallFailure, FailureKind, ScalingPolicy};
use eto_engine::signals::SignalSet;
use eto_engine::state::{Condition, ConditionKind, ConditionReason, JobState, Memory};
use eto_engine::time::Time;
use eto_engine::{conditions, guard, view};
use eto_policy_host::Snapshot;

use crate::spec::BUILT_IN;
use crate::status::gist;
use crate::wants::{WantsCache, asked};

/// What a decision is made from.
#[derive(Clone, Copy)]
pub struct Facts<'a> {
    pub job: &'a JobSpec,
    pub state: &'a JobState,
    /// The job's pods.
    pub pods: &'a [Pod],
    /// The latest gathering, for all jobs.
    pub signals: &'a SignalSet,
    pub capacity: Capacity,
    pub policies: &'a Snapshot,
    pub now: Time,
}

/// A decision, and what it was made from.
#[derive(Clone, Debug)]
pub struct Evaluated {
    pub decision: Decision,
    /// What the policy was shown, with its defaults merged into the config, so that it can be replayed; `None` where
    /// none was to be asked.
    pub input: Option<ScalingInput>,
}

/// Decides the size of a job: wants, view, policy, guard. `memory` takes up what later decisions need.
pub fn evaluate(facts: &Facts<'_>, wants: &WantsCache, memory: &mut Memory) -> Evaluated {
    let Facts { job, state, pods, signals, capacity, policies, now } = *facts;
    let scaling = asked(job);
    let wanted = wants.of(job, policies, now);
    // A policy that can't say what it wants can't be asked either.
    let policy = match (scaling, &wanted) {
        (None, _) => Err(CallFailure { kind: FailureKind::Missing, message: "no policy is to be asked".to_string() }),
        (Some(_), Err(failure)) => Err(failure.clone()),
        (Some(scaling), Ok(_)) => policies.scaling(&scaling.module),
    };
    let own: &[SignalWant] = wanted.as_deref().unwrap_or_default();
    let shown = view::Facts { job, state, memory, pods, signals, wants: own, capacity, now };
    let mut view = view::build(&shown);
    if let Some(merged) =
        scaling.and_then(|s| policies.get(&s.module)).and_then(|p| p.merge_config(&view.input.config).ok())
    {
        view.input.config = merged;
    }
    view.placement = against_placement(job, memory, policies);
    let fallback = policies.scaling(BUILT_IN).ok();
    let fallback = fallback.as_deref().map(|p| p as &dyn ScalingPolicy);
    let asked = policy.as_deref().map(|p| p as &dyn ScalingPolicy).map_err(Clone::clone);
    let decision = guard::decide(job, state, memory, &view, asked, fallback, now);
    Evaluated { decision, input: scaling.is_some().then_some(view.input) }
}

/// What is known against the placement policy: nothing of that name is served, its config can't be used, or this very
/// version did not answer to this very spec when it was asked last.
fn against_placement(job: &JobSpec, memory: &Memory, policies: &Snapshot) -> Option<Failure> {
    let wanted = job.placement.as_ref().filter(|p| p.mode != Mode::Off)?;
    let served = match policies.placement(&wanted.module) {
        Ok(served) => served,
        Err(missing) => return Some((missing, 0).into()),
    };
    let config = policies.get(&wanted.module).and_then(|p| p.merge_config(&wanted.config).err());
    if let Some(why) = config {
        return Some((CallFailure { kind: FailureKind::InvalidConfig, message: why.to_string() }, 0).into());
    }
    let last = memory.placement.last.as_ref().filter(|l| l.generation == job.generation)?;
    let same = last.policy.as_ref().is_some_and(|p| p.digest == served.id().digest);
    last.failure.clone().filter(|_| same)
}

/// How it is told that a placement policy did not answer.
pub fn without_placement(module: &str, failure: &CallFailure) -> String {
    format!("placement policy {module}: {:?}: {}; workers are placed without it", failure.kind, failure.message)
}

/// What a decision changed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settled {
    /// The target moved.
    pub moved: bool,
    /// A condition has another status or reason.
    pub changed: bool,
    /// What is new since the decision before.
    pub events: Vec<Event>,
}

impl Settled {
    /// Whether there is anything to write or to tell.
    pub fn is_news(&self) -> bool {
        self.moved || self.changed || !self.events.is_empty()
    }
}

/// Puts a decision into the state: target, conditions, and what is worth telling since the decision `before` it.
pub fn settle(
    job: &JobSpec,
    state: &mut JobState,
    memory: &mut Memory,
    decision: &Decision,
    before: Option<&Decision>,
    now: Time,
) -> Settled {
    let moved = plan::apply(job, state, memory, decision, now);
    let old = essence(&state.conditions);
    let mut fresh = conditions::scaling(job, decision, now);
    conditions::steady(&mut memory.limited, &mut fresh, moved, now);
    conditions::merge(&mut state.conditions, fresh);
    let changed = old != essence(&state.conditions) || before.is_some_and(|b| seen(b) != seen(decision));
    Settled { moved, changed, events: news(job, decision, before) }
}

fn essence(conditions: &[Condition]) -> Vec<(ConditionKind, bool, ConditionReason)> {
    conditions.iter().map(|c| (c.kind, c.status, c.reason)).collect()
}

/// The signals as far as a change of them is shown: how good they are and what is wrong, not their values.
fn seen(decision: &Decision) -> Vec<(&str, Quality, Option<String>)> {
    decision.signals.iter().map(|s| (s.name.as_str(), s.quality, s.note.as_deref().map(gist))).collect()
}

/// What is new since the decision before: a failure of another kind, an opened circuit, something to mend, another
/// version of the module. What lasts is told once.
fn news(job: &JobSpec, decision: &Decision, before: Option<&Decision>) -> Vec<Event> {
    let mut events = Vec::new();
    let mut warn = |reason, message| events.push(Event { warning: true, reason, message });
    let known = before.and_then(|b| b.failure.as_ref());
    if let Some(failure) = decision.failure.as_ref().filter(|f| known.is_none_or(|k| k.kind != f.kind)) {
        let then = if decision.answered { "the built-in policy decides" } else { "the size is held" };
        warn(EventReason::PolicyFailed, format!("{:?}: {}; {then}", failure.kind, failure.message));
    }
    let known = before.and_then(|b| b.placement.as_ref());
    if let (Some(failure), Some(placement)) = (decision.placement.as_ref(), job.placement.as_ref())
        && known.is_none_or(|k| k.kind != failure.kind)
    {
        let failure = CallFailure { kind: failure.kind, message: failure.message.clone() };
        warn(EventReason::PolicyFailed, without_placement(&placement.module, &failure));
    }
    let open = |d: &Decision| d.limits.iter().find(|l| l.by == eto_engine::decision::Limiter::CircuitOpen).cloned();
    if let (Some(limit), None) = (open(decision), before.and_then(open)) {
        warn(EventReason::CircuitOpened, limit.message);
    }
    let mend = decision.mend.as_ref().filter(|m| before.and_then(|b| b.mend.as_ref()) != Some(*m));
    if let Some(mend) = mend {
        warn(EventReason::ScalingNotActive, mend.message.clone());
    }
    if let (Some(now), Some(then)) = (&decision.policy, before.and_then(|b| b.policy.as_ref()))
        && now.digest != then.digest
    {
        let message = format!("{} {} answers now (was {} {})", now.name, now.version, then.name, then.version);
        events.push(Event { warning: false, reason: EventReason::PolicySwapped, message });
    }
    events
}
