//! Fields that `ElasticJob` does not have.
//!
//! An API server refuses (or drops) a misspelt field by the CRD's schema. Where there is no API server the same schema
//! is asked here: a `minReplica` that is silently ignored is a job of the wrong size.
//!
//! Of pod templates and their short forms the CRD keeps whatever is written, so that no API server says anything of what
//! they hold, and the pod is made without it. They are held against the schemas of core/v1.

use std::sync::LazyLock;

use eto_api::ElasticJob;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use schemars::SchemaGenerator;
use serde_json::{Value, json};

use crate::SpecProblems;

/// Fields of the spec that hold parts of a pod, wherever they are, and the definition of core/v1 that each is (a list
/// of).
const PARTS: [(&str, &str); 6] = [
    ("template", "PodTemplateSpec"),
    ("affinity", "Affinity"),
    ("topologySpreadConstraints", "TopologySpreadConstraint"),
    ("volumes", "Volume"),
    ("volumeMounts", "VolumeMount"),
    ("env", "EnvVar"),
];
/// What the names of core/v1's definitions begin with.
const CORE: &str = "io.k8s.api.core.v1.";
/// What names of one letter more or less can't tell of: the shortest beginning that two names share.
const BEGINNING: usize = 3;

/// The fields of `spec` that the API does not have, each with the nearest one that it has.
pub fn fields(object: &Value) -> SpecProblems {
    let mut problems = SpecProblems::default();
    if let Some(value) = object.get("spec") {
        let at = At { schema: &SPEC, owner: "ElasticJob", part: None };
        at.walk("spec", value, &mut problems);
    }
    problems
}

/// The fields of a job's pod templates and short forms that core/v1 does not have: they are not in its pods.
pub fn in_pods(job: &ElasticJob) -> SpecProblems {
    serde_json::to_value(&job.spec).map_or_else(|_| SpecProblems::default(), |spec| fields(&json!({ "spec": spec })))
}

/// The schema of `spec` as the CRD has it.
static SPEC: LazyLock<Value> = LazyLock::new(|| {
    let crd = serde_json::to_value(eto_api::crd()).unwrap_or_default();
    crd.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec").cloned().unwrap_or_default()
});

/// The schema of a pod template, with those of all that it holds as definitions.
static POD: LazyLock<Value> =
    LazyLock::new(|| SchemaGenerator::default().into_root_schema_for::<PodTemplateSpec>().to_value());

/// A place in a schema.
#[derive(Clone, Copy)]
struct At<'a> {
    schema: &'a Value,
    /// What the fields are fields of.
    owner: &'a str,
    /// The part of a pod that is kept here as it is written.
    part: Option<&'static str>,
}

impl<'a> At<'a> {
    /// A definition of core/v1.
    fn core(name: &'static str) -> At<'static> {
        let whole = name == "PodTemplateSpec";
        let schema = if whole { Some(&*POD) } else { POD.get("$defs").and_then(|d| d.get(format!("{CORE}{name}"))) };
        At { schema: schema.unwrap_or(&Value::Null), owner: name, part: None }
    }

    /// Further inside.
    fn inner(self, schema: &'a Value) -> At<'a> {
        let reference = schema.get("$ref").and_then(Value::as_str).and_then(|r| r.strip_prefix('#'));
        let Some(definition) = reference.and_then(|r| POD.pointer(r)) else { return At { schema, ..self } };
        let name = reference.and_then(|r| r.rsplit('.').next()).unwrap_or(self.owner);
        At { schema: definition, owner: name, ..self }
    }

    fn walk(self, path: &str, value: &Value, problems: &mut SpecProblems) {
        match value {
            Value::Object(map) => {
                if let Some(name) = self.part.filter(|_| self.keeps_all()) {
                    return At::core(name).walk(path, value, problems);
                }
                for (key, inner) in map {
                    self.field(path, key, inner, problems);
                }
            }
            Value::Array(items) => {
                if let Some(of) = self.schema.get("items") {
                    for (i, item) in items.iter().enumerate() {
                        self.inner(of).walk(&format!("{path}[{i}]"), item, problems);
                    }
                }
            }
            _ => {}
        }
    }

    fn field(self, path: &str, key: &str, value: &Value, problems: &mut SpecProblems) {
        let path = format!("{path}.{key}");
        let known = self.schema.get("properties").and_then(Value::as_object);
        if let Some(schema) = known.and_then(|k| k.get(key)) {
            let part = PARTS.iter().find(|(field, _)| *field == key).map(|(_, name)| *name);
            return At { part, ..self.inner(schema) }.walk(&path, value, problems);
        }
        match self.schema.get("additionalProperties") {
            Some(any @ Value::Object(_)) => self.inner(any).walk(&path, value, problems),
            Some(Value::Bool(true)) => {}
            _ if self.keeps_all() => {}
            // A value where an object of no fields is expected (a quantity, say) is a matter of types.
            _ => {
                if let Some(known) = known {
                    problems.add(path, no_field(self.owner, known.keys(), key));
                }
            }
        }
    }

    fn keeps_all(self) -> bool {
        self.schema.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true))
    }
}

