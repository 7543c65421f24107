//! What a pod asks for: for placement as the scheduler counts it, for utilisation as the HPA does.

use std::collections::BTreeMap;

use eto_engine::contract::WorkerRequest;
use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::SpecProblems;
use crate::quantity::{self, Nano};

/// Amounts of the three resources that decisions are made by, in billionths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Amounts {
    cpu: i128,
    memory: i128,
    gpus: i128,
}

impl Amounts {
    fn plus(self, o: Amounts) -> Amounts {
        Amounts {
            cpu: self.cpu.saturating_add(o.cpu),
            memory: self.memory.saturating_add(o.memory),
            gpus: self.gpus.saturating_add(o.gpus),
        }
    }

    fn max(self, o: Amounts) -> Amounts {
        Amounts { cpu: self.cpu.max(o.cpu), memory: self.memory.max(o.memory), gpus: self.gpus.max(o.gpus) }
    }

    fn request(self) -> WorkerRequest {
        WorkerRequest {
            cpu: Nano(self.cpu).as_f64(),
            memory: Nano(self.memory).as_f64(),
            gpus: Nano(self.gpus).as_f64(),
        }
    }
}

/// Whether a resource name means whole or partial GPUs (also MIG slices), of any maker.
pub fn is_gpu(name: &str) -> bool {
    let Some((domain, kind)) = name.split_once('/') else { return false };
    kind == "gpu" || kind.starts_with("gpu.") || domain == "gpu.intel.com" || kind.starts_with("mig-")
}

/// Names the quantities that can't be read. The API server answers a pod with one as if itself had failed, so the job
/// would wait for it without end; and a request that is not understood would count as none.
pub(crate) fn check(path: &str, spec: &PodSpec, problems: &mut SpecProblems) {
    let init = spec.init_containers.iter().flatten().enumerate().map(|(i, c)| ("initContainers", i, c));
    for (kind, at, container) in spec.containers.iter().enumerate().map(|(i, c)| ("containers", i, c)).chain(init) {
        let Some(resources) = &container.resources else { continue };
        for (list, values) in [("requests", &resources.requests), ("limits", &resources.limits)] {
            for (name, quantity) in values.iter().flatten() {
                if let Err(message) = quantity::parse(&quantity.0) {
                    problems.add(format!("{path}.spec.{kind}[{at}].resources.{list}.{name}"), message);
                }
            }
        }
    }
}

/// What the scheduler has to find on a node for this pod: containers summed, restartable init containers with them,
/// ordinary init containers as a maximum, pod-level resources over both, plus the overhead. Limits count where there
/// is no request.
pub fn scheduling(spec: &PodSpec) -> WorkerRequest {
    let mut running = spec.containers.iter().fold(Amounts::default(), |sum, c| sum.plus(of_container(c)));
    let mut sidecars = Amounts::default();
    let mut starting = Amounts::default();
    for init in spec.init_containers.iter().flatten() {
        let own = of_container(init);
        if is_sidecar(init) {
            sidecars = sidecars.plus(own);
            running = running.plus(own);
            starting = starting.max(sidecars);
        } else {
            starting = starting.max(sidecars.plus(own));
        }
    }
    let mut all = running.max(starting);
    if let Some(pod) = &spec.resources {
        all.cpu = amount(pod, "cpu").unwrap_or(all.cpu);
        all.memory = amount(pod, "memory").unwrap_or(all.memory);
    }
    let overhead = spec.overhead.as_ref();
    all.cpu = all.cpu.saturating_add(overhead.and_then(|o| get(o, "cpu")).unwrap_or(0));
    all.memory = all.memory.saturating_add(overhead.and_then(|o| get(o, "memory")).unwrap_or(0));
    all.request()
}

/// What a utilisation is measured against: the containers that run, restartable init containers among them. A
/// resource that one of them neither requests nor limits is 0.0, which means "unknown": a ratio to a part of the pod
/// would mislead. (GPUs are summed over the containers that have any.)
pub fn utilisation(spec: &PodSpec) -> WorkerRequest {
    let running = || spec.containers.iter().chain(spec.init_containers.iter().flatten().filter(|c| is_sidecar(c)));
    let whole = |name: &str| -> i128 {
        if let Some(pod) = spec.resources.as_ref().and_then(|r| amount(r, name)) {
            return pod;
        }
        running()
            .map(|c| c.resources.as_ref().and_then(|r| amount(r, name)))
            .try_fold(0_i128, |sum, own| own.map(|o| sum.saturating_add(o)))
            .unwrap_or(0)
    };
    let gpus = running().fold(0_i128, |sum, c| sum.saturating_add(of_container(c).gpus));
    Amounts { cpu: whole("cpu"), memory: whole("memory"), gpus }.request()
}

/// What each container that runs asks for, by name; 0.0 = neither request nor limit.
pub fn per_container(spec: &PodSpec) -> BTreeMap<String, WorkerRequest> {
    let sidecars = spec.init_containers.iter().flatten().filter(|c| is_sidecar(c));
    spec.containers.iter().chain(sidecars).map(|c| (c.name.clone(), of_container(c).request())).collect()
}

/// Bytes of memory that a container can have at most; 0 = no limit, or none that can be read.
pub fn memory_limit(c: &Container) -> u64 {
    let limit = c.resources.as_ref().and_then(|r| get(r.limits.as_ref()?, "memory")).unwrap_or(0);
    Nano(limit).whole()
}

