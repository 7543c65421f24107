//! The placement policy's answer as node affinity, beside what the user asked for.

use eto_engine::placement::NodeChoice;
use k8s_openapi::api::core::v1::{
    NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodSpec, PreferredSchedulingTerm,
};

/// Weight of a preferred node, the highest there is: other preferences still add up to more.
const WEIGHT: i32 = 100;

/// A required node is added to every term that the user has (one matching term is enough, so a term left as it is would
/// let the pod go elsewhere); a preferred one is a preference of its own.
pub(super) fn point_to(spec: &mut PodSpec, choice: &NodeChoice) {
    let node = NodeSelectorRequirement {
        key: "metadata.name".to_string(),
        operator: "In".to_string(),
        values: Some(vec![choice.node.clone()]),
    };
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
    let required: &mut NodeSelector =
        affinity.required_during_scheduling_ignored_during_execution.get_or_insert_default();
    if required.node_selector_terms.is_empty() {
        required.node_selector_terms.push(NodeSelectorTerm { match_expressions: None, match_fields: Some(vec![node]) });
        return;
    }
    for term in &mut required.node_selector_terms {
        // A term without any requirement matches no node; it must not begin to match one.
        let empty = term.match_expressions.as_ref().is_none_or(Vec::is_empty)
            && term.match_fields.as_ref().is_none_or(Vec::is_empty);
        if !empty {
            term.match_fields.get_or_insert_default().push(node.clone());
        }
    }
}