fn no_field<'a>(owner: &str, known: impl Iterator<Item = &'a String>, key: &str) -> String {
    let key = key.to_lowercase();
    let near = known
        .filter_map(|known| {
            let other = known.to_lowercase();
            let distance = strsim::damerau_levenshtein(&key, &other);
            let begins = other.len() >= BEGINNING && key.starts_with(&other);
            let close = distance <= 1.max(known.len() / 3);
            // One that is close goes before one that only begins alike.
            (close || begins).then_some((!close, distance, known))
        })
        .min();
    match near {
        Some((_, _, known)) => format!("is not a field of {owner}; did you mean `{known}`?"),
        None => format!("is not a field of {owner}; remove it"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(spec: &Value) -> Vec<String> {
        fields(&json!({ "spec": spec })).0.iter().map(|p| format!("{} {}", p.path, p.message)).collect()
    }

    #[test]
    fn misspelt_fields_are_found_at_any_depth_with_the_nearest_name() {
        let found = told(&json!({
            "minReplica": 2,
            "scalingPolicy": {"config": {"anything": {"goes": 1}}, "metrics": [{"type": "Resource", "ressource": {}}]},
            "zzz": 1,
        }));
        assert_eq!(
            found,
            [
                "spec.minReplica is not a field of ElasticJob; did you mean `minReplicas`?",
                "spec.scalingPolicy.metrics[0].ressource is not a field of ElasticJob; did you mean `resource`?",
                "spec.zzz is not a field of ElasticJob; remove it",
            ]
        );
    }

    #[test]
    fn pod_templates_and_short_forms_are_held_against_core_v1() {
        let found = told(&json!({
            "template": {
                "metadata": {"label": {}},
                "spec": {
                    "containers": [{"name": "t", "comand": ["a"], "enviroment": [], "resources": {"limit": {}}}],
                    "volumes": [{"name": "v", "emptydir": {}}],
                },
                "sepc": {},
            },
            "master": {"template": {"spec": {"hostnetwork": true}}},
            "env": [{"name": "A", "vlaue": "1"}],
            "volumes": [{"name": "d", "persistentVolumeClaim": {"claimname": "c"}}],
            "volumeMounts": [{"name": "d", "mountpath": "/d"}],
            "affinity": {"nodeAfinity": {}},
            "topologySpreadConstraints": [{"maxskew": 1}],
        }));
        assert_eq!(
            found,
            [
                "spec.affinity.nodeAfinity is not a field of Affinity; did you mean `nodeAffinity`?",
                "spec.env[0].vlaue is not a field of EnvVar; did you mean `value`?",
                "spec.master.template.spec.hostnetwork is not a field of PodSpec; did you mean `hostNetwork`?",
                "spec.template.metadata.label is not a field of ObjectMeta; did you mean `labels`?",
                "spec.template.sepc is not a field of PodTemplateSpec; did you mean `spec`?",
                "spec.template.spec.containers[0].comand is not a field of Container; did you mean `command`?",
                "spec.template.spec.containers[0].enviroment is not a field of Container; did you mean `env`?",
                "spec.template.spec.containers[0].resources.limit is not a field of ResourceRequirements; did you mean `limits`?",
                "spec.template.spec.volumes[0].emptydir is not a field of Volume; did you mean `emptyDir`?",
                "spec.topologySpreadConstraints[0].maxskew is not a field of TopologySpreadConstraint; did you mean `maxSkew`?",
                "spec.volumeMounts[0].mountpath is not a field of VolumeMount; did you mean `mountPath`?",
                "spec.volumes[0].persistentVolumeClaim.claimname is not a field of PersistentVolumeClaimVolumeSource; did you mean `claimName`?",
            ]
        );
    }

    #[test]
    fn quantities_lists_maps_and_selectors_are_no_unknown_fields() {
        let job = json!({
            "replicas": 2, "env": [{"name": "A", "value": "1"}], "replicaSizes": {"list": [1, 2]},
            "scalingPolicy": {"metrics": [{"type": "Pods", "pods": {
                "metric": {"name": "q", "selector": {"matchLabels": {"a": "b"}}},
                "target": {"type": "AverageValue", "averageValue": "500m"},
            }}]},
            "template": {
                "metadata": {"labels": {"any": "label"}, "annotations": {"any/annotation": "x"}},
                "spec": {
                    "nodeSelector": {"any": "label"},
                    "containers": [{
                        "name": "t",
                        "resources": {"requests": {"cpu": 1, "example.com/gpu": "1"}},
                        "readinessProbe": {"httpGet": {"port": "http"}},
                        "ports": [{"containerPort": 80}],
                    }],
                    "volumes": [{"name": "c", "csi": {"driver": "d", "volumeAttributes": {"any": "thing"}}}],
                    "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                        {"topologyKey": "k", "labelSelector": {"matchLabels": {"a": "b"}}},
                    ]}},
                },
            },
        });
        assert_eq!(told(&job), Vec::<String>::new());
        assert!(fields(&json!({"spec": 7})).is_empty());
        assert!(in_pods(&ElasticJob::default()).is_empty());
    }
}
