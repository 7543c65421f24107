//! The controller-level cases of HPA (`horizontal_test.go`) with a small native policy that computes
//! HPA's ratio. The `hpa` module itself is tested by `policies/conformance`, natively and through the real host.

use eto_engine::contract::{MetricKind, MetricTarget};
use eto_engine::decision::Limiter;
use eto_engine::plan::EventReason;
use eto_engine::state::{ConditionKind, ConditionReason};
use eto_engine::{conditions, plan};

use crate::common::*;
use crate::world::World;

/// The tests that decide a size or say why there is none. A row is run here, or it says why not. `policies/conformance`
/// asks the same of the module's rows.
const TABLE: &str = include_str!("../../../../policies/conformance/tests/horizontal_test.txt");

/// Rows that are run, each with what runs it.
const RUN: &[(&str, fn())] = &[
    ("TestScaleDownStabilizeInitialSize", the_size_at_first_sight_is_the_first_recommendation),
    ("TestStabilizeDownscale", a_recent_higher_recommendation_holds_a_shrink),
    ("TestMaxReplicas", sizes_and_limits),
    ("TestMinReplicas", sizes_and_limits),
    ("TestMinReplicasDesiredZero", sizes_and_limits),
    ("TestTooFewReplicas", outside_its_range_a_job_moves_at_once_and_nobody_is_asked),
    ("TestTooManyReplicas", outside_its_range_a_job_moves_at_once_and_nobody_is_asked),
    ("TestScaleUpRCImmediately", outside_its_range_a_job_moves_at_once_and_nobody_is_asked),
    ("TestScaleDownRCImmediately", outside_its_range_a_job_moves_at_once_and_nobody_is_asked),
    ("TestUpscaleCap", the_upscale_cap_is_a_rate_where_the_user_gave_one),
    ("TestUpscaleCapGreaterThanMaxReplicas", the_upscale_cap_is_a_rate_where_the_user_gave_one),
    ("TestNoBackoffUpscaleCMNoBackoffCpu", the_larger_of_two_metrics_grows_a_job_to_its_maximum_at_once),
    ("TestEventCreated", a_resize_is_told_by_an_event_and_no_resize_by_none),
    ("TestEventNotCreated", a_resize_is_told_by_an_event_and_no_resize_by_none),
    ("TestConditionFailedGetMetrics", a_metric_without_samples_is_named_by_its_kind),
];

const NO_ZERO: &str = "a job has at least one worker; `suspend` is its zero";
const THE_MODULES: &str = "arithmetic of metrics, which is the module's: policies/conformance runs it";
const NO_SELECTOR: &str = "the operator owns its pods by UID and reads no other object's scale";

/// Rows that are not run, each with the reason.
const NOT_RUN: &[(&str, &str)] = &[
    ("TestZeroMinReplicasDesiredZero", NO_ZERO),
    ("TestZeroReplicas", NO_ZERO),
    ("TestScaleToZeroBehavior", NO_ZERO),
    ("TestMoreReplicasThanSpecNoScale", THE_MODULES),
    ("TestScaleUpOneMetricEmpty", THE_MODULES),
    ("TestScaleUpOneMetricInvalid", THE_MODULES),
    ("TestNoScaleDownOneMetricEmpty", THE_MODULES),
    ("TestNoScaleDownOneMetricInvalid", THE_MODULES),
    ("TestConditionInvalidSelectorMissing", NO_SELECTOR),
    ("TestConditionInvalidSelectorUnparsable", NO_SELECTOR),
    ("TestConditionFailedGetScale", NO_SELECTOR),
    ("TestConditionFailedUpdateScale", NO_SELECTOR),
    ("TestConditionNoAmbiguousSelectorWhenNoSelectorOverlapBetweenHPAs", NO_SELECTOR),
    ("TestConditionAmbiguousSelectorWhenFullSelectorOverlapBetweenHPAs", NO_SELECTOR),
    ("TestConditionAmbiguousSelectorWhenPartialSelectorOverlapBetweenHPAs", NO_SELECTOR),
];

