//! Members that are slower than the others.
//!
//! Members that train in lock-step all do as many steps a second as the slowest of them, and those that wait look as busy as
//! those that work: libraries spin while they wait. Only what a script tells of the work of its own sets them apart.

use std::collections::BTreeMap;
use std::time::Duration;

use eto_membership::{Group, MemberState};

use super::super::EventReason;
use super::super::step::Step;
use super::orders::Begin;
use crate::guard::sizes;
use crate::observe::Pod;
use crate::state::{JobState, LossClass, RoundCause, Straggler};
use crate::time::{Time, millis};

/// A member is slow when its own part of a step takes this much of the median member's, in per cent, ...
const SLOW_PERCENT: u64 = 150;
/// ... and until it takes less than this much.
const FAST_PERCENT: u64 = 130;
/// It is told of when it has been slow for so long without a break.
const SLOW_FOR: Duration = Duration::from_secs(300);
/// How often members are compared.
const LOOK: Duration = Duration::from_secs(30);
/// One is replaced no sooner than its round has run for so long: another may be as slow, on the same node say.
const REPLACE_AFTER: Duration = Duration::from_secs(1800);
/// So many are told of at most: where more are slow, it is not a matter of some members.
const MOST: usize = 32;
/// Fewer than these have no middle that one could be far from.
const MEMBERS_MIN: usize = 3;

/// Which members of a round are slow by what they tell, and since when that was seen without a break. It is not durable: an
/// operator that starts waits anew.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stragglers {
    generation: u64,
    /// By UID of the pod: since when, and how much of the median member's time it takes, in per cent.
    slow: BTreeMap<String, (Time, u64)>,
}

impl Stragglers {
    /// What was seen after one more look at the group. `None` while nothing can be told: the round does not run, or fewer
    /// than three of its members that are heard of tell of their own work.
    pub fn next(before: Option<&Self>, state: &JobState, group: Option<&Group>, now: Time) -> Option<Self> {
        let round = state.round.as_ref().filter(|r| r.running_since.is_some())?;
        let (generation, members) = (round.generation, &round.agent.as_ref()?.members);
        let mut works: Vec<(&str, u64)> = members
            .iter()
            .filter_map(|m| {
                let record = group?.members.get(&m.uid).filter(|r| !r.suspected)?;
                let runs = record.report.state == MemberState::Running { generation };
                Some((m.uid.as_str(), record.report.step_work_us.filter(|us| runs && *us > 0)?))
            })
            .collect();
        if works.len() < MEMBERS_MIN {
            return None;
        }
        works.sort_by_key(|(_, us)| *us);
        let median = works.get(works.len() / 2)?.1;
        let known = before.filter(|b| b.generation == generation);
        let slow = |(uid, us): &(&str, u64)| {
            let since = known.and_then(|b| b.slow.get(*uid)).map(|(since, _)| *since);
            let percent = us.saturating_mul(100) / median;
            let least = if since.is_some() { FAST_PERCENT } else { SLOW_PERCENT };
            (percent >= least).then(|| ((*uid).to_owned(), (since.unwrap_or(now), percent)))
        };
        Some(Stragglers { generation, slow: works.iter().filter_map(slow).collect() })
    }

    /// Whether one look after another found the same members slow: a plan would find nothing to do.
    pub fn goes_on(before: Option<&Self>, after: Option<&Self>) -> bool {
        match (before, after) {
            (Some(b), Some(a)) => b.generation == a.generation && b.slow.keys().eq(a.slow.keys()),
            (before, after) => before.is_none() && after.is_none(),
        }
    }
}

impl<'a> Step<'a> {
    /// Gives a straggler up, where the job wants it so and the others are enough; the growth that follows brings another.
    /// True while one is to be replaced.
    pub(super) fn replace_straggler(&mut self, members: u32) -> bool {
        let Some(pod) = self.straggler_to_replace(members) else { return false };
        if !self.is_boundary(RoundCause::WorkerLost, members.saturating_sub(1)) {
            return true;
        }
        let why = format!("worker {} is much slower than the others", pod.index);
        self.name_victim(pod, pod.index, "it is much slower than the others");
        self.notes.loss = Some(LossClass::Straggler);
        let left = self.fit_members();
        let grace_ms = millis(self.job.elasticity.drain_deadline);
        self.begin_agent_round(&left, Begin { cause: RoundCause::WorkerLost, why: &why, grace_ms, charged: false });
        self.go_from_stop();
        true
    }

    fn straggler_to_replace(&self, members: u32) -> Option<&'a Pod> {
        let since = self.round()?.running_since.filter(|_| self.job.elasticity.replace_stragglers)?;
        let rest = members.checked_sub(1)?;
        if self.now.since(since) < REPLACE_AFTER || sizes::at_most(self.job, rest) != Some(rest) {
            return None;
        }
        let slow = |p: &&Pod| self.job.may_give_up(p.index) && self.state.stragglers.iter().any(|s| s.uid == p.uid);
        self.fit_members().into_iter().find(slow)
    }

    /// Tells of members that have been slow for long, and forgets those that are not any more.
    pub(super) fn note_stragglers(&mut self) {
        let (now, generation) = (self.now, self.generation());
        let in_round = &self.in_round;
        self.state.stragglers.retain(|s| in_round.contains(&s.uid));
        let Some(seen) = self.facts.stragglers.filter(|s| s.generation == generation) else { return };
        self.looks.push(now.plus(LOOK));
        self.state.stragglers.retain(|s| seen.slow.contains_key(&s.uid));
        for (uid, (since, percent)) in &seen.slow {
            let known = &self.state.stragglers;
            if now.since(*since) < SLOW_FOR || known.len() >= MOST || known.iter().any(|s| s.uid == *uid) {
                continue;
            }
            let Some(pod) = self.pods.iter().copied().find(|p| p.uid == *uid) else { continue };
            let straggler = Straggler { pod: pod.name.clone(), uid: uid.clone(), since: *since };
            self.state.stragglers.push(straggler);
            let (index, minutes) = (pod.index, SLOW_FOR.as_secs() / 60);
            let node = pod.node.as_deref().unwrap_or("no node");
            let message = format!(
                "worker {index} on {node} has taken {percent} % of the median worker's time for its own part of a step, \
                 for {minutes} min: all others wait for it"
            );
            self.event(true, EventReason::Straggler, message);
        }
    }
}
