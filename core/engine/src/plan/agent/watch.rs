//! How far a round with an agent is: running, its change done and measured, the phase.

use std::fmt::Write as _;

use eto_membership::MemberState;

use super::super::EventReason;
use super::super::outcome::BACKOFF_CAP;
use super::super::step::Step;
use super::facts::count;
use super::{SILENT_AFTER_MS, STOP_MARGIN_MS};
use crate::observe::Pod;
use crate::state::{ChangeStep, ResizeCost, RoundOrder};
use crate::time::{Time, millis};

impl Step<'_> {
    pub(super) fn watch_round(&mut self) {
        let waits = self.round().is_some_and(|r| r.running_since.is_none());
        if waits && self.order() == RoundOrder::Run && self.all_run() {
            self.note_training();
        }
        if let Some(since) = self.round().and_then(|r| r.running_since) {
            self.finish_change();
            if self.now.since(since) >= BACKOFF_CAP {
                self.state.start_attempts = 0;
            } else if self.state.start_attempts > 0 {
                self.looks.push(since.plus(BACKOFF_CAP));
            }
        } else if let Some(since) = self.agent().and_then(|a| a.in_force) {
            let after = |ms: u64| Time(since.0.saturating_add(ms));
            let grace = self.agent().map_or(0, |a| a.grace_ms);
            self.looks.extend([
                after(grace.saturating_add(STOP_MARGIN_MS)),
                after(SILENT_AFTER_MS),
                after(millis(self.job.elasticity.start_deadline)),
            ]);
        }
        self.watch_phase();
    }

    fn all_run(&self) -> bool {
        let generation = self.generation();
        let runs = |p: &&Pod| {
            let started = self
                .record(p)
                .is_some_and(|r| matches!(r.report.state, MemberState::Running { generation: of } if of == generation));
            started || self.is_finished(p)
        };
        let pods = self.member_pods();
        pods.len() == self.in_round.len() && pods.iter().all(runs)
    }

    fn note_training(&mut self) {
        let now = self.now;
        let Some(round) = &mut self.state.round else { return };
        round.running_since = Some(now);
        let mut message = format!("all {} workers of round {} are at work", round.size, round.generation);
        // A command that starts processes itself has one of ours, and so has each torchrun.
        let members = round.agent.as_ref().filter(|agent| agent.native.is_none()).map(|agent| &agent.members);
        if let Some(members) = members {
            let started: u32 = members.iter().map(|m| m.processes).sum();
            let _ = write!(message, "; their agents started {started} process{}", if started == 1 { "" } else { "es" });
        }
        self.state.not_before = None;
        self.event(false, EventReason::RoundRunning, message);
    }

    /// The round trains: what led to it is done, or has only pods left to remove.
    fn finish_change(&mut self) {
        let (now, size) = (self.now, count(self.in_round.len()));
        let since = self.round().and_then(|r| r.running_since).unwrap_or(now);
        let change = self.state.change.clone().filter(|c| c.step >= ChangeStep::Stopping);
        let cost = change.as_ref().and_then(|c| {
            let paused = since.since(c.stopped?);
            Some(ResizeCost { paused_ms: millis(paused), steps_lost: c.steps_lost })
        });
        let resize = self.state.last_resize.as_mut().filter(|r| r.done.is_none() && r.to == size);
        if let Some(resize) = resize.filter(|_| size == self.state.target) {
            let message = format!("resized from {} to {}", resize.from, resize.to);
            (resize.done, resize.refusals) = (Some(now), 0);
            // One that was taken back before anything stopped has cost nothing. How long `torchrun` took is not seen.
            let unseen = change.as_ref().is_some_and(|c| c.stopped.is_none());
            resize.cost = cost.or((!unseen).then(ResizeCost::default));
            if change.is_some() {
                self.event(false, EventReason::SuccessfulRescale, message);
            }
        }
        if let Some(change) = self.state.change.as_mut().filter(|c| c.step >= ChangeStep::Stopping) {
            if self.state.victims.is_empty() {
                self.state.change = None;
            } else if change.step != ChangeStep::RemovingPods {
                (change.step, change.since) = (ChangeStep::RemovingPods, now);
            }
        }
    }
}
