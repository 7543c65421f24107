use std::collections::BTreeMap;

use serde_json::json;

use super::bracketed;
use crate::Round;

/// An evaluator is told of the cluster and is not in it: TensorFlow's own rule.
const EVALUATOR: &str = "evaluator";

/// `TF_CONFIG` of the member at `rank`. Without a chief, worker 0 is the chief by TensorFlow's own rule. Every member
/// listens, so those that share an address (processes on one machine) get ports of their own: the first at an address has
/// the round's, the next the one above it.
pub(super) fn config(round: &Round, rank: usize) -> String {
    let mut taken: BTreeMap<&str, u16> = BTreeMap::new();
    let mut cluster: BTreeMap<&str, Vec<(u32, String)>> = BTreeMap::new();
    for m in &round.members {
        let above = taken.entry(&m.address).or_default();
        let address = format!("{}:{}", bracketed(&m.address), round.port.saturating_add(*above));
        *above = above.saturating_add(1);
        let of = round.types.name(m.index);
        if of != EVALUATOR {
            let within = round.types.place(m.index).map_or(0, |(_, within)| within);
            cluster.entry(of).or_default().push((within, address));
        }
    }
    // A task's index is its place in the list: of workers by rank, of all others by index.
    let in_order = |mut tasks: Vec<(u32, String)>| {
        tasks.sort_by_key(|(within, _)| *within);
        tasks.into_iter().map(|(_, address)| address).collect::<Vec<_>>()
    };
    let cluster: BTreeMap<&str, Vec<String>> = cluster.into_iter().map(|(of, t)| (of, in_order(t))).collect();
    let (of, index) = round.type_of(rank).unwrap_or((crate::WORKER, rank));
    let config = json!({
        "cluster": cluster,
        "task": { "type": of, "index": index },
        "environment": "cloud",
    });
    config.to_string()
}
