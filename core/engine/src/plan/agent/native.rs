//! Rounds of a run: `torchrun` takes members in and lets them go by itself (`spec.elasticity.mode: Native`).
//!
//! A run begins like any round: all stop, and all start. Its members meet at a store that the agent of the coordinator
//! serves. As long as the coordinator stays, the next round needs no stop: it is published with `Run`, those who are
//! in both go on, who is left out stops, and who is new starts and is taken in. What `torchrun` would not notice in time
//! (a node that is cut off sends no last word), what closes its rendezvous (it ended with a code of its own) and the
//! loss of the store begin another run, as all other rounds do.

use std::collections::HashSet;

use super::super::EventReason;
use super::super::step::{Step, gaps_of};
use super::facts::count;
use super::losses::Loss;
use super::orders::Begin;
use crate::contract::Framework;
use crate::guard::sizes;
use crate::job::{ElasticityMode, LegalSizes};
use crate::observe::Pod;
use crate::state::{AgentRound, Change, ChangeStep, ConditionReason as Why, RoundMember, RoundOrder, RoundState};
use eto_membership::Native;

/// Exit codes above this are signals: `torchrun` had no time to close its rendezvous for all others.
const SIGNALS: i32 = 128;

impl<'a> Step<'a> {
    /// The user asks for it and the job allows it; whether the command can, only the agents know.
    fn wants_native(&self) -> bool {
        let job = self.job;
        let any_size = job.legal == LegalSizes::Any && job.elasticity.batch.is_none();
        job.elasticity.mode == ElasticityMode::Native && job.framework == Framework::PyTorch && any_size
    }

    /// The run that a round of these members begins. All their agents must have said that they can; of one that is not
    /// heard of counts what it was in before.
    pub(super) fn run_of(&self, members: &[RoundMember], before: &AgentRound, generation: u64) -> Option<Native> {
        let of_before: HashSet<&str> = before.members.iter().map(|b| b.uid.as_str()).collect();
        let can = |m: &RoundMember| match self.facts.group.and_then(|g| g.members.get(&m.uid)) {
            Some(record) => record.report.native,
            None => before.native.is_some() && of_before.contains(m.uid.as_str()),
        };
        let all = self.wants_native() && members.iter().all(can);
        all.then_some(Native { run: generation, min: self.job.min, max: self.job.max })
    }