#[test]
fn every_row_is_run_or_says_why_not() {
    for row in TABLE.lines() {
        let run = RUN.iter().filter(|(name, _)| *name == row).count();
        let not = NOT_RUN.iter().filter(|(name, _)| *name == row).count();
        assert_eq!(run + not, 1, "{row}: run {run} times, and not {not} times");
    }
    assert_eq!(RUN.len() + NOT_RUN.len(), TABLE.lines().count(), "a name that is no row");
    for (_, run) in RUN {
        run();
    }
}

#[test]
fn the_larger_of_two_metrics_grows_a_job_to_its_maximum_at_once() {
    let mut spec = job(1, 3, 5);
    let qps = metric(MetricKind::Pods, "qps", MetricTarget::AverageValue(15.0));
    spec.scaling = Some(scaling(vec![qps, cpu(10)], false));
    // Requests per second as well as cores: 4 workers by the one, 600 by the other.
    let mut look = Look::new(spec, 3, vec![], &[20.0, 10.0, 30.0]);
    // A resize of a moment ago holds up no growth.
    look.memory.recommendations = vec![(ago(1), 3)];
    let d = look.decide(&ratio_policy());
    assert_eq!((d.proposed, d.target, d.limits[0].by), (Some(600), 5, Limiter::TooManyReplicas));
}

fn decide(min: u32, size: u32, max: u32, target: u32, levels: &[f64]) -> (u32, Vec<Limiter>) {
    let mut spec = job(min, size, max);
    spec.scaling = Some(scaling(vec![cpu(target)], false));
    let mut look = Look::new(spec, size, vec![], levels);
    // What was proposed before has left every window.
    look.memory.recommendations = vec![(ago(3600), size)];
    let d = look.decide(&ratio_policy());
    (d.target, d.limits.iter().map(|l| l.by).collect())
}

#[test]
fn sizes_and_limits() {
    use Limiter::{ScaleUpLimit, TooFewReplicas, TooManyReplicas};
    assert_eq!(decide(2, 3, 5, 90, &[8.0, 9.5, 1.0]), (5, vec![TooManyReplicas]), "max replicas");
    assert_eq!(decide(2, 3, 5, 90, &[0.01, 0.095, 0.01]), (2, vec![TooFewReplicas]), "min replicas");
    assert_eq!(decide(2, 3, 5, 90, &[0.0, 0.0, 0.0]), (2, vec![TooFewReplicas]), "desired zero");
    assert_eq!(decide(1, 3, 100, 10, &[1.0, 2.0, 3.0]), (6, vec![ScaleUpLimit]), "upscale cap");
}

#[test]
fn a_resize_is_told_by_an_event_and_no_resize_by_none() {
    for (levels, want) in [(vec![1.0], vec!["resized from 1 to 2"]), (vec![0.5, 0.5], vec![])] {
        let size = u32::try_from(levels.len()).unwrap();
        let mut spec = job(1, size, 5);
        spec.scaling = Some(scaling(vec![cpu(50)], false));
        let mut look = Look::new(spec.clone(), size, vec![], &levels);
        let d = look.decide(&ratio_policy());
        assert!(d.target == 2 && d.limits.is_empty(), "{d:?}");
        let mut w = World::new(spec);
        assert!(w.settle());
        w.memory = look.memory;
        assert_eq!(plan::apply(&w.job, &mut w.state, &mut w.memory, &d, w.now), size == 1);
        let mut told = Vec::new();
        for _ in 0..20 {
            let events = w.plan(&w.state).events.into_iter();
            told.extend(events.filter(|e| e.reason == EventReason::SuccessfulRescale).map(|e| e.message));
            w.operate(usize::MAX);
            w.pass(secs(1));
        }
        assert_eq!(told, want);
    }
}

