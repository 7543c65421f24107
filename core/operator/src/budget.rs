//! Keeps the job's `PodDisruptionBudget` as it is to be.

use std::sync::Arc;
use std::time::Duration;

use eto_cycle::{budget, pod};
use eto_engine::plan;

use crate::apply::WriteError;
use crate::cache::budgets::{Due, HOLD};
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
    context.caches.budgets.due(&job.key, &job.uid, wanted, || pod::labels_by_role(object))
}

/// Does it. False if it is to be tried again soon.
pub(crate) async fn settle(context: &Context, job: &Arc<Job>) -> bool {
    let Some(due) = due(context, job) else { return true };
    let object = Arc::clone(&job.entry().object);
    let (budgets, writer) = (&context.caches.budgets, &context.writer);
    let (namespace, name) = (&job.key.namespace, budget::name(&object));
    let (written, uid) = match due {
        Due::Create(n) => (writer.create_budget(namespace, &budget::build(&object, n)).await.map(Some), None),
        Due::Change(n, uid) => {
            let written = writer.change_budget(namespace, &name, &uid, budget::build(&object, n)).await;
            (written.map(Some), Some(uid))
        }
        Due::Delete(uid) => (writer.delete_budget(namespace, &name, &uid).await.map(|()| None), Some(uid)),
    };
    match &written {
        Ok(Some(budget)) => {
            budgets.seen(budget);
        }
        Ok(None) | Err(WriteError::Gone) => {
            if let Some(uid) = uid {
                budgets.forget(&job.key, &uid);
            }
        }
        Err(error) => {
            tracing::warn!(job = %job.key, %error, "the disruption budget was not written; it is tried again");
        }
    }
    match again(written.as_ref().err()) {
        Again::No => true,
        Again::Soon => false,
        Again::After(delay) => {
            budgets.hold(&job.key);
            context.plans.add_after(job.key.clone(), delay);
            true
        }
    }
}

/// When a write that went like this is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Again {
    No,
    Soon,
    After(Duration),
}

fn again(error: Option<&WriteError>) -> Again {
    match error {
        None | Some(WriteError::Gone) => Again::No,
        Some(WriteError::Unreached(_) | WriteError::NotLeading) => Again::Soon,
        // Nothing else may ever ask for a look at a quiet job.
        Some(WriteError::Refused(_) | WriteError::Conflict(_) | WriteError::Invalid(_)) => Again::After(HOLD),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_refused_is_tried_again_when_the_hold_is_over() {
        let refused = || "quota".to_owned();
        for error in [WriteError::Refused(refused()), WriteError::Conflict(refused()), WriteError::Invalid(refused())] {
            assert_eq!(again(Some(&error)), Again::After(HOLD), "{error}");
        }
        assert_eq!(again(Some(&WriteError::Unreached(refused()))), Again::Soon);
        assert_eq!((again(None), again(Some(&WriteError::Gone))), (Again::No, Again::No));
    }
}
