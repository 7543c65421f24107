//! What is known of pods and their agents.

use eto_membership::{MemberRecord, MemberState, SUSPECT_AFTER_MS, neighbours};

use super::super::step::{Step, fill_up};
use crate::contract::WorkerPhase;
use crate::job::RestartPolicy;
use crate::observe::Pod;
use crate::state::{AgentRound, RoundMode, RoundOrder};
use crate::time::Time;

impl<'a> Step<'a> {
    /// To be called when the members of the round have changed.
    pub(in crate::plan) fn note_members(&mut self) {
        self.in_round.clear();
        if let Some(agent) = self.state.round.as_ref().and_then(|r| r.agent.as_ref()) {
            self.in_round.extend(agent.members.iter().map(|m| m.uid.clone()));
        }
    }

    pub(super) fn agent(&self) -> Option<&AgentRound> {
        self.round()?.agent.as_ref()
    }

    pub(super) fn agent_mut(&mut self) -> Option<&mut AgentRound> {
        self.state.round.as_mut()?.agent.as_mut()
    }

    pub(super) fn order(&self) -> RoundOrder {
        self.agent().map_or(RoundOrder::Gather, |a| a.order)
    }

    pub(super) fn generation(&self) -> u64 {
        self.round().map_or(0, |r| r.generation)
    }