/// Raises the memory that a container can have to so many bytes, and its request in proportion. Nothing happens to one
/// without a limit, or with a higher one.
pub fn raise_memory(c: &mut Container, bytes: u64) {
    let before = memory_limit(c);
    if before == 0 || before >= bytes {
        return;
    }
    let memory = || "memory".to_owned();
    let Some(resources) = &mut c.resources else { return };
    let request = resources.requests.as_ref().and_then(|r| get(r, "memory")).map(|r| Nano(r).whole());
    if let Some(request) = request {
        let raised = u128::from(request) * u128::from(bytes) / u128::from(before);
        resources.requests.get_or_insert_default().insert(memory(), Quantity(raised.to_string()));
    }
    resources.limits.get_or_insert_default().insert(memory(), Quantity(bytes.to_string()));
}

/// Free-standing amounts, such as a node's `allocatable`.
pub fn amounts(list: &BTreeMap<String, Quantity>) -> WorkerRequest {
    Amounts { cpu: get(list, "cpu").unwrap_or(0), memory: get(list, "memory").unwrap_or(0), gpus: gpus_of(list) }
        .request()
}

fn is_sidecar(init: &Container) -> bool {
    init.restart_policy.as_deref() == Some("Always")
}

fn of_container(c: &Container) -> Amounts {
    let Some(r) = &c.resources else { return Amounts::default() };
    let requested = r.requests.as_ref().map_or(0, gpus_of);
    let limited = r.limits.as_ref().map_or(0, gpus_of);
    Amounts {
        cpu: amount(r, "cpu").unwrap_or(0),
        memory: amount(r, "memory").unwrap_or(0),
        gpus: if requested > 0 { requested } else { limited },
    }
}

/// Whole GPUs and CPUs that a container asks for: those that a process can have for itself. Of several parts of a GPU (MIG) CUDA
/// shows a process one, and memory or tiles of one are no GPUs.
pub(crate) fn devices(c: &Container) -> (u32, u32) {
    let whole = |amount: i128| u32::try_from(Nano(amount).whole()).unwrap_or(u32::MAX);
    let is_whole = |name: &str| {
        let kind = name.split_once('/').map_or("", |(_, kind)| kind);
        kind == "gpu" || matches!(name, "gpu.intel.com/i915" | "gpu.intel.com/xe")
    };
    let names = c.resources.iter().flat_map(|r| [&r.requests, &r.limits]).flatten().flat_map(|list| list.keys());
    let names: std::collections::BTreeSet<&str> = names.map(String::as_str).filter(|name| is_whole(name)).collect();
    let amounts = names.into_iter().filter_map(|name| amount(c.resources.as_ref()?, name));
    (whole(amounts.fold(0, i128::saturating_add)), whole(of_container(c).cpu))
}

/// The request, else the limit; `None` where there is neither or it can't be read.
fn amount(r: &ResourceRequirements, name: &str) -> Option<i128> {
    r.requests.as_ref().and_then(|m| get(m, name)).or_else(|| r.limits.as_ref().and_then(|m| get(m, name)))
}

fn get(list: &BTreeMap<String, Quantity>, name: &str) -> Option<i128> {
    list.get(name).and_then(|q| quantity::parse(&q.0).ok()).map(|n| n.0.max(0))
}

fn gpus_of(list: &BTreeMap<String, Quantity>) -> i128 {
    list.iter()
        .filter(|(name, _)| is_gpu(name))
        .filter_map(|(_, q)| quantity::parse(&q.0).ok())
        .fold(0, |sum, n| sum.saturating_add(n.0.max(0)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::float_cmp)]
    use super::*;
    use serde_json::json;

    fn spec(v: serde_json::Value) -> PodSpec {
        serde_json::from_value(v).unwrap()
    }

    #[test]
    fn init_containers_are_a_maximum_and_sidecars_are_summed() {
        let s = spec(json!({
            "initContainers": [
                {"name": "side", "restartPolicy": "Always", "resources": {"requests": {"cpu": "200m"}}},
                {"name": "init", "resources": {"requests": {"cpu": "3"}}},
            ],
            "containers": [
                {"name": "a", "resources": {"requests": {"cpu": 1}, "limits": {"nvidia.com/gpu": 2}}},
                {"name": "b", "resources": {"limits": {"cpu": "500m", "memory": "1Gi"}}},
            ],
            "overhead": {"cpu": "100m"},
        }));
        let got = scheduling(&s);
        assert_eq!((got.cpu, got.memory, got.gpus), (3.3, 1024.0 * 1024.0 * 1024.0, 2.0));
        assert_eq!(utilisation(&s).cpu, 1.7);
        assert_eq!(utilisation(&s).memory, 0.0, "container a says nothing of memory");
    }

    #[test]
    fn pod_level_resources_replace_the_sum() {
        let s = spec(json!({
            "resources": {"requests": {"cpu": "4"}},
            "containers": [{"name": "a", "resources": {"requests": {"cpu": "1", "memory": "1Ki"}}}],
        }));
        assert_eq!(scheduling(&s).cpu, 4.0);
        assert_eq!(scheduling(&s).memory, 1024.0);
        assert_eq!(utilisation(&s).cpu, 4.0);
    }

    #[test]
    fn gpu_names_of_all_makers() {
        for name in ["nvidia.com/gpu", "amd.com/gpu", "nvidia.com/mig-1g.5gb", "gpu.intel.com/i915"] {
            assert!(is_gpu(name), "{name}");
        }
        for name in ["cpu", "nvidia.com/nic", "example.com/fpga", "ephemeral-storage"] {
            assert!(!is_gpu(name), "{name}");
        }
    }
}
