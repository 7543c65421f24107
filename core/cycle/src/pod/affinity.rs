//! The placement policy's answer, and nodes to stay away from, as node affinity, beside what the user asked for.

use eto_engine::placement::NodeChoice;

use super::KeepOff;
use k8s_openapi::api::core::v1::{
    NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodSpec, PreferredSchedulingTerm,
};

/// Weight of a preferred node, the highest there is: other preferences still add up to more.
const WEIGHT: i32 = 100;

/// A required node is added to every term that the user has (one matching term is enough, so a term left as it is would
/// let the pod go elsewhere); a preferred one is a preference of its own.
pub(super) fn point_to(spec: &mut PodSpec, choice: &NodeChoice) {
    let node = named("In", &choice.node);
    let affinity = spec.affinity.get_or_insert_default().node_affinity.get_or_insert_default();
    if !choice.required {
        affinity.preferred_during_scheduling_ignored_during_execution.get_or_insert_default().push(
            PreferredSchedulingTerm {
                weight: WEIGHT,
                preference: NodeSelectorTerm { match_expressions: None, match_fields: Some(vec![node]) },
            },
        );
        return;
    }
    require(affinity, &[node]);
}

/// Keeps a pod off nodes. A field can be compared with one value alone, so each name is a requirement of its own; all of
/// them must hold.
pub(super) fn keep_off(spec: &mut PodSpec, nodes: &KeepOff) {
    let others =
        |names: &[String]| -> Vec<NodeSelectorRequirement> { names.iter().map(|n| named("NotIn", n)).collect() };
    let (never, rather_not) = (others(&nodes.never), others(&nodes.rather_not));
    if never.is_empty() && rather_not.is_empty() {
        return;
    }
    let affinity = spec.affinity.get_or_insert_default().node_affinity.get_or_insert_default();
    if !rather_not.is_empty() {
        affinity.preferred_during_scheduling_ignored_during_execution.get_or_insert_default().push(
            PreferredSchedulingTerm {
                weight: WEIGHT,
                preference: NodeSelectorTerm { match_expressions: None, match_fields: Some(rather_not) },
            },
        );
    }
    if !never.is_empty() {
        require(affinity, &never);
    }
}

fn named(operator: &str, node: &str) -> NodeSelectorRequirement {
    NodeSelectorRequirement {
        key: "metadata.name".to_string(),
        operator: operator.to_string(),
        values: Some(vec![node.to_string()]),
    }
}

/// Adds requirements to each term that there is, or makes the first one.
fn require(affinity: &mut NodeAffinity, fields: &[NodeSelectorRequirement]) {
    let required: &mut NodeSelector =
        affinity.required_during_scheduling_ignored_during_execution.get_or_insert_default();
    if required.node_selector_terms.is_empty() {
        required
            .node_selector_terms
            .push(NodeSelectorTerm { match_expressions: None, match_fields: Some(fields.to_vec()) });
        return;
    }
    for term in &mut required.node_selector_terms {
        // A term without any requirement matches no node; it must not begin to match one.
        let empty = term.match_expressions.as_ref().is_none_or(Vec::is_empty)
            && term.match_fields.as_ref().is_none_or(Vec::is_empty);
        if !empty {
            term.match_fields.get_or_insert_default().extend(fields.iter().cloned());
        }
    }
}
