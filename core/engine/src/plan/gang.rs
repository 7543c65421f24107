//! Gang start: a round whose workers can't all start is made smaller or tried again, never left half there.

use super::step::Step;
use super::{EventReason, outcome};
use crate::contract::WorkerPhase;
use crate::guard::sizes;
use crate::observe::Pod;
use crate::state::{ResizeRecord, RoundCause};

impl Step<'_> {
    /// Refused pods, pods without a node, pods that do not come up.
    pub(super) fn release_stuck(&mut self) {
        let Some(round) = self.round().filter(|r| r.running_since.is_none()).cloned() else { return };
        if let Some(refused) = self.facts.refused.filter(|r| r.round == round.generation && round.complete.is_none()) {
            let message = refused.message.clone();
            self.refusal = Some(message.clone());
            let there = self.members().into_iter().filter_map(|i| self.pod(i));
            let created = if self.has_types(there) { refused.created } else { 0 };
            self.fall_back(created, &format!("pods were refused: {message}"));
            return;
        }
        let Some(complete) = round.complete else { return };
        let pods: Vec<&Pod> = self.members().into_iter().filter_map(|i| self.pod(i)).collect();
        let number = |of: fn(&Pod) -> bool| u32::try_from(pods.iter().filter(|p| of(p)).count()).unwrap_or(u32::MAX);
        let usable = |of: fn(&Pod) -> bool| self.usable(&pods.iter().copied().filter(|p| of(p)).collect::<Vec<_>>());
        let is_placed = |p: &Pod| p.node.is_some() || p.phase != WorkerPhase::Pending;
        let has_started = |p: &Pod| p.phase != WorkerPhase::Pending;
        let (placed, started) = (number(is_placed), number(has_started));
        if started >= round.size {
            return;
        }
        let no_node = complete.plus(self.job.elasticity.pending_deadline);
        let no_start = complete.plus(self.job.elasticity.start_deadline);
        if self.now >= no_start {
            self.fall_back(
                usable(has_started),
                &format!("{} of {} workers did not start in time", round.size - started, round.size),
            );
        } else if placed < round.size && self.now >= no_node && round.required_nodes {
            self.retry("workers waited in vain for the nodes that the placement policy demands");
        } else if placed < round.size && self.now >= no_node && sizes::at_most(self.job, usable(is_placed)).is_some() {
            self.fall_back(
                usable(is_placed),
                &format!("{} of {} workers did not get a node", round.size - placed, round.size),
            );
        } else {
            self.looks.push(no_start);
            if placed < round.size {
                self.looks.push(no_node);
            }
        }
    }

    /// Goes on with what there is if that is a legal size, else releases all and tries again later.
    fn fall_back(&mut self, there: u32, why: &str) {
        let size = self.round().map_or(0, |r| r.size);
        match sizes::at_most(self.job, there).filter(|fit| *fit < size) {
            Some(fit) => {
                self.take_back(fit, why);
                self.event(true, EventReason::GrowthRefused, format!("{why}; the job goes on with {fit}"));
                self.begin_round(RoundCause::GrowthRefused, why);
            }
            None => self.retry(why),
        }
    }

    fn retry(&mut self, why: &str) {
        self.set_back(true);
        let wait = outcome::backoff(self.state.start_attempts).as_secs();
        self.event(true, EventReason::StartTimedOut, format!("{why}; all are released, next try in {wait} s"));
        self.begin_round(RoundCause::StartTimedOut, why);
    }

    pub(super) fn take_back(&mut self, fit: u32, why: &str) {
        let (now, from) = (self.now, self.state.target);
        let refusals = self.state.last_resize.as_ref().map_or(0, |r| r.refusals).saturating_add(1);
        self.state.target = fit;
        let record = ResizeRecord { why: why.to_owned(), ..ResizeRecord::new(from, fit, now) };
        self.state.last_resize = Some(ResizeRecord { done: Some(now), refused: true, refusals, ..record });
        self.notes.refused = Some(why.to_owned());
    }
}
