use std::collections::BTreeMap;

use serde_json::json;

use super::bracketed;
use crate::Round;

/// `TF_CONFIG` of the member at `rank`. All members are workers: without a chief, worker 0 is the chief by TensorFlow's
/// own rule. Every worker listens, so those that share an address (processes on one machine) get ports of their own: the
/// first at an address has the round's, the next the one above it.
pub(super) fn config(round: &Round, rank: usize) -> String {
    let mut taken: BTreeMap<&str, u16> = BTreeMap::new();
    let workers: Vec<String> = round
        .members
        .iter()
        .map(|m| {
            let above = taken.entry(&m.address).or_default();
            let address = format!("{}:{}", bracketed(&m.address), round.port.saturating_add(*above));
            *above = above.saturating_add(1);
            address
        })
        .collect();
    let config = json!({
        "cluster": { "worker": workers },
        "task": { "type": "worker", "index": rank },
        "environment": "cloud",
    });
    config.to_string()
}
