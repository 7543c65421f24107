//! Which queries to send for a signal.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use eto_engine::signals::{JOB_LABEL, SignalId, builtin};

use crate::promql::{Custom, Forced, alternation, quote};
use crate::settings::PrometheusSettings;

/// How the answers of a request are to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// One value per pod.
    Pods,
    /// One row per GPU and exporter; shares of GPUs in use.
    Gpu,
    /// One row per GPU and exporter; shares of frame buffers in use.
    GpuMemory,
    /// One value per job, by the label [`JOB_LABEL`].
    Jobs,
    /// A custom query's result, of this one namespace or of those its series name.
    Custom {
        /// The only namespace, if the query was sent for one.
        only: Option<String>,
    },
}

/// One pair of queries: the values, and the true times of the samples behind them. An instant query alone passes samples
/// of up to five minutes ago for present ones.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) shape: Shape,
    pub(crate) values: String,
    /// `None`: nothing is read, so the values are as of the evaluation.
    pub(crate) times: Option<String>,
}

/// Labels that say whose sample it is. Where an exporter is scraped with `honor_labels: false`, the workload's are
/// `exported_*` and the plain ones are the exporter's own; very old GPU exporters write `pod_name` and `pod_namespace`.
const OWNER: &str = "namespace, pod, exported_namespace, exported_pod";

/// Marks which GPU metric a row is of.
pub(crate) const PART: &str = "eto_part";

/// Metrics of a container's cgroup.
const CPU: &str = "container_cpu_usage_seconds_total";
const MEMORY: &str = "container_memory_working_set_bytes";

/// What is sent for a signal. `custom` is its query, checked, if it has one.
pub(crate) fn plan(
    settings: &PrometheusSettings,
    id: &SignalId,
    custom: Option<&Arc<Custom>>,
    namespaces: &BTreeSet<String>,
) -> Option<Vec<Request>> {
    if namespaces.is_empty() {
        return Some(Vec::new());
    }
    if let Some(custom) = custom {
        return Some(plan_custom(settings, custom, namespaces));
    }
    let window = window(settings, id.window_s);
    let container = id.container.as_deref();
    let request = match id.name.as_str() {
        builtin::CPU => {
            let rate = |matchers: &str| format!("rate({CPU}{{{matchers}}}[{window}])");
            per_pod(settings, CPU, container, namespaces, "container, exported_container, id, cpu", &rate)
        }
        builtin::MEMORY => {
            let latest = |matchers: &str| format!("{MEMORY}{{{matchers}}}");
            per_pod(settings, MEMORY, container, namespaces, "container, exported_container", &latest)
        }
        builtin::GPU => gpu(settings, id.window_s.gt(&0).then_some(window.as_str())),
        builtin::GPU_MEMORY => gpu_memory(settings),
        builtin::THROUGHPUT => throughput(settings, namespaces, &window),
        _ => return None,
    };
    Some(vec![request])
}

/// The range for `rate`: the window asked for, but at least four scrapes, and never empty.
fn range(settings: &PrometheusSettings, window_s: u32) -> Duration {
    let asked = if window_s == 0 { Duration::from_secs(60) } else { Duration::from_secs(u64::from(window_s)) };
    asked.max(4 * settings.scrape_interval)
}

fn window(settings: &PrometheusSettings, window_s: u32) -> String {
    format!("{}ms", range(settings, window_s).as_millis())
}

/// Seconds over which [`plan`]'s requests average; 0 = the values are momentary. What a query of the job's own does with
/// time is its author's.
pub(crate) fn averaged_s(settings: &PrometheusSettings, id: &SignalId) -> u32 {
    let averages = match id.name.as_str() {
        _ if id.query.is_some() => false,
        builtin::GPU => id.window_s > 0,
        name => [builtin::CPU, builtin::THROUGHPUT].contains(&name),
    };
    let range = range(settings, id.window_s);
    if averages { u32::try_from(range.as_millis().div_ceil(1000)).unwrap_or(u32::MAX) } else { 0 }
}

/// Matchers of the settings, each with a comma before it, to be put after others.
pub(crate) fn further(settings: &PrometheusSettings) -> String {
    settings.matchers.iter().fold(String::new(), |text, (name, value)| text + "," + name + "=" + &quote(value))
}

