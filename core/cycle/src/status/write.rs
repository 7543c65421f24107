//! Engine state to `status`.

use eto_api::{self as api, ElasticJob, ElasticJobStatus};
use eto_engine::contract::{KeptState, Reason};
use eto_engine::decision::{Decision, Failure};
use eto_engine::job::JobSpec;
use eto_engine::plan::Checkpoint;
use eto_engine::policy::PolicyId;
use eto_engine::state::{
    AgentRound, Change, Charge, Condition, HistoryEntry, JobState, Memory, ResizeRecord, RoundMember, RoundState,
};
use eto_engine::time::Time;
use k8s_openapi::ByteString;
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;

use super::{MAX_STORED_POLICY_STATE, placed};

/// Longest text of a reason, note or limiter in status, in characters.
const SHORT: usize = 256;
/// Longest message of a condition or failure.
const LONG: usize = 1024;

/// What a status is made of.
#[derive(Clone, Copy)]
pub struct StatusFacts<'a> {
    pub job: &'a ElasticJob,
    /// `None` while the spec is not usable: what it says of ranges and policy is left out then.
    pub spec: Option<&'a JobSpec>,
    pub state: &'a JobState,
    pub memory: &'a Memory,
    /// The decision to show.
    pub decision: Option<&'a Decision>,
    /// Workers that exist and are not being deleted.
    pub replicas: u32,
    /// Workers that are running and ready.
    pub ready: u32,
    pub now: Time,
}

/// Builds the status. Costs O(size of what it shows).
pub fn to_status(f: &StatusFacts<'_>) -> ElasticJobStatus {
    let s = f.state;
    let name = f.job.metadata.name.as_deref().unwrap_or_default();
    ElasticJobStatus {
        phase: name_of(&s.phase),
        observed_generation: f.job.metadata.generation,
        replicas: f.replicas.into(),
        ready_replicas: f.ready.into(),
        target_replicas: s.target.into(),
        based_on_replicas: (s.based_on > 0).then_some(s.based_on.into()),
        min_replicas: f.spec.map(|j| j.min.into()),
        max_replicas: f.spec.map(|j| j.max.into()),
        policy: policy_column(f),
        selector: format!("{}={name}", api::labels::ELASTIC_JOB),
        round: s.round.as_ref().map(round),
        last_generation: int(s.last_generation),
        victims: s
            .victims
            .iter()
            .map(|v| api::VictimStatus {
                pod: v.pod.clone(),
                uid: v.uid.clone(),
                index: v.index.into(),
                reason: cut(&v.reason, SHORT),
            })
            .collect(),
        deleting: s.deleting.clone(),
        failures: s.failures.into(),
        charges: s.charges.iter().map(charge).collect(),
        disruptions: s.disruptions.into(),
        start_attempts: s.start_attempts.into(),
        not_before: s.not_before.map(rfc3339),
        last_resize: s.last_resize.as_ref().map(resize),
        change: s.change.as_ref().map(change),
        stragglers: s
            .stragglers
            .iter()
            .map(|s| api::StragglerStatus { pod: s.pod.clone(), uid: s.uid.clone(), since: rfc3339(s.since) })
            .collect(),
        grown_memory: s
            .memory
            .as_ref()
            .map(|m| api::GrownMemoryStatus { template_hash: m.template_hash.clone(), bytes: int(m.bytes) }),
        history: s.history.iter().map(history).collect(),
        start_time: s.started_at.map(rfc3339),
        completion_time: s.finished_at.map(rfc3339),
        message: s.message.clone(),
        conditions: s.conditions.iter().map(|c| condition(c, f.job.metadata.generation)).collect(),
        signals: f.decision.map(signals).unwrap_or_default(),
        last_decision: f.decision.map(decision),
        last_placement: last_placement(f),
        memory: Some(memory(f.memory, f.now)),
        undecodable: None,
    }
}

/// `name@version` of who answered last, else the name of the module in force.
fn policy_column(f: &StatusFacts<'_>) -> Option<String> {
    let module = &f.spec?.scaling.as_ref()?.module;
    let answered = f.decision.and_then(|d| d.policy.as_ref()).filter(|p| p.name == *module);
    Some(answered.map_or_else(|| module.clone(), |p| format!("{}@{}", p.name, p.version)))
}

/// Nothing where the job has no placement policy any more.
fn last_placement(f: &StatusFacts<'_>) -> Option<api::PlacementStatus> {
    f.job.spec.placement_policy.as_ref()?;
    f.memory.placement.last.as_ref().map(placed::write)
}

fn charge(c: &Charge) -> api::ChargeStatus {
    api::ChargeStatus {
        class: name_of(&c.class),
        first: rfc3339(c.first),
        last: rfc3339(c.last),
        count: c.count.into(),
    }
}

