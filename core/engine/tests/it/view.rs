use eto_engine::contract::{Direction, MetricKind, MetricTarget, NONE, Quality, SignalShape, SignalWant, WorkerPhase};
use eto_engine::signals::{Sample, builtin};
use eto_engine::view::remember;
use proptest::prelude::*;

use crate::common::*;

fn cpu_job(size: u32, values: &[f64]) -> Look {
    let mut spec = job(1, size, 10);
    spec.scaling = Some(scaling(vec![cpu(50)], false));
    Look::new(spec, size, vec![], values)
}

fn set(look: &mut Look, at: usize, value: f64, age_s: u64) {
    let name = look.pods[at].name.clone();
    let sample = Sample { value, at: look.now.minus(secs(age_s)) };
    let data = look.signals.signals.values_mut().next().unwrap();
    data.per_pod.get_mut("team-a").unwrap().insert(name, sample);
}

fn quality(look: &Look) -> (Quality, f64) {
    let view = look.view();
    (view.input.signals[0].quality, view.input.signals[0].coverage)
}

#[test]
fn columns_are_in_the_order_of_the_index() {
    let mut look = cpu_job(3, &[0.1, 0.2, 0.3]);
    look.pods.reverse();
    look.pods[0].node = look.pods[2].node.clone();
    look.pods[1].node = None;
    let view = look.view();
    let (w, s) = (&view.input.workers, &view.input.signals[0]);
    assert_eq!(w.index, [0, 1, 2]);
    assert_eq!(w.node, [0, NONE, 0]);
    assert_eq!(s.values, [0.1, 0.2, 0.3]);
    assert_eq!(s.requests, [1.0; 3]);
    assert_eq!(s.sampled_ms, [NOW.0; 3]);
    assert_eq!((s.shape, s.window_ms), (SignalShape::PerWorker, 60_000));
    assert_eq!(view.seen[0].mean, Some((0.1 + 0.2 + 0.3) / 3.0));
    assert_eq!(view.input.metrics[0].signal, 0);
}

#[test]
fn every_quality_has_its_cause() {
    assert_eq!(quality(&cpu_job(2, &[0.5, 0.5])), (Quality::Ok, 1.0));
    assert_eq!(quality(&cpu_job(2, &[0.5])), (Quality::Partial, 0.5));
    assert_eq!(quality(&cpu_job(2, &[])), (Quality::Absent, 0.0));
    let mut look = cpu_job(2, &[]);
    set(&mut look, 0, 0.5, 121);
    assert_eq!(quality(&look), (Quality::Stale, 0.0));
    set(&mut look, 0, 0.5, 120);
    assert_eq!(quality(&look), (Quality::Partial, 0.5));
    for broken in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.1] {
        let mut look = cpu_job(1, &[broken]);
        assert_eq!(quality(&look), (Quality::Invalid, 0.0), "{broken}");
        assert_eq!(look.view().input.signals[0].sampled_ms, [0], "it is not shown");
        look.state.round = None;
        assert_eq!(quality(&look), (Quality::Invalid, 0.0));
    }
}

#[test]
fn blanks_of_gpu_exporters_are_invalid() {
    let mut spec = job(1, 1, 10);
    spec.scaling =
        Some(scaling(vec![metric(MetricKind::Resource, "nvidia.com/gpu", MetricTarget::AverageValue(0.5))], false));
    for (value, want) in
        [(0.5, Quality::Ok), (8.0, Quality::Ok), (21_474_836.48, Quality::Invalid), (9.2e16, Quality::Invalid)]
    {
        let look = Look::new(spec.clone(), 1, vec![], &[value]);
        assert_eq!(quality(&look).0, want, "{value}");
    }
}

