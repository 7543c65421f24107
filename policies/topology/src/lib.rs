//! `topology`: a job in as few racks or zones as it fits into, since workers exchange gradients at every step.
#![warn(missing_docs)]

use std::collections::BTreeMap;

use eto_policy_sdk::prelude::*;
use schemars::JsonSchema;
use serde::Deserialize;

/// The config.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct TopologyConfig {
    /// What the job is kept together in: `rack` or `zone` (or `node`).
    pub within: Domain,
    /// A node with at least so many failures within the last hour is not used while others have room; 0 = failures do
    /// not matter.
    pub avoid_after_faults: u32,
    /// Wait for the chosen node rather than run elsewhere.
    pub required: bool,
}

impl Default for TopologyConfig {
    fn default() -> Self {
        TopologyConfig { within: Domain::Rack, avoid_after_faults: 2, required: false }
    }
}

/// The policy.
pub struct Topology;

impl PlacementPolicy for Topology {
    const NAME: &'static str = "topology";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const SUMMARY: &'static str = "A job in as few racks or zones as it fits into";
    type Config = TopologyConfig;

    fn evaluate(input: &PlacementInput, config: &TopologyConfig) -> Result<PlacementDecision, PolicyError> {
        let suspect = |n: &Node| config.avoid_after_faults > 0 && n.faults >= config.avoid_after_faults;
        let order = domains(input, config.within, &suspect);
        let mut places = input.place_by(config.within, |node, _| {
            let domain = config.within.of(node);
            let turn = order.iter().position(|d| *d == domain).unwrap_or(order.len());
            // Within a domain the fullest node that has room: whole nodes stay free for the next worker or job.
            Some((suspect(node), domain.is_none(), turn, node.members == 0, node.free_share()))
        });
        for place in &mut places {
            place.required = config.required;
        }
        let used = used_after(input, config.within, &places);
        let mut decision = PlacementDecision::new(Reason::new(
            "Together",
            format!("{} workers placed, {} given up; the job is in {used} domains", places.len(), input.drop),
        ));
        let left = input.add.len() - places.len();
        if left > 0 {
            decision = decision.because(Reason::new("NoRoom", format!("no listed node has room for {left} workers")));
        }
        decision.places = places;
        decision.victims = input.victims_from(Crowd::Fewest, config.within);
        Ok(decision)
    }
}

export_policy!(Placement: Topology);

/// What a domain holds and could take.
#[derive(Clone, Copy, Default)]
struct Room {
    members: u32,
    fits: u32,
}

/// The domains in the order in which they are to be filled: those where the job is already, the largest part first;
/// then, as long as workers remain, the tightest one that takes them all, or else the roomiest.
fn domains(input: &PlacementInput, within: Domain, suspect: &impl Fn(&Node) -> bool) -> Vec<Option<u32>> {
    let most = u32::try_from(input.add.len()).unwrap_or(u32::MAX);
    let mut rooms: BTreeMap<Option<u32>, Room> = BTreeMap::new();
    for node in input.nodes.iter() {
        let room = rooms.entry(within.of(&node)).or_default();
        room.members = room.members.saturating_add(node.members);
        if !suspect(&node) {
            room.fits = room.fits.saturating_add(node.room(&input.request, u32::MAX));
        }
    }
    rooms.remove(&None);
    let mut order: Vec<(Option<u32>, Room)> =
        rooms.iter().filter(|(_, r)| r.members > 0).map(|(d, r)| (*d, *r)).collect();
    order.sort_by_key(|(domain, room)| (std::cmp::Reverse(room.members), *domain));
    let mut left = order.iter().fold(most, |left, (_, room)| left.saturating_sub(room.fits));
    let mut open: Vec<(Option<u32>, Room)> = rooms.into_iter().filter(|(_, r)| r.members == 0).collect();
    while left > 0 && !open.is_empty() {
        let enough = open.iter().enumerate().filter(|(_, (_, r))| r.fits >= left).min_by_key(|(_, (_, r))| r.fits);
        let roomiest = || open.iter().enumerate().max_by_key(|(at, (_, r))| (r.fits, std::cmp::Reverse(*at)));
        let Some((at, _)) = enough.or_else(roomiest) else { break };
        let chosen = open.remove(at);
        left = left.saturating_sub(chosen.1.fits);
        order.push(chosen);
    }
    order.into_iter().map(|(domain, _)| domain).collect()
}

/// In how many domains the job is once the places are taken.
fn used_after(input: &PlacementInput, within: Domain, places: &[Place]) -> usize {
    let chosen = |n: &Node| n.members > 0 || places.iter().any(|p| p.node == n.row);
    let used: std::collections::BTreeSet<_> = input.nodes.iter().filter(chosen).map(|n| within.of(&n)).collect();
    used.len()
}
