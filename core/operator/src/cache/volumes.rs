//! Where the volumes of claims can be reached: claims, volumes, classes and who uses them, trimmed to that.
//!
//! What kube-scheduler looks at is looked at here, so that a placement policy is not shown nodes that the scheduler would
//! refuse. What is not known restricts nothing: the scheduler has the last word, and says what is amiss.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};

use eto_engine::placement::{Requirement, Term};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::constraints;

/// The node that the scheduler chose for a claim whose volume is being made.
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

/// Claims, volumes and classes. All methods are short and take one lock.
#[derive(Debug, Default)]
pub struct Volumes {
    inner: Mutex<Inner>,
}

/// Namespace and name of a claim.
type Key = (String, String);

#[derive(Debug, Default)]
struct Inner {
    claims: Kept<Key, Claim>,
    /// Those that restrict anything.
    volumes: Kept<String, Volume>,
    /// Those that wait for a pod.
    classes: Kept<String, Class>,
    /// The claims and the node of each pod on a node, by pod UID.
    users: Kept<String, (Vec<Key>, String)>,
    /// The same by claim: the node of each of its pods.
    nodes: HashMap<Key, HashMap<String, String>>,
}

#[derive(Debug)]
struct Claim {
    volume: Option<String>,
    class: Option<String>,
    selected: Option<String>,
}

#[derive(Debug)]
struct Volume {
    /// `None` = every node.
    terms: Option<Vec<Term>>,
    /// One node at a time can have it.
    single: bool,
}

/// A class of mode `WaitForFirstConsumer`.
#[derive(Debug)]
struct Class {
    /// `allowedTopologies`; `None` = every node.
    terms: Option<Vec<Term>>,
}

/// What a pod wants of persistent storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// A claim by name.
    Claim(String),
    /// A claim that is made with each pod, of this class.
    PerPod(Option<String>),
}

/// What the wanted volumes say of nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// For each volume that restricts nodes, terms of which one must hold.
    pub terms: Vec<Vec<Term>>,
    /// One of them goes to one node at a time, and is on none now.
    pub together: bool,
    /// Claims without a volume that no pod has to come first for: where it will be is not known.
    pub unbound: Vec<String>,
}

/// One kind as the watch tells it.
#[derive(Debug)]
struct Kept<K, V> {
    known: HashMap<K, V>,
    /// While a list is being read: what it has had so far.
    listing: Option<HashSet<K>>,
}

impl<K, V> Default for Kept<K, V> {
    fn default() -> Self {
        Kept { known: HashMap::new(), listing: None }
    }
}

impl<K: Clone + Eq + Hash, V> Kept<K, V> {
    fn begin(&mut self) {
        self.listing = Some(HashSet::new());
    }

    /// Takes an object in; `None` = nothing of it matters.
    fn put(&mut self, key: K, value: Option<V>) {
        let Some(value) = value else {
            self.known.remove(&key);
            return;
        };
        if let Some(listing) = &mut self.listing {
            listing.insert(key.clone());
        }
        self.known.insert(key, value);
    }

    /// The list is whole: what it did not have is gone.
    fn end(&mut self) {
        if let Some(listed) = self.listing.take() {
            self.known.retain(|key, _| listed.contains(key));
        }
    }
}

impl Inner {
    fn forget_user(&mut self, uid: &str) {
        let Some((claims, _)) = self.users.known.remove(uid) else { return };
        for claim in claims {
            if let Some(nodes) = self.nodes.get_mut(&claim) {
                nodes.remove(uid);
                if nodes.is_empty() {
                    self.nodes.remove(&claim);
                }
            }
        }
    }