#[test]
fn a_window_that_reaches_back_before_the_round_warms() {
    let mut look = cpu_job(2, &[0.0, 0.0]);
    let mut running_since = |t| {
        look.state.round.as_mut().unwrap().running_since = t;
        let view = look.view();
        (view.input.signals[0].quality, view.gauges[0].suspect.clone())
    };
    assert_eq!(running_since(Some(ago(60))), (Quality::Ok, vec![false, false]));
    assert_eq!(running_since(Some(ago(59))), (Quality::Warming, vec![true, true]));
    assert_eq!(running_since(None), (Quality::Warming, vec![true, true]));
    for (averaged_s, window_ms, want) in
        [(120, 120_000, Quality::Warming), (60, 60_000, Quality::Ok), (0, 0, Quality::Ok)]
    {
        let mut look = cpu_job(2, &[0.0, 0.0]);
        look.state.round.as_mut().unwrap().running_since = Some(ago(60));
        look.signals.signals.values_mut().for_each(|d| d.averaged_s = Some(averaged_s));
        let view = look.view();
        let signal = &view.input.signals[0];
        assert_eq!((signal.window_ms, signal.quality), (window_ms, want), "the source averages over {averaged_s} s");
        assert_eq!(view.gauges[0].window_ms, window_ms.max(60_000), "and a shrink waits for that after an outage");
    }
    // One pod that started late.
    let mut look = cpu_job(2, &[0.0, 0.0]);
    look.pods[1].started = Some(ago(10));
    assert_eq!(look.view().gauges[0].suspect, [false, true]);
}

#[test]
fn what_is_not_at_work_needs_no_sample() {
    let mut look = cpu_job(4, &[0.5]);
    look.pods[1].phase = WorkerPhase::Pending;
    look.pods[2].phase = WorkerPhase::Failed;
    look.pods[3].deleting = Some(NOW);
    assert_eq!(quality(&look), (Quality::Ok, 1.0));
    let sizes = look.view().input.sizes;
    assert_eq!((sizes.current, sizes.ready), (3, 1));
}

#[test]
fn samples_of_strangers_do_not_count() {
    let mut look = cpu_job(2, &[0.5, 0.5]);
    let data = look.signals.signals.values_mut().next().unwrap();
    let samples = data.per_pod.get_mut("team-a").unwrap();
    samples.insert("another-job-worker-0".into(), Sample { value: 9.0, at: NOW });
    // A sample from before the pod was made is of a pod that had its name before.
    look.pods[1].created = NOW.plus(secs(1));
    let view = look.view();
    assert_eq!(view.input.signals[0].values, [0.5, 0.0]);
    assert_eq!(view.input.signals[0].quality, Quality::Partial);
}

#[test]
fn a_result_without_pods_is_of_the_job() {
    let want = SignalWant {
        name: "tokens".into(),
        query: Some("sum(tokens)".into()),
        window_seconds: 0,
        history_seconds: 0,
        required: true,
        direction: Direction::None,
        low: 0.0,
        high: 1e9,
    };
    let mut spec = job(1, 2, 10);
    spec.scaling = Some(scaling(vec![], true));
    let mut look = Look::new(spec, 2, vec![want], &[]);
    let data = look.signals.signals.values_mut().next().unwrap();
    data.per_namespace.insert("team-a".into(), Sample { value: 123.0, at: NOW });
    let s = &look.view().input.signals[0];
    assert_eq!((s.shape, s.quality, s.values.as_slice()), (SignalShape::Job, Quality::Ok, &[123.0][..]));
    look.state.round.as_mut().unwrap().running_since = Some(ago(5));
    assert_eq!(quality(&look).0, Quality::Warming, "throughput of a restarting job is no measure");
}

