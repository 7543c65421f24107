//! Jobs of one namespace that ask for the same query: whose its answer is.

use eto_engine::contract::{Direction, MetricKind, MetricTarget, Quality, SignalShape, SignalWant};
use eto_engine::job::JobSpec;
use eto_engine::signals::{Sample, series_key};
use eto_engine::wants::claimed;

use crate::common::*;

fn want(query: &str) -> SignalWant {
    SignalWant {
        name: "backlog".into(),
        query: Some(query.into()),
        window_seconds: 0,
        history_seconds: 0,
        required: true,
        direction: Direction::MoreMeansGrow,
        low: 0.0,
        high: 1000.0,
    }
}

fn named(namespace: &str, name: &str) -> JobSpec {
    let mut spec = job(1, 4, 10);
    spec.key.namespace = namespace.into();
    spec.key.name = name.into();
    spec.scaling = Some(scaling(vec![], true));
    spec
}

/// The job `demo` of `team-a` with this query, where there are these jobs with the same, and a single series with these
/// labels beside the namespace's.
fn look(query: &str, others: &[(&str, &str)], labels: &[(&str, &str)]) -> Look {
    let mut look = Look::new(named("team-a", "demo"), 4, vec![want(query)], &[]);
    let sample = Sample { value: 10.0, at: NOW };
    for data in look.signals.signals.values_mut() {
        data.per_namespace.insert("team-a".into(), sample);
        let key = series_key(labels.iter().copied());
        if !key.is_empty() {
            data.per_key.entry("team-a".into()).or_default().insert(key, sample);
        }
    }
    for (namespace, name) in [("team-a", "demo")].iter().chain(others) {
        let spec = named(namespace, name);
        for query in claimed(&spec, &look.wants) {
            look.signals.claims.add(&spec.key, query.clone(), query);
        }
    }
    look
}

fn seen(look: &Look) -> (Quality, Option<f64>) {
    let view = look.view();
    assert_eq!(view.input.signals[0].shape, SignalShape::Job);
    (view.seen[0].quality, view.seen[0].mean)
}

const OWN: (Quality, Option<f64>) = (Quality::Ok, Some(10.0));
const NOBODYS: (Quality, Option<f64>) = (Quality::Absent, None);

#[test]
fn the_only_job_with_a_query_has_its_answer() {
    assert_eq!(seen(&look("sum(q)", &[], &[])), OWN);
    assert_eq!(seen(&look("sum(q)", &[("team-b", "other")], &[])), OWN, "each namespace has an answer of its own");
}

#[test]
fn an_answer_that_may_be_of_either_job_is_of_none() {
    let look = look("sum(q)", &[("team-a", "a"), ("team-a", "z"), ("team-a", "b")], &[("queue", "x")]);
    assert_eq!(seen(&look), NOBODYS);
    let note = look.view().seen[0].note.clone().unwrap();
    for part in ["\"a\"", "sum by (elastic_job)", "$job"] {
        assert!(note.contains(part), "{note}");
    }
}

#[test]
fn an_answer_that_says_whose_it_is_is_shared_by_none() {
    let other = [("team-a", "other")];
    assert_eq!(seen(&look("sum by (elastic_job) (q)", &other, &[("elastic_job", "demo")])), OWN);
    assert_eq!(seen(&look("q", &other, &[("elastic_job", "demo"), ("instance", "x")])), OWN);
    assert_eq!(seen(&look("sum(q{run=\"$job\"})", &other, &[])), OWN, "each job has a query of its own");
}

#[test]
fn a_series_of_another_job_is_not_ours_even_if_it_is_the_only_one() {
    for labels in [&[("elastic_job", "other")][..], &[("a", "x,elastic_job=\"demo\""), ("elastic_job", "demo-2")]] {
        let view = look("sum by (elastic_job) (q)", &[], labels).view();
        assert_eq!((view.seen[0].quality, view.seen[0].mean), NOBODYS, "{labels:?}");
        let note = view.seen[0].note.clone().unwrap();
        assert!(note.contains("this job's name in the label elastic_job"), "{note}");
    }
    let fake = look("q", &[], &[("a", ",elastic_job=\"other\""), ("my_elastic_job", "other")]);
    assert_eq!(seen(&fake), OWN, "no label of that name");
}

#[test]
fn samples_of_pods_are_of_whoever_has_the_pods() {
    let mut look = look("sum by (pod) (q)", &[("team-a", "other")], &[]);
    for data in look.signals.signals.values_mut() {
        let samples = look.pods.iter().map(|p| (p.name.clone(), Sample { value: 2.0, at: NOW }));
        data.per_pod.insert("team-a".into(), samples.collect());
    }
    let view = look.view();
    assert_eq!((view.input.signals[0].shape, view.seen[0].mean), (SignalShape::PerWorker, Some(2.0)));
}

#[test]
fn metrics_that_are_of_no_job_may_be_followed_by_several() {
    let follow = |kind| {
        let mut spec = named("team-a", "demo");
        spec.scaling = Some(scaling(vec![metric(kind, "q", MetricTarget::AverageValue(1.0))], false));
        claimed(&spec, &[])
    };
    assert_eq!(follow(MetricKind::External), Vec::<String>::new());
    assert_eq!(follow(MetricKind::Object), Vec::<String>::new());
    assert_eq!(follow(MetricKind::Pods), ["q"], "workers' own, so of one job");
}

#[test]
fn a_second_job_neither_shrinks_nor_grows_the_first() {
    let policy = native(|input| {
        let signal = &input.signals[0];
        // As many workers as there are tens in the backlog; a policy that takes what is missing for zero.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let size = (signal.values[0] / 10.0).ceil() as u32;
        Some(size.max(1))
    });
    // The second decision is after the stabilisation window.
    let decide = |mut look: Look| {
        look.decide(&policy);
        look.at(NOW.plus(secs(400))).decide(&policy)
    };
    assert_eq!(decide(look("sum(q)", &[], &[])).target, 1, "its own small backlog asks for less");
    let decision = decide(look("sum(q)", &[("team-a", "other")], &[]));
    assert_eq!((decision.from, decision.proposed, decision.target), (4, Some(1), 4), "{:?}", decision.limits);
}
