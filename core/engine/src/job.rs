//! What a user asked for: an `ElasticJob`, validated and with its defaults filled in.
//!
//! Adapters build a [`JobSpec`] from their own source (a Kubernetes object, a YAML file); from here on no
//! Kubernetes type appears.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::contract::{Framework, MetricKind, MetricTarget, WorkerRequest};
use crate::time::Time;

/// Namespace and name of a job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct JobKey {
    pub namespace: String,
    pub name: String,
}

impl fmt::Display for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// An elastic job as the engine knows it.
#[derive(Clone, Debug, PartialEq)]
pub struct JobSpec {
    pub key: JobKey,
    pub uid: String,
    /// `metadata.generation`.
    pub generation: u64,
    pub created: Time,
    pub framework: Framework,
    /// What the user set; the size at the start and by hand.
    pub replicas: u32,
    /// The effective range: the job's and the scaling policy's ranges intersected, `1 <= min <= max`.
    pub min: u32,
    pub max: u32,
    pub legal: LegalSizes,
    /// `None` while `spec.template` is missing: the job waits and says so.
    pub template: Option<TemplateFacts>,
    pub restart: RestartPolicy,
    /// Failures after which the job has failed.
    pub backoff_limit: u32,
    pub suspend: bool,
    pub active_deadline: Option<Duration>,
    pub ttl_after_finished: Option<Duration>,
    pub clean_pods: CleanPods,
    pub scaling: Option<ScalingSpec>,
    pub placement: Option<PlacementSpec>,
    pub elasticity: Elasticity,
}

/// What the engine needs to know of the pod template.
#[derive(Clone, Debug, PartialEq)]
pub struct TemplateFacts {
    /// Changes exactly when pods made from the template would differ; a change is a new round with new pods.
    pub hash: String,
    /// What one worker requests (its limit where it has no request), summed over its containers.
    pub request: WorkerRequest,
    /// The same for each container (restartable init containers among them), by name; 0.0 = neither request nor limit.
    pub containers: BTreeMap<String, WorkerRequest>,
    /// Processes that one worker runs (`PET_NPROC_PER_NODE` where the user set it), at least 1.
    pub processes: u32,
}

/// Which sizes a job may have between its bounds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LegalSizes {
    #[default]
    Any,
    /// Ascending, without duplicates.
    List(Vec<u32>),
    MultipleOf(u32),
}

/// As in `batch/v1` and Kubeflow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RestartPolicy {
    /// A failed container restarts in place.
    #[default]
    OnFailure,
    /// A failed pod is replaced until `backoff_limit` failures.
    Never,
    /// As `Never`, but exit codes 1 to 127 are final and those from 128 (signals) are tried again.
    ExitCode,
}

/// Which pods are deleted when the job has finished.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CleanPods {
    /// Those still running.
    #[default]
    Running,
    All,
    None,
}

/// Who applies the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// Decide and act.
    #[default]
    Auto,
    /// Decide and show; do not act.
    Recommend,
    /// Do not ask.
    Off,
}

/// What happens while a policy can't answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailurePolicy {
    #[default]
    Hold,
    /// Ask the built-in `hpa` policy (needs `metrics`).
    BuiltIn,
}

/// `spec.scalingPolicy`.
#[derive(Clone, Debug, PartialEq)]
pub struct ScalingSpec {
    /// Name of the module to ask; `hpa` for `metrics[]` alone.
    pub module: String,
    /// Whether the user named a module (else HPA's defaults of `behavior` hold).
    pub own_module: bool,
    /// The config as a JSON object in text.
    pub config: String,
    pub metrics: Vec<MetricSpec>,
    /// `None` = the user gave none (HPA's legacy path for `metrics[]` alone).
    pub behavior: Option<Behavior>,
    pub mode: Mode,
    pub on_failure: FailurePolicy,
}

/// `spec.placementPolicy`.
#[derive(Clone, Debug, PartialEq)]
pub struct PlacementSpec {
    pub module: String,
    pub config: String,
    pub mode: Mode,
}

/// One entry of `metrics[]` (HPA v2).
#[derive(Clone, Debug, PartialEq)]
pub struct MetricSpec {
    pub kind: MetricKind,
    /// Resource or metric name as the user wrote it.
    pub name: String,
    /// `ContainerResource`: which container.
    pub container: Option<String>,
    /// Label selector of the metric (`Pods`, `Object`, `External`), as exact matches.
    pub selector: BTreeMap<String, String>,
    /// `Object`: kind and name of the described object.
    pub object: Option<(String, String)>,
    pub target: MetricTarget,
}

/// HPA's `behavior`, with HPA's defaults filled in where the user left fields out.
#[derive(Clone, Debug, PartialEq)]
pub struct Behavior {
    pub up: ScalingRules,
    pub down: ScalingRules,
}

/// `behavior.scaleUp` / `behavior.scaleDown`.
#[derive(Clone, Debug, PartialEq)]
pub struct ScalingRules {
    pub stabilization: Duration,
    pub select: SelectPolicy,
    pub policies: Vec<RatePolicy>,
    /// Relative; 0.1 by default.
    pub tolerance: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SelectPolicy {
    #[default]
    Max,
    Min,
    Disabled,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RatePolicy {
    pub kind: RateKind,
    pub value: u32,
    pub period: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateKind {
    Pods,
    Percent,
}

/// `spec.elasticity`: how resizes are carried out.
#[derive(Clone, Debug, PartialEq)]
pub struct Elasticity {
    /// How long the pods of a round may take to reach the minimum before all are released and tried again.
    pub start_deadline: Duration,
    /// How long a worker of a growth may stay pending before the target is taken back.
    pub pending_deadline: Duration,
    /// How long pods get to stop (their `terminationGracePeriodSeconds` bounds it).
    pub drain_deadline: Duration,
}

impl Default for Elasticity {
    fn default() -> Self {
        Elasticity {
            start_deadline: Duration::from_secs(600),
            pending_deadline: Duration::from_secs(120),
            drain_deadline: Duration::from_secs(30),
        }
    }
}
