//! Watches the jobs and notes when each got the size that is waited for.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use eto_e2e::{Failure, Outcome};
use futures::StreamExt;
use kube::api::ApiResource;
use kube::core::Object;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::jobs::NAMESPACE;

/// Where a job's size is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    /// `status.targetReplicas`, which the operator writes.
    Target,
    /// `spec.replicas`, which the floor writes.
    Replicas,
}

/// Only what is looked at is read, so that watching costs little beside what is watched.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Spec {
    replicas: u32,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    target_replicas: u32,
}

type Slim = Object<Spec, Status>;

#[derive(Default)]
struct State {
    /// Replicas and target of each job.
    sizes: HashMap<String, (u32, u32)>,
    wait: Option<Wait>,
}

struct Wait {
    field: Field,
    size: u32,
    began: Instant,
    /// When each job got there.
    lags: HashMap<String, Duration>,
}

impl Wait {
    fn note(&mut self, name: &str, (replicas, target): (u32, u32)) {
        let size = if self.field == Field::Target { target } else { replicas };
        if size == self.size && !self.lags.contains_key(name) {
            self.lags.insert(name.to_owned(), self.began.elapsed());
        }
    }
}

/// A watch on all jobs; ends when dropped.
pub(crate) struct Follow {
    state: Arc<Mutex<State>>,
    seen: Arc<Notify>,
    task: JoinHandle<()>,
}

impl Follow {
    pub(crate) fn start(client: Client) -> Follow {
        let (state, seen) = (Arc::<Mutex<State>>::default(), Arc::new(Notify::new()));
        let resource = ApiResource::erase::<eto_api::ElasticJob>(&());
        let api: Api<Slim> = Api::namespaced_with(client, NAMESPACE, &resource);
        let shared = (Arc::clone(&state), Arc::clone(&seen));
        let task = tokio::spawn(async move {
            let mut jobs = watcher(api, watcher::Config::default()).default_backoff().applied_objects().boxed();
            while let Some(job) = jobs.next().await {
                let Ok(job) = job else { continue };
                let sizes = (job.spec.replicas, job.status.as_ref().map_or(0, |s| s.target_replicas));
                let mut state = shared.0.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(wait) = &mut state.wait {
                    wait.note(&job.name_any(), sizes);
                }
                state.sizes.insert(job.name_any(), sizes);
                shared.1.notify_one();
            }
        });
        Follow { state, seen, task }
    }

    /// How long it took each of `count` jobs from now on, or from the moment that `begin` is called, to get that size;
    /// ascending.
    pub(crate) async fn reach(
        &self,
        field: Field,
        size: u32,
        count: usize,
        within: Duration,
        begin: impl FnOnce(),
    ) -> Outcome<Vec<Duration>> {
        {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let mut wait = Wait { field, size, began: Instant::now(), lags: HashMap::new() };
            state.sizes.iter().for_each(|(name, sizes)| wait.note(name, *sizes));
            state.wait = Some(wait);
        }
        begin();
        let reached = || {
            let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.wait.as_ref().map_or(0, |w| w.lags.len())
        };
        let waiting = async {
            while reached() < count {
                self.seen.notified().await;
            }
        };
        tokio::time::timeout(within, waiting)
            .await
            .map_err(|_| Failure(format!("after {within:?} {} of {count} jobs have the size {size}", reached())))?;
        let wait = self.state.lock().unwrap_or_else(PoisonError::into_inner).wait.take();
        let mut lags: Vec<Duration> = wait.map(|w| w.lags.into_values().collect()).unwrap_or_default();
        lags.sort_unstable();
        Ok(lags)
    }
}

impl Drop for Follow {
    fn drop(&mut self) {
        self.task.abort();
    }
}
