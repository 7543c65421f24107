#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use super::*;

const NOW: Time = Time(1_700_000_000_000);

fn body(rows: &[(&str, f64)]) -> Vec<u8> {
    let rows: Vec<_> = rows
        .iter()
        .map(|(labels, value)| {
            let labels: serde_json::Map<String, serde_json::Value> = labels
                .split(',')
                .filter_map(|pair| pair.split_once('='))
                .map(|(k, v)| (k.to_owned(), serde_json::Value::String(v.to_owned())))
                .collect();
            serde_json::json!({"metric": labels, "value": [5000.0, value.to_string()]})
        })
        .collect();
    serde_json::json!({"status": "success", "data": {"resultType": "vector", "result": rows}}).to_string().into_bytes()
}

fn folded(shape: Shape, values: &[(&str, f64)], times: Option<&[(&str, f64)]>) -> SignalData {
    let mut data = SignalData::default();
    let bodies = Bodies { shape, values: body(values), times: times.map(body) };
    fold(&mut data, &bodies, &BTreeSet::from(["a".to_owned(), "b".to_owned()]), "namespace", NOW).unwrap();
    data
}

#[test]
fn pods_by_plain_and_exported_labels() {
    let data = folded(
        Shape::Pods,
        &[
            ("namespace=a,pod=w-0", 1.0),
            ("namespace=monitoring,pod=x,exported_namespace=a,exported_pod=w-1", 2.0),
            ("namespace=kube-system,exported_namespace=b,pod=w-2", 3.0),
            ("namespace=monitoring,exported_namespace=a,exported_pod=w-0", 1.5),
            ("namespace=other,pod=w-9", 9.0),
            ("pod=w-8", 9.0),
            ("namespace=a", 9.0),
        ],
        Some(&[
            ("namespace=a,pod=w-0", 4990.0),
            ("namespace=monitoring,exported_namespace=a,exported_pod=w-0", 4999.0),
            ("namespace=monitoring,pod=x,exported_namespace=a,exported_pod=w-1", 5001.0),
        ]),
    );
    assert_eq!(data.per_pod["a"]["w-0"], Sample { value: 1.5, at: Time(NOW.0 - 1000) });
    assert_eq!(data.per_pod["a"]["w-1"], Sample { value: 2.0, at: NOW });
    // No time known: as old as can be, so never taken for fresh.
    assert_eq!(data.per_pod["b"]["w-2"], Sample { value: 3.0, at: Time(0) });
    assert_eq!(data.per_pod.len(), 2);
    assert_eq!(data.per_pod["a"].len(), 2);
}

#[test]
fn custom_results_by_pod_or_for_the_job() {
    let shape = Shape::Custom { only: None };
    let data = folded(
        shape,
        &[("namespace=a,pod=w-0", 1.0), ("namespace=b", 7.0), ("namespace=c", 1.0)],
        Some(&[
            ("namespace=a,pod=w-0,eto_selector=0", 4999.0),
            ("namespace=a,pod=w-0,eto_selector=1", 4000.0),
            ("namespace=a,pod=w-1,eto_selector=1", 4998.0),
            ("namespace=b,eto_selector=0", 4990.0),
        ]),
    );
    assert_eq!(data.per_pod["a"]["w-0"], Sample { value: 1.0, at: Time(NOW.0 - 1_000_000) });
    assert_eq!(data.per_namespace["b"], Sample { value: 7.0, at: Time(NOW.0 - 10_000) });
    assert!(!data.per_namespace.contains_key("c"));
    assert!(data.trouble.is_none() && data.namespace_trouble.is_empty());
}

#[test]
fn a_series_without_namespace_belongs_to_the_only_one_asked_for() {
    let data = folded(Shape::Custom { only: Some("a".to_owned()) }, &[("", 3.0)], None);
    assert_eq!(data.per_namespace["a"], Sample { value: 3.0, at: NOW });
}

#[test]
fn several_series_where_one_is_due_are_that_namespaces_trouble() {
    let data = folded(
        Shape::Custom { only: None },
        &[
            ("namespace=a,x=1", 1.0),
            ("namespace=a,x=2", 2.0),
            ("namespace=b,pod=w,x=1", 1.0),
            ("namespace=b,pod=w,x=2", 1.0),
        ],
        None,
    );
    assert!(data.per_namespace.is_empty());
    assert!((data.per_key["a"][r#"x="2""#].value - 2.0).abs() < f64::EPSILON, "each can be asked for by its labels");
    assert!(!data.per_pod.contains_key("b"));
    assert!(data.namespace_trouble["a"].contains("2 series"), "{data:?}");
    assert!(data.namespace_trouble["b"].contains("pod w"), "{data:?}");
    assert!(data.trouble.is_none(), "others need not know");
}

#[test]
fn age_counts_back_from_now_by_the_sources_clock() {
    assert_eq!(sampled(NOW, 100.0, 97.5), Time(NOW.0 - 2500));
    assert_eq!(sampled(NOW, 100.0, 101.0), NOW);
    assert_eq!(sampled(NOW, 100.0, f64::NAN), NOW);
    assert_eq!(sampled(NOW, f64::INFINITY, 0.0), Time(0));
}
