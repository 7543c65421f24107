//! The pods of all jobs, by the job that owns them.
//!
//! An owner is a UID in the namespace of the pod: whoever may make pods may name any job as their owner, and the garbage
//! collector takes a while to find out. Those that name a job of another namespace are nobody's here.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use eto_engine::observe::Pod;
use tokio::sync::mpsc::UnboundedSender;

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
    /// Who wants to know the UIDs of pods that are gone.
    mourner: OnceLock<UnboundedSender<String>>,
}

/// Namespace and UID.
fn owner(namespace: &str, uid: &str) -> String {
    format!("{namespace}/{uid}")
}

fn uid_of(owner: &str) -> &str {
    owner.rsplit_once('/').map_or(owner, |(_, uid)| uid)
}

#[derive(Debug, Default)]
struct Inner {
    /// By namespace and UID; each sorted by index, then name. Readers share them; a change copies them only while a reader still holds them.
    jobs: HashMap<Arc<str>, Arc<Vec<Pod>>>,
    /// Owner and version of each pod, by its UID.
    known: HashMap<String, (Arc<str>, u64)>,
    /// UIDs of pods known to be gone, and since when: news of them, or the answer to a write of our own, may still be on
    /// the way, and must not bring them back.
    gone: HashMap<String, Instant>,
    /// While a list is being read: since when, and the UIDs it has had so far.
    listing: Option<(Instant, HashSet<String>)>,
    /// Put in by ourselves while a list was being read: the list may be older than they are.
    fresh: HashSet<String>,
}

