//! Rounds that an agent in the pods drives: pods stay, and their processes are started anew for each round.
//!
//! Pods come and go as the target and their losses ask for it; a *round* names those of them that train together. A
//! change of members is a new round with a higher generation: it is published with the order `Stop`, and with `Run`
//! once nothing of the round before it can run any more. What is decided is in the state before it is published, so
//! that an operator that ends anywhere in between is followed by one that does the same.
//!
//! Where `torchrun` changes its members by itself ([`native`]), a round that the others can go on in begins with `Run`.
//!
//! Who is lost is a matter of two witnesses: an agent that is not heard of is suspected, and no more. A pod that failed,
//! is gone, is being stopped, or is on a node that is not ready has a second one; so has a process that has ended, and
//! an agent that keeps all others waiting at an order that they have followed.

mod change;
mod facts;
mod gather;
mod hang;
mod losses;
mod mode;
mod moves;
mod native;
mod orders;
mod pods;
mod publish;
mod straggle;
mod suspend;
mod watch;

pub use hang::ProgressSeen;
pub use mode::GATEWAY_PATIENCE;
pub use straggle::Stragglers;

use super::step::Step;
use crate::state::{RoundCause, RoundOrder};

/// Time that agents get beyond the grace of their processes to say that these are gone, in milliseconds.
const STOP_MARGIN_MS: u64 = 10_000;
/// A member that is suspected and keeps a round from starting for this long is left out, in milliseconds.
const SILENT_AFTER_MS: u64 = 30_000;

impl Step<'_> {
    /// Whether the present round is driven by an agent.
    pub(super) fn is_agent(&self) -> bool {
        self.round().is_some_and(|r| r.agent.is_some())
    }

    /// The rules, in the order of their precedence. Without the group nobody can be told anything: all goes on as it
    /// is then.
    pub(super) fn drive(&mut self) {
        if !self.facts.agent.gateway {
            self.drive_without_gateway();
            return;
        }
        if self.facts.group.is_none() {
            if self.order() == RoundOrder::Gather && !self.begin_without_gateway() {
                self.keep_pods();
            }
            if self.is_agent() {
                self.watch_phase();
            }
            return;
        }
        self.adopt_published();
        self.excuse();
        if self.lose() || self.restart_hung() {
            return;
        }
        self.note_in_force();
        self.wait_for_returned();
        self.go_from_stop();
        self.let_go();
        self.gather();
        if self.is_agent() {
            self.follow_target();
        }
        if self.state.phase.is_terminal() {
            return;
        }
        if self.is_agent() {
            self.stop_forgotten();
            self.keep_pods();
        }
        if !self.is_agent() {
            // For want of a command.
            self.carry_out();
            self.watch_start();
            return;
        }
        self.watch_round();
        self.watch_checkpoints();
        self.note_stragglers();
        self.publish();
    }

    /// The gateway is not set up any more. Nothing is restarted for that; when something has to change, it is done by
    /// recreation.
    fn drive_without_gateway(&mut self) {
        let lost = !self.agent_losses().is_empty();
        let template = self.has_other_template();
        let gathers = self.order() == RoundOrder::Gather;
        let resize = self.round().is_some_and(|r| r.size != self.state.target);
        let cause = match (lost, template) {
            (true, _) => RoundCause::WorkerLost,
            (_, true) => RoundCause::TemplateChanged,
            _ if gathers => RoundCause::Start,
            _ if !resize => {
                self.watch_phase();
                return;
            }
            _ if self.round().is_some_and(|r| r.size < self.state.target) => RoundCause::Grow,
            _ => RoundCause::Shrink,
        };
        self.begin_recreation(cause, "there is no gateway any more that could drive an agent");
        self.carry_out();
        self.watch_start();
    }
}
