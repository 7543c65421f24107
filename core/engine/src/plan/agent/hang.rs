//! Members whose processes live, and do nothing any more.

use std::time::Duration;

use eto_membership::{Group, MemberRecord, MemberState};

use super::super::EventReason;
use super::super::step::Step;
use super::orders::Begin;
use crate::observe::Pod;
use crate::state::{AgentRound, JobState, LossClass, RoundCause, RoundOrder, RoundState};
use crate::time::{Time, millis};

/// The shortest time without progress that counts as a hang: progress is written to the group every 10 s at most, and
/// may be late by as much again.
const HANG_TIMEOUT_MIN: Duration = Duration::from_secs(30);

/// Before the first progress of a round this many times the hang timeout passes, and no less than so long, where the job
/// says nothing else: processes start, load their data and their checkpoint, and compile.
const START_FACTOR: u32 = 3;
const START_TIMEOUT_MIN: Duration = Duration::from_secs(900);

/// The longest time that a script may ask for until its next report.
const NEXT_MAX: Duration = Duration::from_secs(24 * 3600);

/// The last progress that the members of a round were seen to make, and when that was seen. It is not durable: an
/// operator that starts waits anew, which delays the detection of a hang and never hastens it.
///
/// Agents' clocks are not compared with anything. What they tell is only watched for change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgressSeen {
    /// The round that it was made in.
    generation: u64,
    /// Changes with each report of progress and each checkpoint.
    mark: u64,
    /// The highest step that was told.
    step: u64,
    /// Some of it was made in this round. If not, the first of it is waited for.
    told: bool,
    /// The longest time, in milliseconds, that one of those who tell asks for until its next report; 0 = none does.
    next_ms: u64,
    /// When it was seen to change, by the operator's clock.
    since: Time,
}

impl ProgressSeen {
    /// What was seen after one more look at the group. `None` while nothing can be told: the group is not known, the
    /// round does not run, no member of it that may tell progress is heard of, or none has ever told any.
    pub fn next(before: Option<Self>, state: &JobState, group: Option<&Group>, now: Time) -> Option<Self> {
        let round = state.round.as_ref().filter(|r| r.running_since.is_some())?;
        let (generation, agent) = (round.generation, round.agent.as_ref()?);
        let runs =
            |r: &&MemberRecord| matches!(r.report.state, MemberState::Running { generation: of } if of == generation);
        let running: Vec<&MemberRecord> =
            agent.members.iter().filter_map(|m| group?.members.get(&m.uid)).filter(runs).collect();
        let tells = |r: &MemberRecord| r.report.progress.is_some_and(|p| p.generation == generation);
        let told = running.iter().any(|r| tells(r));
        if !told && !agent.tells {
            return None;
        }
        // Until somebody tells progress, anybody may be the one who will.
        let records: Vec<&MemberRecord> = running.into_iter().filter(|r| !told || tells(r)).collect();
        if records.iter().all(|r| r.suspected) {
            return None;
        }
        // The sum differs as soon as one of them tells more, whatever its clock shows.
        let last = |r: &MemberRecord| {
            let progress = r.report.progress.map_or(0, |p| p.at_ms);
            progress.wrapping_add(r.report.checkpoint.map_or(0, |c| c.at_ms))
        };
        let mark = records.iter().fold(0, |sum: u64, r| sum.wrapping_add(last(r)));
        let step = records.iter().filter_map(|r| r.report.progress).map(|p| p.step).max().unwrap_or(0);
        let next = |r: &MemberRecord| r.report.progress.filter(|p| p.generation == generation)?.next_ms;
        let next_ms = records.iter().filter_map(|r| next(r)).max().unwrap_or(0).min(millis(NEXT_MAX));
        let same = before.filter(|b| (b.generation, b.mark, b.told) == (generation, mark, told));
        Some(ProgressSeen { generation, mark, step, told, next_ms, since: same.map_or(now, |b| b.since) })
    }

    /// Whether one look after another found nothing new but progress in the same round, with the same patience: a plan
    /// would find nothing to do.
    pub fn goes_on(before: Option<Self>, after: Option<Self>) -> bool {
        let of = |seen: Self| (seen.generation, seen.told, seen.next_ms);
        before.map(of) == after.map(of)
    }
}

/// What is done about a hang: each time that it comes again soon, more.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Remedy {
    /// All processes start again in their pods.
    Processes,
    /// So do they, and the pod of the worker that began it twice is replaced.
    Pod,
    /// All pods are replaced.
    Pods,
}

