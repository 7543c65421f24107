//! From what is there to what is to be: plan, write the status, hand the actions over.
//!
//! The order keeps a crash harmless: a round and its victims are in the stored status before a pod is touched, and
//! planning again on the same facts gives the same actions.

use std::time::{Duration, Instant};

use eto_api::ElasticJobStatus;
use eto_cycle::checkpoint::PolicyCheckpoint;
use eto_cycle::status::{StatusFacts, restore, take_up, to_status, worth_writing};
use eto_engine::conditions;
use eto_engine::job::{JobKey, JobSpec};
use eto_engine::observe::Pod;
use eto_engine::placement::Settled;
use eto_engine::plan::{self, AgentFacts, Group, PlanFacts, ProgressSeen, Stragglers};
use eto_engine::state::{ConditionKind, ConditionReason, JobState, Memory};
use eto_engine::time::Time;
use serde_json::{Value, json};

use crate::apply::{WriteError, merge_patch};
use crate::blame;
use crate::budget;
use crate::cache::jobs::{Entry, Job, Mind, stamp};
use crate::context::{Context, back_off, now};
use crate::node_facts::NodeFacts;
use crate::placing;

/// What one look at a job came to.
#[derive(Debug, Default)]
struct Step {
    /// The stored version and the patch that makes the stored status the meant one.
    write: Option<(String, Value)>,
    /// Look again after this, at the latest.
    again: Option<Duration>,
}

/// Looks at one job; called for one at a time.
pub async fn reconcile(context: Context, key: JobKey) {
    if !context.may_begin() {
        wait_for_right(&context, key);
        return;
    }
    let Some(job) = context.caches.jobs.get(&key) else {
        context.telemetry.job_gone(&key.namespace, &key.name);
        return;
    };
    blame::tell_of_quarantine(&context);
    let settled = placing::ask(&context, &job, now()).await;
    let step = think(&context, &job, &settled, now());
    if let Some((version, patch)) = step.write {
        match context.writer.status(&key, &version, &patch).await {
            Ok((version, status)) => {
                let mut entry = job.entry();
                if let Some(mind) = &mut entry.mind {
                    mind.basis = stamp(&status).map(str::to_owned);
                    mind.failures = 0;
                    mind.unwritten = None;
                    mind.saved = Some(Instant::now());
                }
                entry.wrote(version, status);
            }
            Err(error) => return failed(&context, &job, &error),
        }
    }
    hand_over(&context, &job);
    if let Some(again) = step.again {
        context.plans.add_after(key, again);
    }
}

/// The renewal is late: what is to be done waits for it. Where it does not come, the queue is cleared.
fn wait_for_right(context: &Context, key: JobKey) {
    if context.leadership.is_leading() {
        context.plans.add_after(key, Duration::from_millis(500));
    }
}

/// The status is stored: events may be told and pods touched.
fn hand_over(context: &Context, job: &Job) {
    let budget = budget::due(context, job).is_some();
    let mut entry = job.entry();
    let leaving = entry.is_leaving();
    let Some(mind) = &mut entry.mind else { return };
    for event in std::mem::take(&mut mind.untold) {
        context.events.tell(&job.key, &job.uid, event);
    }
    if (budget || !mind.todo.is_empty()) && !mind.acting && !leaving {
        mind.acting = true;
        context.acts.add(job.key.clone());
    }
}

fn failed(context: &Context, job: &Job, error: &WriteError) {
    let failures = {
        let mut entry = job.entry();
        let Some(mind) = &mut entry.mind else { return };
        mind.failures = mind.failures.saturating_add(1);
        mind.failures
    };
    match error {
        WriteError::Gone => return,
        WriteError::NotLeading => return wait_for_right(context, job.key.clone()),
        // The watch brings what changed; the look then starts from that (see `adopt`).
        WriteError::Conflict(_) => tracing::debug!(job = %job.key, %error, "the status was not written"),
        _ => tracing::warn!(job = %job.key, %error, failures, "the status was not written"),
    }
    context.plans.add_after(job.key.clone(), back_off(failures));
}

