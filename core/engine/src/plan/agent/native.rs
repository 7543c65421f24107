//! Rounds of a run: `torchrun` takes members in and lets them go by itself (`spec.elasticity.mode: Native`).
//!
//! A run begins like any round: all stop, and all start. Its members meet at a store that the agent of the coordinator
//! serves. As long as the coordinator stays, the next round needs no stop: it is published with `Run`, those who are
//! in both go on, who is left out stops, and who is new starts and is taken in. What `torchrun` would not notice in time
//! (a node that is cut off sends no last word), what closes its rendezvous (it ended with a code of its own) and the
//! loss of the store begin another run, as all other rounds do.
//!
//! With `spec.elasticity.restartScope: Pod` rounds of any command are of a run in which members are started alone: who is
//! lost is started again, or replaced, and the others go on. There is no store, but the coordinator is who the others were
//! told to connect to, so that its loss begins another run. So does what would give a rank to two: each who is started has
//! the rank that its index had when the run began, and another size is another run.

use std::collections::HashSet;

use super::super::EventReason;
use super::super::step::{Step, gaps_of};
use super::facts::count;
use super::losses::Loss;
use super::orders::Begin;
use crate::contract::Framework;
use crate::guard::sizes;
use crate::job::{ElasticityMode, LegalSizes, RestartScope};
use crate::observe::Pod;
use crate::state::{
    AgentRound, Change, ChangeStep, ConditionReason as Why, RoundCause, RoundMember, RoundOrder, RoundState,
};
use eto_membership::{MemberRecord, MemberState, Native, Report};

/// Exit codes above this are signals: `torchrun` had no time to close its rendezvous for all others.
const SIGNALS: i32 = 128;

impl<'a> Step<'a> {
    /// The user asks for it and the job allows it; whether the command can, only the agents know.
    fn wants_native(&self) -> bool {
        let job = self.job;
        let any_size = job.legal == LegalSizes::Any && job.elasticity.batch.is_none();
        job.elasticity.mode == ElasticityMode::Native && job.framework == Framework::PyTorch && any_size
    }

    fn wants_alone(&self) -> bool {
        self.job.elasticity.restart_scope == RestartScope::Pod
    }

    /// The run that a round of these members begins. All their agents must have said that they can; of one that is not
    /// heard of counts what it was in before.
    pub(super) fn run_of(&self, members: &[RoundMember], before: &AgentRound, generation: u64) -> Option<Native> {
        let of_before: HashSet<&str> = before.members.iter().map(|b| b.uid.as_str()).collect();
        let all = |alone: bool, can: fn(&Report) -> bool| {
            members.iter().all(|m| match self.facts.group.and_then(|g| g.members.get(&m.uid)) {
                Some(record) => can(&record.report),
                None => before.native.is_some_and(|n| n.alone == alone) && of_before.contains(m.uid.as_str()),
            })
        };
        let alone = if self.wants_native() && all(false, |r| r.native) {
            false
        } else if self.wants_alone() && all(true, |r| r.alone) {
            true
        } else {
            return None;
        };
        Some(Native { run: generation, min: self.job.min, max: self.job.max, alone })
    }

    /// Whether members of the present round are started alone.
    pub(super) fn is_alone(&self) -> bool {
        self.agent().and_then(|a| a.native).is_some_and(|n| n.alone)
    }

    /// Its processes ended when the round that stands had been begun, and with another rank they are not started in it.
    pub(super) fn is_left_stopped(&self, pod: &Pod) -> bool {
        let told = |r: &MemberRecord| r.report.generation >= self.generation();
        let since = self.agent().and_then(|a| a.native).filter(|n| n.alone).map(|n| n.run);
        let ended = self.exit_of(pod).is_some_and(|(of, _)| since.is_some_and(|run| of >= run));
        ended && self.record(pod).is_some_and(told)
    }

