//! `/metrics`: where the time goes, and how fast the training is. What is not known is left out: absent is not zero.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;
use std::sync::atomic::Ordering;

use eto_membership::agent::Agent;
use eto_membership::{MemberState, Progress};

use crate::client::Counts;

/// Speed is that of the last minute at most.
const WINDOW_MS: u64 = 60_000;
/// Points kept for it.
const MOST_POINTS: usize = 256;

/// Why no process trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cause {
    /// Before the first round.
    Join,
    /// Asked to stop, until all are gone.
    Stop,
    /// Between two rounds.
    Round,
    /// After a failure, until the next round.
    Failure,
    /// From its start to the first progress that the script told.
    Start,
    /// Steps done again since the last checkpoint was older.
    Repeat,
}

impl Cause {
    const ALL: [Cause; 6] = [Cause::Join, Cause::Stop, Cause::Round, Cause::Failure, Cause::Start, Cause::Repeat];

    fn name(self) -> &'static str {
        match self {
            Cause::Join => "join",
            Cause::Stop => "stop",
            Cause::Round => "round",
            Cause::Failure => "failure",
            Cause::Start => "start",
            Cause::Repeat => "repeat",
        }
    }
}

/// Keeps account of an agent's life.
#[derive(Debug)]
pub(crate) struct Meter {
    lost_ms: BTreeMap<Cause, u64>,
    /// What time is lost by now, and since when.
    phase: (Option<Cause>, u64),
    starts: u64,
    refused: u64,
    kills: u64,
    started_ms: u64,
    /// Whether the script has told progress since the start.
    has_told: bool,
    points: VecDeque<Progress>,
    /// Milliseconds per step when it was last known.
    pace: Option<f64>,
    furthest_step: u64,
}

impl Meter {
    pub(crate) fn new(now_ms: u64) -> Meter {
        Meter {
            lost_ms: BTreeMap::new(),
            phase: (Some(Cause::Join), now_ms),
            starts: 0,
            refused: 0,
            kills: 0,
            started_ms: 0,
            has_told: false,
            points: VecDeque::new(),
            pace: None,
            furthest_step: 0,
        }
    }

    /// Processes are being started.
    pub(crate) fn start(&mut self, now_ms: u64) {
        self.starts += 1;
        (self.started_ms, self.has_told) = (now_ms, false);
        self.points.clear();
    }

    pub(crate) fn refuse(&mut self) {
        self.refused += 1;
    }

    pub(crate) fn kill(&mut self) {
        self.kills += 1;
    }

    /// Takes what the agent is like after an event.
    pub(crate) fn observe(&mut self, agent: &Agent, now_ms: u64) {
        let phase = match agent.state() {
            MemberState::Running { .. } if agent.is_stopping() => Some(Cause::Stop),
            MemberState::Running { .. } => None,
            _ if self.starts == 0 => Some(Cause::Join),
            MemberState::Exited { code, .. } if code != 0 => Some(Cause::Failure),
            MemberState::Exited { .. } | MemberState::Idle => Some(Cause::Round),
        };
        if phase != self.phase.0 {
            if let Some(cause) = self.phase.0 {
                self.lose(cause, now_ms.saturating_sub(self.phase.1));
            }
            self.phase = (phase, now_ms);
        }
        if let Some(told) = agent.report().progress.filter(|told| self.points.back() != Some(told))
            && agent.is_ready()
            && told.at_ms >= self.started_ms
        {
            self.progress(told);
        }
    }

    fn lose(&mut self, cause: Cause, ms: u64) {
        *self.lost_ms.entry(cause).or_default() += ms;
    }

