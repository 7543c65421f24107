//! Which signals a job needs: what its `metrics[]` ask for and what its policy wants.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::contract::{Direction, MetricKind, MetricTarget, SignalWant};
use crate::job::{JobSpec, LabelExpression, LabelIs, MetricSpec};
use crate::signals::{SignalId, builtin, series_key};

/// Averaging window where nobody asks for another, in seconds.
pub const DEFAULT_WINDOW_S: u32 = 60;
/// Shortest and longest window and history that can be asked for, in seconds.
pub const WINDOW_RANGE_S: (u32, u32) = (15, 3600);
/// Longest history that can be asked for, in seconds.
pub const MAX_HISTORY_S: u32 = 86_400;

/// What to assume of a sample that is missing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fill {
    /// A module's own want: the range a sample can have.
    Range {
        /// Lowest.
        low: f64,
        /// Highest.
        high: f64,
    },
    /// A `metrics[]` entry: HPA's assumptions.
    Metric(MetricTarget),
}

/// One element of the `signals` that a policy is given, before it is measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// What to fetch; `None` where no source can serve it.
    pub id: Option<SignalId>,
    /// Name under which the policy finds it.
    pub name: String,
    /// Position in `JobSpec::scaling.metrics`, if it serves one.
    pub metric: Option<usize>,
    /// `ContainerResource`: the container whose request counts.
    pub container: Option<String>,
    /// Whether it must be one value for the job (`Object`, `External`).
    pub job_level: bool,
    /// Which of a namespace's series is meant (see [`series_key`]); `None` = the job's own, or the only one.
    pub key: Option<String>,
    /// The policy can't decide without it.
    pub required: bool,
    /// Whether more of it means more workers.
    pub direction: Direction,
    /// What a missing sample may be.
    pub fill: Fill,
    /// History to hand over, in seconds.
    pub history_s: u32,
    /// Lowest value that can be right; a sample below it is invalid.
    pub floor: f64,
    /// Why it can't be served, and what to write instead.
    pub unservable: Option<String>,
}

impl Wanted {
    /// Whether it is the built-in throughput: one value for the job that is nevertheless its workers' doing.
    pub(crate) fn is_throughput(&self) -> bool {
        self.id.as_ref().is_some_and(|id| id.query.is_none() && id.name == builtin::THROUGHPUT)
    }

    /// The custom query whose only series the job takes for its own, whatever its labels. `Object` and `External` metrics
    /// are not among them: as in HPA they are of something else, and several jobs may follow one.
    pub(crate) fn claimed(&self) -> Option<&str> {
        let query = self.id.as_ref()?.query.as_deref();
        query.filter(|_| !self.job_level)
    }
}

/// The custom queries whose answer the job takes for its own where it names no pod and no job.
pub fn claimed(job: &JobSpec, wants: &[SignalWant]) -> Vec<String> {
    wanted(job, wants).iter().filter_map(Wanted::claimed).map(str::to_owned).collect()
}