    /// Begins the round of these pods as one that nobody has to stop for. False if that can't be.
    pub(super) fn go_on_natively(&mut self, pods: &[&'a Pod], begin: Begin<'_>) -> bool {
        let Some(old) = self.state.round.clone() else { return false };
        let Some(before) = old.agent.clone().filter(|a| a.order == RoundOrder::Run) else { return false };
        // A run that no agent was told of has nobody who could go on in it.
        let told = self.facts.group.and_then(|g| g.assignment.as_ref()).and_then(|a| a.native);
        let Some(native) = before.native.filter(|n| told == Some(*n) && self.wants_native()) else { return false };
        let members = self.ranked(pods, &before);
        let size = count(members.len());
        let fits = (native.min..=native.max).contains(&size) && sizes::at_most(self.job, size) == Some(size);
        let same_store = members.first().is_some_and(|m| before.members.first() == Some(m));
        let all_can = self.run_of(&members, &before, native.run).is_some();
        let waits = self.state.not_before.is_some_and(|t| t > self.now);
        if !fits || !same_store || !all_can || waits || self.has_other_template() {
            return false;
        }
        let mut stopping = self.to_be_stopped(&before);
        let go_on: HashSet<&str> = members.iter().map(|m| m.uid.as_str()).collect();
        stopping.retain(|uid| !go_on.contains(uid.as_str()));
        let (generation, tells) = (self.next_generation(), self.has_told(begin.cause, &before));
        self.note_going_on(&old, size, begin);
        let mut indexes: Vec<u32> = members.iter().map(|m| m.index).collect();
        indexes.sort_unstable();
        self.state.round = Some(RoundState {
            generation,
            size,
            since: self.now,
            running_since: None,
            cause: begin.cause,
            complete: Some(self.now),
            gaps: gaps_of(&indexes),
            restarts_charged: 0,
            agent: Some(AgentRound {
                order: RoundOrder::Run,
                in_force: None,
                firm: false,
                members,
                stopping,
                grace_ms: begin.grace_ms,
                native: Some(native),
                why: begin.why.to_owned(),
                charged: begin.charged,
                pods_from: before.pods_from,
                tells,
            }),
            ..old
        });
        self.note_members();
        self.notes.why = Some(begin.why.to_owned());
        let message =
            format!("round {generation} of {size} workers, in the run of round {}: {}", native.run, begin.why);
        self.event(false, EventReason::RoundStarted, message);
        true
    }

    /// The change goes on without a stop of ours, so there is none to measure.
    fn note_going_on(&mut self, old: &RoundState, to: u32, begin: Begin<'_>) {
        let now = self.now;
        let begins = Change::begin(begin.cause, old.size, to, ChangeStep::Starting, now);
        let change = self.state.change.get_or_insert(begins);
        (change.step, change.since) = (ChangeStep::Starting, now);
    }

    /// Whether `torchrun` notices these losses by itself and soon, and goes on without them: their connections were closed,
    /// and neither the store nor the rendezvous went with them.
    pub(super) fn is_noticed(&self, losses: &[Loss<'_>]) -> bool {
        let Some(first) = self.agent().and_then(|a| a.members.first()) else { return false };
        losses.iter().all(|loss| match loss {
            Loss::Gone(index) => *index != first.index,
            Loss::Leaving(pod) | Loss::Disrupted(pod) | Loss::Failed(pod) | Loss::OutOfMemory(pod) => {
                pod.uid != first.uid
            }
            Loss::Exited(pod, code) => pod.uid != first.uid && *code > SIGNALS,
            Loss::CutOff(_) | Loss::Finished(_) | Loss::Silent(_) | Loss::NotStarted(_) => false,
        })
    }

    /// Those whom the others went on without have their grace to stop, and are let go.
    pub(super) fn let_go(&mut self) {
        if self.order() != RoundOrder::Run || self.agent().is_none_or(|a| a.stopping.is_empty()) {
            return;
        }
        match self.still_stopping() {
            (true, Some(until)) if until <= self.now => {
                if let Some(agent) = self.agent_mut() {
                    agent.stopping.clear();
                }
            }
            (true, until) => self.looks.extend(until),
            (false, _) => {}
        }
    }

    /// What `AgentRounds` says of a job that asks for it, where an agent drives the round that stands; `None` = nothing.
    pub(super) fn native_condition(&self) -> Option<(Why, &'static str)> {
        if self.job.elasticity.mode != ElasticityMode::Native {
            return None;
        }
        let agent = self.agent()?;
        if agent.native.is_some() {
            return Some((
                Why::NativeElasticity,
                "an agent in the pods runs torchrun, which changes its members by itself",
            ));
        }
        if !self.wants_native() {
            let why = "an agent in the pods drives rounds: elasticity.mode Native needs a job of which any size will do, \
                       without replicaSizes and globalBatchSize";
            return Some((Why::SizesNotNative, why));
        }
        let mut known = agent.members.iter().filter_map(|m| self.facts.group?.members.get(&m.uid));
        // While the group can't be read it says what it said.
        let said = self.state.conditions.iter().any(|c| c.reason == Why::NotTorchrun);
        if known.any(|r| !r.report.native) || (self.facts.group.is_none() && said) {
            let why = "an agent in the pods drives rounds: elasticity.mode Native needs torchrun as the command of all \
                       workers";
            return Some((Why::NotTorchrun, why));
        }
        None
    }
}