    /// Whether each who would be started in the round of these members has the rank that its index had when the run
    /// began, and it is no resize. Who is not heard of goes on if all were seen to run; else it may yet have to be started.
    fn ranks_hold(&self, members: &[RoundMember], before: &AgentRound, resize: bool) -> bool {
        let of_before: HashSet<&str> = before.members.iter().map(|b| b.uid.as_str()).collect();
        let all_ran = self.round().is_some_and(|r| r.running_since.is_some());
        let run = before.native.map_or(0, |n| n.run);
        let runs = |state| matches!(state, MemberState::Running { generation } if generation >= run);
        let goes_on = |m: &RoundMember| {
            let record = self.facts.group.and_then(|g| g.members.get(&m.uid));
            of_before.contains(m.uid.as_str()) && record.map_or(all_ran, |r| runs(r.report.state))
        };
        let same = |(rank, m): (usize, &RoundMember)| goes_on(m) || before.run_ranks.get(rank) == Some(&m.index);
        let indexes = members.iter().map(|m| &m.index);
        members.iter().enumerate().all(same) && (!resize || indexes.eq(&before.run_ranks))
    }

    /// Begins the round of these pods as one that nobody has to stop for. False if that can't be.
    pub(super) fn go_on_natively(&mut self, pods: &[&'a Pod], begin: Begin<'_>) -> bool {
        let Some(old) = self.state.round.clone() else { return false };
        let Some(before) = old.agent.clone().filter(|a| a.order == RoundOrder::Run) else { return false };
        // A run that no agent was told of has nobody who could go on in it.
        let told = self.facts.group.and_then(|g| g.assignment.as_ref()).and_then(|a| a.native);
        let wanted = |n: &Native| told == Some(*n) && if n.alone { self.wants_alone() } else { self.wants_native() };
        let Some(native) = before.native.filter(wanted) else { return false };
        let members = self.ranked(pods, &before);
        let size = count(members.len());
        let fits = (native.min..=native.max).contains(&size) && sizes::at_most(self.job, size) == Some(size);
        let same_store = members.first().is_some_and(|m| before.members.first() == Some(m));
        let all_can = self.run_of(&members, &before, native.run).is_some_and(|n| n.alone == native.alone);
        let resize = begin.cause != RoundCause::WorkerLost;
        let ranks = !native.alone || self.ranks_hold(&members, &before, resize);
        // Who is started alone keeps nobody waiting, and waits for nobody.
        let waits = !native.alone && self.state.not_before.is_some_and(|t| t > self.now);
        if !fits || !same_store || !all_can || !ranks || waits || self.has_other_template() {
            return false;
        }
        let mut stopping = self.to_be_stopped(&before);
        let go_on: HashSet<&str> = members.iter().map(|m| m.uid.as_str()).collect();
        stopping.retain(|uid| !go_on.contains(uid.as_str()));
        let (generation, tells) = (self.next_generation(), self.has_told(begin.cause, &before));
        let hung = self.still_hung(&old, &before);
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
                run_ranks: before.run_ranks.clone(),
                hung,
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

    /// Whether the others go on without these. Where members are started alone: workers were lost, and not the
    /// coordinator. Else `torchrun` notices by itself and soon: connections were closed, and neither the store nor the
    /// rendezvous went with them.
    pub(super) fn is_noticed(&self, losses: &[Loss<'_>]) -> bool {
        let Some(first) = self.agent().and_then(|a| a.members.first()) else { return false };
        if self.is_alone() {
            let is_free = |index: u32| index != first.index && self.job.types.is_worker(index);
            return losses.iter().all(|l| is_free(l.index()));
        }
        losses.iter().all(|loss| match loss {
            Loss::Gone(index) => *index != first.index,
            Loss::Leaving(pod) | Loss::Disrupted(pod) | Loss::Failed(pod) | Loss::OutOfMemory(pod) => {
                pod.uid != first.uid
            }
            Loss::Exited(pod, code) => pod.uid != first.uid && *code > SIGNALS,
            Loss::CutOff(_) | Loss::Unreached(_) | Loss::Finished(_) | Loss::Silent(_) | Loss::NotStarted(_) => false,
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
        if agent.native.is_some_and(|n| !n.alone) {
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
                       workers, and no `launcher: Agent`";
            return Some((Why::NotTorchrun, why));
        }
        None
    }
}