/// Plans for a job and says what is to be written. Takes the job's lock, does not wait for anything.
fn think(context: &Context, job: &Job, settled: &Settled, now: Time) -> Step {
    let pods = context.caches.pods.of(&job.key.namespace, &job.uid);
    let group = context.gateway.group(&job.uid);
    let mut entry = job.entry();
    if entry.is_leaving() {
        // Its pods and its service go with it, by their owner references.
        return Step::default();
    }
    adopt(&mut entry, &pods, group.as_deref(), context.gateway.facts(), now);
    let spec = entry.spec.clone();
    let Some(mut mind) = entry.mind.take() else { return Step::default() };
    let mut step = Step::default();
    match &spec {
        Ok(spec) => {
            let nodes = NodeFacts::of(context, &entry.object, &pods);
            let room = nodes.room(context, &entry.object, spec, &mind.state);
            let image = context.images.seen(&entry.object, spec);
            let facts = PlanFacts {
                room,
                places: Some(&settled.places),
                victims: &settled.victims,
                group: group.as_deref(),
                agent: context.gateway.facts(),
                image: image.fact(),
                ..nodes.facts()
            };
            let first = blame::first_to_fail(&mind.state, &pods, group.as_deref());
            let (again, wants_image) = advance(&mut mind, spec, &pods, &facts, now);
            let read = if wants_image { context.images.want(&job.key, &image) } else { None };
            step.again = again.into_iter().chain(read).min();
            blame::note_failure(context, job, &mut mind, first, &pods);
            if context.settings.server.per_job_metrics {
                let ready = pods.iter().filter(|p| p.is_ready()).count();
                let ready = u32::try_from(ready).unwrap_or(u32::MAX);
                context.telemetry.job(&job.key.namespace, &job.key.name, mind.state.target, ready);
            }
        }
        Err(problems) => {
            // Nothing is done to a job whose spec can't be read: its pods go on as they are.
            mind.todo.clear();
            let condition =
                conditions::new(ConditionKind::Created, false, ConditionReason::InvalidSpec, problems.to_string(), now);
            conditions::merge(&mut mind.state.conditions, vec![condition]);
        }
    }
    let status = status(&entry, &mind, &pods, now);
    let delay = context.settings.reconcile.status_delay.get();
    let checkpoint = context.settings.evaluation.checkpoint_period.get();
    match due(&entry, &mind, &status, delay, checkpoint) {
        Due::Now => {
            // A job without a status has nothing stored, not zeroes: these are written too.
            let none = entry.stored == ElasticJobStatus::default();
            let stored = if none { json!({}) } else { serde_json::to_value(&entry.stored).unwrap_or_default() };
            let meant = serde_json::to_value(&status).unwrap_or_default();
            step.write = merge_patch(&stored, &meant).map(|patch| (entry.version.clone(), patch));
            mind.tried = stamp(&status).map(str::to_owned);
        }
        Due::In(wait) => {
            mind.unwritten.get_or_insert_with(Instant::now);
            step.again = Some(step.again.map_or(wait, |a| a.min(wait)));
        }
        Due::No => mind.unwritten = None,
    }
    entry.mind = Some(mind);
    step
}

/// Takes a job over from its stored status, or from its live pods and its group where that is lost: at first sight, and
/// again where another replica has written since.
pub(crate) fn adopt(entry: &mut Entry, pods: &[Pod], group: Option<&Group>, agent: AgentFacts, now: Time) {
    if entry.mind.is_some() && !entry.is_overtaken() {
        return;
    }
    if plan::needs_group(pods, agent.gateway, group) && restore(&entry.stored, None, now).is_none() {
        // All jobs are planned for when it is there.
        let job = entry.object.metadata.name.as_deref().unwrap_or_default();
        tracing::warn!(job, "its status is lost and etcd is away: it is left as it is until that is back");
        return;
    }
    let before = entry.mind.take().unwrap_or_default();
    // What this replica knew last of a state that was not read anew is older than what another has written since.
    let known = || PolicyCheckpoint::of(&before.memory, Time(0));
    let checkpoint = entry.outside.read.clone().or_else(known);
    let restored = restore(&entry.stored, checkpoint.clone(), now);
    let (state, memory) = match (restored, &entry.spec) {
        (Some(restored), _) => (restored.state, restored.memory),
        (None, Ok(spec)) => {
            let mut memory = Memory::new(now);
            take_up(&mut memory, checkpoint, now);
            (plan::recover(spec, pods, group, now), memory)
        }
        // What the pods are of can't be told: a state written now would be taken for the job's when the spec is mended.
        (None, Err(problems)) if !pods.is_empty() => {
            tracing::warn!(%problems, "a job with pods has lost its status, and its spec can't be read: it is left as it is");
            return;
        }
        (None, Err(_)) => (JobState::default(), Memory::new(now)),
    };
    entry.outside.read = None;
    entry.mind = Some(Mind {
        state,
        memory,
        acting: before.acting,
        due: before.due,
        saved: Some(Instant::now()),
        basis: stamp(&entry.stored).map(str::to_owned),
        ..Mind::default()
    });
}

/// Tries to make pods that may fail before it is told: an API server that restarts is no news.
const TRIES: u32 = 5;

/// The pause after pods were refused.
const REFUSED: Duration = Duration::from_millis(500);

