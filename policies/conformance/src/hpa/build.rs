//! Inputs as the Go tests describe them: pods of two equal containers, levels in milli-units.

use eto_policy_sdk::testing::{Fixture, FixtureStep};
use serde_json::{Map, Value, json};

/// The time of every row, milliseconds.
pub(super) const NOW: u64 = 1_800_000_000_000;
/// The Go tests run with these instead of the defaults.
pub(super) const CONFIG: &str = r#"{"cpuInitializationPeriodSeconds":120,"initialReadinessDelaySeconds":10}"#;
const MINUTE: u64 = 60_000;

/// A row under construction.
#[derive(Clone)]
pub(super) struct Row {
    name: String,
    current: u32,
    kind: &'static str,
    metric: &'static str,
    target: Value,
    containers: f64,
    levels: Vec<f64>,
    requests: Vec<f64>,
    ready: String,
    start: String,
    phases: String,
    deleted: String,
    tolerance: (f64, f64),
}

/// A row of a CPU utilisation: present size, target in per cent, level of each container in milli-cores.
pub(super) fn cpu(name: &str, current: u32, target: u32, levels: &[f64]) -> Row {
    Row {
        name: format!("A {name}"),
        current,
        kind: "Resource",
        metric: "cpu",
        target: json!({ "Utilization": target }),
        containers: 2.0,
        levels: levels.to_vec(),
        requests: Vec::new(),
        ready: String::new(),
        start: String::new(),
        phases: String::new(),
        deleted: String::new(),
        tolerance: (0.1, 0.1),
    }
}

/// A row of a Pods metric: present size, target and samples in milli-units.
pub(super) fn pods(name: &str, current: u32, target: f64, levels: &[f64]) -> Row {
    let mut row = cpu("", current, 1, levels);
    (row.name, row.kind, row.metric, row.containers) = (format!("B {name}"), "Pods", "qps", 1.0);
    row.target = json!({ "AverageValue": target / 1000.0 });
    row
}

impl Row {
    /// Only one container is measured.
    pub(super) fn container(mut self) -> Self {
        (self.kind, self.containers) = ("ContainerResource", 1.0);
        self
    }
    /// Request of each container in milli-units; the last one stands for the rest (1000 if there is none).
    pub(super) fn requests(mut self, requests: &[f64]) -> Self {
        self.requests = requests.to_vec();
        self
    }
    /// `T` ready, `F` not; the rest is ready.
    pub(super) fn ready(mut self, ready: &str) -> Self {
        ready.clone_into(&mut self.ready);
        self
    }
    /// `H` started just now, `C` long ago.
    pub(super) fn start(mut self, start: &str) -> Self {
        start.clone_into(&mut self.start);
        self
    }
    /// `R` running, `P` pending, `F` failed; its length is the number of pods.
    pub(super) fn phases(mut self, phases: &str) -> Self {
        phases.clone_into(&mut self.phases);
        self
    }
    /// `D` deleted; its length is the number of pods.
    pub(super) fn deleted(mut self, deleted: &str) -> Self {
        deleted.clone_into(&mut self.deleted);
        self
    }
    /// Tolerance down and up.
    pub(super) fn tolerance(mut self, down: f64, up: f64) -> Self {
        self.tolerance = (down, up);
        self
    }

    /// What must come out: the size, and the measured value of the first reason.
    pub(super) fn gives(self, replicas: u32, measured: f64) -> Fixture {
        let expect = json!({ "target": replicas, "reasons": [{ "value": measured }] });
        self.expecting(&expect)
    }

    /// What must come out, in the form of a fixture's `expect`.
    pub(super) fn expecting(self, expect: &Value) -> Fixture {
        fixture(&self.name.clone(), self.input(), expect)
    }

    fn input(&self) -> Value {
        let count = [self.levels.len(), self.phases.len(), self.deleted.len(), self.ready.len(), self.start.len()];
        let count = count.into_iter().max().unwrap_or(0);
        let at = |text: &str, pod: usize| text.chars().nth(pod).unwrap_or(' ');
        let workers: Vec<Value> = (0..count)
            .map(|pod| {
                let started = NOW - if at(&self.start, pod) == 'H' { MINUTE / 2 } else { 60 * MINUTE };
                let phase = match at(&self.phases, pod) {
                    'P' => "Pending",
                    'F' => "Failed",
                    _ => "Running",
                };
                let ready = if at(&self.ready, pod) == 'F' { "NotReady" } else { "Ready" };
                json!({ "phase": phase, "ready": ready, "started_ms": started, "ready_changed_ms": started,
                        "deleting": at(&self.deleted, pod) == 'D' })
            })
            .collect();
        let request = |pod: usize| self.requests.get(pod).or(self.requests.last()).copied().unwrap_or(1000.0);
        let amount = |milli: f64| milli * self.containers / 1000.0;
        let signal = json!({
            "values": (0..count).map(|p| self.levels.get(p).map(|l| amount(*l))).collect::<Vec<_>>(),
            "requests": (0..count).map(|p| amount(request(p))).collect::<Vec<_>>(),
            "sampled_ms": (0..count).map(|p| if p < self.levels.len() { NOW } else { 0 }).collect::<Vec<_>>(),
            "window_ms": MINUTE,
        });
        input(self.current, None, &Value::Array(workers), &signal, &self.metric_json(), self.tolerance)
    }

    fn metric_json(&self) -> Value {
        json!({ "kind": self.kind, "name": self.metric, "signal": 0, "target": self.target })
    }
}

/// An input with one metric.
pub(super) fn input(
    current: u32,
    status: Option<u32>,
    workers: &Value,
    signal: &Value,
    metric: &Value,
    tolerance: (f64, f64),
) -> Value {
    let mut signals = Map::new();
    signals.insert(metric["name"].as_str().unwrap_or_default().to_owned(), signal.clone());
    let pods = workers.as_array().map_or(0, Vec::len);
    json!({
        "now_ms": NOW,
        "config": CONFIG,
        "workers": workers,
        "signals": signals,
        "metrics": [metric],
        "bounds": { "min": 0, "max": 100_000, "tolerance_down": tolerance.0, "tolerance_up": tolerance.1 },
        "sizes": { "replicas": current, "target": current, "current": status.map_or(json!(pods), |s| json!(s)) },
    })
}

/// A row as a fixture.
pub(super) fn fixture(name: &str, input: Value, expect: &Value) -> Fixture {
    let expect = expect.as_object().cloned().unwrap_or_default();
    Fixture { name: name.to_owned(), steps: vec![FixtureStep { input, expect }] }
}