#[test]
fn throughput_is_one_value_of_the_job_and_warms_up_with_each_round() {
    let throughput = metric(MetricKind::External, builtin::THROUGHPUT, MetricTarget::AverageValue(100.0));
    let mut spec = job(1, 2, 10);
    spec.scaling = Some(scaling(vec![throughput], false));
    let mine = format!("elastic_job={:?}", spec.key.name);
    let mut look = Look::new(spec, 2, vec![], &[]);
    let (id, data) = look.signals.signals.iter_mut().next().unwrap();
    assert_eq!((id.name.as_str(), &id.query), (builtin::THROUGHPUT, &None), "no query of the user's");
    let data = {
        data.per_key.insert("team-a".into(), [("elastic_job=\"other\"".into(), Sample { value: 7.0, at: NOW })].into());
        data.clone()
    };
    let s = look.view().input.signals.remove(0);
    assert_eq!((s.shape, s.quality, s.coverage), (SignalShape::Job, Quality::Absent, 0.0), "another job's is not ours");
    let mut with = data;
    with.per_key.get_mut("team-a").unwrap().insert(mine, Sample { value: 250.0, at: NOW });
    look.signals.signals.values_mut().for_each(|d| *d = with.clone());
    let s = look.view().input.signals.remove(0);
    assert_eq!((s.shape, s.quality, s.values.as_slice()), (SignalShape::Job, Quality::Ok, &[250.0][..]));
    look.state.round.as_mut().unwrap().running_since = Some(ago(5));
    assert_eq!(quality(&look).0, Quality::Warming, "a job that restarts is slow for that alone");
    look.state.round.as_mut().unwrap().running_since = Some(ago(5000));
    look.signals
        .signals
        .values_mut()
        .flat_map(|d| d.per_key.values_mut())
        .flat_map(|k| k.values_mut())
        .for_each(|s| s.at = ago(200));
    assert_eq!(quality(&look).0, Quality::Stale);
}

#[test]
fn among_several_series_the_selected_one_counts_or_the_one_of_the_job() {
    let mut external = metric(MetricKind::External, "queue", MetricTarget::AverageValue(5.0));
    external.selector = [("queue".into(), "b".into())].into();
    let want = SignalWant {
        name: "tokens".into(),
        query: Some("sum by (elastic_job) (tokens)".into()),
        window_seconds: 0,
        history_seconds: 0,
        required: true,
        direction: Direction::None,
        low: 0.0,
        high: 1e9,
    };
    let mut spec = job(1, 2, 10);
    spec.scaling = Some(scaling(vec![external], true));
    let mine = format!("elastic_job={:?}", spec.key.name);
    let mut look = Look::new(spec, 2, vec![want], &[]);
    for (id, data) in &mut look.signals.signals {
        let keys = if id.name == "queue" { ["queue=\"a\"", "queue=\"b\""] } else { ["elastic_job=\"other\"", &mine] };
        let sample = |value| Sample { value, at: NOW };
        data.per_key.insert("team-a".into(), [(keys[0].into(), sample(1.0)), (keys[1].into(), sample(2.0))].into());
    }
    let view = look.view();
    for signal in &view.input.signals {
        assert_eq!((signal.quality, signal.values.as_slice()), (Quality::Ok, &[2.0][..]), "{}", signal.name);
    }
}

#[test]
fn a_container_metric_takes_the_request_of_its_container() {
    let mut spec = job(1, 1, 10);
    let mut m = metric(MetricKind::ContainerResource, "cpu", MetricTarget::Utilization(50));
    m.container = Some("train".into());
    spec.template.as_mut().unwrap().containers.get_mut("train").unwrap().cpu = 0.5;
    spec.scaling = Some(scaling(vec![m], false));
    let look = Look::new(spec, 1, vec![], &[0.25]);
    let view = look.view();
    assert_eq!((view.input.signals[0].requests.as_slice(), view.seen[0].mean), (&[0.5][..], Some(0.5)));
}

#[test]
fn history_is_kept_for_whom_asks_and_bounded() {
    let want = SignalWant {
        name: "cpu-utilisation".into(),
        query: None,
        window_seconds: 60,
        history_seconds: 600,
        required: true,
        direction: Direction::MoreMeansGrow,
        low: 0.0,
        high: 1.0,
    };
    let mut spec = job(1, 1, 10);
    spec.scaling = Some(scaling(vec![], true));
    let mut look = Look::new(spec, 1, vec![want], &[0.5]);
    for s in 0..1000 {
        let view = look.at(NOW.plus(secs(s))).view();
        remember(&mut look.memory, &view);
    }
    let view = look.at(NOW.plus(secs(1000))).view();
    let s = &view.input.signals[0];
    assert!((150..=256).contains(&s.history.len()), "{} points", s.history.len());
    assert!(s.history_ms.windows(2).all(|w| w[0] < w[1]), "oldest first");
    assert!(s.history_ms[0] >= NOW.plus(secs(400)).0);
    look.wants.clear();
    let view = look.view();
    remember(&mut look.memory, &view);
    assert!(look.memory.history.is_empty(), "nobody asks for it any more");
}

