//! `spec.elasticity`.

use std::time::Duration;

use eto_api::{AgentMode, BudgetMode, ElasticJob};
use eto_engine::contract::Framework;
use eto_engine::job::{AgentChoice, Elasticity, ElasticityMode, GlobalBatch, MAX_GLOBAL_BATCH, MemoryGrowth};

use super::{failures, framework, int};
use crate::SpecProblems;
use crate::quantity::{self, Nano};

/// `spec.elasticity.memoryGrowth.percent` where there is none.
const MEMORY_GROWTH: i64 = 50;

pub(super) fn read(job: &ElasticJob, grace: Option<Duration>, problems: &mut SpecProblems) -> Elasticity {
    let d = Elasticity::default();
    let e = job.spec.elasticity.clone().unwrap_or_default();
    let mode = mode(e.mode, job, problems);
    if e.hang_start_timeout_seconds.is_some() && e.hang_timeout_seconds.is_none() {
        let path = "spec.elasticity.hangStartTimeoutSeconds";
        problems.add(path, "needs hangTimeoutSeconds, which switches the detection of hangs on");
    }
    let scheduling = job.spec.scheduling_policy.as_ref().and_then(|p| p.schedule_timeout_seconds);
    let mut seconds = |path: &str, v: Option<i64>, low: i64, default: Duration| {
        v.and_then(|v| int(path, v, low, 604_800, problems)).map_or(default, |v| Duration::from_secs(v.into()))
    };
    let start = seconds("spec.schedulingPolicy.scheduleTimeoutSeconds", scheduling, 1, d.start_deadline);
    let drain = grace.unwrap_or(d.drain_deadline);
    Elasticity {
        start_deadline: seconds("spec.elasticity.roundTimeoutSeconds", e.round_timeout_seconds, 1, start),
        pending_deadline: seconds(
            "spec.elasticity.pendingDeadlineSeconds",
            e.pending_deadline_seconds,
            1,
            d.pending_deadline,
        ),
        drain_deadline: seconds("spec.elasticity.drainDeadlineSeconds", e.drain_deadline_seconds, 0, drain),
        agent: match e.agent {
            None | Some(AgentMode::Auto) => AgentChoice::Auto,
            Some(AgentMode::Off) => AgentChoice::Off,
        },
        mode,
        restart_scope: failures::scope(e.restart_scope),
        checkpoint_wait: seconds(
            "spec.elasticity.checkpoint.maxWaitSeconds",
            e.checkpoint.as_ref().and_then(|c| c.max_wait_seconds),
            0,
            d.checkpoint_wait,
        ),
        hang_timeout: e
            .hang_timeout_seconds
            .and_then(|v| int("spec.elasticity.hangTimeoutSeconds", v, 1, 604_800, problems))
            .map(|v| Duration::from_secs(v.into())),
        hang_start_timeout: e
            .hang_start_timeout_seconds
            .and_then(|v| int("spec.elasticity.hangStartTimeoutSeconds", v, 1, 604_800, problems))
            .map(|v| Duration::from_secs(v.into())),
        replace_stragglers: e.replace_stragglers.unwrap_or(false),
        failure_window: failures::window(e.failure_window_seconds, problems),
        failure_limits: failures::limits(e.failure_limits.as_ref(), problems),
        failure_logs: e.keep_failure_logs.unwrap_or(true),
        memory_growth: e.memory_growth.as_ref().and_then(|g| memory_growth(g, problems)),
        disruption_budget: e.pod_disruption_budget != Some(BudgetMode::Off),
        batch: batch(&e, problems),
    }
}

fn mode(asked: Option<eto_api::ElasticityMode>, job: &ElasticJob, problems: &mut SpecProblems) -> ElasticityMode {
    match asked {
        None | Some(eto_api::ElasticityMode::Rounds) => ElasticityMode::Rounds,
        Some(eto_api::ElasticityMode::Native) => {
            if framework(job.spec.framework_type) != Framework::PyTorch {
                let why = "Native needs frameworkType PyTorch: it is the elasticity of torchrun";
                problems.add("spec.elasticity.mode", why);
            }
            ElasticityMode::Native
        }
    }
}

fn memory_growth(g: &eto_api::MemoryGrowth, problems: &mut SpecProblems) -> Option<MemoryGrowth> {
    const PATH: &str = "spec.elasticity.memoryGrowth";
    let percent = int(&format!("{PATH}.percent"), g.percent.unwrap_or(MEMORY_GROWTH), 1, 400, problems);
    let most = quantity::from_value(&g.max_memory).map(Nano::whole);
    let most = most.map_err(|why| problems.add(format!("{PATH}.maxMemory"), why)).ok();
    if most == Some(0) {
        problems.add(format!("{PATH}.maxMemory"), "must be above 0");
    }
    Some(MemoryGrowth { percent: percent?, max_bytes: most? })
}

fn batch(e: &eto_api::Elasticity, problems: &mut SpecProblems) -> Option<GlobalBatch> {
    let mut samples = |name: &str, v: Option<i64>| {
        v.and_then(|v| int(&format!("spec.elasticity.{name}"), v, 1, MAX_GLOBAL_BATCH.into(), problems))
    };
    let (global, max_micro) =
        (samples("globalBatchSize", e.global_batch_size), samples("maxMicroBatchSize", e.max_micro_batch_size));
    if e.max_micro_batch_size.is_some() && e.global_batch_size.is_none() {
        problems.add("spec.elasticity.maxMicroBatchSize", "needs globalBatchSize: it limits a process's share of that");
    }
    global.map(|samples| GlobalBatch { samples, max_micro })
}
