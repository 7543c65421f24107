//! The membership gateway in the operator: every replica serves it, the leader alone tells what rounds there are.
//!
//! What agents told is followed from etcd into memory, and a change of it makes the job be planned for. While etcd is
//! away nobody knows how the members are: rounds then stay as they are, and training goes on.

pub mod auth;
mod renewal;
pub mod secrets;
mod start;

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use eto_cycle::pod::AgentSetup;
use eto_engine::plan::AgentFacts;
use eto_gateway::{AssignError, Change, Fence, Groups, Server, Store};
use eto_membership::{Assignment, Group};
use tokio::sync::{mpsc, watch};

use crate::cache::Watches;
use crate::cache::pods::Pods;
use crate::context::now;
use crate::leader::Leadership;
use crate::queue::Queue;
use crate::reconcile::progressed;
use crate::settings::Settings;
use crate::telemetry::Telemetry;

pub use start::{Needs, Serving, StartError, start};

/// What the loops know of the gateway; cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Gateway {
    inner: Option<Arc<Inner>>,
}

#[derive(Debug)]
struct Inner {
    /// Set once, when the certificates are there.
    ready: OnceLock<Ready>,
    /// Why they are not.
    trouble: Mutex<String>,
    /// While this replica leads, and has told etcd so.
    fence: tokio::sync::Mutex<Option<Fence>>,
    /// As in the Lease.
    identity: String,
    leadership: Leadership,
    telemetry: Telemetry,
}

#[derive(Debug)]
struct Ready {
    agents: AgentSetup,
    store: Store,
    groups: Groups,
    /// The operator keeps etcd's certificates, so it is the one that came with it.
    own_etcd: bool,
}

impl Gateway {
    /// The gateway of these settings: none, or one that is yet to be set up.
    pub fn new(settings: &Settings, leadership: Leadership, telemetry: Telemetry) -> Self {
        let inner = Inner {
            ready: OnceLock::new(),
            trouble: Mutex::new("it takes a moment".to_owned()),
            fence: tokio::sync::Mutex::default(),
            identity: settings.leader.identity.clone(),
            leadership,
            telemetry,
        };
        Gateway { inner: settings.gateway.is_on().then(|| Arc::new(inner)) }
    }

    /// What plans are to know of it.
    pub fn facts(&self) -> AgentFacts {
        AgentFacts { gateway: self.inner.is_some() }
    }

    fn ready(&self) -> Option<&Ready> {
        self.inner.as_ref()?.ready.get()
    }

    /// What agents of this job told, and were told; `None` while that is not known.
    pub fn group(&self, job_uid: &str) -> Option<Arc<Group>> {
        let ready = self.ready().filter(|r| r.groups.synced())?;
        Some(ready.groups.get(job_uid).unwrap_or_default())
    }

    /// What pods with an agent are made with; `Ok(None)` where the settings have no gateway, and why where it is not set
    /// up (yet).
    pub fn agents(&self) -> Result<Option<&AgentSetup>, String> {
        let Some(inner) = &self.inner else { return Ok(None) };
        match inner.ready.get() {
            Some(ready) => Ok(Some(&ready.agents)),
            None => Err(format!("the gateway is not set up: {}", lock(&inner.trouble))),
        }
    }

    /// Tells the agents of a job. To be called by the leader alone.
    pub async fn assign(&self, job_uid: &str, next: &Assignment) -> Result<(), String> {
        let (Some(inner), Some(ready)) = (&self.inner, self.ready()) else {
            return Err("the gateway is not set up".to_owned());
        };
        let outcome = inner.assign(&ready.store, job_uid, next).await;
        inner.telemetry.assigned(match &outcome {
            Ok(()) => "told",
            Err(AssignError::Stale(_)) => "stale",
            Err(AssignError::NotLeading) => "not-leading",
            Err(AssignError::Unreached(_)) => "failed",
        });
        outcome.map_err(|e| e.to_string())
    }

    /// Takes the fence, so that a leader before this one tells nobody anything any more; and forgets jobs that are gone.
    pub async fn lead(&self, caches: &Watches) {
        let (Some(inner), Some(ready)) = (&self.inner, self.ready()) else { return };
        let exists = |uid: &str| caches.jobs.by_uid(uid).is_some();
        let tidied = match inner.fence(&ready.store, None).await {
            Ok(fence) => ready.store.collect_garbage(&fence, exists).await,
            Err(error) => Err(error),
        };
        match tidied {
            Ok(0) => {}
            Ok(removed) => tracing::info!(removed, "groups of jobs that are gone were removed"),
            Err(error) => tracing::warn!(%error, "groups of jobs that are gone were not looked for"),
        }
    }

    /// This replica leads no more, or has to take the fence anew before it tells anybody anything.
    pub async fn stand_by(&self) {
        if let Some(inner) = &self.inner {
            *inner.fence.lock().await = None;
        }
    }
}