    fn add_claim(&self, namespace: &str, name: &str, reach: &mut Reach) {
        let key = (namespace.to_owned(), name.to_owned());
        // One that is not there: the scheduler says so.
        let Some(claim) = self.claims.known.get(&key) else { return };
        let Some(volume) = &claim.volume else {
            match &claim.selected {
                Some(node) => reach.terms.push(vec![on_nodes([node.clone()])]),
                None => self.add_class(claim.class.as_deref(), name, reach),
            }
            return;
        };
        let Some(volume) = self.volumes.known.get(volume) else { return };
        reach.terms.extend(volume.terms.clone());
        if volume.single {
            match self.nodes.get(&key) {
                Some(users) => reach.terms.push(vec![on_nodes(users.values().cloned().collect::<HashSet<_>>())]),
                None => reach.together = true,
            }
        }
    }

    fn add_class(&self, class: Option<&str>, claim: &str, reach: &mut Reach) {
        match class.and_then(|class| self.classes.known.get(class)) {
            Some(class) => reach.terms.extend(class.terms.clone()),
            None => reach.unbound.push(claim.to_owned()),
        }
    }
}

impl Volumes {
    fn with<T>(&self, f: impl FnOnce(&mut Inner) -> T) -> T {
        f(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What these volumes of a job in this namespace say of nodes.
    pub fn reach(&self, namespace: &str, wanted: &[Wanted]) -> Reach {
        let mut reach = Reach::default();
        if !wanted.is_empty() {
            self.with(|i| {
                for one in wanted {
                    match one {
                        Wanted::Claim(name) => i.add_claim(namespace, name, &mut reach),
                        Wanted::PerPod(class) => {
                            let class = class.as_deref().and_then(|class| i.classes.known.get(class));
                            reach.terms.extend(class.and_then(|class| class.terms.clone()));
                        }
                    }
                }
            });
        }
        reach
    }

    pub fn claim(&self, claim: &core::PersistentVolumeClaim) {
        let Some(key) = key(&claim.metadata) else { return };
        let spec = claim.spec.as_ref();
        let annotation = claim.metadata.annotations.as_ref().and_then(|a| a.get(SELECTED_NODE));
        let given = |name: Option<&String>| name.filter(|n| !n.is_empty()).cloned();
        let volume = given(spec.and_then(|s| s.volume_name.as_ref()));
        // Of a claim that has its volume nothing else matters.
        let open = volume.is_none();
        let class = given(spec.and_then(|s| s.storage_class_name.as_ref())).filter(|_| open);
        let selected = given(annotation).filter(|_| open);
        self.with(|i| i.claims.put(key, Some(Claim { volume, class, selected })));
    }

    pub fn claim_gone(&self, claim: &core::PersistentVolumeClaim) {
        if let Some(key) = key(&claim.metadata) {
            self.with(|i| i.claims.put(key, None));
        }
    }

    pub fn volume(&self, volume: &core::PersistentVolume) {
        let (Some(name), Some(spec)) = (volume.metadata.name.clone(), volume.spec.as_ref()) else { return };
        let required = spec.node_affinity.as_ref().and_then(|a| a.required.as_ref());
        let terms = required.map(|r| r.node_selector_terms.iter().map(constraints::term).collect());
        let kept = Volume { terms, single: is_single(spec) };
        let restricts = kept.terms.is_some() || kept.single;
        self.with(|i| i.volumes.put(name, restricts.then_some(kept)));
    }

    pub fn volume_gone(&self, name: &str) {
        self.with(|i| i.volumes.put(name.to_owned(), None));
    }

    pub fn class(&self, class: &StorageClass) {
        let Some(name) = class.metadata.name.clone() else { return };
        let waits = class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer");
        let allowed = class.allowed_topologies.as_ref().filter(|all| !all.is_empty());
        let terms = allowed.map(|all| all.iter().map(topology).collect());
        self.with(|i| i.classes.put(name, waits.then_some(Class { terms })));
    }

    pub fn class_gone(&self, name: &str) {
        self.with(|i| i.classes.put(name.to_owned(), None));
    }

    /// A pod of any owner.
    pub fn pod(&self, pod: &core::Pod) {
        let Some(uid) = pod.metadata.uid.as_deref() else { return };
        let used = used(pod);
        self.with(|i| {
            i.forget_user(uid);
            if let Some((claims, node)) = used {
                for claim in &claims {
                    i.nodes.entry(claim.clone()).or_default().insert(uid.to_owned(), node.clone());
                }
                i.users.put(uid.to_owned(), Some((claims, node)));
            }
        });
    }

    pub fn pod_gone(&self, uid: &str) {
        self.with(|i| i.forget_user(uid));
    }

    pub fn claim_list(&self, begins: bool) {
        self.with(|i| if begins { i.claims.begin() } else { i.claims.end() });
    }

    pub fn volume_list(&self, begins: bool) {
        self.with(|i| if begins { i.volumes.begin() } else { i.volumes.end() });
    }

    pub fn class_list(&self, begins: bool) {
        self.with(|i| if begins { i.classes.begin() } else { i.classes.end() });
    }

    pub fn pod_list(&self, begins: bool) {
        self.with(|i| {
            if begins {
                i.users.begin();
                return;
            }
            let listed = i.users.listing.take().unwrap_or_default();
            let gone: Vec<String> = i.users.known.keys().filter(|uid| !listed.contains(*uid)).cloned().collect();
            for uid in gone {
                i.forget_user(&uid);
            }
        });
    }
}

fn key(meta: &ObjectMeta) -> Option<Key> {
    meta.namespace.clone().zip(meta.name.clone())
}

/// The claims that a pod has on a node, and the node. One that has ended holds none.
fn used(pod: &core::Pod) -> Option<(Vec<Key>, String)> {
    let spec = pod.spec.as_ref()?;
    let node = spec.node_name.clone().filter(|n| !n.is_empty())?;
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    let namespace = pod.metadata.namespace.as_ref()?;
    if matches!(phase, Some("Succeeded" | "Failed")) {
        return None;
    }
    let claims = wanted(spec).into_iter().filter_map(|wanted| match wanted {
        Wanted::Claim(name) => Some((namespace.clone(), name)),
        Wanted::PerPod(_) => None,
    });
    let claims: Vec<Key> = claims.collect();
    (!claims.is_empty()).then_some((claims, node))
}

/// The persistent volumes of a pod.
pub fn wanted(spec: &core::PodSpec) -> Vec<Wanted> {
    let of = |volume: &core::Volume| {
        if let Some(claim) = &volume.persistent_volume_claim {
            return Some(Wanted::Claim(claim.claim_name.clone()));
        }
        let template = volume.ephemeral.as_ref()?.volume_claim_template.as_ref()?;
        Some(Wanted::PerPod(template.spec.storage_class_name.clone()))
    };
    spec.volumes.iter().flatten().filter_map(of).collect()
}

/// Whether a volume is attached to one node at a time, as the attach controller has it: no mode for many nodes. One with
/// `ReadWriteOncePod` waits for its pod to go, wherever that is; network file systems and paths are not attached at all.
fn is_single(spec: &core::PersistentVolumeSpec) -> bool {
    let has = |mode: &str| spec.access_modes.iter().flatten().any(|m| m == mode);
    let attached = spec.nfs.is_none()
        && spec.host_path.is_none()
        && spec.local.is_none()
        && spec.cephfs.is_none()
        && spec.glusterfs.is_none()
        && spec.azure_file.is_none();
    attached && has("ReadWriteOnce") && !has("ReadWriteMany") && !has("ReadOnlyMany")
}

fn on_nodes(names: impl IntoIterator<Item = String>) -> Term {
    let mut values: Vec<String> = names.into_iter().collect();
    values.sort_unstable();
    let named = Requirement { key: "metadata.name".into(), operator: "In".into(), values };
    Term { labels: Vec::new(), fields: vec![named] }
}

fn topology(term: &core::TopologySelectorTerm) -> Term {
    let one = |r: &core::TopologySelectorLabelRequirement| Requirement {
        key: r.key.clone(),
        operator: "In".into(),
        values: r.values.clone(),
    };
    Term { labels: term.match_label_expressions.iter().flatten().map(one).collect(), fields: Vec::new() }
}

#[cfg(test)]
#[path = "volumes_tests.rs"]
mod tests;
