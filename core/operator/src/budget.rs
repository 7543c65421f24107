//! Keeps the job's `PodDisruptionBudget` as it is to be.

use std::sync::Arc;

use eto_cycle::{budget, pod};
use eto_engine::plan;

use crate::apply::WriteError;
use crate::cache::budgets::Due;
use crate::cache::jobs::Job;
use crate::context::{Context, now};

/// What is to be done about the budget of a job.
pub(crate) fn due(context: &Context, job: &Job) -> Option<Due> {
    let pods = context.caches.pods.of(&job.key.namespace, &job.uid);
    let entry = job.entry();
    if entry.is_leaving() {
        return None;
    }
    // A job whose spec can't be read keeps what it has.
    let spec = entry.spec.as_ref().ok()?;
    let wanted = plan::budget(spec, &entry.mind.as_ref()?.state, &pods, now());
    let object = &entry.object;
    context.caches.budgets.due(&job.key, &job.uid, wanted, || pod::common_labels(object))
}

/// Does it. False if it is to be tried again soon.
pub(crate) async fn settle(context: &Context, job: &Arc<Job>) -> bool {
    let Some(due) = due(context, job) else { return true };
    let object = Arc::clone(&job.entry().object);
    let (budgets, writer) = (&context.caches.budgets, &context.writer);
    let (namespace, name) = (&job.key.namespace, budget::name(&object));
    let written = match due {
        Due::Create(n) => writer.create_budget(namespace, &budget::build(&object, n)).await.map(Some),
        Due::Change(n) => writer.change_budget(namespace, &name, &budget::build(&object, n)).await.map(Some),
        Due::Delete => writer.delete_budget(namespace, &name).await.map(|()| None),
    };
    match written {
        Ok(Some(budget)) => {
            budgets.seen(&budget);
            true
        }
        Ok(None) | Err(WriteError::Gone) => {
            budgets.forget(&job.key);
            true
        }
        Err(error @ (WriteError::Unreached(_) | WriteError::NotLeading)) => {
            tracing::debug!(job = %job.key, %error, "the disruption budget was not written");
            false
        }
        Err(error) => {
            tracing::warn!(job = %job.key, %error, "the disruption budget was not written; it is tried again later");
            budgets.hold(&job.key);
            true
        }
    }
}
