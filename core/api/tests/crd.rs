//! The CRD keeps what it promises: small, structural where it matters, lenient to read.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use eto_api::{ElasticJob, crd};
use serde_json::json;

#[test]
fn the_crd_fits_into_an_annotation() {
    let size = serde_json::to_vec(&crd()).unwrap().len();
    assert!(size < 64 * 1024, "{size} bytes; `kubectl apply` keeps it in an annotation of at most 256 KiB");
}

#[test]
fn scale_and_columns_are_there() {
    let crd = crd();
    let version = &crd.spec.versions[0];
    let scale = version.subresources.as_ref().unwrap().scale.as_ref().unwrap();
    assert_eq!(scale.spec_replicas_path, ".spec.replicas");
    assert_eq!(scale.status_replicas_path, ".status.replicas");
    assert_eq!(scale.label_selector_path.as_deref(), Some(".status.selector"));
    let columns: Vec<_> = version.additional_printer_columns.iter().flatten().map(|c| c.name.as_str()).collect();
    assert_eq!(columns, ["Phase", "Desired", "Ready", "Min", "Max", "Policy", "Reason", "Age"]);
    assert_eq!(crd.spec.names.short_names.as_deref(), Some(&["ej".to_string()][..]));
}

/// An HPA takes the paths of the subresource, and a selector that is a string.
#[test]
fn trainer_1626_1645_what_an_hpa_reads_is_where_it_looks_for_it() {
    let value = serde_json::to_value(crd()).unwrap();
    let version = &value["spec"]["versions"][0];
    let schema = &version["schema"]["openAPIV3Schema"]["properties"];
    let (scale, of) = (&version["subresources"]["scale"], |part: &str, field: &str| {
        schema[part]["properties"][field]["type"].clone()
    });
    assert_eq!(scale["labelSelectorPath"], ".status.selector");
    assert_eq!((of("status", "selector"), of("status", "replicas")), (json!("string"), json!("integer")));
    assert_eq!((&scale["specReplicasPath"], of("spec", "replicas")), (&json!(".spec.replicas"), json!("integer")));
}

#[test]
fn the_schema_has_its_defaults_rules_and_open_parts() {
    let value = serde_json::to_value(crd()).unwrap();
    let schema = &value["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    let spec = &schema["properties"]["spec"];
    // The API server defaults a null only where there may be none.
    let of_type = &spec["properties"]["replicaTypes"]["items"]["properties"]["replicas"];
    for replicas in [&spec["properties"]["replicas"], of_type] {
        assert_eq!((&replicas["default"], &replicas["nullable"]), (&json!(1), &json!(null)));
    }
    for open in ["template", "affinity"] {
        assert_eq!(spec["properties"][open]["x-kubernetes-preserve-unknown-fields"], json!(true), "{open}");
    }
    for open in ["volumes", "volumeMounts", "env", "topologySpreadConstraints"] {
        let items = &spec["properties"][open]["items"];
        assert_eq!(items["x-kubernetes-preserve-unknown-fields"], json!(true), "{open}");
    }
    let rules = |s: &serde_json::Value| s["x-kubernetes-validations"].as_array().map_or(0, Vec::len);
    assert!(rules(schema) >= 2 && rules(spec) >= 6, "{schema}");
    assert!(rules(&spec["properties"]["scalingPolicy"]) >= 2);
    assert!(rules(&spec["properties"]["replicaSizes"]) >= 1);
    let conditions = &schema["properties"]["status"]["properties"]["conditions"];
    assert_eq!(conditions["x-kubernetes-list-map-keys"], json!(["type"]));
    assert_eq!(schema["properties"]["status"]["x-kubernetes-map-type"], json!("atomic"));
    // A nullable or defaulted status field would make the API server rewrite what the operator stored.
    assert!(!schema["properties"]["status"].to_string().contains("\"default\":"), "{}", schema["properties"]["status"]);
}

#[test]
fn one_broken_object_does_not_break_a_list() {
    let list: kube::core::ObjectList<ElasticJob> = serde_json::from_value(json!({
        "apiVersion": "elastic.ai/v1alpha1", "kind": "ElasticJobList", "metadata": {},
        "items": [
            {"apiVersion": "elastic.ai/v1alpha1", "kind": "ElasticJob", "metadata": {"name": "bad"},
             "spec": {"replicas": "three"}, "status": {"conditions": "none"}},
            {"apiVersion": "elastic.ai/v1alpha1", "kind": "ElasticJob", "metadata": {"name": "good"},
             "spec": {"replicas": 3}, "status": {"phase": "Running"}},
        ],
    }))
    .unwrap();
    let [bad, good] = &list.items[..] else { panic!("two items") };
    assert!(
        bad.spec.undecodable.as_deref().is_some_and(|m| m == "spec.replicas: must be a whole number, and is a string"),
        "{:?}",
        bad.spec.undecodable
    );
    assert!(bad.status.as_ref().unwrap().undecodable.is_some());
    assert_eq!(good.spec.replicas, Some(3));
    assert_eq!(good.status.as_ref().unwrap().phase, "Running");
}

#[test]
fn what_is_read_is_written_back() {
    let job = json!({
        "apiVersion": "elastic.ai/v1alpha1", "kind": "ElasticJob", "metadata": {"name": "a"},
        "spec": {
            "replicas": 3, "minReplicas": 2, "frameworkType": "JAX", "env": [{"name": "A", "value": "1"}],
            "scalingPolicy": {"metrics": [{"type": "Resource", "resource": {"name": "cpu",
                "target": {"type": "Utilization", "averageUtilization": 70}}}]},
            "template": {"spec": {"containers": [{"name": "c", "image": "i", "newField": {"x": 1}}]}},
        },
    });
    let read: ElasticJob = serde_json::from_value(job.clone()).unwrap();
    assert_eq!(serde_json::to_value(read).unwrap(), job);
}
