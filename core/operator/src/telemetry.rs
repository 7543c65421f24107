//! The operator's own metrics. Labels are bounded: names of policies, verbs, kinds; never a job, unless asked for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

type Float = Gauge<f64, AtomicU64>;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Request {
    verb: &'static str,
    resource: String,
    code: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct By {
    limiter: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PolicyFailure {
    policy: String,
    kind: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PolicyName {
    policy: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SignalName {
    signal: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SignalQuality {
    quality: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct JobPhase {
    phase: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NodeState {
    state: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct JobName {
    namespace: String,
    job: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Resource {
    resource: &'static str,
}

/// What became of one evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evaluated {
    /// The target stays.
    Unchanged,
    Grow,
    Shrink,
    /// The policy did not answer; the size is held.
    Failed,
    /// The answer came for a spec, round or job that is no more.
    Late,
}

impl Evaluated {
    fn name(self) -> &'static str {
        match self {
            Evaluated::Unchanged => "unchanged",
            Evaluated::Grow => "grow",
            Evaluated::Shrink => "shrink",
            Evaluated::Failed => "failed",
            Evaluated::Late => "late",
        }
    }
}

/// Handles to all metrics; cheap to clone.
#[derive(Clone)]
pub struct Telemetry {
    registry: Arc<Registry>,
    requests: Family<Request, Counter>,
    evaluations: Family<Outcome, Counter>,
    limits: Family<By, Counter>,
    policy_failures: Family<PolicyFailure, Counter>,
    policy_fuel: Family<PolicyName, Counter>,
    signal_age: Family<SignalName, Float>,
    signal_trouble: Family<SignalName, Gauge>,
    signals_seen: Family<SignalQuality, Counter>,
    cycle: Histogram,
    overruns: Counter,
    overdue: Gauge,
    logged: Family<Outcome, Counter>,
    gather: Histogram,
    jobs: Family<JobPhase, Gauge>,
    nodes: Family<NodeState, Gauge>,
    pods_created: Counter,
    pods_deleted: Counter,
    pods_refused: Counter,
    status_writes: Counter,
    policy_state_writes: Counter,
    write_failures: Family<Resource, Counter>,
    events_dropped: Counter,
    queue: Family<Resource, Gauge>,
    leader: Gauge,
    revision: Gauge,
    swaps: Family<Outcome, Counter>,
    watch_errors: Family<Resource, Counter>,
    job_target: Family<JobName, Gauge>,
    job_ready: Family<JobName, Gauge>,
    gateway: eto_gateway::Metrics,
    assignments: Family<Outcome, Counter>,
    images: Family<Outcome, Counter>,
    spans: Family<Outcome, Counter>,
}

impl std::fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Telemetry")
    }
}

impl Default for Telemetry {
    fn default() -> Self {
        let seconds = || Histogram::new(exponential_buckets(0.001, 2.0, 16));
        let mut telemetry = Telemetry {
            registry: Arc::default(),
            requests: Family::default(),
            evaluations: Family::default(),
            limits: Family::default(),
            policy_failures: Family::default(),
            policy_fuel: Family::default(),
            signal_age: Family::default(),
            signal_trouble: Family::default(),
            signals_seen: Family::default(),
            cycle: seconds(),
            overruns: Counter::default(),
            overdue: Gauge::default(),
            logged: Family::default(),
            gather: seconds(),
            jobs: Family::default(),
            nodes: Family::default(),
            pods_created: Counter::default(),
            pods_deleted: Counter::default(),
            pods_refused: Counter::default(),
            status_writes: Counter::default(),
            policy_state_writes: Counter::default(),
            write_failures: Family::default(),
            events_dropped: Counter::default(),
            queue: Family::default(),
            leader: Gauge::default(),
            revision: Gauge::default(),
            swaps: Family::default(),
            watch_errors: Family::default(),
            job_target: Family::default(),
            job_ready: Family::default(),
            gateway: eto_gateway::Metrics::default(),
            assignments: Family::default(),
            images: Family::default(),
            spans: Family::default(),
        };
        telemetry.registry = Arc::new(telemetry.register());
        telemetry
    }
}

impl Telemetry {
    fn register(&self) -> Registry {
        let mut all = Registry::with_prefix("eto");
        let r = &mut all;
        r.register(
            "api_requests",
            "Requests to the API server, watches counted when they begin",
            self.requests.clone(),
        );
        r.register("evaluations", "Evaluations of jobs by outcome", self.evaluations.clone());
        r.register("decision_limits", "Proposals changed, by limiter", self.limits.clone());
        r.register("policy_failures", "Calls that gave no answer, by policy and kind", self.policy_failures.clone());
        r.register("policy_fuel", "Fuel burnt, by policy", self.policy_fuel.clone());
        r.register("signal_age_seconds", "Since when a signal has not been read", self.signal_age.clone());
        r.register("signal_trouble", "1 while a signal can't be read whole", self.signal_trouble.clone());
        r.register("signals_seen", "Signals read by decisions, by quality", self.signals_seen.clone());
        r.register("cycle_duration_seconds", "Time one evaluation cycle took, targets written", self.cycle.clone());
        r.register("cycle_overruns", "Cycles that took longer than their period", self.overruns.clone());
        r.register("cycle_overdue_jobs", "Jobs evaluated later than due in the last cycle", self.overdue.clone());
        r.register("decision_log_entries", "Decisions for the log: written, dropped, failed", self.logged.clone());
        r.register("gather_duration_seconds", "Time to read all signals", self.gather.clone());
        r.register("jobs", "ElasticJobs by phase", self.jobs.clone());
        r.register(
            "nodes",
            "Nodes that are to go, have a fault, are in quarantine, or do not renew their lease, by state",
            self.nodes.clone(),
        );
        r.register("pods_created", "Pods created", self.pods_created.clone());
        r.register("pods_deleted", "Pods deleted", self.pods_deleted.clone());
        r.register("pods_refused", "Pods the API server refused (quota, admission)", self.pods_refused.clone());
        r.register("status_writes", "Writes of a job's status", self.status_writes.clone());
        let writes = self.policy_state_writes.clone();
        r.register("policy_state_writes", "Writes of a policy's state that is too large for status", writes);
        r.register("write_failures", "Writes that failed and are tried again", self.write_failures.clone());
        r.register("events_dropped", "Events not written: repeats, or too many at once", self.events_dropped.clone());
        r.register("queue_length", "Jobs waiting, by queue", self.queue.clone());
        r.register("leader", "1 while this replica acts", self.leader.clone());
        r.register("policy_registry_revision", "Grows with every change of the policies served", self.revision.clone());
        r.register("policy_swaps", "Changes of policy files, by outcome", self.swaps.clone());
        r.register("watch_errors", "Watches that broke and were begun again", self.watch_errors.clone());
        r.register("job_target_replicas", "Target of a job (server.per-job-metrics)", self.job_target.clone());
        r.register("job_ready_replicas", "Ready workers of a job (server.per-job-metrics)", self.job_ready.clone());
        self.gateway.register(r);
        r.register("assignments", "Rounds told to agents, by outcome", self.assignments.clone());
        r.register("image_reads", "Readings of an image's command from its registry, by outcome", self.images.clone());
        r.register("span_batches", "Batches of spans for the collector, by outcome", self.spans.clone());
        all
    }

    /// The metrics in Prometheus' text form.
    pub fn page(&self) -> Result<String, std::fmt::Error> {
        let mut page = String::new();
        prometheus_client::encoding::prometheus_text::encode(&mut page, &self.registry)?;
        Ok(page)
    }

    pub fn api_request(&self, verb: &'static str, resource: &str, code: Option<u16>) {
        let code = code.map_or_else(|| "none".to_owned(), |c| c.to_string());
        self.requests.get_or_create(&Request { verb, resource: resource.to_owned(), code }).inc();
    }

    pub fn evaluated(&self, outcome: Evaluated) {
        self.evaluations.get_or_create(&Outcome { outcome: outcome.name() }).inc();
    }

    pub fn limited(&self, limiter: eto_engine::decision::Limiter) {
        self.limits.get_or_create(&By { limiter: format!("{limiter:?}") }).inc();
    }

    pub fn policy_failed(&self, policy: &str, kind: eto_engine::policy::FailureKind) {
        self.policy_failures
            .get_or_create(&PolicyFailure { policy: policy.to_owned(), kind: format!("{kind:?}") })
            .inc();
    }

    pub fn fuel(&self, policy: &str, fuel: u64) {
        self.policy_fuel.get_or_create(&PolicyName { policy: policy.to_owned() }).inc_by(fuel);
    }

    /// A signal's state after a gathering; `age` since it was last read whole.
    pub fn signal(&self, name: &str, age: Duration, trouble: bool) {
        let name = SignalName { signal: name.to_owned() };
        self.signal_age.get_or_create(&name).set(age.as_secs_f64());
        self.signal_trouble.get_or_create(&name).set(i64::from(trouble));
    }

    pub fn signal_seen(&self, quality: eto_engine::contract::Quality) {
        self.signals_seen.get_or_create(&SignalQuality { quality: format!("{quality:?}") }).inc();
    }

    pub fn gathered(&self, took: Duration) {
        self.gather.observe(took.as_secs_f64());
    }

    pub fn cycle(&self, took: Duration, period: Duration, overdue: usize) {
        self.cycle.observe(took.as_secs_f64());
        if took > period {
            self.overruns.inc();
        }
        self.overdue.set(i64::try_from(overdue).unwrap_or(i64::MAX));
    }

    /// What the decision log has counted since it was opened. A log that loses lines must not look whole.
    pub fn logged(&self, written: u64, dropped: u64, failed: u64) {
        for (outcome, n) in [("written", written), ("dropped", dropped), ("failed", failed)] {
            self.logged.get_or_create(&Outcome { outcome }).inner().store(n, Ordering::Relaxed);
        }
    }

    /// How many jobs are in each phase.
    pub fn phases(&self, counts: &[(String, usize)]) {
        self.jobs.clear();
        for (phase, n) in counts {
            let n = i64::try_from(*n).unwrap_or(i64::MAX);
            self.jobs.get_or_create(&JobPhase { phase: phase.clone() }).set(n);
        }
    }

    /// How many nodes are in each state that jobs avoid.
    pub fn nodes(&self, counts: &[(&'static str, usize)]) {
        for (state, n) in counts {
            self.nodes.get_or_create(&NodeState { state }).set(i64::try_from(*n).unwrap_or(i64::MAX));
        }
    }

    pub fn pod_created(&self) {
        self.pods_created.inc();
    }

    pub fn pod_deleted(&self) {
        self.pods_deleted.inc();
    }

    pub fn pod_refused(&self) {
        self.pods_refused.inc();
    }

    pub fn status_written(&self) {
        self.status_writes.inc();
    }

    pub fn policy_state_written(&self) {
        self.policy_state_writes.inc();
    }

    pub fn write_failed(&self, resource: &'static str) {
        self.write_failures.get_or_create(&Resource { resource }).inc();
    }

    pub fn events_dropped(&self, n: u64) {
        self.events_dropped.inc_by(n);
    }

    pub fn queued(&self, queue: &'static str, n: usize) {
        self.queue.get_or_create(&Resource { resource: queue }).set(i64::try_from(n).unwrap_or(i64::MAX));
    }

    pub fn leading(&self, leading: bool) {
        self.leader.set(i64::from(leading));
    }

    pub fn registry_revision(&self, revision: u64) {
        self.revision.set(i64::try_from(revision).unwrap_or(i64::MAX));
    }

    pub fn swapped(&self, outcome: &'static str) {
        self.swaps.get_or_create(&Outcome { outcome }).inc();
    }

    pub fn watch_broke(&self, resource: &'static str) {
        self.watch_errors.get_or_create(&Resource { resource }).inc();
    }

    /// What the gateway counts itself.
    pub fn gateway(&self) -> &eto_gateway::Metrics {
        &self.gateway
    }

    pub fn assigned(&self, outcome: &'static str) {
        self.assignments.get_or_create(&Outcome { outcome }).inc();
    }

    pub fn image_read(&self, done: bool) {
        self.images.get_or_create(&Outcome { outcome: if done { "read" } else { "failed" } }).inc();
    }

    pub fn spans_sent(&self, done: bool) {
        self.spans.get_or_create(&Outcome { outcome: if done { "sent" } else { "failed" } }).inc();
    }

    /// Series of one job; only with `server.per-job-metrics`.
    pub fn job(&self, namespace: &str, job: &str, target: u32, ready: u32) {
        let name = JobName { namespace: namespace.to_owned(), job: job.to_owned() };
        self.job_target.get_or_create(&name).set(i64::from(target));
        self.job_ready.get_or_create(&name).set(i64::from(ready));
    }

    /// This replica leads no more: what it said of jobs is the next leader's to say.
    pub fn stands_by(&self) {
        self.jobs.clear();
        self.job_target.clear();
        self.job_ready.clear();
    }

    pub fn job_gone(&self, namespace: &str, job: &str) {
        let name = JobName { namespace: namespace.to_owned(), job: job.to_owned() };
        self.job_target.remove(&name);
        self.job_ready.remove(&name);
    }
}
