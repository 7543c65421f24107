//! All groups in memory, and who wants to know of changes.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, Weak};

use eto_membership::{Group, MemberRecord};
use serde::de::DeserializeOwned;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::etcd::lock;
use crate::keys::Key;
use crate::{Store, follow};

/// The groups of all jobs as etcd has them, kept up to date by one watch as long as a clone of this lives. Cheap to
/// clone.
#[derive(Clone, Debug)]
pub struct Groups {
    pub(crate) shared: Arc<Shared>,
    _task: Arc<AbortOnDrop>,
}

#[derive(Debug)]
struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[derive(Debug, Default)]
pub(crate) struct Shared {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    jobs: HashMap<String, Entry>,
    /// All writes up to this one are in.
    revision: i64,
    synced: bool,
    subscribers: Vec<Weak<Subscriber>>,
}

/// A group, and what etcd knows beside it.
#[derive(Clone, Debug, Default)]
struct Entry {
    group: Arc<Group>,
    owners: BTreeMap<String, Owner>,
}

/// Who wrote a member's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) lease: i64,
    pub(crate) revision: i64,
}

/// One thing in etcd, as a list or the watch brings it.
#[derive(Debug)]
pub(crate) struct Item<'a> {
    pub(crate) key: Key<'a>,
    /// `None`: it was removed.
    pub(crate) value: Option<&'a [u8]>,
    pub(crate) owner: Owner,
}

/// Something that [`Changes::next`] tells.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// This is the group now; `None` where nothing is kept of the job any more. Changes in quick succession are told
    /// as one.
    Group {
        /// Of which job.
        job_uid: String,
        /// What it is now.
        group: Option<Arc<Group>>,
        /// False where members only went on: they told of progress, or another replica wrote their records.
        material: bool,
    },
    /// True: all that is in etcd has been told, and changes follow as they happen. False: etcd is away; what was told
    /// is what was last known.
    Synced(bool),
}

/// Changes of groups from a moment on, at most one waiting per job: who reads slowly misses steps and never states.
#[derive(Debug)]
pub struct Changes {
    subscriber: Arc<Subscriber>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Subscriber {
    waiting: Mutex<Waiting>,
    news: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    /// With whether what changed is material.
    jobs: BTreeMap<String, bool>,
    synced: Option<bool>,
}

impl Groups {
    pub(crate) fn follow(store: &Store) -> Self {
        let shared = Arc::new(Shared::default());
        let task = tokio::spawn(follow::run(store.clone(), Arc::clone(&shared)));
        Groups { shared, _task: Arc::new(AbortOnDrop(task)) }
    }

    /// A job's group as last known; `None` where nothing is kept of it.
    pub fn get(&self, job_uid: &str) -> Option<Arc<Group>> {
        self.shared.get(job_uid)
    }

    /// Whether all of etcd has been read and is being watched. While it is not, what is known may be old.
    pub fn synced(&self) -> bool {
        lock(&self.shared.state).synced
    }

    /// How many jobs anything is kept of.
    pub fn len(&self) -> usize {
        lock(&self.shared.state).jobs.len()
    }

    /// Whether nothing is kept of any job.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All groups there are, and every change from then on.
    pub fn subscribe(&self) -> Changes {
        self.shared.subscribe()
    }
}

impl Changes {
    /// The next change; waits for one. What was called before and not finished loses nothing.
    pub async fn next(&mut self) -> Change {
        loop {
            if let Some(change) = self.take() {
                return change;
            }
            self.subscriber.news.notified().await;
        }
    }

    fn take(&self) -> Option<Change> {
        let mut waiting = lock(&self.subscriber.waiting);
        if let Some((job_uid, material)) = waiting.jobs.pop_first() {
            drop(waiting);
            let group = self.shared.get(&job_uid);
            return Some(Change::Group { job_uid, group, material });
        }
        waiting.synced.take().map(Change::Synced)
    }
}

impl Shared {
    fn get(&self, job_uid: &str) -> Option<Arc<Group>> {
        lock(&self.state).jobs.get(job_uid).map(|e| Arc::clone(&e.group))
    }

    /// A group, who wrote its members' records, and the revision of the last write that is known.
    pub(crate) fn look(&self, job_uid: &str) -> (Option<Arc<Group>>, BTreeMap<String, Owner>, i64) {
        let state = lock(&self.state);
        let entry = state.jobs.get(job_uid);
        (entry.map(|e| Arc::clone(&e.group)), entry.map(|e| e.owners.clone()).unwrap_or_default(), state.revision)
    }

    fn subscribe(self: &Arc<Self>) -> Changes {
        let subscriber = Arc::new(Subscriber::default());
        let mut state = lock(&self.state);
        let jobs = state.jobs.keys().map(|job| (job.clone(), true)).collect();
        *lock(&subscriber.waiting) = Waiting { jobs, synced: Some(state.synced) };
        state.subscribers.push(Arc::downgrade(&subscriber));
        Changes { subscriber, shared: Arc::clone(self) }
    }

