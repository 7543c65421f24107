//! The order of one step, and the facts that its parts share.

use std::collections::{BTreeSet, HashMap, HashSet};

use eto_membership::MAX_MEMBERS;

use super::history::Notes;
use super::{Action, Announced, Event, EventReason, Plan, PlanFacts, target};
use crate::job::JobSpec;
use crate::observe::Pod;
use crate::state::{JobState, Phase, RoundCause, RoundState};
use crate::time::Time;

pub(super) struct Step<'a> {
    pub(super) job: &'a JobSpec,
    pub(super) facts: &'a PlanFacts<'a>,
    pub(super) now: Time,
    /// By index, then creation.
    pub(super) pods: Vec<&'a Pod>,
    /// As it was handed in.
    pub(super) before: &'a JobState,
    pub(super) state: JobState,
    pub(super) actions: Vec<Action>,
    pub(super) events: Vec<Event>,
    pub(super) looks: Vec<Time>,
    /// Why pods were refused in this step.
    pub(super) refusal: Option<String>,
    /// UIDs of the members of the present round, where an agent drives it.
    pub(super) in_round: BTreeSet<String>,
    /// UIDs of [`JobState::victims`].
    pub(super) given_up: HashSet<String>,
    /// Those of [`JobState::deleting`].
    pub(super) doomed: HashSet<String>,
    /// See [`Plan::wants_image`].
    pub(super) wants_image: bool,
    /// What the history is to say of this step.
    pub(super) notes: Notes,
}

impl<'a> Step<'a> {
    pub(super) fn new(
        job: &'a JobSpec,
        before: &'a JobState,
        pods: &'a [Pod],
        facts: &'a PlanFacts<'a>,
        now: Time,
    ) -> Self {
        let mut pods: Vec<&Pod> = pods.iter().collect();
        pods.sort_by(|a, b| (a.index, a.created, &a.uid).cmp(&(b.index, b.created, &b.uid)));
        let (state, notes, in_round) = (before.clone(), Notes::default(), BTreeSet::new());
        let (actions, events, looks) = (vec![], vec![], vec![]);
        let (refusal, wants_image) = (None, false);
        let given_up = state.victims.iter().map(|v| v.uid.clone()).collect();
        let doomed = state.deleting.iter().cloned().collect();
        let mut step = Step {
            job,
            facts,
            now,
            pods,
            before,
            state,
            actions,
            events,
            looks,
            refusal,
            in_round,
            given_up,
            doomed,
            wants_image,
            notes,
        };
        step.note_members();
        step
    }

    /// The rules, in the order of their precedence. Each may begin a new round; only the last one acts on pods, and it
    /// acts for the round that stands then.
    pub(super) fn run(&mut self) {
        if self.state.phase.is_terminal() {
            self.clean_up();
            self.tell_end();
            return;
        }
        self.pass_generations();
        target::rebase(self.job, &mut self.state, self.now);
        // Work that was done when the user suspended it is done: it is not to be done again after a resumption.
        if self.job.suspend && !self.has_succeeded() {
            self.suspend();
        } else {
            if !self.job.suspend {
                self.resume();
            }
            if !self.ended() {
                self.advance();
            }
        }
        if self.state.phase.is_terminal() {
            self.clean_up();
            self.tell_end();
        }
        self.note_history();
        self.tell();
    }

    /// Each rule by recreation may begin a round that an agent drives.
    fn advance(&mut self) {
        if !self.is_agent() {
            if self.replace_lost() {
                return;
            }
            self.follow_spec();
            if !self.is_agent() {
                self.release_stuck();
            }
        }
        if self.is_agent() {
            self.drive();
        } else {
            self.carry_out();
            self.watch_start();
        }
    }

