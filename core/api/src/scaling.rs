//! `spec.scalingPolicy` and `spec.placementPolicy`: the first with the fields of HPA v2, the shape and names unchanged.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::schema;

/// Who decides how many workers a job has.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = crate::crd::scaling_rules()))]
pub struct ScalingPolicy {
    /// Fewest workers the policy may ask for; intersected with the job's own range. Default: the job's
    /// `minReplicas`, or 1 as in HPA where only `maxReplicas` is given here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub min_replicas: Option<i64>,
    /// Most workers the policy may ask for; intersected with the job's own range. Default: the job's `maxReplicas`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub max_replicas: Option<i64>,
    /// Metrics and their targets, as in HPA v2. Without a `module` the built-in `hpa` policy decides by them; a
    /// module gets them with their targets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub metrics: Vec<MetricSpec>,
    /// Rates and stabilisation windows, as in HPA v2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behavior: Option<Behavior>,
    /// Name of the policy module to ask. Default: `hpa`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub module: Option<String>,
    /// Config of the module; what it may hold is shown by `eto policy describe`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_object")]
    pub config: Option<Value>,
    /// `Auto`: decide and act. `Recommend`: decide and show. `"Off"`: do not ask
    /// (in quotes: YAML reads a bare Off as false). Default `Auto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<PolicyMode>,
    /// While the module can't answer: `Hold` the size, or ask the `BuiltIn` policy (needs `metrics`). Default `Hold`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_policy: Option<FailurePolicy>,
}

/// Who decides where workers run and which are given up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlacementPolicy {
    /// Name of the policy module to ask.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub module: String,
    /// Config of the module.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_object")]
    pub config: Option<Value>,
    /// As in `scalingPolicy`. Default `Auto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<PolicyMode>,
}

/// Who applies a policy's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PolicyMode {
    Auto,
    Recommend,
    Off,
}

/// What happens while a policy can't answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum FailurePolicy {
    Hold,
    BuiltIn,
}

/// One metric: `type` says which of the other fields is set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MetricSpec {
    /// `Resource`, `ContainerResource`, `Pods`, `Object` or `External`.
    #[serde(rename = "type")]
    pub kind: String,
    /// CPU, memory or GPUs of the workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<ResourceMetric>,
    /// A resource of one container of each worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_resource: Option<ContainerResourceMetric>,
    /// A metric with one value per worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pods: Option<PodsMetric>,
    /// A metric of one object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<ObjectMetric>,
    /// A metric of no object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external: Option<ExternalMetric>,
}

/// `resource` of a metric.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourceMetric {
    /// `cpu`, `memory`, `nvidia.com/gpu` or `nvidia.com/mig-...`. Either of the two GPU names means all GPUs and MIG
    /// instances of a worker. GPUs of other makers have no built-in signal: use a metric of type Pods.
    pub name: String,
    pub target: MetricTarget,
}

/// `containerResource` of a metric.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContainerResourceMetric {
    /// Name of the container.
    pub container: String,
    /// Name of the resource, as for `resource`.
    pub name: String,
    pub target: MetricTarget,
}

/// `pods` of a metric.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodsMetric {
    pub metric: MetricIdentifier,
    pub target: MetricTarget,
}

/// `object` of a metric.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectMetric {
    pub described_object: DescribedObject,
    pub metric: MetricIdentifier,
    pub target: MetricTarget,
}

/// `external` of a metric.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExternalMetric {
    pub metric: MetricIdentifier,
    pub target: MetricTarget,
}

/// The object that an `Object` metric describes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DescribedObject {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
    pub kind: String,
    pub name: String,
}

/// Name and labels of a metric.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MetricIdentifier {
    pub name: String,
    /// Which of the metric's series count, by their labels: `matchLabels` and `matchExpressions`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_object")]
    pub selector: Option<Value>,
}

impl MetricIdentifier {
    /// The selector as in metav1; the error says what of it can't be read.
    pub fn label_selector(&self) -> Result<LabelSelector, String> {
        let Some(value @ Value::Object(selector)) = &self.selector else { return Ok(LabelSelector::default()) };
        let known = ["matchLabels", "matchExpressions"];
        if let Some(other) = selector.iter().find(|(k, v)| !known.contains(&k.as_str()) && !is_empty(v)) {
            return Err(format!("`{}` is not a part of a selector; use `matchLabels` or `matchExpressions`", other.0));
        }
        LabelSelector::deserialize(value).map_err(|e| {
            let why = crate::decode::without_value(&e.to_string());
            format!(
                "{why}; `matchLabels` maps text to text, and each of `matchExpressions` has key, operator and values"
            )
        })
    }
}

fn is_empty(v: &Value) -> bool {
    match v {
        Value::Null => true,
        Value::Array(a) => a.is_empty(),
        Value::Object(o) => o.is_empty(),
        _ => false,
    }
}

/// What a metric is aimed at.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MetricTarget {
    /// `Utilization`, `AverageValue` or `Value`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Per cent of the request, averaged over the workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 2_147_483_647_i64))]
    pub average_utilization: Option<i64>,
    /// Averaged over the workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity")]
    pub average_value: Option<Value>,
    /// Of the whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity")]
    pub value: Option<Value>,
}

/// Rates and windows, as in HPA v2.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Behavior {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale_up: Option<ScalingRules>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale_down: Option<ScalingRules>,
}

/// Rules of one direction.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScalingRules {
    /// For how long past recommendations count, in seconds. Default: HPA's (up 0, down 300); up 60 for a module.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 3600))]
    pub stabilization_window_seconds: Option<i64>,
    /// `Max`, `Min` or `Disabled`. Default `Max`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub select_policy: Option<String>,
    /// Rates. Default: HPA's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub policies: Option<Vec<RatePolicy>>,
    /// Relative distance from the target inside which nothing is done. Default 0.1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity")]
    pub tolerance: Option<Value>,
}

/// One rate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RatePolicy {
    /// `Pods` or `Percent`.
    #[serde(rename = "type")]
    pub kind: String,
    /// How much per period, above 0.
    #[schemars(range(min = 1, max = 2_147_483_647_i64))]
    pub value: i64,
    /// Length of the period in seconds, 1 to 1800.
    #[schemars(range(min = 1, max = 1800))]
    pub period_seconds: i64,
}
