//! The history of a job's members: each step is compared with the state before it, and what has begun or ended since is
//! noted. It is written with the state that has changed anyway.

use std::collections::HashSet;

use eto_membership::{ReplicaTypes, last_lines};

use super::hostname;
use super::memory::OUT_OF_MEMORY;
use super::step::{Step, members_of};
use crate::contract::WorkerPhase;
use crate::job::{JobSpec, RestartPolicy};
use crate::observe::Pod;
use crate::state::{
    ChangeBy, ChangeKind, ChangeOutcome, FailedWorker, HistoryEntry, LossClass, MAX_BEFORE, MAX_HISTORY, MAX_LOGS,
    MAX_NAMES, Phase, ResizeRecord, RoundCause, RoundMember, RoundState,
};
use crate::time::millis;

/// What the rules of one step say of what they do.
#[derive(Debug, Default)]
pub(super) struct Notes {
    /// Why a round began.
    pub(super) why: Option<String>,
    /// With which loss.
    pub(super) loss: Option<LossClass>,
    /// Who failed with it.
    pub(super) failed: Option<FailedWorker>,
    /// Why fewer workers than were aimed at have to do.
    pub(super) refused: Option<String>,
    /// Containers restarted in place.
    pub(super) restarted: bool,
}

impl Step<'_> {
    /// Brings the history up to this step. Planning again on the same facts adds nothing.
    pub(super) fn note_history(&mut self) {
        let notes = std::mem::take(&mut self.notes);
        let now = self.now;
        if self.state.phase.is_terminal() || self.state.phase == Phase::Suspended {
            self.open_entry_mut().into_iter().for_each(|e| e.end(ChangeOutcome::Interrupted, now));
            if self.state.phase != Phase::Suspended {
                self.note_end(notes);
            }
            self.bound();
            return;
        }
        if let Some(round) = self.state.round.clone() {
            match &notes.why {
                Some(why) => self.note_round(&round, why, notes.loss, notes.failed.as_ref()),
                // Taken over from what was published: what was under way is not what goes on.
                None => self.interrupt(round.generation),
            }
            if notes.restarted {
                self.note_restarts(&round, notes.failed);
            }
        }
        if let Some(why) = &notes.refused {
            self.note_refusal(why);
        }
        self.note_done();
        self.bound();
    }

    /// The newest entries are kept, and of these the newest logs.
    fn bound(&mut self) {
        self.state.history.truncate(MAX_HISTORY);
        let logs = self.state.history.iter_mut().filter_map(|e| e.failed.as_mut());
        logs.filter(|f| !f.last_lines.is_empty()).skip(MAX_LOGS).for_each(|f| f.last_lines.clear());
    }

    /// What is known of a worker that failed; `told` is what its agent said of it.
    pub(super) fn failure(&self, pod: &Pod, code: Option<i32>, told: Option<&str>) -> FailedWorker {
        let end = pod.last_end.as_deref();
        let kept = told.filter(|t| !t.is_empty()).or(end.map(|e| e.lines.as_str())).unwrap_or_default();
        FailedWorker {
            pod: pod.name.clone(),
            exit_code: code.or(pod.exit_code).or(end.map(|e| e.code)),
            reason: if self.ran_out(pod) {
                OUT_OF_MEMORY.to_owned()
            } else {
                end.map(|e| e.reason.clone()).or(pod.reason.clone()).unwrap_or_default()
            },
            last_lines: if self.job.elasticity.failure_logs { last_lines(kept) } else { String::new() },
        }
    }

    /// The job has ended in this step.
    fn note_end(&mut self, notes: Notes) {
        let size = self.before.round.as_ref().map_or(0, |r| r.size);
        let entry = HistoryEntry {
            kind: ChangeKind::End,
            by: if notes.loss.is_some() || notes.failed.is_some() { ChangeBy::Loss } else { ChangeBy::Operator },
            loss: notes.loss,
            failed: notes.failed,
            why: self.state.message.clone().unwrap_or_default(),
            from: size,
            generation: self.state.last_generation,
            started: self.now,
            ended: Some(self.now),
            outcome: Some(ChangeOutcome::Done),
            ..HistoryEntry::default()
        };
        self.state.history.insert(0, entry);
    }

    fn open_entry_mut(&mut self) -> Option<&mut HistoryEntry> {
        self.state.history.first_mut().filter(|e| e.is_open())
    }

    /// What is under way for a round of another generation than this has come to nothing.
    fn interrupt(&mut self, generation: u64) {
        let now = self.now;
        if let Some(open) = self.open_entry_mut().filter(|e| e.generation != generation) {
            open.end(ChangeOutcome::Interrupted, now);
        }
    }

    /// A round has begun: a further one of what is under way, or something new.
    fn note_round(&mut self, round: &RoundState, why: &str, loss: Option<LossClass>, failed: Option<&FailedWorker>) {
        let generation = round.generation;
        if self.state.history.first().is_some_and(|e| e.generation == generation) {
            return;
        }
        let mut entry = HistoryEntry { failed: failed.cloned(), ..self.entry(round, why, loss) };
        let open = self.state.history.first().filter(|e| e.is_open()).cloned();
        if let Some(mut open) = open {
            let again = matches!(round.cause, RoundCause::StartTimedOut | RoundCause::GrowthRefused);
            if again || open.kind == entry.kind {
                (open.generation, open.to) = (generation, round.size);
                open.attempts = open.attempts.saturating_add(1);
                open.stopped = open.stopped.or(entry.stopped);
                // The latest loss is what it waits for now.
                if entry.loss.is_some() {
                    (open.loss, open.why) = (entry.loss, entry.why);
                }
                open.failed = entry.failed.or(open.failed);
                add(&mut open.left, entry.left);
                self.state.history[0] = open;
                return;
            }
            // Nothing has trained since it began.
            entry.from = open.from;
            entry.stopped = entry.stopped.or(open.stopped);
            if !open.before.is_empty() {
                entry.before = open.before;
            }
            self.interrupt(generation);
        }
        self.state.history.insert(0, entry);
    }

    fn entry(&self, round: &RoundState, why: &str, loss: Option<LossClass>) -> HistoryEntry {
        let old = self.before.round.as_ref();
        let resize = self.state.last_resize.as_ref().filter(|r| r.done.is_none() && r.to == self.state.target);
        let (kind, by, why, started) = self.reason(round.cause, why, loss, resize);
        let left = old.filter(|r| r.agent.is_none()).map(|r| self.gone_from(r)).unwrap_or_default();
        // In the run of an earlier round nothing of ours is stopped, so there is no pause to measure.
        let goes_on = round.agent.as_ref().and_then(|a| a.native).is_some_and(|n| n.run < round.generation);
        // Of a job with more members it is not kept who they were: the status has to have room for the round.
        let named = old.filter(|r| usize::try_from(r.size).is_ok_and(|n| n <= MAX_BEFORE));
        let mut before = named.map(|r| self.names_of(r)).unwrap_or_default();
        let gone: HashSet<&String> = left.iter().collect();
        before.retain(|name| !gone.contains(name));
        HistoryEntry {
            kind,
            by,
            loss,
            why,
            from: old.map_or(0, |r| r.size),
            to: round.size,
            generation: round.generation,
            attempts: 1,
            started,
            stopped: old.and_then(|r| r.running_since).map(|_| self.now).filter(|_| !goes_on),
            left: left.into_iter().take(MAX_NAMES).collect(),
            before,
            ..HistoryEntry::default()
        }
    }

    /// What kind of change a round of this cause is, whose doing, why, and since when.
    fn reason(
        &self,
        cause: RoundCause,
        why: &str,
        loss: Option<LossClass>,
        resize: Option<&ResizeRecord>,
    ) -> (ChangeKind, ChangeBy, String, crate::time::Time) {
        let now = self.now;
        let in_place = self.job.restart == RestartPolicy::OnFailure;
        let plain = |kind, by| (kind, by, why.to_owned(), now);
        match cause {
            RoundCause::Start | RoundCause::StartTimedOut => plain(ChangeKind::Start, ChangeBy::User),
            RoundCause::Resumed => plain(ChangeKind::Resume, ChangeBy::User),
            RoundCause::TemplateChanged => plain(ChangeKind::Update, ChangeBy::User),
            RoundCause::Hung => plain(ChangeKind::Restart, ChangeBy::Loss),
            RoundCause::WorkerLost if loss == Some(LossClass::ProcessFailed) && in_place => {
                plain(ChangeKind::Restart, ChangeBy::Loss)
            }
            RoundCause::WorkerLost => plain(ChangeKind::Replacement, ChangeBy::Loss),
            RoundCause::Moved => plain(ChangeKind::Replacement, ChangeBy::Operator),
            RoundCause::GrowthRefused => plain(ChangeKind::Resize, ChangeBy::Operator),
            RoundCause::Grow | RoundCause::Shrink => match resize {
                Some(r) => (ChangeKind::Resize, r.by, r.why.clone(), r.decided),
                // The target is what it was: a worker is back in the place of one that was lost.
                None => plain(ChangeKind::Replacement, ChangeBy::Loss),
            },
        }
    }

    /// Names of a round's members; where a pod is gone, the worker's host name.
    fn names_of(&self, round: &RoundState) -> Vec<String> {
        let named = |pod: Option<&&Pod>, index: u32| {
            pod.map_or_else(|| hostname(&self.job.key.name, index), |p| p.name.clone())
        };
        let of_index = |index: u32| {
            let from = self.pods.partition_point(|p| p.index < index);
            self.pods[from..].iter().take_while(move |p| p.index == index)
        };
        if let Some(agent) = &round.agent {
            let of = |m: &RoundMember| of_index(m.index).find(|p| p.uid == m.uid);
            return agent.members.iter().map(|m| named(of(m), m.index)).collect();
        }
        let of = |index: u32| of_index(index).find(|p| p.round == round.generation);
        members_of(round).into_iter().map(|index| named(of(index), index)).collect()
    }

    /// Names of the members of a round by recreation that were lost or are given up.
    fn gone_from(&self, round: &RoundState) -> Vec<String> {
        let lost =
            |pod: &&&Pod| pod.phase == WorkerPhase::Failed || pod.deleting.is_some() || self.grows_to(pod).is_some();
        let given_up = |pod: &&&Pod| self.is_victim(pod);
        let of_round = || self.pods.iter().filter(|p| p.round == round.generation);
        let there: HashSet<u32> = of_round().map(|p| p.index).collect();
        let missing = members_of(round).into_iter().filter(|i| round.complete.is_some() && !there.contains(i));
        let mut gone: Vec<String> = missing.map(|index| hostname(&self.job.key.name, index)).collect();
        gone.extend(of_round().filter(|p| lost(p) || given_up(p)).map(|p| p.name.clone()));
        gone
    }

    /// Containers that restarted in place: no round begins for them.
    fn note_restarts(&mut self, round: &RoundState, failed: Option<FailedWorker>) {
        let now = self.now;
        let loss = Some(LossClass::ContainerRestarted);
        let same = self.state.history.first_mut().filter(|e| e.loss == loss && e.generation == round.generation);
        if let Some(entry) = same {
            entry.attempts = entry.attempts.saturating_add(1);
            (entry.ended, entry.failed) = (Some(now), failed);
            return;
        }
        let entry = HistoryEntry {
            kind: ChangeKind::Restart,
            by: ChangeBy::Loss,
            loss,
            failed,
            why: "containers restarted in place".to_owned(),
            from: round.size,
            to: round.size,
            generation: round.generation,
            attempts: 1,
            started: now,
            ended: Some(now),
            outcome: Some(ChangeOutcome::Done),
            ..HistoryEntry::default()
        };
        // What is under way stays at the head.
        let at = usize::from(self.state.history.first().is_some_and(HistoryEntry::is_open));
        self.state.history.insert(at, entry);
    }

    /// Fewer workers than were aimed at have to do.
    fn note_refusal(&mut self, why: &str) {
        let (now, target) = (self.now, self.state.target);
        if let Some(open) = self.open_entry_mut() {
            open.outcome = Some(ChangeOutcome::Refused);
            open.why = format!("{}; {why}", open.why);
            return;
        }
        let wanted = self.before.last_resize.as_ref().filter(|r| r.done.is_none());
        let from = self.round().map_or(0, |r| r.size);
        let (kind, by, began, started) = match wanted {
            Some(r) => (ChangeKind::Resize, r.by, format!("{}; {why}", r.why), r.decided),
            None => (ChangeKind::Replacement, ChangeBy::Loss, why.to_owned(), now),
        };
        let generation = self.round().map_or(0, |r| r.generation);
        let outcome = Some(ChangeOutcome::Refused);
        let entry = HistoryEntry {
            kind,
            by,
            why: began,
            from,
            to: target,
            generation,
            attempts: 1,
            started,
            ended: Some(now),
            outcome,
            ..HistoryEntry::default()
        };
        self.state.history.insert(0, entry);
    }

    /// All members of the round are at work.
    fn note_done(&mut self) {
        let Some(round) = self.state.round.clone() else { return };
        let Some(since) = round.running_since else { return };
        if self.open_entry_mut().is_none_or(|e| e.generation != round.generation) {
            return;
        }
        let names = self.names_of(&round);
        let job = self.job;
        let lost = [&self.before.change, &self.state.change].into_iter().flatten().find_map(|c| c.steps_lost);
        let Some(entry) = self.open_entry_mut().filter(|e| e.generation == round.generation) else { return };
        if matches!(entry.kind, ChangeKind::Resize | ChangeKind::Replacement | ChangeKind::Restart) {
            if usize::try_from(entry.from).is_ok_and(|n| n <= MAX_BEFORE) {
                let (joined, left) = changed(job, &entry.before, &names, round.agent.is_some());
                add(&mut entry.joined, joined);
                add(&mut entry.left, left);
            }
            entry.steps_lost = lost;
        }
        entry.to = round.size;
        entry.paused_ms = entry.stopped.map(|stopped| millis(since.since(stopped)));
        entry.end(ChangeOutcome::Done, since);
    }
}

