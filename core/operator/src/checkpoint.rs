//! Policies' states that `status` is too small for: a `ConfigMap` for each job that needs one.
//!
//! They are read once, by label and page by page, when this replica begins to lead; no job is planned for or sized before
//! that. They are written slowly: at most once a period for each job, only if they have changed, a few at a time, and once
//! more when the operator is told to stop. Nothing watches them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use eto_api::labels;
use eto_cycle::checkpoint::{self, PolicyCheckpoint};
use futures::StreamExt;
use futures::stream;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::ListParams;
use tokio::sync::watch;

use crate::apply::WriteError;
use crate::cache::jobs::{Entry, Job};
use crate::cache::scoped;
use crate::context::{Context, back_off, now as clock};
use crate::trouble;

/// States read at a time: 64 KiB each, and more where a user has made a map of that label.
const PAGE: u32 = 50;
/// States written at the same time. Few: this is never urgent, and large objects are what etcd likes least.
const AT_ONCE: usize = 4;
/// How often jobs are looked through for what is due.
const LOOK: Duration = Duration::from_secs(1);

/// Whether the stored states have been read since this replica began to lead. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Checkpoints {
    read: watch::Sender<bool>,
}

impl Default for Checkpoints {
    fn default() -> Self {
        Checkpoints { read: watch::Sender::new(false) }
    }
}

impl Checkpoints {
    pub fn are_read(&self) -> bool {
        *self.read.borrow()
    }

    /// This replica leads no more: others write.
    pub fn forget(&self) {
        self.read.send_replace(false);
    }
}

/// What is stored of the state of one job, as far as this replica knows.
#[derive(Debug, Default)]
pub struct Outside {
    /// As it was read, until the job is taken over.
    pub read: Option<PolicyCheckpoint>,
    /// Digest of what is stored; `None` = nothing, or not known.
    stored: Option<[u8; 32]>,
    /// Not written before this; `None` = no large state has been seen.
    due: Option<Instant>,
    /// Writes that failed in a row.
    failures: u32,
}

impl Outside {
    fn found(read: PolicyCheckpoint) -> Self {
        Outside { stored: Some(read.digest()), read: Some(read), ..Outside::default() }
    }
}

/// Reads all stored states; tries until it can. Where the operator has no right to, it says so and goes on without: the
/// jobs concerned are not shrunk for one stabilisation window.
pub async fn read(context: &Context) {
    let mut failures = 0;
    loop {
        match read_all(context).await {
            Ok(found) => {
                tracing::debug!(found, "policies' states that status does not hold were read");
                break;
            }
            Err(kube::Error::Api(status)) if status.code == 403 => {
                tracing::error!(
                    error = status.message,
                    "policies' states above {} bytes can't be read: grant list and patch of configmaps, as \
                     deploy/operator.yaml does; such policies start anew",
                    eto_cycle::status::MAX_STORED_POLICY_STATE
                );
                break;
            }
            Err(error) => {
                failures += 1;
                tracing::warn!(error = trouble::of_request(&error), "policies' states could not be read; tried again");
                tokio::time::sleep(back_off(failures)).await;
            }
        }
    }
    context.checkpoints.read.send_replace(true);
}

async fn read_all(context: &Context) -> kube::Result<usize> {
    let api: Api<ConfigMap> = scoped(context.writer.client(), &context.settings.kubernetes.namespace);
    let jobs: HashMap<_, Arc<Job>> = context.caches.jobs.all().into_iter().map(|j| (j.key.clone(), j)).collect();
    let mut page = ListParams::default().labels(labels::POLICY_STATE).limit(PAGE);
    let mut found = 0;
    loop {
        let list = api.list(&page).await?;
        for (of, checkpoint) in list.items.into_iter().filter_map(checkpoint::read) {
            if let Some(job) = jobs.get(&of.job).filter(|j| j.uid == of.uid) {
                job.entry().outside = Outside::found(checkpoint);
                found += 1;
            }
        }
        match list.metadata.continue_.filter(|c| !c.is_empty()) {
            Some(next) => page = page.continue_token(&next),
            None => return Ok(found),
        }
    }
}

/// Writes what is due, until `stop` turns true.
pub async fn keep(context: Context, mut stop: watch::Receiver<bool>) {
    let period = context.settings.evaluation.large_state_period.get();
    let mut looks = tokio::time::interval(LOOK.min(period));
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = looks.tick() => {}
            _ = stop.wait_for(|s| *s) => return,
        }
        if context.may_begin() {
            tokio::select! {
                () = write(&context, Some(period)) => {}
                _ = stop.wait_for(|s| *s) => return,
            }
        }
    }
}

/// Writes all that has changed, due or not: the last thing a leader does.
pub async fn finish(context: &Context) {
    if context.may_begin() {
        write(context, None).await;
    }
}

