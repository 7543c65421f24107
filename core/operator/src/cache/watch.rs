//! The watches that fill the caches.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

use eto_api::{ElasticJob, labels};
use eto_engine::contract::WorkerPhase;
use eto_engine::job::JobKey;
use eto_engine::observe::Pod;
use eto_engine::plan::{Event as Told, EventReason};
use futures::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::DefaultBackoff;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use super::budgets::Budgets;
use super::jobs::{Jobs, News};
use super::leases::{self, Leases};
use super::nodes::Nodes;
use super::observe::observe;
use super::pods::{Pods, Seen};
use super::quarantine::Failure;
use super::touched::{budget_event, lease_event, look_at_jobs_on};
use super::version;
use super::volumes::Volumes;
use crate::context::now;
use crate::queue::Queue;
use crate::settings::Kubernetes;
use crate::telemetry::Telemetry;
use crate::trouble;

/// All caches.
#[derive(Clone, Debug, Default)]
pub struct Watches {
    pub jobs: Arc<Jobs>,
    pub pods: Arc<Pods>,
    pub nodes: Arc<Nodes>,
    pub volumes: Arc<Volumes>,
    pub budgets: Arc<Budgets>,
    pub leases: Arc<Leases>,
}

impl Watches {
    /// Nodes that new workers had better not get: their end is announced, they have a fault, or nothing is heard of them, which
    /// the scheduler learns later, when Kubernetes calls them not ready. Sorted.
    pub fn avoided(&self) -> Vec<String> {
        let all: BTreeSet<String> = self.nodes.avoided().into_iter().chain(self.leases.silent()).collect();
        all.into_iter().collect()
    }
}

/// Becomes true when a watch has read its first list whole.
type Synced = watch::Sender<bool>;

/// What each watch is given.
struct Duty {
    synced: Synced,
    telemetry: Telemetry,
    stop: watch::Receiver<bool>,
    /// Changes when all is to be listed anew.
    anew: watch::Receiver<u64>,
}

/// Starts the watches; they run until `stop`, and list all again when `anew` changes. What changes is put into `queue`. The
/// receivers turn true when each of the caches is filled.
pub fn start(
    client: &Client,
    settings: &Kubernetes,
    caches: &Watches,
    queue: &Queue,
    telemetry: &Telemetry,
    stop: &watch::Receiver<bool>,
    anew: &watch::Receiver<u64>,
) -> Vec<watch::Receiver<bool>> {
    let all = watcher::Config::default();
    let ours = watcher::Config::default().labels(labels::ELASTIC_JOB);
    let mut synced = Vec::new();
    let mut begin = || {
        let (sender, receiver) = watch::channel(false);
        synced.push(receiver);
        Duty { synced: sender, telemetry: telemetry.clone(), stop: stop.clone(), anew: anew.clone() }
    };

    let duty = begin();
    let (caches_of_jobs, q) = (caches.clone(), queue.clone());
    let api: Api<ElasticJob> = scoped(client, &settings.namespace);
    tokio::spawn(follow(api, all.clone(), "elasticjobs", duty, move |event| job_event(&caches_of_jobs, &q, event)));

    let duty = begin();
    let (caches_of_pods, q) = (caches.clone(), queue.clone());
    let (api, config): (Api<core::Pod>, _) = if settings.watch_all_pods {
        (Api::all(client.clone()), all.clone())
    } else {
        (scoped(client, &settings.namespace), ours)
    };
    tokio::spawn(follow(api, config, "pods", duty, move |event| pod_event(&caches_of_pods, &q, event)));

    let duty = begin();
    let (caches_of_nodes, q) = (caches.clone(), queue.clone());
    let api: Api<core::Node> = Api::all(client.clone());
    tokio::spawn(follow(api, all.clone(), "nodes", duty, move |event| node_event(&caches_of_nodes, &q, event)));

    let duty = begin();
    let volumes = Arc::clone(&caches.volumes);
    let api: Api<core::PersistentVolumeClaim> = scoped(client, &settings.namespace);
    tokio::spawn(follow(api, all.clone(), "persistentvolumeclaims", duty, move |e| claim_event(&volumes, e)));

    let duty = begin();
    let volumes = Arc::clone(&caches.volumes);
    let api: Api<core::PersistentVolume> = Api::all(client.clone());
    tokio::spawn(follow(api, all.clone(), "persistentvolumes", duty, move |e| volume_event(&volumes, e)));

    let duty = begin();
    let volumes = Arc::clone(&caches.volumes);
    let api: Api<StorageClass> = Api::all(client.clone());
    tokio::spawn(follow(api, all.clone(), "storageclasses", duty, move |e| class_event(&volumes, e)));

    // Not waited for: an operator that may not read these (yet) serves its jobs without.
    let apart = || {
        let (sender, _) = watch::channel(false);
        Duty { synced: sender, telemetry: telemetry.clone(), stop: stop.clone(), anew: anew.clone() }
    };
    let (caches_of_budgets, q) = (caches.clone(), queue.clone());
    let api: Api<PodDisruptionBudget> = scoped(client, &settings.namespace);
    let on = move |e| budget_event(&caches_of_budgets, &q, e);
    tokio::spawn(follow(api, all.clone(), "poddisruptionbudgets", apart(), on));

    if caches.leases.is_wanted() {
        let (caches_of_leases, q) = (caches.clone(), queue.clone());
        let api: Api<Lease> = Api::namespaced(client.clone(), leases::NAMESPACE);
        let on = move |e| lease_event(&caches_of_leases, &q, e, Instant::now());
        tokio::spawn(follow(api, all, "leases", apart(), on));
    }
    synced
}