    pub(in crate::plan) fn record(&self, pod: &Pod) -> Option<&'a MemberRecord> {
        self.facts.group?.members.get(&pod.uid)
    }

    pub(super) fn is_member(&self, pod: &Pod) -> bool {
        self.in_round.contains(&pod.uid)
    }

    /// The pods of the present round that are there, by index.
    pub(super) fn member_pods(&self) -> Vec<&'a Pod> {
        self.pods.iter().copied().filter(|p| self.is_member(p)).collect()
    }

    /// Those of them that can be in the next round.
    pub(super) fn fit_members(&self) -> Vec<&'a Pod> {
        self.member_pods().into_iter().filter(|p| self.is_fit(p)).collect()
    }

    pub(super) fn is_silent(&self, pod: &Pod) -> bool {
        self.record(pod).is_none_or(|r| r.suspected)
    }

    /// It would have been heard of if it were there: others are, and have been for long enough. A gateway that has just come
    /// back hears one agent before the next.
    pub(super) fn is_missed(&self, pod: &Pod) -> bool {
        let long = |r: &MemberRecord| !r.suspected && self.now.0.saturating_sub(r.joined_ms) >= SUSPECT_AFTER_MS;
        match self.record(pod) {
            Some(record) => record.suspected,
            None => self.facts.group.is_some_and(|g| g.members.values().any(long)),
        }
    }

    /// Whether the gateway brings anything: where all are silent it may be the gateway that is.
    pub(super) fn is_anybody_heard(&self) -> bool {
        self.pods.iter().any(|p| !p.is_ended() && !self.is_silent(p))
    }

    /// On a node that is not ready, and not heard of: two witnesses. A new pod has the time that any agent has to be heard:
    /// a scheduler that has not learnt of the node yet puts the next one there too.
    pub(super) fn is_cut_off(&self, pod: &Pod) -> bool {
        self.is_sick(pod) && self.is_silent(pod) && self.heard_by(pod).is_none_or(|by| by <= self.now)
    }

    /// It is not heard of, and all those beside it in the round who are say that they do not reach it any more: a second
    /// witness, where its node is ready and nobody ends for want of it.
    pub(super) fn is_unreached(&self, pod: &Pod) -> bool {
        let Some(agent) = self.agent().filter(|_| self.is_missed(pod)) else { return false };
        let Some(rank) = agent.members.iter().position(|m| m.uid == pod.uid) else { return false };
        let generation = self.generation();
        let runs = |r: &&MemberRecord| !r.suspected && r.report.state == MemberState::Running { generation };
        let beside = neighbours(rank, agent.members.len()).into_iter();
        let heard = beside.filter_map(|i| self.facts.group?.members.get(&agent.members[i].uid)).filter(runs);
        let says: Vec<bool> = heard.map(|r| r.report.out_of_reach.contains(&pod.uid)).collect();
        !says.is_empty() && says.iter().all(|out| *out)
    }

    /// Until when a pod that was never heard of may come.
    fn heard_by(&self, pod: &Pod) -> Option<Time> {
        self.record(pod).is_none().then(|| Time(pod.created.0.saturating_add(SUSPECT_AFTER_MS)))
    }

    /// The plan is made again when new pods on nodes that are not ready have had their time.
    pub(super) fn look_for_new(&mut self) {
        let due = self.pods.iter().filter(|p| !p.is_ended() && self.is_sick(p)).filter_map(|p| self.heard_by(p));
        let due: Vec<Time> = due.collect();
        self.looks.extend(due);
    }

    pub(super) fn is_leaving(&self, pod: &Pod) -> bool {
        pod.deleting.is_some() || pod.disrupted || self.record(pod).is_some_and(|r| r.report.leaving)
    }

    /// How its processes ended by themselves: generation and code. What a pod that is being stopped tells is no end of
    /// their own.
    pub(super) fn exit_of(&self, pod: &Pod) -> Option<(u64, i32)> {
        let record = self.record(pod).filter(|r| !r.report.leaving && pod.deleting.is_none())?;
        match record.report.state {
            MemberState::Exited { generation, code } => Some((generation, code)),
            _ => None,
        }
    }

    /// Processes were started in it for some round.
    pub(super) fn has_run(&self, pod: &Pod) -> bool {
        self.record(pod).is_some_and(|r| r.report.state != MemberState::Idle)
    }

    /// Its work is done.
    pub(super) fn is_finished(&self, pod: &Pod) -> bool {
        let ended = pod.phase == WorkerPhase::Succeeded && pod.deleting.is_none();
        ended || self.exit_of(pod).is_some_and(|(_, code)| code == 0)
    }

    /// Whether it can be in the next round.
    pub(super) fn is_fit(&self, pod: &Pod) -> bool {
        let Some(round) = self.round() else { return false };
        let from = self.agent().map_or(0, |a| a.pods_from);
        let spent = self.job.restart != RestartPolicy::OnFailure && self.exit_of(pod).is_some_and(|(_, c)| c != 0);
        pod.mode == RoundMode::Agent
            && pod.template_hash == round.template_hash
            && pod.round >= from
            && !pod.is_ended()
            && !spent
            && !self.is_finished(pod)
            && !self.is_leaving(pod)
            && !self.is_cut_off(pod)
            && !self.is_victim(pod)
            && !self.doomed.contains(&pod.uid)
    }

    /// Whether it can be taken into a round that it was not in.
    pub(super) fn has_joined(&self, pod: &Pod) -> bool {
        self.is_fit(pod) && self.record(pod).is_some_and(|r| !r.suspected && !r.report.address.is_empty())
    }

    /// Whether nobody has to be made in its place.
    fn holds_place(&self, pod: &Pod) -> bool {
        self.is_fit(pod) || (self.is_member(pod) && self.is_finished(pod))
    }

    /// One pod for each index that has one which counts, ascending: the member of the round, else the one that is
    /// further on. Who is to go does not count, unless its work is done.
    pub(super) fn workers(&self) -> Vec<&'a Pod> {
        let counts = |p: &Pod| self.holds_place(p) && (self.announced(p).is_none() || self.is_finished(p));
        let mut all: Vec<&'a Pod> = self.pods.iter().copied().filter(|p| counts(p)).collect();
        all.sort_by_cached_key(|p| (p.index, !self.is_member(p), !self.has_joined(p), p.incarnation));
        all.dedup_by_key(|p| p.index);
        all
    }

    /// The pod of this index: of several the one that counts.
    pub(in crate::plan) fn agent_pod(&self, index: u32) -> Option<&'a Pod> {
        let from = self.pods.partition_point(|p| p.index < index);
        let same = self.pods[from..].iter().take_while(|p| p.index == index).copied();
        same.filter(|p| p.mode == RoundMode::Agent)
            .min_by_key(|p| (!self.is_member(p), !self.holds_place(p), !self.has_joined(p), p.incarnation))
    }

    /// Indexes of the members, ascending; while they are not chosen, those that are to be.
    pub(in crate::plan) fn agent_members(&self) -> Vec<u32> {
        if let Some(agent) = self.agent().filter(|a| !a.members.is_empty()) {
            let mut all: Vec<u32> = agent.members.iter().map(|m| m.index).collect();
            all.sort_unstable();
            return all;
        }
        let mut all: Vec<u32> = self.workers().iter().map(|p| p.index).collect();
        self.fill_up(&mut all);
        all
    }

    /// Adds those who are no workers to these (ascending) indexes, and then the lowest free ones up to the target. Gives
    /// what was added.
    pub(super) fn fill_up(&self, all: &mut Vec<u32>) -> Vec<u32> {
        let mut added = self.add_types(all);
        added.extend(fill_up(all, usize::try_from(self.state.target).unwrap_or(usize::MAX)));
        added
    }

    /// The job's template is not the one that the round's pods are of.
    pub(super) fn has_other_template(&self) -> bool {
        let hash = self.job.template.as_ref().map(|t| &t.hash);
        self.round().is_some_and(|r| hash.is_some_and(|h| *h != r.template_hash))
    }
}

/// A number of things as sizes are counted.
pub(super) fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