/// Index in the job of the member that a pod is, by its name: `<job>-<role>-<index within the role>` and whatever follows.
/// Workers and the master count by their index in the job.
fn member_of(job: &str, types: &ReplicaTypes, pod: &str) -> Option<u32> {
    let rest = pod.strip_prefix(job)?.strip_prefix('-')?;
    let within =
        |role: &str| -> Option<u32> { rest.strip_prefix(role)?.strip_prefix('-')?.split('-').next()?.parse().ok() };
    let mut first = 0;
    for of in &types.0 {
        if let Some(index) = within(&of.name) {
            return Some(index.saturating_add(first));
        }
        first = of.replicas.saturating_add(first);
    }
    within("worker").or_else(|| within("master"))
}

/// Who of `now` was not there before, and who is not there any more. Pods that are made anew for each round are those of the
/// same worker, and who left is told when the round begins.
fn changed(job: &JobSpec, before: &[String], now: &[String], pods_stay: bool) -> (Vec<String>, Vec<String>) {
    if !pods_stay {
        let member = |pod: &String| member_of(&job.key.name, &job.types, pod);
        let was: HashSet<Option<u32>> = before.iter().map(member).collect();
        return (now.iter().filter(|name| !was.contains(&member(name))).cloned().collect(), Vec::new());
    }
    let (was, is): (HashSet<&String>, HashSet<&String>) = (before.iter().collect(), now.iter().collect());
    let joined = now.iter().filter(|name| !was.contains(name)).cloned().collect();
    (joined, before.iter().filter(|name| !is.contains(name)).cloned().collect())
}

/// Adds names that are not there yet, up to the limit.
fn add(names: &mut Vec<String>, more: Vec<String>) {
    for name in more {
        if names.len() < MAX_NAMES && !names.contains(&name) {
            names.push(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use eto_membership::ReplicaType;

    use super::*;

    #[test]
    fn a_member_is_known_by_its_pod_and_by_its_host_name() {
        let of = |name: &str, replicas| ReplicaType { name: name.to_owned(), replicas };
        let plain = |pod| member_of("t-1", &ReplicaTypes::default(), pod);
        assert_eq!(plain("t-1-worker-3-abcde"), Some(3));
        assert_eq!((plain("t-1-master-0-abcde"), plain("t-1-worker-0")), (Some(0), Some(0)));
        let types = ReplicaTypes(vec![of("chief", 1), of("ps", 2)]);
        let typed = |pod: &str| member_of("t-1", &types, pod);
        for (pod, index) in [("chief-0-abcde", 0), ("ps-1-abcde", 2), ("worker-3-abcde", 3), ("worker-2", 2)] {
            assert_eq!(typed(&format!("t-1-{pod}")), Some(index), "{pod}");
        }
        assert_eq!((typed("other-ps-1-abcde"), typed("t-1-ps")), (None, None));
    }
}