/// All of a kind, or those of one namespace.
pub(crate) fn scoped<K>(client: &Client, namespace: &str) -> Api<K>
where
    K: Resource<Scope = kube::core::NamespaceResourceScope>,
    K::DynamicType: Default,
{
    if namespace.is_empty() { Api::all(client.clone()) } else { Api::namespaced(client.clone(), namespace) }
}

/// Longest pause before a watch is begun again: an API server that comes back is seen within this.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// The pauses between tries to begin a watch again, doubling. kube's own back-off starts anew with `Event::Init`, which
/// comes before each try, so that it never grows while the server refuses the list.
#[derive(Default)]
struct Pauses(DefaultBackoff);

impl Pauses {
    /// The server told something: the next trouble is a new one.
    fn heard<K>(&mut self, event: &Event<K>) {
        if !matches!(event, Event::Init) {
            self.0.reset();
        }
    }

    fn next(&mut self) -> Duration {
        self.0.next().unwrap_or(LONGEST_PAUSE).min(LONGEST_PAUSE)
    }
}

/// Follows one kind until it is to stop. A watch that breaks is begun again, with back-off; what was known stays meanwhile.
async fn follow<K>(api: Api<K>, config: watcher::Config, what: &'static str, mut duty: Duty, on: impl Fn(Event<K>))
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let begin = || Box::pin(watcher(api.clone(), config.clone()));
    let mut changes = begin();
    let mut pauses = Pauses::default();
    loop {
        let change = tokio::select! {
            change = changes.next() => change,
            Ok(()) = duty.anew.changed() => {
                changes = begin();
                continue;
            }
            _ = duty.stop.wait_for(|s| *s) => return,
        };
        match change {
            Some(Ok(event)) => {
                let whole = matches!(event, Event::InitDone);
                pauses.heard(&event);
                on(event);
                if whole {
                    duty.synced.send_replace(true);
                }
            }
            Some(Err(error)) => {
                duty.telemetry.watch_broke(what);
                // A watch that the server has closed or forgotten is the ordinary course; the rest wants a look.
                tracing::warn!(what, error = trouble::of_watch(&error), "the watch broke; it is begun again");
                tokio::select! {
                    () = tokio::time::sleep(pauses.next()) => {}
                    _ = duty.stop.wait_for(|s| *s) => return,
                }
            }
            None => return,
        }
    }
}

fn job_event(caches: &Watches, queue: &Queue, event: Event<ElasticJob>) {
    let jobs = &caches.jobs;
    match event {
        Event::Init => jobs.list_begins(),
        Event::InitDone => {
            for key in jobs.list_ends() {
                queue.add(key);
            }
            // Their pods may have been there before them.
            for job in jobs.all() {
                for pod in caches.pods.of(&job.key.namespace, &job.uid).iter() {
                    hold_against_node(caches, &job.key.namespace, &job.uid, pod);
                }
            }
        }
        Event::InitApply(object) | Event::Apply(object) => {
            if let Some((key, News::Some)) = jobs.seen(object) {
                queue.add(key);
            }
        }
        Event::Delete(object) => {
            if let Some(key) = super::jobs::key(&object) {
                jobs.gone(&key, object.metadata.uid.as_deref());
                queue.add(key);
            }
        }
    }
}

fn pod_event(caches: &Watches, queue: &Queue, event: Event<core::Pod>) {
    let Watches { jobs, pods, nodes, volumes, .. } = caches;
    match event {
        Event::Init => {
            pods.list_begins();
            nodes.pod_list_begins();
            volumes.pod_list(true);
        }
        Event::InitDone => {
            nodes.pod_list_ends();
            volumes.pod_list(false);
            let touched = pods.list_ends();
            if !touched.is_empty() {
                for job in jobs.all().iter().filter(|j| touched.contains(j.uid.as_str())) {
                    queue.add(job.key.clone());
                }
            }
        }
        Event::InitApply(pod) | Event::Apply(pod) => {
            nodes.pod(&pod);
            volumes.pod(&pod);
            if let Some(seen) = seen(&pod) {
                let key = JobKey { namespace: seen.namespace.clone(), name: seen.job.clone() };
                hold_against_node(caches, &seen.namespace, &seen.owner, &seen.pod);
                if pods.seen(seen) {
                    queue.add(key);
                }
            } else if let Some(key) = release(jobs, pods, &pod) {
                queue.add(key);
            }
        }
        Event::Delete(pod) => {
            let uid = pod.metadata.uid.as_deref().unwrap_or_default();
            nodes.pod_gone(uid);
            volumes.pod_gone(uid);
            if let Some(seen) = seen(&pod) {
                if pods.gone(uid) {
                    queue.add(JobKey { namespace: seen.namespace, name: seen.job });
                }
            } else if let Some(key) = release(jobs, pods, &pod) {
                queue.add(key);
            }
        }
    }
}