#[test]
fn signals_of_one_name_are_shown_apart_and_have_histories_of_their_own() {
    let want = |window, history| SignalWant {
        name: "cpu-utilisation".into(),
        query: None,
        window_seconds: window,
        history_seconds: history,
        required: true,
        direction: Direction::MoreMeansGrow,
        low: 0.0,
        high: 1.0,
    };
    let mut spec = job(1, 1, 10);
    spec.scaling = Some(scaling(vec![metric(MetricKind::Pods, "qps", MetricTarget::AverageValue(1.0)), cpu(50)], true));
    // The longer window is asked for by the policy alone, the shorter one by a metric too.
    let mut look = Look::new(spec, 1, vec![want(120, 600), want(60, 600)], &[0.5]);
    for (id, data) in &mut look.signals.signals {
        let value = if id.window_s == 120 { 0.9 } else { 0.1 };
        data.per_pod.values_mut().flat_map(|pods| pods.values_mut()).for_each(|s| s.value = value);
    }
    for s in 0..10 {
        let view = look.at(NOW.plus(secs(s))).view();
        remember(&mut look.memory, &view);
    }
    let view = look.view();
    let signals = &view.input.signals;
    assert_eq!(signals.iter().map(|s| s.window_ms).collect::<Vec<_>>(), [120_000, 60_000, 60_000]);
    let history = |at: usize| signals[at].history.clone();
    assert!(history(0).len() > 2, "{:?}", history(0));
    assert_eq!(history(0), vec![0.9; history(0).len()]);
    assert_eq!(history(1), vec![0.1; history(0).len()]);
    let metrics: Vec<_> = view.input.metrics.iter().map(|m| (m.name.as_str(), m.signal)).collect();
    assert_eq!(metrics, [("qps", 2), ("cpu", 1)], "in the order of the spec");
    // The same name with another query is another signal.
    let custom = |query: &str| SignalWant { name: "loss".into(), query: Some(query.into()), ..want(60, 600) };
    for query in ["sum(a)", "sum(b)"] {
        look.wants = vec![custom(query)];
        look.signals = crate::common::signals(&look.job, &look.wants, &[(&look.pods[0].name.clone(), 0.5)]);
        let view = look.at(NOW.plus(secs(20))).view();
        assert!(view.input.signals[0].history.is_empty(), "{query}");
        remember(&mut look.memory, &view);
        assert_eq!(look.memory.history.len(), 1);
    }
}

#[test]
fn the_seed_is_of_the_job_and_the_decision() {
    let mut look = cpu_job(1, &[0.5]);
    let first = look.view().input.seed;
    assert_eq!(first, look.view().input.seed);
    look.memory.sequence += 1;
    assert_ne!(first, look.view().input.seed);
}

proptest! {
    /// Whatever the source says, the view has finite values and columns of one length.
    #[test]
    fn any_input_makes_a_sound_view(
        values in proptest::collection::vec(any::<f64>(), 0..6),
        ages in proptest::collection::vec(0u64..10_000, 6),
        size in 1u32..6,
    ) {
        let mut look = cpu_job(size, &values);
        for at in 0..values.len().min(look.pods.len()) {
            set(&mut look, at, values[at], ages[at]);
        }
        let view = look.view();
        let s = &view.input.signals[0];
        let n = view.input.workers.index.len();
        prop_assert_eq!([s.values.len(), s.requests.len(), s.sampled_ms.len(), view.gauges[0].suspect.len()], [n; 4]);
        prop_assert!(s.values.iter().chain(&s.requests).all(|v| v.is_finite()));
        prop_assert!((0.0..=1.0).contains(&s.coverage));
        prop_assert!(s.sampled_ms.iter().zip(&s.values).all(|(t, v)| *t > 0 || *v == 0.0));
        prop_assert_eq!(s.quality == Quality::Ok, !view.gauges[0].suspect.contains(&true));
    }
}
