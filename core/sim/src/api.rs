//! The API server: the job with its status, and its pods.

use std::collections::BTreeMap;
use std::sync::Arc;

use eto_engine::contract::{Readiness, WorkerPhase};
use eto_engine::job::JobSpec;
use eto_engine::observe::Pod;
use eto_engine::plan::NewPod;
use eto_engine::state::JobState;
use eto_engine::time::Time;

use crate::replica::News;
use crate::world::{What, World};

/// See the module's text.
pub(crate) struct Api {
    pub(crate) up: bool,
    pub(crate) spec: Arc<JobSpec>,
    /// Of the whole object: a write of the status names the one that it is based on.
    pub(crate) version: u64,
    pub(crate) stored: Option<Arc<JobState>>,
    /// By UID.
    pub(crate) pods: BTreeMap<String, Arc<Pod>>,
    /// Pods that may exist at a time.
    pub(crate) quota: usize,
    /// Versions of pods, by UID.
    pub(crate) versions: BTreeMap<String, u64>,
    next: u64,
}

impl Api {
    pub(crate) fn new(job: JobSpec) -> Self {
        Api {
            up: true,
            spec: Arc::new(job),
            version: 1,
            stored: None,
            pods: BTreeMap::new(),
            quota: usize::MAX,
            versions: BTreeMap::new(),
            next: 1,
        }
    }

    fn next(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

/// A write was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteError {
    /// The API server does not answer.
    Away,
    /// The object has changed since.
    Conflict,
    /// Over the quota.
    Refused,
}

impl World {
    /// Changes the job's spec, as a user does.
    pub(crate) fn change_spec(&mut self, change: impl FnOnce(&mut JobSpec)) {
        let mut spec = (*self.api.spec).clone();
        change(&mut spec);
        spec.generation += 1;
        self.api.spec = Arc::new(spec);
        self.job_changed();
    }

    pub(crate) fn job_changed(&mut self) {
        self.api.version = self.api.next();
        let (version, spec, stored) = (self.api.version, Arc::clone(&self.api.spec), self.api.stored.clone());
        self.tell_replicas(&News::Job { version, spec, stored });
    }

    /// Writes the status over the version that it is based on, as replica `at` does. Gives the new version.
    pub(crate) fn write_status(&mut self, at: usize, based_on: u64, state: &JobState) -> Result<u64, WriteError> {
        if !self.api.up {
            return Err(WriteError::Away);
        }
        if based_on != self.api.version {
            return Err(WriteError::Conflict);
        }
        self.check_state(at, state);
        self.api.stored = Some(Arc::new(state.clone()));
        self.job_changed();
        Ok(self.api.version)
    }

    /// Makes a pod; one of that name that is there already is as good. Gives its UID.
    pub(crate) fn create_pod(&mut self, new: &NewPod) -> Result<String, WriteError> {
        if !self.api.up {
            return Err(WriteError::Away);
        }
        let name = format!("sim-worker-{}-{}", new.index, new.incarnation);
        if let Some(same) = self.api.pods.values().find(|p| p.name == name) {
            return Ok(same.uid.clone());
        }
        if self.api.pods.len() >= self.api.quota {
            return Err(WriteError::Refused);
        }
        self.check_creation(new);
        let uid = format!("pod-{}", self.api.next());
        let template = self.api.spec.template.as_ref();
        let pod = Pod {
            name,
            uid: uid.clone(),
            index: new.index,
            round: new.round,
            round_size: new.size,
            incarnation: new.incarnation,
            mode: new.mode,
            template_hash: template.map(|t| t.hash.clone()).unwrap_or_default(),
            phase: WorkerPhase::Pending,
            reason: None,
            ready: Readiness::Unknown,
            created: Time(self.now),
            started: None,
            ready_changed: None,
            ended: None,
            node: None,
            unschedulable: None,
            waiting: None,
            deleting: None,
            restarts: 0,
            exit_code: None,
            last_end: None,
            memory_limit: 0,
            disrupted: false,
            request: template.map(|t| t.request).unwrap_or_default(),
        };
        self.api.pods.insert(uid.clone(), Arc::new(pod));
        self.pod_changed(&uid);
        Ok(uid)
    }

    /// Asks a pod to go; it goes when its kubelet says so.
    pub(crate) fn delete_pod(&mut self, uid: &str) -> Result<(), WriteError> {
        if !self.api.up {
            return Err(WriteError::Away);
        }
        let Some(pod) = self.api.pods.get(uid) else { return Ok(()) };
        if pod.deleting.is_some() {
            return Ok(());
        }
        if pod.node.is_none() || (pod.is_ended() && self.is_linked(uid)) {
            self.remove_pod(uid);
            return Ok(());
        }
        let now = self.now;
        self.change_pod(uid, |p| p.deleting = Some(Time(now)));
        self.tell_kubelet(uid);
        Ok(())
    }

    /// The kubelet hears of a deletion, now or when it is back.
    pub(crate) fn tell_kubelet(&mut self, uid: &str) {
        let delay = self.random.between(10, 1_000);
        match self.containers.get(uid).filter(|c| !c.dark).map(|c| c.life) {
            Some(life) => self.after(delay, What::Signal { uid: uid.to_owned(), life }),
            None => self.after(delay, What::Begin { uid: uid.to_owned() }),
        }
    }

    pub(crate) fn change_pod(&mut self, uid: &str, change: impl FnOnce(&mut Pod)) {
        let Some(pod) = self.api.pods.get_mut(uid) else { return };
        let mut changed = (**pod).clone();
        change(&mut changed);
        if changed == **pod {
            return;
        }
        *pod = Arc::new(changed);
        self.pod_changed(uid);
    }

    /// The pod's object is gone. Its container, where there is one, ends when its kubelet learns of that.
    pub(crate) fn remove_pod(&mut self, uid: &str) {
        if self.api.pods.remove(uid).is_some() {
            self.note(|_| format!("pod {uid} is gone"));
            self.pod_changed(uid);
            if self.is_linked(uid) {
                self.drop_container(uid);
            }
        }
    }

    fn pod_changed(&mut self, uid: &str) {
        let version = self.api.next();
        self.api.versions.insert(uid.to_owned(), version);
        let pod = self.api.pods.get(uid).cloned();
        self.tell_replicas(&News::Pod { uid: uid.to_owned(), version, pod });
    }
}
