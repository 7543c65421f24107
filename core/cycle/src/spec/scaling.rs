//! `spec.scalingPolicy`: metrics and behaviour with HPA's meaning and defaults.

use std::collections::BTreeMap;
use std::time::Duration;

use eto_api::{self as api, PolicyMode, ScalingPolicy};
use eto_engine::contract::{MetricKind, MetricTarget};
use eto_engine::guard::MODULE_UP_WINDOW;
use eto_engine::guard::behavior::{LEGACY_WINDOW, TOLERANCE};
use eto_engine::job::{
    Behavior, FailurePolicy, LabelExpression, LabelIs, MetricSpec, Mode, RateKind, RatePolicy, ScalingRules,
    ScalingSpec, SelectPolicy,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::Value;

use super::int;
use crate::{SpecProblems, quantity};

/// The policy that serves `metrics[]` where no module is named.
pub const BUILT_IN: &str = "hpa";

const PATH: &str = "spec.scalingPolicy";

pub(super) fn scaling(p: &ScalingPolicy, problems: &mut SpecProblems) -> ScalingSpec {
    let mode = mode(p.mode);
    if p.module.is_none() && p.metrics.is_empty() && mode != Mode::Off {
        problems.add(PATH, "needs a module or at least one entry of metrics");
    }
    let on_failure = match p.failure_policy {
        None | Some(api::FailurePolicy::Hold) => FailurePolicy::Hold,
        Some(api::FailurePolicy::BuiltIn) => FailurePolicy::BuiltIn,
    };
    if on_failure == FailurePolicy::BuiltIn && p.metrics.is_empty() {
        problems.add(format!("{PATH}.failurePolicy"), "BuiltIn needs metrics: the built-in policy decides by them");
    }
    if let Some(module) = &p.module {
        check_module(&format!("{PATH}.module"), module, problems);
    }
    let own_module = p.module.is_some();
    ScalingSpec {
        module: p.module.clone().unwrap_or_else(|| BUILT_IN.to_string()),
        own_module,
        config: config(&format!("{PATH}.config"), p.config.as_ref(), problems),
        metrics: p.metrics.iter().enumerate().filter_map(|(i, m)| metric(i, m, problems)).collect(),
        behavior: p.behavior.as_ref().map(|b| behavior(b, own_module, problems)),
        mode,
        on_failure,
    }
}

pub(super) fn mode(m: Option<PolicyMode>) -> Mode {
    match m {
        None | Some(PolicyMode::Auto) => Mode::Auto,
        Some(PolicyMode::Recommend) => Mode::Recommend,
        Some(PolicyMode::Off) => Mode::Off,
    }
}

/// Names of modules are file stems: they must never reach out of the policy directory.
pub(super) fn check_module(path: &str, name: &str, problems: &mut SpecProblems) {
    let legal = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    if name.is_empty() || name.len() > 63 || !name.bytes().all(legal) || name.starts_with('-') || name.ends_with('-') {
        problems.add(path, "must be the name of a module: 1 to 63 lower-case letters, digits and '-'");
    }
}

pub(super) fn config(path: &str, value: Option<&Value>, problems: &mut SpecProblems) -> String {
    match value {
        None | Some(Value::Null) => "{}".to_string(),
        Some(v @ Value::Object(_)) => v.to_string(),
        Some(_) => {
            problems.add(path, "must be an object");
            "{}".to_string()
        }
    }
}

/// The fields that one type of metric uses.
struct Parts<'a> {
    name: &'a str,
    container: Option<&'a str>,
    labels: Option<&'a api::MetricIdentifier>,
    object: Option<&'a api::DescribedObject>,
    target: &'a api::MetricTarget,
}

/// The kind, the name of its field, and what that holds; `None` for an unknown type.
fn parts(m: &api::MetricSpec) -> Option<(MetricKind, &'static str, Option<Parts<'_>>)> {
    Some(match m.kind.as_str() {
        "Resource" => (
            MetricKind::Resource,
            "resource",
            m.resource.as_ref().map(|r| Parts {
                name: &r.name,
                container: None,
                labels: None,
                object: None,
                target: &r.target,
            }),
        ),
        "ContainerResource" => (
            MetricKind::ContainerResource,
            "containerResource",
            m.container_resource.as_ref().map(|r| Parts {
                name: &r.name,
                container: Some(&r.container),
                labels: None,
                object: None,
                target: &r.target,
            }),
        ),
        "Pods" => (MetricKind::Pods, "pods", m.pods.as_ref().map(|r| Parts::of(&r.metric, None, &r.target))),
        "Object" => (
            MetricKind::Object,
            "object",
            m.object.as_ref().map(|r| Parts::of(&r.metric, Some(&r.described_object), &r.target)),
        ),
        "External" => {
            (MetricKind::External, "external", m.external.as_ref().map(|r| Parts::of(&r.metric, None, &r.target)))
        }
        _ => return None,
    })
}

impl<'a> Parts<'a> {
    fn of(
        metric: &'a api::MetricIdentifier,
        object: Option<&'a api::DescribedObject>,
        target: &'a api::MetricTarget,
    ) -> Parts<'a> {
        Parts { name: &metric.name, container: None, labels: Some(metric), object, target }
    }
}

