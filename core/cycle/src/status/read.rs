//! `status` to engine state.

use std::collections::BTreeMap;
use std::time::Duration;

use eto_api::{self as api, ElasticJobStatus};
use eto_engine::contract::KeptState;
use eto_engine::plan::Checkpoint;
use eto_engine::state::{
    AgentRound, Change, Charge, Circuit, Condition, FailedWorker, GrownMemory, HistoryEntry, JobState, Kept, Memory,
    PlacementMemory, ResizeCost, ResizeRecord, RoundMember, RoundState, Steadiness, Straggler, Victim,
};
use eto_engine::time::Time;
use eto_membership::Native;
use k8s_openapi::jiff::Timestamp;
use serde::de::DeserializeOwned;

use super::{Restored, placed};
use crate::checkpoint::PolicyCheckpoint;

/// A memory saved longer ago than this does not stand for what happened since; its events are kept, but it counts as
/// begun now.
const FRESH: Duration = Duration::from_secs(60);

/// Reads a status. `None` where there is none that can be gone on from: none was written yet, it can't be decoded, or
/// it holds a phase or cause that this version does not know. The caller rebuilds the state from the live pods then.
pub fn from_status(status: &ElasticJobStatus, now: Time) -> Option<Restored> {
    restore(status, None, now)
}

/// As [`from_status`], with the state of the policy that is kept outside status, where there is one.
pub fn restore(status: &ElasticJobStatus, checkpoint: Option<PolicyCheckpoint>, now: Time) -> Option<Restored> {
    if status.undecodable.is_some() || status.phase.is_empty() {
        return None;
    }
    let state = JobState {
        phase: named(&status.phase)?,
        target: int(status.target_replicas),
        based_on: status.based_on_replicas.map_or(0, int),
        round: each(status.round.as_ref(), round)?,
        last_generation: long(status.last_generation),
        victims: status
            .victims
            .iter()
            .map(|v| Victim { pod: v.pod.clone(), uid: v.uid.clone(), index: int(v.index), reason: v.reason.clone() })
            .collect(),
        deleting: status.deleting.clone(),
        failures: int(status.failures),
        charges: status.charges.iter().filter_map(charge).collect(),
        disruptions: int(status.disruptions),
        start_attempts: int(status.start_attempts),
        not_before: each(status.not_before.as_ref(), time)?,
        last_resize: each(status.last_resize.as_ref(), resize)?,
        change: each(status.change.as_ref(), change)?,
        stragglers: status
            .stragglers
            .iter()
            .filter_map(|s| Some(Straggler { pod: s.pod.clone(), uid: s.uid.clone(), since: time(&s.since)? }))
            .collect(),
        memory: status
            .grown_memory
            .as_ref()
            .map(|m| GrownMemory { template_hash: m.template_hash.clone(), bytes: long(m.bytes) }),
        // For people alone: what this version can't read of it is left out.
        history: status.history.iter().filter_map(history).collect(),
        started_at: each(status.start_time.as_ref(), time)?,
        finished_at: each(status.completion_time.as_ref(), time)?,
        message: status.message.clone(),
        conditions: status.conditions.iter().filter_map(condition).collect(),
    };
    let mut memory = status.memory.as_ref().and_then(|m| memory(m, now)).unwrap_or_else(|| Memory::new(now));
    memory.placement.last = status.last_placement.as_ref().and_then(placed::read);
    take_up(&mut memory, checkpoint, now);
    Some(Restored { state, memory })
}