async fn write(context: &Context, period: Option<Duration>) {
    let due = context.caches.jobs.all().into_iter().filter_map(|job| {
        let checkpoint = due(&mut job.entry(), Instant::now(), period, rand::random())?;
        Some(write_one(context, job, checkpoint))
    });
    stream::iter(due).buffer_unordered(AT_ONCE).for_each(|()| async {}).await;
}

async fn write_one(context: &Context, job: Arc<Job>, checkpoint: PolicyCheckpoint) {
    let object = Arc::clone(&job.entry().object);
    let Some(map) = checkpoint::build(&object, &checkpoint) else { return };
    let outcome = context.writer.policy_state(&job.key.namespace, &checkpoint::name(&job.uid), &map).await;
    let mut entry = job.entry();
    let outside = &mut entry.outside;
    match outcome {
        Ok(()) => {
            outside.stored = Some(checkpoint.digest());
            outside.failures = 0;
        }
        Err(WriteError::NotLeading) => outside.due = None,
        Err(error) => {
            // It is due again in a period. Told when it begins, not each time.
            if outside.failures == 0 {
                tracing::warn!(job = %job.key, %error, "the policy's state was not saved; it is tried again");
            }
            outside.failures = outside.failures.saturating_add(1);
        }
    }
}

/// What is to be written of a job now; `spread`, from 0 to 1, keeps the jobs of a fleet apart. Without a `period` it is
/// whatever has changed.
fn due(entry: &mut Entry, now: Instant, period: Option<Duration>, spread: f64) -> Option<PolicyCheckpoint> {
    if entry.is_leaving() {
        return None;
    }
    let memory = &entry.mind.as_ref()?.memory;
    let states = [&memory.policy_state, &memory.placement.kept.state];
    if !states.into_iter().flatten().any(checkpoint::is_large) {
        return None;
    }
    let outside = &mut entry.outside;
    if let Some(period) = period {
        let Some(at) = outside.due else {
            outside.due = Some(now + period.mul_f64(spread));
            return None;
        };
        if at > now {
            return None;
        }
        outside.due = Some(now + period.mul_f64(1.0 + spread / 4.0));
    }
    let digest = checkpoint::digest(memory)?;
    if outside.stored == Some(digest) {
        return None;
    }
    PolicyCheckpoint::of(memory, clock())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use eto_engine::contract::KeptState;
    use serde_json::json;

    use super::*;
    use crate::cache::jobs::{Jobs, Mind};

    const PERIOD: Duration = Duration::from_secs(60);

    fn job(bytes: usize) -> Arc<Job> {
        let jobs = Jobs::default();
        let object = serde_json::from_value(json!({
            "apiVersion": "elastic.ai/v1alpha1", "kind": "ElasticJob",
            "metadata": {"namespace": "n", "name": "j", "uid": "u", "resourceVersion": "1", "generation": 1},
            "spec": {"replicas": 2},
        }));
        let (key, _) = jobs.seen(object.unwrap()).unwrap();
        let job = jobs.get(&key).unwrap();
        let mut mind = Mind::default();
        mind.memory.policy_state = Some(KeptState { version: 1, bytes: vec![7; bytes] });
        mind.memory.policy_state_of = Some("mine".to_owned());
        job.entry().mind = Some(mind);
        job
    }

    #[test]
    fn a_changed_state_is_written_once_a_period_and_no_sooner() {
        let job = job(40_000);
        let mut entry = job.entry();
        let began = Instant::now();
        let mut written = Vec::new();
        for second in 0..600 {
            let state = entry.mind.as_mut().unwrap().memory.policy_state.as_mut().unwrap();
            *state.bytes.first_mut().unwrap() = u8::try_from(second % 251).unwrap();
            if let Some(c) = due(&mut entry, began + Duration::from_secs(second), Some(PERIOD), 0.5) {
                entry.outside.stored = Some(c.digest());
                written.push(second);
            }
        }
        assert_eq!(written.first(), Some(&30));
        assert!(written.len() == 9, "{written:?}");
        assert!(written.windows(2).all(|w| w[1] - w[0] >= PERIOD.as_secs()), "{written:?}");
    }

    #[test]
    fn an_unchanged_state_is_written_once_and_a_small_one_never() {
        let job = job(40_000);
        let mut entry = job.entry();
        let first = due(&mut entry, Instant::now(), None, 0.0).unwrap();
        entry.outside.stored = Some(first.digest());
        assert_eq!(due(&mut entry, Instant::now(), None, 0.0), None);
        entry.mind.as_mut().unwrap().memory.policy_state.as_mut().unwrap().bytes.push(1);
        assert!(due(&mut entry, Instant::now(), None, 0.0).is_some());
        let small = self::job(100);
        assert_eq!(due(&mut small.entry(), Instant::now(), None, 0.0), None);
    }
}