    fn progress(&mut self, told: Progress) {
        if !self.has_told {
            self.has_told = true;
            self.lose(Cause::Start, told.at_ms.saturating_sub(self.started_ms));
            if let Some(pace) = self.pace {
                // Positive, and steps of one run: far below 2^52.
                #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
                let again = (self.furthest_step.saturating_sub(told.step) as f64 * pace) as u64;
                self.lose(Cause::Repeat, again);
            }
        }
        self.furthest_step = self.furthest_step.max(told.step);
        self.points.push_back(told);
        while self.points.len() > MOST_POINTS
            || self.points.front().is_some_and(|p| told.at_ms.saturating_sub(p.at_ms) > WINDOW_MS)
        {
            self.points.pop_front();
        }
        if let Some(rate) = self.per_second(told.at_ms, |p| Some(p.step)).filter(|rate| *rate > 0.0) {
            self.pace = Some(1000.0 / rate);
        }
    }

    /// How much of something came per second lately; `None` if that is not known.
    #[allow(clippy::cast_precision_loss, reason = "counts of one training stay below 2^52")]
    fn per_second(&self, now_ms: u64, of: impl Fn(&Progress) -> Option<u64>) -> Option<f64> {
        let (first, last) = (self.points.front()?, self.points.back()?);
        let took = last.at_ms.checked_sub(first.at_ms).filter(|ms| *ms > 0)?;
        // One that has told nothing for long: its speed is not what it was.
        let took = if now_ms.saturating_sub(last.at_ms) > WINDOW_MS { return None } else { took };
        Some(of(last)?.checked_sub(of(first)?)? as f64 * 1000.0 / took as f64)
    }

    /// Microseconds of the script's own work in a step lately; `None` if that is not known.
    pub(crate) fn step_work_us(&self, now_ms: u64) -> Option<u64> {
        let (first, last) = (self.points.front()?, self.points.back()?);
        let steps = last.step.checked_sub(first.step).filter(|n| *n > 0)?;
        let fresh = now_ms.saturating_sub(last.at_ms) <= WINDOW_MS;
        Some(last.work_ms?.checked_sub(first.work_ms?)?.saturating_mul(1000) / steps).filter(|_| fresh)
    }

    /// The page in Prometheus' text form.
    #[allow(clippy::cast_precision_loss, reason = "counters and steps stay below 2^52")]
    pub(crate) fn page(&self, agent: &Agent, counts: &Counts, now_ms: u64) -> String {
        let mut page = Page::default();
        let report = agent.report();
        let seconds = |ms: u64| ms as f64 / 1000.0;
        page.add("info", "gauge", "The agent", &[("{version=\"", &report.agent, "\"}", 1.0)]);
        page.one("round_generation", "gauge", "Newest round told", Some(agent.generation() as f64));
        page.one("ready", "gauge", "1 while the processes of the round in force run", Some(flag(agent.is_ready())));
        page.one("starts_total", "counter", "Times that processes were started", Some(self.starts as f64));
        let restarts = self.starts.saturating_sub(1) as f64;
        page.one("restarts_total", "counter", "Times that processes were started again", Some(restarts));
        page.one(
            "kills_total",
            "counter",
            "SIGKILLs to a group, at its deadline or after its end",
            Some(self.kills as f64),
        );
        page.one("refused_total", "counter", "Rounds and tellings refused as stale", Some(self.refused as f64));
        let lost = Cause::ALL.map(|cause| {
            let now = if self.phase.0 == Some(cause) { now_ms.saturating_sub(self.phase.1) } else { 0 };
            ("{cause=\"", cause.name(), "\"}", seconds(self.lost_ms.get(&cause).copied().unwrap_or(0) + now))
        });
        page.add("lost_seconds_total", "counter", "Seconds without progress, by cause", &lost);
        let told = report.progress;
        page.one("step", "gauge", "Steps done", told.map(|p| p.step as f64));
        page.one(
            "samples_total",
            "counter",
            "Samples seen by all workers",
            told.and_then(|p| p.samples).map(|n| n as f64),
        );
        page.one("epoch", "gauge", "Epoch", told.and_then(|p| p.epoch).map(|n| n as f64));
        page.one("loss", "gauge", "Loss", told.and_then(|p| p.loss));
        let rate = |of: fn(&Progress) -> Option<u64>| self.per_second(now_ms, of);
        page.one("steps_per_second", "gauge", "Steps per second over the last minute", rate(|p| Some(p.step)));
        page.one("samples_per_second", "gauge", "Samples per second over the last minute", rate(|p| p.samples));
        let work = self.step_work_us(now_ms).map(|us| us as f64 / 1e6);
        page.one("work_seconds_per_step", "gauge", "Work of its own in a step, over the last minute", work);
        let checkpoint = report.checkpoint;
        page.one("checkpoint_step", "gauge", "Step of the newest checkpoint", checkpoint.map(|c| c.step as f64));
        let age = checkpoint.map(|c| seconds(now_ms.saturating_sub(c.at_ms)));
        page.one("checkpoint_age_seconds", "gauge", "Since when there is a newest checkpoint", age);
        let connected = flag(counts.is_connected());
        page.one("gateway_connected", "gauge", "1 while the membership gateway is reached", Some(connected));
        let count = |n: &std::sync::atomic::AtomicU64| n.load(Ordering::Relaxed) as f64;
        let reports = [
            ("{outcome=\"", "taken", "\"}", count(&counts.reports)),
            ("{outcome=\"", "failed", "\"}", count(&counts.report_failures)),
        ];
        page.add("reports_total", "counter", "Reports to the gateway, by outcome", &reports);
        let watches = Some(count(&counts.watches));
        page.one("watches_total", "counter", "Watches of the assignment that were begun", watches);
        page.text
    }
}

