//! Members whose end was announced: their node is to be drained or taken back, or they themselves are. Others are made
//! while all train; when these have joined, they change places in a planned round.

use std::time::Duration;

use eto_membership::LOSS_GRACE_MS;

use super::super::EventReason;
use super::super::outcome::{BACKOFF_CAP, backoff};
use super::super::step::Step;
use super::facts::count;
use super::orders::Begin;
use crate::contract::WorkerPhase;
use crate::guard::sizes;
use crate::observe::Pod;
use crate::state::{ChangeStep, RoundCause};
use crate::time::{Time, millis};

/// Time that a stop needs beyond the grace of its processes before an announced end, in milliseconds.
const MARGIN_MS: u64 = 5_000;

impl<'a> Step<'a> {
    /// True if members are to go, and fewer than the target would be left. They go when others have come; without these
    /// when the wait for them is over and those who are left can train; at the last moment before their end whatever
    /// there is. A member that can't go in any of these ways trains on: it is lost when its pod is.
    pub(super) fn move_members(&mut self) -> bool {
        let (going, staying): (Vec<&Pod>, Vec<&Pod>) =
            self.fit_members().into_iter().partition(|p| self.announced(p).is_some());
        if going.is_empty() || count(staying.len()) >= self.state.target {
            return false;
        }
        self.replace_failed();
        self.give_up_surplus(self.state.target);
        let end = self.end_of(&going);
        let last = end.map(|by| Time(by.0.saturating_sub(self.drain_ms().saturating_add(MARGIN_MS))));
        let urgent = last.is_some_and(|t| t <= self.now);
        self.looks.extend(last);
        if !self.has_waited_enough(&going, count(staying.len())) && !urgent {
            return true;
        }
        let next = self.with_joined(staying);
        let size = count(next.len());
        let legal = sizes::at_most(self.job, size) == Some(size);
        if !urgent && (!legal || !self.is_boundary(RoundCause::Moved, self.state.target)) {
            return true;
        }
        self.change_places(&going, &next, end);
        true
    }

    /// Whether those who are to come have come, or are not to be waited for any longer.
    fn has_waited_enough(&mut self, going: &[&Pod], staying: u32) -> bool {
        let workers = self.workers();
        let fresh: Vec<&Pod> = workers.iter().copied().filter(|p| !self.is_member(p)).collect();
        let joined = count(fresh.iter().filter(|p| self.has_joined(p)).count());
        let placed = count(fresh.iter().filter(|p| p.node.is_some() || p.phase != WorkerPhase::Pending).count());
        let wanted = self.state.target.saturating_sub(staying);
        let there = count(workers.len()) >= self.state.target;
        let steps = if there { ChangeStep::WaitingForJoins } else { ChangeStep::CreatingPods };
        let known = self.state.change.as_ref().filter(|c| c.cause == RoundCause::Moved && c.to == self.state.target);
        let step = known.map(|c| c.step).filter(|s| *s <= ChangeStep::WaitingForCheckpoint);
        if step.is_none() {
            let why = self.why_they_go(going);
            self.event(false, EventReason::WorkerLeaving, format!("{why}; others are made to take over"));
            self.enter(RoundCause::Moved, steps);
        }
        if joined >= wanted || step == Some(ChangeStep::WaitingForCheckpoint) {
            return true;
        }
        self.enter(RoundCause::Moved, steps);
        if let Some(refused) = self.facts.refused.filter(|r| r.round == self.generation()) {
            self.refusal = Some(refused.message.clone());
            // As long again as it has been tried for.
            let tried = self.state.change.as_ref().map_or(Duration::ZERO, |c| self.now.since(c.decided));
            self.state.not_before = Some(self.now.plus(tried.clamp(backoff(1), BACKOFF_CAP)));
            return true;
        }
        let Some((decided, since)) = self.state.change.as_ref().map(|c| (c.decided, c.since)) else { return true };
        let no_node = since.plus(self.job.elasticity.pending_deadline);
        let no_start = decided.plus(self.job.elasticity.start_deadline);
        self.looks.extend([no_node, no_start]);
        self.now >= no_start || (there && placed < wanted && self.now >= no_node)
    }

    fn change_places(&mut self, going: &[&'a Pod], next: &[&'a Pod], end: Option<Time>) {
        let why = self.why_they_go(going);
        for pod in going {
            let because = self.announced(pod).map_or("", |a| a.why.as_str());
            self.name_victim(pod, pod.index, &format!("its end is announced: {because}"));
        }
        let left = end.map_or(u64::MAX, |by| by.0.saturating_sub(self.now.0));
        let grace_ms = self.drain_ms().min(left.saturating_sub(MARGIN_MS).max(LOSS_GRACE_MS));
        self.state.not_before = None;
        let begin = Begin { cause: RoundCause::Moved, why: &why, grace_ms, charged: false };
        if !self.go_on_natively(next, begin) {
            self.begin_agent_round(next, begin);
            self.go_from_stop();
        }
    }

    fn drain_ms(&self) -> u64 {
        millis(self.job.elasticity.drain_deadline)
    }

    /// The first of their ends that is known.
    fn end_of(&self, going: &[&Pod]) -> Option<Time> {
        going.iter().filter_map(|p| self.announced(p)?.by).min()
    }

    fn why_they_go(&self, going: &[&Pod]) -> String {
        let indexes: Vec<String> = going.iter().map(|p| p.index.to_string()).collect();
        let (noun, verb) = if going.len() == 1 { ("worker", "is") } else { ("workers", "are") };
        let because = going.iter().find_map(|p| self.announced(p)).map_or("", |a| a.why.as_str());
        format!("{noun} {} {verb} to go: {because}", indexes.join(", "))
    }
}
