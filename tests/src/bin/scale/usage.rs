//! What was used between two moments: CPU time of the processes, requests as the API server counts them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use eto_e2e::Outcome;
use eto_e2e::cluster::Cluster;
use eto_e2e::operator::Operator;

/// Ticks of `/proc/PID/stat` in a second; the same on every Linux.
const TICKS: f64 = 100.0;

/// Counts since the start of the processes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Usage {
    /// CPU seconds by process.
    pub(crate) cpu: BTreeMap<&'static str, f64>,
    /// Requests by verb and resource, as the API server counts all clients; watches left out.
    pub(crate) served: BTreeMap<String, f64>,
    /// Requests as the operator counts its own, Lease renewals and watches left out.
    pub(crate) sent: f64,
    pub(crate) evaluations: f64,
}

impl Usage {
    pub(crate) async fn read(cluster: &Cluster, program: u32, operator: Option<&Operator>) -> Outcome<Usage> {
        let mut usage = Usage::default();
        usage.cpu.insert("program", cpu(program)?);
        for name in ["kube-apiserver", "etcd"] {
            usage.cpu.insert(name, cpu(component(name)?)?);
        }
        for line in cluster.kubectl(&["get", "--raw", "/metrics"])?.lines() {
            let Some(rest) = line.strip_prefix("apiserver_request_total{") else { continue };
            let Some((labels, value)) = rest.rsplit_once("} ") else { continue };
            let label = |name: &str| {
                labels.split(',').find_map(|l| l.strip_prefix(name)?.strip_prefix("=\"")?.strip_suffix('"'))
            };
            let (verb, resource) = (label("verb").unwrap_or(""), label("resource").unwrap_or(""));
            if verb == "WATCH" || resource.is_empty() {
                continue;
            }
            let sub = label("subresource").filter(|s| !s.is_empty()).map(|s| format!("/{s}")).unwrap_or_default();
            *usage.served.entry(format!("{verb} {resource}{sub}")).or_default() += value.parse::<f64>()?;
        }
        if let Some(operator) = operator {
            let all = operator.sum("eto_api_requests_total{").await?;
            let leases = operator.sum_with("eto_api_requests_total{", "resource=\"leases\"").await?;
            let watches = operator.sum_with("eto_api_requests_total{", "verb=\"watch\"").await?;
            usage.sent = all - leases - watches;
            usage.evaluations = operator.sum("eto_evaluations_total{").await?;
        }
        Ok(usage)
    }

    /// What came to it since `before`.
    pub(crate) fn since(&self, before: &Usage) -> Usage {
        let less = |now: &f64, then: Option<&f64>| now - then.copied().unwrap_or(0.0);
        Usage {
            cpu: self.cpu.iter().map(|(k, v)| (*k, less(v, before.cpu.get(k)))).collect(),
            served: self
                .served
                .iter()
                .map(|(k, v)| (k.clone(), less(v, before.served.get(k))))
                .filter(|(_, v)| *v > 0.0)
                .collect(),
            sent: self.sent - before.sent,
            evaluations: self.evaluations - before.evaluations,
        }
    }

    /// CPU seconds by process, for so many of something.
    pub(crate) fn cpu_each(&self, count: f64) -> String {
        let each = self.cpu.iter().map(|(name, s)| format!("{name} {:.3}", s / count.max(1.0)));
        each.collect::<Vec<_>>().join(", ")
    }

    /// Requests that have to do with jobs, pods and events: by whom, the API server does not say.
    pub(crate) fn requests(&self) -> String {
        let ours = ["elasticjobs", "pods", "events", "services"];
        let of = |k: &String| ours.iter().any(|o| k.split(' ').nth(1).is_some_and(|r| r.split('/').next() == Some(*o)));
        let all: Vec<_> = self.served.iter().filter(|(k, _)| of(k)).map(|(k, v)| format!("{k} {v}")).collect();
        if all.is_empty() { "none".to_owned() } else { all.join(", ") }
    }
}

/// CPU seconds of a process so far.
fn cpu(pid: u32) -> Outcome<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name in brackets may contain blanks.
    let fields: Vec<&str> = stat.rsplit_once(") ").ok_or("no stat")?.1.split(' ').collect();
    let field = |at: usize| fields.get(at).and_then(|f| f.parse::<f64>().ok()).unwrap_or(0.0);
    Ok((field(11) + field(12)) / TICKS)
}

/// Resident memory of a process and the most so far, in MiB.
pub(crate) fn memory(pid: u32) -> Outcome<(f64, f64)> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let of = |key: &str| {
        let line = status.lines().find_map(|l| l.strip_prefix(key))?;
        line.trim().trim_end_matches(" kB").parse::<f64>().ok()
    };
    Ok((of("VmRSS:").unwrap_or(0.0) / 1024.0, of("VmHWM:").unwrap_or(0.0) / 1024.0))
}

/// The process of a part of the control plane.
fn component(name: &str) -> Outcome<u32> {
    let state = std::env::var("CLUSTER_STATE").unwrap_or_else(|_| "/tmp/k8s-lab".into());
    let text = std::fs::read_to_string(PathBuf::from(state).join("pids").join(name))?;
    Ok(text.split(' ').next().unwrap_or_default().trim().parse()?)
}

/// The first number of `/proc/loadavg`: how busy the machine was in the last minute.
pub(crate) fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or_default().to_owned()
}
