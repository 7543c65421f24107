//! `TestGroupPods`: which class a pod falls into. A class is not shown by the policy, but it follows from two answers: the
//! pod under test stands beside one that counts, once while both are busy and once while both idle.

use eto_policy_sdk::testing::{Fixture, FixtureStep};
use serde_json::{Value, json};

use super::build::{NOW, fixture, input};

const SECOND: u64 = 1000;
const MINUTE: u64 = 60 * SECOND;

/// The classes, as the sizes that come out busy (150 % beside 400 %) and idle (50 % beside 20 %), target 100 %, size 3.
#[derive(Clone, Copy)]
enum Class {
    /// 550 % of two; 70 % of two.
    Ready,
    /// 150 % of one; 50 % of one.
    Ignored,
    /// 150 % of two is on the other side of the target: no change; not counted when idle.
    Unready,
    /// As unready when busy; filled with 100 % when idle.
    Missing,
}

impl Class {
    fn sizes(self) -> (u32, u32) {
        match self {
            Class::Ready => (6, 1),
            Class::Ignored => (2, 1),
            Class::Unready => (3, 1),
            Class::Missing => (3, 2),
        }
    }
}

/// The pod under test; times are milliseconds before now.
#[derive(Clone, Copy)]
struct Pod {
    phase: &'static str,
    ready: &'static str,
    start: Option<u64>,
    changed: Option<u64>,
    sample: Option<u64>,
    window: u64,
    deleting: bool,
}

const PLAIN: Pod = Pod {
    phase: "Succeeded",
    ready: "Ready",
    start: Some(60 * MINUTE),
    changed: Some(60 * MINUTE),
    sample: Some(0),
    window: 60 * SECOND,
    deleting: false,
};

pub(super) fn rows() -> Vec<Fixture> {
    let not_ready = Pod { ready: "NotReady", start: Some(10 * MINUTE), window: 30 * SECOND, ..PLAIN };
    let starting = Pod { start: Some(MINUTE), changed: Some(30 * SECOND), window: 30 * SECOND, ..PLAIN };
    let bare = Pod { ready: "Unknown", start: None, changed: None, ..PLAIN };
    let pending = Pod { phase: "Pending", ..bare };
    let no_sample = Pod { sample: None, ..PLAIN };
    let rows = [
        ("memory pod", "memory", bare, Class::Ready),
        ("CPU pod without a Ready condition", "cpu", bare, Class::Unready),
        ("starting, sampled a whole window after Ready", "cpu", starting, Class::Ready),
        ("starting, sampled within a window of Ready", "cpu", Pod { window: MINUTE, ..starting }, Class::Unready),
        ("never ready", "cpu", Pod { changed: Some(10 * MINUTE - 6 * SECOND), ..not_ready }, Class::Unready),
        (
            "past the initialisation period",
            "cpu",
            Pod { start: Some(3 * MINUTE), changed: Some(3 * MINUTE), sample: Some(2 * MINUTE), ..PLAIN },
            Class::Ready,
        ),
        ("was ready once", "cpu", Pod { changed: Some(9 * MINUTE), ..not_ready }, Class::Ready),
        (
            "unready exactly at the end of the delay",
            "cpu",
            Pod { changed: Some(10 * MINUTE - 10 * SECOND), ..not_ready },
            Class::Ready,
        ),
        ("no sample", "cpu", no_sample, Class::Missing),
        ("pending", "cpu", pending, Class::Unready),
        ("deleted", "cpu", Pod { deleting: true, ..PLAIN }, Class::Ignored),
        ("deleted while pending", "cpu", Pod { deleting: true, ..pending }, Class::Ignored),
        ("failed", "cpu", Pod { phase: "Failed", ..PLAIN }, Class::Ignored),
    ];
    let mut fixtures: Vec<Fixture> =
        rows.into_iter().map(|(name, metric, pod, class)| case(name, metric, pod, class)).collect();
    fixtures.push(void());
    fixtures.push(mixed(pending, no_sample));
    fixtures
}

fn worker(pod: Pod) -> Value {
    let time = |ago: Option<u64>| ago.map_or(0, |ago| NOW - ago);
    json!({ "phase": pod.phase, "ready": pod.ready, "started_ms": time(pod.start),
            "ready_changed_ms": time(pod.changed), "deleting": pod.deleting })
}

fn step(metric: &str, pods: &[(Pod, f64)], size: u32) -> FixtureStep {
    let workers = pods.iter().map(|(pod, _)| worker(*pod)).collect();
    let window = pods.last().map_or(MINUTE, |(pod, _)| pod.window);
    let signal = json!({
        "values": pods.iter().map(|(pod, level)| pod.sample.map_or(0.0, |_| *level)).collect::<Vec<_>>(),
        "sampled_ms": pods.iter().map(|(pod, _)| pod.sample.map_or(0, |ago| NOW - ago)).collect::<Vec<_>>(),
        "window_ms": window,
    });
    let metric = json!({ "kind": "Resource", "name": metric, "signal": 0, "target": { "Utilization": 100 } });
    let input = input(3, None, &Value::Array(workers), &signal, &metric, (0.1, 0.1));
    let expect = json!({ "target": size }).as_object().cloned().unwrap_or_default();
    FixtureStep { input, expect }
}

fn case(name: &str, metric: &str, pod: Pod, class: Class) -> Fixture {
    let (busy, idle) = class.sizes();
    let steps = vec![step(metric, &[(PLAIN, 1.5), (pod, 4.0)], busy), step(metric, &[(PLAIN, 0.5), (pod, 0.2)], idle)];
    Fixture { name: format!("F {name}"), steps }
}

fn void() -> Fixture {
    let metric = json!({ "kind": "Resource", "name": "cpu", "signal": 0, "target": { "Utilization": 100 } });
    let input = input(3, None, &json!([]), &json!([]), &metric, (0.1, 0.1));
    fixture("F void", input, &json!({ "target": null, "reasons": ["FailedGetResourceMetric"] }))
}

/// One of each: busy, the two without a sample count 0 (90 + 0 + 0 of 300 is 30 %, on the other side: no change); idle,
/// only the missing one is filled (20 + 100 of 200 is 60 %, of two: 2).
fn mixed(unready: Pod, missing: Pod) -> Fixture {
    let steps = vec![
        step("cpu", &[(PLAIN, 1.5), (unready, 0.0), (missing, 0.0)], 3),
        step("cpu", &[(PLAIN, 0.2), (unready, 0.0), (missing, 0.0)], 2),
    ];
    Fixture { name: "F one of each".to_owned(), steps }
}
