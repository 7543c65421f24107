//! The pods of all jobs, by the UID of the job that owns them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use eto_engine::observe::Pod;

/// How late news of a pod that is gone may come.
const LATE: Duration = Duration::from_secs(120);
/// Above this many pods that are gone, the old ones are forgotten.
const MANY: usize = 4096;

/// A pod on its way into the cache.
#[derive(Clone, Debug)]
pub struct Seen {
    pub namespace: String,
    /// Name of the job, from the label.
    pub job: String,
    /// UID of the ElasticJob that controls it.
    pub owner: String,
    pub version: u64,
    pub pod: Pod,
}

/// Pods by owner. All methods are short and take one lock.
#[derive(Debug, Default)]
pub struct Pods {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    jobs: HashMap<String, Owned>,
    /// UIDs of pods known to be gone, and since when: news of them, or the answer to a write of our own, may still be on
    /// the way, and must not bring them back.
    gone: HashMap<String, Instant>,
    /// While a list is being read: the UIDs it has had so far.
    listing: Option<HashSet<String>>,
    /// Put in by ourselves while a list was being read: the list may be older than they are.
    fresh: HashSet<String>,
}

#[derive(Debug, Default)]
struct Owned {
    /// Sorted by index, then name. Readers share it; a change copies it only while one of them still holds it.
    pods: Arc<Vec<Pod>>,
    versions: BTreeMap<String, u64>,
}

impl Owned {
    fn put(&mut self, pod: Pod, version: u64) -> bool {
        if self.versions.get(&pod.uid).is_some_and(|known| *known >= version) {
            return false;
        }
        self.versions.insert(pod.uid.clone(), version);
        let pods = Arc::make_mut(&mut self.pods);
        pods.retain(|p| p.uid != pod.uid);
        let at = pods.partition_point(|p| (p.index, &p.name) < (pod.index, &pod.name));
        pods.insert(at, pod);
        true
    }

    fn remove(&mut self, uid: &str) -> bool {
        let known = self.versions.remove(uid).is_some();
        if known {
            Arc::make_mut(&mut self.pods).retain(|p| p.uid != uid);
        }
        known
    }
}