    pub(super) fn finish(mut self) -> Plan {
        // Most steps of most jobs have neither.
        if !(self.state.victims.is_empty() && self.state.deleting.is_empty()) {
            let there: HashMap<&str, &Pod> = self.pods.iter().map(|p| (p.uid.as_str(), *p)).collect();
            self.state.victims.retain(|v| there.contains_key(v.uid.as_str()));
            self.state.deleting.retain(|uid| there.get(uid.as_str()).is_some_and(|p| p.deleting.is_none()));
        }
        let next_look = self.looks.iter().copied().filter(|t| *t > self.now).min();
        let Step { state, actions, events, wants_image, .. } = self;
        Plan { state, actions, events, next_look, wants_image }
    }

    fn suspend(&mut self) {
        if self.state.phase != Phase::Suspended {
            self.event(false, EventReason::Suspended, "the job is suspended; its pods are deleted".to_owned());
            self.state.phase = Phase::Suspended;
        }
        self.state.started_at = None;
        self.state.not_before = None;
        self.state.start_attempts = 0;
        // A resize in flight has lost its measure.
        self.state.last_resize = self.state.last_resize.take().filter(|r| r.done.is_some());
        self.state.change = None;
        if self.is_stopping_for_suspension() {
            return;
        }
        if let Some(old) = self.state.round.take() {
            self.warn_of_suspended(&old);
        }
        self.delete_all("the job is suspended");
    }

    fn resume(&mut self) {
        if self.state.phase == Phase::Suspended {
            self.state.phase = Phase::Pending;
            self.event(false, EventReason::Resumed, "the job goes on".to_owned());
            // One that was stopping for the suspension goes on.
            if self.job.template.is_some() && self.state.round.is_none() && !self.waits_for_image() {
                self.begin_round(RoundCause::Resumed, "resumed");
            }
        }
    }

    /// The first round, another size, another template.
    fn follow_spec(&mut self) {
        let Some(template) = &self.job.template else { return };
        let same = |r: &RoundState| r.template_hash == template.hash && r.size == self.state.target;
        if self.round().is_some_and(same) {
            self.move_away();
            return;
        }
        if self.waits_for_image() {
            return;
        }
        let Some(round) = &self.state.round else {
            self.begin_round(RoundCause::Start, "the job starts");
            return;
        };
        let (size, target) = (round.size, self.state.target);
        if round.template_hash != template.hash {
            self.state.not_before = None;
            self.state.start_attempts = 0;
            self.begin_round(RoundCause::TemplateChanged, "the pod template changed");
        } else if size < target {
            self.begin_round(RoundCause::Grow, &format!("grow from {size} to {target}"));
        } else {
            self.begin_round(RoundCause::Shrink, &format!("shrink from {size} to {target}"));
        }
    }

    fn move_away(&mut self) {
        let Some(why) = self.why_to_move().filter(|_| !self.waits_for_image()) else { return };
        self.event(false, EventReason::WorkerLeaving, why.clone());
        self.begin_round(RoundCause::Moved, &why);
    }

    /// Workers of a round by recreation that runs are to go, and there is room for them elsewhere. Without room the round
    /// trains on until they are lost.
    fn why_to_move(&self) -> Option<String> {
        let round = self.round().filter(|r| r.agent.is_none() && r.running_since.is_some())?;
        let members = members_of(round);
        let pods = members.iter().filter_map(|i| self.pod(*i)).filter(|p| p.deleting.is_none() && !p.is_ended());
        let going: Vec<&Pod> = pods.filter(|p| self.announced(p).is_some()).collect();
        let announced = going.iter().find_map(|p| self.announced(p))?;
        let fits = self.facts.room.is_some_and(|room| usize::try_from(room).is_ok_and(|room| room >= going.len()));
        fits.then(|| format!("worker {} is to go: {}", going[0].index, announced.why))
    }

    pub(super) fn round(&self) -> Option<&RoundState> {
        self.state.round.as_ref()
    }

    /// Indexes of the members of the present round, ascending.
    pub(super) fn members(&self) -> Vec<u32> {
        if self.is_agent() { self.agent_members() } else { self.round().map(members_of).unwrap_or_default() }
    }

