//! What a job's pod template says of nodes, in the engine's terms, by itself and by the volumes that it names.

use eto_api::ElasticJob;
use eto_cycle::template::{self, Role};
use eto_engine::placement::{Constraints, Requirement, Term, Toleration};
use k8s_openapi::api::core::v1 as core;

use crate::cache::volumes::{Reach, Volumes, wanted};

/// The constraints of a job's workers, and claims of which it is not known where their volumes will be; none where the
/// template is missing or broken (then no pod is made anyway).
pub fn constraints(job: &ElasticJob, volumes: &Volumes) -> (Constraints, Vec<String>) {
    let template = template::merged(job, Role::Worker).ok().flatten();
    let Some(spec) = template.and_then(|t| t.spec) else { return Default::default() };
    let namespace = job.metadata.namespace.as_deref().unwrap_or_default();
    let Reach { terms, together, unbound } = volumes.reach(namespace, &wanted(&spec));
    (Constraints { volumes: terms, together, ..of_spec(&spec) }, unbound)
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
        ..Constraints::default()
    }
}

pub(crate) fn term(term: &core::NodeSelectorTerm) -> Term {
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
                "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}],
                "containers": [{"name": "c", "image": "i"}],
            }}},
        }))
        .unwrap();
        let volumes = Volumes::default();
        volumes.claim(
            &serde_json::from_value(json!({"metadata": {"namespace": "n", "name": "data"}, "spec": {}})).unwrap(),
        );
        let (got, unbound) = constraints(&job, &volumes);
        assert_eq!(unbound, ["data"]);
        assert_eq!(got.node_selector.get("pool").map(String::as_str), Some("gpu"));
        assert!(got.tolerations[0].exists && got.tolerations[0].effect.as_deref() == Some("NoSchedule"));
        assert_eq!(got.affinity.unwrap()[0].labels[0].values, ["a"]);
        let bare: ElasticJob = serde_json::from_value(json!({
            "apiVersion": "elastic.ai/v1alpha1", "kind": "ElasticJob", "metadata": {"name": "j"}, "spec": {},
        }))
        .unwrap();
        assert_eq!(constraints(&bare, &volumes), (Constraints::default(), vec![]));
    }
}
