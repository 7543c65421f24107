//! Which nodes a worker of a job may run on, and how many workers would fit.

use std::collections::{BTreeMap, HashSet};
use std::hash::BuildHasher;

use super::Reservations;
use crate::contract::{NONE, WorkerRequest};
use crate::observe::{Node, Taint};

/// What the pod template says of nodes, as in core/v1. The default: any node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Constraints {
    /// `nodeSelector`.
    pub node_selector: BTreeMap<String, String>,
    /// `affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution`: one of them must hold. `None` = no such
    /// affinity; an empty list matches no node, as in Kubernetes.
    pub affinity: Option<Vec<Term>>,
    /// `tolerations`.
    pub tolerations: Vec<Toleration>,
    /// Where the volumes of the pod's claims can be reached: for each that says it, terms of which one must hold, as in
    /// `affinity`.
    pub volumes: Vec<Vec<Term>>,
    /// A volume that only one node at a time can have, and none has yet: all workers to come must share a node.
    pub together: bool,
}

/// A node selector term: all of its requirements must hold. An empty one matches no node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Term {
    /// `matchExpressions`, on labels.
    pub labels: Vec<Requirement>,
    /// `matchFields`; `metadata.name` is the only field there is.
    pub fields: Vec<Requirement>,
}

/// One requirement of a term.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement {
    /// Label or field.
    pub key: String,
    /// `In`, `NotIn`, `Exists`, `DoesNotExist`, `Gt` or `Lt`; anything else matches no node.
    pub operator: String,
    /// Values, where the operator takes some.
    pub values: Vec<String>,
}

/// A toleration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Toleration {
    /// `None` or empty with `exists` = every taint.
    pub key: Option<String>,
    /// Operator `Exists` rather than `Equal`.
    pub exists: bool,
    /// The value for `Equal`.
    pub value: Option<String>,
    /// `None` or empty = every effect.
    pub effect: Option<String>,
}

/// The nodes that come into question, with what is free on them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Candidates<'a> {
    /// In the order that they were handed in.
    pub nodes: Vec<&'a Node>,
    /// Parallel to `nodes`: allocatable less requested and reserved, not below 0.
    pub free: Vec<WorkerRequest>,
}

impl Candidates<'_> {
    /// Nothing more is to come to these (sorted) nodes; their members can still be spoken of.
    pub fn close(&mut self, nodes: &[String]) {
        for (node, free) in self.nodes.iter().zip(&mut self.free) {
            if nodes.binary_search(&node.name).is_ok() {
                *free = WorkerRequest::default();
            }
        }
    }
}

/// The nodes on which a worker may run and fits now. Nodes in `own` (where the job has members) are kept even if they
/// are full or closed, so that members can be spoken of. Where all workers must share a node it is the one with room for
/// most of them, the first of equals.
pub fn prefilter<'a, S: BuildHasher>(
    nodes: &'a [Node],
    constraints: &Constraints,
    request: &WorkerRequest,
    reservations: &Reservations,
    own: &HashSet<&str, S>,
) -> Candidates<'a> {
    let mut out = Candidates::default();
    for node in nodes {
        let usable = node.ready
            && !node.unschedulable
            && tolerated(&node.taints, &constraints.tolerations)
            && selected(node, constraints);
        let free = if usable { free(node, reservations) } else { WorkerRequest::default() };
        if (usable && times(&free, request) > 0) || own.contains(node.name.as_str()) {
            out.nodes.push(node);
            out.free.push(free);
        }
    }
    if constraints.together { roomiest(out, request, own) } else { out }
}

/// Closes all nodes but the one with the most room.
fn roomiest<'a, S: BuildHasher>(
    candidates: Candidates<'a>,
    request: &WorkerRequest,
    own: &HashSet<&str, S>,
) -> Candidates<'a> {
    let room: Vec<u32> = candidates.free.iter().map(|free| times(free, request)).collect();
    let Some(most) = room.iter().max().and_then(|most| room.iter().position(|n| n == most)) else { return candidates };
    let mut out = Candidates::default();
    for (at, (node, free)) in candidates.nodes.into_iter().zip(candidates.free).enumerate() {
        if at == most || own.contains(node.name.as_str()) {
            out.nodes.push(node);
            out.free.push(if at == most { free } else { WorkerRequest::default() });
        }
    }
    out
}

