//! The course of a story: the job starts, faults strike, they cease, and all is well again.

use eto_engine::state::{Phase, RoundOrder};
use eto_membership::Order;

use crate::check::Rule;
use crate::container::Container;
use crate::world::{What, World};

/// When faults have ceased, all has to be well after this, in milliseconds: the longest back-off, a start that takes
/// its whole deadline, and pods that are given up on a node that was lost.
pub(crate) const RECOVERS_IN: u64 = 1_800_000;

impl World {
    /// Cluster and operator come up.
    pub(crate) fn set_out(&mut self) {
        for what in [What::Schedule, What::Sweep, What::Start { at: 0 }] {
            self.after(1, what);
        }
        self.after(3_000, What::Start { at: 1 });
    }

    pub(crate) fn tell_story(&mut self) {
        self.set_out();
        if self.scenario.calm {
            self.tell_calm();
        } else {
            self.tell_storm();
        }
        if !self.is_broken() {
            self.end_well();
        }
    }

    fn tell_storm(&mut self) {
        // Some faults find the job before it has begun.
        let calm = self.random.between(0, 60_000);
        let backup = self.random.between(0, 120_000);
        self.run_until(self.now + calm);
        self.storm = true;
        self.after(1, What::Fault);
        let begun = self.now;
        while self.scenario.faults > 0 && !self.is_broken() && self.now < begun + 1_200_000 {
            let next = self.now + 5_000;
            if !self.run_until(next) {
                return;
            }
            if self.now.saturating_sub(begun) / 5_000 == backup / 5_000 {
                self.take_backup();
            }
        }
        let rest = self.random.between(0, 30_000);
        self.run_until(self.now + rest);
    }

    pub(crate) fn end_well(&mut self) {
        self.mend_all();
        if !self.settles(RECOVERS_IN) && !self.is_broken() {
            let why = self.why_unsettled().unwrap_or_default();
            self.demand(false, Rule::Liveness, || why);
        }
        if self.is_broken() || self.ghost.has_ended() {
            return;
        }
        let (steps, long) = (self.counts.steps, 4 * self.scenario.step_time + 10_000);
        self.run_until(self.now + long);
        let on = self.counts.steps > steps || self.ghost.has_ended();
        self.demand(on, Rule::Liveness, || "all members run, and no step is made".to_owned());
    }

    /// Runs until all is well; false if that takes longer than `most`.
    pub(crate) fn settles(&mut self, most: u64) -> bool {
        let until = self.now + most;
        let mut well = 0;
        while self.now < until {
            if !self.run_until(self.now + 2_000) {
                return false;
            }
            well = if self.why_unsettled().is_none() { well + 1 } else { 0 };
            if well >= 4 {
                return true;
            }
        }
        false
    }

    /// What is not as it should be when nothing is wrong any more.
    pub(crate) fn why_unsettled(&self) -> Option<String> {
        let Some(state) = &self.api.stored else { return Some("there is no status".to_owned()) };
        let live = || self.api.pods.values().filter(|p| p.deleting.is_none());
        if state.phase.is_terminal() {
            let left = live().find(|p| !p.is_ended()).map(|p| format!("{} runs after the end", p.uid));
            let told = self.etcd.kept.assignment.as_ref().is_none_or(|a| a.order == Order::End);
            return left.or((!told).then(|| "agents were not told of the end".to_owned()));
        }
        let round = state.round.as_ref().and_then(|r| Some((r.generation, r.agent.as_ref()?)));
        let Some((generation, agent)) = round else { return Some(format!("there is no round: {:?}", state.phase)) };
        let (size, target) = (agent.members.len(), usize::try_from(state.target).unwrap_or(0));
        if state.phase != Phase::Running || agent.order != RoundOrder::Run {
            return Some(format!("{:?} with the order {:?} in round {generation}", state.phase, agent.order));
        }
        // The leader may be away, and not know of it yet.
        let wanted = self.api.spec.template.as_ref().map(|t| &t.hash);
        if state.round.as_ref().map(|r| &r.template_hash) != wanted {
            return Some(format!("round {generation} is of another template"));
        }
        if size != target || live().count() != target || self.api.pods.len() != target {
            let pods = self.api.pods.len();
            return Some(format!("{size} members and {pods} pods where {target} are aimed at"));
        }
        if let Some(change) = &state.change {
            return Some(format!("a change is left over: {change:?}"));
        }
        if state.last_resize.as_ref().is_some_and(|r| r.done.is_none()) {
            return Some("a resize is in flight for ever".to_owned());
        }
        let hangs = |c: &Container| c.process.as_ref().is_some_and(|p| p.hung && !p.over);
        if let Some((uid, _)) = self.containers.iter().find(|(_, c)| hangs(c)) {
            return Some(format!("{uid} hangs, and nothing is done"));
        }
        let runs = |uid: &String| self.containers.get(uid).and_then(Container::runs) == Some(generation);
        agent.members.iter().find(|m| !runs(&m.uid)).map(|m| format!("{} does not run round {generation}", m.uid))
    }
}
