//! Asking: the policy, and the built-in one where the job wants it as its fall-back.

use std::borrow::Cow;

use super::circuit;
use crate::contract::{KeptState, MAX_STATE, MAX_TARGET, ScalingDecision, ScalingInput};
use crate::decision::Failure;
use crate::job::JobSpec;
use crate::policy::{Asked, CallFailure, FailureKind, PolicyId, ScalingPolicy};
use crate::state::Memory;
use crate::time::Time;

/// What came of asking.
pub(super) struct Heard<'a> {
    /// Who answered, or was asked last.
    pub(super) id: Option<PolicyId>,
    /// Who answered and with which input, to be asked again; `None` = nobody did.
    pub(super) by: Option<(&'a dyn ScalingPolicy, Cow<'a, ScalingInput>)>,
    pub(super) answer: Option<ScalingDecision>,
    pub(super) fuel: u64,
    pub(super) failure: Option<Failure>,
    /// The circuit is open until then.
    pub(super) open_until: Option<Time>,
}

/// Asks the job's own policy and keeps the state it returns.
pub(super) fn own<'a>(
    job: &JobSpec,
    memory: &mut Memory,
    input: &'a ScalingInput,
    policy: Result<&'a dyn ScalingPolicy, CallFailure>,
    now: Time,
) -> Heard<'a> {
    let mut heard = Heard { id: None, by: None, answer: None, fuel: 0, failure: None, open_until: None };
    let policy = match policy {
        Ok(policy) => policy,
        Err(failure) => {
            heard.failure = Some((failure, 0).into());
            return heard;
        }
    };
    let id = policy.id();
    heard.id = Some(id.clone());
    let generations = (memory.last.as_ref().map(|last| last.generation), job.generation);
    if let Some(until) = circuit::open_until(&memory.circuits, &id.digest, generations, now) {
        let in_a_row = circuit::failures(&memory.circuits, &id.digest);
        let message = format!(
            "{} failed {in_a_row} times in a row and is not asked for a while, unless it or the spec changes",
            id.name
        );
        heard.failure = Some(Failure { kind: FailureKind::Internal, message, in_a_row });
        heard.open_until = Some(until);
        return heard;
    }
    let input = with_state(memory, input, policy);
    match check(job, policy.evaluate(&input)) {
        Ok(answer) => {
            heard.fuel = answer.fuel;
            circuit::answered(&mut memory.circuits, &id.digest);
            keep_state(memory, policy, &answer.value);
            heard.answer = Some(answer.value);
            heard.by = Some((policy, input));
        }
        Err(failure) => heard.failure = Some(charge(memory, id, failure, now)),
    }
    heard
}

/// Asks the built-in policy instead, which takes no config of the job's module and keeps no state.
pub(super) fn instead<'a>(
    job: &JobSpec,
    heard: &mut Heard<'a>,
    input: &'a ScalingInput,
    fallback: &'a dyn ScalingPolicy,
) {
    let input = ScalingInput { config: "{}".to_owned(), state: None, ..input.clone() };
    if let Ok(answer) = check(job, fallback.evaluate(&input)) {
        heard.id = Some(fallback.id().clone());
        heard.fuel += answer.fuel;
        heard.answer = Some(answer.value);
        heard.by = Some((fallback, Cow::Owned(input)));
    }
}

/// Counts a failure where it is the policy's fault.
pub(super) fn charge(memory: &mut Memory, id: &PolicyId, failure: CallFailure, now: Time) -> Failure {
    let in_a_row = if failure.kind.is_fault() { circuit::failed(&mut memory.circuits, &id.digest, now) } else { 0 };
    (failure, in_a_row).into()
}

/// The host checks answers as well; the guard does not rely on it. A policy speaks of workers: what it asks for becomes
/// a size of the job, members of other types included.
pub(super) fn check(job: &JobSpec, asked: Asked<ScalingDecision>) -> Asked<ScalingDecision> {
    let mut answer = asked?;
    let bad = |message: String| Err(CallFailure { kind: FailureKind::BadAnswer, message });
    match (&answer.value.target, &answer.value.state) {
        (Some(target), _) if *target > MAX_TARGET => bad(format!("a target of {target} is above {MAX_TARGET}")),
        (_, Some(state)) if state.len() > MAX_STATE => {
            bad(format!("{} bytes of state are more than {MAX_STATE}", state.len()))
        }
        _ => {
            answer.value.target = answer.value.target.map(|workers| workers.saturating_add(job.types.count()));
            Ok(answer)
        }
    }
}

/// The input with the state that this very policy has kept, carried over if its layout is an older one.
fn with_state<'a>(memory: &Memory, input: &'a ScalingInput, policy: &dyn ScalingPolicy) -> Cow<'a, ScalingInput> {
    let version = policy.state_version();
    let own = memory.policy_state_of.as_deref() == Some(policy.id().name.as_str());
    let kept = memory.policy_state.as_ref().filter(|_| own);
    let state = carried(kept, version, |kept| policy.migrate(kept.version, &kept.bytes));
    if state == input.state { Cow::Borrowed(input) } else { Cow::Owned(ScalingInput { state, ..input.clone() }) }
}

/// State that a policy has kept, in its present layout. One that can't be carried over is dropped: the policy starts without.
pub(crate) fn carried(
    kept: Option<&KeptState>,
    version: u32,
    migrate: impl FnOnce(&KeptState) -> Asked<Vec<u8>>,
) -> Option<KeptState> {
    match kept.filter(|_| version > 0)? {
        kept if kept.version == version => Some(kept.clone()),
        kept => migrate(kept).ok().map(|answer| KeptState { version, bytes: answer.value }),
    }
}

fn keep_state(memory: &mut Memory, policy: &dyn ScalingPolicy, answer: &ScalingDecision) {
    let version = policy.state_version();
    if let Some(bytes) = answer.state.as_ref().filter(|_| version > 0) {
        memory.policy_state = Some(KeptState { version, bytes: bytes.clone() });
        memory.policy_state_of = Some(policy.id().name.clone());
    }
}
