//! What a worker requested of a resource, and whether a utilisation can be computed from it.

use super::Gauge;
use crate::contract::{MetricKind, MetricTarget, WorkerRequest};
use crate::decision::Mend;
use crate::job::JobSpec;
use crate::observe::Pod;
use crate::signals::builtin;
use crate::state::ConditionReason;
use crate::wants::Wanted;

/// What this worker requested of the resource that a signal measures, in the signal's unit; 0.0 = nothing, or the
/// signal is not of a resource.
pub(crate) fn of(job: &JobSpec, pod: &Pod, wanted: &Wanted) -> f64 {
    let Some(id) = wanted.id.as_ref().filter(|id| id.query.is_none()) else { return 0.0 };
    let request = match &id.container {
        None => pod.request,
        Some(name) => {
            let containers = job.template.as_ref().map(|t| &t.containers);
            containers.and_then(|c| c.get(name)).copied().unwrap_or_default()
        }
    };
    let amount = match id.name.as_str() {
        builtin::CPU => request.cpu,
        builtin::MEMORY => request.memory,
        builtin::GPU | builtin::GPU_MEMORY => request.gpus,
        _ => 0.0,
    };
    if amount.is_finite() && amount > 0.0 { amount } else { 0.0 }
}

/// What the owner of a job has to mend so that its `metrics[]` can be used: metrics that nothing serves, and requests
/// that a utilisation needs and that are missing. HPA's rule: one container without a request makes the metric unusable.
pub(crate) fn mend(job: &JobSpec, pods: &[&Pod], gauges: &[Gauge]) -> Option<Mend> {
    let scaling = job.scaling.as_ref()?;
    let unservable = gauges.iter().filter(|g| g.wanted.metric.is_some()).find_map(|g| g.wanted.unservable.clone());
    if let Some(message) = unservable {
        return Some(Mend { reason: ConditionReason::InvalidMetricSourceType, message });
    }
    for metric in &scaling.metrics {
        if !matches!(metric.target, MetricTarget::Utilization(_)) {
            continue;
        }
        let Some(amount) = resource(&metric.name) else { continue };
        let container = metric.container.as_deref().filter(|_| metric.kind == MetricKind::ContainerResource);
        if let Some(name) = lacking(job, pods, container, &metric.name, amount) {
            let field = &metric.name;
            let message = format!(
                "metric {field}: set resources.requests.{field} on container {name:?} (or aim at an averageValue)"
            );
            return Some(Mend { reason: ConditionReason::MissingRequest, message });
        }
    }
    None
}

type Amount = fn(&WorkerRequest) -> f64;

fn resource(name: &str) -> Option<Amount> {
    match builtin::of_resource(name)? {
        builtin::CPU => Some(|r| r.cpu),
        builtin::MEMORY => Some(|r| r.memory),
        builtin::GPU => Some(|r| r.gpus),
        _ => None,
    }
}

/// The name of a container that lacks the request, if one does. A GPU is needed in one container only: a side-car
/// without one is as it should be.
fn lacking(job: &JobSpec, pods: &[&Pod], container: Option<&str>, resource: &str, amount: Amount) -> Option<String> {
    let template = job.template.as_ref()?;
    if let Some(name) = container {
        let there = template.containers.get(name).is_some_and(|r| amount(r) > 0.0);
        return (!there).then(|| name.to_owned());
    }
    if template.containers.is_empty() {
        let bare = if pods.is_empty() {
            amount(&template.request) <= 0.0
        } else {
            pods.iter().any(|p| amount(&p.request) <= 0.0)
        };
        return bare.then(|| "of the template".to_owned());
    }
    let bare: Vec<&String> = template.containers.iter().filter(|(_, r)| amount(r) <= 0.0).map(|(n, _)| n).collect();
    let enough = builtin::of_resource(resource) == Some(builtin::GPU) && bare.len() < template.containers.len();
    if enough { None } else { bare.first().map(|n| (*n).clone()) }
}
