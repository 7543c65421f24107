//! The jobs: what the API server says of each, and what this replica thinks of it while it leads.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use eto_api::{ElasticJob, ElasticJobStatus};
use eto_cycle::SpecProblems;
use eto_cycle::status::MAX_STORED_POLICY_STATE;
use eto_engine::job::{JobKey, JobSpec};
use eto_engine::plan::{Action, Event, ProgressSeen, Refused, Stragglers};
use eto_engine::state::{JobState, Memory};

use super::version;
use crate::blame::Suspect;
use crate::checkpoint::Outside;

/// All jobs by key.
#[derive(Debug, Default)]
pub struct Jobs {
    inner: RwLock<HashMap<JobKey, Arc<Job>>>,
    /// Keys by UID.
    uids: RwLock<HashMap<String, JobKey>>,
    /// While a list is being read: since when, and what it has had so far.
    listing: Mutex<Option<(Instant, Vec<JobKey>)>>,
}

/// One job: one object with one UID. A job that is deleted and made again under its name is another one.
#[derive(Debug)]
pub struct Job {
    pub key: JobKey,
    pub uid: String,
    entry: Mutex<Entry>,
}

impl Job {
    /// The job's data. Held for moments only, never across an `await`.
    pub fn entry(&self) -> MutexGuard<'_, Entry> {
        self.entry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is known of a job, and what is meant for it.
#[derive(Debug)]
pub struct Entry {
    /// Without its status and without what only the API server needs.
    pub object: Arc<ElasticJob>,
    pub spec: Result<Arc<JobSpec>, SpecProblems>,
    /// `metadata.resourceVersion`, the newest that is known.
    pub version: String,
    /// The status as it is stored, the newest that is known; empty where there is none.
    pub stored: ElasticJobStatus,
    /// The part of a policy's state that is stored elsewhere.
    pub outside: Outside,
    /// What this replica thinks, while it leads; `None` until it has taken the job over from `stored`.
    pub mind: Option<Mind>,
    /// When this replica last wrote the status.
    wrote: Option<Instant>,
}

/// What a leading replica thinks of a job. It runs ahead of the stored status by what is not written yet; nothing is
/// done to pods before the write that names it.
#[derive(Debug, Default)]
pub struct Mind {
    pub state: JobState,
    pub memory: Memory,
    pub refused: Option<Refused>,
    /// The last progress that was seen of its members.
    pub progress: Option<ProgressSeen>,
    /// Which of them are slow by their own word.
    pub stragglers: Option<Stragglers>,
    /// The member whose processes failed first in a round, until it is known whether that speaks of its node.
    pub suspect: Option<Suspect>,
    /// Tries to make pods in a row that failed, though nobody refused them, and what was said to the last one.
    pub not_created: (u32, String),
    /// What the last plan wants done, once its state is written.
    pub todo: Vec<Action>,
    /// What is to be told once the state is written.
    pub untold: Vec<Event>,
    /// The actions of an earlier plan are being carried out.
    pub acting: bool,
    /// Writes that failed in a row; sets the back-off.
    pub failures: u32,
    /// Since when there is something to write that can wait.
    pub unwritten: Option<Instant>,
    /// When the next evaluation is due at the latest; `None` = now.
    pub due: Option<Instant>,
    /// When an evaluation last moved the target.
    pub moved: Option<Instant>,
    /// When memory was last saved, or read.
    pub saved: Option<Instant>,
    /// The stamp (see [`stamp`]) of the stored status that this goes on from, and of our last try to write one, whatever
    /// became of it.
    pub basis: Option<String>,
    pub tried: Option<String>,
}

/// What tells one write of a status by an operator from every other: `status.memory.saved`.
pub fn stamp(status: &ElasticJobStatus) -> Option<&str> {
    status.memory.as_ref().map(|m| m.saved.as_str())
}

/// What became of a job's news.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    None,
    Some,
}

impl Jobs {
    pub fn get(&self, key: &JobKey) -> Option<Arc<Job>> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    /// The job with this UID.
    pub fn by_uid(&self, uid: &str) -> Option<Arc<Job>> {
        let key = self.uids.read().unwrap_or_else(PoisonError::into_inner).get(uid).cloned()?;
        self.get(&key).filter(|job| job.uid == uid)
    }

