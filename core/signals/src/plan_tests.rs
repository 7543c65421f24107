#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use super::*;

fn id(name: &str, container: Option<&str>, window_s: u32) -> SignalId {
    SignalId { name: name.to_owned(), query: None, container: container.map(ToOwned::to_owned), window_s }
}

fn namespaces(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|n| (*n).to_owned()).collect()
}

fn one(settings: &PrometheusSettings, id: &SignalId) -> Request {
    plan(settings, id, None, &namespaces(&["a", "b"])).unwrap().pop().unwrap()
}

#[test]
fn every_built_in_query_parses_and_is_one_for_all_namespaces() {
    let mut settings = PrometheusSettings::default();
    settings.matchers.insert("cluster".to_owned(), "x\"y".to_owned());
    for name in builtin::ALL {
        for container in [None, Some("trainer")] {
            for window in [0, 60] {
                let plan = plan(&settings, &id(name, container, window), None, &namespaces(&["a", "b"])).unwrap();
                assert_eq!(plan.len(), 1);
                for query in [Some(&plan[0].values), plan[0].times.as_ref()].into_iter().flatten() {
                    promql_parser::parser::parse(query).unwrap_or_else(|e| panic!("{query}: {e}"));
                    assert!(query.contains(r#"cluster="x\"y""#), "{query}");
                }
            }
        }
    }
    assert!(plan(&settings, &id("nosuch", None, 60), None, &namespaces(&["a"])).is_none());
    assert!(plan(&settings, &id(builtin::CPU, None, 60), None, &namespaces(&[])).unwrap().is_empty());
}

#[test]
fn windows_hold_four_scrapes() {
    let mut settings = PrometheusSettings::default();
    assert!(one(&settings, &id(builtin::CPU, None, 30)).values.contains("[30000ms]"));
    assert!(one(&settings, &id(builtin::CPU, None, 0)).values.contains("[60000ms]"));
    settings.scrape_interval = Duration::from_secs(15);
    assert!(one(&settings, &id(builtin::CPU, None, 30)).values.contains("[60000ms]"));
    assert!(one(&settings, &id(builtin::CPU, None, 300)).values.contains("[300000ms]"));
    for (name, query, window_s, averaged) in [
        (builtin::CPU, None, 30, 60),
        (builtin::CPU, None, 300, 300),
        (builtin::THROUGHPUT, None, 30, 60),
        (builtin::GPU, None, 30, 60),
        (builtin::GPU, None, 0, 0),
        (builtin::MEMORY, None, 300, 0),
        (builtin::GPU_MEMORY, None, 300, 0),
        ("queue", Some("sum(queue)"), 300, 0),
    ] {
        assert_eq!(
            averaged_s(&settings, &SignalId { query: query.map(String::from), ..id(name, None, window_s) }),
            averaged,
            "{name} {window_s}"
        );
    }
    // The latest value of a GPU needs no window.
    assert!(!one(&settings, &id(builtin::GPU, None, 0)).values.contains("avg_over_time"));
    assert!(
        one(&settings, &id(builtin::GPU, None, 60)).values.contains("avg_over_time(DCGM_FI_DEV_GPU_UTIL[60000ms])")
    );
}

#[test]
fn throughput_is_one_value_for_each_job_and_samples_come_before_steps() {
    let settings =
        PrometheusSettings { namespace_label: "exported_namespace".to_owned(), ..PrometheusSettings::default() };
    let request = one(&settings, &id(builtin::THROUGHPUT, None, 60));
    assert_eq!(request.shape, Shape::Jobs);
    let (samples, steps) = request.values.split_once(" or ").unwrap();
    assert!(samples.contains("eto_agent_samples_per_second") && steps.contains("eto_agent_steps_per_second"));
    for part in [samples, steps] {
        assert!(part.starts_with("max by (exported_namespace, elastic_job) (avg_over_time("), "{part}");
        assert!(part.contains(r#"exported_namespace=~"a|b",elastic_job!="""#) && part.contains("[60000ms]"), "{part}");
    }
}

#[test]
fn a_container_is_asked_for_under_either_label() {
    let query = one(&PrometheusSettings::default(), &id(builtin::CPU, Some("tr\"ainer"), 60)).values;
    assert!(
        query.contains(r#"container="tr\"ainer""#) && query.contains(r#"exported_container="tr\"ainer""#),
        "{query}"
    );
}

#[test]
fn custom_queries_are_sent_once_where_that_means_the_same() {
    let settings = PrometheusSettings::default();
    let sent = |query: &str, names: &[&str]| {
        let custom = Arc::new(Custom::new(query, "namespace").unwrap());
        let mut id = id("mine", None, 60);
        id.query = Some(query.to_owned());
        plan(&settings, &id, Some(&custom), &namespaces(names)).unwrap()
    };
    let batched = sent("sum by (namespace) (x)", &["a", "b"]);
    assert_eq!(batched.len(), 1);
    assert_eq!(batched[0].values, r#"sum by (namespace) (x{namespace=~"a|b"})"#);
    assert_eq!(batched[0].shape, Shape::Custom { only: None });
    assert_eq!(sent("sum(x)", &["a", "b"])[0].values, r#"sum by (namespace) (x{namespace=~"a|b"})"#);
    assert_eq!(sent("sum(x)", &["a"])[0].values, r#"sum (x{namespace="a"})"#);
    let apart = sent("scalar(sum(x))", &["a", "b"]);
    assert_eq!(apart.len(), 2);
    assert_eq!(apart[1].values, r#"scalar(sum (x{namespace="b"}))"#);
    assert_eq!(apart[1].shape, Shape::Custom { only: Some("b".to_owned()) });
    assert_eq!(sent("x", &["a"])[0].values, r#"x{namespace="a"}"#);
}
