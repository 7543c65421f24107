//! The `CustomResourceDefinition`, with the rules that the API server checks.

use std::collections::BTreeMap;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool, ValidationRule,
};
use kube::CustomResourceExt;
use serde_json::{Value, json};

use crate::ElasticJob;

/// Longest name of a job: host names of its pods, `<job>-worker-<index>`, have at most 63 characters and an index up
/// to five digits.
pub const MAX_NAME: usize = 50;

/// Most workers that a job can have.
pub const MAX_WORKERS: u32 = 4096;
/// Most workers that a `TensorFlow` job can have.
pub const MAX_TENSORFLOW_WORKERS: u32 = 512;

/// The CRD of `ElasticJob` as `deploy/crds.yaml` carries it.
pub fn crd() -> CustomResourceDefinition {
    let mut crd = ElasticJob::crd();
    for version in &mut crd.spec.versions {
        if let Some(schema) = version.schema.as_mut().and_then(|s| s.open_api_v3_schema.as_mut()) {
            schema.x_kubernetes_validations = Some(root_rules());
            // Rust's defaults of the status are for reading alone; as defaults of the API server they would add fields
            // to what the operator writes.
            if let Some(status) = schema.properties.as_mut().and_then(|p| p.get_mut("status")) {
                drop_defaults(status);
                // The operator alone writes it. Without this the API server keeps a book of every field's owner in
                // each object and goes through it with each write.
                status.x_kubernetes_map_type = Some("atomic".to_owned());
            }
        }
    }
    crd
}

