//! What nodes and pods say of their own end, and of faults: read off their taints, conditions and annotations.

use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::settings::{Sign, Signs};

/// A sign that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// For people, without the name of whom it was found on.
    pub(super) what: String,
    /// Name of the taint, condition or annotation.
    pub(super) key: String,
    /// How long there is from when it came.
    pub(super) notice: Option<Duration>,
}

impl Sign {
    fn says(&self, key: &str, value: &str) -> bool {
        self.key == key && self.value.as_ref().is_none_or(|v| v == value)
    }

    /// A condition is a sign while it is True, unless the sign names another status.
    fn holds(&self, kind: &str, status: &str) -> bool {
        self.key == kind && self.value.as_deref().unwrap_or("True") == status
    }

    fn found(&self, what: String) -> Found {
        Found { what, key: self.key.clone(), notice: self.notice }
    }
}

impl Signs {
    /// That a node will go. Of several signs the one that leaves least time.
    pub(super) fn end_of_node(&self, node: &core::Node) -> Option<Found> {
        let taints = node.spec.iter().flat_map(|s| s.taints.iter().flatten());
        let tainted = taints.filter_map(|taint| {
            let sign = self.taints.iter().find(|s| s.says(&taint.key, taint.value.as_deref().unwrap_or_default()))?;
            Some(sign.found(format!("taint {}", taint.key)))
        });
        let all = tainted.chain(conditions(node, &self.conditions)).chain(self.annotated(&node.metadata));
        all.min_by_key(|f| (f.notice.unwrap_or(Duration::MAX), f.what.clone()))
    }

    /// That a pod will go: all of its annotations that say so. Its template may have some of them.
    pub(super) fn ends_of_pod(&self, pod: &core::Pod) -> Vec<Found> {
        self.annotated(&pod.metadata).collect()
    }

    /// A fault that a node has.
    pub(super) fn fault_of(&self, node: &core::Node) -> Option<String> {
        conditions(node, &self.faults).map(|f| f.what).min()
    }

    fn annotated(&self, meta: &ObjectMeta) -> impl Iterator<Item = Found> {
        let annotations = meta.annotations.iter().flatten();
        annotations.filter_map(|(key, value)| {
            let sign = self.annotations.iter().find(|s| s.says(key, value))?;
            Some(sign.found(format!("annotation {key}")))
        })
    }
}

fn conditions<'a>(node: &'a core::Node, signs: &'a [Sign]) -> impl Iterator<Item = Found> + 'a {
    let conditions = node.status.iter().flat_map(|s| s.conditions.iter().flatten());
    conditions.filter_map(|c| {
        let sign = signs.iter().find(|s| s.holds(&c.type_, &c.status))?;
        Some(sign.found(format!("condition {}={}", c.type_, c.status)))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::settings::Nodes;
    use serde_json::{Value, json};

    fn signs() -> Signs {
        let nodes = Nodes {
            leaving_conditions: "RebootScheduled".into(),
            leaving_annotations: "example.com/drain=soon@5m".into(),
            ..Nodes::default()
        };
        nodes.signs().unwrap()
    }

    fn node(of: &Value) -> core::Node {
        serde_json::from_value(of.clone()).unwrap()
    }

    #[test]
    fn the_end_of_a_node_is_read_off_its_taints_conditions_and_annotations() {
        let signs = signs();
        let end = |of: &Value| signs.end_of_node(&node(of)).map(|f| (f.what, f.notice.map(|n| n.as_secs())));
        let tainted = |key: &str| json!({"spec": {"taints": [{"key": key, "effect": "NoSchedule"}]}});
        assert_eq!(end(&tainted("karpenter.sh/disrupted")), Some(("taint karpenter.sh/disrupted".into(), None)));
        assert_eq!(end(&tainted("nvidia.com/gpu")), None);
        assert_eq!(end(&json!({"spec": {"unschedulable": true}})), None, "closed for new pods is no more than that");
        let two = json!({"spec": {"taints": [
            {"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"},
            {"key": "aws-node-termination-handler/spot-itn", "value": "1", "effect": "NoSchedule"},
        ]}});
        assert_eq!(end(&two), Some(("taint aws-node-termination-handler/spot-itn".into(), Some(120))));
        let condition =
            |status: &str| json!({"status": {"conditions": [{"type": "RebootScheduled", "status": status}]}});
        assert_eq!(end(&condition("True")), Some(("condition RebootScheduled=True".into(), None)));
        assert_eq!(end(&condition("False")), None);
        let annotated = |value: &str| json!({"metadata": {"annotations": {"example.com/drain": value}}});
        assert_eq!(end(&annotated("soon")), Some(("annotation example.com/drain".into(), Some(300))));
        assert_eq!(end(&annotated("never")), None);
        let pod: core::Pod = serde_json::from_value(annotated("soon")).unwrap();
        let told: Vec<String> = signs.ends_of_pod(&pod).into_iter().map(|f| f.what).collect();
        assert_eq!(told, ["annotation example.com/drain"]);
    }

    #[test]
    fn faults_of_gpus_are_no_ends() {
        let sick = |kind: &str, status: &str| {
            node(
                &json!({"status": {"conditions": [{"type": kind, "status": status}, {"type": "Ready", "status": "True"}]}}),
            )
        };
        let fault = |kind: &str, status: &str| signs().fault_of(&sick(kind, status));
        assert_eq!(
            fault("AcceleratedHardwareReady", "False").as_deref(),
            Some("condition AcceleratedHardwareReady=False")
        );
        assert_eq!(fault("AcceleratedHardwareReady", "True"), None);
        assert_eq!(fault("GPUXIDErrors", "True").as_deref(), Some("condition GPUXIDErrors=True"));
        assert_eq!(signs().end_of_node(&sick("GPUXIDErrors", "True")), None);
    }
}
