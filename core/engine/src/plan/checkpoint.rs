//! What a restart costs a script that tells of no checkpoint, with an agent and without one.

use std::time::Duration;

use eto_membership::Group;

use super::EventReason;
use super::step::Step;
use crate::conditions::{merge, new};
use crate::state::{ConditionKind as Kind, ConditionReason as Why, JobState, RoundState};
use crate::time::Time;

/// A round that has trained for so long without word of a checkpoint is told of: a restart would cost all of it.
const EXPECTED_WITHIN: Duration = Duration::from_secs(300);

/// Whether a member tells of the first checkpoint that is known of: a plan notes that.
pub fn is_first_checkpoint(state: &JobState, group: Option<&Group>) -> bool {
    reported(state) != Some(true) && group.is_some_and(told)
}

/// What `CheckpointsReported` says; `None` = nothing yet.
fn reported(state: &JobState) -> Option<bool> {
    state.conditions.iter().find(|c| c.kind == Kind::CheckpointsReported).map(|c| c.status)
}

fn told(group: &Group) -> bool {
    group.members.values().any(|r| r.report.checkpoint.is_some())
}

impl Step<'_> {
    /// Keeps `CheckpointsReported` where there are agents: True from the first checkpoint that a member tells of, False once
    /// a round has trained for five minutes without one. A restart before that makes it False too.
    pub(super) fn watch_checkpoints(&mut self) {
        if is_first_checkpoint(&self.state, self.facts.group) {
            let message = "workers tell of their checkpoints";
            self.set_reported(true, Why::CheckpointTold, message);
            return;
        }
        let Some(since) = self.round().and_then(|r| r.running_since) else { return };
        if reported(&self.state).is_some() {
            return;
        }
        let due = since.plus(EXPECTED_WITHIN);
        if self.now < due {
            self.looks.push(due);
            return;
        }
        let message = "no worker has told of a checkpoint: a restart (for a resize, a lost worker or a failure) loses all \
                       training so far, unless the script keeps checkpoints of its own and says nothing";
        self.set_reported(false, Why::NoCheckpoint, message);
        self.event(true, EventReason::NoCheckpoint, message.to_owned());
    }

    /// Training of a round stops, and all start again in the next one.
    pub(super) fn warn_of_loss(&mut self, old: &RoundState, generation: u64) {
        let Some(since) = old.running_since else { return };
        let what = if old.agent.is_some() { "processes" } else { "pods" };
        let next = format!("round {generation} starts all {what} again");
        self.warn_of_lost(old.agent.is_some(), &next, old.generation, since);
    }

    /// A round ends with its pods, and the one after the suspension knows nothing of it. One that agents have stopped trains no
    /// more, and was told of then.
    pub(super) fn warn_of_suspended(&mut self, old: &RoundState) {
        if let Some(since) = old.running_since {
            self.warn_of_lost(old.agent.is_some(), "the suspension deletes all pods", old.generation, since);
        }
    }

    /// Containers started again in their pods, without a new round.
    pub(super) fn warn_of_restarted(&mut self) {
        let Some(round) = self.round() else { return };
        if let Some(since) = round.running_since {
            self.warn_of_lost(false, "containers started again in their pods", round.generation, since);
        }
    }

    /// Nobody can tell of checkpoints without an agent: one word is enough then, of what may be wrong.
    fn warn_of_lost(&mut self, agent: bool, next: &str, generation: u64, since: Time) {
        let before = reported(&self.state);
        if before == Some(true) || self.facts.group.is_some_and(told) || (!agent && before.is_some()) {
            return;
        }
        let trained = self.now.since(since).as_secs();
        let (nobody, once) = if agent {
            ("no worker has told of a checkpoint", "")
        } else {
            ("without an agent nobody can tell of checkpoints", "; it is told once")
        };
        let message = format!(
            "{next}, and {nobody}: where the script keeps none of its own, all training so far is lost ({trained} s of round \
             {generation}){once}"
        );
        self.set_reported(false, Why::NoCheckpoint, &message);
        self.event(true, EventReason::NoCheckpoint, message);
    }

    fn set_reported(&mut self, status: bool, reason: Why, message: &str) {
        let condition = new(Kind::CheckpointsReported, status, reason, message, self.now);
        merge(&mut self.state.conditions, vec![condition]);
    }
}
