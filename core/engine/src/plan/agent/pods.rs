//! Which pods there are to be, whatever round they are in.

use std::collections::HashSet;

use eto_membership::{MemberState, Order};

use super::super::step::Step;
use super::super::{Action, ImageCommand, NewPod, PodEnv};
use super::orders::Begin;
use crate::observe::Pod;
use crate::state::{RoundCause, RoundMode, RoundOrder};
use crate::time::millis;

impl<'a> Step<'a> {
    /// While members are gathered nobody is told to stop. What trains then is of a round that a lost status has forgotten:
    /// before a pod of it goes, all of them stop, for a round of nobody.
    pub(super) fn stop_forgotten(&mut self) {
        if self.order() != RoundOrder::Gather || !self.left_over().1.into_iter().any(|p| self.is_forgotten(p)) {
            return;
        }
        let Some(round) = self.state.round.clone() else { return };
        let why = round.agent.map(|a| a.why).unwrap_or_default();
        let grace_ms = millis(self.job.elasticity.drain_deadline);
        self.begin_agent_round(&[], Begin { cause: round.cause, why: &why, grace_ms, charged: false });
    }

    /// Something runs in it by its agent's word, and no order to stop was given since: the agent follows one when it is told.
    pub(super) fn is_forgotten(&self, pod: &Pod) -> bool {
        let stops = |of: u64| {
            let published = self.facts.group.and_then(|g| g.assignment.as_ref());
            published.is_some_and(|a| a.order != Order::Run && a.round.generation > of)
        };
        let runs = self.record(pod).is_some_and(|r| match r.report.state {
            MemberState::Running { generation } => !r.suspected && !stops(generation),
            _ => false,
        });
        runs && !pod.is_ended() && pod.deleting.is_none()
    }

    /// Pods that are no members and of no use to a round: those in which something is to stop, and the others.
    fn left_over(&self) -> (Vec<&'a Pod>, Vec<&'a Pod>) {
        let works: HashSet<&str> = self.workers().iter().map(|w| w.uid.as_str()).collect();
        let stopping: HashSet<&String> = self.agent().into_iter().flat_map(|a| &a.stopping).collect();
        let works = |p: &Pod| works.contains(p.uid.as_str());
        let left = self.pods.iter().copied().filter(|p| !self.is_member(p) && !works(p));
        left.partition(|p| stopping.contains(&p.uid) && !p.is_ended())
    }

    /// Deletes pods that no round can use, and makes those that are missing.
    pub(super) fn keep_pods(&mut self) {
        self.look_for_new();
        let (stopping, useless) = self.left_over();
        let given_up = self.victim_reasons();
        for pod in &useless {
            let named = given_up.get(&pod.uid);
            let why = named.map_or_else(|| "no round can use it".to_owned(), |why| format!("given up: {why}"));
            self.doom(pod);
            self.delete(pod, &why);
        }
        let other = self.round().map(|r| r.template_hash.clone()).unwrap_or_default();
        let stranger = |p: &&&Pod| p.mode != RoundMode::Agent || p.template_hash != other || self.is_released(p);
        let mut strangers: Vec<&Pod> = useless.iter().filter(stranger).copied().collect();
        strangers.extend(stopping.iter().filter(stranger).copied());
        if strangers.iter().any(|p| self.is_waited_for(p)) {
            return;
        }
        self.create_missing();
    }

    /// No round takes it in any more, whatever becomes of what made it useless: a node that comes back, another pod of its
    /// index that is lost, a template that is set back. A leader that stood still may carry the deletion out when another
    /// leads, and nothing in the API server would keep it from that.
    fn doom(&mut self, pod: &Pod) {
        let stays_useless = pod.deleting.is_some() || pod.is_ended() || self.is_victim(pod) || self.is_released(pod);
        if !stays_useless && self.doomed.insert(pod.uid.clone()) {
            self.state.deleting.push(pod.uid.clone());
        }
    }

    /// New pods wait until it is known what they run, and the others train; where that will not be known, all of them go
    /// on by recreation.
    fn miss_command(&mut self) {
        let cause = self.round().map(|r| r.cause).filter(|_| self.facts.group.is_some());
        match (self.facts.image, cause) {
            (ImageCommand::Unread, Some(cause)) => {
                self.begin_recreation(cause, "the image's command, which an agent needs, is not read any more");
            }
            _ => self.wants_image = true,
        }
    }

    /// Members have left before others could take over: these come when there is room, or quota, for them. Nobody waits for
    /// what a dead node still holds.
    fn is_making_room(&mut self) -> bool {
        if self.round().is_none_or(|r| r.cause != RoundCause::Moved) {
            return false;
        }
        let go: Vec<&Pod> = self.pods.iter().copied().filter(|p| self.is_victim(p) && !self.is_cut_off(p)).collect();
        go.into_iter().any(|p| self.is_waited_for(p))
    }

    fn is_released(&self, pod: &Pod) -> bool {
        self.agent().is_some_and(|a| pod.round < a.pods_from)
    }

    fn create_missing(&mut self) {
        if self.job.template.is_none() || self.has_other_template() || self.is_making_room() {
            return;
        }
        let mut indexes: Vec<u32> = self.workers().iter().map(|p| p.index).collect();
        let missing = self.fill_up(&mut indexes);
        if missing.is_empty() {
            return;
        }
        if !self.has_command() {
            self.miss_command();
            return;
        }
        if let Some(later) = self.state.not_before.filter(|t| *t > self.now) {
            self.looks.push(later);
            return;
        }
        let (round, size) = (self.generation(), self.state.target);
        let memory = self.round().and_then(|r| self.memory(&r.template_hash));
        self.actions.push(Action::EnsureService);
        for index in missing {
            let node = self.place(index);
            let memory = memory.filter(|_| self.job.types.is_worker(index));
            let from = self.pods.partition_point(|p| p.index < index);
            let of_index = self.pods[from..].iter().take_while(|p| p.index == index);
            let incarnation = of_index.map(|p| p.incarnation).max().unwrap_or(0).saturating_add(1);
            let mode = RoundMode::Agent;
            self.actions.push(Action::CreatePod(NewPod {
                index,
                round,
                size,
                incarnation,
                mode,
                env: PodEnv::default(),
                node,
                memory,
            }));
        }
    }
}