/// A pod that no ElasticJob controls: where one did until now, that job lost it and is told so. Nothing is done to the pod:
/// whoever took it away may want it.
fn release(jobs: &Jobs, pods: &Pods, pod: &core::Pod) -> Option<JobKey> {
    let (owner, pod) = pods.released(pod.metadata.uid.as_deref()?)?;
    let job = jobs.all().into_iter().find(|j| j.uid == owner)?;
    let message = format!(
        "pod {} has lost its owner reference and is no worker of this job any more; it goes on by itself: delete it where it \
         is not needed",
        pod.name
    );
    if let Some(mind) = &mut job.entry().mind {
        mind.untold.push(Told { warning: true, reason: EventReason::WorkerReleased, message });
    }
    Some(job.key.clone())
}

/// Holds a pod that failed against its node, from when it failed. An owner reference is no more than a claim: it counts where
/// the job of that UID is known, in the pod's namespace.
fn hold_against_node(caches: &Watches, namespace: &str, owner: &str, pod: &Pod) {
    let Some(node) = pod.node.clone().filter(|_| is_fault(pod)) else { return };
    if caches.jobs.by_uid(owner).is_none_or(|job| job.key.namespace != namespace) {
        return;
    }
    let peers = caches.pods.of(namespace, owner);
    let among_others = peers.iter().any(|p| p.node.as_ref().is_some_and(|n| *n != node));
    let age = now().since(pod.ended.unwrap_or(pod.created));
    caches.nodes.fault(Failure { of: pod.uid.clone(), job: owner.to_owned(), node, among_others }, age);
}

/// Whether a pod failed, and not because it was to go.
fn is_fault(pod: &Pod) -> bool {
    pod.phase == WorkerPhase::Failed && !pod.disrupted && pod.deleting.is_none()
}

/// A pod as far as it concerns jobs: one that an ElasticJob controls.
pub(crate) fn seen(pod: &core::Pod) -> Option<Seen> {
    let owner = pod.metadata.owner_references.iter().flatten().find(|o| o.controller == Some(true))?;
    if owner.kind != "ElasticJob" || !owner.api_version.starts_with(eto_api::GROUP) {
        return None;
    }
    Some(Seen {
        namespace: pod.metadata.namespace.clone()?,
        job: owner.name.clone(),
        owner: owner.uid.clone(),
        version: version(pod.metadata.resource_version.as_deref()),
        pod: observe(pod)?,
    })
}

/// Jobs with workers on a node are looked at when it turns (not) ready, when its end is announced, when it has a fault, and
/// when it is gone.
fn node_event(caches: &Watches, queue: &Queue, event: Event<core::Node>) {
    let nodes = &caches.nodes;
    let touched = match event {
        Event::Init => {
            nodes.list_begins();
            Vec::new()
        }
        Event::InitDone => nodes.list_ends(),
        Event::InitApply(node) | Event::Apply(node) => {
            let news = nodes.seen(&node);
            node.metadata.name.into_iter().filter(|_| news).collect()
        }
        Event::Delete(node) => {
            nodes.gone(node.metadata.name.as_deref().unwrap_or_default());
            node.metadata.name.into_iter().collect()
        }
    };
    look_at_jobs_on(caches, queue, &touched);
}

fn claim_event(volumes: &Volumes, event: Event<core::PersistentVolumeClaim>) {
    match event {
        Event::Init => volumes.claim_list(true),
        Event::InitDone => volumes.claim_list(false),
        Event::InitApply(claim) | Event::Apply(claim) => volumes.claim(&claim),
        Event::Delete(claim) => volumes.claim_gone(&claim),
    }
}

fn volume_event(volumes: &Volumes, event: Event<core::PersistentVolume>) {
    match event {
        Event::Init => volumes.volume_list(true),
        Event::InitDone => volumes.volume_list(false),
        Event::InitApply(volume) | Event::Apply(volume) => volumes.volume(&volume),
        Event::Delete(volume) => volumes.volume_gone(volume.metadata.name.as_deref().unwrap_or_default()),
    }
}

fn class_event(volumes: &Volumes, event: Event<StorageClass>) {
    match event {
        Event::Init => volumes.class_list(true),
        Event::InitDone => volumes.class_list(false),
        Event::InitApply(class) | Event::Apply(class) => volumes.class(&class),
        Event::Delete(class) => volumes.class_gone(class.metadata.name.as_deref().unwrap_or_default()),
    }
}

#[cfg(test)]
#[path = "watch_tests.rs"]
mod tests;