/// Takes up the states that were kept outside, unless status has newer ones. A scaling policy's state that is older than
/// the decisions made since, or than a minute, or that is lost, does not stand for what happened since: the memory counts
/// as begun now.
pub fn take_up(memory: &mut Memory, checkpoint: Option<PolicyCheckpoint>, now: Time) {
    let sequence = memory.sequence;
    let (scaling, placement) = checkpoint.map_or((None, None), |c| {
        (c.scaling.map(|held| (held, c.sequence, c.saved)), c.placement.map(|held| (held, c.sequence)))
    });
    match scaling.filter(|(_, of, _)| memory.policy_state.is_none() || *of > sequence) {
        Some((held, of, saved)) => {
            if of < sequence || now.since(saved) > FRESH {
                memory.since = now;
            }
            memory.sequence = sequence.max(of);
            memory.policy_state = Some(held.state);
            memory.policy_state_of = Some(held.policy);
        }
        None if memory.policy_state.is_none() && memory.policy_state_of.is_some() => memory.since = now,
        None => {}
    }
    // The size does not rest on what a placement policy keeps.
    if let Some((held, _)) = placement.filter(|(_, of)| memory.placement.kept.state.is_none() || *of > sequence) {
        memory.placement.kept = Kept { state: Some(held.state), of: Some(held.policy) };
    }
}

/// One of a class that this version does not know still counts in the number of all.
fn charge(c: &api::ChargeStatus) -> Option<Charge> {
    Some(Charge { class: named(&c.class)?, first: time(&c.first)?, last: time(&c.last)?, count: int(c.count) })
}

fn round(r: &api::RoundStatus) -> Option<RoundState> {
    Some(RoundState {
        generation: long(r.generation),
        size: int(r.size),
        template_hash: r.template_hash.clone(),
        since: time(&r.since)?,
        running_since: each(r.running_since.as_ref(), time)?,
        cause: named(&r.cause)?,
        complete: each(r.complete.as_ref(), time)?,
        required_nodes: r.required_nodes,
        gaps: r.gaps.iter().map(|&g| int(g)).collect(),
        restarts_charged: int(r.restarts_charged),
        agent: each(r.agent.as_ref(), agent_round)?,
    })
}

fn agent_round(r: &api::AgentRoundStatus) -> Option<AgentRound> {
    let member = |m: &api::RoundMemberStatus| RoundMember {
        index: int(m.index),
        uid: m.uid.clone(),
        address: m.address.clone(),
        processes: int(m.processes),
    };
    Some(AgentRound {
        order: named(&r.order)?,
        in_force: each(r.in_force.as_ref(), time)?,
        firm: r.firm,
        members: r.members.iter().map(member).collect(),
        stopping: r.stopping.clone(),
        grace_ms: long(r.grace_milliseconds),
        native: r.native.as_ref().map(|n| Native {
            run: long(n.run),
            min: int(n.min),
            max: int(n.max),
            alone: n.alone,
        }),
        run_ranks: r.native.iter().flat_map(|n| &n.ranks).map(|&i| int(i)).collect(),
        hung: r.hung.clone(),
        why: r.why.clone(),
        charged: r.charged,
        pods_from: long(r.pods_from),
        tells: r.tells,
    })
}

fn change(c: &api::ChangeStatus) -> Option<Change> {
    let checkpoint = |c: &api::CheckpointStatus| {
        Some(Checkpoint { generation: long(c.generation), step: long(c.step), at_ms: time(&c.time)?.0 })
    };
    Some(Change {
        cause: named(&c.cause)?,
        from: int(c.from),
        to: int(c.to),
        step: named(&c.step)?,
        decided: time(&c.decided)?,
        since: time(&c.since)?,
        checkpoint: each(c.checkpoint.as_ref(), checkpoint)?,
        stopped: each(c.stopped.as_ref(), time)?,
        steps_lost: c.steps_lost.map(long),
        anywhere: c.anywhere,
    })
}

fn resize(r: &api::ResizeStatus) -> Option<ResizeRecord> {
    Some(ResizeRecord {
        from: int(r.from),
        to: int(r.to),
        decided: time(&r.decided)?,
        done: each(r.done.as_ref(), time)?,
        refused: r.refused,
        refusals: int(r.refusals),
        cost: r
            .paused_milliseconds
            .map(|paused| ResizeCost { paused_ms: long(paused), steps_lost: r.steps_lost.map(long) }),
        by: named(&r.by).unwrap_or_default(),
        why: r.why.clone(),
    })
}

