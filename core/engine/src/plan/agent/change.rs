//! Planned changes: growth, shrinking, another template. Up to the moment of the stop training goes on, and what was
//! decided can be taken back.

use std::collections::HashSet;

use super::super::EventReason;
use super::super::step::Step;
use super::super::victims;
use super::facts::count;
use super::orders::Begin;
use crate::contract::WorkerPhase;
use crate::guard::sizes;
use crate::observe::Pod;
use crate::state::{Change, ChangeStep, RoundCause, RoundOrder};
use crate::time::millis;

impl<'a> Step<'a> {
    /// One change at a time: none begins before the members of the present round all run.
    pub(super) fn follow_target(&mut self) {
        if self.order() == RoundOrder::Gather {
            let target = self.state.target;
            self.give_up_surplus(target);
            return;
        }
        if self.order() != RoundOrder::Run {
            return;
        }
        let running = self.round().is_some_and(|r| r.running_since.is_some());
        if self.has_other_template() {
            self.renew(running);
            return;
        }
        if !running || self.job.template.is_none() || self.move_members() {
            return;
        }
        let (members, target) = (count(self.in_round.len()), self.state.target);
        match members.cmp(&target) {
            std::cmp::Ordering::Less => {
                self.give_up_surplus(target);
                self.grow(members);
            }
            std::cmp::Ordering::Equal => {
                self.give_up_surplus(target);
                if self.idle_master().is_some() {
                    self.shrink(members);
                } else if !self.replace_straggler(members) {
                    self.drop_change();
                }
            }
            std::cmp::Ordering::Greater => self.shrink(members),
        }
    }

    /// Pods of the new template can't be in a round with those of the old one: these stop first.
    fn renew(&mut self, running: bool) {
        if self.waits_for_image() {
            return;
        }
        let members = count(self.in_round.len());
        if running && !self.is_boundary(RoundCause::TemplateChanged, members) {
            return;
        }
        if self.recreates_instead(RoundCause::TemplateChanged, "the pod template changed") {
            return;
        }
        let pods = self.fit_members();
        let grace_ms = millis(self.job.elasticity.drain_deadline);
        let why = "the pod template changed";
        self.begin_agent_round(&pods, Begin { cause: RoundCause::TemplateChanged, why, grace_ms, charged: false });
        self.go_from_stop();
        self.gather();
    }

    /// The next round begins when all who are to join have joined. Who has no node in time is not waited for.
    fn grow(&mut self, members: u32) {
        self.replace_failed();
        self.take_growth_refusal(members);
        let workers = self.workers();
        let fresh: Vec<&Pod> = workers.iter().copied().filter(|p| !self.is_member(p)).collect();
        let joined = count(fresh.iter().filter(|p| self.has_joined(p)).count());
        let placed = count(fresh.iter().filter(|p| p.node.is_some() || p.phase != WorkerPhase::Pending).count());
        let there = count(workers.len()) >= self.state.target;
        let all = members.saturating_add(joined);
        if all < self.state.target || !there {
            self.enter(RoundCause::Grow, if there { ChangeStep::WaitingForJoins } else { ChangeStep::CreatingPods });
            self.check_growth(members, joined, placed, there);
        }
        let target = self.state.target;
        if target <= members {
            self.drop_change();
            return;
        }
        let ready = all >= target && sizes::at_most(self.job, target) == Some(target);
        if ready && self.is_boundary(RoundCause::Grow, target) {
            let pods = self.with_joined(self.fit_members());
            self.change_to(&pods, RoundCause::Grow, &format!("grow from {members} to {target}"));
        }
    }