    pub fn all(&self) -> Vec<Arc<Job>> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    pub fn len(&self) -> usize {
        self.inner.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// An object from the watch. One from a list holds whatever its version says (versions begin anew where the API
    /// server's store was restored from a backup), unless this replica has written since the list began.
    pub fn seen(&self, mut object: ElasticJob) -> Option<(JobKey, News)> {
        let key = key(&object)?;
        let uid = object.metadata.uid.clone()?;
        let mut listed = None;
        if let Some((since, listing)) = self.listing.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            listing.push(key.clone());
            listed = Some(*since);
        }
        let at = object.metadata.resource_version.clone().unwrap_or_default();
        let status = object.status.take();
        trim(&mut object);
        let mut all = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(job) = all.get(&key).filter(|j| j.uid == uid) {
            let mut entry = job.entry();
            let holds = listed.is_some_and(|since| entry.wrote.is_none_or(|wrote| wrote < since));
            if !holds && version(Some(&at)) < version(Some(&entry.version)) {
                return Some((key, News::None));
            }
            let news = entry.take(object, at, status);
            return Some((key.clone(), news));
        }
        let spec = eto_cycle::spec::job_spec(&object).map(Arc::new);
        let entry = Entry {
            object: Arc::new(object),
            spec,
            version: at,
            stored: status.unwrap_or_default(),
            outside: Outside::default(),
            mind: None,
            wrote: None,
        };
        let mut uids = self.uids.write().unwrap_or_else(PoisonError::into_inner);
        uids.insert(uid.clone(), key.clone());
        let before = all.insert(key.clone(), Arc::new(Job { key: key.clone(), uid, entry: Mutex::new(entry) }));
        if let Some(before) = before {
            uids.remove(&before.uid);
        }
        Some((key, News::Some))
    }

    /// The watch says it is gone.
    pub fn gone(&self, key: &JobKey, uid: Option<&str>) {
        let mut all = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        if all.get(key).is_some_and(|j| uid.is_none_or(|u| u == j.uid)) {
            self.remove(&mut all, key);
        }
    }

    pub fn list_begins(&self) {
        *self.listing.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), Vec::new()));
    }

    /// The list is whole: the jobs that it did not have are gone. Returns them.
    pub fn list_ends(&self) -> Vec<JobKey> {
        let Some((_, listed)) = self.listing.lock().unwrap_or_else(PoisonError::into_inner).take() else {
            return Vec::new();
        };
        let listed: std::collections::HashSet<JobKey> = listed.into_iter().collect();
        let mut all = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        let gone: Vec<JobKey> = all.keys().filter(|k| !listed.contains(k)).cloned().collect();
        for key in &gone {
            self.remove(&mut all, key);
        }
        gone
    }

    fn remove(&self, all: &mut HashMap<JobKey, Arc<Job>>, key: &JobKey) {
        if let Some(job) = all.remove(key) {
            self.uids.write().unwrap_or_else(PoisonError::into_inner).remove(&job.uid);
        }
    }

    /// This replica leads no more: what it thought is worth nothing now, others write.
    pub fn forget(&self) {
        for job in self.all() {
            let mut entry = job.entry();
            entry.mind = None;
            entry.outside = Outside::default();
        }
    }
}

impl Entry {
    fn take(&mut self, object: ElasticJob, at: String, status: Option<ElasticJobStatus>) -> News {
        let same_spec = self.object.metadata.generation == object.metadata.generation
            && self.object.metadata.deletion_timestamp == object.metadata.deletion_timestamp;
        let echo = at == self.version;
        self.version = at;
        let mut news = if same_spec { News::None } else { News::Some };
        if !same_spec {
            self.spec = eto_cycle::spec::job_spec(&object).map(Arc::new);
        }
        self.object = Arc::new(object);
        if !echo {
            let stored = status.unwrap_or_default();
            if stored != self.stored {
                news = News::Some;
            }
            self.stored = stored;
        }
        news
    }

    /// Our own write of the status was answered with what is stored now.
    pub fn wrote(&mut self, at: String, status: ElasticJobStatus) {
        self.wrote = Some(Instant::now());
        if version(Some(&at)) >= version(Some(&self.version)) {
            self.version = at;
            self.stored = status;
        }
    }

    /// Whether another replica has written the status since this one took it over: a watch that lagged behind at a change
    /// of leaders, say. What is thought here is then older than what is stored, and must not be written over it.
    pub fn is_overtaken(&self) -> bool {
        let Some((mind, stored)) = self.mind.as_ref().zip(stamp(&self.stored)) else { return false };
        ![&mind.basis, &mind.tried].iter().any(|known| known.as_deref() == Some(stored))
    }

    /// Whether a policy has changed its state and nothing has saved it for `period`.
    pub fn is_checkpoint_due(&self, period: Duration) -> bool {
        let Some(mind) = self.mind.as_ref().filter(|m| m.saved.is_none_or(|at| at.elapsed() >= period)) else {
            return false;
        };
        let stored = self.stored.memory.as_ref().and_then(|m| m.policy_state.as_ref());
        let storable = mind.memory.policy_state.as_ref().filter(|s| s.bytes.len() <= MAX_STORED_POLICY_STATE);
        storable.is_some_and(|s| stored.is_none_or(|k| k.version != i64::from(s.version) || k.data.0 != s.bytes))
    }

