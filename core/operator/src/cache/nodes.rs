//! Nodes and what is requested on them: the trimmed facts that placement needs.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use eto_cycle::resources;
use eto_engine::contract::WorkerRequest;
use eto_engine::observe::{Node, Pod, Taint};
use eto_engine::plan::Announced;
use k8s_openapi::api::core::v1 as core;

use super::quarantine::{Failure, Quarantine};
use super::signs::Found;
use crate::context::now;
use crate::settings::{self, Signs};

/// For how long a node that is gone, and a failure on a node, are remembered.
pub(super) const REMEMBERED: Duration = Duration::from_secs(3600);

/// Pods that are seen on a node so long after its end was announced may have been sent there before.
const LATE: Duration = Duration::from_secs(5);

/// Nodes by name, with the sums of requests kept up to date pod by pod.
#[derive(Debug)]
pub struct Nodes {
    signs: Signs,
    inner: Mutex<Inner>,
}

impl Default for Nodes {
    fn default() -> Self {
        Nodes::new(&settings::Nodes::default())
    }
}

#[derive(Debug, Default)]
struct Inner {
    nodes: HashMap<String, Node>,
    /// Nodes whose end is announced.
    ends: HashMap<String, End>,
    /// Nodes that have a fault, and which.
    faulty: HashMap<String, String>,
    /// Pods that say themselves that they will go, by UID, and what says so.
    pods_to_go: HashMap<String, Vec<(Found, Announced)>>,
    /// Nodes that were there and are not any more, and since when.
    left: HashMap<String, Instant>,
    /// What each bound pod asks for, by pod UID.
    bound: HashMap<String, (String, WorkerRequest)>,
    /// Sums of `bound` by node.
    sums: HashMap<String, WorkerRequest>,
    quarantine: Quarantine,
    /// This replica leads, and so tells of what comes.
    leads: bool,
    /// Nodes that were put into quarantine and are not told of, and the UID of the job whose failure was the last.
    told_of: BTreeMap<String, String>,
    listing_nodes: Option<HashSet<String>>,
    listing_pods: Option<HashSet<String>>,
    /// A whole list of pods was read.
    pods_read: bool,
}

/// The announced end of a node.
#[derive(Clone, Debug)]
struct End {
    announced: Announced,
    seen: Instant,
    /// UIDs of the pods that were there. Who came later was put there all the same, and stays.
    pods: HashSet<String>,
}

impl End {
    fn takes_in(&self, pods_read: bool) -> bool {
        !pods_read || self.seen.elapsed() < LATE
    }
}

/// Whoever set the sign has another clock: the time that is left counts from when it was seen.
fn announced(found: &Found, of: &str) -> Announced {
    Announced { why: format!("{} of {of}", found.what), by: found.notice.map(|notice| now().plus(notice)) }
}

impl Inner {
    fn lose(&mut self, names: &[String]) {
        for name in names.iter().filter(|n| self.nodes.remove(*n).is_some()) {
            self.left.insert(name.clone(), Instant::now());
            self.ends.remove(name);
            self.faulty.remove(name);
        }
        self.left.retain(|_, since| since.elapsed() < REMEMBERED);
    }

    /// True if that is news: of an end that was known before, the first word holds.
    fn note_end(&mut self, name: &str, found: Option<Found>) -> bool {
        let Some(found) = found else { return self.ends.remove(name).is_some() };
        let announced = announced(&found, &format!("node {name}"));
        if self.ends.get(name).is_some_and(|known| known.announced.why == announced.why) {
            return false;
        }
        let there = self.bound.iter().filter(|(_, (node, _))| node == name);
        let pods = there.map(|(uid, _)| uid.clone()).collect();
        self.ends.insert(name.to_owned(), End { announced, seen: Instant::now(), pods });
        true
    }

    /// What a pod says of its own end. The time that is left counts from when a sign was first seen as it is now.
    fn note_pod(&mut self, uid: &str, found: Vec<Found>) {
        let mut known = self.pods_to_go.remove(uid).unwrap_or_default();
        if found.is_empty() {
            return;
        }
        let entry = |found: Found| {
            let same = known.iter().position(|(f, _)| *f == found).map(|at| known.swap_remove(at));
            same.unwrap_or_else(|| {
                let announced = announced(&found, "the pod");
                (found, announced)
            })
        };
        self.pods_to_go.insert(uid.to_owned(), found.into_iter().map(entry).collect());
    }

    /// The end of the node that a pod is on, where it is to go with it.
    fn end_with_node(&self, pod: &Pod) -> Option<&End> {
        self.ends.get(pod.node.as_ref()?).filter(|end| end.pods.contains(&pod.uid))
    }

    /// True if that is news.
    fn note_fault(&mut self, name: &str, fault: Option<String>) -> bool {
        match fault {
            Some(fault) => self.faulty.insert(name.to_owned(), fault.clone()).is_none_or(|known| known != fault),
            None => self.faulty.remove(name).is_some(),
        }
    }