impl Pods {
    fn with<T>(&self, f: impl FnOnce(&mut Inner) -> T) -> T {
        f(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The pods of a job, by its UID.
    pub fn of(&self, owner: &str) -> Arc<Vec<Pod>> {
        self.with(|i| i.jobs.get(owner).map(|o| Arc::clone(&o.pods)).unwrap_or_default())
    }

    /// News from the watch: true if it was news.
    pub fn seen(&self, seen: Seen) -> bool {
        self.with(|i| {
            if let Some(listing) = &mut i.listing {
                listing.insert(seen.pod.uid.clone());
            }
            !i.gone.contains_key(&seen.pod.uid) && i.jobs.entry(seen.owner).or_default().put(seen.pod, seen.version)
        })
    }

    /// A pod as the answer to our own write showed it.
    pub fn wrote(&self, seen: Seen) {
        self.with(|i| {
            if i.listing.is_some() {
                i.fresh.insert(seen.pod.uid.clone());
            }
            if !i.gone.contains_key(&seen.pod.uid) {
                i.jobs.entry(seen.owner).or_default().put(seen.pod, seen.version);
            }
        });
    }

    /// Our own delete took it at once.
    pub fn deleted(&self, owner: &str, uid: &str) {
        self.with(|i| {
            i.bury(uid);
            i.remove(owner, uid);
        });
    }

    /// The watch says it is gone: true if that was news.
    pub fn gone(&self, owner: &str, uid: &str) -> bool {
        self.with(|i| {
            i.bury(uid);
            i.remove(owner, uid)
        })
    }

    /// A list begins.
    pub fn list_begins(&self) {
        self.with(|i| {
            i.listing = Some(HashSet::new());
            i.fresh.clear();
        });
    }

    /// The list is whole: what it did not have is gone. Returns the owners that lost a pod.
    pub fn list_ends(&self) -> Vec<String> {
        self.with(|i| {
            let Some(listed) = i.listing.take() else { return Vec::new() };
            let fresh = std::mem::take(&mut i.fresh);
            let mut touched = Vec::new();
            for (owner, owned) in &mut i.jobs {
                let missing: Vec<String> = owned
                    .versions
                    .keys()
                    .filter(|uid| !listed.contains(*uid) && !fresh.contains(*uid))
                    .cloned()
                    .collect();
                if !missing.is_empty() {
                    touched.push(owner.clone());
                }
                for uid in missing {
                    owned.remove(&uid);
                }
            }
            i.jobs.retain(|_, o| !o.versions.is_empty());
            touched
        })
    }
}

impl Inner {
    fn bury(&mut self, uid: &str) {
        if self.gone.len() >= MANY {
            self.gone.retain(|_, since| since.elapsed() < LATE);
        }
        self.gone.insert(uid.to_owned(), Instant::now());
    }

    fn remove(&mut self, owner: &str, uid: &str) -> bool {
        let Some(owned) = self.jobs.get_mut(owner) else { return false };
        let known = owned.remove(uid);
        if owned.versions.is_empty() {
            self.jobs.remove(owner);
        }
        known
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eto_engine::contract::{Readiness, WorkerPhase, WorkerRequest};
    use eto_engine::state::RoundMode;
    use eto_engine::time::Time;

    fn seen(uid: &str, index: u32, version: u64, phase: WorkerPhase) -> Seen {
        let pod = Pod {
            name: format!("j-worker-{index}"),
            uid: uid.into(),
            index,
            round: 1,
            round_size: 1,
            incarnation: 1,
            mode: RoundMode::Recreate,
            template_hash: "h".into(),
            phase,
            reason: None,
            ready: Readiness::Unknown,
            created: Time(0),
            started: None,
            ready_changed: None,
            node: None,
            unschedulable: None,
            waiting: None,
            deleting: None,
            restarts: 0,
            exit_code: None,
            disrupted: false,
            request: WorkerRequest::default(),
        };
        Seen { namespace: "n".into(), job: "j".into(), owner: "job".into(), version, pod }
    }

    fn phases(pods: &Pods) -> Vec<(String, WorkerPhase)> {
        pods.of("job").iter().map(|p| (p.uid.clone(), p.phase)).collect()
    }

    #[test]
    fn old_news_never_undoes_an_own_write() {
        let pods = Pods::default();
        assert!(pods.seen(seen("a", 0, 5, WorkerPhase::Running)));
        pods.wrote(seen("a", 0, 9, WorkerPhase::Failed));
        assert!(!pods.seen(seen("a", 0, 7, WorkerPhase::Running)));
        assert_eq!(phases(&pods), [("a".into(), WorkerPhase::Failed)]);
        pods.deleted("job", "a");
        assert!(!pods.seen(seen("a", 0, 10, WorkerPhase::Running)), "it is gone, whatever the slow watch says");
        assert!(phases(&pods).is_empty());
    }

    #[test]
    fn the_late_answer_to_a_delete_brings_no_pod_back() {
        let pods = Pods::default();
        pods.seen(seen("a", 0, 5, WorkerPhase::Running));
        assert!(pods.gone("job", "a"));
        pods.wrote(seen("a", 0, 9, WorkerPhase::Running));
        assert!(phases(&pods).is_empty());
    }

    #[test]
    fn a_list_takes_what_it_does_not_have_but_not_what_was_made_meanwhile() {
        let pods = Pods::default();
        pods.seen(seen("old", 0, 1, WorkerPhase::Running));
        pods.seen(seen("kept", 1, 2, WorkerPhase::Running));
        pods.list_begins();
        pods.seen(seen("kept", 1, 2, WorkerPhase::Running));
        pods.wrote(seen("new", 2, 9, WorkerPhase::Pending));
        assert_eq!(pods.list_ends(), ["job"]);
        assert_eq!(phases(&pods), [("kept".into(), WorkerPhase::Running), ("new".into(), WorkerPhase::Pending)]);
    }

    #[test]
    fn pods_are_in_the_order_of_their_index() {
        let pods = Pods::default();
        for (uid, index) in [("c", 2), ("a", 0), ("b", 1)] {
            pods.seen(seen(uid, index, 1, WorkerPhase::Pending));
        }
        let order: Vec<u32> = pods.of("job").iter().map(|p| p.index).collect();
        assert_eq!(order, [0, 1, 2]);
        assert!(pods.gone("job", "b") && !pods.gone("job", "b"));
    }
}
