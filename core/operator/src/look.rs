//! One evaluation of one job, and what it leaves behind.

use std::sync::Arc;
use std::time::{Duration, Instant};

use eto_cycle::evaluate::{self, Facts};
use eto_cycle::wants::WantsCache;
use eto_engine::contract::{Capacity, ScalingInput, WorkerPhase};
use eto_engine::decision::Decision;
use eto_engine::job::JobSpec;
use eto_engine::observe::Pod;
use eto_engine::signals::SignalSet;
use eto_engine::time::Time;
use eto_policy_host::Snapshot;

use crate::cache::jobs::{Entry, Job, Mind};
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

/// What an answer was asked for.
struct Asked {
    spec: Arc<JobSpec>,
    sequence: u64,
    round: u64,
}

impl Asked {
    /// The mind that the answer is for; `None` if it comes late. A round that has begun meanwhile (a worker was lost)
    /// is not to be ended again by what was measured in the one before.
    fn still<'e>(&self, entry: &'e mut Entry) -> Option<&'e mut Mind> {
        let same = entry.spec.as_ref().is_ok_and(|s| Arc::ptr_eq(s, &self.spec));
        let current = |m: &&mut Mind| m.memory.sequence == self.sequence && m.state.last_generation == self.round;
        entry.mind.as_mut().filter(|m| same && current(m))
    }
}

/// Evaluates a job: `None` where there is nothing to evaluate. The job's lock is not held while the policy runs; an
/// answer that comes late (another spec or round, the job is gone, this replica leads no more) is dropped.
pub fn look(
    context: &Context,
    job: &Job,
    wants: &WantsCache,
    policies: &Snapshot,
    gathered: &Gathered,
    now: Time,
) -> Option<Looked> {
    let pods = context.caches.pods.of(&job.key.namespace, &job.uid);
    let (spec, state, mut memory) = {
        let entry = job.entry();
        let mind = entry.mind.as_ref()?;
        let spec = entry.spec.as_ref().ok()?;
        if entry.is_leaving() || mind.state.phase.is_terminal() {
            return None;
        }
        (Arc::clone(spec), mind.state.clone(), mind.memory.clone())
    };
    let asked = Asked { spec: Arc::clone(&spec), sequence: memory.sequence, round: state.last_generation };
    let capacity =
        Capacity { fits: gathered.room.fits(job, &spec, &state, &context.caches.volumes), pending: pending(&pods) };
    let facts = Facts { job: &spec, state: &state, pods: &pods, signals: &gathered.signals, capacity, policies, now };
    let evaluate::Evaluated { decision, input } = evaluate::evaluate(&facts, wants, &mut memory);

    let mut entry = job.entry();
    let Some(mind) = asked.still(&mut entry) else {
        context.telemetry.evaluated(Evaluated::Late);
        return None;
    };
    let before = mind.memory.last.take();
    // The placement policy may have been asked meanwhile.
    memory.placement = std::mem::take(&mut mind.memory.placement);
    mind.memory = memory;
    let settled = evaluate::settle(&spec, &mut mind.state, &mut mind.memory, &decision, before.as_ref(), now);
    let is_news = settled.is_news();
    if settled.moved {
        mind.moved = Some(Instant::now());
    }
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::cache::jobs::Jobs;
    use serde_json::json;

    fn seen(jobs: &Jobs, version: u64) -> Arc<Job> {
        let object = serde_json::from_value(json!({
            "apiVersion": "elastic.ai/v1alpha1", "kind": "ElasticJob",
            "metadata": {"namespace": "n", "name": "j", "uid": "u", "resourceVersion": version.to_string(), "generation": version},
            "spec": {"replicas": 2},
        }));
        let (key, _) = jobs.seen(object.unwrap()).unwrap();
        jobs.get(&key).unwrap()
    }

    #[test]
    fn an_answer_for_what_is_no_more_is_late() {
        let jobs = Jobs::default();
        let job = seen(&jobs, 1);
        let mut entry = job.entry();
        entry.mind = Some(Mind::default());
        let asked = Asked { spec: Arc::clone(entry.spec.as_ref().unwrap()), sequence: 0, round: 0 };
        let mut is_late = |change: fn(&mut Mind)| {
            entry.mind = Some(Mind::default());
            change(entry.mind.as_mut().unwrap());
            asked.still(&mut entry).is_none()
        };
        assert!(!is_late(|m| m.state.failures = 1));
        assert!(is_late(|m| m.memory.sequence = 1));
        assert!(is_late(|m| m.state.last_generation = 1));
        drop(entry);
        seen(&jobs, 2);
        let mut entry = job.entry();
        entry.mind = Some(Mind::default());
        assert!(asked.still(&mut entry).is_none(), "another spec");
        entry.mind = None;
        assert!(asked.still(&mut entry).is_none(), "nobody leads");
    }
}