/// The signals to fetch for a job, without duplicates, in a stable order.
pub fn signal_ids(job: &JobSpec, wants: &[SignalWant]) -> Vec<SignalId> {
    let mut ids: Vec<SignalId> = wanted(job, wants).into_iter().filter_map(|w| w.id).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// The signals of a job in the order in which its policy is given them: first the policy's own wants, so that it finds
/// what it asked for under a name that a metric has too, then one for each entry of `metrics[]`. A want and a metric of the
/// same built-in signal, container and window are one, which is required if either says so.
pub fn wanted(job: &JobSpec, wants: &[SignalWant]) -> Vec<Wanted> {
    let is_same = |a: &Wanted, b: &Wanted| a.metric.is_none() && a.id.is_some() && a.id == b.id;
    let mut all: Vec<Wanted> = Vec::with_capacity(wants.len());
    for want in wants.iter().map(|w| of_want(job, w)) {
        match all.iter_mut().find(|w| is_same(w, &want)) {
            Some(same) => {
                same.required |= want.required;
                same.history_s = same.history_s.max(want.history_s);
            }
            None => all.push(want),
        }
    }
    let metrics = job.scaling.as_ref().map(|s| s.metrics.as_slice()).unwrap_or_default();
    for metric in metrics.iter().enumerate().map(|(at, m)| of_metric(at, m)) {
        let built_in = metric.id.as_ref().is_some_and(|id| id.query.is_none());
        match all.iter_mut().find(|w| built_in && is_same(w, &metric)) {
            Some(own) => *own = Wanted { history_s: own.history_s, ..metric },
            None => all.push(metric),
        }
    }
    all
}

fn of_want(job: &JobSpec, want: &SignalWant) -> Wanted {
    let window_s = match want.window_seconds {
        0 => DEFAULT_WINDOW_S,
        s => s.clamp(WINDOW_RANGE_S.0, WINDOW_RANGE_S.1),
    };
    let built_in = builtin::ALL.contains(&want.name.as_str());
    let unservable = (!built_in && want.query.is_none())
        .then(|| format!("the policy wants the signal {:?}, which is not built in and has no query", want.name));
    // A job's name is a DNS label, so it can't end the string that it stands in. Each such job has a query of its own.
    let query = want.query.as_ref().map(|q| q.replace("$job", &job.key.name));
    let id = SignalId { name: want.name.clone(), query, container: None, window_s };
    Wanted {
        id: unservable.is_none().then_some(id),
        name: want.name.clone(),
        metric: None,
        container: None,
        job_level: false,
        key: None,
        required: want.required,
        direction: want.direction,
        fill: Fill::Range { low: want.low, high: want.high },
        history_s: want.history_seconds.min(MAX_HISTORY_S),
        floor: if built_in && want.query.is_none() { 0.0 } else { want.low.min(0.0) },
        unservable,
    }
}

fn of_metric(at: usize, metric: &MetricSpec) -> Wanted {
    let served = source(metric);
    let (id, key, unservable) = match served {
        Ok(Source { name, query, key }) => {
            let container = metric.container.clone().filter(|_| metric.kind == MetricKind::ContainerResource);
            (Some(SignalId { name, query, container, window_s: DEFAULT_WINDOW_S }), key, None)
        }
        Err(why) => (None, None, Some(why)),
    };
    Wanted {
        name: id.as_ref().map_or_else(|| metric.name.clone(), |id| id.name.clone()),
        id,
        metric: Some(at),
        container: metric.container.clone(),
        job_level: matches!(metric.kind, MetricKind::Object | MetricKind::External),
        key,
        required: true,
        direction: Direction::MoreMeansGrow,
        fill: Fill::Metric(metric.target),
        history_s: 0,
        floor: match metric.kind {
            MetricKind::Resource | MetricKind::ContainerResource => 0.0,
            _ => f64::NEG_INFINITY,
        },
        unservable,
    }
}

/// What serves a metric.
struct Source {
    name: String,
    query: Option<String>,
    key: Option<String>,
}

fn source(metric: &MetricSpec) -> Result<Source, String> {
    let built_in = |name: &str| Ok(Source { name: name.to_owned(), query: None, key: None });
    match metric.kind {
        MetricKind::Resource | MetricKind::ContainerResource => {
            if metric.kind == MetricKind::ContainerResource && metric.container.is_none() {
                return Err(format!("metric {:?}: set containerResource.container", metric.name));
            }
            match builtin::of_resource(&metric.name) {
                Some(signal) => built_in(signal),
                None => Err(format!(
                    "resource {:?} has no signal: use cpu, memory, nvidia.com/gpu or nvidia.com/mig-*; for GPUs of other makers a \
                     metric of type Pods, by the name that their exporter gives it",
                    metric.name
                )),
            }
        }
        MetricKind::Pods => {
            let query = Some(selector(&metric.name, &metric.selector, &metric.expressions));
            Ok(Source { name: metric.name.clone(), query, key: None })
        }
        MetricKind::External if metric.name == builtin::THROUGHPUT && is_bare(metric) => built_in(builtin::THROUGHPUT),
        MetricKind::Object | MetricKind::External => Ok(summed(metric)),
    }
}

/// One sum for each value of the labels that the metric selects by, so that jobs which differ in the values alone share
/// one query; the job's own is found by its key. A described object becomes the label that Prometheus adapters give it:
/// the kind in lower case with the object's name (`service="frontend"`).
fn summed(metric: &MetricSpec) -> Source {
    let mut labels: BTreeMap<String, &str> = metric.selector.iter().map(|(k, v)| (label(k), v.as_str())).collect();
    if let Some((kind, object)) = &metric.object {
        labels.insert(label(&kind.to_ascii_lowercase()), object);
    }
    let series = selector(&metric.name, &BTreeMap::new(), &metric.expressions);
    let by = labels.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
    let (query, key) = if labels.is_empty() {
        (format!("sum({series})"), None)
    } else {
        (format!("sum by ({by}) ({series})"), Some(series_key(labels.iter().map(|(k, v)| (k.as_str(), *v)))))
    };
    Source { name: metric.name.clone(), query: Some(query), key }
}

/// Nothing is selected among its series.
fn is_bare(metric: &MetricSpec) -> bool {
    metric.selector.is_empty() && metric.expressions.is_empty()
}

/// A PromQL vector selector. To PromQL a label that is missing is an empty one.
fn selector(name: &str, labels: &BTreeMap<String, String>, expressions: &[LabelExpression]) -> String {
    let plain = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_' || c == ':')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == ':');
    let mut matchers = Vec::new();
    if !plain {
        matchers.push(format!("__name__=\"{}\"", escape(name)));
    }
    matchers.extend(labels.iter().map(|(k, v)| format!("{}=\"{}\"", label(k), escape(v))));
    matchers.extend(expressions.iter().map(|e| format!("{}{}", label(&e.key), test(&e.is))));
    let mut out = if plain { name.to_owned() } else { String::new() };
    if !matchers.is_empty() {
        let _ = write!(out, "{{{}}}", matchers.join(","));
    }
    out
}

/// Operator and value of a matcher. Prometheus anchors its patterns.
fn test(is: &LabelIs) -> String {
    let any = |values: &[String]| values.iter().map(|v| escape(&literal(v))).collect::<Vec<_>>().join("|");
    match is {
        LabelIs::In(values) => format!("=~\"{}\"", any(values)),
        LabelIs::NotIn(values) => format!("!~\"{}\"", any(values)),
        LabelIs::Exists => "!=\"\"".to_owned(),
        LabelIs::DoesNotExist => "=\"\"".to_owned(),
    }
}

/// A text as a pattern that matches it alone.
fn literal(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if r"\.+*?()|[]{}^$".contains(c) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// Prometheus' form of a label name: what is not allowed in one becomes `_`.
fn label(name: &str) -> String {
    let mut out: String = name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' }).collect();
    if out.starts_with(|c: char| c.is_ascii_digit()) || out.is_empty() {
        out.insert(0, '_');
    }
    out
}

fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