    fn release(&mut self, uid: &str) {
        if let Some((node, request)) = self.bound.remove(uid) {
            add(self.sums.entry(node).or_default(), request, -1.0);
        }
    }
}

fn add(sum: &mut WorkerRequest, what: WorkerRequest, sign: f64) {
    // Differences of sums of decimals leave tiny remainders; below zero is nothing.
    sum.cpu = (sum.cpu + sign * what.cpu).max(0.0);
    sum.memory = (sum.memory + sign * what.memory).max(0.0);
    sum.gpus = (sum.gpus + sign * what.gpus).max(0.0);
}

impl Nodes {
    fn with<T>(&self, f: impl FnOnce(&mut Inner) -> T) -> T {
        f(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Lists in the settings that can't be read are empty; the settings are checked before.
    pub fn new(settings: &settings::Nodes) -> Self {
        let quarantine = Quarantine::new(settings.quarantine_failures, settings.quarantine_half_life.get());
        let inner = Inner { quarantine, ..Inner::default() };
        Nodes { signs: settings.signs().unwrap_or_default(), inner: Mutex::new(inner) }
    }

    /// True if that is news for the jobs that have workers there.
    pub fn seen(&self, node: &core::Node) -> bool {
        let (end, fault) = (self.signs.end_of_node(node), self.signs.fault_of(node));
        let Some(node) = trimmed(node) else { return false };
        self.with(|i| {
            if let Some(listing) = &mut i.listing_nodes {
                listing.insert(node.name.clone());
            }
            let back = i.left.remove(&node.name).is_some();
            let (end, fault) = (i.note_end(&node.name, end), i.note_fault(&node.name, fault));
            let (name, ready) = (node.name.clone(), node.ready);
            let turned = i.nodes.insert(name, node).is_some_and(|known| known.ready != ready);
            back || end || fault || turned
        })
    }

    pub fn gone(&self, name: &str) {
        self.with(|i| i.lose(&[name.to_owned()]));
    }

    pub fn list_begins(&self) {
        self.with(|i| i.listing_nodes = Some(HashSet::new()));
    }

    /// The list is whole: gives the nodes that it did not have any more.
    pub fn list_ends(&self) -> Vec<String> {
        self.with(|i| {
            let Some(listed) = i.listing_nodes.take() else { return Vec::new() };
            let lost: Vec<String> = i.nodes.keys().filter(|n| !listed.contains(*n)).cloned().collect();
            i.lose(&lost);
            lost
        })
    }

    /// A pod of any owner.
    pub fn pod(&self, pod: &core::Pod) {
        let Some(uid) = pod.metadata.uid.clone() else { return };
        let ended =
            pod.status.as_ref().and_then(|s| s.phase.as_deref()).is_some_and(|p| p == "Succeeded" || p == "Failed");
        let node = pod.spec.as_ref().and_then(|s| s.node_name.clone()).filter(|n| !n.is_empty() && !ended);
        let found = if ended { Vec::new() } else { self.signs.ends_of_pod(pod) };
        self.with(|i| {
            if let Some(listing) = &mut i.listing_pods {
                listing.insert(uid.clone());
            }
            i.note_pod(&uid, found);
            i.release(&uid);
            if let (Some(node), Some(spec)) = (node, pod.spec.as_ref()) {
                let request = resources::scheduling(spec);
                add(i.sums.entry(node.clone()).or_default(), request, 1.0);
                let read = i.pods_read;
                if let Some(end) = i.ends.get_mut(&node).filter(|end| end.takes_in(read)) {
                    end.pods.insert(uid.clone());
                }
                i.bound.insert(uid, (node, request));
            }
        });
    }

    pub fn pod_gone(&self, uid: &str) {
        self.with(|i| {
            i.release(uid);
            i.pods_to_go.remove(uid);
        });
    }

    pub fn pod_list_begins(&self) {
        self.with(|i| i.listing_pods = Some(HashSet::new()));
    }

    pub fn pod_list_ends(&self) {
        self.with(|i| {
            let Some(listed) = i.listing_pods.take() else { return };
            i.bound.retain(|uid, _| listed.contains(uid));
            i.pods_to_go.retain(|uid, _| listed.contains(uid));
            i.pods_read = true;
            // Summed anew: remainders of long additions and subtractions go.
            i.sums.clear();
            for (node, request) in i.bound.values() {
                add(i.sums.entry(node.clone()).or_default(), *request, 1.0);
            }
        });
    }

    /// Whether a node is known not to be ready, or to be gone. One that was never seen may only be unseen yet.
    pub fn is_sick(&self, name: &str) -> bool {
        self.with(|i| i.nodes.get(name).map_or_else(|| i.left.contains_key(name), |n| !n.ready))
    }

    /// Those of a job's pods that are to go, by UID: with their nodes, or by themselves. Who came after the end of its node
    /// was announced stays until it comes: it would only go to and fro. So would one whose template has the annotation;
    /// `template` tells which it has, and is asked only where that matters. Of several ends the one that leaves least time.
    pub fn leaving(&self, pods: &[Pod], template: impl FnOnce() -> BTreeSet<String>) -> BTreeMap<String, Announced> {
        self.with(|i| {
            let says_so = |p: &Pod| i.pods_to_go.get(&p.uid);
            let template = if pods.iter().any(|p| says_so(p).is_some()) { template() } else { BTreeSet::new() };
            let of = |p: &Pod| {
                let own = says_so(p).into_iter().flatten().filter(|(f, _)| !template.contains(&f.key)).map(|(_, a)| a);
                let all = own.chain(i.end_with_node(p).map(|end| &end.announced));
                all.min_by_key(|a| (a.by.is_none(), a.by)).cloned()
            };
            pods.iter().filter_map(|p| Some((p.uid.clone(), of(p)?))).collect()
        })
    }

    /// Those of the nodes that these pods are on which will go, and the pods with them.
    pub fn ending(&self, pods: &[Pod]) -> BTreeSet<String> {
        self.with(|i| pods.iter().filter(|p| i.end_with_node(p).is_some()).filter_map(|p| p.node.clone()).collect())
    }

    /// Those of the nodes that these pods are on which have a fault.
    pub fn faulty(&self, pods: &[Pod]) -> BTreeSet<String> {
        self.with(|i| pods.iter().filter_map(|p| p.node.clone()).filter(|n| i.faulty.contains_key(n)).collect())
    }

    /// Nodes whose end is announced, or that have a fault. Sorted.
    pub fn avoided(&self) -> Vec<String> {
        let all: BTreeSet<String> = self.with(|i| i.ends.keys().chain(i.faulty.keys()).cloned().collect());
        all.into_iter().collect()
    }

    /// A worker failed on a node, so long ago. True if that puts the node into quarantine.
    pub fn fault(&self, failure: Failure, age: Duration) -> bool {
        let now = Instant::now();
        // A moment that can't be told is long ago.
        let Some(at) = now.checked_sub(age) else { return false };
        self.with(|i| {
            let (node, job) = (failure.node.clone(), failure.job.clone());
            let put_in = i.quarantine.note(failure, at, now);
            if put_in && i.leads {
                i.told_of.insert(node, job);
            }
            put_in
        })
    }

    /// Failures of workers within the last hour, by node.
    pub fn faults(&self) -> HashMap<String, u32> {
        self.with(|i| i.quarantine.within(REMEMBERED, Instant::now()))
    }

    /// Nodes that are in quarantine, sorted.
    pub fn quarantined(&self) -> Vec<String> {
        self.with(|i| i.quarantine.held(Instant::now()).iter().cloned().collect())
    }

    /// Whether this replica leads: what comes into quarantine meanwhile is told by who does.
    pub fn lead(&self, leads: bool) {
        self.with(|i| {
            i.leads = leads;
            i.told_of.clear();
        });
    }

    /// Nodes that came into quarantine since this was asked last, while this replica leads, and are in it; with the UID of
    /// the job whose failure was the last.
    pub fn newly_quarantined(&self) -> BTreeMap<String, String> {
        self.with(|i| {
            if i.told_of.is_empty() {
                return BTreeMap::new();
            }
            let mut told = std::mem::take(&mut i.told_of);
            let held = i.quarantine.held(Instant::now());
            told.retain(|node, _| held.contains(node));
            told
        })
    }

    /// How many nodes are to go, have a fault, and are in quarantine.
    pub fn counts(&self) -> [(&'static str, usize); 3] {
        self.with(|i| {
            let quarantined = i.quarantine.held(Instant::now()).len();
            [("leaving", i.ends.len()), ("faulty", i.faulty.len()), ("quarantined", quarantined)]
        })
    }

    /// All nodes, sorted by name, with what is requested on them.
    pub fn all(&self) -> Vec<Node> {
        let mut all: Vec<Node> = self.with(|i| {
            i.nodes
                .values()
                .map(|n| Node { requested: i.sums.get(&n.name).copied().unwrap_or_default(), ..n.clone() })
                .collect()
        });
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }
}

fn trimmed(node: &core::Node) -> Option<Node> {
    let spec = node.spec.as_ref();
    let status = node.status.as_ref();
    let ready = status
        .and_then(|s| s.conditions.as_ref())
        .is_some_and(|c| c.iter().any(|c| c.type_ == "Ready" && c.status == "True"));
    let taints = spec.and_then(|s| s.taints.as_ref()).map(|taints| {
        let taint = |t: &core::Taint| Taint {
            key: t.key.clone(),
            value: t.value.clone().unwrap_or_default(),
            effect: t.effect.clone(),
        };
        taints.iter().map(taint).collect()
    });
    Some(Node {
        name: node.metadata.name.clone()?,
        labels: node.metadata.labels.clone().unwrap_or_default(),
        taints: taints.unwrap_or_default(),
        unschedulable: spec.and_then(|s| s.unschedulable).unwrap_or(false),
        ready,
        allocatable: status.and_then(|s| s.allocatable.as_ref()).map(resources::amounts).unwrap_or_default(),
        requested: WorkerRequest::default(),
    })
}

#[cfg(test)]
#[path = "nodes_tests.rs"]
mod tests;
