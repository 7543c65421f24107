//! What a job's pod template says of nodes, in the engine's terms.

use eto_api::ElasticJob;
use eto_cycle::template::{self, Role};
use eto_engine::placement::{Constraints, Requirement, Term, Toleration};
use k8s_openapi::api::core::v1 as core;

/// The constraints of a job's workers; none where the template is missing or broken (then no pod is made anyway).
pub fn constraints(job: &ElasticJob) -> Constraints {
    let template = template::merged(job, Role::Worker).ok().flatten();
    template.and_then(|t| t.spec).map(|spec| of_spec(&spec)).unwrap_or_default()
}

fn of_spec(spec: &core::PodSpec) -> Constraints {
    let required = spec
        .affinity
        .as_ref()
        .and_then(|a| a.node_affinity.as_ref())
        .and_then(|n| n.required_during_scheduling_ignored_during_execution.as_ref());
    Constraints {
        node_selector: spec.node_selector.clone().unwrap_or_default(),
        affinity: required.map(|r| r.node_selector_terms.iter().map(term).collect()),
        tolerations: spec.tolerations.iter().flatten().map(toleration).collect(),
    }
}

fn term(term: &core::NodeSelectorTerm) -> Term {
    let all = |list: &Option<Vec<core::NodeSelectorRequirement>>| list.iter().flatten().map(requirement).collect();
    Term { labels: all(&term.match_expressions), fields: all(&term.match_fields) }
}

fn requirement(r: &core::NodeSelectorRequirement) -> Requirement {
    Requirement { key: r.key.clone(), operator: r.operator.clone(), values: r.values.clone().unwrap_or_default() }
}

fn toleration(t: &core::Toleration) -> Toleration {
    Toleration {
        key: t.key.clone(),
        exists: t.operator.as_deref() == Some("Exists"),
        value: t.value.clone(),
        effect: t.effect.clone(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    #[test]
    fn selectors_affinity_and_tolerations_are_taken_over() {
        let job: ElasticJob = serde_json::from_value(json!({
            "apiVersion": "elastic.ai/v1alpha1", "kind": "ElasticJob", "metadata": {"name": "j", "namespace": "n"},
            "spec": {"template": {"spec": {
                "nodeSelector": {"pool": "gpu"},
                "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
                "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
                ]}}},
                "containers": [{"name": "c", "image": "i"}],
            }}},
        }))
        .unwrap();
        let got = constraints(&job);
        assert_eq!(got.node_selector.get("pool").map(String::as_str), Some("gpu"));
        assert!(got.tolerations[0].exists && got.tolerations[0].effect.as_deref() == Some("NoSchedule"));
        assert_eq!(got.affinity.unwrap()[0].labels[0].values, ["a"]);
        let bare: ElasticJob = serde_json::from_value(json!({
            "apiVersion": "elastic.ai/v1alpha1", "kind": "ElasticJob", "metadata": {"name": "j"}, "spec": {},
        }))
        .unwrap();
        assert_eq!(constraints(&bare), Constraints::default());
    }
}
