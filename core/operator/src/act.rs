//! Carries planned actions out: services, then deletions, then new pods, each kind side by side.

use std::sync::Arc;

use eto_api::ElasticJob;
use eto_cycle::pod::{Agent, BuiltPod, KeepOff};
use eto_engine::job::JobKey;
use eto_engine::plan::{Action, Assignment, Event, EventReason, NewPod, Refused};
use eto_engine::state::RoundMode;
use futures::StreamExt;
use futures::stream;

use crate::apply::WriteError;
use crate::budget;
use crate::cache::jobs::Job;
use crate::cache::seen;
use crate::context::Context;
use crate::node_facts::NodeFacts;
use crate::reconcile;

/// Pods of one job that are written at the same time; all jobs together share the permits of the context.
const AT_ONCE: usize = 16;

/// Carries out what was planned for a job; called for one at a time.
pub async fn act(context: Context, key: JobKey) {
    let Some(job) = context.caches.jobs.get(&key) else { return };
    let todo = {
        let mut entry = job.entry();
        let Some(mind) = &mut entry.mind else { return };
        std::mem::take(&mut mind.todo)
    };
    let failed = carry_out(&context, &job, todo).await | !budget::settle(&context, &job).await;
    reconcile::acted(&context, &job, failed);
}

async fn carry_out(context: &Context, job: &Arc<Job>, todo: Vec<Action>) -> bool {
    let (mut deletes, mut creates, mut failed) = (Vec::new(), Vec::new(), false);
    for action in todo {
        match action {
            Action::EnsureService => failed |= !service(context, job).await,
            Action::DeletePod { name, uid, why } => deletes.push((name, uid, why)),
            Action::CreatePod(new) => creates.push(new),
            Action::Assign(next) => failed |= !assign(context, job, &next).await,
            Action::DeleteJob => failed |= !delete_job(context, job).await,
        }
    }
    failed |= delete_pods(context, job, deletes).await;
    if !failed && !creates.is_empty() {
        failed |= create_pods(context, job, creates).await;
    }
    failed
}

async fn service(context: &Context, job: &Job) -> bool {
    let object = Arc::clone(&job.entry().object);
    let name = eto_cycle::service::name(&object);
    let service = eto_cycle::service::build(&object);
    match context.writer.service(&job.key.namespace, &name, &service).await {
        Ok(()) => true,
        Err(error) => {
            tracing::warn!(job = %job.key, %error, "the service was not made");
            false
        }
    }
}

async fn assign(context: &Context, job: &Job, next: &Assignment) -> bool {
    if !context.leadership.may_act() {
        return false;
    }
    let (generation, order) = (next.round.generation, next.order);
    match context.gateway.assign(&job.uid, next).await {
        Ok(()) => {
            tracing::debug!(job = %job.key, generation, ?order, "agents were told");
            true
        }
        Err(error) => {
            tracing::warn!(job = %job.key, generation, ?order, error, "agents were not told");
            false
        }
    }
}

async fn delete_job(context: &Context, job: &Job) -> bool {
    match context.writer.delete_job(&job.key, &job.uid).await {
        Ok(()) => {
            // Not to be asked again while the watch's word is on its way.
            context.caches.jobs.gone(&job.key, Some(&job.uid));
            true
        }
        Err(error) => {
            tracing::warn!(job = %job.key, %error, "the finished job was not deleted");
            false
        }
    }
}

/// True if one could not be deleted.
async fn delete_pods(context: &Context, job: &Arc<Job>, pods: Vec<(String, String, String)>) -> bool {
    let one = |(name, uid, why): (String, String, String)| async move {
        let Ok(_permit) = context.pod_permits.acquire().await else { return true };
        tracing::debug!(job = %job.key, pod = name, why, "deleting");
        match context.writer.delete_pod(&job.key.namespace, &name, &uid).await {
            Ok(Some(pod)) => {
                if let Some(seen) = seen(&pod) {
                    context.caches.pods.wrote(seen);
                }
                false
            }
            Ok(None) => {
                context.caches.pods.gone(&uid);
                false
            }
            Err(error) => {
                tracing::warn!(job = %job.key, pod = name, %error, "a pod was not deleted");
                true
            }
        }
    };
    stream::iter(pods).map(one).buffer_unordered(AT_ONCE).fold(false, |all, failed| async move { all || failed }).await
}

