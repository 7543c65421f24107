//! How a round ends: success, failure, loss; and what is left to do when the job has ended.

use std::time::Duration;

use super::step::Step;
use super::{Action, EventReason};
use crate::contract::WorkerPhase;
use crate::job::{CleanPods, RestartPolicy};
use crate::observe::{self, Pod};
use crate::state::{ConditionReason, LossClass, Phase, RoundCause};
use crate::time::Time;

/// Back-off after the first failure in a row; doubles with each further one.
const BACKOFF_FIRST: Duration = Duration::from_secs(10);
/// The longest back-off. A round that ran at least this long ends the row.
pub(super) const BACKOFF_CAP: Duration = Duration::from_secs(360);

/// Time to wait before the `attempt`-th try in a row (from 1): 10 s, 20 s, ... at most 6 min.
pub(super) fn backoff(attempt: u32) -> Duration {
    BACKOFF_FIRST.saturating_mul(1 << attempt.saturating_sub(1).min(16)).min(BACKOFF_CAP)
}

/// Why a member of a round is not there any more.
enum Loss<'a> {
    /// Its pod was deleted (by others: the plan deletes none of the present round) or is gone.
    Gone(u32),
    /// Its pod failed, and that was not its own fault.
    Disrupted(&'a Pod),
    /// Its pod failed.
    Failed(&'a Pod),
    /// Its container ran out of memory, and may have more.
    OutOfMemory(&'a Pod),
}

impl Loss<'_> {
    fn class(&self) -> LossClass {
        match self {
            Loss::Gone(_) => LossClass::PodGone,
            Loss::Disrupted(_) => LossClass::Disrupted,
            Loss::Failed(_) => LossClass::PodFailed,
            Loss::OutOfMemory(_) => LossClass::OutOfMemory,
        }
    }
}

impl<'a> Step<'a> {
    /// True if the job has come to its end in this step.
    pub(super) fn ended(&mut self) -> bool {
        if self.has_succeeded() {
            self.end(Phase::Succeeded, ConditionReason::JobSucceeded, "the job has done its work".to_owned());
            return true;
        }
        if let (Some(started), Some(limit)) = (self.state.started_at, self.job.active_deadline) {
            let deadline = started.plus(limit);
            if deadline <= self.now {
                let message = format!("the job was active longer than {} s", limit.as_secs());
                self.end(Phase::Failed, ConditionReason::DeadlineExceeded, message);
                return true;
            }
            self.looks.push(deadline);
        }
        self.state.forget_charges(self.job.elasticity.failure_window, self.now);
        self.charge_restarts();
        self.check_backoff_limit()
    }

    pub(super) fn end(&mut self, phase: Phase, reason: ConditionReason, message: String) {
        self.state.phase = phase;
        self.state.finished_at = Some(self.now);
        self.state.not_before = None;
        self.state.change = None;
        let (warning, event) = match phase {
            Phase::Succeeded => (false, EventReason::JobSucceeded),
            _ => (true, EventReason::JobFailed),
        };
        self.event(warning, event, message.clone());
        self.state.message = Some(message.clone());
        self.set_end_condition(phase, reason, message);
    }

    /// PyTorch, TensorFlow and JAX end with their master (index 0) or their chief, everything else when all workers have. A
    /// pod that is being deleted proves nothing: scripts end with 0 when they are asked to stop.
    pub(super) fn has_succeeded(&self) -> bool {
        if self.is_agent() {
            return self.has_agent_succeeded();
        }
        let done = |p: &Pod| p.phase == WorkerPhase::Succeeded && p.deleting.is_none();
        if let Some(leader) = self.job.leader() {
            return self.pods.iter().any(|p| p.index == leader && done(p));
        }
        let workers: Vec<u32> = self.members().into_iter().filter(|i| self.job.types.is_worker(*i)).collect();
        !workers.is_empty() && workers.iter().all(|i| self.pod(*i).is_some_and(done))
    }

    /// Containers that restarted in place. One fault of one worker makes its peers restart too, so the most restarted
    /// pod of the round says how many faults there were.
    fn charge_restarts(&mut self) {
        // An agent tells how its processes ended, whether its container was started anew for that or not.
        let Some(generation) = self.round().filter(|r| r.agent.is_none()).map(|r| r.generation) else { return };
        let of_round = self.pods.iter().filter(|p| p.round == generation);
        let worst = of_round.max_by_key(|p| p.restarts).copied();
        let most = worst.map_or(0, |p| p.restarts);
        let Some(round) = self.state.round.as_mut().filter(|r| most > r.restarts_charged) else { return };
        let new = most - round.restarts_charged;
        round.restarts_charged = most;
        let class = LossClass::ContainerRestarted;
        self.charge(worst.map_or(class, |p| self.class_of(p, class)), new);
        let who = worst.map_or_else(String::new, |p| {
            let code = p.last_end.as_ref().map_or_else(String::new, |e| format!(" ended with exit code {}", e.code));
            format!(" (worker {}{code})", p.index)
        });
        let message = format!("containers restarted in place{who}; failures charged: {}", self.state.failures);
        self.notes.restarted = true;
        self.notes.failed = worst.map(|p| self.failure(p, None, None));
        self.event(true, EventReason::ContainersRestarted, message);
        self.warn_of_restarted();
    }

    pub(super) fn check_backoff_limit(&mut self) -> bool {
        let (failures, limit) = (self.state.failures, self.job.backoff_limit);
        let window = self.job.elasticity.failure_window;
        let within = window.map_or_else(String::new, |w| format!(" within {} s", w.as_secs()));
        if failures > limit {
            let message = format!("{failures} failures{within} are more than backoffLimit ({limit})");
            self.end(Phase::Failed, ConditionReason::BackoffLimitExceeded, message);
            return true;
        }
        let of_class = |(class, limit): (&LossClass, &u32)| (*class, *limit, self.state.charged(*class));
        let over = self.job.elasticity.failure_limits.iter().map(of_class).find(|(_, limit, n)| n > limit);
        if let Some((class, limit, failures)) = over {
            let message = format!(
                "{failures} failures of the class {class:?}{within} are more than failureLimits has for it ({limit})"
            );
            self.end(Phase::Failed, ConditionReason::FailureLimitExceeded, message);
        }
        over.is_some()
    }

    /// Failures of the job's own.
    pub(super) fn charge(&mut self, class: LossClass, count: u32) {
        self.state.charge(class, count, self.job.elasticity.failure_window, self.now);
    }

    /// A lost member makes a new round: its peers can't go on without it, and it can't join theirs.
    /// True if that was the job's end.
    pub(super) fn replace_lost(&mut self) -> bool {
        let losses = self.losses();
        if losses.is_empty() {
            return false;
        }
        let mut charged = None;
        let mut first = None;
        for loss in &losses {
            let (what, own_fault) = match loss {
                Loss::Gone(index) => (format!("worker {index} was deleted"), false),
                Loss::Disrupted(pod) => (format!("worker {} was disrupted{}", pod.index, because(pod)), false),
                Loss::Failed(pod) => (format!("worker {} failed{}", pod.index, because(pod)), true),
                // It is over when there is enough, or no more.
                Loss::OutOfMemory(pod) => (self.out_of_memory(pod), false),
            };
            if own_fault && charged.is_none() {
                charged = Some(what.clone());
            }
            first.get_or_insert(what);
        }
        let why = charged.clone().or(first).unwrap_or_default();
        let blamed = losses.iter().find(|l| matches!(l, Loss::Failed(_))).or(losses.first());
        self.notes.loss = blamed.map(Loss::class);
        self.notes.failed = blamed.and_then(|loss| match loss {
            Loss::Failed(pod) | Loss::OutOfMemory(pod) => Some(self.failure(pod, None, None)),
            Loss::Gone(_) | Loss::Disrupted(_) => None,
        });
        if let Some(end) = losses.iter().find_map(|l| self.final_exit(l)) {
            self.end(Phase::Failed, ConditionReason::NonRetryableExit, end);
            return true;
        }
        for loss in &losses {
            if let Loss::OutOfMemory(pod) = loss {
                self.grow_memory(pod);
            }
        }
        self.event(charged.is_some(), EventReason::WorkerLost, why.clone());
        if charged.is_some() {
            let pod = if let Some(Loss::Failed(pod)) = blamed { Some(*pod) } else { None };
            self.charge(pod.map_or(LossClass::PodFailed, |p| self.class_of(p, LossClass::PodFailed)), 1);
            if self.check_backoff_limit() {
                return true;
            }
        } else {
            self.state.disruptions = self.state.disruptions.saturating_add(1);
        }
        self.set_back(charged.is_some());
        self.begin_round(RoundCause::WorkerLost, &why);
        false
    }

    /// Losses of the present round, by index.
    fn losses(&self) -> Vec<Loss<'a>> {
        let Some(round) = self.round() else { return Vec::new() };
        let loss = |index: u32| match self.pod(index) {
            None => round.complete.map(|_| Loss::Gone(index)),
            Some(pod) if self.grows_to(pod).is_some() => Some(Loss::OutOfMemory(pod)),
            Some(pod) if pod.phase == WorkerPhase::Failed && is_disruption(pod) => Some(Loss::Disrupted(pod)),
            Some(pod) if pod.phase == WorkerPhase::Failed => Some(Loss::Failed(pod)),
            Some(pod) if pod.deleting.is_some() => Some(Loss::Gone(index)),
            Some(_) => None,
        };
        self.members().into_iter().filter_map(loss).collect()
    }

    /// Sets the back-off after a round that did not go well. A disruption of a round that ran costs no wait.
    pub(super) fn set_back(&mut self, own_fault: bool) {
        let ran = self.round().and_then(|r| r.running_since).map(|since| self.now.since(since));
        if ran.is_some_and(|r| r >= BACKOFF_CAP) {
            self.state.start_attempts = 0;
        }
        if own_fault || ran.is_none() {
            self.state.start_attempts = self.state.start_attempts.saturating_add(1);
            self.state.not_before = Some(self.now.plus(backoff(self.state.start_attempts)));
        }
    }

    /// `ExitCode`: 1 to 127 are final.
    fn final_exit(&self, loss: &Loss<'_>) -> Option<String> {
        match loss {
            Loss::Failed(pod) if self.job.restart == RestartPolicy::ExitCode => {
                let code = pod.exit_code.filter(|c| (1..128).contains(c))?;
                Some(format!("worker {} ended with exit code {code}, which is final", pod.index))
            }
            _ => None,
        }
    }

    /// What is left to do for a job that has ended.
    pub(super) fn clean_up(&mut self) {
        for pod in self.pods.clone() {
            let goes = match self.job.clean_pods {
                CleanPods::None => false,
                CleanPods::Running => !pod.is_ended(),
                CleanPods::All => true,
            };
            if goes {
                self.delete(pod, "the job has ended");
            }
        }
        if let (Some(end), Some(ttl)) = (self.state.finished_at, self.job.ttl_after_finished) {
            let due: Time = end.plus(ttl);
            if due <= self.now {
                self.actions.push(Action::DeleteJob);
            } else {
                self.looks.push(due);
            }
        }
    }
}

pub(super) fn because(pod: &Pod) -> String {
    match (pod.exit_code, &pod.reason) {
        (Some(code), Some(reason)) => format!(" (exit code {code}, {reason})"),
        (Some(code), None) => format!(" (exit code {code})"),
        (None, Some(reason)) => format!(" ({reason})"),
        (None, None) => String::new(),
    }
}

/// Ways of a pod's end that are nobody's fault.
pub(super) fn is_disruption(pod: &Pod) -> bool {
    pod.disrupted || pod.deleting.is_some() || pod.reason.as_deref().is_some_and(observe::is_disruption)
}
