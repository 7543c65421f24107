//! `binpack`: workers on as few nodes as possible, so that whole nodes stay free for large jobs or can be switched off.
#![warn(missing_docs)]

use std::cmp::Reverse;

use eto_policy_sdk::prelude::*;
use schemars::JsonSchema;
use serde::Deserialize;

/// The config.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct BinpackConfig {
    /// Most workers of the job on one node; 0 = as many as fit.
    pub max_per_node: u32,
    /// A node with at least so many failures within the last hour is taken last; 0 = failures do not matter.
    pub avoid_after_faults: u32,
    /// Wait for the chosen node rather than run elsewhere.
    pub required: bool,
}

impl Default for BinpackConfig {
    fn default() -> Self {
        BinpackConfig { max_per_node: 0, avoid_after_faults: 2, required: false }
    }
}

/// The policy.
pub struct Binpack;

impl PlacementPolicy for Binpack {
    const NAME: &'static str = "binpack";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const SUMMARY: &'static str = "Workers on as few nodes as possible";
    type Config = BinpackConfig;

    fn evaluate(input: &PlacementInput, config: &BinpackConfig) -> Result<PlacementDecision, PolicyError> {
        let suspect = |n: &Node| config.avoid_after_faults > 0 && n.faults >= config.avoid_after_faults;
        let full = |n: &Node| config.max_per_node > 0 && n.members >= config.max_per_node;
        let mut places = input.place_by(Domain::Node, |node, _| {
            // The job's own nodes first, then the fullest that still has room.
            (!full(node)).then_some((suspect(node), node.members == 0, node.free_share(), Reverse(node.members)))
        });
        for place in &mut places {
            place.required = config.required;
        }
        let left = input.add.len() - places.len();
        let reason = Reason::new("Packed", format!("{} workers placed, {} given up", places.len(), input.drop));
        let mut decision = PlacementDecision::new(reason);
        if left > 0 {
            decision = decision.because(Reason::new("NoRoom", format!("no listed node has room for {left} workers")));
        }
        decision.places = places;
        decision.victims = input.victims_from(Crowd::Fewest, Domain::Node);
        Ok(decision)
    }
}

export_policy!(Placement: Binpack);
