//! One evaluation of one job, and what it leaves behind.

use std::sync::Arc;
use std::time::Duration;

use eto_cycle::evaluate::{self, Facts};
use eto_cycle::wants::WantsCache;
use eto_engine::contract::{Capacity, ScalingInput, WorkerPhase};
use eto_engine::decision::Decision;
use eto_engine::observe::Pod;
use eto_engine::signals::SignalSet;
use eto_engine::time::Time;
use eto_policy_host::Snapshot;

use crate::cache::jobs::Job;
use crate::context::Context;
use crate::placing::Room;
use crate::telemetry::Evaluated;

/// What one cycle gathered, for all its jobs.
pub struct Gathered {
    pub signals: SignalSet,
    pub room: Room,
}

/// What an evaluation came to.
pub struct Looked {
    pub decision: Decision,
    /// What the policy was shown, if one was asked.
    pub input: Option<ScalingInput>,
    /// How long until the policy wants to be asked again.
    pub next_look: Option<Duration>,
}

impl Looked {
    /// Whether anything was decided. A job that is sized by hand and stays as it is has no place in the decision log:
    /// a line for each of them in each period would soon push out those that matter.
    pub fn is_decided(&self) -> bool {
        self.input.is_some() || self.decision.target != self.decision.from
    }
}

/// Evaluates a job: `None` where there is nothing to evaluate. The job's lock is not held while the policy runs; an
/// answer that comes late (the spec has changed, the job is gone, this replica leads no more) is dropped.
pub fn look(
    context: &Context,
    job: &Job,
    wants: &WantsCache,
    policies: &Snapshot,
    gathered: &Gathered,
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
    let capacity = Capacity { fits: gathered.room.fits(job, &spec, &state), pending: pending(&pods) };
    let facts = Facts { job: &spec, state: &state, pods: &pods, signals: &gathered.signals, capacity, policies, now };
    let evaluate::Evaluated { decision, input } = evaluate::evaluate(&facts, wants, &mut memory);

    let mut entry = job.entry();
    let same = entry.spec.as_ref().is_ok_and(|s| Arc::ptr_eq(s, &spec));
    let mind = entry.mind.as_mut().filter(|m| same && m.memory.sequence == sequence);
    let Some(mind) = mind else {
        context.telemetry.evaluated(Evaluated::Late);
        return None;
    };
    let before = mind.memory.last.take();
    mind.memory = memory;
    let settled = evaluate::settle(&spec, &mut mind.state, &mut mind.memory, &decision, before.as_ref(), now);
    let is_news = settled.is_news();
    mind.untold.extend(settled.events);
    let is_checkpoint = entry.is_checkpoint_due(context.settings.evaluation.checkpoint_period.get());
    drop(entry);
    if is_news || is_checkpoint {
        context.plans.add(job.key.clone());
    }
    count(context, &decision);
    let next_look = decision.next_look.map(|at| at.since(now).max(Duration::from_secs(1)));
    Some(Looked { decision, input, next_look })
}

fn pending(pods: &[Pod]) -> u32 {
    let waiting = pods.iter().filter(|p| p.phase == WorkerPhase::Pending && p.deleting.is_none()).count();
    u32::try_from(waiting).unwrap_or(u32::MAX)
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