    /// Deadlines of a growth: its pods get a node in one, and join in the other.
    fn check_growth(&mut self, members: u32, joined: u32, placed: u32, there: bool) {
        let Some((decided, since)) = self.state.change.as_ref().map(|c| (c.decided, c.since)) else { return };
        let wanted = self.state.target.saturating_sub(members);
        let no_node = since.plus(self.job.elasticity.pending_deadline);
        let no_start = decided.plus(self.job.elasticity.start_deadline);
        let required = self.round().is_some_and(|r| r.required_nodes);
        if self.now >= no_start {
            let why = format!("{} of {wanted} new workers did not join in time", wanted.saturating_sub(joined));
            self.refuse_growth(members, members.saturating_add(joined), &why);
        } else if there && self.now >= no_node && placed < wanted && required {
            self.drop_demands();
        } else if there && self.now >= no_node && placed < wanted {
            let why = format!("{} of {wanted} new workers did not get a node", wanted.saturating_sub(placed));
            self.refuse_growth(members, members.saturating_add(placed), &why);
        } else {
            self.looks.push(no_start);
            if there && placed < wanted {
                self.looks.push(no_node);
            }
        }
    }

    /// Before the size is given up, the demands of the placement policy are: those who wait for a node are made again, and
    /// may have any.
    fn drop_demands(&mut self) {
        let waits = |p: &&Pod| p.node.is_none() && p.phase == WorkerPhase::Pending;
        for pod in self.workers().into_iter().filter(waits) {
            self.name_victim(pod, pod.index, "it is pending for a node that the placement policy demands");
        }
        if let Some(round) = &mut self.state.round {
            round.required_nodes = false;
        }
        if let Some(change) = &mut self.state.change {
            (change.step, change.since, change.anywhere) = (ChangeStep::CreatingPods, self.now, true);
        }
        let what = "new workers waited in vain for the nodes that the placement policy demands; they may have any now";
        self.event(true, EventReason::StartTimedOut, what.to_owned());
    }

    fn take_growth_refusal(&mut self, members: u32) {
        let Some(refused) = self.facts.refused.filter(|r| r.round == self.generation()) else { return };
        self.refusal = Some(refused.message.clone());
        let why = format!("pods were refused: {}", refused.message);
        self.refuse_growth(members, refused.created, &why);
    }

    /// The target becomes what can be had: never fewer than train now.
    fn refuse_growth(&mut self, members: u32, there: u32, why: &str) {
        let most = there.max(members);
        let fit = sizes::at_most(self.job, most).unwrap_or(members).max(members).min(self.state.target);
        if fit == self.state.target {
            return;
        }
        self.take_back(fit, why);
        self.event(true, EventReason::GrowthRefused, format!("{why}; the job goes on with {fit}"));
        self.give_up_surplus(fit);
        self.looks.push(self.now.plus(self.job.elasticity.start_deadline));
    }