/// How many workers with this request would fit on the candidates now; [`NONE`] where the request is empty. An
/// estimate: the scheduler also looks at what this does not (spread, other resources, volumes that are not made yet).
pub fn fits(candidates: &Candidates<'_>, request: &WorkerRequest) -> u32 {
    candidates.free.iter().map(|free| times(free, request)).fold(0, u32::saturating_add)
}

fn free(node: &Node, reservations: &Reservations) -> WorkerRequest {
    let reserved = reservations.on(&node.name);
    let left = |total: f64, used: f64, reserved: f64| (total - used - reserved).max(0.0);
    WorkerRequest {
        cpu: left(node.allocatable.cpu, node.requested.cpu, reserved.cpu),
        memory: left(node.allocatable.memory, node.requested.memory, reserved.memory),
        gpus: left(node.allocatable.gpus, node.requested.gpus, reserved.gpus),
    }
}

/// How often the request fits into what is free.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
pub(super) fn times(free: &WorkerRequest, request: &WorkerRequest) -> u32 {
    // Sums of decimal fractions fall a hair short: 1.0 - 0.9 must hold a request of 0.1.
    let part = |free: f64, want: f64| if want > 0.0 { (free / want + 1e-9).floor() } else { f64::INFINITY };
    let n = part(free.cpu, request.cpu).min(part(free.memory, request.memory)).min(part(free.gpus, request.gpus));
    // Saturating; infinity (nothing is requested) becomes NONE.
    if n.is_nan() { 0 } else { n.min(f64::from(NONE)) as u32 }
}

fn tolerated(taints: &[Taint], tolerations: &[Toleration]) -> bool {
    taints.iter().filter(|t| t.effect != "PreferNoSchedule").all(|taint| {
        tolerations.iter().any(|t| {
            let effect = t.effect.as_deref().is_none_or(|e| e.is_empty() || e == taint.effect);
            let key = t.key.as_deref().unwrap_or_default();
            let matches = match (key.is_empty(), t.exists) {
                (true, exists) => exists,
                (false, true) => key == taint.key,
                (false, false) => key == taint.key && t.value.as_deref().unwrap_or_default() == taint.value,
            };
            effect && matches
        })
    })
}

fn selected(node: &Node, constraints: &Constraints) -> bool {
    let selector = constraints.node_selector.iter().all(|(k, v)| node.labels.get(k) == Some(v));
    let one_of = |terms: &[Term]| terms.iter().any(|term| matches(node, term));
    selector
        && constraints.affinity.as_deref().is_none_or(one_of)
        && constraints.volumes.iter().all(|terms| one_of(terms))
}

fn matches(node: &Node, term: &Term) -> bool {
    let empty = term.labels.is_empty() && term.fields.is_empty();
    !empty
        && term.labels.iter().all(|r| holds(r, node.labels.get(&r.key).map(String::as_str)))
        && term.fields.iter().all(|r| r.key == "metadata.name" && holds(r, Some(&node.name)))
}

fn holds(requirement: &Requirement, value: Option<&str>) -> bool {
    let listed = |v: &str| requirement.values.iter().any(|x| x == v);
    let number = |v: &str| v.parse::<i64>().ok();
    let bound = || requirement.values.first().and_then(|v| number(v));
    match requirement.operator.as_str() {
        "In" => value.is_some_and(listed),
        "NotIn" => value.is_none_or(|v| !listed(v)),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => value.and_then(number).zip(bound()).is_some_and(|(v, b)| v > b),
        "Lt" => value.and_then(number).zip(bound()).is_some_and(|(v, b)| v < b),
        _ => false,
    }
}
