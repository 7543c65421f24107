use eto_engine::contract::{Direction, MetricKind, MetricTarget, SignalWant};
use eto_engine::job::{LabelExpression, LabelIs, MetricSpec};
use eto_engine::wants::{signal_ids, wanted};

use crate::common::*;

fn want(name: &str, query: Option<&str>) -> SignalWant {
    SignalWant {
        name: name.into(),
        query: query.map(Into::into),
        window_seconds: 0,
        history_seconds: 0,
        required: true,
        direction: Direction::MoreMeansGrow,
        low: 0.0,
        high: 1.0,
    }
}

#[test]
fn metrics_become_queries() {
    let mut spec = job(1, 2, 3);
    let mut pods = metric(MetricKind::Pods, "requests_per_second", MetricTarget::AverageValue(5.0));
    pods.selector.insert("verb".into(), "GET \"x\"".into());
    let mut object = metric(MetricKind::Object, "queue.length", MetricTarget::Value(5.0));
    object.object = Some(("Service".into(), "front".into()));
    let external = metric(MetricKind::External, "jobs_waiting", MetricTarget::AverageValue(5.0));
    spec.scaling = Some(scaling(vec![cpu(70), pods, object, external], false));
    let all = wanted(&spec, &[]);
    let query = |at: usize| all[at].id.as_ref().unwrap().query.clone();
    assert_eq!(query(0), None);
    assert_eq!(all[0].name, "cpu-utilisation");
    assert_eq!(query(1).unwrap(), r#"requests_per_second{verb="GET \"x\""}"#);
    assert_eq!(query(2).unwrap(), r#"sum by (service) ({__name__="queue.length"})"#);
    assert_eq!(all[2].key.as_deref(), Some(r#"service="front""#));
    assert_eq!((query(3).unwrap().as_str(), &all[3].key), ("sum(jobs_waiting)", &None));
    assert_eq!(all.iter().map(|w| w.job_level).collect::<Vec<_>>(), [false, false, true, true]);
    assert!(all.iter().all(|w| w.required && w.direction == Direction::MoreMeansGrow));
}

#[test]
fn jobs_that_select_other_series_of_a_metric_share_its_query() {
    let of = |queue: &str| {
        let mut external = metric(MetricKind::External, "jobs_waiting", MetricTarget::AverageValue(5.0));
        external.selector = [("queue".into(), queue.into()), ("tier-1".into(), "x".into())].into();
        let mut spec = job(1, 2, 3);
        spec.scaling = Some(scaling(vec![external], false));
        wanted(&spec, &[]).remove(0)
    };
    let (a, b) = (of("a"), of("b"));
    assert_eq!(a.id, b.id);
    assert_eq!(a.id.unwrap().query.unwrap(), "sum by (queue, tier_1) (jobs_waiting)");
    assert_eq!(a.key.unwrap(), r#"queue="a",tier_1="x""#);
    assert_ne!(b.key.unwrap(), r#"queue="a",tier_1="x""#);
}

#[test]
fn expressions_select_as_kubernetes_does() {
    let expression = |key: &str, is| LabelExpression { key: key.into(), is };
    let values = |all: &[&str]| all.iter().map(|v| (*v).to_owned()).collect::<Vec<_>>();
    let mut pods = metric(MetricKind::Pods, "rate", MetricTarget::AverageValue(5.0));
    pods.selector.insert("tier".into(), "x".into());
    pods.expressions = vec![
        expression("verb", LabelIs::In(values(&["GET", "a.b|c"]))),
        expression("app.kubernetes.io/zone", LabelIs::NotIn(values(&["far", "a(1)"]))),
        expression("ready", LabelIs::Exists),
        expression("old", LabelIs::DoesNotExist),
    ];
    let mut external = metric(MetricKind::External, "waiting", MetricTarget::Value(5.0));
    external.selector.insert("queue".into(), "a".into());
    external.expressions = vec![expression("old", LabelIs::DoesNotExist)];
    let throughput = metric(MetricKind::External, "training-throughput", MetricTarget::Value(5.0));
    let chosen = MetricSpec { expressions: vec![expression("rank", LabelIs::Exists)], ..throughput.clone() };
    let mut spec = job(1, 2, 3);
    spec.scaling = Some(scaling(vec![pods, external, throughput, chosen], false));
    let all = wanted(&spec, &[]);
    let query = |at: usize| all[at].id.as_ref().unwrap().query.clone();
    assert_eq!(
        query(0).unwrap(),
        r#"rate{tier="x",verb=~"GET|a\\.b\\|c",app_kubernetes_io_zone!~"far|a\\(1\\)",ready!="",old=""}"#
    );
    assert_eq!(query(1).unwrap(), r#"sum by (queue) (waiting{old=""})"#);
    assert_eq!(query(2), None, "the built-in signal");
    assert!(query(3).is_some(), "a metric of that name");
}

#[test]
fn a_query_can_name_the_job() {
    let mut spec = job(1, 2, 3);
    spec.scaling = Some(scaling(vec![], true));
    let id = signal_ids(&spec, &[want("loss", Some(r#"avg(loss{run="$job"})"#))]).remove(0);
    assert_eq!(id.query.unwrap(), format!("avg(loss{{run={:?}}})", spec.key.name));
}

#[test]
fn a_metric_and_a_want_share_one_signal() {
    let mut spec = job(1, 2, 3);
    spec.scaling = Some(scaling(vec![cpu(70)], true));
    let mut same = want("cpu-utilisation", None);
    same.history_seconds = 600;
    let all = wanted(&spec, &[same, want("loss", Some("avg(loss)"))]);
    assert_eq!(all.len(), 2);
    assert_eq!((all[0].metric, all[0].history_s), (Some(0), 600));
    assert_eq!(signal_ids(&spec, &[want("cpu-utilisation", None)]).len(), 1);
    let mut longer = want("cpu-utilisation", None);
    longer.window_seconds = 300;
    assert_eq!(signal_ids(&spec, &[longer]).len(), 2, "another window is another query");
}

#[test]
fn a_policy_finds_its_own_want_before_a_metric_of_that_name() {
    let mut spec = job(1, 2, 3);
    let mut of_container = metric(MetricKind::ContainerResource, "cpu", MetricTarget::Utilization(70));
    of_container.container = Some("train".into());
    let queue = metric(MetricKind::External, "queue", MetricTarget::AverageValue(5.0));
    spec.scaling = Some(scaling(vec![queue, of_container, cpu(70), cpu(90)], true));
    let mut longer = want("cpu-utilisation", None);
    longer.window_seconds = 120;
    // The same query as the metric's: still its own, which the job's label may tell apart.
    let own = [longer, want("cpu-utilisation", None), want("queue", Some("sum(queue)"))];
    let all = wanted(&spec, &own);
    let seen: Vec<_> = all
        .iter()
        .map(|w| {
            let id = w.id.as_ref().unwrap();
            (id.name.as_str(), id.window_s, id.container.as_deref(), w.metric)
        })
        .collect();
    assert_eq!(
        seen,
        [
            ("cpu-utilisation", 120, None, None),
            // Asked for by both: one signal.
            ("cpu-utilisation", 60, None, Some(2)),
            ("queue", 60, None, None),
            ("queue", 60, None, Some(0)),
            ("cpu-utilisation", 60, Some("train"), Some(1)),
            ("cpu-utilisation", 60, None, Some(3)),
        ]
    );
    assert!(all[1].required && all[1].direction == Direction::MoreMeansGrow, "as the metric needs it");
}

#[test]
fn gpus_that_the_exporter_tells_of_are_measured_and_others_are_not() {
    let of = |name: &str| {
        let mut spec = job(1, 2, 3);
        spec.scaling = Some(scaling(vec![metric(MetricKind::Resource, name, MetricTarget::Utilization(50))], false));
        wanted(&spec, &[]).remove(0)
    };
    for name in ["nvidia.com/gpu", "nvidia.com/mig-1g.5gb"] {
        assert_eq!(of(name).id.unwrap().name, "gpu-utilisation", "{name}");
    }
    for name in ["amd.com/gpu", "gpu.intel.com/i915", "example.com/mig-1g"] {
        let why = of(name).unservable.unwrap();
        assert!(why.contains(name) && why.contains("nvidia.com/mig-*") && why.contains("type Pods"), "{why}");
    }
}

#[test]
fn what_nobody_serves_is_said() {
    let mut spec = job(1, 2, 3);
    spec.scaling =
        Some(scaling(vec![metric(MetricKind::ContainerResource, "cpu", MetricTarget::Utilization(5))], true));
    let all = wanted(&spec, &[want("made-up", None)]);
    assert!(all[0].unservable.as_ref().unwrap().contains("made-up"));
    assert!(all[1].unservable.as_ref().unwrap().contains("containerResource.container"));
    assert!(signal_ids(&spec, &[want("made-up", None)]).is_empty());
}
