//! Which way rounds are carried out.

use std::time::Duration;

use super::super::ImageCommand;
use super::super::step::Step;
use crate::job::AgentChoice;
use crate::state::{Condition, ConditionKind, ConditionReason as Why, RoundCause, RoundMode};

const DRIVEN: &str = "an agent in the pods drives rounds";
/// A job that begins waits this long for a gateway whose etcd is away.
pub const GATEWAY_PATIENCE: Duration = Duration::from_secs(300);

impl Step<'_> {
    /// How a round that begins now with new pods is carried out, and why.
    pub(in crate::plan) fn wanted_mode(&self) -> (RoundMode, Why) {
        match (self.facts.agent.gateway, self.job.elasticity.agent) {
            (false, _) => (RoundMode::Recreate, Why::NoAgent),
            (true, AgentChoice::Off) => (RoundMode::Recreate, Why::AgentOff),
            (true, AgentChoice::Auto) if self.has_command() => (RoundMode::Agent, Why::AgentDrivesRounds),
            (true, AgentChoice::Auto) => match self.facts.image {
                ImageCommand::Pending { last: None } => (RoundMode::Recreate, Why::ReadingImage),
                ImageCommand::Pending { last: Some(_) } | ImageCommand::Failed(_) => {
                    (RoundMode::Recreate, Why::ImageNotRead)
                }
                ImageCommand::Unread | ImageCommand::Known => (RoundMode::Recreate, Why::NoCommand),
            },
        }
    }

    /// Whether it is known what an agent in new pods is to run.
    pub(in crate::plan) fn has_command(&self) -> bool {
        self.facts.image == ImageCommand::Known || self.job.template.as_ref().is_none_or(|t| t.command)
    }

    /// Whether an agent could drive rounds if the image's command were known, and it may be known soon.
    pub(in crate::plan) fn is_image_pending(&self) -> bool {
        self.facts.agent.gateway
            && self.job.elasticity.agent == AgentChoice::Auto
            && !self.has_command()
            && matches!(self.facts.image, ImageCommand::Pending { .. })
    }

    /// Asks for the image's command, if a change that can wait for it needs it. Whatever runs goes on meanwhile.
    pub(in crate::plan) fn waits_for_image(&mut self) -> bool {
        let waits = self.is_image_pending();
        self.wants_image |= waits;
        waits
    }

    /// Begins the round by recreation where an agent can't drive it for want of a command, or is not to drive pods of the
    /// new template.
    pub(super) fn recreates_instead(&mut self, cause: RoundCause, why: &str) -> bool {
        let recreates = match self.wanted_mode() {
            (RoundMode::Agent, _) => false,
            (RoundMode::Recreate, Why::NoCommand | Why::ImageNotRead) => !self.is_image_pending(),
            (RoundMode::Recreate, _) => self.has_other_template() && !self.is_image_pending(),
        };
        if recreates {
            self.begin_recreation(cause, why);
        }
        recreates
    }

    /// A job that begins does not wait for the gateway's etcd for ever: after a while it begins by recreation, which needs
    /// none. True if it does so now. One in which somebody trains or may train waits.
    pub(super) fn begin_without_gateway(&mut self) -> bool {
        let begins = |cause: RoundCause| matches!(cause, RoundCause::Start | RoundCause::Resumed);
        let Some(round) = self.round().filter(|r| begins(r.cause)) else { return false };
        let (cause, since) = (round.cause, round.since);
        // A round that the job did not begin with is of a status that was lost: its pods may train.
        if self.state.started_at != Some(since) {
            return false;
        }
        let until = since.plus(GATEWAY_PATIENCE);
        if self.now < until {
            self.looks.push(until);
            return false;
        }
        let why = format!("the gateway's etcd was not reached for {} s", GATEWAY_PATIENCE.as_secs());
        self.begin_recreation(cause, &why);
        self.carry_out();
        self.watch_start();
        true
    }

    /// `AgentRounds`: the way of the round that stands.
    pub(in crate::plan) fn agent_rounds(&self) -> Condition {
        let (wanted, why) = self.wanted_mode();
        let standing = self.round().map_or(wanted, crate::state::RoundState::mode);
        let (reason, message) = match standing {
            RoundMode::Agent => self.driven(why),
            RoundMode::Recreate => self.recreated(why),
        };
        crate::conditions::new(ConditionKind::AgentRounds, standing == RoundMode::Agent, reason, message, self.now)
    }

    fn driven(&self, why: Why) -> (Why, String) {
        let driven = || {
            let (reason, message) = self.native_condition().unwrap_or((Why::AgentDrivesRounds, DRIVEN));
            (reason, message.to_owned())
        };
        match (why, self.facts.image) {
            (Why::AgentDrivesRounds, _) => driven(),
            // Pods that are there know what they run.
            (Why::ImageNotRead, ImageCommand::Failed(problem)) if self.wants_image => {
                (why, format!("{DRIVEN}; new pods wait until the image's command is known: {problem}"))
            }
            (Why::ImageNotRead | Why::ReadingImage, _) if !self.has_other_template() => driven(),
            (Why::ReadingImage, _) => {
                (why, format!("{DRIVEN}; the new template's image is asked for the command that it has"))
            }
            _ => (
                Why::ModeKept,
                "an agent in the pods drives this round; pods are recreated for each round from the next new pods on"
                    .to_owned(),
            ),
        }
    }

    fn recreated(&self, why: Why) -> (Why, String) {
        let recreated = "pods are recreated for each round";
        match (why, self.facts.image) {
            (Why::AgentDrivesRounds, _) if self.facts.group.is_none() => (
                Why::GatewayNotReached,
                format!(
                    "{recreated}: the operator does not reach the gateway's etcd; an agent drives rounds from the first \
                     round of new pods on when it is back"
                ),
            ),
            (Why::AgentDrivesRounds, _) => {
                (Why::ModeKept, format!("{recreated}; an agent drives rounds from the next round of new pods on"))
            }
            (Why::AgentOff, _) => (why, format!("{recreated}: spec.elasticity.agent is Off")),
            (Why::NoCommand, _) => (
                why,
                format!("{recreated}: the template's first container has no command that an agent could be put around"),
            ),
            (Why::ImageNotRead, ImageCommand::Failed(problem) | ImageCommand::Pending { last: Some(problem) }) => {
                (why, format!("{recreated}: the template has no command, and the image's can't be had: {problem}"))
            }
            (Why::ReadingImage, _) if self.round().is_none() => {
                (why, "the template has no command: the image is asked for the one that it has".to_owned())
            }
            // What an operator before this one found still holds for the round.
            (Why::ReadingImage, _) => self.told_before().unwrap_or_else(|| {
                (Why::ModeKept, format!("{recreated}; the image is asked for its command before the next round"))
            }),
            _ => (Why::NoAgent, format!("{recreated}: no agent drives the processes in them")),
        }
    }

    fn told_before(&self) -> Option<(Why, String)> {
        let told = self.state.conditions.iter().find(|c| c.kind == ConditionKind::AgentRounds)?;
        (told.reason == Why::ImageNotRead && !told.status).then(|| (told.reason, told.message.clone()))
    }
}
