//! The policy contract as the host sees it: the records of `wit/` (latest version) in plain Rust.
//!
//! Field meanings, units, ranges and what *absent* looks like are documented in `wit/v0.1/policy.wit` and explained in
//! `docs/contract.md`; they are not repeated here. The JSON form (used by `eto policy eval`, the decision log and test
//! fixtures) has the WIT's names in `snake_case`.
//!
//! `policy-host` converts these to and from the generated bindings of each contract version at one seam.
//!
//! These records are written by hand, since the bindings differ from version to version and the engine must know no
//! wasm. Each names the WIT type that documents its fields: the same sentences here would be a second copy that nothing
//! holds to the first, so the two macros below let fields and variants go without.

use serde::{Deserialize, Serialize};

/// "Not there" in a column of ids (`node`, `zone`, `rack`) and for an unknown [`Capacity::fits`].
pub const NONE: u32 = u32::MAX;
/// A target above this is a bad answer.
pub const MAX_TARGET: u32 = 100_000;
/// Most bytes of state a policy may keep per job.
pub const MAX_STATE: usize = 64 * 1024;

macro_rules! contract {
    ($($item:item)*) => {$(
        #[allow(missing_docs, reason = "fields are documented in the WIT, by the name in the first line")]
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(deny_unknown_fields)]
        $item
    )*};
}
macro_rules! contract_enum {
    ($($item:item)*) => {$(
        #[allow(missing_docs, reason = "variants are documented in the WIT, by the name in the first line")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        $item
    )*};
}

contract_enum! {
    /// `types.framework`
    pub enum Framework { PyTorch, TensorFlow, Jax, Custom }
    /// `types.direction`
    pub enum Direction { MoreMeansGrow, MoreMeansShrink, None }
    /// `scaling.worker-phase`
    pub enum WorkerPhase { Pending, Running, Succeeded, Failed, Unknown }
    /// `scaling.readiness`
    pub enum Readiness { Unknown, Ready, NotReady }
    /// `scaling.quality`
    pub enum Quality { Ok, Partial, Stale, Absent, Invalid, Warming }
    /// `scaling.signal-shape`
    pub enum SignalShape { PerWorker, Job }
    /// `scaling.metric-kind`
    pub enum MetricKind { Resource, ContainerResource, Pods, Object, External }
}

