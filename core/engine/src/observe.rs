//! What is there: pods (or processes) and nodes, as the adapters saw them.

use serde::{Deserialize, Serialize};

use crate::contract::{Readiness, WorkerPhase, WorkerRequest};
use crate::state::RoundMode;
use crate::time::Time;

/// A worker of a job: a pod, or a process in the embedded mode.
#[derive(Clone, Debug, PartialEq)]
pub struct Pod {
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// Index in the job; 0 is the master.
    pub index: u32,
    /// Generation of the round it was made for.
    pub round: u64,
    /// Workers in the round it was made for (`NewPod::size`, kept on the pod); 0 = it does not say.
    pub round_size: u32,
    /// Which pod of its index it is (`NewPod::incarnation`, kept on the pod); the round where it does not say.
    pub incarnation: u64,
    /// How its round was carried out when it was made (`NewPod::mode`, kept on the pod).
    pub mode: RoundMode,
    /// [`crate::job::TemplateFacts::hash`] it was made from.
    pub template_hash: String,
    /// `status.phase`.
    pub phase: WorkerPhase,
    /// `status.reason` of the pod (`Evicted`, `NodeLost`, ...), if any.
    pub reason: Option<String>,
    /// The Ready condition.
    pub ready: Readiness,
    /// When it was made.
    pub created: Time,
    /// `status.startTime`.
    pub started: Option<Time>,
    /// When the Ready condition last changed.
    pub ready_changed: Option<Time>,
    /// When it ended, if it has.
    pub ended: Option<Time>,
    /// Where it runs; `None` = not scheduled.
    pub node: Option<String>,
    /// Why the scheduler can't place it, from the `PodScheduled` condition.
    pub unschedulable: Option<String>,
    /// Why its container waits (`ImagePullBackOff`, ...).
    pub waiting: Option<String>,
    /// When it was asked to go.
    pub deleting: Option<Time>,
    /// Container restarts in place, summed.
    pub restarts: u32,
    /// Exit code of the training container, once it has ended.
    pub exit_code: Option<i32>,
    /// How its training container ended last, be it that it has been started again since.
    pub last_end: Option<Box<ContainerEnd>>,
    /// Bytes of memory that its training container can have; 0 = no limit.
    pub memory_limit: u64,
    /// The `DisruptionTarget` condition is set, or its reason is one of [`is_disruption`]: not the job's own fault.
    pub disrupted: bool,
    /// Requests, else limits; 0.0 = neither.
    pub request: WorkerRequest,
}

/// How a container ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerEnd {
    /// Its exit code.
    pub code: i32,
    /// The kubelet's word for it (`Error`, `OOMKilled`, ...); empty = none.
    pub reason: String,
    /// The end of its log, where it failed and that is kept.
    pub lines: String,
}

impl Pod {
    /// Whether it runs and its Ready condition is true.
    pub fn is_ready(&self) -> bool {
        self.phase == WorkerPhase::Running && self.ready == Readiness::Ready
    }

    /// Whether it has ended, well or not.
    pub fn is_ended(&self) -> bool {
        matches!(self.phase, WorkerPhase::Succeeded | WorkerPhase::Failed)
    }
}

/// Whether a pod that ended for this reason (`status.reason`) was ended by others: by an eviction, a node that shut down or was
/// lost, or a kubelet that did not take it in.
pub fn is_disruption(reason: &str) -> bool {
    const REASONS: [&str; 8] = [
        "Evicted",
        "NodeLost",
        "NodeShutdown",
        "Terminated",
        "Shutdown",
        "Preempting",
        "Preempted",
        "UnexpectedAdmissionError",
    ];
    REASONS.contains(&reason)
}

/// A node as placement sees it; only what the pre-filter and the policies need.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Node {
    /// Name.
    pub name: String,
    /// Labels.
    pub labels: std::collections::BTreeMap<String, String>,
    /// Taints.
    pub taints: Vec<Taint>,
    /// `spec.unschedulable`: closed for new pods.
    pub unschedulable: bool,
    /// Its Ready condition is true.
    pub ready: bool,
    /// What pods may have of it.
    pub allocatable: WorkerRequest,
    /// Sum of the requests of all pods on it (of all owners).
    pub requested: WorkerRequest,
}

/// As in core/v1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taint {
    /// Key.
    pub key: String,
    /// Value, may be empty.
    pub value: String,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: String,
}
