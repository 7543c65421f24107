//! Nodes and what is requested on them: the trimmed facts that placement needs.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use eto_cycle::resources;
use eto_engine::contract::WorkerRequest;
use eto_engine::observe::{Node, Taint};
use k8s_openapi::api::core::v1 as core;

/// For how long a node that is gone, and a failure on a node, are remembered.
const REMEMBERED: Duration = Duration::from_secs(3600);

/// Nodes by name, with the sums of requests kept up to date pod by pod.
#[derive(Debug, Default)]
pub struct Nodes {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    nodes: HashMap<String, Node>,
    /// Nodes that were there and are not any more, and since when.
    left: HashMap<String, Instant>,
    /// What each bound pod asks for, by pod UID.
    bound: HashMap<String, (String, WorkerRequest)>,
    /// Sums of `bound` by node.
    sums: HashMap<String, WorkerRequest>,
    /// Node and moment of each worker's failure lately, by pod UID.
    faults: HashMap<String, (String, Instant)>,
    listing_nodes: Option<HashSet<String>>,
    listing_pods: Option<HashSet<String>>,
}

impl Inner {
    fn lose(&mut self, names: &[String]) {
        for name in names.iter().filter(|n| self.nodes.remove(*n).is_some()) {
            self.left.insert(name.clone(), Instant::now());
        }
        self.left.retain(|_, since| since.elapsed() < REMEMBERED);
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

    pub fn seen(&self, node: &core::Node) {
        let Some(node) = trimmed(node) else { return };
        self.with(|i| {
            if let Some(listing) = &mut i.listing_nodes {
                listing.insert(node.name.clone());
            }
            i.left.remove(&node.name);
            i.nodes.insert(node.name.clone(), node);
        });
    }

    pub fn gone(&self, name: &str) {
        self.with(|i| i.lose(&[name.to_owned()]));
    }

    pub fn list_begins(&self) {
        self.with(|i| i.listing_nodes = Some(HashSet::new()));
    }

    pub fn list_ends(&self) {
        self.with(|i| {
            if let Some(listed) = i.listing_nodes.take() {
                let lost: Vec<String> = i.nodes.keys().filter(|n| !listed.contains(*n)).cloned().collect();
                i.lose(&lost);
            }
        });
    }

    /// A pod of any owner.
    pub fn pod(&self, pod: &core::Pod) {
        let Some(uid) = pod.metadata.uid.clone() else { return };
        let ended =
            pod.status.as_ref().and_then(|s| s.phase.as_deref()).is_some_and(|p| p == "Succeeded" || p == "Failed");
        let node = pod.spec.as_ref().and_then(|s| s.node_name.clone()).filter(|n| !n.is_empty() && !ended);
        self.with(|i| {
            if let Some(listing) = &mut i.listing_pods {
                listing.insert(uid.clone());
            }
            i.release(&uid);
            if let (Some(node), Some(spec)) = (node, pod.spec.as_ref()) {
                let request = resources::scheduling(spec);
                add(i.sums.entry(node.clone()).or_default(), request, 1.0);
                i.bound.insert(uid, (node, request));
            }
        });
    }

    pub fn pod_gone(&self, uid: &str) {
        self.with(|i| i.release(uid));
    }

    pub fn pod_list_begins(&self) {
        self.with(|i| i.listing_pods = Some(HashSet::new()));
    }

    pub fn pod_list_ends(&self) {
        self.with(|i| {
            let Some(listed) = i.listing_pods.take() else { return };
            i.bound.retain(|uid, _| listed.contains(uid));
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

    /// A worker failed on a node. Told again of the same pod it counts once.
    pub fn fault(&self, uid: &str, node: &str) {
        self.with(|i| {
            if !i.faults.contains_key(uid) {
                i.faults.retain(|_, (_, at)| at.elapsed() < REMEMBERED);
                i.faults.insert(uid.to_owned(), (node.to_owned(), Instant::now()));
            }
        });
    }

    /// Failures of workers within the last hour, by node.
    pub fn faults(&self) -> HashMap<String, u32> {
        self.with(|i| {
            let mut all: HashMap<String, u32> = HashMap::new();
            for (node, _) in i.faults.values().filter(|(_, at)| at.elapsed() < REMEMBERED) {
                *all.entry(node.clone()).or_default() += 1;
            }
            all
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
mod tests {
    #![allow(clippy::unwrap_used, clippy::float_cmp)]
    use super::*;
    use serde_json::json;

    fn pod(uid: &str, node: &str, cpu: &str, phase: &str) -> core::Pod {
        serde_json::from_value(json!({
            "metadata": {"name": uid, "uid": uid},
            "spec": {"nodeName": node, "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]},
            "status": {"phase": phase},
        }))
        .unwrap()
    }

    fn node() -> core::Node {
        serde_json::from_value(json!({
            "metadata": {"name": "n", "labels": {"zone": "a"}},
            "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]},
            "status": {"allocatable": {"cpu": "8", "nvidia.com/gpu": "4"}, "conditions": [{"type": "Ready", "status": "True"}]},
        }))
        .unwrap()
    }

    #[test]
    fn requests_follow_the_pods() {
        let nodes = Nodes::default();
        nodes.seen(&node());
        nodes.pod(&pod("a", "n", "2", "Running"));
        nodes.pod(&pod("b", "n", "1", "Pending"));
        nodes.pod(&pod("b", "n", "1", "Running"));
        let got = nodes.all();
        assert_eq!((got[0].requested.cpu, got[0].allocatable.gpus, got[0].ready), (3.0, 4.0, true));
        nodes.pod(&pod("a", "n", "2", "Succeeded"));
        assert_eq!(nodes.all()[0].requested.cpu, 1.0, "an ended pod holds nothing");
        nodes.pod_gone("b");
        assert_eq!(nodes.all()[0].requested.cpu, 0.0);
    }

    #[test]
    fn lists_take_what_they_do_not_have() {
        let nodes = Nodes::default();
        nodes.seen(&node());
        nodes.pod(&pod("a", "n", "2", "Running"));
        nodes.pod_list_begins();
        nodes.pod(&pod("c", "n", "5", "Running"));
        nodes.pod_list_ends();
        assert_eq!(nodes.all()[0].requested.cpu, 5.0);
        nodes.list_begins();
        nodes.list_ends();
        assert!(nodes.all().is_empty());
    }

    #[test]
    fn a_failure_counts_once_on_its_node() {
        let nodes = Nodes::default();
        for (uid, node) in [("a", "n"), ("b", "n"), ("a", "n"), ("c", "m")] {
            nodes.fault(uid, node);
        }
        assert_eq!(nodes.faults(), [("n".to_owned(), 2), ("m".to_owned(), 1)].into());
    }

    #[test]
    fn a_node_that_is_gone_is_sick_and_one_that_was_never_seen_is_not() {
        let nodes = Nodes::default();
        assert!(!nodes.is_sick("n"));
        nodes.seen(&node());
        nodes.gone("n");
        assert!(nodes.is_sick("n"));
        nodes.seen(&node());
        assert!(!nodes.is_sick("n"), "it is back");
        nodes.list_begins();
        nodes.list_ends();
        assert!(nodes.is_sick("n"));
    }
}