fn metric(i: usize, m: &api::MetricSpec, problems: &mut SpecProblems) -> Option<MetricSpec> {
    let path = format!("{PATH}.metrics[{i}]");
    let Some((kind, field, parts)) = parts(m) else {
        let message = format!("is `{}`; use Resource, ContainerResource, Pods, Object or External", m.kind);
        problems.add(format!("{path}.type"), message);
        return None;
    };
    let Some(parts) = parts else {
        problems.add(format!("{path}.{field}"), format!("is missing; type {} needs it", m.kind));
        return None;
    };
    if parts.name.is_empty() {
        problems.add(format!("{path}.{field}"), "names no metric");
    }
    let labels = parts.labels.map(|l| selector(&format!("{path}.{field}.metric.selector"), l, problems));
    let target = target(&format!("{path}.{field}.target"), kind, parts.target, problems)?;
    let (selector, expressions) = labels.unwrap_or_default();
    Some(MetricSpec {
        kind,
        name: parts.name.to_string(),
        container: parts.container.map(str::to_string),
        selector,
        expressions,
        object: parts.object.map(|o| (o.kind.clone(), o.name.clone())),
        target,
    })
}

/// Exact matches, and what can't be said by them. One value to choose from is an exact match.
fn selector(
    path: &str,
    m: &api::MetricIdentifier,
    problems: &mut SpecProblems,
) -> (BTreeMap<String, String>, Vec<LabelExpression>) {
    let selector = m.label_selector().unwrap_or_else(|why| {
        problems.add(path, why);
        LabelSelector::default()
    });
    let mut exact = selector.match_labels.unwrap_or_default();
    let mut expressions = Vec::new();
    for (i, r) in selector.match_expressions.into_iter().flatten().enumerate() {
        let path = format!("{path}.matchExpressions[{i}]");
        if r.key.is_empty() {
            problems.add(format!("{path}.key"), "is missing; name a label");
        }
        let values = r.values.unwrap_or_default();
        match r.operator.as_str() {
            "In" | "NotIn" if values.is_empty() => {
                problems.add(format!("{path}.values"), "is empty; In and NotIn need values");
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                problems.add(format!("{path}.values"), "must be empty for Exists and DoesNotExist");
            }
            _ => {}
        }
        let is = match (r.operator.as_str(), values.as_slice()) {
            ("In", [only]) if !exact.contains_key(&r.key) => {
                exact.insert(r.key, only.clone());
                continue;
            }
            ("In", _) => LabelIs::In(values),
            ("NotIn", _) => LabelIs::NotIn(values),
            ("Exists", _) => LabelIs::Exists,
            ("DoesNotExist", _) => LabelIs::DoesNotExist,
            (other, _) => {
                problems
                    .add(format!("{path}.operator"), format!("is `{other}`; use In, NotIn, Exists or DoesNotExist"));
                continue;
            }
        };
        expressions.push(LabelExpression { key: r.key, is });
    }
    (exact, expressions)
}

/// Which targets a kind may have is HPA's rule.
fn target(path: &str, kind: MetricKind, t: &api::MetricTarget, problems: &mut SpecProblems) -> Option<MetricTarget> {
    let resource = matches!(kind, MetricKind::Resource | MetricKind::ContainerResource);
    let per_pod = resource || kind == MetricKind::Pods;
    let mut amount = |field: &str, v: Option<&Value>| -> Option<f64> {
        let Some(v) = v else {
            problems.add(format!("{path}.{field}"), format!("is missing; type {} needs it", t.kind));
            return None;
        };
        match quantity::from_value(v) {
            Ok(n) if n.0 > 0 => Some(n.as_f64()),
            Ok(_) => {
                problems.add(format!("{path}.{field}"), "must be above 0");
                None
            }
            Err(why) => {
                problems.add(format!("{path}.{field}"), why);
                None
            }
        }
    };
    match t.kind.as_str() {
        "Utilization" if resource => {
            let path = format!("{path}.averageUtilization");
            let Some(percent) = t.average_utilization else {
                problems.add(path, "is missing; type Utilization needs it");
                return None;
            };
            int(&path, percent, 1, i64::from(i32::MAX), problems).map(MetricTarget::Utilization)
        }
        "AverageValue" => amount("averageValue", t.average_value.as_ref()).map(MetricTarget::AverageValue),
        "Value" if !per_pod => amount("value", t.value.as_ref()).map(MetricTarget::Value),
        other => {
            let may = match kind {
                MetricKind::Resource | MetricKind::ContainerResource => "Utilization or AverageValue",
                MetricKind::Pods => "AverageValue",
                MetricKind::Object | MetricKind::External => "Value or AverageValue",
            };
            problems.add(format!("{path}.type"), format!("is `{other}`; for this type of metric use {may}"));
            None
        }
    }
}

