//! What a restart would cost a script that tells of no checkpoint.

use std::time::Duration;

use eto_membership::Group;

use super::super::EventReason;
use super::super::step::Step;
use crate::conditions::{merge, new};
use crate::state::{ConditionKind as Kind, ConditionReason as Why, JobState};

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
    /// Keeps `CheckpointsReported`: True from the first checkpoint that a member tells of, False once a round has
    /// trained for five minutes without one.
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

    /// Training stops, for the next round.
    pub(super) fn warn_of_loss(&mut self, generation: u64) {
        if reported(&self.state) != Some(true) && !self.facts.group.is_some_and(told) {
            let message = format!(
                "round {generation} starts all processes again, and no worker has told of a checkpoint: without one of the \
                 script's own all training so far is lost"
            );
            self.event(true, EventReason::NoCheckpoint, message);
        }
    }

    fn set_reported(&mut self, status: bool, reason: Why, message: &str) {
        let condition = new(Kind::CheckpointsReported, status, reason, message, self.now);
        merge(&mut self.state.conditions, vec![condition]);
    }
}