    /// Whether a target was decided, no longer ago than that, that is not stored yet.
    pub fn is_target_on_its_way(&self, within: Duration) -> bool {
        let Some(mind) = &self.mind else { return false };
        i64::from(mind.state.target) != self.stored.target_replicas
            && mind.moved.is_some_and(|at| at.elapsed() < within)
    }

    pub fn is_leaving(&self) -> bool {
        self.object.metadata.deletion_timestamp.is_some()
    }
}

pub fn key(object: &ElasticJob) -> Option<JobKey> {
    Some(JobKey { namespace: object.metadata.namespace.clone()?, name: object.metadata.name.clone()? })
}

/// Managed fields and kubectl's copy of the manifest are most of a small object.
fn trim(object: &mut ElasticJob) {
    object.metadata.managed_fields = None;
    if let Some(annotations) = &mut object.metadata.annotations {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn object(uid: &str, version: u64, generation: i64, target: i64) -> ElasticJob {
        serde_json::from_value(json!({
            "apiVersion": "elastic.ai/v1alpha1", "kind": "ElasticJob",
            "metadata": {"namespace": "n", "name": "j", "uid": uid, "resourceVersion": version.to_string(), "generation": generation},
            "spec": {"replicas": 2},
            "status": {"targetReplicas": target},
        }))
        .unwrap()
    }

    fn stored(jobs: &Jobs) -> i64 {
        let key = JobKey { namespace: "n".into(), name: "j".into() };
        jobs.get(&key).unwrap().entry().stored.target_replicas
    }

    #[test]
    fn an_old_echo_never_undoes_an_own_write() {
        let jobs = Jobs::default();
        let (key, news) = jobs.seen(object("a", 5, 1, 2)).unwrap();
        assert_eq!(news, News::Some);
        jobs.get(&key)
            .unwrap()
            .entry()
            .wrote("9".into(), ElasticJobStatus { target_replicas: 4, ..ElasticJobStatus::default() });
        assert_eq!(jobs.seen(object("a", 7, 1, 3)).unwrap().1, News::None);
        assert_eq!(stored(&jobs), 4);
        assert_eq!(jobs.seen(object("a", 9, 1, 4)).unwrap().1, News::None, "the echo of the own write is no news");
        assert_eq!(jobs.seen(object("a", 12, 1, 6)).unwrap().1, News::Some, "somebody else wrote the status");
        assert_eq!(stored(&jobs), 6);
    }

    #[test]
    fn a_list_holds_though_its_versions_are_older() {
        let jobs = Jobs::default();
        let (key, _) = jobs.seen(object("a", 900, 5, 2)).unwrap();
        let write = |version: &str, target_replicas| {
            let status = ElasticJobStatus { target_replicas, ..ElasticJobStatus::default() };
            jobs.get(&key).unwrap().entry().wrote(version.into(), status);
        };
        write("950", 8);
        // The store was restored from a backup.
        jobs.list_begins();
        assert_eq!(jobs.seen(object("a", 40, 3, 1)).unwrap().1, News::Some);
        assert!(jobs.list_ends().is_empty());
        assert_eq!(stored(&jobs), 1);
        assert_eq!(jobs.seen(object("a", 41, 3, 4)).unwrap().1, News::Some, "and the watch goes on from there");
        jobs.list_begins();
        write("60", 6);
        assert_eq!(jobs.seen(object("a", 50, 3, 5)).unwrap().1, News::None, "written since the list began");
        assert_eq!(stored(&jobs), 6);
    }

    #[test]
    fn a_job_made_again_under_its_name_is_another_one() {
        let jobs = Jobs::default();
        let (key, _) = jobs.seen(object("a", 5, 1, 2)).unwrap();
        jobs.get(&key).unwrap().entry().mind = Some(Mind::default());
        jobs.seen(object("b", 8, 1, 0)).unwrap();
        assert!(jobs.get(&key).unwrap().entry().mind.is_none());
        assert_eq!((jobs.by_uid("a").is_some(), jobs.by_uid("b").map(|j| j.key.clone())), (false, Some(key.clone())));
        jobs.gone(&key, Some("a"));
        assert!(jobs.get(&key).is_some(), "the news of the old one's end is not about this one");
    }

    #[test]
    fn a_list_takes_what_it_does_not_have() {
        let jobs = Jobs::default();
        let (key, _) = jobs.seen(object("a", 5, 1, 2)).unwrap();
        jobs.list_begins();
        assert_eq!(jobs.list_ends(), [key]);
        assert!(jobs.is_empty() && jobs.by_uid("a").is_none());
    }
}