fn history(e: &api::HistoryStatus) -> Option<HistoryEntry> {
    Some(HistoryEntry {
        kind: named(&e.kind)?,
        by: named(&e.by)?,
        loss: each(e.loss.as_ref(), |l| named(l))?,
        why: e.why.clone(),
        from: int(e.from),
        to: int(e.to),
        generation: long(e.generation),
        attempts: int(e.attempts),
        started: time(&e.started)?,
        stopped: each(e.stopped.as_ref(), time)?,
        ended: each(e.ended.as_ref(), time)?,
        outcome: each(e.outcome.as_ref(), |o| named(o))?,
        paused_ms: e.paused_milliseconds.map(long),
        steps_lost: e.steps_lost.map(long),
        failed: e.failed.as_ref().map(|f| FailedWorker {
            pod: f.pod.clone(),
            exit_code: f.exit_code,
            reason: f.reason.clone(),
            last_lines: f.last_lines.clone(),
        }),
        left: e.left.clone(),
        joined: e.joined.clone(),
        before: e.before.clone(),
    })
}

/// A condition of a kind or reason that this version does not know is left out; the engine makes its own anew.
fn condition(c: &api::Condition) -> Option<Condition> {
    Some(Condition {
        kind: named(&c.kind)?,
        status: c.status == "True",
        reason: named(&c.reason)?,
        message: c.message.clone(),
        since: time(&c.last_transition_time)?,
    })
}

fn kept(s: &api::PolicyStateStatus) -> KeptState {
    KeptState { version: int(s.version), bytes: s.data.0.clone() }
}

fn memory(m: &api::MemoryStatus, now: Time) -> Option<Memory> {
    let sizes = |all: &[api::SizeAt]| -> Vec<(Time, u32)> {
        all.iter().filter_map(|s| Some((time(&s.time)?, int(s.size)))).collect()
    };
    let fresh = now.since(time(&m.saved)?) <= FRESH;
    Some(Memory {
        since: if fresh { time(&m.since)? } else { now },
        sequence: long(m.sequence),
        replicas: m.replicas.map(int),
        recommendations: sizes(&m.recommendations),
        ups: sizes(&m.ups),
        downs: sizes(&m.downs),
        policy_state: m.policy_state.as_ref().map(kept),
        policy_state_of: m.policy_state_of.clone(),
        placement: PlacementMemory {
            kept: Kept { state: m.placement_state.as_ref().map(kept), of: m.placement_state_of.clone() },
            ..PlacementMemory::default()
        },
        circuits: m
            .circuits
            .iter()
            .map(|(digest, c)| {
                let open_until = c.open_until.as_ref().and_then(time);
                (digest.clone(), Circuit { failures: int(c.failures), open_until, last: None })
            })
            .collect(),
        // Not in status: the history of signals, and the last decision as such.
        history: BTreeMap::new(),
        last: None,
        limited: Steadiness::default(),
    })
}

pub(super) fn named<T: DeserializeOwned>(name: &str) -> Option<T> {
    serde_json::from_value(serde_json::Value::String(name.to_string())).ok()
}

#[allow(clippy::ptr_arg)] // What `Option::as_ref` of a field hands out.
pub(super) fn time(text: &String) -> Option<Time> {
    text.parse::<Timestamp>().ok().map(crate::spec::time)
}

/// Reads what may be missing. The outer `None`: it is there and can't be read.
#[allow(clippy::option_option)]
fn each<T, U>(part: Option<&T>, read: impl Fn(&T) -> Option<U>) -> Option<Option<U>> {
    part.map_or(Some(None), |p| read(p).map(Some))
}

pub(super) fn int(n: i64) -> u32 {
    u32::try_from(n.max(0)).unwrap_or(u32::MAX)
}

pub(super) fn long(n: i64) -> u64 {
    u64::try_from(n).unwrap_or(0)
}