fn round(r: &RoundState) -> api::RoundStatus {
    api::RoundStatus {
        generation: int(r.generation),
        size: r.size.into(),
        template_hash: r.template_hash.clone(),
        since: rfc3339(r.since),
        running_since: r.running_since.map(rfc3339),
        cause: name_of(&r.cause),
        complete: r.complete.map(rfc3339),
        required_nodes: r.required_nodes,
        gaps: r.gaps.iter().map(|&g| g.into()).collect(),
        restarts_charged: r.restarts_charged.into(),
        agent: r.agent.as_ref().map(agent_round),
    }
}

fn agent_round(r: &AgentRound) -> api::AgentRoundStatus {
    let member = |m: &RoundMember| api::RoundMemberStatus {
        index: m.index.into(),
        uid: m.uid.clone(),
        address: m.address.clone(),
        processes: m.processes.into(),
    };
    api::AgentRoundStatus {
        order: name_of(&r.order),
        in_force: r.in_force.map(rfc3339),
        firm: r.firm,
        members: r.members.iter().map(member).collect(),
        stopping: r.stopping.clone(),
        grace_milliseconds: int(r.grace_ms),
        native: r.native.map(|n| api::NativeRunStatus {
            run: int(n.run),
            min: n.min.into(),
            max: n.max.into(),
            alone: n.alone,
            ranks: r.run_ranks.iter().map(|&i| i.into()).collect(),
        }),
        hung: r.hung.clone(),
        why: cut(&r.why, SHORT),
        charged: r.charged,
        pods_from: int(r.pods_from),
        tells: r.tells,
    }
}

fn change(c: &Change) -> api::ChangeStatus {
    let checkpoint = |c: Checkpoint| api::CheckpointStatus {
        generation: int(c.generation),
        step: int(c.step),
        time: rfc3339(Time(c.at_ms)),
    };
    api::ChangeStatus {
        cause: name_of(&c.cause),
        from: c.from.into(),
        to: c.to.into(),
        step: name_of(&c.step),
        decided: rfc3339(c.decided),
        since: rfc3339(c.since),
        checkpoint: c.checkpoint.map(checkpoint),
        stopped: c.stopped.map(rfc3339),
        steps_lost: c.steps_lost.map(int),
        anywhere: c.anywhere,
    }
}

fn resize(r: &ResizeRecord) -> api::ResizeStatus {
    api::ResizeStatus {
        from: r.from.into(),
        to: r.to.into(),
        decided: rfc3339(r.decided),
        done: r.done.map(rfc3339),
        refused: r.refused,
        refusals: r.refusals.into(),
        paused_milliseconds: r.cost.map(|c| int(c.paused_ms)),
        steps_lost: r.cost.and_then(|c| c.steps_lost).map(int),
        by: name_of(&r.by),
        why: cut(&r.why, SHORT),
    }
}

fn history(e: &HistoryEntry) -> api::HistoryStatus {
    api::HistoryStatus {
        kind: name_of(&e.kind),
        by: name_of(&e.by),
        loss: e.loss.as_ref().map(name_of),
        why: cut(&e.why, SHORT),
        from: e.from.into(),
        to: e.to.into(),
        generation: int(e.generation),
        attempts: e.attempts.into(),
        started: rfc3339(e.started),
        stopped: e.stopped.map(rfc3339),
        ended: e.ended.map(rfc3339),
        outcome: e.outcome.as_ref().map(name_of),
        paused_milliseconds: e.paused_ms.map(int),
        steps_lost: e.steps_lost.map(int),
        failed: e.failed.as_ref().map(|f| api::FailedWorkerStatus {
            pod: f.pod.clone(),
            exit_code: f.exit_code,
            reason: cut(&f.reason, SHORT),
            last_lines: f.last_lines.clone(),
        }),
        left: e.left.clone(),
        joined: e.joined.clone(),
        before: e.before.clone(),
    }
}

fn condition(c: &Condition, generation: Option<i64>) -> api::Condition {
    api::Condition {
        kind: name_of(&c.kind),
        status: if c.status { "True" } else { "False" }.to_string(),
        reason: name_of(&c.reason),
        message: cut(&c.message, LONG),
        last_transition_time: rfc3339(c.since),
        observed_generation: generation,
    }
}

fn signals(d: &Decision) -> Vec<api::SignalStatus> {
    d.signals
        .iter()
        .take(32)
        .map(|s| api::SignalStatus {
            name: s.name.clone(),
            quality: name_of(&s.quality),
            coverage: finite(s.coverage).unwrap_or(0.0),
            age_milliseconds: int(s.age_ms),
            mean: s.mean.and_then(finite),
            note: s.note.as_deref().map(|n| cut(n, SHORT)),
        })
        .collect()
}

