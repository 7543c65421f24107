//! What a placement policy is asked.

use std::collections::{HashMap, HashSet};

use super::Candidates;
use crate::contract::{MemberColumns, NONE, NodeColumns, PlacementInput, WorkerRequest};
use crate::job::JobSpec;
use crate::observe::{Node, Pod};
use crate::plan::{Action, Plan};
use crate::state::{JobState, Memory};
use crate::time::Time;
use crate::view::{job_facts, seed};

/// What a plan leaves to the placement policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// Indexes of the workers to place, ascending.
    pub add: Vec<u32>,
    /// How many workers the plan gives up.
    pub drop: u32,
}

/// What the placement policy has to be asked before `draft`, a plan made without it, is carried out; `None` = nothing.
/// With the answer, plan again from the same facts; in mode Recommend it is for people alone.
pub fn need(job: &JobSpec, before: &JobState, draft: &Plan) -> Option<Need> {
    job.placement.as_ref().filter(|p| p.mode != crate::job::Mode::Off)?;
    let mut add: Vec<u32> = draft
        .actions
        .iter()
        .filter_map(|a| match a {
            // The request that nodes are chosen by is a worker's: where others run is the scheduler's choice.
            Action::CreatePod(pod) if job.types.is_worker(pod.index) => Some(pod.index),
            _ => None,
        })
        .collect();
    add.sort_unstable();
    let known: HashSet<&str> = before.victims.iter().map(|v| v.uid.as_str()).collect();
    let drop = draft.state.victims.iter().filter(|v| !known.contains(v.uid.as_str())).count();
    let need = Need { add, drop: u32::try_from(drop).unwrap_or(u32::MAX) };
    (need != Need::default()).then_some(need)
}

/// All that goes into the question.
#[derive(Clone, Copy)]
pub struct Ask<'a> {
    /// The job.
    pub job: &'a JobSpec,
    /// Its state.
    pub state: &'a JobState,
    /// Its memory: for the seed, and what the policy has kept.
    pub memory: &'a Memory,
    /// Its pods.
    pub pods: &'a [Pod],
    /// Nodes from `prefilter`.
    pub candidates: &'a Candidates<'a>,
    /// What is needed.
    pub need: &'a Need,
    /// What one worker requests.
    pub request: WorkerRequest,
    /// Label of the zone of a node, usually `topology.kubernetes.io/zone`.
    pub zone_label: &'a str,
    /// Label of the rack of a node.
    pub rack_label: &'a str,
    /// Failures of any job's workers within the last hour, by node.
    pub faults: &'a HashMap<String, u32>,
    /// The time of the question.
    pub now: Time,
}

/// The argument of a placement policy that keeps no state; see [`super::input_for`].
pub fn input(ask: &Ask<'_>) -> PlacementInput {
    let live: Vec<&Pod> = {
        let mut live: Vec<&Pod> = ask.pods.iter().filter(|p| p.deleting.is_none() && !p.is_ended()).collect();
        live.sort_by(|a, b| (a.index, &a.uid).cmp(&(b.index, &b.uid)));
        live
    };
    let names = ask.candidates.nodes.iter().enumerate();
    let position: HashMap<&str, u32> =
        names.map(|(at, n)| (n.name.as_str(), u32::try_from(at).unwrap_or(NONE))).collect();
    let place = |p: &Pod| p.node.as_deref().and_then(|n| position.get(n)).copied().unwrap_or(NONE);
    PlacementInput {
        now_ms: ask.now.0,
        seed: seed(&ask.job.uid, ask.memory.sequence),
        job: job_facts(ask.job, ask.state),
        nodes: nodes(ask, &live),
        members: MemberColumns {
            index: live.iter().map(|p| p.index).collect(),
            node: live.iter().map(|p| place(p)).collect(),
            ready: live.iter().map(|p| p.is_ready()).collect(),
            started_ms: live.iter().map(|p| p.started.map_or(0, |t| t.0)).collect(),
            protected: live.iter().map(|p| !ask.job.may_give_up(p.index)).collect(),
        },
        request: ask.request,
        add: ask.need.add.clone(),
        drop: ask.need.drop,
        config: ask.job.placement.as_ref().map_or_else(|| "{}".to_owned(), |p| p.config.clone()),
        state: None,
    }
}

fn nodes(ask: &Ask<'_>, live: &[&Pod]) -> NodeColumns {
    let mut members: HashMap<&str, u32> = HashMap::new();
    for node in live.iter().filter_map(|p| p.node.as_deref()) {
        *members.entry(node).or_default() += 1;
    }
    let all = &ask.candidates.nodes;
    let total = |of: fn(&WorkerRequest) -> f64| all.iter().map(|n| of(&n.allocatable)).collect();
    let free = |of: fn(&WorkerRequest) -> f64| ask.candidates.free.iter().map(of).collect();
    NodeColumns {
        free_cpu: free(|r| r.cpu),
        free_memory: free(|r| r.memory),
        free_gpus: free(|r| r.gpus),
        total_cpu: total(|r| r.cpu),
        total_memory: total(|r| r.memory),
        total_gpus: total(|r| r.gpus),
        zone: domains(all, ask.zone_label),
        rack: domains(all, ask.rack_label),
        members: all.iter().map(|n| members.get(n.name.as_str()).copied().unwrap_or(0)).collect(),
        faults: all.iter().map(|n| ask.faults.get(&n.name).copied().unwrap_or(0)).collect(),
    }
}

/// Ids of the values of a label, dense in the order of the nodes.
fn domains(nodes: &[&Node], label: &str) -> Vec<u32> {
    let mut ids: HashMap<&str, u32> = HashMap::new();
    let mut out = Vec::with_capacity(nodes.len());
    for node in nodes {
        let next = u32::try_from(ids.len()).unwrap_or(NONE);
        out.push(node.labels.get(label).map_or(NONE, |value| *ids.entry(value).or_insert(next)));
    }
    out
}
