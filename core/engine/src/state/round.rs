//! The present round.

use serde::{Deserialize, Serialize};

use super::RoundCause;
use crate::time::Time;

/// The present round, as kept in status.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundState {
    /// Grows by one with each round, from 1.
    pub generation: u64,
    /// Workers in it.
    pub size: u32,
    /// `TemplateFacts::hash` that its pods are made from.
    pub template_hash: String,
    /// When it was decided.
    pub since: Time,
    /// When all of its workers were ready; `None` = not yet.
    pub running_since: Option<Time>,
    /// Why it began.
    pub cause: RoundCause,
    /// When all of its pods were seen to exist; `None` = not yet. Before it a missing pod is made, after it a missing
    /// pod is a loss.
    #[serde(default)]
    pub complete: Option<Time>,
    /// A pod of it was told to wait for a certain node.
    #[serde(default)]
    pub required_nodes: bool,
    /// Indexes below the highest member that are not in the round (their workers were given up). Empty in most
    /// rounds: the members are then 0 to `size` - 1.
    #[serde(default)]
    pub gaps: Vec<u32>,
    /// Restarts in place that were charged in this round.
    #[serde(default)]
    pub restarts_charged: u32,
    /// What an agent in the pods drives; `None` = the pods are recreated for each round, as in all versions before
    /// there was an agent.
    #[serde(default)]
    pub agent: Option<AgentRound>,
}

impl RoundState {
    /// How it is carried out. It stays what it is while the round stands.
    pub fn mode(&self) -> RoundMode {
        if self.agent.is_some() { RoundMode::Agent } else { RoundMode::Recreate }
    }
}

/// How a round is carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RoundMode {
    /// Its pods are made for it, with a fixed environment.
    #[default]
    Recreate,
    /// Its pods stay; an agent in each of them starts the processes with the environment of the round.
    Agent,
}

/// A round that an agent drives: who is in it, and what they were told to do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AgentRound {
    /// What is to be done about it.
    pub order: RoundOrder,
    /// When that order was seen to be in force; `None` = it is not published yet. Deadlines count from here.
    pub in_force: Option<Time>,
    /// With the order `Run`: it is not put off any more, whoever is heard of again. It was told once and etcd has lost it, or
    /// it was given when the time to stop was over for somebody.
    pub firm: bool,
    /// In rank order; empty while they are not chosen (`Gather`).
    pub members: Vec<RoundMember>,
    /// UIDs of the pods whose processes of an earlier round are to be gone before anybody starts. Known while the
    /// order is `Stop`. With the order `Run`: of those that the others went on without, and that still stop.
    pub stopping: Vec<String>,
    /// What processes of earlier rounds get to stop, in milliseconds.
    pub grace_ms: u64,
    /// The run that it is a part of, where `torchrun` changes its members by itself; `None` = all processes are started
    /// anew for it.
    pub native: Option<eto_membership::Native>,
    /// Indexes in rank order that a run began with in which members are started alone; else empty.
    pub run_ranks: Vec<u32>,
    /// A round before it hung, not long before: UID of the pod in which that began; empty where it was not known, or where
    /// the pod was replaced for it.
    pub hung: Option<String>,
    /// Why it began, for people.
    pub why: String,
    /// A failure was charged when it began.
    pub charged: bool,
    /// Pods made for an earlier generation than this are released: the gang starts anew. 0 = all pods will do.
    pub pods_from: u64,
    /// Members of an earlier round of this template have told progress, so those of this one can be expected to.
    pub tells: bool,
}

/// How far the members of a round have been told to go. Within one generation it only moves forward, in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum RoundOrder {
    /// Nothing is published: pods are made, and their agents are waited for.
    #[default]
    Gather,
    /// Published as [`eto_membership::Order::Stop`]: what runs of earlier rounds stops.
    Stop,
    /// Published as [`eto_membership::Order::Run`]: members start, or have started.
    Run,
}

/// A member of a round with an agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RoundMember {
    /// Index in the job.
    pub index: u32,
    /// UID of its pod.
    pub uid: String,
    /// Address that its peers reach it by.
    pub address: String,
    /// Processes that it runs, at least 1.
    pub processes: u32,
}