fn flag(yes: bool) -> f64 {
    if yes { 1.0 } else { 0.0 }
}

#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    fn one(&mut self, name: &str, kind: &str, help: &str, value: Option<f64>) {
        if let Some(value) = value {
            self.add(name, kind, help, &[("", "", "", value)]);
        }
    }

    fn add(&mut self, name: &str, kind: &str, help: &str, samples: &[(&str, &str, &str, f64)]) {
        // Writing into a string can't fail.
        let _ = writeln!(self.text, "# HELP eto_agent_{name} {help}\n# TYPE eto_agent_{name} {kind}");
        for (open, label, close, value) in samples {
            let _ = writeln!(self.text, "eto_agent_{name}{open}{label}{close} {value}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(at_ms: u64, step: u64) -> Progress {
        Progress { generation: 1, step, samples: Some(step * 8), at_ms, ..Progress::default() }
    }

    #[test]
    fn speed_is_that_of_the_last_minute_and_unknown_after_it() {
        let mut meter = Meter::new(0);
        meter.start(1_000);
        for i in 0..100 {
            meter.progress(told(10_000 + i * 1_000, i * 2));
        }
        let rate = |now| meter.per_second(now, |p| Some(p.step));
        assert_eq!((rate(109_000), rate(109_000 + WINDOW_MS + 1)), (Some(2.0), None));
        assert_eq!(meter.per_second(109_000, |p| p.samples), Some(16.0));
        assert_eq!((meter.lost_ms[&Cause::Start], meter.points.len()), (9_000, 61));
    }

    #[test]
    fn own_work_is_that_of_a_step_lately() {
        let mut meter = Meter::new(0);
        meter.start(0);
        let worked = |at_ms: u64, step: u64, work_ms: Option<u64>| Progress { work_ms, ..told(at_ms, step) };
        meter.progress(worked(1_000, 10, Some(500)));
        assert_eq!(meter.step_work_us(1_000), None, "one point is no difference");
        meter.progress(worked(2_000, 14, Some(502)));
        assert_eq!((meter.step_work_us(2_000), meter.step_work_us(90_000)), (Some(500), None));
        meter.progress(worked(3_000, 20, None));
        assert_eq!(meter.step_work_us(3_000), None);
    }

    #[test]
    fn steps_done_again_are_lost_time() {
        let mut meter = Meter::new(0);
        meter.start(0);
        (0..=10).for_each(|i| meter.progress(told(i * 500, i)));
        meter.start(20_000);
        meter.progress(told(22_000, 4));
        assert_eq!((meter.lost_ms[&Cause::Repeat], meter.lost_ms[&Cause::Start]), (3_000, 2_000));
    }
}