#[test]
fn the_upscale_cap_is_a_rate_where_the_user_gave_one() {
    let mut spec = job(1, 3, 100);
    let mut s = scaling(vec![cpu(10)], false);
    let rule = |value| eto_engine::job::ScalingRules {
        stabilization: secs(0),
        select: eto_engine::job::SelectPolicy::Max,
        policies: vec![eto_engine::job::RatePolicy {
            kind: eto_engine::job::RateKind::Percent,
            value,
            period: secs(60),
        }],
        tolerance: 0.1,
    };
    s.behavior = Some(eto_engine::job::Behavior { up: rule(700), down: rule(100) });
    spec.scaling = Some(s);
    let mut look = Look::new(spec.clone(), 3, vec![], &[1.0, 2.0, 3.0]);
    let d = look.decide(&ratio_policy());
    assert_eq!((d.target, d.limits[0].by), (24, Limiter::ScaleUpLimit));
    spec.max = 20;
    let mut look = Look::new(spec, 3, vec![], &[1.0, 2.0, 3.0]);
    let d = look.decide(&ratio_policy());
    assert_eq!((d.target, d.limits[0].by), (20, Limiter::TooManyReplicas));
    // What was added counts against the rate of its period.
    let moved = plan::apply(&look.job, &mut look.state, &mut look.memory, &d, NOW);
    assert!(moved);
    assert_eq!(look.memory.ups, [(NOW, 17)]);
}

#[test]
fn the_size_at_first_sight_is_the_first_recommendation() {
    let mut spec = job(2, 5, 6);
    spec.scaling = Some(scaling(vec![cpu(50)], false));
    let mut look = Look::new(spec, 5, vec![], &[0.1, 0.3, 0.5, 0.25, 0.25]);
    let d = look.decide(&ratio_policy());
    assert_eq!((d.target, d.proposed), (5, Some(3)));
    assert_eq!(d.limits[0].by, Limiter::ScaleDownStabilized);
}

#[test]
fn a_recent_higher_recommendation_holds_a_shrink() {
    for size in [4, 5] {
        let mut spec = job(1, size, 5);
        spec.scaling = Some(scaling(vec![cpu(100)], false));
        let mut look = Look::new(spec, size, vec![], &[0.5; 5]);
        look.memory.recommendations = vec![(ago(600), 10), (ago(60), 4)];
        let d = look.decide(&ratio_policy());
        assert_eq!((d.target, d.limits[0].by), (4, Limiter::ScaleDownStabilized), "{size}");
    }
}

#[test]
fn outside_its_range_a_job_moves_at_once_and_nobody_is_asked() {
    let asked = fallible(|_| panic!("no policy is asked"));
    for (min, size, max, want, by) in [
        (3, 2, 5, 3, Limiter::TooFewReplicas),
        (3, 10, 5, 5, Limiter::TooManyReplicas),
        (2, 1, 6, 2, Limiter::TooFewReplicas),
        (2, 6, 5, 5, Limiter::TooManyReplicas),
    ] {
        let mut spec = job(min, size, max);
        spec.scaling = Some(scaling(vec![cpu(50)], false));
        let mut look = Look::new(spec, size, vec![], &[]);
        let d = look.decide(&asked);
        assert_eq!((d.from, d.target, d.limits[0].by), (size, want, by));
        assert!(plan::apply(&look.job, &mut look.state, &mut look.memory, &d, NOW));
        assert_eq!(look.state.target, want);
    }
}

#[test]
fn a_metric_without_samples_is_named_by_its_kind() {
    let kinds = [
        (MetricKind::Resource, "cpu", ConditionReason::FailedGetResourceMetric),
        (MetricKind::Pods, "qps", ConditionReason::FailedGetPodsMetric),
        (MetricKind::Object, "qps", ConditionReason::FailedGetObjectMetric),
        (MetricKind::External, "qps", ConditionReason::FailedGetExternalMetric),
    ];
    for (kind, name, want) in kinds {
        let mut spec = job(1, 3, 5);
        let target = if name == "cpu" { MetricTarget::Utilization(50) } else { MetricTarget::AverageValue(5.0) };
        spec.scaling = Some(scaling(vec![metric(kind, name, target)], false));
        let mut look = Look::new(spec, 3, vec![], &[]);
        let d = look.decide(&ratio_policy());
        assert_eq!(d.target, 3);
        let all = conditions::scaling(&look.job, &d, NOW);
        let active = all.iter().find(|c| c.kind == ConditionKind::ScalingActive).unwrap();
        assert_eq!((active.status, active.reason), (false, want));
    }
}

