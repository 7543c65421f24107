//! What a placement policy's answer amounts to.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::filter::times;
use super::{Candidates, Reservations};
use crate::contract::{MAX_STATE, PlacementDecision, PlacementInput};
use crate::policy::{CallFailure, FailureKind};

/// A node for a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeChoice {
    /// Its name.
    pub node: String,
    /// Wait for it rather than run elsewhere. Dropped by the plan once the worker stayed without a node.
    pub required: bool,
}

/// A checked answer, for `plan::PlanFacts`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// Node by index of the worker; one that is missing is the scheduler's.
    pub places: BTreeMap<u32, NodeChoice>,
    /// Indexes to give up, most dispensable first.
    pub victims: Vec<u32>,
}

/// Checks an answer whole: one bad element and nothing of it counts (`BadAnswer`, with what is wrong). A good one is
/// reserved, so that the next job of the cycle sees what is left.
pub fn settle(
    input: &PlacementInput,
    candidates: &Candidates<'_>,
    decision: &PlacementDecision,
    reservations: &mut Reservations,
) -> Result<Settled, CallFailure> {
    let bad = |message: String| CallFailure { kind: FailureKind::BadAnswer, message };
    if let Some(state) = decision.state.as_ref().filter(|s| s.len() > MAX_STATE) {
        return Err(bad(format!("{} bytes of state are more than {MAX_STATE}", state.len())));
    }
    let mut settled = Settled::default();
    let mut on_node: HashMap<usize, u32> = HashMap::new();
    for place in &decision.places {
        let worker = place.worker;
        if input.add.binary_search(&worker).is_err() {
            return Err(bad(format!("worker {worker} is not one of those to place")));
        }
        let at = usize::try_from(place.node).unwrap_or(usize::MAX);
        let (Some(node), Some(free)) = (candidates.nodes.get(at), candidates.free.get(at)) else {
            return Err(bad(format!("node {} of worker {worker} is not in the list", place.node)));
        };
        let there = on_node.entry(at).or_default();
        *there += 1;
        if *there > times(free, &input.request) {
            return Err(bad(format!("node {:?} has no room for {there} workers", node.name)));
        }
        let choice = NodeChoice { node: node.name.clone(), required: place.required };
        if settled.places.insert(worker, choice).is_some() {
            return Err(bad(format!("worker {worker} is placed twice")));
        }
    }
    // Whether they are protected.
    let members: HashMap<u32, bool> =
        input.members.index.iter().copied().zip(input.members.protected.iter().copied()).collect();
    let mut named = HashSet::new();
    for victim in &decision.victims {
        match members.get(victim) {
            None => return Err(bad(format!("victim {victim} is not a member"))),
            Some(true) => {
                return Err(bad(format!("victim {victim} is the master or no worker, which is never given up")));
            }
            Some(false) => {}
        }
        if !named.insert(*victim) {
            return Err(bad(format!("victim {victim} is named twice")));
        }
        settled.victims.push(*victim);
    }
    settled.victims.truncate(usize::try_from(input.drop).unwrap_or(usize::MAX));
    for choice in settled.places.values() {
        reservations.reserve(&choice.node, &input.request);
    }
    Ok(settled)
}
