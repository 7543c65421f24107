//! Members that are lost, and what follows: the others go on at once, or wait for a replacement.

use std::collections::HashSet;

use eto_membership::{LOSS_GRACE_MS, MemberState};

use super::super::EventReason;
use super::super::outcome::{BACKOFF_CAP, backoff, because, is_disruption};
use super::super::step::Step;
use super::facts::count;
use super::orders::Begin;
use super::{SILENT_AFTER_MS, STOP_MARGIN_MS};
use crate::contract::WorkerPhase;
use crate::guard::sizes;
use crate::job::RestartPolicy;
use crate::observe::Pod;
use crate::state::{ConditionReason, FailedWorker, LossClass, Phase, RoundCause, RoundMember, RoundOrder};
use crate::time::{Time, millis};

/// Why a member can't go on in its round.
#[derive(Clone, Copy, Debug)]
pub(super) enum Loss<'a> {
    /// Its pod is gone.
    Gone(u32),
    /// Its pod is being stopped, and its processes may yet write a checkpoint.
    Leaving(&'a Pod),
    /// Its pod failed, and that was not its own fault.
    Disrupted(&'a Pod),
    /// Its pod failed.
    Failed(&'a Pod),
    /// Its container ran out of memory, and may have more.
    OutOfMemory(&'a Pod),
    /// Its node is not ready and its agent is not heard of.
    CutOff(&'a Pod),
    /// It is not heard of, and those beside it do not reach it.
    Unreached(&'a Pod),
    /// Its processes ended with this code.
    Exited(&'a Pod, i32),
    /// Its work was done before this round began.
    Finished(&'a Pod),
    /// It is not heard of, and all others wait for it.
    Silent(&'a Pod),
    /// It did not start its processes in time.
    NotStarted(&'a Pod),
}

impl<'a> Loss<'a> {
    pub(super) fn index(&self) -> u32 {
        match self {
            Loss::Gone(index) => *index,
            _ => self.pod().map_or(0, |p| p.index),
        }
    }

    fn pod(&self) -> Option<&'a Pod> {
        match self {
            Loss::Gone(_) => None,
            Loss::Leaving(p)
            | Loss::Disrupted(p)
            | Loss::Failed(p)
            | Loss::OutOfMemory(p)
            | Loss::CutOff(p)
            | Loss::Unreached(p)
            | Loss::Exited(p, _)
            | Loss::Finished(p)
            | Loss::Silent(p)
            | Loss::NotStarted(p) => Some(p),
        }
    }

    fn is_own_fault(&self) -> bool {
        matches!(self, Loss::Failed(_) | Loss::Exited(..) | Loss::NotStarted(_))
    }

    /// It can still be asked to stop in its own time.
    fn is_orderly(&self) -> bool {
        matches!(self, Loss::Leaving(_) | Loss::Finished(_))
    }

    fn class(&self) -> LossClass {
        match self {
            Loss::Gone(_) => LossClass::PodGone,
            Loss::Leaving(_) => LossClass::PodStopped,
            Loss::Disrupted(_) => LossClass::Disrupted,
            Loss::Failed(_) => LossClass::PodFailed,
            Loss::OutOfMemory(_) => LossClass::OutOfMemory,
            Loss::CutOff(_) => LossClass::NodeLost,
            Loss::Exited(..) => LossClass::ProcessFailed,
            Loss::Finished(_) => LossClass::Finished,
            Loss::Silent(_) | Loss::Unreached(_) => LossClass::NotHeard,
            Loss::NotStarted(_) => LossClass::NotStarted,
        }
    }

    fn what(&self) -> String {
        match self {
            Loss::Gone(index) => format!("worker {index} is gone"),
            Loss::Leaving(p) => format!("worker {} is being stopped", p.index),
            Loss::Disrupted(p) => format!("worker {} was disrupted{}", p.index, because(p)),
            Loss::Failed(p) => format!("worker {} failed{}", p.index, because(p)),
            Loss::OutOfMemory(p) => format!("worker {} ran out of memory", p.index),
            Loss::CutOff(p) => format!("worker {} is not heard of and its node is not ready", p.index),
            Loss::Unreached(p) => {
                format!("worker {} is not heard of, and the workers beside it do not reach it any more", p.index)
            }
            Loss::Exited(p, code) => format!("the processes of worker {} ended with exit code {code}", p.index),
            Loss::Finished(p) => format!("worker {} has done its work", p.index),
            Loss::Silent(p) => format!("worker {} is not heard of and keeps all others waiting", p.index),
            Loss::NotStarted(p) => format!("worker {} did not start in time", p.index),
        }
    }
}

impl<'a> Step<'a> {
    /// A round whose members are not all there any more ends. True if that was the job's end.
    pub(super) fn lose(&mut self) -> bool {
        let losses = self.agent_losses();
        if losses.is_empty() {
            return false;
        }
        // Where somebody was lost through nobody's fault, the others' processes failed for that, unless they go on without
        // each other: then each failure is one.
        let alone = self.is_alone() && self.order() == RoundOrder::Run && self.is_noticed(&losses);
        let (mut own, free): (Vec<&Loss>, Vec<&Loss>) = losses.iter().partition(|l| l.is_own_fault());
        if !alone {
            own.truncate(usize::from(free.is_empty()));
        }
        let charged = !own.is_empty();
        let blamed = own.first().or(free.first()).copied();
        let why = blamed.map(|l| self.what(l)).unwrap_or_default();
        self.notes.loss = blamed.map(Loss::class);
        self.notes.failed = blamed.and_then(|l| self.failure_of(l));
        if let Some(end) = losses.iter().find_map(|l| self.is_final(l)) {
            self.end(Phase::Failed, ConditionReason::NonRetryableExit, end);
            return true;
        }
        self.event(charged, EventReason::WorkerLost, why.clone());
        // What fails while all stop for a failure goes with it.
        let same = charged && self.agent().is_some_and(|a| a.charged && a.order == RoundOrder::Stop);
        if same {
            self.replace(&losses, &why, charged);
            return false;
        }
        for loss in own {
            let class = loss.pod().map_or(loss.class(), |pod| self.class_of(pod, loss.class()));
            self.charge(class, 1);
        }
        if charged && self.check_backoff_limit() {
            return true;
        }
        if !free.is_empty() {
            self.state.disruptions = self.state.disruptions.saturating_add(1);
            if !alone {
                self.take_back_charge();
            }
        }
        self.set_back_processes(charged);
        self.replace(&losses, &why, charged);
        false
    }

    fn what(&self, loss: &Loss<'a>) -> String {
        match loss {
            Loss::OutOfMemory(pod) => self.out_of_memory(pod),
            _ => loss.what(),
        }
    }

    /// What is known of a worker that failed by itself.
    fn failure_of(&self, loss: &Loss<'a>) -> Option<FailedWorker> {
        let told = |pod: &Pod| self.record(pod).map(|r| r.report.last_lines.as_str());
        match loss {
            Loss::Failed(pod) => Some(self.failure(pod, None, told(pod))),
            Loss::OutOfMemory(pod) => Some(self.failure(pod, self.exit_of(pod).map(|(_, code)| code), told(pod))),
            Loss::Exited(pod, code) => Some(self.failure(pod, Some(*code), told(pod))),
            _ => None,
        }
    }

    /// The failure that this round began with turns out to be what the loss of another member did to its peers.
    fn take_back_charge(&mut self) {
        let began =
            self.round().is_some_and(|r| r.running_since.is_none() && r.agent.as_ref().is_some_and(|a| a.charged));
        if began {
            self.state.take_back_charge();
        }
    }

    /// A failure was charged, and it turns out that somebody who is in no round any more was lost, who trained with those
    /// who failed.
    pub(super) fn excuse(&mut self) {
        let Some(agent) = self.agent().filter(|a| a.charged && a.order == RoundOrder::Stop) else { return };
        let pod = |uid: &String| self.pods.iter().find(|p| p.uid == *uid);
        let lost = |uid: &String| pod(uid).is_none_or(|p| self.is_cut_off(p) || (p.is_ended() && is_disruption(p)));
        let member = |uid: &String| agent.members.iter().any(|m| m.uid == *uid);
        if agent.stopping.iter().any(|uid| !member(uid) && lost(uid)) {
            self.take_back_charge();
            self.state.disruptions = self.state.disruptions.saturating_add(1);
            if let Some(agent) = self.agent_mut() {
                agent.charged = false;
            }
        }
    }

    /// Processes that fail once start again at once; those that fail again wait longer each time. What is free costs a round
    /// that ran no wait, also where those who were to join it had one.
    pub(super) fn set_back_processes(&mut self, charged: bool) {
        let ran = self.round().and_then(|r| r.running_since).map(|since| self.now.since(since));
        if ran.is_some_and(|r| r >= BACKOFF_CAP) {
            self.state.start_attempts = 0;
        }
        if charged {
            self.state.start_attempts = self.state.start_attempts.saturating_add(1);
            let again = self.state.start_attempts.saturating_sub(1);
            self.state.not_before = (again > 0).then(|| self.now.plus(backoff(again)));
        } else if ran.is_some() {
            self.state.not_before = None;
        }
    }

    /// Begins the round of those who are left, and of those who wait to join.
    fn replace(&mut self, losses: &[Loss<'a>], why: &str, charged: bool) {
        let in_place = self.job.restart == RestartPolicy::OnFailure;
        let is_out = |loss: &Loss<'a>| !matches!(loss, Loss::Exited(..)) || !in_place;
        let out: HashSet<&str> =
            losses.iter().filter(|l| is_out(l)).filter_map(Loss::pod).map(|p| p.uid.as_str()).collect();
        for loss in losses {
            if let Loss::OutOfMemory(pod) = loss {
                self.grow_memory(pod);
            }
            if let Loss::Silent(pod)
            | Loss::Unreached(pod)
            | Loss::NotStarted(pod)
            | Loss::Failed(pod)
            | Loss::Disrupted(pod)
            | Loss::OutOfMemory(pod) = loss
            {
                self.name_victim(pod, pod.index, &loss.what());
            }
        }
        let fit = |p: &&Pod| self.is_fit(p) && !out.contains(p.uid.as_str());
        let left: Vec<&Pod> = self.member_pods().into_iter().filter(fit).collect();
        let grace_ms = if losses.iter().all(Loss::is_orderly) {
            millis(self.job.elasticity.drain_deadline)
        } else {
            LOSS_GRACE_MS
        };
        // With nobody left, the round is an empty one as long as something has to stop for it.
        let before = self.agent().cloned().unwrap_or_default();
        if left.is_empty() && self.to_be_stopped(&before).is_empty() {
            self.gather_again(RoundCause::WorkerLost, why);
            return;
        }
        let begin = Begin { cause: RoundCause::WorkerLost, why, grace_ms, charged };
        // Where members are started alone, who is done with its part has done it for good.
        let done = |p: &&Pod| self.is_alone() && self.is_finished(p);
        let mut going_on = left.clone();
        going_on.extend(self.member_pods().into_iter().filter(done));
        let going_on = self.with_joined(going_on);
        if !(self.is_noticed(losses) && self.go_on_natively(&going_on, begin)) {
            let members = self.with_joined(left);
            self.begin_agent_round(&members, begin);
        }
    }

    /// These members, and those who wait to join, as many as the target allows; no more than make a legal size. A member
    /// that is to go gives its place to one who has come, and workers make room for who is none.
    pub(super) fn with_joined(&self, members: Vec<&'a Pod>) -> Vec<&'a Pod> {
        let want = count(members.len()).max(self.state.target);
        let (mut all, mut going): (Vec<&Pod>, Vec<&Pod>) =
            members.into_iter().partition(|m| self.announced(m).is_none());
        let extra = self.workers().into_iter().filter(|p| !self.is_member(p) && self.has_joined(p));
        let taken: HashSet<u32> = all.iter().map(|m| m.index).collect();
        let extra: Vec<&Pod> = extra.filter(|p| !taken.contains(&p.index)).collect();
        let came: HashSet<u32> = extra.iter().map(|p| p.index).collect();
        going.retain(|g| !came.contains(&g.index));
        all.extend(extra);
        all.extend(going);
        all.sort_by_key(|p| self.job.types.is_worker(p.index));
        let most = want.min(count(all.len()));
        let size = sizes::at_most(self.job, most).unwrap_or(most);
        all.truncate(usize::try_from(size).unwrap_or(usize::MAX));
        all.sort_by_key(|p| p.index);
        all
    }

    /// Losses of the present round, by rank.
    pub(super) fn agent_losses(&self) -> Vec<Loss<'a>> {
        let Some(agent) = self.agent().filter(|a| a.order != RoundOrder::Gather) else { return Vec::new() };
        let heard = self.is_anybody_heard();
        let starting = self.round().is_some_and(|r| r.running_since.is_none());
        let waited_for = (heard && starting).then(|| agent.stopping.iter().map(String::as_str).collect());
        agent.members.iter().filter_map(|m| self.loss(m, waited_for.as_ref())).collect()
    }

    fn of(&self, member: &RoundMember) -> Option<&'a Pod> {
        let from = self.pods.partition_point(|p| p.index < member.index);
        self.pods[from..].iter().take_while(|p| p.index == member.index).find(|p| p.uid == member.uid).copied()
    }

    /// `waited_for`: UIDs of the pods that are to stop, while a round starts and some of its members are heard of.
    fn loss(&self, member: &RoundMember, waited_for: Option<&HashSet<&str>>) -> Option<Loss<'a>> {
        let Some(pod) = self.of(member) else { return Some(Loss::Gone(member.index)) };
        if self.grows_to(pod).is_some() {
            return Some(Loss::OutOfMemory(pod));
        }
        if pod.phase == WorkerPhase::Failed {
            return Some(if is_disruption(pod) { Loss::Disrupted(pod) } else { Loss::Failed(pod) });
        }
        if self.is_cut_off(pod) {
            return Some(Loss::CutOff(pod));
        }
        if self.order() == RoundOrder::Run && self.is_unreached(pod) {
            return Some(Loss::Unreached(pod));
        }
        if self.is_finished(pod) {
            // In its last round it is done with its part; it can't have one in a round that it did not start in.
            let from = self.agent().and_then(|a| a.native).filter(|n| n.alone).map_or(self.generation(), |n| n.run);
            let of_this = self.exit_of(pod).is_none_or(|(of, _)| of >= from);
            return (self.order() == RoundOrder::Stop || !of_this).then_some(Loss::Finished(pod));
        }
        if self.is_leaving(pod) {
            return Some(Loss::Leaving(pod));
        }
        if self.order() == RoundOrder::Run
            && let Some((of, code)) = self.exit_of(pod)
            && (of == self.generation() || self.is_left_stopped(pod))
        {
            return Some(Loss::Exited(pod, code));
        }
        self.late(pod, waited_for?)
    }

    /// A member that keeps the others waiting beyond a deadline.
    fn late(&self, pod: &'a Pod, waited_for: &HashSet<&str>) -> Option<Loss<'a>> {
        let agent = self.agent()?;
        let since = agent.in_force?;
        let passed = |ms: u64| Time(since.0.saturating_add(ms)) <= self.now;
        match agent.order {
            RoundOrder::Gather => None,
            RoundOrder::Stop => {
                let waited_for = waited_for.contains(pod.uid.as_str()) && !self.has_stopped(pod);
                let late = passed(agent.grace_ms.saturating_add(STOP_MARGIN_MS));
                (late && waited_for && self.is_missed(pod)).then_some(Loss::Silent(pod))
            }
            RoundOrder::Run => {
                let runs = self.record(pod).is_some_and(|r| {
                    matches!(r.report.state, MemberState::Running { generation } if generation == self.generation())
                });
                if runs {
                    None
                } else if passed(SILENT_AFTER_MS) && self.is_missed(pod) {
                    Some(Loss::Silent(pod))
                } else {
                    passed(millis(self.job.elasticity.start_deadline)).then_some(Loss::NotStarted(pod))
                }
            }
        }
    }

    /// PyTorch, TensorFlow and JAX end with their chief, or with index 0 or their coordinator (rank 0) where there are
    /// workers alone; everything else when all workers have.
    pub(in crate::plan) fn has_agent_succeeded(&self) -> bool {
        let Some(agent) = self.agent() else { return false };
        let done = |m: &RoundMember| self.of(m).is_some_and(|p| self.is_finished(p));
        let types = &self.job.types;
        if let Some(leader) = self.job.leader() {
            let leads = |rank: usize, m: &RoundMember| m.index == leader || (rank == 0 && types.is_empty());
            return agent.members.iter().enumerate().any(|(rank, m)| leads(rank, m) && done(m));
        }
        let mut workers = agent.members.iter().filter(|m| types.is_worker(m.index)).peekable();
        workers.peek().is_some() && workers.all(done)
    }

    /// `ExitCode`: 1 to 127 are final.
    fn is_final(&self, loss: &Loss<'_>) -> Option<String> {
        let code = match loss {
            Loss::Failed(pod) => pod.exit_code?,
            Loss::Exited(_, code) => *code,
            _ => return None,
        };
        let ends = self.job.restart == RestartPolicy::ExitCode && (1..128).contains(&code);
        let index = loss.index();
        ends.then(|| format!("worker {index} ended with exit code {code}, which is final"))
    }
}