fn drop_defaults(schema: &mut JSONSchemaProps) {
    schema.default = None;
    for property in schema.properties.iter_mut().flat_map(BTreeMap::values_mut) {
        drop_defaults(property);
    }
    match schema.items.as_mut() {
        Some(JSONSchemaPropsOrArray::Schema(items)) => drop_defaults(items),
        Some(JSONSchemaPropsOrArray::Schemas(items)) => items.iter_mut().for_each(drop_defaults),
        None => {}
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = schema.additional_properties.as_mut() {
        drop_defaults(values);
    }
}

fn root_rules() -> Vec<ValidationRule> {
    vec![
        ValidationRule {
            rule: format!("size(self.metadata.name) <= {MAX_NAME}"),
            message: Some(format!(
                "metadata.name must have at most {MAX_NAME} characters: pods get the host name <name>-worker-<index>, \
                 which is limited to 63"
            )),
            ..ValidationRule::default()
        },
        ValidationRule {
            rule: "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')".to_string(),
            message: Some(
                "metadata.name must begin with a letter and hold lower-case letters, digits and '-' only: the job's \
                 service and host names are made from it"
                    .to_string(),
            ),
            ..ValidationRule::default()
        },
    ]
}

fn rule(rule: &str, message: &str) -> Value {
    json!({ "rule": rule, "message": message })
}

/// Rules on `spec`. `replicas` has a default, and so has that of a type, so they are always there when they run: a null, which
/// neither may be, gets it too.
pub(crate) fn spec_rules() -> Value {
    let mut all = vec![
        rule(
            "!has(self.replicas) || self.replicas >= 1",
            "replicas must be at least 1; to stop a job set suspend: true",
        ),
        rule(
            "!has(self.minReplicas) || !has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",
            "minReplicas must not be above maxReplicas",
        ),
        rule(
            "!has(self.minReplicas) || !has(self.replicas) || self.replicas >= self.minReplicas",
            "replicas must not be below minReplicas",
        ),
        rule(
            "!has(self.maxReplicas) || !has(self.replicas) || self.replicas <= self.maxReplicas",
            "replicas must not be above maxReplicas",
        ),
        rule(
            "!has(self.scalingPolicy) || !has(self.scalingPolicy.minReplicas) || !has(self.replicas) || \
             self.replicas >= self.scalingPolicy.minReplicas",
            "replicas must not be below scalingPolicy.minReplicas",
        ),
        rule(
            "!has(self.scalingPolicy) || !has(self.scalingPolicy.maxReplicas) || !has(self.replicas) || \
             self.replicas <= self.scalingPolicy.maxReplicas",
            "replicas must not be above scalingPolicy.maxReplicas",
        ),
        rule(
            "has(self.frameworkType) == has(oldSelf.frameworkType) && \
             (!has(self.frameworkType) || self.frameworkType == oldSelf.frameworkType)",
            "frameworkType can't be changed; make a new job",
        ),
        rule(
            "!has(self.elasticity) || !has(self.elasticity.mode) || self.elasticity.mode != 'Native' || \
             !has(self.frameworkType) || self.frameworkType == 'PyTorch'",
            "elasticity.mode Native needs frameworkType PyTorch: it is the elasticity of torchrun",
        ),
        rule(
            &at_most(MAX_WORKERS),
            &format!(
                "a job can have at most {MAX_WORKERS} workers, since each is told of all others: lower maxReplicas (or \
                 replicas), and give each worker more devices and nprocPerNode processes"
            ),
        ),
        rule(
            &format!(
                "!has(self.frameworkType) || self.frameworkType != 'TensorFlow' || {}",
                at_most(MAX_TENSORFLOW_WORKERS)
            ),
            &format!(
                "a TensorFlow job can have at most {MAX_TENSORFLOW_WORKERS} workers, since the variable TF_CONFIG names all \
                 of them: lower maxReplicas (or replicas)"
            ),
        ),
    ];
    all.extend(types_rules());
    Value::Array(all)
}

/// Rules on `spec.replicaTypes` and what it goes with.
fn types_rules() -> [Value; 10] {
    [
        rule(
            "!has(self.replicaTypes) || size(self.replicaTypes) == 0 || (has(self.frameworkType) && \
             self.frameworkType in ['TensorFlow', 'Custom'])",
            "replicaTypes needs frameworkType TensorFlow or Custom: members of other frameworks are all workers",
        ),
        rule(
            "!has(self.replicaTypes) || !has(self.frameworkType) || self.frameworkType != 'TensorFlow' || \
             self.replicaTypes.all(t, t.name in ['chief', 'ps', 'evaluator'])",
            "replicaTypes of TensorFlow are chief, ps and evaluator",
        ),
        rule(
            "!has(self.replicaTypes) || self.replicaTypes.all(t, !(t.name in ['worker', 'master']))",
            "replicaTypes must not be named worker or master: members without a type are workers, and index 0 has the first \
             type",
        ),
        rule(
            "!has(self.replicaTypes) || self.replicaTypes.all(t, t.name != 'chief' || t.replicas == 1)",
            "replicaTypes can have one chief only",
        ),
        rule(
            "!has(self.replicaTypes) || !has(self.minReplicas) || \
             (has(self.scalingPolicy) && has(self.scalingPolicy.minReplicas)) || \
             self.replicaTypes.map(t, t.replicas).sum() < self.minReplicas",
            "replicaTypes must have fewer members than minReplicas: they count towards it, and one worker at least must be \
             left",
        ),
        rule(
            "!has(self.replicaTypes) || !has(self.scalingPolicy) || !has(self.scalingPolicy.minReplicas) || \
             (has(self.minReplicas) && self.replicaTypes.map(t, t.replicas).sum() < self.minReplicas) || \
             self.replicaTypes.map(t, t.replicas).sum() < self.scalingPolicy.minReplicas",
            "replicaTypes must have fewer members than scalingPolicy.minReplicas: they count towards it, and one worker at \
             least must be left",
        ),
        rule(
            "!has(self.replicaTypes) || !has(self.replicas) || \
             self.replicaTypes.map(t, t.replicas).sum() < self.replicas",
            "replicaTypes must have fewer members than replicas: they count towards it, and one worker at least must be left",
        ),
        rule(
            "!has(self.replicaTypes) || !has(self.master)",
            "master can't be set beside replicaTypes: give the first type a template of its own",
        ),
        rule(
            "!has(self.replicaTypes) || !has(self.elasticity) || !has(self.elasticity.globalBatchSize)",
            "elasticity.globalBatchSize can't be set beside replicaTypes",
        ),
        rule(
            "has(self.replicaTypes) == has(oldSelf.replicaTypes) && (!has(self.replicaTypes) || \
             (self.replicaTypes.map(t, t.name) == oldSelf.replicaTypes.map(t, t.name) && \
             self.replicaTypes.map(t, t.replicas) == oldSelf.replicaTypes.map(t, t.replicas)))",
            "names and numbers of replicaTypes can't be changed; make a new job",
        ),
    ]
}

/// The largest size of the job is no more than this: the smaller of its maximum and its scaling policy's, else `replicas`.
fn at_most(n: u32) -> String {
    let policy = "has(self.scalingPolicy) && has(self.scalingPolicy.maxReplicas)";
    format!(
        "((has(self.maxReplicas) && self.maxReplicas <= {n}) || ({policy} && self.scalingPolicy.maxReplicas <= {n}) || \
         (!has(self.maxReplicas) && !({policy}) && (!has(self.replicas) || self.replicas <= {n})))"
    )
}

/// Rules on `spec.scalingPolicy`.
pub(crate) fn scaling_rules() -> Value {
    json!([
        rule(
            "has(self.module) || (has(self.metrics) && size(self.metrics) > 0) || \
             (has(self.mode) && self.mode == 'Off')",
            "scalingPolicy needs a module or at least one entry of metrics"
        ),
        rule(
            "!has(self.minReplicas) || !has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",
            "scalingPolicy.minReplicas must not be above scalingPolicy.maxReplicas"
        ),
        rule(
            "!has(self.failurePolicy) || self.failurePolicy != 'BuiltIn' || \
             (has(self.metrics) && size(self.metrics) > 0)",
            "failurePolicy BuiltIn needs metrics: the built-in policy decides by them"
        ),
    ])
}

/// Rules on `spec.elasticity`.
pub(crate) fn elasticity_rules() -> Value {
    json!([
        rule(
            "!has(self.maxMicroBatchSize) || has(self.globalBatchSize)",
            "elasticity.maxMicroBatchSize needs globalBatchSize: it limits a process's share of that"
        ),
        rule(
            "!has(self.hangStartTimeoutSeconds) || has(self.hangTimeoutSeconds)",
            "elasticity.hangStartTimeoutSeconds needs hangTimeoutSeconds, which switches the detection of hangs on"
        ),
    ])
}

/// Rules on `spec.replicaSizes`.
pub(crate) fn sizes_rules() -> Value {
    json!([rule("has(self.list) != has(self.multipleOf)", "replicaSizes needs exactly one of list and multipleOf")])
}