impl<'a> Step<'a> {
    /// A round without progress is begun anew by the same members. Where it hangs again soon, the worker that began it both
    /// times gets a new pod; where that can't be told, or did not help, all do. True if that was the job's end.
    pub(super) fn restart_hung(&mut self) -> bool {
        let Some((seen, timeout, soon)) = self.hang() else { return false };
        let suspect = self.suspect();
        let before = self.agent().and_then(|a| a.hung.as_deref());
        let same = suspect.as_ref().is_some_and(|(pod, _)| before == Some(pod.uid.as_str()));
        let remedy = match (soon, same) {
            (false, _) => Remedy::Processes,
            (true, true) => Remedy::Pod,
            (true, false) => Remedy::Pods,
        };
        let why = why(seen, timeout, suspect.as_ref(), remedy);
        self.notes.loss = Some(LossClass::Hung);
        self.event(true, EventReason::Hung, format!("round {} hangs: {why}", self.generation()));
        self.charge(LossClass::Hung, 1);
        if self.check_backoff_limit() {
            return true;
        }
        self.set_back_processes(true);
        let known = suspect.as_ref().filter(|_| remedy == Remedy::Processes).map(|(pod, _)| pod.uid.clone());
        if let Some((pod, told)) = suspect.filter(|_| remedy == Remedy::Pod) {
            self.name_victim(pod, pod.index, &format!("the job hung twice, and {told}"));
        }
        let pods = if remedy == Remedy::Pods { Vec::new() } else { self.with_joined(self.fit_members()) };
        // A script that only seems to hang can write a checkpoint.
        let grace_ms = millis(self.job.elasticity.drain_deadline);
        self.begin_agent_round(&pods, Begin { cause: RoundCause::Hung, why: &why, grace_ms, charged: true });
        let generation = self.generation();
        if let Some(agent) = self.agent_mut() {
            agent.hung = Some(known.unwrap_or_default());
            if remedy == Remedy::Pods {
                agent.pods_from = generation;
            }
        }
        false
    }

    /// What was seen of a round that hangs, the timeout that has passed, and whether a round hung not long before
    /// it.
    fn hang(&mut self) -> Option<(ProgressSeen, Duration, bool)> {
        let hang = self.job.elasticity.hang_timeout?.max(HANG_TIMEOUT_MIN);
        let (generation, order) = (self.generation(), self.order());
        let seen = self.facts.progress.filter(|p| p.generation == generation && order == RoundOrder::Run)?;
        let began = self.round()?.running_since?;
        let start = self.job.elasticity.hang_start_timeout.unwrap_or((hang * START_FACTOR).max(START_TIMEOUT_MIN));
        let timeout = if seen.told { hang.max(Duration::from_millis(seen.next_ms)) } else { start.max(hang) };
        let until = seen.since.max(began).plus(timeout);
        if self.now < until {
            self.looks.push(until);
            return None;
        }
        let again = self.agent().is_some_and(|a| a.hung.is_some());
        Some((seen, timeout, again && seen.since.since(began) < timeout))
    }

    /// What the next round is to know of a hang before this one, which is over when a round has run for a timeout since.
    pub(super) fn still_hung(&self, old: &RoundState, before: &AgentRound) -> Option<String> {
        let timeout = self.job.elasticity.hang_timeout?.max(HANG_TIMEOUT_MIN);
        let short = old.running_since.is_none_or(|since| self.now.since(since) < timeout);
        before.hung.clone().filter(|_| short)
    }

    /// The one member that the others wait for, and how that is told: it alone is not heard of, or it alone stopped before
    /// the step that the others have told. `None` where it is like its peers.
    fn suspect(&self) -> Option<(&'a Pod, String)> {
        let members = self.member_pods();
        let silent: Vec<&Pod> = members.iter().copied().filter(|p| self.is_silent(p)).collect();
        if let [pod] = silent[..] {
            return (members.len() > 1).then(|| (pod, format!("worker {} was not heard of", pod.index)));
        }
        let generation = self.generation();
        let step = |p: &&'a Pod| {
            let progress = self.record(p)?.report.progress.filter(|t| t.generation == generation)?;
            Some((progress.step, *p))
        };
        let mut steps: Vec<(u64, &Pod)> = members.iter().filter_map(step).collect();
        steps.sort_by_key(|(step, pod)| (*step, pod.index));
        match (steps.first(), steps.get(1)) {
            (Some((least, pod)), Some((next, _))) if least < next && silent.is_empty() => {
                Some((*pod, format!("worker {} stopped at step {least}, before all others", pod.index)))
            }
            _ => None,
        }
    }
}

fn why(seen: ProgressSeen, timeout: Duration, suspect: Option<&(&Pod, String)>, remedy: Remedy) -> String {
    let seconds = timeout.as_secs();
    let what = if seen.told {
        format!("no progress for {seconds} s, the last at step {}", seen.step)
    } else {
        format!("no progress within {seconds} s of its start")
    };
    let who = suspect.map_or_else(String::new, |(_, told)| format!("; {told}"));
    let then = match (remedy, suspect) {
        (Remedy::Processes, _) => "all processes start again".to_owned(),
        (Remedy::Pod, Some((pod, _))) => format!("it did so before, and the pod of worker {} is replaced", pod.index),
        _ => "it hangs again soon after, and all pods are replaced".to_owned(),
    };
    format!("{what}{who}: {then}")
}