/// What became of one new pod.
enum Made {
    Yes,
    Refused(String),
    Failed(String),
}

/// True if one could not be made for a reason other than a refusal.
async fn create_pods(context: &Context, job: &Arc<Job>, pods: Vec<NewPod>) -> bool {
    let round = pods.first().map_or(0, |p| p.round);
    let size = pods.first().map_or(0, |p| p.size);
    let missing = u32::try_from(pods.len()).unwrap_or(u32::MAX);
    let present = context.caches.pods.of(&job.key.namespace, &job.uid);
    let keep_off = NodeFacts::of(context, &Arc::clone(&job.entry().object), &present).keep_off(context);
    let one = |new: NewPod| create(context, job, new, &keep_off);
    let made: Vec<Made> = stream::iter(pods).map(one).buffer_unordered(AT_ONCE).collect().await;
    let mut refusals: Vec<String> = Vec::new();
    let (mut failed, mut created) = (None, size.saturating_sub(missing));
    for outcome in made {
        match outcome {
            Made::Yes => created += 1,
            Made::Refused(message) => refusals.push(message),
            Made::Failed(message) => failed = Some(message),
        }
    }
    let mut entry = job.entry();
    if let Some(mind) = &mut entry.mind {
        mind.refused = refusals.into_iter().next().map(|message| Refused { round, created, message });
        mind.not_created = match &failed {
            Some(message) => (mind.not_created.0.saturating_add(1), message.clone()),
            None => Default::default(),
        };
    }
    failed.is_some()
}

/// What of the user's template did not come into the pod.
fn oddities(job: &ElasticJob, built: &BuiltPod) -> Vec<(EventReason, String)> {
    let mut found = Vec::new();
    if !built.overridden.is_empty() {
        let message = format!("the template sets {}; the operator's values are used", built.overridden.join(", "));
        found.push((EventReason::RankVariablesOverridden, message));
    }
    let unknown = eto_cycle::unknown::in_pods(job);
    if !unknown.is_empty() {
        let message = format!("the pods are made without fields that are not known: {unknown}");
        found.push((EventReason::UnknownFields, message));
    }
    found
}

async fn create(context: &Context, job: &Arc<Job>, new: NewPod, keep_off: &KeepOff) -> Made {
    let Ok(_permit) = context.pod_permits.acquire().await else {
        return Made::Failed("the operator is being stopped".to_owned());
    };
    let object = Arc::clone(&job.entry().object);
    let agent = match context.gateway.agents() {
        Ok(agent) => agent,
        Err(_) if new.mode == RoundMode::Recreate => None,
        Err(why) => return Made::Failed(why),
    };
    let image = match context.images.config(&object, new.index) {
        Ok(image) => image,
        Err(_) if new.mode == RoundMode::Recreate => None,
        Err(why) => return Made::Failed(why),
    };
    let agent = agent.map(|setup| Agent { setup, image: image.as_deref() });
    let built = match eto_cycle::pod::build(&object, &new, agent) {
        Ok(Some(built)) => built.keep_off(keep_off),
        // The template went or broke since the plan; the next plan says so.
        Ok(None) => return Made::Failed("the template is gone".to_owned()),
        Err(problems) => return Made::Refused(problems.to_string()),
    };
    if new.index == 0 {
        for (reason, message) in oddities(&object, &built) {
            context.events.tell(&job.key, &job.uid, Event { warning: true, reason, message });
        }
    }
    let name = built.pod.metadata.name.clone().unwrap_or_default();
    match context.writer.pod(&job.key.namespace, &name, &built.pod).await {
        Ok(pod) => {
            if let Some(seen) = seen(&pod) {
                context.caches.pods.wrote(seen);
            }
            Made::Yes
        }
        Err(WriteError::Refused(message) | WriteError::Invalid(message)) => {
            context.telemetry.pod_refused();
            tracing::warn!(job = %job.key, pod = name, message, "a pod was refused");
            Made::Refused(message)
        }
        Err(error) => {
            tracing::warn!(job = %job.key, pod = name, %error, "a pod was not made");
            Made::Failed(error.to_string())
        }
    }
}
