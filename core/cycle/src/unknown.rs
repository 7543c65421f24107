//! Fields that `ElasticJob` does not have.
//!
//! An API server refuses (or drops) a misspelt field by the CRD's schema. Where there is no API server the same schema
//! is asked here: a `minReplica` that is silently ignored is a job of the wrong size.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use serde_json::Value;

use crate::SpecProblems;

/// The fields of `spec` that the API does not have, each with the nearest one that it has.
pub fn fields(object: &Value) -> SpecProblems {
    let mut problems = SpecProblems::default();
    let crd = eto_api::crd();
    let schema = crd.spec.versions.first().and_then(|v| v.schema.as_ref()).and_then(|s| s.open_api_v3_schema.as_ref());
    let spec = schema.and_then(|s| s.properties.as_ref()).and_then(|p| p.get("spec"));
    if let (Some(schema), Some(value)) = (spec, object.get("spec")) {
        walk("spec", schema, value, &mut problems);
    }
    problems
}

fn walk(path: &str, schema: &JSONSchemaProps, value: &Value, problems: &mut SpecProblems) {
    match value {
        Value::Object(map) => {
            for (key, inner) in map {
                let inner_path = format!("{path}.{key}");
                match (schema.properties.as_ref().and_then(|p| p.get(key)), &schema.additional_properties) {
                    (Some(known), _) => walk(&inner_path, known, inner, problems),
                    (None, Some(JSONSchemaPropsOrBool::Schema(any))) => walk(&inner_path, any, inner, problems),
                    (None, Some(JSONSchemaPropsOrBool::Bool(true))) => {}
                    _ if schema.x_kubernetes_preserve_unknown_fields == Some(true) => {}
                    // A value where an object of no fields is expected (a quantity, say) is a matter of types.
                    _ if schema.properties.is_none() => {}
                    _ => problems.add(inner_path, no_field(schema, key)),
                }
            }
        }
        Value::Array(items) => {
            if let Some(JSONSchemaPropsOrArray::Schema(of)) = &schema.items {
                for (i, item) in items.iter().enumerate() {
                    walk(&format!("{path}[{i}]"), of, item, problems);
                }
            }
        }
        _ => {}
    }
}

fn no_field(schema: &JSONSchemaProps, key: &str) -> String {
    let near = schema
        .properties
        .iter()
        .flat_map(|p| p.keys())
        .map(|known| (strsim::damerau_levenshtein(&key.to_lowercase(), &known.to_lowercase()), known))
        .filter(|(distance, known)| *distance <= 1.max(known.len() / 3))
        .min();
    match near {
        Some((_, known)) => format!("is not a field of ElasticJob; did you mean `{known}`?"),
        None => "is not a field of ElasticJob; remove it".to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn misspelt_fields_are_found_at_any_depth_with_the_nearest_name() {
        let found = fields(&json!({"spec": {
            "minReplica": 2,
            "scalingPolicy": {"config": {"anything": {"goes": 1}}, "metrics": [{"type": "Resource", "ressource": {}}]},
            "template": {"whatever": 1},
            "zzz": 1,
        }}));
        let told: Vec<_> = found.0.iter().map(|p| (p.path.as_str(), p.message.as_str())).collect();
        assert_eq!(
            told,
            [
                ("spec.minReplica", "is not a field of ElasticJob; did you mean `minReplicas`?"),
                ("spec.scalingPolicy.metrics[0].ressource", "is not a field of ElasticJob; did you mean `resource`?"),
                ("spec.zzz", "is not a field of ElasticJob; remove it"),
            ]
        );
    }

    #[test]
    fn quantities_lists_and_selectors_are_no_unknown_fields() {
        let job = json!({"spec": {
            "replicas": 2, "env": [{"name": "A", "value": "1"}], "replicaSizes": {"list": [1, 2]},
            "scalingPolicy": {"metrics": [{"type": "Pods", "pods": {
                "metric": {"name": "q", "selector": {"matchLabels": {"a": "b"}}},
                "target": {"type": "AverageValue", "averageValue": "500m"},
            }}]},
        }});
        assert!(fields(&job).is_empty());
        assert!(fields(&json!({"spec": 7})).is_empty());
    }
}