    /// All that is in etcd: what is not among it is gone.
    pub(crate) fn replace<'a>(&self, revision: i64, items: impl Iterator<Item = Item<'a>>) {
        let mut fresh: HashMap<String, Entry> = HashMap::new();
        let mut state = lock(&self.state);
        state.revision = revision;
        for item in items {
            let job_uid = item.key.job_uid();
            if !fresh.contains_key(job_uid) {
                fresh.insert(job_uid.to_owned(), Entry::default());
            }
            let Some(entry) = fresh.get_mut(job_uid) else { continue };
            entry.apply(&item, state.jobs.get(job_uid));
        }
        let before = std::mem::replace(&mut state.jobs, fresh);
        let gone = before.keys().filter(|job| !state.jobs.contains_key(*job)).map(|job| (job.clone(), true));
        let changed = state.jobs.iter().filter(|(job, e)| before.get(*job).is_none_or(|b| !e.is_as(b)));
        let news: Vec<(String, bool)> = changed.map(|(job, _)| (job.clone(), true)).chain(gone).collect();
        state.tell(&news, None);
    }

    /// What happened since.
    pub(crate) fn apply<'a>(&self, revision: i64, items: impl Iterator<Item = Item<'a>>) {
        let mut state = lock(&self.state);
        state.revision = revision;
        let mut news: Vec<(String, bool)> = Vec::new();
        for item in items {
            let job_uid = item.key.job_uid();
            let entry = state.jobs.entry(job_uid.to_owned()).or_default();
            let material = entry.apply(&item, None);
            if entry.group.assignment.is_none() && entry.owners.is_empty() {
                state.jobs.remove(job_uid);
            }
            match news.last_mut() {
                Some((last, all)) if last == job_uid => *all |= material,
                _ => news.push((job_uid.to_owned(), material)),
            }
        }
        state.tell(&news, None);
    }

    pub(crate) fn set_synced(&self, synced: bool) {
        let mut state = lock(&self.state);
        if std::mem::replace(&mut state.synced, synced) != synced {
            state.tell(&[], Some(synced));
        }
    }
}

impl State {
    fn tell(&mut self, jobs: &[(String, bool)], synced: Option<bool>) {
        self.subscribers.retain(|weak| {
            let Some(subscriber) = weak.upgrade() else { return false };
            let mut waiting = lock(&subscriber.waiting);
            for (job, material) in jobs {
                *waiting.jobs.entry(job.clone()).or_default() |= material;
            }
            waiting.synced = synced.or(waiting.synced);
            drop(waiting);
            subscriber.news.notify_one();
            true
        });
    }
}

impl Entry {
    /// A value that can't be read leaves what was known, in `before` where this entry is a new one. Gives whether it is
    /// more than that a member goes on.
    fn apply(&mut self, item: &Item<'_>, before: Option<&Entry>) -> bool {
        let group = Arc::make_mut(&mut self.group);
        match (item.key, item.value) {
            (Key::Assignment { .. }, None) => group.assignment = None,
            (Key::Assignment { .. }, Some(value)) => match (read(value), before) {
                (Some(assignment), _) => group.assignment = Some(assignment),
                (None, Some(before)) => group.assignment.clone_from(&before.group.assignment),
                (None, None) => {}
            },
            (Key::Member { pod_uid, .. }, None) => {
                group.members.remove(pod_uid);
                self.owners.remove(pod_uid);
            }
            (Key::Member { pod_uid, .. }, Some(value)) => {
                self.owners.insert(pod_uid.to_owned(), item.owner);
                let record: Option<MemberRecord> = read(value).or_else(|| before?.group.members.get(pod_uid).cloned());
                let Some(record) = record else { return true };
                let known = group.members.get(pod_uid);
                let material = known.is_none_or(|known| known.differs_materially(&record));
                group.members.insert(pod_uid.to_owned(), record);
                return material;
            }
        }
        true
    }

    fn is_as(&self, other: &Entry) -> bool {
        self.group == other.group && self.owners == other.owners
    }
}

/// What a value of etcd says; `None`, and a line in the log, for one that is not ours.
pub(crate) fn read<T: DeserializeOwned>(value: &[u8]) -> Option<T> {
    serde_json::from_slice(value)
        .inspect_err(|error| tracing::warn!(%error, "a value in etcd can't be read; it is passed over"))
        .ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use eto_membership::{Progress, Report};

    use super::*;

    fn record(step: u64, suspected: bool) -> Vec<u8> {
        let progress = Some(Progress { step, ..Progress::default() });
        let report = Report { progress, ..Report::default() };
        serde_json::to_vec(&MemberRecord { pod: "p".into(), report, joined_ms: 1, suspected }).unwrap()
    }

    fn put(shared: &Shared, revision: i64, value: &[u8]) {
        let key = Key::Member { job_uid: "j", pod_uid: "p" };
        let owner = Owner { lease: 1, revision };
        shared.apply(revision, std::iter::once(Item { key, value: Some(value), owner }));
    }

    #[test]
    fn members_that_only_go_on_are_no_material_change() {
        let shared = Arc::new(Shared::default());
        let changes = shared.subscribe();
        assert_eq!(changes.take(), Some(Change::Synced(false)));
        let material = |changes: &Changes| match changes.take() {
            Some(Change::Group { group, material, .. }) => {
                Some((group.unwrap().members["p"].report.progress?.step, material))
            }
            _ => None,
        };
        put(&shared, 1, &record(1, false));
        assert_eq!(material(&changes), Some((1, true)), "one that joins");
        put(&shared, 2, &record(2, false));
        assert_eq!(material(&changes), Some((2, false)));
        put(&shared, 3, &record(2, true));
        put(&shared, 4, &record(3, true));
        assert_eq!(material(&changes), Some((3, true)), "changes in quick succession are told as one");
        shared.replace(5, std::iter::empty());
        assert!(matches!(changes.take(), Some(Change::Group { group: None, material: true, .. })));
        assert_eq!(material(&changes), None);
    }
}