#[test]
fn a_module_that_waits_for_its_only_signal_is_not_active() {
    let want = eto_engine::contract::SignalWant {
        name: "queue".into(),
        query: Some("queue".into()),
        window_seconds: 0,
        history_seconds: 0,
        required: true,
        direction: eto_engine::contract::Direction::MoreMeansGrow,
        low: 0.0,
        high: 1.0,
    };
    let active = |answer: Option<u32>, samples: &[f64]| {
        let mut spec = job(1, 2, 5);
        spec.scaling = Some(scaling(vec![], true));
        let mut look = Look::new(spec, 2, vec![want.clone()], samples);
        let d = look.decide(&native(move |_| answer));
        let all = conditions::scaling(&look.job, &d, NOW);
        let active = all.into_iter().find(|c| c.kind == ConditionKind::ScalingActive).unwrap();
        (active.status, active.reason)
    };
    assert_eq!(active(None, &[]), (false, ConditionReason::SignalQuality));
    assert_eq!(active(None, &[0.5, 0.5]), (true, ConditionReason::ValidMetricFound));
    assert_eq!(active(Some(2), &[]), (true, ConditionReason::ValidMetricFound), "it can do without");
}

#[test]
fn a_missing_request_names_the_field_to_set() {
    let mut spec = job(1, 2, 5);
    spec.template.as_mut().unwrap().containers.insert("sidecar".into(), eto_engine::contract::WorkerRequest::default());
    spec.scaling = Some(scaling(vec![cpu(50)], false));
    let mut look = Look::new(spec, 2, vec![], &[0.5, 0.5]);
    let d = look.decide(&native(|_| None));
    let all = conditions::scaling(&look.job, &d, NOW);
    let active = all.iter().find(|c| c.kind == ConditionKind::ScalingActive).unwrap();
    assert_eq!((active.status, active.reason), (false, ConditionReason::MissingRequest));
    assert!(active.message.contains("set resources.requests.cpu on container \"sidecar\""), "{}", active.message);
}

#[test]
fn a_mig_instance_is_a_request_for_gpus() {
    let mig = "nvidia.com/mig-1g.5gb";
    let mut spec = job(1, 2, 5);
    spec.scaling = Some(scaling(vec![metric(MetricKind::Resource, mig, MetricTarget::Utilization(50))], false));
    let mut look = Look::new(spec, 2, vec![], &[1.0, 1.0]);
    let mend = look.decide(&ratio_policy()).mend.unwrap().message;
    assert!(mend.contains("set resources.requests.nvidia.com/mig-1g.5gb on container \"train\""), "{mend}");
    let template = look.job.template.as_mut().unwrap();
    template.containers.get_mut("train").unwrap().gpus = 1.0;
    look.pods.iter_mut().for_each(|p| p.request.gpus = 1.0);
    let d = look.decide(&ratio_policy());
    assert_eq!((d.mend, d.target), (None, 4), "twice the target");
}

#[test]
fn a_metric_that_nothing_serves_is_an_invalid_source() {
    let mut spec = job(1, 2, 5);
    spec.scaling =
        Some(scaling(vec![metric(MetricKind::Resource, "ephemeral-storage", MetricTarget::AverageValue(1.0))], false));
    let mut look = Look::new(spec, 2, vec![], &[]);
    let d = look.decide(&native(|_| None));
    let all = conditions::scaling(&look.job, &d, NOW);
    let active = all.iter().find(|c| c.kind == ConditionKind::ScalingActive).unwrap();
    assert_eq!(active.reason, ConditionReason::InvalidMetricSourceType);
}
