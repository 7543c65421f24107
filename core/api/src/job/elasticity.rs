//! `elasticity`: how members come and go.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{FailureLimits, RestartScope};
use crate::schema;

/// How resizes are carried out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = crate::crd::elasticity_rules()))]
pub struct Elasticity {
    /// Whether an agent in the pods drives rounds where one is there. The condition `AgentRounds` says which way is
    /// taken and why. `Auto` or `"Off"` (in quotes: YAML reads a bare Off as false). Default `Auto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentMode>,
    /// Who changes the members while a job trains. `Rounds`: all processes stop and start anew, which is the fastest way
    /// and works with every framework. `Native`: `torchrun` takes members in and lets them go by itself, as its own
    /// elasticity does; needs an agent, frameworkType PyTorch, `torchrun` (or `python -m torch.distributed.run`) as the
    /// command of all workers, and neither replicaSizes nor globalBatchSize. Where that is not so, `Rounds` it is, and the
    /// condition `AgentRounds` says why. A change counts from the next round that all start in. Default `Rounds`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<ElasticityMode>,
    /// Who starts again when a worker is lost, where an agent drives rounds. `Group`: all members, since the collectives of
    /// PyTorch, JAX and TensorFlow go on with all of them or not at all. `Pod`: the worker alone, with the rank that it had;
    /// for workers that do not wait for each other. The loss of the coordinator, another size and another template start
    /// all of them anew in any case. Default `Group`; with `mode: Native` it is `torchrun` that restarts what it has to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_scope: Option<RestartScope>,
    /// How long workers get to stop, in seconds; the pods' `terminationGracePeriodSeconds` unless the template sets
    /// it. Default 30.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86_400))]
    pub drain_deadline_seconds: Option<i64>,
    /// How long the pods of a round may take to reach the minimum before all are released and tried again, in
    /// seconds. Default 600.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 604_800))]
    pub round_timeout_seconds: Option<i64>,
    /// How long a worker of a growth may wait for a node before the growth is taken back, in seconds. Default 120.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 604_800))]
    pub pending_deadline_seconds: Option<i64>,
    /// Checkpoints that the training program tells of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Checkpointing>,
    /// Samples of one optimiser step over all processes. With it, a size is legal only if its processes can share them
    /// evenly, and the scripts are told their part as `ETO_GLOBAL_BATCH_SIZE`, `ETO_MICRO_BATCH_SIZE` and
    /// `ETO_GRADIENT_ACCUMULATION_STEPS`, whose product over all processes is always this number. A change counts from
    /// the next round on. Default: the scripts' own affair.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub global_batch_size: Option<i64>,
    /// Most samples that one process can take at once: a larger share of `globalBatchSize` is gone through in equal
    /// pieces, whose gradients are added up. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub max_micro_batch_size: Option<i64>,
    /// Without progress for this long a round counts as hung: its processes are started again from the last checkpoint,
    /// which counts as a failure. Acts where an agent drives rounds and the script has told its progress in the round.
    /// In seconds; less than 30 is taken as 30. Choose more than the longest pause between two reports of progress
    /// (an evaluation, a checkpoint). Default: no detection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 604_800))]
    pub hang_timeout_seconds: Option<i64>,
    /// The same for the time from the start of a round's processes to the first progress that they tell: they load
    /// their data and their checkpoint, and compile. Acts where the script has told progress in an earlier round.
    /// Never less than `hangTimeoutSeconds`. Default: three times `hangTimeoutSeconds`, and 900 at least.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 604_800))]
    pub hang_start_timeout_seconds: Option<i64>,
    /// Failures older than this are forgotten, and count neither for `backoffLimit` nor for `failureLimits`. In seconds.
    /// Default: none is forgotten.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 60, max = 31_536_000))]
    pub failure_window_seconds: Option<i64>,
    /// Most failures of a class, beside `backoffLimit`, which is the most of all of them. One more ends the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_limits: Option<FailureLimits>,
    /// Keep the last lines of workers that failed: in their pods (`terminationMessagePolicy: FallbackToLogsOnError`, where
    /// the template says nothing of it), and the last three in `status.history`. Whoever can read the job can read them
    /// there. Default true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_failure_logs: Option<bool>,
    /// Replace a worker that is much slower than the others for long (`status.stragglers`), once its round has run for half
    /// an hour, where the others are enough to train on. The master stays. Default false: they are told of, and no more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replace_stragglers: Option<bool>,
    /// What follows a training container that ran out of memory. Default: it starts again with what it had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_growth: Option<MemoryGrowth>,
    /// Whether the job gets a `PodDisruptionBudget`: of a round above `minReplicas` as many workers may be evicted at a time
    /// as it has beyond it, of one at the minimum one at a time. None is made where another budget selects the pods.
    /// `Auto` or `"Off"` (in quotes: YAML reads a bare Off as false). Default `Auto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_disruption_budget: Option<BudgetMode>,
}

/// More memory for workers that ran out of it. The training container (the first) needs a memory limit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MemoryGrowth {
    /// How much more the worker in its place gets each time, in per cent of its limit; its request grows in proportion.
    /// Default 50.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 400))]
    pub percent: Option<i64>,
    /// The limit never becomes more than this quantity, such as `64Gi`.
    #[schemars(schema_with = "schema::quantity")]
    pub max_memory: Value,
}

/// Who changes the members while a job trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ElasticityMode {
    /// All processes stop, and start in the next round.
    Rounds,
    /// `torchrun` does, by itself.
    Native,
}

/// What a job does about checkpoints. Acts where the training program tells its agent of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Checkpointing {
    /// How long a planned change of the workers waits for a checkpoint newer than the last, in seconds; 0 = it does
    /// not wait. Default 60.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 604_800))]
    pub max_wait_seconds: Option<i64>,
}

/// Whether evictions are held to a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum BudgetMode {
    Auto,
    Off,
}

/// Whether an agent drives rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AgentMode {
    Auto,
    Off,
}