    /// The pod of the present round with this index; of several the one that is further on.
    pub(super) fn pod(&self, index: u32) -> Option<&'a Pod> {
        if self.is_agent() {
            return self.agent_pod(index);
        }
        let generation = self.round()?.generation;
        let from = self.pods.partition_point(|p| p.index < index);
        let same = self.pods[from..].iter().take_while(|p| p.index == index).filter(|p| p.round == generation);
        same.copied().min_by_key(|p| (p.deleting.is_some(), !p.is_ready()))
    }

    /// Adds those who are no workers to these (ascending) indexes, where they are missing. Gives what was added.
    pub(super) fn add_types(&self, members: &mut Vec<u32>) -> Vec<u32> {
        let mut added = Vec::new();
        for index in 0..self.job.types.count() {
            if let Err(at) = members.binary_search(&index) {
                members.insert(at, index);
                added.push(index);
            }
        }
        added
    }

    /// Whether all members are among these pods that are no workers.
    pub(super) fn has_types<'p>(&self, pods: impl Iterator<Item = &'p Pod>) -> bool {
        let types = &self.job.types;
        let there: BTreeSet<u32> = pods.map(|p| p.index).filter(|index| !types.is_worker(*index)).collect();
        u32::try_from(there.len()).is_ok_and(|n| n >= types.count())
    }

    /// How many of these pods, each of another index, could make up a round: none while one is missing that is no worker.
    pub(super) fn usable(&self, pods: &[&Pod]) -> u32 {
        let all = u32::try_from(pods.len()).unwrap_or(u32::MAX);
        if self.has_types(pods.iter().copied()) { all } else { 0 }
    }

    pub(super) fn is_sick(&self, pod: &Pod) -> bool {
        let sick = self.facts.sick_nodes;
        pod.node.as_ref().is_some_and(|n| sick.is_some_and(|s| s.contains(n)))
    }

    /// On a node that is ready and has a fault.
    pub(super) fn is_on_faulty(&self, pod: &Pod) -> bool {
        let faulty = self.facts.faulty_nodes;
        pod.node.as_ref().is_some_and(|n| faulty.is_some_and(|f| f.contains(n)))
    }

    /// What was announced of the end of a pod that is at work.
    pub(super) fn announced(&self, pod: &Pod) -> Option<&'a Announced> {
        self.facts.leaving?.get(&pod.uid)
    }

    pub(super) fn event(&mut self, warning: bool, reason: EventReason, message: String) {
        self.events.push(Event { warning, reason, message });
    }

    pub(super) fn delete(&mut self, pod: &Pod, why: &str) {
        if pod.deleting.is_none() {
            let (name, uid) = (pod.name.clone(), pod.uid.clone());
            self.actions.push(Action::DeletePod { name, uid, why: why.to_owned() });
        }
    }

    pub(super) fn delete_all(&mut self, why: &str) {
        for pod in self.pods.clone() {
            self.delete(pod, why);
        }
    }
}

/// Indexes of the members of a round, ascending; no more than a round can have, whatever the status says.
pub(super) fn members_of(round: &RoundState) -> Vec<u32> {
    let size = usize::try_from(round.size.min(MAX_MEMBERS)).unwrap_or(usize::MAX);
    let gaps: HashSet<u32> = round.gaps.iter().copied().collect();
    (0u32..).filter(|i| !gaps.contains(i)).take(size).collect()
}

/// Adds the lowest free indexes to these (ascending) ones until there are so many. Gives what was added.
pub(super) fn fill_up(all: &mut Vec<u32>, want: usize) -> Vec<u32> {
    if all.len() >= want {
        return Vec::new();
    }
    let there: HashSet<u32> = all.iter().copied().collect();
    let added: Vec<u32> = (0u32..).filter(|i| !there.contains(i)).take(want - all.len()).collect();
    all.extend(&added);
    all.sort_unstable();
    added
}

/// The indexes that are left out below the highest of these (ascending) members.
pub(super) fn gaps_of(members: &[u32]) -> Vec<u32> {
    let end = members.last().map_or(0, |m| m.saturating_add(1).min(MAX_MEMBERS));
    (0..end).filter(|i| members.binary_search(i).is_err()).collect()
}
