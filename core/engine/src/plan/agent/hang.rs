//! Members whose processes live, and do nothing any more.

use std::time::Duration;

use eto_membership::{Group, MemberRecord, MemberState};

use super::super::EventReason;
use super::super::step::Step;
use super::orders::Begin;
use crate::state::{JobState, LossClass, RoundCause, RoundOrder};
use crate::time::{Time, millis};

/// The shortest time without progress that counts as a hang: progress is written to the group every 10 s at most, and
/// may be late by as much again.
const HANG_TIMEOUT_MIN: Duration = Duration::from_secs(30);

/// Before the first progress of a round this many times the hang timeout passes, and no less than so long, where the job
/// says nothing else: processes start, load their data and their checkpoint, and compile.
const START_FACTOR: u32 = 3;
const START_TIMEOUT_MIN: Duration = Duration::from_secs(900);

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
        let same = before.filter(|b| (b.generation, b.mark, b.told) == (generation, mark, told));
        Some(ProgressSeen { generation, mark, step, told, since: same.map_or(now, |b| b.since) })
    }

    /// Whether one look after another found nothing new but progress in the same round: a plan would find nothing to do.
    pub fn goes_on(before: Option<Self>, after: Option<Self>) -> bool {
        let of = |seen: Self| (seen.generation, seen.told);
        before.map(of) == after.map(of)
    }
}

impl Step<'_> {
    /// A round without progress is begun anew by the same members; one that hung soon after it was begun for that is
    /// begun with new pods. True if that was the job's end.
    pub(super) fn restart_hung(&mut self) -> bool {
        let Some(hang) = self.job.elasticity.hang_timeout.map(|t| t.max(HANG_TIMEOUT_MIN)) else { return false };
        let (generation, order) = (self.generation(), self.order());
        let Some(seen) = self.facts.progress.filter(|p| p.generation == generation && order == RoundOrder::Run) else {
            return false;
        };
        let Some((began, cause)) = self.round().and_then(|r| Some((r.running_since?, r.cause))) else { return false };
        let start = self.job.elasticity.hang_start_timeout.unwrap_or((hang * START_FACTOR).max(START_TIMEOUT_MIN));
        let timeout = if seen.told { hang } else { start.max(hang) };
        let until = seen.since.max(began).plus(timeout);
        if self.now < until {
            self.looks.push(until);
            return false;
        }
        let again = cause == RoundCause::Hung && seen.since.since(began) < timeout;
        let then = if again { "again; its pods are replaced" } else { "its processes start again" };
        let seconds = timeout.as_secs();
        let why = if seen.told {
            format!("no progress for {seconds} s, the last at step {}: {then}", seen.step)
        } else {
            format!("no progress within {seconds} s of its start: {then}")
        };
        self.notes.loss = Some(LossClass::Hung);
        self.event(true, EventReason::Hung, format!("round {generation} hangs: {why}"));
        self.charge(LossClass::Hung, 1);
        if self.check_backoff_limit() {
            return true;
        }
        self.set_back_processes(true);
        let pods = if again { Vec::new() } else { self.with_joined(self.fit_members()) };
        // A script that only seems to hang can write a checkpoint.
        let grace_ms = millis(self.job.elasticity.drain_deadline);
        self.begin_agent_round(&pods, Begin { cause: RoundCause::Hung, why: &why, grace_ms, charged: true });
        let released = self.generation();
        if let Some(agent) = self.agent_mut().filter(|_| again) {
            agent.pods_from = released;
        }
        false
    }
}
