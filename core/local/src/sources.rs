//! Where signals come from: `/proc` and NVML for the built-in ones, Prometheus (if there is one) for the others.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use eto_engine::signals::{SignalId, SignalSet};
use eto_engine::time::Time;
use eto_signals::{Prometheus, Wants};
use futures::FutureExt;
use tokio::task::JoinHandle;

use crate::gpu::{GpuUse, Gpus, add};
use crate::procfs::{Proc, descendants};
use crate::usage::{Reading, Usage};

/// A running worker to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Name of its pod.
    pub name: String,
    /// Which start of it.
    pub run: u64,
    /// Process id of its supervisor.
    pub supervisor: i32,
}

/// All sources.
#[derive(Debug)]
pub struct Sources {
    pub usage: Usage,
    namespace: String,
    proc: Proc,
    gpus: Option<Gpus>,
    prometheus: Option<Arc<Prometheus>>,
    asking: Option<JoinHandle<SignalSet>>,
    answered: SignalSet,
}

impl Sources {
    pub fn new(namespace: &str, prometheus: Option<Prometheus>) -> Sources {
        let mut usage = Usage::new(namespace);
        let gpus = match Gpus::open() {
            Ok(gpus) => Some(gpus),
            Err(why) => {
                usage.gpu_trouble = Some(why);
                None
            }
        };
        Sources {
            usage,
            namespace: namespace.to_owned(),
            proc: Proc::of_this_machine(),
            gpus,
            prometheus: prometheus.map(Arc::new),
            asking: None,
            answered: SignalSet::default(),
        }
    }

    /// Takes a reading of each worker.
    pub fn look(&mut self, targets: &[Target], now: Time) {
        self.usage.retain(|name| targets.iter().any(|target| target.name == name));
        if targets.is_empty() {
            return;
        }
        let table = self.proc.table();
        let gpu_uses = match self.gpus.as_mut().map(|gpus| gpus.read(now)) {
            Some(Ok(uses)) => {
                self.usage.gpu_trouble = None;
                uses
            }
            Some(Err(why)) => {
                self.usage.gpu_trouble = Some(why);
                HashMap::new()
            }
            None => HashMap::new(),
        };
        for target in targets {
            let Some(tree) = self.proc.tree_usage(&table, target.supervisor) else { continue };
            let gpu = gpu_of(&gpu_uses, &descendants(&table, target.supervisor));
            let reading = Reading {
                cpu_seconds: Some(tree.cpu_seconds),
                // A tree without a process has nothing to measure yet.
                memory_bytes: Some(tree.memory_bytes).filter(|_| tree.processes > 0),
                gpu: gpu.busy,
                gpu_memory: gpu.memory,
            };
            self.usage.record(&target.name, target.run, now, reading);
        }
    }

    /// The signals as they are known now. Asking Prometheus never holds this up: its newest whole answer counts.
    pub fn signals(&mut self, ids: &[SignalId], now: Time) -> SignalSet {
        let (remote, local): (Vec<&SignalId>, Vec<&SignalId>) =
            ids.iter().partition(|id| id.query.is_some() && self.prometheus.is_some());
        self.ask(&remote, now);
        let mut set = SignalSet { at: now, ..SignalSet::default() };
        for id in local {
            self.usage.keep_for(std::time::Duration::from_secs(u64::from(id.window_s)));
            set.signals.insert(id.clone(), self.usage.signal(id));
        }
        for id in remote {
            if let Some(data) = self.answered.signals.get(id) {
                set.signals.insert(id.clone(), data.clone());
            }
        }
        set
    }

    fn ask(&mut self, ids: &[&SignalId], now: Time) {
        if let Some(task) = self.asking.as_mut() {
            match task.now_or_never() {
                None => return,
                Some(Ok(set)) => self.answered = set,
                Some(Err(error)) => tracing::warn!(%error, "asking Prometheus failed"),
            }
            self.asking = None;
        }
        let Some(prometheus) = self.prometheus.clone().filter(|_| !ids.is_empty()) else { return };
        let namespaces = BTreeSet::from([self.namespace.clone()]);
        let wants: Wants = ids.iter().map(|id| ((*id).clone(), namespaces.clone())).collect();
        self.asking = Some(tokio::spawn(async move { prometheus.gather(&wants, now).await }));
    }
}

fn gpu_of(uses: &HashMap<u32, GpuUse>, pids: &[i32]) -> GpuUse {
    let mut sum = GpuUse::default();
    let mut is_known = true;
    for used in pids.iter().filter_map(|pid| uses.get(&u32::try_from(*pid).ok()?)) {
        match used.busy {
            Some(busy) => add(&mut sum.busy, busy),
            None => is_known = false,
        }
        if let Some(memory) = used.memory {
            add(&mut sum.memory, memory);
        }
    }
    GpuUse { busy: sum.busy.filter(|_| is_known), ..sum }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use eto_signals::PrometheusSettings;

    use super::*;

    #[tokio::test]
    async fn a_prometheus_that_is_down_holds_nothing_up_and_says_so() {
        // A port that was free a moment ago: nobody listens.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let settings =
            PrometheusSettings { url: format!("http://127.0.0.1:{port}"), retries: 0, ..PrometheusSettings::default() };
        let mut sources = Sources::new("team", Some(Prometheus::new(settings).unwrap()));
        let id = |name: &str, query: Option<&str>| SignalId {
            name: name.to_owned(),
            query: query.map(str::to_owned),
            container: None,
            window_s: 15,
        };
        let (custom, cpu) = (id("queue", Some("queue_length")), id("cpu-utilisation", None));
        let first = sources.signals(&[custom.clone(), cpu.clone()], Time(1000));
        assert!(first.signals.contains_key(&cpu) && !first.signals.contains_key(&custom), "the answer is on its way");
        let answered = async {
            loop {
                let set = sources.signals(std::slice::from_ref(&custom), Time(2000));
                if let Some(data) = set.signals.get(&custom) {
                    return data.clone();
                }
                tokio::task::yield_now().await;
            }
        };
        let data = tokio::time::timeout(std::time::Duration::from_secs(30), answered).await.unwrap();
        assert!(data.trouble.is_some() && data.healthy_since.is_none() && data.per_pod.is_empty(), "{data:?}");
    }

    #[test]
    fn gpu_use_is_summed_over_a_tree_and_absent_without_any() {
        let uses = HashMap::from([
            (10, GpuUse { busy: Some(0.5), memory: Some(0.1) }),
            (11, GpuUse { busy: Some(0.25), memory: None }),
            (99, GpuUse { busy: Some(1.0), memory: Some(1.0) }),
        ]);
        assert_eq!(gpu_of(&uses, &[10, 11, 12]), GpuUse { busy: Some(0.75), memory: Some(0.1) });
        assert_eq!(gpu_of(&uses, &[12]), GpuUse::default());
        let partly = HashMap::from([(10, GpuUse { busy: Some(0.5), memory: Some(0.1) }), (11, GpuUse::default())]);
        assert_eq!(gpu_of(&partly, &[10, 11]).busy, None, "a part of the sum is no measurement of the whole");
    }
}
