//! What a placement policy answered last, as status shows it, and back: the next leader shows it too.

use eto_api::{self as api, PlacedOnStatus, PlacementStatus};
use eto_engine::contract::Reason;
use eto_engine::decision::{Failure, Placed, PlacedOn};
use eto_engine::policy::PolicyId;

use super::read::{int as number, long, named, time};
use super::write::{MAX_REASONS, failure, int, policy, reason, rfc3339};

/// Victims that status carries at most.
const MAX_VICTIMS: usize = 128;

pub(super) fn write(p: &Placed) -> PlacementStatus {
    let on = |n: &PlacedOn| PlacedOnStatus {
        node: n.node.clone(),
        required: n.required,
        workers: n.workers.iter().map(|w| (*w).into()).collect(),
    };
    PlacementStatus {
        time: rfc3339(p.at),
        generation: int(p.generation),
        policy: p.policy.as_ref().map(policy),
        apply: p.apply,
        nodes: p.nodes.iter().map(on).collect(),
        unlisted: p.unlisted.into(),
        victims: p.victims.iter().take(MAX_VICTIMS).map(|v| (*v).into()).collect(),
        reasons: p.reasons.iter().take(MAX_REASONS).map(reason).collect(),
        fuel: int(p.fuel),
        failure: p.failure.as_ref().map(failure),
    }
}

/// `None` where this version can't read it: it is for people alone.
pub(super) fn read(p: &PlacementStatus) -> Option<Placed> {
    let policy =
        |p: &api::PolicyRef| PolicyId { name: p.name.clone(), version: p.version.clone(), digest: p.digest.clone() };
    let on = |n: &PlacedOnStatus| PlacedOn {
        node: n.node.clone(),
        required: n.required,
        workers: n.workers.iter().map(|w| number(*w)).collect(),
    };
    let reason = |r: &api::ReasonStatus| Reason {
        code: r.code.clone(),
        message: r.message.clone(),
        signal: r.signal.clone(),
        value: r.value,
        target: r.target,
    };
    let failure = match &p.failure {
        Some(f) => Some(Failure { kind: named(&f.kind)?, message: f.message.clone(), in_a_row: number(f.in_a_row) }),
        None => None,
    };
    Some(Placed {
        at: time(&p.time)?,
        generation: long(p.generation),
        policy: p.policy.as_ref().map(policy),
        apply: p.apply,
        nodes: p.nodes.iter().map(on).collect(),
        unlisted: number(p.unlisted),
        victims: p.victims.iter().map(|v| number(*v)).collect(),
        reasons: p.reasons.iter().map(reason).collect(),
        fuel: long(p.fuel),
        failure,
    })
}