/// The selectors that together hold the rows of containers in these namespaces, however the labels were renamed. Rows of
/// whole pods (no container) and of pause containers (`POD`, or none) are left out: they would count everything twice.
fn container_selectors(
    settings: &PrometheusSettings,
    container: Option<&str>,
    namespaces: &BTreeSet<String>,
) -> [String; 3] {
    let namespaces = quote(&alternation(namespaces));
    let further = further(settings);
    let is = |label: &str| match container {
        Some(name) => format!("{label}={}", quote(name)),
        None => format!(r#"{label}!="",{label}!="POD""#),
    };
    [
        // Only rows of containers have an image; a row of the node's own services may carry the labels of a target that is
        // a pod.
        format!(r#"exported_namespace="",namespace=~{namespaces},image!="",{}{further}"#, is("container")),
        // The target has a namespace of its own and no pod, as a kubelet: the container is the workload's.
        format!(
            r#"exported_namespace=~{namespaces},exported_pod="",exported_container="",{}{further}"#,
            is("container")
        ),
        // The target is a pod: its container's label is in the place of the workload's.
        format!("exported_namespace=~{namespaces},{}{further}", is("exported_container")),
    ]
}

fn per_pod(
    settings: &PrometheusSettings,
    metric: &str,
    container: Option<&str>,
    namespaces: &BTreeSet<String>,
    identity: &str,
    read: &dyn Fn(&str) -> String,
) -> Request {
    let selectors = container_selectors(settings, container, namespaces);
    // `max` makes one of a series that two scrape jobs or two Prometheus replicas bring; rates are taken before any sum.
    let values = selectors.iter().map(|s| format!("sum by ({OWNER}) (max by ({OWNER}, {identity}) ({}))", read(s)));
    let times = selectors.iter().map(|s| format!("max by ({OWNER}) (timestamp({metric}{{{s}}}))"));
    Request {
        shape: Shape::Pods,
        values: values.collect::<Vec<_>>().join(" or "),
        times: Some(times.collect::<Vec<_>>().join(" or ")),
    }
}

/// What identifies a GPU's row: its owner, the GPU, and the exporter.
fn gpu_labels() -> String {
    format!("{OWNER}, pod_name, pod_namespace, UUID, uuid, gpu, GPU_I_ID, hostname, Hostname, instance")
}

/// GPUs are asked for in all namespaces: whether a GPU is shared can only be seen with all that share it.
fn gpu_request(shape: Shape, parts: &[(&str, String)], metrics: &[String]) -> Request {
    let labels = gpu_labels();
    let marked = parts
        .iter()
        .map(|(name, read)| format!(r#"label_replace(max by ({labels}) ({read}), "{PART}", "{name}", "", "")"#));
    let times = metrics.iter().map(|m| format!("max by ({labels}) (timestamp({m}))"));
    Request {
        shape,
        values: marked.collect::<Vec<_>>().join(" or "),
        times: Some(times.collect::<Vec<_>>().join(" or ")),
    }
}

fn gpu(settings: &PrometheusSettings, window: Option<&str>) -> Request {
    let selector = |metric: &String| selector(settings, metric);
    let read = |metric: &String| match window {
        Some(window) => format!("avg_over_time({}[{window}])", selector(metric)),
        None => selector(metric),
    };
    let names = &settings.gpu;
    gpu_request(
        Shape::Gpu,
        &[("active", read(&names.engine_active)), ("util", read(&names.utilisation))],
        &[selector(&names.engine_active), selector(&names.utilisation)],
    )
}

fn gpu_memory(settings: &PrometheusSettings) -> Request {
    let names = &settings.gpu;
    let (used, free) = (selector(settings, &names.memory_used), selector(settings, &names.memory_free));
    gpu_request(Shape::GpuMemory, &[("used", used.clone()), ("free", free)], &[used])
}

fn selector(settings: &PrometheusSettings, metric: &str) -> String {
    let further = further(settings);
    if further.is_empty() { metric.to_owned() } else { format!("{metric}{{{}}}", &further[1..]) }
}

/// Gauges of the agents, better first: each of them is the speed of the last minute, of all workers together, as the
/// scripts of this rank tell it.
const THROUGHPUT: [&str; 2] = ["eto_agent_samples_per_second", "eto_agent_steps_per_second"];

/// What all ranks tell is the same thing, so the largest is the job's. Series that do not say whose job they are of are
/// left out: they would be taken for another's.
fn throughput(settings: &PrometheusSettings, namespaces: &BTreeSet<String>, window: &str) -> Request {
    let label = &settings.namespace_label;
    let (names, further) = (quote(&alternation(namespaces)), further(settings));
    let selector = |metric: &str| format!(r#"{metric}{{{label}=~{names},{JOB_LABEL}!=""{further}}}"#);
    let all = |read: &dyn Fn(&str) -> String| {
        THROUGHPUT.map(|metric| format!("max by ({label}, {JOB_LABEL}) ({})", read(metric))).join(" or ")
    };
    Request {
        shape: Shape::Jobs,
        values: all(&|metric| format!("avg_over_time({}[{window}])", selector(metric))),
        times: Some(all(&|metric| format!("timestamp({})", selector(metric)))),
    }
}

fn plan_custom(settings: &PrometheusSettings, custom: &Custom, namespaces: &BTreeSet<String>) -> Vec<Request> {
    let all = Forced::new(&settings.namespace_label, namespaces, settings.matchers.iter());
    if namespaces.len() > 1
        && let Some(values) = custom.confined_together(&all)
    {
        return vec![Request { shape: Shape::Custom { only: None }, values, times: custom.times(&all) }];
    }
    apart(settings, custom, namespaces)
}

/// A custom query as one request for each namespace.
pub(crate) fn apart(settings: &PrometheusSettings, custom: &Custom, namespaces: &BTreeSet<String>) -> Vec<Request> {
    let one = |namespace: &String| {
        let only = BTreeSet::from([namespace.clone()]);
        let forced = Forced::new(&settings.namespace_label, &only, settings.matchers.iter());
        let shape = Shape::Custom { only: Some(namespace.clone()) };
        Request { shape, values: custom.confined(&forced), times: custom.times(&forced) }
    };
    namespaces.iter().map(one).collect()
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
