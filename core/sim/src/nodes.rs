//! Nodes, the scheduler, and the controllers that look after nodes and the pods on them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use eto_engine::observe::Pod;
use eto_engine::plan::Announced;
use eto_engine::time::Time;

use crate::random::Random;
use crate::replica::News;
use crate::scenario::Scenario;
use crate::world::{BEGIN, What, World};

/// A node that was not heard of for this long is not ready, in milliseconds.
const NOT_READY_AFTER: u64 = 40_000;
/// Pods of a node that was deleted are removed after this, in milliseconds.
const COLLECT_AFTER: u64 = 40_000;

/// The end of a node that was announced.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    /// When it comes, where that is known.
    pub(crate) by: Option<Time>,
}

/// What the API server has of nodes, as far as it concerns jobs.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodesSeen {
    pub(crate) sick: BTreeSet<String>,
    /// Nodes whose end is announced, and when it comes, where that is known.
    leaving: BTreeMap<String, Option<Time>>,
}

impl NodesSeen {
    /// The pods that go with their nodes.
    pub(crate) fn leaving<'p>(&self, pods: impl Iterator<Item = &'p Pod>) -> BTreeMap<String, Announced> {
        let announced = |pod: &Pod| {
            let node = pod.node.as_ref()?;
            let by = *self.leaving.get(node)?;
            Some((pod.uid.clone(), Announced { why: format!("taint drain of node {node}"), by }))
        };
        pods.filter_map(announced).collect()
    }
}

/// A node.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each of them goes wrong by itself")]
pub(crate) struct Node {
    slots: usize,
    /// It has power.
    pub(crate) on: bool,
    /// It reaches the API server, the gateway and its peers.
    pub(crate) linked: bool,
    pub(crate) cordoned: bool,
    /// Its end is announced.
    pub(crate) leaving: Option<End>,
    /// As the API server has it.
    pub(crate) ready: bool,
    pub(crate) exists: bool,
    heard: u64,
    /// Since when it has not been ready, or not there.
    gone_since: u64,
    /// Its clock against true time, in milliseconds.
    pub(crate) skew: i64,
}

impl Node {
    pub(crate) fn draw(scenario: &Scenario, random: &mut Random) -> BTreeMap<String, Node> {
        let most = usize::try_from(scenario.job.max).unwrap_or(usize::MAX);
        let nodes = scenario.nodes;
        // Any one of them may go, and there is room for all the same.
        let slots = most.div_ceil(usize::try_from(nodes - 1).unwrap_or(1)) + 1;
        (0..nodes)
            .map(|n| {
                let range = scenario.node_skew;
                let skew = i64::try_from(random.between(0, 2 * range)).unwrap_or(0) - i64::try_from(range).unwrap_or(0);
                (format!("node-{n}"), Node::new(slots, skew))
            })
            .collect()
    }

    fn new(slots: usize, skew: i64) -> Self {
        Node {
            slots,
            on: true,
            linked: true,
            cordoned: false,
            leaving: None,
            ready: true,
            exists: true,
            heard: BEGIN,
            gone_since: 0,
            skew,
        }
    }

    pub(crate) fn is_reached(&self) -> bool {
        self.on && self.linked && self.exists
    }
}

impl World {
    /// Whether the kubelet of a pod speaks with the API server.
    pub(crate) fn is_linked(&self, uid: &str) -> bool {
        self.api.up && self.node_of(uid).is_some_and(Node::is_reached)
    }

    pub(crate) fn node_of(&self, uid: &str) -> Option<&Node> {
        let node = match self.containers.get(uid) {
            Some(container) => &container.node,
            None => self.api.pods.get(uid)?.node.as_ref()?,
        };
        self.nodes.get(node)
    }

    /// One look per second: nodes first, then pods that have none.
    pub(crate) fn schedule(&mut self) {
        self.after(1_000, What::Schedule);
        let now = self.now;
        for node in self.nodes.values_mut().filter(|n| n.is_reached()) {
            node.heard = now;
        }
        if !self.api.up {
            return;
        }
        self.judge_nodes();
        self.remove_the_lost();
        self.place();
        self.sync_all();
    }

    fn judge_nodes(&mut self) {
        let now = self.now;
        let mut changed = false;
        for node in self.nodes.values_mut() {
            let ready = now.saturating_sub(node.heard) < NOT_READY_AFTER && node.exists;
            if ready != node.ready {
                (node.ready, changed) = (ready, true);
                node.gone_since = now;
            }
        }
        if changed {
            let sick = self.nodes_seen().sick;
            self.note(|_| format!("nodes that are not ready: {sick:?}"));
            self.tell_of_nodes();
        }
    }