impl Inner {
    async fn assign(&self, store: &Store, job_uid: &str, next: &Assignment) -> Result<(), AssignError> {
        let fence = self.fence(store, None).await?;
        match store.assign(&fence, job_uid, next).await {
            // Whoever took it may have lost the Lease to us meanwhile: once more, if it is ours.
            Err(AssignError::NotLeading) => {
                let fence = self.fence(store, Some(&fence)).await?;
                store.assign(&fence, job_uid, next).await
            }
            answer => answer,
        }
    }

    /// The fence, taken while the Lease is ours. One that turned out to be `lost` is taken anew, once for all who found
    /// that out at the same time: each taking would cost the others theirs.
    async fn fence(&self, store: &Store, lost: Option<&Fence>) -> Result<Fence, AssignError> {
        let mut held = self.fence.lock().await;
        if !self.leadership.may_act() {
            *held = None;
            return Err(AssignError::NotLeading);
        }
        if let Some(fence) = held.as_ref().filter(|fence| Some(*fence) != lost) {
            return Ok(fence.clone());
        }
        let fence = store.lead(&self.identity).await?;
        Ok(held.insert(fence).clone())
    }
}

/// What [`follow`] waits for.
enum News {
    Changed(Change),
    Leading,
    Tidy,
    End,
}

/// Has a job planned for when its group changes, and all of them when etcd is back; forgets groups of jobs that are
/// gone.
pub async fn follow(gateway: Gateway, caches: Watches, plans: Queue, mut stop: watch::Receiver<bool>) {
    let Some(leadership) = gateway.inner.as_ref().map(|i| i.leadership.clone()) else { return };
    let Some(ready) = gateway.ready() else { return };
    let mut changes = ready.groups.subscribe();
    let mut leading = leadership.follow();
    let mut tidy = tokio::time::interval(TIDY);
    loop {
        let news = tokio::select! {
            change = changes.next() => News::Changed(change),
            changed = leading.changed() => changed.map_or(News::End, |()| News::Leading),
            _ = tidy.tick() => News::Tidy,
            _ = stop.wait_for(|s| *s) => News::End,
        };
        match news {
            News::Changed(Change::Group { job_uid, group, material }) => {
                let job = caches.jobs.by_uid(&job_uid).filter(|_| leadership.is_leading());
                if let Some(job) = job.filter(|job| material || progressed(job, group.as_deref(), now())) {
                    plans.add(job.key.clone());
                }
            }
            News::Changed(Change::Synced(synced)) => {
                if synced {
                    tracing::info!(groups = ready.groups.len(), "what agents told is known");
                    // It may have been restored, and know the fence of a former leader.
                    gateway.stand_by().await;
                } else {
                    tracing::warn!("etcd is away: rounds stay as they are until it is back");
                }
                if leadership.is_leading() {
                    caches.jobs.all().iter().for_each(|job| plans.add(job.key.clone()));
                }
            }
            News::Leading if *leading.borrow_and_update() => gateway.lead(&caches).await,
            News::Leading => gateway.stand_by().await,
            News::Tidy if leadership.may_act() => gateway.lead(&caches).await,
            News::Tidy => {}
            News::End => return,
        }
    }
}

/// Gives back what is free in the files of etcd's members, one at a time, while this replica leads. An etcd that others keep
/// is left to them.
pub async fn keep_small(gateway: Gateway, mut stop: watch::Receiver<bool>) {
    let (Some(inner), Some(ready)) = (&gateway.inner, gateway.ready()) else { return };
    if !ready.own_etcd {
        return;
    }
    let mut ticks = tokio::time::interval(TIDY);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = stop.wait_for(|s| *s) => return,
        }
        if !inner.leadership.may_act() {
            continue;
        }
        match ready.store.defragment(WORTH_DEFRAGMENTING).await {
            Ok(None) => {}
            Ok(Some(done)) => {
                tracing::info!(member = done.endpoint, before = done.before, after = done.after, "defragmented etcd");
            }
            Err(error) => tracing::warn!(%error, "etcd's use of its disk was not looked at; it is tried again"),
        }
    }
}

/// Forgets members whose pods are gone, until `stop`: their records go at once instead of after ten minutes of silence.
pub async fn forget(server: &Server, pods: &Pods, mut stop: watch::Receiver<bool>) {
    let (sender, mut gone) = mpsc::unbounded_channel();
    pods.tell_gone(sender);
    loop {
        tokio::select! {
            Some(uid) = gone.recv() => server.forget_pod(&uid),
            _ = stop.wait_for(|s| *s) => return,
        }
    }
}

/// How often groups of jobs that are gone are looked for, and etcd's use of its disk.
const TIDY: Duration = Duration::from_secs(600);
/// A file of etcd's below this many bytes is left as it is.
const WORTH_DEFRAGMENTING: i64 = 100 * 1024 * 1024;

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
