//! Measurements on their way from a source (Prometheus, `/proc`, a simulation) to a job's view.

use std::collections::{BTreeSet, HashMap};

use serde::{Deserialize, Serialize};

use crate::job::JobKey;
use crate::time::Time;

/// Names of the built-in signals.
pub mod builtin {
    /// CPU used, in cores.
    pub const CPU: &str = "cpu-utilisation";
    /// Memory in use (working set), in bytes.
    pub const MEMORY: &str = "memory-utilisation";
    /// GPU time used, in whole GPUs' worth (2 GPUs at 50 % are 1.0).
    pub const GPU: &str = "gpu-utilisation";
    /// GPU memory in use, in whole GPUs' worth (share of the frame buffer, summed over GPUs).
    pub const GPU_MEMORY: &str = "gpu-memory-utilisation";
    /// What the whole job trains, in samples per second (in steps per second where its script tells no samples). One
    /// value for the job.
    pub const THROUGHPUT: &str = "training-throughput";
    /// All of them.
    pub const ALL: [&str; 5] = [CPU, MEMORY, GPU, GPU_MEMORY, THROUGHPUT];

    /// The signal that measures a Kubernetes resource. Of GPUs those that NVIDIA's exporter tells of: whole ones and MIG
    /// instances, which are summed, as the signal sums them.
    pub fn of_resource(name: &str) -> Option<&'static str> {
        match name {
            "cpu" => Some(CPU),
            "memory" => Some(MEMORY),
            "nvidia.com/gpu" => Some(GPU),
            _ => name.starts_with("nvidia.com/mig-").then_some(GPU),
        }
    }
}

/// What identifies a signal to fetch: jobs that want the same one share the query.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SignalId {
    /// A built-in name, or the name of a custom signal.
    pub name: String,
    /// PromQL of a custom signal; `None` for a built-in one.
    pub query: Option<String>,
    /// `ContainerResource`: only this container counts.
    pub container: Option<String>,
    /// Averaging window in seconds.
    pub window_s: u32,
}

impl SignalId {
    /// What tells its history from that of any other signal, also of one that had the name before.
    pub fn key(&self) -> String {
        let SignalId { name, query, container, window_s } = self;
        let of = |part: &Option<String>| part.as_ref().map_or_else(|| "-".to_owned(), |p| format!("{p:?}"));
        format!("{name} {window_s} {} {}", of(container), of(query))
    }
}

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// As the source gave it: may be NaN or infinite; the view judges.
    pub value: f64,
    /// When it was taken.
    pub at: Time,
}

/// The latest answer of a source for one signal, for all jobs at once.
#[derive(Clone, Debug, Default)]
pub struct SignalData {
    /// namespace -> pod name -> sample, for results that have a `pod` label.
    pub per_pod: HashMap<String, HashMap<String, Sample>>,
    /// namespace -> sample, for results without one, where the namespace has just one series.
    pub per_namespace: HashMap<String, Sample>,
    /// namespace -> [`series_key`] -> sample, for results without a `pod` label that have labels beside the namespace's.
    pub per_key: HashMap<String, HashMap<String, Sample>>,
    /// Why there is no answer this time, or why it is partial (the source's warnings), for people.
    pub trouble: Option<String>,
    /// namespace -> why the answer can't be used for this namespace alone (several series where one was expected, ...).
    /// Kept apart, so that one team's mistake is not shown to the others.
    pub namespace_trouble: HashMap<String, String>,
    /// Since when the source has answered without a gap; `None` while it does not. After an outage a full window has
    /// to pass from here before a shrink.
    pub healthy_since: Option<Time>,
    /// Seconds over which each value is averaged, where that is not what was asked for: 0 = it is momentary, more than
    /// was asked for = the source has samples too seldom for less.
    pub averaged_s: Option<u32>,
}

/// All signals of one gathering.
#[derive(Clone, Debug, Default)]
pub struct SignalSet {
    /// When it was gathered.
    pub at: Time,
    /// By what was asked for.
    pub signals: HashMap<SignalId, SignalData>,
    /// Whose the answers may be. Of all jobs there are, not only of those that this gathering is for.
    pub claims: Claims,
}

/// Which jobs take the answer of a custom query for their own. Where several jobs of a namespace do and the answer names
/// none of them, nobody can say whose it is.
#[derive(Clone, Debug, Default)]
pub struct Claims {
    /// namespace -> form of the query -> the first two of these jobs, which is enough to tell one of another.
    by: HashMap<String, HashMap<String, BTreeSet<String>>>,
    /// Query as it is written -> its form.
    forms: HashMap<String, String>,
}

impl Claims {
    /// Notes that this job takes the answer of this query for its own (see [`crate::wants::claimed`]). Queries that ask for
    /// the same have the same `form`, however each is written.
    pub fn add(&mut self, job: &JobKey, query: String, form: String) {
        let jobs = self.by.entry(job.namespace.clone()).or_default().entry(form.clone()).or_default();
        jobs.insert(job.name.clone());
        if jobs.len() > 2 {
            jobs.pop_last();
        }
        self.forms.insert(query, form);
    }

    /// Another job of the namespace that takes the answer of this query for its own.
    pub fn rival(&self, job: &JobKey, query: &str) -> Option<&str> {
        let jobs = self.by.get(&job.namespace)?.get(self.forms.get(query)?)?;
        jobs.iter().find(|name| **name != job.name).map(String::as_str)
    }
}

/// What tells series of one namespace apart: their labels other than the namespace's, sorted, as `a="x",b="y"`. Empty
/// where there are none; a label with an empty value is none, as in PromQL.
pub fn series_key<'a>(labels: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let mut labels: Vec<_> = labels.into_iter().filter(|(_, value)| !value.is_empty()).collect();
    labels.sort_unstable();
    labels.iter().map(|(name, value)| format!("{name}={value:?}")).collect::<Vec<_>>().join(",")
}

/// The label by which a series says which job it is of, if it is not of a pod.
pub const JOB_LABEL: &str = "elastic_job";

/// Whether a series with this [`series_key`] says that it is of this job; `None` = it says nothing of jobs.
pub(crate) fn is_of_job(key: &str, job: &str) -> Option<bool> {
    // Quotes inside of a value are escaped, so what looks like a label here is one.
    let names = |part: &str| key.starts_with(part) || key.contains(&format!(",{part}"));
    names(&format!("{JOB_LABEL}=\"")).then(|| names(&format!("{JOB_LABEL}={job:?}")))
}
