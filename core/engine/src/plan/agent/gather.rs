//! Rounds whose members are still to come: pods are made, their agents are waited for, and then the members are chosen.

use super::super::step::Step;
use super::super::{EventReason, outcome};
use super::facts::count;
use super::orders::Begin;
use crate::contract::WorkerPhase;
use crate::guard::sizes;
use crate::job::JobSpec;
use crate::observe::Pod;
use crate::state::{AgentRound, ChangeStep, LossClass, RoundCause, RoundOrder, RoundState};
use crate::time::millis;

impl Step<'_> {
    /// Decides to wait for pods of the job's present template: the first round, or the next with new pods.
    pub(in crate::plan) fn begin_gathering(&mut self, cause: RoundCause, why: &str) {
        let hash = self.job.template.as_ref().map(|t| t.hash.clone());
        let old = self.state.round.clone();
        let before = old.as_ref().and_then(|r| r.agent.clone()).unwrap_or_default();
        let (generation, tells) = (self.next_generation(), self.has_told(cause, &before));
        // Where there was no round, what is there is of before a suspension. All of it goes, and may be gone any moment.
        let pods_from = if old.is_some() { before.pods_from } else { generation };
        let hung = old.as_ref().and_then(|o| self.still_hung(o, &before));
        if let Some(old) = &old {
            self.warn_of_loss(old, generation);
        }
        let template_hash = hash.or(old.map(|r| r.template_hash)).unwrap_or_default();
        self.state.round = Some(RoundState {
            generation,
            size: self.state.target,
            template_hash,
            since: self.now,
            running_since: None,
            cause,
            complete: None,
            required_nodes: false,
            gaps: Vec::new(),
            restarts_charged: 0,
            agent: Some(AgentRound { why: why.to_owned(), pods_from, tells, hung, ..AgentRound::default() }),
        });
        self.note_members();
        self.notes.why = Some(why.to_owned());
        if let Some(change) = &mut self.state.change {
            (change.step, change.since) = (ChangeStep::CreatingPods, self.now);
        }
        self.state.started_at.get_or_insert(self.now);
    }

    /// The members that are left can't train: the next round waits for others.
    pub(super) fn gather_again(&mut self, cause: RoundCause, why: &str) {
        if cause == RoundCause::TemplateChanged {
            // It may be the mend.
            self.state.not_before = None;
            self.state.start_attempts = 0;
        }
        self.begin_gathering(cause, why);
    }

    /// Chooses the members when all have joined; goes on with fewer, or tries again, when a deadline has passed.
    pub(super) fn gather(&mut self) {
        if self.order() != RoundOrder::Gather {
            return;
        }
        if self.has_other_template() {
            let why = "the pod template changed";
            if self.waits_for_image() || self.recreates_instead(RoundCause::TemplateChanged, why) {
                return;
            }
            self.gather_again(RoundCause::TemplateChanged, why);
        }
        if count(self.workers().len()) < self.state.target {
            let begun = self.round().map(|r| (r.cause, r.agent.as_ref().map_or_else(String::new, |a| a.why.clone())));
            if begun.is_some_and(|(cause, why)| self.recreates_instead(cause, &why)) {
                return;
            }
        }
        self.replace_failed();
        if self.state.phase.is_terminal() {
            return;
        }
        self.note_complete();
        if self.take_refusal() || self.is_late() {
            // With a smaller target, or from the beginning: deadlines count anew.
            self.give_up_surplus(self.state.target);
            self.note_complete();
            self.is_late();
        }
        let target = self.state.target;
        let joined: Vec<&Pod> = self.workers().into_iter().filter(|p| self.has_joined(p)).collect();
        if self.usable(&joined) < target || sizes::at_most(self.job, target) != Some(target) {
            return;
        }
        if let Some(later) = self.state.not_before.filter(|t| *t > self.now) {
            self.looks.push(later);
            return;
        }
        let members = &joined[..usize::try_from(target).unwrap_or(joined.len()).min(joined.len())];
        let Some(round) = self.state.round.clone() else { return };
        let why = round.agent.map(|a| a.why).unwrap_or_default();
        let grace_ms = millis(self.job.elasticity.drain_deadline);
        self.begin_agent_round(members, Begin { cause: round.cause, why: &why, grace_ms, charged: false });
        self.go_from_stop();
    }

    /// All pods of the size aimed at exist: deadlines count from here.
    fn note_complete(&mut self) {
        let target = self.state.target;
        let there = self.usable(&self.workers()) >= target;
        let now = self.now;
        let Some(round) = &mut self.state.round else { return };
        round.size = target;
        if there && round.complete.is_none() {
            round.complete = Some(now);
            if let Some(change) = &mut self.state.change {
                (change.step, change.since) = (ChangeStep::WaitingForJoins, now);
            }
        }
    }

    /// Pods that fail before they are in a round: no peers go down with them. While the job waits for them that is a
    /// failure of the job; while others train it only delays the growth.
    pub(super) fn replace_failed(&mut self) {
        let failed = |p: &&Pod| {
            p.phase == WorkerPhase::Failed && p.deleting.is_none() && !self.is_member(p) && !self.is_victim(p)
        };
        let failed: Vec<&Pod> = self.pods.iter().copied().filter(failed).collect();
        // What was in a round was counted when that round ended.
        let own = failed.iter().copied().find(|p| !outcome::is_disruption(p) && !self.has_run(p));
        for pod in &failed {
            self.name_victim(pod, pod.index, &format!("it failed{}", outcome::because(pod)));
        }
        let Some(pod) = own else { return };
        let what = format!("worker {} failed before it was in a round{}", pod.index, outcome::because(pod));
        self.event(true, EventReason::WorkerLost, what);
        if self.order() == RoundOrder::Gather {
            self.charge(self.class_of(pod, LossClass::PodFailed), 1);
            if !self.check_backoff_limit() {
                self.set_back(true);
            }
        } else {
            self.state.not_before = Some(self.now.plus(outcome::backoff(1)));
        }
    }

    /// The API server refused pods: what is there has to do, or all is tried again later.
    fn take_refusal(&mut self) -> bool {
        let Some(round) = self.round() else { return false };
        let Some(refused) = self.facts.refused.filter(|r| r.round == round.generation) else { return false };
        self.refusal = Some(refused.message.clone());
        let why = format!("pods were refused: {}", refused.message);
        let created = if self.has_types(self.workers().into_iter()) { refused.created } else { 0 };
        self.go_on_with(created, &why);
        true
    }

    /// Whether a deadline has passed, and what followed.
    fn is_late(&mut self) -> bool {
        let Some(round) = self.state.round.clone() else { return false };
        let Some(complete) = round.complete else { return false };
        let workers = self.workers();
        let joined: Vec<&Pod> = workers.iter().copied().filter(|p| self.has_joined(p)).collect();
        let is_placed = |p: &&Pod| p.node.is_some() || p.phase != WorkerPhase::Pending;
        let placed: Vec<&Pod> = workers.iter().copied().filter(is_placed).collect();
        let (usable, fits) = (self.usable(&joined), self.usable(&placed));
        let (joined, placed, target) = (count(joined.len()), count(placed.len()), self.state.target);
        if usable >= target {
            return false;
        }
        let no_node = complete.plus(self.job.elasticity.pending_deadline);
        let no_start = complete.plus(self.job.elasticity.start_deadline);
        if self.now >= no_start {
            let missing = target.saturating_sub(joined);
            self.go_on_with(usable, &format!("{missing} of {target} workers did not join in time"));
        } else if placed < target && self.now >= no_node && round.required_nodes {
            self.retry_gang("workers waited in vain for the nodes that the placement policy demands");
        } else if placed < target && self.now >= no_node && sizes::at_most(self.job, fits).is_some() {
            self.go_on_with(fits, &format!("{} of {target} workers did not get a node", target - placed));
        } else {
            self.looks.push(no_start);
            if placed < target {
                self.looks.push(no_node);
            }
            return false;
        }
        true
    }

    /// Aims at what there is if that is a legal size, else releases all and tries again later.
    fn go_on_with(&mut self, there: u32, why: &str) {
        match smaller(self.job, there, self.state.target) {
            Some(fit) => {
                self.take_back(fit, why);
                self.event(true, EventReason::GrowthRefused, format!("{why}; the job goes on with {fit}"));
                self.begin_gathering(RoundCause::GrowthRefused, why);
            }
            None => self.retry_gang(why),
        }
    }

    fn retry_gang(&mut self, why: &str) {
        self.set_back(true);
        let wait = outcome::backoff(self.state.start_attempts).as_secs();
        self.event(true, EventReason::StartTimedOut, format!("{why}; all are released, next try in {wait} s"));
        self.release(RoundCause::StartTimedOut, why);
    }

    /// The pods there are will not do: the gang starts anew.
    fn release(&mut self, cause: RoundCause, why: &str) {
        self.begin_gathering(cause, why);
        let generation = self.generation();
        if let Some(agent) = self.agent_mut() {
            agent.pods_from = generation;
        }
    }
}

fn smaller(job: &JobSpec, there: u32, target: u32) -> Option<u32> {
    sizes::at_most(job, there).filter(|fit| *fit < target)
}
