//! The conditions of a job's life, for people. Messages say nothing that changes while the facts stay, so that a
//! status is not written for its words.

use super::budget::{gone_from, idle_from};
use super::step::Step;
use crate::conditions::{merge, new};
use crate::contract::WorkerPhase;
use crate::observe::Pod;
use crate::state::{ChangeStep, Condition, ConditionKind as Kind, ConditionReason as Why, Phase, RoundCause};

impl Step<'_> {
    /// Sets all conditions but those of scaling, for the state as it is now.
    pub(super) fn tell(&mut self) {
        let now = self.now;
        let mut all = vec![self.created()];
        if self.state.phase.is_terminal() {
            all.push(new(Kind::Running, false, Why::NotRunning, "the job has ended", now));
            all.push(new(Kind::Resizing, false, Why::NoResize, "the job has ended", now));
            all.push(new(Kind::Restarting, false, Why::NotRestarting, "the job has ended", now));
        } else {
            all.push(self.scheduled());
            all.push(self.running());
            all.push(self.resizing());
            all.push(self.restarting());
            all.push(self.suspended());
            all.push(self.agent_rounds());
            all.extend(self.template_applied());
        }
        merge(&mut self.state.conditions, all);
        self.looks.extend(idle_from(&self.state));
        self.looks.extend(self.pods.iter().filter_map(|p| gone_from(p)).filter(|at| *at > now).min());
    }

    pub(super) fn set_end_condition(&mut self, phase: Phase, reason: Why, message: String) {
        let kind = if phase == Phase::Succeeded { Kind::Succeeded } else { Kind::Failed };
        let condition = new(kind, true, reason, message, self.now);
        merge(&mut self.state.conditions, vec![condition]);
    }

    fn created(&self) -> Condition {
        if self.job.template.is_none() {
            let message = "spec.template is missing: the job waits until it is set";
            return new(Kind::Created, true, Why::TemplateMissing, message, self.now);
        }
        new(Kind::Created, true, Why::JobCreated, "the job was accepted", self.now)
    }

    fn scheduled(&self) -> Condition {
        let no = |reason, message: String| new(Kind::Scheduled, false, reason, message, self.now);
        let Some(round) = self.round() else {
            return match (self.job.suspend, self.job.template.is_none()) {
                (true, _) => no(Why::SuspendedByUser, "the job is suspended".to_owned()),
                (_, true) => no(Why::TemplateMissing, "spec.template is missing".to_owned()),
                _ => no(Why::WaitingForPods, "there are no pods yet".to_owned()),
            };
        };
        if let Some(message) = &self.refusal {
            return no(Why::PodsRefused, format!("pods were refused: {message}"));
        }
        if let Some(message) = self.facts.failing.filter(|_| round.complete.is_none()) {
            return no(Why::PodsNotCreated, format!("pods can't be created, it is tried again: {message}"));
        }
        let pods: Vec<&Pod> = self.members().into_iter().filter_map(|i| self.pod(i)).collect();
        if let Some(why) = pods.iter().find_map(|p| p.unschedulable.as_deref().filter(|_| p.node.is_none())) {
            return no(Why::PodsUnschedulable, format!("a worker finds no node: {why}"));
        }
        // A refusal is known in the step that it happened in; it is told until the pods are there, of a round or of those who
        // are to take over in it.
        let before = self.state.conditions.iter().find(|c| c.kind == Kind::Scheduled && c.reason == Why::PodsRefused);
        let change = self.state.change.as_ref().filter(|c| c.cause == RoundCause::Moved);
        let makes_pods = round.complete.is_none() || change.is_some_and(|c| c.step == ChangeStep::CreatingPods);
        if let Some(before) = before.filter(|_| makes_pods) {
            return no(Why::PodsRefused, before.message.clone());
        }
        if round.complete.is_some() && pods.iter().all(|p| p.node.is_some() || p.phase != WorkerPhase::Pending) {
            return new(Kind::Scheduled, true, Why::AllScheduled, "all workers have a node", self.now);
        }
        no(Why::WaitingForPods, "not all workers have a node yet".to_owned())
    }

    fn running(&self) -> Condition {
        let (reason, message) = match self.state.phase {
            Phase::Running => (Why::AllReady, "all workers are at work"),
            Phase::Suspended => (Why::SuspendedByUser, "the job is suspended"),
            _ => self.waits_for(),
        };
        new(Kind::Running, reason == Why::AllReady, reason, message, self.now)
    }

    /// What keeps a round from running. Each has a reason of its own: for another message alone no status is written.
    fn waits_for(&self) -> (Why, &str) {
        if self.is_agent() && self.facts.agent.gateway && self.facts.group.is_none() {
            let message = "what the agents of its pods told is not known: the operator does not reach its etcd";
            return (Why::GatewayNotReached, message);
        }
        let pods = self.members().into_iter().filter_map(|i| self.pod(i));
        match pods.filter(|p| !p.is_ready()).find_map(|p| p.waiting.as_deref()) {
            Some(waiting) => (Why::ContainersWaiting, waiting),
            None if self.state.not_before.is_some() => (Why::BackOff, "the next try waits for its back-off"),
            None => (Why::WaitingForPods, "not all workers are ready"),
        }
    }

    fn resizing(&self) -> Condition {
        let round = self.round();
        let resize = self.state.last_resize.as_ref();
        match resize {
            Some(r) if r.done.is_none() && round.is_some() => {
                let message = format!("from {} to {}", r.from, r.to);
                new(Kind::Resizing, true, Why::ResizeStarted, message, self.now)
            }
            Some(r) if r.refused => {
                let message = format!("{} workers could not all start; the size is {}", r.from, r.to);
                new(Kind::Resizing, false, Why::GrowthRefused, message, self.now)
            }
            Some(r) => {
                let message = format!("from {} to {}", r.from, r.to);
                new(Kind::Resizing, false, Why::ResizeDone, message, self.now)
            }
            None => new(Kind::Resizing, false, Why::NoResize, "the size has not changed", self.now),
        }
    }

    fn restarting(&self) -> Condition {
        let waits = self.round().filter(|r| r.running_since.is_none());
        let (status, reason, message) = match waits.map(|r| r.cause) {
            Some(RoundCause::WorkerLost) => (true, Why::WorkerLost, "a worker was lost; a new round starts"),
            Some(RoundCause::Hung) => (true, Why::Hung, "no progress was made any more; a new round starts"),
            Some(RoundCause::StartTimedOut) => {
                (true, Why::StartTimedOut, "the workers could not all start; they are tried again together")
            }
            _ if self.round().is_some_and(|r| matches!(r.cause, RoundCause::WorkerLost | RoundCause::Hung)) => {
                (false, Why::Recovered, "all workers are back")
            }
            _ => (false, Why::NotRestarting, "no worker was lost"),
        };
        new(Kind::Restarting, status, reason, message, self.now)
    }

    /// Nothing while the template was always applied as it is written.
    fn template_applied(&self) -> Option<Condition> {
        let told = |status, reason, message: String| new(Kind::TemplateApplied, status, reason, message, self.now);
        let overridden = &self.job.template.as_ref()?.overridden;
        if !overridden.is_empty() {
            let message = format!("the template sets {}; each round's own values are used", overridden.join(", "));
            return Some(told(false, Why::RankVariablesOverridden, message));
        }
        let before = self.state.conditions.iter().any(|c| c.kind == Kind::TemplateApplied);
        before.then(|| told(true, Why::TemplateAsWritten, "pods are made as the template says".to_owned()))
    }

    fn suspended(&self) -> Condition {
        if self.state.phase == Phase::Suspended {
            return new(Kind::Suspended, true, Why::SuspendedByUser, "spec.suspend is true", self.now);
        }
        new(Kind::Suspended, false, Why::NotSuspended, "spec.suspend is false", self.now)
    }
}