fn decision(d: &Decision) -> api::DecisionStatus {
    api::DecisionStatus {
        time: rfc3339(d.at),
        sequence: int(d.sequence),
        generation: int(d.generation),
        policy: d.policy.as_ref().map(policy),
        from: d.from.into(),
        proposed: d.proposed.map(Into::into),
        target: d.target.into(),
        limits: d
            .limits
            .iter()
            .take(16)
            .map(|l| api::LimitStatus {
                by: name_of(&l.by),
                from: l.from.into(),
                to: l.to.into(),
                until: l.until.map(rfc3339),
                message: cut(&l.message, SHORT),
            })
            .collect(),
        reasons: d.reasons.iter().take(MAX_REASONS).map(reason).collect(),
        fuel: int(d.fuel),
        apply: d.apply,
        answered: d.answered,
        mend: d.mend.as_ref().map(|m| cut(&m.message, LONG)),
        failure: d.failure.as_ref().map(failure),
        next_look: d.next_look.map(rfc3339),
    }
}

/// Reasons that status carries at most.
pub(super) const MAX_REASONS: usize = 16;

pub(super) fn policy(p: &PolicyId) -> api::PolicyRef {
    api::PolicyRef { name: p.name.clone(), version: p.version.clone(), digest: p.digest.clone() }
}

pub(super) fn reason(r: &Reason) -> api::ReasonStatus {
    api::ReasonStatus {
        code: cut(&r.code, SHORT),
        message: cut(&r.message, SHORT),
        signal: r.signal.clone(),
        value: r.value.and_then(finite),
        target: r.target.and_then(finite),
    }
}

pub(super) fn failure(f: &Failure) -> api::FailureStatus {
    api::FailureStatus { kind: name_of(&f.kind), message: cut(&f.message, LONG), in_a_row: f.in_a_row.into() }
}

/// Entries of a history that status carries at most, the newest.
const MAX_HISTORY: usize = 240;

fn memory(m: &Memory, now: Time) -> api::MemoryStatus {
    let sizes = |all: &[(Time, u32)]| -> Vec<api::SizeAt> {
        let from = all.len().saturating_sub(MAX_HISTORY);
        all.iter().skip(from).map(|&(t, n)| api::SizeAt { time: rfc3339(t), size: n.into() }).collect()
    };
    let recommendations = turns(&m.recommendations);
    let policy_state = storable(m.policy_state.as_ref());
    let placement = &m.placement.kept;
    let kept = |s: &KeptState| api::PolicyStateStatus { version: s.version.into(), data: ByteString(s.bytes.clone()) };
    // What is not whole must not pass for it: it counts as begun now, so that nothing shrinks before a window has passed.
    let whole = recommendations.len() <= MAX_HISTORY;
    api::MemoryStatus {
        saved: rfc3339(now),
        since: rfc3339(if whole { m.since } else { now }),
        sequence: int(m.sequence),
        replicas: m.replicas.map(Into::into),
        recommendations: sizes(&recommendations),
        ups: sizes(&m.ups),
        downs: sizes(&m.downs),
        policy_state: policy_state.map(kept),
        policy_state_of: m.policy_state_of.clone(),
        placement_state: storable(placement.state.as_ref()).map(kept),
        placement_state_of: placement.of.clone(),
        circuits: m
            .circuits
            .iter()
            .map(|(digest, c)| {
                let open_until = c.open_until.map(rfc3339);
                (digest.clone(), api::CircuitStatus { failures: c.failures.into(), open_until })
            })
            .collect(),
    }
}

fn storable(state: Option<&KeptState>) -> Option<&KeptState> {
    state.filter(|s| s.bytes.len() <= MAX_STORED_POLICY_STATE)
}

/// Of a run of equal recommendations the first and the last say the same as all of them to any window that looks for a
/// minimum or maximum; that keeps a steady job's status small.
fn turns(all: &[(Time, u32)]) -> Vec<(Time, u32)> {
    let same = |i: usize, j: usize| all.get(i).zip(all.get(j)).is_some_and(|(a, b)| a.1 == b.1);
    let ends = |&(i, _): &(usize, &(Time, u32))| i == 0 || !same(i - 1, i) || !same(i, i + 1);
    all.iter().enumerate().filter(ends).map(|(_, s)| *s).collect()
}

/// Name of a unit variant as serde writes it, which is how the sets of names are shown everywhere.
fn name_of<T: Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(s)) => s,
        _ => String::new(),
    }
}

/// RFC 3339 in UTC with milliseconds.
pub(crate) fn rfc3339(t: Time) -> String {
    let at = i64::try_from(t.0).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok()).unwrap_or(Timestamp::MAX);
    format!("{at:.3}")
}

pub(super) fn int(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

fn finite(v: f64) -> Option<f64> {
    v.is_finite().then_some(v)
}

fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((at, _)) => format!("{}...", text.get(..at.saturating_sub(3)).unwrap_or_default()),
        None => text.to_string(),
    }
}