/// HPA fills its defaults in where `behavior` is there at all. A module has its own: growth is gathered for a minute
/// and done in one jump, so there is no rate unless the user sets one.
fn behavior(b: &api::Behavior, own_module: bool, problems: &mut SpecProblems) -> Behavior {
    let rate = |kind, value| RatePolicy { kind, value, period: Duration::from_secs(15) };
    let (up_window, up, down) = if own_module {
        (MODULE_UP_WINDOW, Vec::new(), Vec::new())
    } else {
        let percent = rate(RateKind::Percent, 100);
        (Duration::ZERO, vec![rate(RateKind::Pods, 4), percent], vec![percent])
    };
    Behavior {
        up: rules("scaleUp", b.scale_up.as_ref(), up_window, up, problems),
        down: rules("scaleDown", b.scale_down.as_ref(), LEGACY_WINDOW, down, problems),
    }
}

fn rules(
    field: &str,
    r: Option<&api::ScalingRules>,
    window: Duration,
    rates: Vec<RatePolicy>,
    problems: &mut SpecProblems,
) -> ScalingRules {
    let path = format!("{PATH}.behavior.{field}");
    let Some(r) = r else {
        return ScalingRules {
            stabilization: window,
            select: SelectPolicy::Max,
            policies: rates,
            tolerance: TOLERANCE,
        };
    };
    let stabilization = r
        .stabilization_window_seconds
        .and_then(|v| int(&format!("{path}.stabilizationWindowSeconds"), v, 0, 3600, problems))
        .map_or(window, |v| Duration::from_secs(v.into()));
    let select = match r.select_policy.as_deref() {
        None | Some("Max") => SelectPolicy::Max,
        Some("Min") => SelectPolicy::Min,
        Some("Disabled") => SelectPolicy::Disabled,
        Some(other) => {
            problems.add(format!("{path}.selectPolicy"), format!("is `{other}`; use Max, Min or Disabled"));
            SelectPolicy::Max
        }
    };
    let policies = match r.policies.as_deref() {
        None | Some([]) => rates,
        Some(list) => {
            let read = |(i, p): (usize, &api::RatePolicy)| rate(&format!("{path}.policies[{i}]"), p, problems);
            list.iter().enumerate().filter_map(read).collect()
        }
    };
    ScalingRules { stabilization, select, policies, tolerance: tolerance(&path, r.tolerance.as_ref(), problems) }
}

fn rate(path: &str, p: &api::RatePolicy, problems: &mut SpecProblems) -> Option<RatePolicy> {
    let kind = match p.kind.as_str() {
        "Pods" => Some(RateKind::Pods),
        "Percent" => Some(RateKind::Percent),
        other => {
            problems.add(format!("{path}.type"), format!("is `{other}`; use Pods or Percent"));
            None
        }
    };
    let value = int(&format!("{path}.value"), p.value, 1, i64::from(i32::MAX), problems);
    let period = int(&format!("{path}.periodSeconds"), p.period_seconds, 1, 1800, problems);
    Some(RatePolicy { kind: kind?, value: value?, period: Duration::from_secs(period?.into()) })
}

fn tolerance(path: &str, value: Option<&Value>, problems: &mut SpecProblems) -> f64 {
    let path = format!("{path}.tolerance");
    match value.map(quantity::from_value) {
        None => TOLERANCE,
        Some(Ok(n)) if (0.0..=1.0).contains(&n.as_f64()) => n.as_f64(),
        Some(Ok(_)) => {
            problems.add(path, "must be from 0 to 1");
            TOLERANCE
        }
        Some(Err(why)) => {
            problems.add(path, why);
            TOLERANCE
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn a_metrics_selector_is_read_as_kubernetes_reads_it() {
        let of = |written: Value| {
            let mut problems = SpecProblems::default();
            let metric = serde_json::from_value(json!({"name": "queue", "selector": written})).unwrap();
            let read = selector("selector", &metric, &mut problems);
            (read, problems.0.into_iter().next().map(|p| p.path).unwrap_or_default())
        };
        let (y, z) = ("y".to_owned(), "z".to_owned());
        let ((exact, expressions), _) = of(json!({"matchLabels": {"a": "b"}, "matchExpressions": [
            {"key": "k", "operator": "In", "values": ["x"]},
            {"key": "l", "operator": "NotIn", "values": [y, z]},
            {"key": "m", "operator": "Exists"},
        ]}));
        assert_eq!(exact, [("a".into(), "b".into()), ("k".into(), "x".into())].into(), "one value is an exact match");
        let not = LabelExpression { key: "l".into(), is: LabelIs::NotIn(vec![y, z]) };
        assert_eq!(expressions, [not, LabelExpression { key: "m".into(), is: LabelIs::Exists }]);
        let expression = |key: &str, operator: &str, values: &[&str]| json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
        for (wrong, path) in [
            (json!({"matchLabels": {"a": 1}}), "selector"),
            (json!({"labels": {"a": "b"}}), "selector"),
            (expression("k", "Like", &["x"]), "selector.matchExpressions[0].operator"),
            (expression("k", "In", &[]), "selector.matchExpressions[0].values"),
            (expression("k", "Exists", &["x"]), "selector.matchExpressions[0].values"),
            (expression("", "Exists", &[]), "selector.matchExpressions[0].key"),
        ] {
            assert_eq!(of(wrong.clone()).1, path, "{wrong}");
        }
    }
}