contract! {
    /// `types.job-facts`
    pub struct JobFacts {
        pub namespace: String,
        pub name: String,
        pub uid: String,
        pub framework: Framework,
        pub generation: u64,
        pub round: u64,
        pub created_ms: u64,
        pub running_since_ms: u64,
        pub failures: u32,
    }

    /// `types.signal-want`
    pub struct SignalWant {
        pub name: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub query: Option<String>,
        #[serde(default)]
        pub window_seconds: u32,
        #[serde(default)]
        pub history_seconds: u32,
        pub required: bool,
        pub direction: Direction,
        pub low: f64,
        pub high: f64,
    }

    /// `types.description`
    pub struct Description {
        pub name: String,
        pub version: String,
        pub summary: String,
        pub signals: Vec<SignalWant>,
        pub config_schema: String,
        pub state_version: u32,
    }

    /// `types.kept-state`
    pub struct KeptState {
        pub version: u32,
        pub bytes: Vec<u8>,
    }

    /// `types.reason`
    pub struct Reason {
        pub code: String,
        pub message: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub signal: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub value: Option<f64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub target: Option<f64>,
    }

    /// `types.policy-error`
    pub enum PolicyError {
        InvalidConfig(String),
        UnusableInput(String),
        Internal(String),
    }

    /// `scaling.bounds`
    pub struct Bounds {
        pub min: u32,
        pub max: u32,
        pub legal: Vec<u32>,
        pub tolerance_up: f64,
        pub tolerance_down: f64,
    }

    /// `scaling.sizes`
    pub struct Sizes {
        pub replicas: u32,
        pub target: u32,
        pub current: u32,
        pub ready: u32,
    }

    /// `scaling.worker-columns`
    pub struct WorkerColumns {
        pub index: Vec<u32>,
        pub phase: Vec<WorkerPhase>,
        pub ready: Vec<Readiness>,
        pub started_ms: Vec<u64>,
        pub ready_changed_ms: Vec<u64>,
        pub deleting: Vec<bool>,
        pub node: Vec<u32>,
    }

    /// `scaling.signal`
    pub struct Signal {
        pub name: String,
        pub shape: SignalShape,
        pub quality: Quality,
        pub coverage: f64,
        pub age_ms: u64,
        pub window_ms: u64,
        pub values: Vec<f64>,
        pub requests: Vec<f64>,
        pub sampled_ms: Vec<u64>,
        #[serde(default)]
        pub history_ms: Vec<u64>,
        #[serde(default)]
        pub history: Vec<f64>,
    }

    /// `scaling.metric-target`
    #[derive(Copy)]
    pub enum MetricTarget {
        Utilization(u32),
        AverageValue(f64),
        Value(f64),
    }

    /// `scaling.metric`
    pub struct Metric {
        pub kind: MetricKind,
        pub name: String,
        pub signal: u32,
        pub target: MetricTarget,
    }

    /// `scaling.capacity`
    #[derive(Copy)]
    pub struct Capacity {
        pub fits: u32,
        pub pending: u32,
    }

    /// `scaling.resize-facts`
    pub struct ResizeFacts {
        pub last_ms: u64,
        pub last_cost_ms: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub last_steps_lost: Option<u64>,
        pub last_from: u32,
        pub last_refused: bool,
    }

    /// `scaling.scaling-input`
    pub struct ScalingInput {
        pub now_ms: u64,
        pub seed: u64,
        pub job: JobFacts,
        pub bounds: Bounds,
        pub sizes: Sizes,
        pub workers: WorkerColumns,
        pub signals: Vec<Signal>,
        pub metrics: Vec<Metric>,
        pub capacity: Capacity,
        pub resize: ResizeFacts,
        pub config: String,
        pub state: Option<KeptState>,
    }

    /// `scaling.scaling-decision`
    pub struct ScalingDecision {
        pub target: Option<u32>,
        pub reasons: Vec<Reason>,
        #[serde(default)]
        pub next_look_seconds: Option<u32>,
        #[serde(default)]
        pub state: Option<Vec<u8>>,
    }

    /// `placement.node-columns`
    pub struct NodeColumns {
        pub free_cpu: Vec<f64>,
        pub free_memory: Vec<f64>,
        pub free_gpus: Vec<f64>,
        pub total_cpu: Vec<f64>,
        pub total_memory: Vec<f64>,
        pub total_gpus: Vec<f64>,
        pub zone: Vec<u32>,
        pub rack: Vec<u32>,
        pub members: Vec<u32>,
        pub faults: Vec<u32>,
    }

    /// `placement.member-columns`
    pub struct MemberColumns {
        pub index: Vec<u32>,
        pub node: Vec<u32>,
        pub ready: Vec<bool>,
        pub started_ms: Vec<u64>,
        pub protected: Vec<bool>,
    }

    /// `placement.worker-request`
    #[derive(Copy, Default)]
    pub struct WorkerRequest {
        pub cpu: f64,
        pub memory: f64,
        pub gpus: f64,
    }

    /// `placement.placement-input`
    pub struct PlacementInput {
        pub now_ms: u64,
        pub seed: u64,
        pub job: JobFacts,
        pub nodes: NodeColumns,
        pub members: MemberColumns,
        pub request: WorkerRequest,
        pub add: Vec<u32>,
        pub drop: u32,
        pub config: String,
        pub state: Option<KeptState>,
    }

    /// `placement.place`
    #[derive(Copy)]
    pub struct Place {
        pub worker: u32,
        pub node: u32,
        pub required: bool,
    }

    /// `placement.placement-decision`
    pub struct PlacementDecision {
        pub places: Vec<Place>,
        pub victims: Vec<u32>,
        pub reasons: Vec<Reason>,
        #[serde(default)]
        pub state: Option<Vec<u8>>,
    }
}