    pub(crate) fn nodes_seen(&self) -> NodesSeen {
        let sick = self.nodes.iter().filter(|(_, n)| !n.ready).map(|(name, _)| name.clone()).collect();
        let leaving = self.nodes.iter().filter_map(|(name, n)| Some((name.clone(), n.leaving?.by))).collect();
        NodesSeen { sick, leaving }
    }

    pub(crate) fn is_leaving(&self, name: &str) -> bool {
        self.nodes.get(name).is_some_and(|n| n.leaving.is_some())
    }

    pub(crate) fn tell_of_nodes(&mut self) {
        let seen = Arc::new(self.nodes_seen());
        self.tell_replicas(&News::Nodes(seen));
    }

    /// Pods on nodes that are not ready are deleted after a while, and those on deleted nodes are removed.
    fn remove_the_lost(&mut self) {
        let now = self.now;
        let toleration = self.scenario.toleration;
        let mut doomed = Vec::new();
        for pod in self.api.pods.values() {
            let Some(node) = pod.node.as_ref().and_then(|n| self.nodes.get(n)).filter(|n| !n.ready) else { continue };
            let since = now.saturating_sub(node.gone_since);
            if !node.exists && since >= COLLECT_AFTER {
                doomed.push((pod.uid.clone(), true));
            } else if since >= toleration && pod.deleting.is_none() && !pod.is_ended() {
                doomed.push((pod.uid.clone(), false));
            }
        }
        for (uid, gone) in doomed {
            if gone {
                self.containers.remove(&uid);
                self.remove_pod(&uid);
            } else {
                self.note(|_| format!("pod {uid} is evicted from a node that is not ready"));
                self.change_pod(&uid, |p| (p.disrupted, p.deleting) = (true, Some(Time(now))));
            }
        }
    }

    fn place(&mut self) {
        let waiting: Vec<String> = self
            .api
            .pods
            .values()
            .filter(|p| p.node.is_none() && p.deleting.is_none())
            .map(|p| p.uid.clone())
            .collect();
        for uid in waiting {
            let used = |name: &String| {
                self.api.pods.values().filter(|p| p.node.as_ref() == Some(name) && !p.is_ended()).count()
            };
            let free = self.nodes.iter().find(|(name, n)| n.ready && n.exists && !n.cordoned && used(name) < n.slots);
            let Some(name) = free.map(|(name, _)| name.clone()) else { return };
            self.change_pod(&uid, |p| p.node = Some(name));
            let most = self.scenario.pull_time;
            let delay = self.random.between(200, most);
            self.after(delay, What::Begin { uid });
        }
    }

    pub(crate) fn cut_node(&mut self, name: &str) {
        self.note(|_| format!("{name} is cut off"));
        if let Some(node) = self.nodes.get_mut(name) {
            node.linked = false;
        }
    }

    pub(crate) fn power_off(&mut self, name: &str) {
        self.note(|_| format!("{name} loses its power"));
        if let Some(node) = self.nodes.get_mut(name) {
            node.on = false;
        }
        for uid in self.uids_on(name) {
            if let Some(container) = self.containers.get_mut(&uid) {
                container.lose_power();
            }
        }
    }

    /// The node comes back, or another of its name where it was deleted.
    pub(crate) fn bring_back(&mut self, name: &str) {
        let now = self.now;
        let Some(node) = self.nodes.get_mut(name) else { return };
        if node.is_reached() {
            return;
        }
        let deleted = !node.exists;
        (node.on, node.linked, node.exists, node.heard) = (true, true, true, now);
        self.note(|_| format!("{name} is back"));
        if deleted {
            // What was on it is gone, whatever the API server still knows.
            for uid in self.uids_on(name) {
                self.containers.remove(&uid);
                self.remove_pod(&uid);
            }
            return;
        }
        // Its kubelet learns what became of its pods meanwhile, and starts what should run.
        for uid in self.uids_on(name) {
            match self.api.pods.get(&uid).cloned() {
                None => self.drop_container(&uid),
                Some(pod) if pod.deleting.is_some() => self.tell_kubelet(&uid),
                Some(_) => {
                    let delay = self.random.between(100, 4_000);
                    self.after(delay, What::Begin { uid });
                }
            }
        }
    }

    /// Pods on a node, by their containers and by their objects.
    fn uids_on(&self, name: &str) -> BTreeSet<String> {
        let there = self.containers.iter().filter(|(_, c)| c.node == name).map(|(uid, _)| uid.clone());
        let known = self.api.pods.values().filter(|p| p.node.as_deref() == Some(name)).map(|p| p.uid.clone());
        there.chain(known).collect()
    }
}
