#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use proptest::prelude::*;

use super::*;

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|n| (*n).to_owned()).collect()
}

fn confined(query: &str, names: &[&str]) -> String {
    let custom = Custom::new(query, "namespace").unwrap();
    custom.confined(&Forced::new("namespace", &set(names), std::iter::empty()))
}

#[test]
fn every_selector_is_confined() {
    for (query, expected) in [
        ("up", r#"up{namespace="a"}"#),
        (r#"up{job="x"}"#, r#"up{namespace="a",job="x"}"#),
        (r#"{__name__="up"}"#, r#"{namespace="a",__name__="up"}"#),
        ("rate(steps_total[5m])", r#"rate(steps_total{namespace="a"}[300000ms])"#),
        ("sum by (pod) (x) / sum by (pod) (y)", r#"sum by (pod) (x{namespace="a"}) / sum by (pod) (y{namespace="a"})"#),
        ("x offset 1h", r#"x{namespace="a"} offset 3600000ms"#),
        ("x offset -1m", r#"x{namespace="a"} offset -60000ms"#),
        ("x @ 1700000000.5", r#"x{namespace="a"} @ 1700000000.500"#),
        ("x @ end() offset 5s", r#"x{namespace="a"} @ end() offset 5000ms"#),
        (
            "max_over_time(rate(x[1m])[10m:30s] @ start())",
            r#"max_over_time(rate(x{namespace="a"}[60000ms])[600000ms:30000ms] @ start())"#,
        ),
        ("avg_over_time(x[5m:])", r#"avg_over_time(x{namespace="a"}[300000ms:])"#),
        ("topk by (namespace) (scalar(y), x)", r#"topk by (namespace) (scalar(y{namespace="a"}), x{namespace="a"})"#),
        (
            "x and on (pod) y unless ignoring (z) w",
            r#"x{namespace="a"} and on (pod) y{namespace="a"} unless ignoring (z) w{namespace="a"}"#,
        ),
        ("x * on (pod) group_left (node) y", r#"x{namespace="a"} * on (pod) group_left (node) y{namespace="a"}"#),
        ("x > bool 1", r#"x{namespace="a"} > bool 1"#),
        ("-(x + -1) ^ 2", r#"-(x{namespace="a"} + -1) ^ 2"#),
        ("sum without (instance) (x) # comment", r#"sum without (instance) (x{namespace="a"})"#),
        ("absent(x)", r#"absent(x{namespace="a"})"#),
        (
            r#"label_replace(x, "pod", "$1", "worker", "(.*)")"#,
            r#"label_replace(x{namespace="a"}, "pod", "$1", "worker", "(.*)")"#,
        ),
        ("vector(1)", "vector(1)"),
    ] {
        assert_eq!(confined(query, &["a"]), expected, "{query}");
    }
}

#[test]
fn queries_that_ask_for_the_same_have_one_form() {
    for same in ["sum( q )", "sum(q{})", "sum (\n  q\n) # the backlog"] {
        assert_eq!(normal_form(same), normal_form("sum(q)"), "{same}");
    }
    assert_eq!(normal_form("sum(q{a='b'}) by(pod)"), normal_form(r#"sum by (pod) (q{a="b"})"#));
    assert_ne!(normal_form(r#"sum(q{a="b  c"})"#), normal_form(r#"sum(q{a="b c"})"#));
    assert_eq!(normal_form("sum(q"), None);
}

#[test]
fn values_can_not_break_out_of_their_quotes() {
    let query = r#"x{a="\"} or secret{b=\"", c='`"`', d=`y`, e=~"a|\\d+\n"}"#;
    let text = confined(query, &["a"]);
    assert_eq!(text, r#"x{namespace="a",a="\"} or secret{b=\"",c="`\"`",d="y",e=~"a|\\d+\n"}"#);
    // A namespace is a DNS label in Kubernetes; whatever it is, it stays one value.
    let odd = confined("x", &[r#"a"} or y{z=""#, "b.c|d"]);
    assert_eq!(odd, r#"x{namespace=~"a\\\"\\}\\ or\\ y\\{z\\=\\\"|b\\.c\\|d"}"#);
}

#[test]
fn several_namespaces_and_further_matchers() {
    let further = std::collections::BTreeMap::from([("cluster".to_owned(), "o\"ne".to_owned())]);
    let forced = Forced::new("namespace", &set(&["a-1", "b"]), further.iter());
    let custom = Custom::new("x / y", "namespace").unwrap();
    assert_eq!(
        custom.confined(&forced),
        r#"x{namespace=~"a-1|b",cluster="o\"ne"} / y{namespace=~"a-1|b",cluster="o\"ne"}"#
    );
}

#[test]
fn times_ask_for_each_selector_once() {
    let custom = Custom::new("rate(x[5m]) / (x offset 1h + y @ 17)", "namespace").unwrap();
    let times = custom.times(&Forced::new("namespace", &set(&["a"]), std::iter::empty())).unwrap();
    assert_eq!(
        times,
        r#"label_replace(max by (namespace, pod, exported_pod) (timestamp(x{namespace="a"})), "eto_selector", "0", "", "") or label_replace(max by (namespace, pod, exported_pod) (timestamp(y{namespace="a"} @ 17.000)), "eto_selector", "1", "", "")"#
    );
    assert!(Custom::new("vector(1)", "namespace").unwrap().times(&Forced::none()).is_none());
}

#[test]
fn what_can_not_be_confined_is_refused_with_its_place() {
    for (query, needle, position) in [
        ("", "empty", None),
        ("  # nothing", "not a PromQL query", None),
        ("sum(x", "never closed", Some((1, 4))),
        ("sum(x))", "closes nothing", Some((1, 7))),
        ("x{a=\"b}", "never closed", Some((1, 5))),
        ("x +\n", "an operand is missing", Some((1, 4))),
        ("a * / b", "an operand is missing", Some((1, 5))),
        ("1 +\n  nosuch(x)", "nosuch", Some((2, 3))),
        (r#"x{namespace="other"}"#, "leave that label out", Some((1, 3))),
        (r#"x{namespace=~".*"}"#, "leave that label out", Some((1, 3))),
        (r#"x{job="namespace", namespace!=""}"#, "leave that label out", Some((1, 20))),
        (r#"{__name__=~".+"}"#, "name its one metric", Some((1, 2))),
        (r#"{__name__!="x",job="y"}"#, "name its one metric", Some((1, 2))),
        (r#"{job="x"}"#, "name its metric", Some((1, 2))),
        (r#"{"odd name"}"#, "name its one metric", None),
        (r#"{__name__="x{namespace=\"other\"} or y"}"#, "name its one metric", Some((1, 2))),
        (r#"x{"odd label"="y"}"#, "not a label name", Some((1, 4))),
        (r#"x{a="b" or c="d"}"#, "between matchers", Some((1, 9))),
        (r#"label_replace(x, "namespace", "other", "", "")"#, "can't be written", Some((1, 19))),
        (r#"label_join(x, "namespace", "", "a")"#, "can't be written", Some((1, 16))),
        (r#"label_replace(x, "__name__", "y", "", "")"#, "can't be written", Some((1, 19))),
        (r#"count_values("namespace", x)"#, "can't be written", Some((1, 15))),
        ("info(x)", "other namespaces", Some((1, 1))),
        ("limitk(3, x)", "at random", Some((1, 1))),
        ("x * on (pod) group_left (namespace) y", "can't copy", Some((1, 26))),
        ("x[5m]", "wrap it", None),
        ("x[5m:1m]", "wrap it", None),
        ("\"text\"", "gives a string", None),
        ("rate(x[40d])", "at most 30 days", Some((1, 7))),
        ("max_over_time(x[30d:1s])", "steps", Some((1, 20))),
        ("rate(x[0])", "above zero", Some((1, 7))),
    ] {
        let error = Custom::new(query, "namespace").err().unwrap_or_else(|| panic!("accepted: {query}"));
        assert!(error.reason.contains(needle), "{query}: {error}");
        if position.is_some() {
            assert_eq!(error.position, position, "{query}: {error}");
            assert!(error.to_string().contains("column"), "{error}");
        }
    }
}

#[test]
fn sizes_are_bounded() {
    let refused = |query: &str, needle: &str| {
        let error = Custom::new(query, "namespace").expect_err(needle);
        assert!(error.reason.contains(needle), "{error}");
    };
    refused(&format!("x{{a=\"{}\"}}", "y".repeat(MAX_QUERY_BYTES)), "longer than");
    refused(&format!("{}x{}", "(".repeat(500), ")".repeat(500)), "nests deeper");
    refused(&format!("{}x", "-".repeat(2000)), "nests deeper");
    refused(&["x"; 300].join("*"), "nests deeper");
    let many: Vec<String> = (0..20).map(|i| format!("x{i}")).collect();
    refused(&many.join("+"), "different selectors");
    // Numbers that make the parser itself panic.
    for query in ["x[1e300]", "rate(x[1e400])", "x offset 1e300"] {
        refused(query, "");
    }
}

#[test]
fn the_label_to_confine_by_is_a_setting() {
    let custom = Custom::new(r#"x{namespace="y"}"#, "exported_namespace").unwrap();
    let forced = Forced::new("exported_namespace", &set(&["a"]), std::iter::empty());
    assert_eq!(custom.confined(&forced), r#"x{exported_namespace="a",namespace="y"}"#);
    assert!(Custom::new(r#"x{exported_namespace="y"}"#, "exported_namespace").is_err());
}

#[test]
fn the_namespace_is_kept_where_a_query_drops_it() {
    for (query, together) in [
        ("sum(x)", "sum by (namespace) (x{N})"),
        ("sum by (pod) (x)", "sum by (pod, namespace) (x{N})"),
        ("sum without (namespace, pod) (x)", "sum without (pod) (x{N})"),
        ("sum by (namespace) (sum(x))", "sum by (namespace) (sum by (namespace) (x{N}))"),
        ("topk(3, x)", "topk by (namespace) (3, x{N})"),
        ("x / on (pod) group_left () y", "x{N} / on (pod, namespace) group_left () y{N}"),
        ("x / ignoring (namespace, queue) y", "x{N} / ignoring (queue) y{N}"),
        ("x unless on () y", "x{N} unless on (namespace) y{N}"),
        (
            "max_over_time((sum(x) / sum(y))[5m:1m])",
            "max_over_time((sum by (namespace) (x{N}) / sum by (namespace) (y{N}))[300000ms:60000ms])",
        ),
    ] {
        let custom = Custom::new(query, "namespace").unwrap();
        let forced = Forced::new("namespace", &set(&["a", "b"]), std::iter::empty());
        let expected = together.replace("{N}", r#"{namespace=~"a|b"}"#);
        assert_eq!(custom.confined_together(&forced), Some(expected), "{query}");
    }
}

#[test]
fn what_can_not_keep_the_namespace_is_asked_one_by_one() {
    for (query, batchable) in [
        ("x", true),
        ("rate(x[5m])", true),
        ("sum by (namespace) (x)", true),
        ("sum by (namespace, pod) (rate(x[5m])) * 2", true),
        ("sum without (pod) (x)", true),
        ("2 * -x", true),
        ("time() - x", true),
        ("x > 5", true),
        ("x / y", true),
        ("x / ignoring (pod) y", true),
        ("x * on (namespace, pod) group_left y", true),
        ("x or y", true),
        ("x unless on (namespace) y", true),
        ("clamp_max(x, 5)", true),
        ("histogram_quantile(0.9, rate(x_bucket[5m]))", true),
        ("histogram_quantile(0.9, sum by (le, namespace) (rate(x_bucket[5m])))", true),
        ("topk by (namespace) (3, x)", true),
        ("max_over_time(sum by (namespace) (x)[5m:1m])", true),
        (r#"label_replace(x, "pod", "$1", "worker", "(.*)")"#, true),
        ("sum(x)", true),
        ("x / on (pod) y", true),
        // Parts of these have no namespace to keep.
        ("topk by (namespace) (scalar(y), x)", false),
        ("x / scalar(y)", false),
        ("x or vector(0)", false),
        ("x + vector(1)", false),
        ("clamp_max(x, scalar(y))", false),
        ("absent(x)", false),
        ("scalar(x)", false),
        ("vector(scalar(x))", false),
        ("vector(1)", false),
        ("1 + 1", false),
    ] {
        assert_eq!(Custom::new(query, "namespace").unwrap().shared.is_some(), batchable, "{query}");
    }
}

/// Queries by the grammar, most of them valid.
fn queries() -> impl Strategy<Value = String> {
    let name =
        prop_oneof!["[a-c]{1,3}", "[a-c]:[a-c]", Just("sum".to_owned()), Just("or".to_owned()), Just("by".to_owned())];
    let value = prop_oneof!["[ -~]{0,6}", "\\PC{0,4}"].prop_map(|v| quote(&v));
    let matcher =
        ("[a-c_]{1,4}", prop_oneof![Just("="), Just("!=")], value).prop_map(|(n, op, v)| format!("{n}{op}{v}"));
    let selector =
        (name, proptest::collection::vec(matcher, 0..3)).prop_map(|(n, m)| format!("{n}{{{}}}", m.join(",")));
    let modifiers = prop_oneof![
        Just(String::new()),
        Just(" offset 5m".to_owned()),
        Just(" @ end()".to_owned()),
        Just(" @ 17.5 offset -1s".to_owned())
    ];
    let leaf = prop_oneof![
        3 => (selector.clone(), modifiers.clone()).prop_map(|(s, m)| s + &m),
        2 => (selector, modifiers).prop_map(|(s, m)| format!("rate({s}[5m]{m})")),
        1 => prop_oneof![Just("1".to_owned()), Just("0.5e-3".to_owned()), Just("Inf".to_owned()), Just("0x1f".to_owned()), Just("time()".to_owned())],
    ];
    let label = prop_oneof![Just("pod"), Just("namespace"), Just("on"), Just("le")];
    leaf.prop_recursive(4, 24, 3, move |inner| {
        let op = prop_oneof![
            Just("+"),
            Just("-"),
            Just("^"),
            Just("/"),
            Just("%"),
            Just("atan2"),
            Just("== bool"),
            Just("and"),
            Just("or"),
            Just("unless"),
            Just(">")
        ];
        let matching = (
            prop_oneof![Just("on"), Just("ignoring")],
            label.clone(),
            prop_oneof![Just(""), Just("group_left (x)"), Just("group_right")],
        )
            .prop_map(|(w, l, g)| format!("{w} ({l}) {g}"));
        let matching = prop_oneof![3 => Just(String::new()), 1 => matching];
        let aggregation = (
            prop_oneof![Just("sum"), Just("count"), Just("group")],
            prop_oneof![Just("by"), Just("without")],
            label.clone(),
        );
        prop_oneof![
            (inner.clone(), op, matching, inner.clone()).prop_map(|(l, op, m, r)| format!("{l} {op} {m} {r}")),
            inner.clone().prop_map(|e| format!("({e})")),
            inner.clone().prop_map(|e| format!("-{e}")),
            (aggregation, inner.clone()).prop_map(|((op, by, l), e)| format!("{op} {by} ({l}) ({e})")),
            (inner.clone(), inner.clone()).prop_map(|(k, e)| format!("topk(scalar({k}), {e})")),
            inner.clone().prop_map(|e| format!("max_over_time(({e})[5m:30s] offset 1m)")),
            inner.clone().prop_map(|e| format!("clamp({e}, 0, 1)")),
            inner.prop_map(|e| format!(r#"label_replace({e}, "a", "$1", "b", "(.*)")"#)),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_selector_is_left_unconfined(query in queries(), namespace in "[a-z0-9-]{1,8}") {
        let Ok(custom) = Custom::new(&query, "namespace") else { return Ok(()) };
        let forced = Forced::new("namespace", &set(&[&namespace]), std::iter::empty());
        let text = custom.confined(&forced);
        let again = promql_parser::parser::parse(&text).map_err(TestCaseError::fail)?;
        prop_assert!(render::all_confined(&again, "namespace", &namespace), "{text}");
        if let Some(text) = custom.confined_together(&forced) {
            let again = promql_parser::parser::parse(&text).map_err(TestCaseError::fail)?;
            prop_assert!(render::all_confined(&again, "namespace", &namespace), "{text}");
        }
        // And nothing else changed: without the matcher it is the query as written.
        let plain = render::render(&custom.expr, &Forced::none());
        prop_assert_eq!(promql_parser::parser::parse(&plain).unwrap(), promql_parser::parser::parse(&query).unwrap());
        if let Some(times) = custom.times(&forced) {
            let again = promql_parser::parser::parse(&times).map_err(TestCaseError::fail)?;
            prop_assert!(render::all_confined(&again, "namespace", &namespace), "{times}");
        }
    }

    #[test]
    fn any_text_is_judged_without_panic(query in "\\PC{0,60}") {
        let _ = Custom::new(&query, "namespace");
    }

    #[test]
    fn near_queries_are_judged_without_panic(query in r#"[a-c(){}\[\]"'`\\=~!<>+*/^@,.:0-9 #-]{0,40}"#) {
        let _ = Custom::new(&query, "namespace");
    }
}

/// Whether the generator really makes valid queries: the property above would pass on refusals alone.
#[test]
fn the_generator_makes_valid_queries() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let valid = (0..500)
        .filter(|_| Custom::new(&queries().new_tree(&mut runner).unwrap().current(), "namespace").is_ok())
        .count();
    assert!(valid > 150, "{valid} of 500");
}
