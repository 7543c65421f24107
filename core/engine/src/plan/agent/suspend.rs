//! A suspension: processes stop in their own time, so that they can write a checkpoint, and then the pods go.

use super::super::step::Step;
use super::STOP_MARGIN_MS;
use super::orders::Begin;
use crate::state::{Phase, RoundOrder};
use crate::time::{Time, millis};

impl Step<'_> {
    /// Whether pods are still to be kept: something stops in them. Waited for no longer than for a drain, whether
    /// agents can be told or not.
    pub(in crate::plan) fn is_stopping_for_suspension(&mut self) -> bool {
        if !self.is_agent() || !self.facts.agent.gateway {
            return false;
        }
        if self.facts.group.is_some() {
            self.adopt_published();
        }
        if self.order() == RoundOrder::Gather && !self.pods.iter().any(|p| self.is_forgotten(p)) {
            return false;
        }
        let begins = self.before.phase != Phase::Suspended;
        if let Some(round) = self.state.round.as_mut().filter(|_| begins) {
            // Nobody may have been told of a stop that was decided before.
            round.since = self.now;
        }
        if self.order() != RoundOrder::Stop {
            let pods = self.fit_members();
            let Some(round) = self.state.round.clone() else { return false };
            let (why, grace_ms) = ("the job is suspended", millis(self.job.elasticity.drain_deadline));
            self.begin_agent_round(&pods, Begin { cause: round.cause, why, grace_ms, charged: false });
            self.state.change = None;
        }
        self.note_in_force();
        let (waits, _) = self.still_stopping();
        let (since, grace) = self.round().map_or((Time(0), 0), |r| {
            let agent = r.agent.as_ref();
            (agent.and_then(|a| a.in_force).unwrap_or(r.since), agent.map_or(0, |a| a.grace_ms))
        });
        let until = Time(since.0.saturating_add(grace).saturating_add(STOP_MARGIN_MS));
        if !waits || until <= self.now {
            return false;
        }
        self.looks.push(until);
        self.publish();
        true
    }
}
