//! Which way rounds are carried out.

use super::super::step::Step;
use crate::job::AgentChoice;
use crate::state::{Condition, ConditionKind, ConditionReason as Why, RoundMode};

impl Step<'_> {
    /// How a round that begins now with new pods is carried out, and why.
    pub(in crate::plan) fn wanted_mode(&self) -> (RoundMode, Why) {
        let command = self.job.template.as_ref().is_none_or(|t| t.command);
        match (self.facts.agent.gateway, self.job.elasticity.agent) {
            (false, _) => (RoundMode::Recreate, Why::NoAgent),
            (true, AgentChoice::Off) => (RoundMode::Recreate, Why::AgentOff),
            (true, AgentChoice::Auto) if !command => (RoundMode::Recreate, Why::NoCommand),
            (true, AgentChoice::Auto) => (RoundMode::Agent, Why::AgentDrivesRounds),
        }
    }

    /// `AgentRounds`: the way of the round that stands.
    pub(in crate::plan) fn agent_rounds(&self) -> Condition {
        let (wanted, why) = self.wanted_mode();
        let standing = self.round().map_or(wanted, crate::state::RoundState::mode);
        let (reason, message) = match (standing, why) {
            (RoundMode::Recreate, Why::AgentDrivesRounds) => (
                Why::ModeKept,
                "pods are recreated for each round; an agent drives rounds from the next round of new pods on",
            ),
            (RoundMode::Recreate, Why::AgentOff) => {
                (why, "pods are recreated for each round: spec.elasticity.agent is Off")
            }
            (RoundMode::Recreate, Why::NoCommand) => (
                why,
                "pods are recreated for each round: the template's first container has no command that an agent could \
                 be put around",
            ),
            (RoundMode::Recreate, _) => {
                (Why::NoAgent, "pods are recreated for each round: no agent drives the processes in them")
            }
            (RoundMode::Agent, Why::AgentDrivesRounds) => {
                self.native_condition().unwrap_or((why, "an agent in the pods drives rounds"))
            }
            (RoundMode::Agent, _) => (
                Why::ModeKept,
                "an agent in the pods drives this round; pods are recreated for each round from the next new pods on",
            ),
        };
        crate::conditions::new(ConditionKind::AgentRounds, standing == RoundMode::Agent, reason, message, self.now)
    }
}
