//! `spread`: a job's workers apart from each other, so that a lost node, rack or zone costs as few of them as possible.
#![warn(missing_docs)]

use std::cmp::Reverse;

use eto_policy_sdk::prelude::*;
use schemars::JsonSchema;
use serde::Deserialize;

/// The config.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct SpreadConfig {
    /// What workers are kept apart on: `node`, `rack` or `zone`.
    pub across: Domain,
    /// A node with at least so many failures within the last hour is taken last; 0 = failures do not matter.
    pub avoid_after_faults: u32,
    /// Wait for the chosen node rather than run elsewhere.
    pub required: bool,
}

impl Default for SpreadConfig {
    fn default() -> Self {
        SpreadConfig { across: Domain::Node, avoid_after_faults: 2, required: false }
    }
}

/// The policy.
pub struct Spread;

impl PlacementPolicy for Spread {
    const NAME: &'static str = "spread";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const SUMMARY: &'static str = "Workers apart from each other across nodes, racks or zones";
    type Config = SpreadConfig;

    fn evaluate(input: &PlacementInput, config: &SpreadConfig) -> Result<PlacementDecision, PolicyError> {
        let suspect = |n: &Node| config.avoid_after_faults > 0 && n.faults >= config.avoid_after_faults;
        let mut places = input.place_by(config.across, |node, tally| {
            Some((suspect(node), tally.members(node), node.members, Reverse(node.free_share())))
        });
        for place in &mut places {
            place.required = config.required;
        }
        let left = input.add.len() - places.len();
        let reason = Reason::new("Spread", format!("{} workers placed, {} given up", places.len(), input.drop));
        let mut decision = PlacementDecision::new(reason);
        if left > 0 {
            decision = decision.because(Reason::new("NoRoom", format!("no listed node has room for {left} workers")));
        }
        decision.places = places;
        decision.victims = input.victims_from(Crowd::Most, config.across);
        Ok(decision)
    }
}

export_policy!(Placement: Spread);