impl Pods {
    fn with<T>(&self, f: impl FnOnce(&mut Inner) -> T) -> T {
        f(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The pods of the job with this UID in this namespace.
    pub fn of(&self, namespace: &str, uid: &str) -> Arc<Vec<Pod>> {
        self.with(|i| i.jobs.get(owner(namespace, uid).as_str()).map(Arc::clone).unwrap_or_default())
    }

    /// From now on the UIDs of pods that are gone are sent there. The first who asks is told.
    pub fn tell_gone(&self, to: UnboundedSender<String>) {
        let _ = self.mourner.set(to);
    }

    fn mourn(&self, uid: &str) {
        if let Some(mourner) = self.mourner.get() {
            // Whoever asked may have gone.
            let _ = mourner.send(uid.to_owned());
        }
    }

    /// UIDs of the jobs that have a pod on this node. Costs a look at all pods.
    pub fn owners_on(&self, node: &str) -> Vec<String> {
        let on = |pods: &Vec<Pod>| pods.iter().any(|p| p.node.as_deref() == Some(node));
        self.with(|i| i.jobs.iter().filter(|(_, pods)| on(pods)).map(|(owner, _)| uid_of(owner).to_owned()).collect())
    }

    /// UID of the job that owns the pod with this UID, while the pod is there. Whether there is such a job in the pod's
    /// namespace is another question.
    pub fn owner_of(&self, uid: &str) -> Option<String> {
        self.with(|i| i.known.get(uid).map(|(owner, _)| uid_of(owner).to_owned()))
    }

    /// News from the watch: true if it was news.
    ///
    /// A list is read from the API server's store itself, so it holds whatever the versions say: they begin anew where
    /// the store was restored from a backup. Only what was written or deleted since the list began may be ahead of it.
    pub fn seen(&self, seen: Seen) -> bool {
        self.with(|i| {
            let uid = &seen.pod.uid;
            let mut authoritative = false;
            if let Some((since, listed)) = &mut i.listing {
                listed.insert(uid.clone());
                authoritative = !i.fresh.contains(uid);
                if i.gone.get(uid).is_some_and(|at| at < since) {
                    i.gone.remove(uid);
                }
            }
            if i.gone.contains_key(uid) {
                return false;
            }
            let known = i.known.get(uid).map(|(_, version)| *version);
            let is_news = match known {
                Some(known) if authoritative => known != seen.version,
                Some(known) => known < seen.version,
                None => true,
            };
            if is_news {
                i.put(&owner(&seen.namespace, &seen.owner), seen.pod, seen.version);
            }
            is_news
        })
    }

    /// A pod as the answer to our own write showed it.
    pub fn wrote(&self, seen: Seen) {
        self.with(|i| {
            let uid = &seen.pod.uid;
            if i.listing.is_some() {
                i.fresh.insert(uid.clone());
            }
            let is_news = i.known.get(uid).is_none_or(|(_, version)| *version < seen.version);
            if is_news && !i.gone.contains_key(uid) {
                i.put(&owner(&seen.namespace, &seen.owner), seen.pod, seen.version);
            }
        });
    }

    /// It is gone, by our own delete or by the watch's word: true if that was news.
    pub fn gone(&self, uid: &str) -> bool {
        let was_there = self.with(|i| {
            i.bury(uid);
            i.remove(uid).is_some()
        });
        if was_there {
            self.mourn(uid);
        }
        was_there
    }

    /// It has no ElasticJob for its controller: gives the UID of the one it had until now, and the pod.
    pub fn released(&self, uid: &str) -> Option<(String, Pod)> {
        self.with(|i| i.remove(uid)).map(|(owner, pod)| (uid_of(&owner).to_owned(), pod))
    }

    /// A list begins.
    pub fn list_begins(&self) {
        self.with(|i| {
            i.listing = Some((Instant::now(), HashSet::new()));
            i.fresh.clear();
        });
    }

    /// The list is whole: what it did not have is gone. Returns the UIDs of the owners that lost a pod.
    pub fn list_ends(&self) -> HashSet<String> {
        let missing = self.with(|i| {
            let Some((_, listed)) = i.listing.take() else { return Vec::new() };
            let fresh = std::mem::take(&mut i.fresh);
            let there = |uid: &String| listed.contains(uid) || fresh.contains(uid);
            let missing: Vec<String> = i.known.keys().filter(|uid| !there(uid)).cloned().collect();
            let lost = |uid: String| i.remove(&uid).map(|(owner, _)| (uid, owner));
            missing.into_iter().filter_map(lost).collect()
        });
        for (uid, _) in &missing {
            self.mourn(uid);
        }
        missing.iter().map(|(_, owner)| uid_of(owner).to_owned()).collect()
    }
}

impl Inner {
    fn put(&mut self, owner: &str, pod: Pod, version: u64) {
        let Some(pod) = self.replace(owner, pod, version) else { return };
        self.remove(&pod.uid);
        let owner = self.jobs.get_key_value(owner).map_or_else(|| Arc::from(owner), |(known, _)| Arc::clone(known));
        self.known.insert(pod.uid.clone(), (Arc::clone(&owner), version));
        let pods = Arc::make_mut(self.jobs.entry(owner).or_default());
        let at = pods.partition_point(|p| (p.index, &p.name) < (pod.index, &pod.name));
        pods.insert(at, pod);
    }

    /// Puts a pod in its own place, as almost all news is of one that is there: of many others none has to move. Gives it back
    /// where it has none.
    fn replace(&mut self, owner: &str, pod: Pod, version: u64) -> Option<Pod> {
        let known = self.known.get_mut(&pod.uid).filter(|(of, _)| &**of == owner);
        let (Some(known), Some(pods)) = (known, self.jobs.get_mut(owner)) else { return Some(pod) };
        let at = pods.partition_point(|p| (p.index, &p.name) < (pod.index, &pod.name));
        if pods.get(at).is_none_or(|p| p.uid != pod.uid) {
            return Some(pod);
        }
        let place = Arc::make_mut(pods).get_mut(at)?;
        (known.1, *place) = (version, pod);
        None
    }

    fn bury(&mut self, uid: &str) {
        if self.gone.len() >= MANY {
            self.gone.retain(|_, since| since.elapsed() < LATE);
        }
        self.gone.insert(uid.to_owned(), Instant::now());
    }

    fn remove(&mut self, uid: &str) -> Option<(Arc<str>, Pod)> {
        let (owner, _) = self.known.remove(uid)?;
        let pods = Arc::make_mut(self.jobs.get_mut(&owner)?);
        let pod = pods.iter().position(|p| p.uid == uid).map(|at| pods.remove(at))?;
        if pods.is_empty() {
            self.jobs.remove(&owner);
        }
        Some((owner, pod))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::expect_used)]
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
            request: WorkerRequest::default(),
        };
        Seen { namespace: "n".into(), job: "j".into(), owner: "job".into(), version, pod }
    }

    fn phases(pods: &Pods) -> Vec<(String, WorkerPhase)> {
        pods.of("n", "job").iter().map(|p| (p.uid.clone(), p.phase)).collect()
    }

    #[test]
    fn old_news_never_undoes_an_own_write() {
        let pods = Pods::default();
        assert!(pods.seen(seen("a", 0, 5, WorkerPhase::Running)));
        pods.wrote(seen("a", 0, 9, WorkerPhase::Failed));
        assert!(!pods.seen(seen("a", 0, 7, WorkerPhase::Running)));
        assert_eq!(phases(&pods), [("a".into(), WorkerPhase::Failed)]);
        pods.gone("a");
        assert!(!pods.seen(seen("a", 0, 10, WorkerPhase::Running)), "it is gone, whatever the slow watch says");
        assert!(phases(&pods).is_empty());
    }

    #[test]
    fn the_late_answer_to_a_delete_brings_no_pod_back() {
        let pods = Pods::default();
        pods.seen(seen("a", 0, 5, WorkerPhase::Running));
        assert!(pods.gone("a"));
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
        assert_eq!(pods.list_ends(), HashSet::from(["job".into()]));
        assert_eq!(phases(&pods), [("kept".into(), WorkerPhase::Running), ("new".into(), WorkerPhase::Pending)]);
        let owners = ["old", "kept", "new"].map(|uid| pods.owner_of(uid));
        assert_eq!(owners, [None, Some("job".to_owned()), Some("job".to_owned())]);
    }

    #[test]
    fn pods_are_in_the_order_of_their_index() {
        let pods = Pods::default();
        for (uid, index) in [("c", 2), ("a", 0), ("b", 1)] {
            pods.seen(seen(uid, index, 1, WorkerPhase::Pending));
        }
        let order: Vec<u32> = pods.of("n", "job").iter().map(|p| p.index).collect();
        assert_eq!(order, [0, 1, 2]);
        assert!(pods.gone("b") && !pods.gone("b"));
    }

    #[test]
    fn a_list_holds_though_its_versions_are_older() {
        let pods = Pods::default();
        for (uid, index) in [("a", 0), ("b", 1), ("c", 2)] {
            pods.seen(seen(uid, index, 900, WorkerPhase::Running));
        }
        pods.gone("c");
        // The store was restored from a backup: "c" is there again, all versions are lower.
        pods.list_begins();
        assert!(pods.seen(seen("a", 0, 40, WorkerPhase::Pending)), "it is news");
        assert!(pods.seen(seen("c", 2, 41, WorkerPhase::Running)));
        pods.wrote(seen("new", 3, 60, WorkerPhase::Pending));
        assert!(!pods.seen(seen("new", 3, 50, WorkerPhase::Failed)), "written since the list began");
        pods.gone("d");
        assert!(!pods.seen(seen("d", 4, 42, WorkerPhase::Running)), "gone since the list began");
        pods.list_ends();
        let (running, pending) = (WorkerPhase::Running, WorkerPhase::Pending);
        assert_eq!(phases(&pods), [("a".into(), pending), ("c".into(), running), ("new".into(), pending)]);
        assert!(pods.seen(seen("a", 0, 61, running)), "and the watch goes on from there");
        pods.list_begins();
        for (uid, index, version) in [("a", 0, 61), ("c", 2, 41), ("new", 3, 60)] {
            assert!(!pods.seen(seen(uid, index, version, running)), "a list of what is known is no news");
        }
        assert!(pods.list_ends().is_empty());
    }

    #[test]
    fn a_pod_that_was_released_counts_no_more_and_may_come_back() {
        let pods = Pods::default();
        pods.seen(seen("a", 0, 5, WorkerPhase::Running));
        let (owner, pod) = pods.released("a").expect("it was known");
        assert_eq!((owner.as_str(), pod.name.as_str()), ("job", "j-worker-0"));
        assert!(phases(&pods).is_empty() && pods.released("a").is_none());
        assert!(pods.seen(Seen { owner: "other".into(), ..seen("a", 0, 7, WorkerPhase::Running) }), "another took it");
        assert_eq!((pods.of("n", "job").len(), pods.of("n", "other").len()), (0, 1));
        assert!(pods.seen(seen("a", 0, 9, WorkerPhase::Running)), "and gave it back");
        assert_eq!((pods.of("n", "job").len(), pods.of("n", "other").len()), (1, 0));
    }

    #[test]
    fn a_pod_is_its_jobs_in_its_own_namespace_alone() {
        let pods = Pods::default();
        pods.seen(Seen { namespace: "elsewhere".into(), ..seen("a", 0, 5, WorkerPhase::Running) });
        assert!(pods.of("n", "job").is_empty());
        assert_eq!((pods.of("elsewhere", "job").len(), pods.owner_of("a").as_deref()), (1, Some("job")));
    }

    #[test]
    fn who_wants_to_know_is_told_of_each_pod_that_is_gone_and_of_none_that_is_not() {
        let pods = Pods::default();
        let (sender, mut told) = tokio::sync::mpsc::unbounded_channel();
        pods.tell_gone(sender);
        for (uid, index) in [("a", 0), ("b", 1), ("c", 2)] {
            pods.seen(seen(uid, index, 1, WorkerPhase::Running));
        }
        pods.gone("a");
        pods.gone("a");
        pods.released("c");
        pods.list_begins();
        pods.list_ends();
        drop(pods);
        let told: Vec<String> = std::iter::from_fn(|| told.blocking_recv()).collect();
        assert_eq!(told, ["a", "b"]);
    }
}