    /// The master has come back and is in no round.
    fn idle_master(&self) -> Option<&'a Pod> {
        if self.fit_members().iter().any(|p| p.index == 0) {
            return None;
        }
        self.workers().into_iter().find(|p| p.index == 0 && !self.is_member(p) && self.has_joined(p))
    }

    /// Whoever is not in the round goes at once; members are named when the others stop: those whose end is announced, and
    /// then as many more as it takes. A master that came back while the target fell takes a member's place.
    fn shrink(&mut self, members: u32) {
        let target = self.state.target;
        self.give_up_surplus(members);
        if !self.is_boundary(RoundCause::Shrink, target) {
            return;
        }
        let master = self.idle_master();
        let (going, mut pool): (Vec<&Pod>, Vec<&Pod>) =
            self.fit_members().into_iter().partition(|p| self.announced(p).is_some());
        for pod in going {
            self.name_victim(pod, pod.index, "its end is announced");
        }
        pool.extend(master);
        let mut indexes: Vec<u32> = pool.iter().map(|p| p.index).collect();
        indexes.sort_unstable();
        let number = usize::try_from(count(pool.len()).saturating_sub(target)).unwrap_or(usize::MAX);
        let chosen = victims::choose(self, &indexes, number);
        for (index, pod, reason) in &chosen {
            if let Some(pod) = pod {
                self.name_victim(pod, *index, reason);
            }
        }
        let go: HashSet<u32> = chosen.iter().map(|(index, ..)| *index).collect();
        pool.retain(|p| !go.contains(&p.index));
        let why = match master {
            Some(_) if members == target => "the master is back".to_owned(),
            _ => format!("shrink from {members} to {target}"),
        };
        self.change_to(&pool, RoundCause::Shrink, &why);
    }

    /// The round of these pods: in the run that stands if it can be, else all stop for it.
    fn change_to(&mut self, pods: &[&'a Pod], cause: RoundCause, why: &str) {
        let grace_ms = millis(self.job.elasticity.drain_deadline);
        let begin = Begin { cause, why, grace_ms, charged: false };
        if !self.go_on_natively(pods, begin) {
            self.begin_agent_round(pods, begin);
            self.go_from_stop();
        }
    }

    /// Names those beyond `keep` workers who are in no round: the latest to come first, and the master only where it
    /// has not come at all. Who is no worker stays, and has a place also while it is missing.
    pub(super) fn give_up_surplus(&mut self, keep: u32) {
        let workers = self.workers();
        let types = &self.job.types;
        let there = workers.iter().filter(|p| !types.is_worker(p.index)).count();
        let missing = types.count().saturating_sub(count(there));
        let surplus = count(workers.len()).saturating_add(missing).saturating_sub(keep);
        let mut idle: Vec<&Pod> = workers
            .into_iter()
            .filter(|p| !self.is_member(p))
            .filter(|p| types.is_worker(p.index) && (p.index != 0 || !self.has_joined(p)))
            .collect();
        idle.sort_by_key(|p| (self.has_joined(p), p.node.is_some(), std::cmp::Reverse(p.index)));
        for pod in idle.into_iter().take(usize::try_from(surplus).unwrap_or(usize::MAX)) {
            let reason = if self.has_joined(pod) { "it is not needed any more" } else { "it is pending" };
            self.name_victim(pod, pod.index, reason);
        }
    }

    /// Notes the step that a change is at. A change to another size begins anew.
    pub(super) fn enter(&mut self, cause: RoundCause, step: ChangeStep) {
        let (now, to) = (self.now, self.state.target);
        let from = count(self.in_round.len());
        let goes_on = |c: &Change| c.cause == cause && c.to == to && c.step <= ChangeStep::WaitingForCheckpoint;
        let same = self.state.change.as_ref().is_some_and(goes_on);
        if !same {
            self.state.change = Some(Change::begin(cause, from, to, step, now));
        }
        if let Some(change) = self.state.change.as_mut().filter(|c| c.step != step) {
            (change.step, change.since) = (step, now);
        }
    }

    /// A change that has not stopped anything has nothing left to do.
    fn drop_change(&mut self) {
        if self.state.change.as_ref().is_some_and(|c| c.step <= ChangeStep::WaitingForCheckpoint) {
            self.state.change = None;
        }
    }

    /// Whether this is the moment to stop the members for a planned change: after a checkpoint that is newer than the
    /// one there was, where they tell of checkpoints; at once where they don't, or when that has taken too long.
    pub(super) fn is_boundary(&mut self, cause: RoundCause, to: u32) -> bool {
        let wait = self.job.elasticity.checkpoint_wait;
        let members = self.member_pods();
        let newest = members.iter().filter_map(|p| self.record(p)?.report.checkpoint).max();
        let Some(newest) = newest.filter(|_| !wait.is_zero()) else { return true };
        let waits =
            self.state.change.as_ref().is_some_and(|c| c.step == ChangeStep::WaitingForCheckpoint && c.to == to);
        if !waits {
            let (now, from) = (self.now, count(self.in_round.len()));
            let before = self.state.change.as_ref().filter(|c| c.to == to);
            self.state.change = Some(Change {
                decided: before.map_or(now, |c| c.decided),
                checkpoint: Some(newest),
                anywhere: before.is_some_and(|c| c.anywhere),
                ..Change::begin(cause, from, to, ChangeStep::WaitingForCheckpoint, now)
            });
        }
        let Some(change) = &self.state.change else { return true };
        let until = change.since.plus(wait);
        if change.checkpoint.is_none_or(|before| newest > before) || until <= self.now {
            return true;
        }
        self.looks.push(until);
        false
    }
}