/// Why pods can't be made, where that lasts.
fn failing(mind: &Mind) -> Option<&str> {
    Some(mind.not_created.1.as_str()).filter(|_| mind.not_created.0 >= TRIES)
}

/// One step of the plan. Gives how long it may take until the next look, and whether the image's command is needed.
fn advance(
    mind: &mut Mind,
    spec: &JobSpec,
    pods: &[Pod],
    facts: &PlanFacts<'_>,
    now: Time,
) -> (Option<Duration>, bool) {
    mind.progress = ProgressSeen::next(mind.progress, &mind.state, facts.group, now);
    mind.stragglers = Stragglers::next(mind.stragglers.as_ref(), &mind.state, facts.group, now);
    let facts = PlanFacts {
        refused: mind.refused.as_ref(),
        failing: failing(mind),
        progress: mind.progress,
        stragglers: mind.stragglers.as_ref(),
        ..*facts
    };
    let plan = plan::plan(spec, &mind.state, pods, &facts, now);
    mind.state = plan.state;
    // It has been answered: the same refusal does not count again.
    mind.refused = None;
    if !mind.acting {
        mind.todo = plan.actions;
    }
    mind.untold.extend(plan.events);
    (plan.next_look.map(|at| at.since(now).max(Duration::from_millis(10))), plan.wants_image)
}

fn status(entry: &Entry, mind: &Mind, pods: &[Pod], now: Time) -> ElasticJobStatus {
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    to_status(&StatusFacts {
        job: &entry.object,
        spec: entry.spec.as_deref().ok(),
        state: &mind.state,
        memory: &mind.memory,
        decision: mind.memory.last.as_ref(),
        replicas: count(pods.iter().filter(|p| p.deleting.is_none()).count()),
        ready: count(pods.iter().filter(|p| p.is_ready() && p.deleting.is_none()).count()),
        now,
    })
}

/// Whether the status is to be written.
#[derive(Debug, PartialEq, Eq)]
enum Due {
    No,
    Now,
    In(Duration),
}

fn due(entry: &Entry, mind: &Mind, status: &ElasticJobStatus, delay: Duration, checkpoint: Duration) -> Due {
    let stored = &entry.stored;
    if !worth_writing(Some(stored), status) {
        let overdue = mind.saved.is_some_and(|at| at.elapsed() >= checkpoint);
        let kept = |s: &ElasticJobStatus| {
            s.memory.as_ref().map(|m| (m.policy_state.clone(), m.placement_state.clone(), m.circuits.clone()))
        };
        return if overdue && kept(status) != kept(stored) { Due::Now } else { Due::No };
    }
    let urgent = !mind.todo.is_empty()
        || stored.phase != status.phase
        || stored.target_replicas != status.target_replicas
        || stored.round.as_ref().map(|r| r.generation) != status.round.as_ref().map(|r| r.generation)
        || stored.victims != status.victims;
    let waited = mind.unwritten.map_or(Duration::ZERO, |since| since.elapsed());
    if urgent || waited >= delay { Due::Now } else { Due::In(delay.saturating_sub(waited)) }
}

/// A job is asked to be looked at because of what its actions came to.
pub fn acted(context: &Context, job: &Job, failed: bool) {
    let (failures, refused) = {
        let mut entry = job.entry();
        let Some(mind) = &mut entry.mind else { return };
        mind.acting = false;
        mind.todo.clear();
        mind.failures = if failed { mind.failures.saturating_add(1) } else { 0 };
        (mind.failures, mind.refused.is_some())
    };
    if failed {
        context.plans.add_after(job.key.clone(), back_off(failures));
    } else if refused {
        // A round that stops meanwhile asks again for the pods that it will need.
        context.plans.add_after(job.key.clone(), REFUSED);
    } else {
        context.plans.add_after(job.key.clone(), plan::LOOK_AGAIN);
    }
}

/// Members told that they go on, and nothing else: for hangs and stragglers that is noted, and nothing is planned for. True
/// if a plan is due all the same: with the first progress of a round, say, it becomes known when the next is to come.
pub fn progressed(job: &Job, group: Option<&Group>, now: Time) -> bool {
    let mut entry = job.entry();
    let Some(mind) = &mut entry.mind else { return true };
    let progress = ProgressSeen::next(mind.progress, &mind.state, group, now);
    let stragglers = Stragglers::next(mind.stragglers.as_ref(), &mind.state, group, now);
    let goes_on = ProgressSeen::goes_on(mind.progress, progress)
        && Stragglers::goes_on(mind.stragglers.as_ref(), stragglers.as_ref())
        && !plan::is_first_checkpoint(&mind.state, group);
    (mind.progress, mind.stragglers) = (progress, stragglers);
    !goes_on
}

#[cfg(test)]
#[path = "reconcile_tests.rs"]
mod tests;
