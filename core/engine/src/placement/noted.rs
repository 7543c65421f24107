//! What is remembered of a question to a placement policy, whatever came of it.

use std::collections::BTreeMap;

use super::Settled;
use crate::contract::Reason;
use crate::decision::{Placed, PlacedOn};
use crate::guard::circuit;
use crate::policy::{CallFailure, PolicyId};
use crate::state::{Kept, PlacementMemory};
use crate::time::Time;

/// Workers whose nodes are listed for people.
pub const MAX_PLACES: usize = 128;

/// A question that was put.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// To whom; `None` = nothing of that name is served.
    pub policy: Option<&'a PolicyId>,
    /// Generation of the job's spec.
    pub generation: u64,
    /// Whether the answer counts (mode Auto).
    pub apply: bool,
    /// Fuel burnt by it.
    pub fuel: u64,
    /// When.
    pub now: Time,
}

/// Whether the policy with this digest has failed too often to be asked now about a spec of this generation. The scheduler
/// decides meanwhile.
pub fn is_open(memory: &PlacementMemory, digest: &str, generation: u64, now: Time) -> bool {
    let generations = (memory.last.as_ref().map(|last| last.generation), generation);
    circuit::open_until(&memory.circuits, digest, generations, now).is_some()
}

/// Notes what came of a question: the record for people, the circuit, and what the policy wants to have kept.
pub fn note(
    memory: &mut PlacementMemory,
    asked: Asked<'_>,
    outcome: Result<(&Settled, Vec<Reason>), &CallFailure>,
    kept: Option<Kept>,
) {
    let Asked { policy, generation, apply, fuel, now } = asked;
    let digest = policy.map(|p| p.digest.as_str());
    let mut placed = Placed {
        at: now,
        generation,
        policy: policy.cloned(),
        apply,
        nodes: Vec::new(),
        unlisted: 0,
        victims: Vec::new(),
        reasons: Vec::new(),
        fuel,
        failure: None,
    };
    match outcome {
        Ok((settled, reasons)) => {
            if let Some(digest) = digest {
                circuit::answered(&mut memory.circuits, digest);
            }
            placed.nodes = by_node(settled);
            placed.unlisted = u32::try_from(settled.places.len().saturating_sub(MAX_PLACES)).unwrap_or(u32::MAX);
            placed.victims.clone_from(&settled.victims);
            placed.reasons = reasons;
            if let Some(kept) = kept {
                memory.kept = kept;
            }
        }
        Err(failure) => {
            let charged = digest.filter(|_| failure.kind.is_fault());
            let in_a_row = charged.map_or(0, |digest| circuit::failed(&mut memory.circuits, digest, now));
            placed.failure = Some((failure.clone(), in_a_row).into());
        }
    }
    memory.last = Some(placed);
}

fn by_node(settled: &Settled) -> Vec<PlacedOn> {
    let mut nodes: BTreeMap<(&str, bool), Vec<u32>> = BTreeMap::new();
    for (worker, choice) in settled.places.iter().take(MAX_PLACES) {
        nodes.entry((&choice.node, choice.required)).or_default().push(*worker);
    }
    let on =
        |((node, required), workers): ((&str, bool), Vec<u32>)| PlacedOn { node: node.to_owned(), required, workers };
    nodes.into_iter().map(on).collect()
}
