//! How a round begins, and how it goes from `Stop` to `Run`.

use std::collections::{HashMap, HashSet};

use eto_membership::{Candidate, Member, MemberRecord, MemberState, Round};

use super::super::EventReason;
use super::super::step::{Step, gaps_of};
use super::STOP_MARGIN_MS;
use super::facts::count;
use crate::guard::sizes;
use crate::observe::Pod;
use crate::state::{AgentRound, Change, ChangeStep, Phase, RoundCause, RoundMember, RoundOrder, RoundState};
use crate::time::Time;

/// How a round begins.
#[derive(Clone, Copy)]
pub(super) struct Begin<'b> {
    pub(super) cause: RoundCause,
    pub(super) why: &'b str,
    /// What processes of earlier rounds get to stop, in milliseconds.
    pub(super) grace_ms: u64,
    /// A failure was charged for it.
    pub(super) charged: bool,
}

impl<'a> Step<'a> {
    /// Decides the round of these pods, to be published with the order `Stop`.
    pub(super) fn begin_agent_round(&mut self, pods: &[&'a Pod], begin: Begin<'_>) {
        let Some(old) = self.state.round.clone() else { return };
        let before = old.agent.clone().unwrap_or_default();
        let members = self.ranked(pods, &before);
        let stopping = self.to_be_stopped(&before);
        let tells = self.has_told(begin.cause, &before);
        let unused = before.order == RoundOrder::Gather && old.generation > self.published();
        let generation = if unused { old.generation } else { self.next_generation() };
        let mut indexes: Vec<u32> = members.iter().map(|m| m.index).collect();
        let ranks = indexes.clone();
        indexes.sort_unstable();
        self.note_stop(&old, &before, count(members.len()), begin.cause);
        let size = count(members.len());
        let hung = self.still_hung(&old, &before);
        let native = self.run_of(&members, &before, generation);
        self.warn_of_loss(&old, generation);
        self.state.round = Some(RoundState {
            generation,
            size,
            since: self.now,
            running_since: None,
            cause: begin.cause,
            complete: Some(self.now),
            required_nodes: false,
            gaps: gaps_of(&indexes),
            restarts_charged: 0,
            agent: Some(AgentRound {
                order: RoundOrder::Stop,
                in_force: None,
                firm: false,
                members,
                stopping,
                grace_ms: begin.grace_ms,
                run_ranks: if native.is_some_and(|n| n.alone) { ranks } else { Vec::new() },
                native,
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
        let message = format!("round {generation} of {size} workers: {}", begin.why);
        self.event(false, EventReason::RoundStarted, message);
    }

    /// Whether the script is known to tell its progress. Another template may have another script.
    pub(super) fn has_told(&self, cause: RoundCause, before: &AgentRound) -> bool {
        let mut members = self.facts.group.into_iter().flat_map(|g| g.members.values());
        cause != RoundCause::TemplateChanged && (before.tells || members.any(|r| r.report.progress.is_some()))
    }

    /// A change goes from what can be taken back to what can't.
    fn note_stop(&mut self, old: &RoundState, before: &AgentRound, to: u32, cause: RoundCause) {
        let (now, trained) = (self.now, old.running_since.is_some());
        if before.order == RoundOrder::Gather && self.state.change.is_none() {
            return;
        }
        let begins = Change::begin(cause, old.size, to, ChangeStep::Stopping, now);
        let change = self.state.change.get_or_insert(begins);
        (change.step, change.since) = (ChangeStep::Stopping, now);
        if trained || change.stopped.is_none() {
            change.stopped = Some(now);
            change.steps_lost = None;
        }
    }

    /// Members in rank order. The first coordinates: who did so in the round before stays, else of those who were in it the
    /// one whose pod has lived longest. So it is one who has trained, and a lost master that comes back is one of many.
    pub(super) fn ranked(&self, pods: &[&Pod], before: &AgentRound) -> Vec<RoundMember> {
        let of_before: HashMap<&str, &RoundMember> = before.members.iter().map(|m| (m.uid.as_str(), m)).collect();
        // A round that gathers its members has none; who trained before it was told to all.
        let told = self.facts.group.and_then(|g| g.assignment.as_ref()).map(|a| a.round.members.as_slice());
        let told = told.filter(|_| of_before.is_empty()).unwrap_or_default();
        let trained =
            || before.members.iter().map(|m| m.uid.as_str()).chain(told.iter().filter_map(|m| m.uid.as_deref()));
        let (coordinator, all): (_, HashSet<&str>) = (trained().next(), trained().collect());
        let age = |pod: &Pod| {
            let since = if coordinator == Some(pod.uid.as_str()) { 0 } else { pod.created.0.saturating_add(1) };
            all.contains(pod.uid.as_str()).then_some(since)
        };
        let candidate = |pod: &&Pod| {
            let record = self.record(pod);
            let known = of_before.get(pod.uid.as_str()).copied();
            let address = record.map(|r| &r.report.address).filter(|a| !a.is_empty()).or(known.map(|m| &m.address));
            let processes = record.map_or(known.map_or(1, |m| m.processes), |r| r.report.processes);
            let member = Member {
                index: pod.index,
                address: address.cloned().unwrap_or_default(),
                uid: Some(pod.uid.clone()),
                processes: processes.max(1),
            };
            Candidate { member, healthy_since_ms: age(pod) }
        };
        let round = Round::plan("", "", 0, pods.iter().map(candidate).collect(), self.facts.ports);
        let member = |m: Member| RoundMember {
            index: m.index,
            uid: m.uid.unwrap_or_default(),
            address: m.address,
            processes: m.processes,
        };
        round.map(|r| r.members.into_iter().map(member).collect()).unwrap_or_default()
    }

    /// UIDs of the pods in which something of an earlier round may run, or may yet be started.
    pub(super) fn to_be_stopped(&self, before: &AgentRound) -> Vec<String> {
        let told: HashSet<&String> = match before.order {
            RoundOrder::Gather => HashSet::new(),
            RoundOrder::Stop => before.stopping.iter().collect(),
            RoundOrder::Run => before.members.iter().map(|m| &m.uid).chain(&before.stopping).collect(),
        };
        let runs = |p: &Pod| self.record(p).is_some_and(|r| matches!(r.report.state, MemberState::Running { .. }));
        let counts = |p: &&&Pod| self.may_run(p) && (told.contains(&p.uid) || runs(p));
        self.pods.iter().filter(counts).map(|p| p.uid.clone()).collect()
    }

    /// Whether processes of it can be at work at all.
    fn may_run(&self, pod: &Pod) -> bool {
        !pod.is_ended() && !self.is_cut_off(pod)
    }

    /// Whether nothing of an earlier round runs in this pod, by its agent's own word.
    pub(super) fn has_stopped(&self, pod: &Pod) -> bool {
        self.record(pod).is_some_and(|r| {
            let told = r.report.generation >= self.generation() || r.report.leaving;
            told && !matches!(r.report.state, MemberState::Running { generation } if generation < self.generation())
        })
    }

    /// The order in the group is the one that was decided. Where etcd has lost it, agents are told anew, and have their
    /// time from then.
    pub(super) fn note_in_force(&mut self) {
        let (now, generation) = (self.now, self.generation());
        let Some(group) = self.facts.group else { return };
        let Some(agent) = self.agent_mut().filter(|a| a.order != RoundOrder::Gather) else { return };
        let order = super::publish::order(agent.order);
        let published = group.assignment.as_ref();
        let told = published.is_some_and(|a| a.round.generation == generation && Some(a.order) >= order);
        agent.firm |= agent.order == RoundOrder::Run && agent.in_force.is_some() && !told;
        agent.in_force = agent.in_force.or(Some(now)).filter(|_| told);
    }

    /// Who has not stopped yet, in a round that waits for that; and until when it waits. Who had been given up for lost
    /// and is heard of again is waited for like the others.
    pub(super) fn still_stopping(&mut self) -> (bool, Option<Time>) {
        let waits = self.order() == RoundOrder::Stop;
        let runs = |r: &MemberRecord| matches!(r.report.state, MemberState::Running { .. }) && !r.suspected;
        let is_back = |p: &Pod| waits && self.record(p).is_some_and(runs);
        let named: HashSet<&String> = self.agent().into_iter().flat_map(|a| &a.stopping).collect();
        let named = |p: &Pod| named.contains(&p.uid);
        let left = self.pods.iter().filter(|p| self.may_run(p) && !self.has_stopped(p));
        let left: Vec<String> = left.filter(|p| named(p) || is_back(p)).map(|p| p.uid.clone()).collect();
        let waits = !left.is_empty();
        let mut until = None;
        if let Some(agent) = self.agent_mut() {
            agent.stopping = left;
            let patience = agent.grace_ms.saturating_add(STOP_MARGIN_MS);
            until = agent.in_force.map(|t| Time(t.0.saturating_add(patience)));
        }
        (waits, until)
    }

    /// From `Stop` to `Run`, or to waiting for those who are missing.
    pub(super) fn go_from_stop(&mut self) {
        if self.order() != RoundOrder::Stop || self.state.phase == Phase::Suspended {
            return;
        }
        let (waits, until) = self.still_stopping();
        if waits {
            match until {
                Some(until) if until <= self.now => {}
                until => {
                    self.looks.extend(until);
                    return;
                }
            }
            // The members are not to be told anything now.
            if !self.member_pods().is_empty() && !self.is_anybody_heard() {
                self.looks.push(Time(self.now.0.saturating_add(eto_membership::HEARTBEAT_MS)));
                return;
            }
        }
        self.note_lost_steps();
        if self.has_other_template() {
            self.gather_again(RoundCause::TemplateChanged, "the pod template changed");
            return;
        }
        let Some(round) = self.state.round.clone() else { return };
        let members = self.with_joined(self.fit_members());
        let size = count(members.len());
        if sizes::at_most(self.job, size) != Some(size) || !self.has_types(members.iter().copied()) {
            let why = round.agent.map(|a| a.why).unwrap_or_default();
            self.gather_again(round.cause, &why);
            return;
        }
        if let Some(later) = self.state.not_before.filter(|t| *t > self.now) {
            self.looks.push(later);
            return;
        }
        if members.len() != self.in_round.len() || !members.iter().all(|p| self.is_member(p)) {
            let agent = round.agent.unwrap_or_default();
            let begin = Begin { cause: round.cause, why: &agent.why, grace_ms: agent.grace_ms, charged: agent.charged };
            self.begin_agent_round(&members, begin);
            // Who is heard of and has not stopped yet was told late: it is to stop for this round first.
            if waits && self.is_heard_stopping() {
                return;
            }
        }
        // Who is left has had its time.
        self.order_run(waits);
    }

    /// All had stopped, or were lost, when the members were to start; nobody was told so yet, and one that was lost is heard
    /// of again: it stops first.
    pub(super) fn wait_for_returned(&mut self) {
        let generation = self.generation();
        let Some(agent) = self.agent() else { return };
        let all_stop = agent.native.is_none_or(|n| n.run == generation);
        if agent.order != RoundOrder::Run || agent.in_force.is_some() || agent.firm || !all_stop {
            return;
        }
        let of = |p: &Pod| match self.record(p).filter(|r| !r.suspected)?.report.state {
            MemberState::Idle => None,
            MemberState::Running { generation } | MemberState::Exited { generation, .. } => Some(generation),
        };
        // Etcd has lost an order that members have followed.
        if self.pods.iter().any(|p| of(p) == Some(generation)) {
            return;
        }
        if self.pods.iter().any(|p| self.may_run(p) && self.runs_earlier(p))
            && let Some(agent) = self.agent_mut()
        {
            agent.order = RoundOrder::Stop;
        }
    }

    /// Whether something of an earlier round runs in this pod, whose agent is heard of.
    fn runs_earlier(&self, pod: &Pod) -> bool {
        let earlier = |s| matches!(s, MemberState::Running { generation } if generation < self.generation());
        self.record(pod).is_some_and(|r| !r.suspected && earlier(r.report.state))
    }

    fn is_heard_stopping(&self) -> bool {
        let stopping = self.agent().map(|a| a.stopping.as_slice()).unwrap_or_default();
        self.pods.iter().any(|p| stopping.contains(&p.uid) && !self.is_silent(p) && !self.has_stopped(p))
    }

    fn order_run(&mut self, firm: bool) {
        let now = self.now;
        if let Some(agent) = self.agent_mut() {
            (agent.order, agent.in_force, agent.firm) = (RoundOrder::Run, None, firm);
            agent.stopping.clear();
        }
        if let Some(change) = &mut self.state.change {
            (change.step, change.since) = (ChangeStep::Starting, now);
        }
        self.state.started_at.get_or_insert(now);
    }

    /// What the members had done when all had stopped, beyond the checkpoint that they go on from.
    fn note_lost_steps(&mut self) {
        let records = || self.facts.group.into_iter().flat_map(|g| g.members.values());
        let done = records().filter_map(|r| r.report.progress).map(|p| p.step).max();
        let kept = records().filter_map(|r| r.report.checkpoint).max();
        let lost = done.zip(kept).map(|(done, kept)| done.saturating_sub(kept.step));
        if let Some(change) = self.state.change.as_mut().filter(|c| c.steps_lost.is_none()) {
            change.steps_lost = lost;
        }
    }

    /// The highest generation that agents may know of.
    fn published(&self) -> u64 {
        self.facts.group.map_or(0, eto_membership::Group::highest_generation)
    }

    pub(super) fn next_generation(&mut self) -> u64 {
        self.state.last_generation = self.state.last_generation.max(self.newest_generation()).max(self.published()) + 1;
        self.state.last_generation
    }
}
