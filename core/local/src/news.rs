//! What there is to tell, as data: one value per change. The plain form writes it as a line, `--output json` as a
//! JSON object per line, the live view keeps the newest of each.

use std::fmt::Write as _;

use eto_engine::contract::Quality;
use eto_engine::decision::{Decision, Limiter};
use eto_engine::policy::{FailureKind, PolicyId};
use eto_engine::time::Time;
use serde::Serialize;

/// One piece of news.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum News {
    /// The job's phase, target or round changed.
    Job(JobNews),
    /// A worker changed its state.
    Worker(WorkerNews),
    /// A policy was asked (or should have been). Boxed: it is much larger than the others.
    Decision(Box<Decision>),
    /// An event, as the operator would write it to the cluster.
    Event { warning: bool, reason: String, message: String },
    /// A policy module is served from now on, or was refused.
    Policy(PolicyNews),
    /// A line of a worker's output.
    Output { worker: u32, line: String },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JobNews {
    pub job: String,
    pub phase: String,
    pub target: u32,
    pub min: u32,
    pub max: u32,
    pub ready: u32,
    pub round: u64,
    pub failures: u32,
    pub message: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerNews {
    pub index: u32,
    pub name: String,
    /// `waiting`, `starting`, `running`, `stopping`, `back-off`, `succeeded`, `failed`, `gone`.
    pub state: String,
    pub pid: Option<i32>,
    pub round: u64,
    pub world: u32,
    pub restarts: u32,
    pub note: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyNews {
    pub name: String,
    pub version: String,
    /// Of what serves; empty = nothing does.
    pub digest: String,
    /// Why the newest file is not served, or that there is none; the last good one serves on, if there is one.
    pub problem: Option<String>,
}

/// News with its time, as `--output json` writes it.
#[derive(Debug, Serialize)]
pub struct Stamped<'a> {
    pub time: String,
    #[serde(flatten)]
    pub news: &'a News,
}

/// RFC 3339 in UTC, to the millisecond.
pub fn rfc3339(at: Time) -> String {
    let (days, ms) = (at.0 / 86_400_000, at.0 % 86_400_000);
    let (year, month, day) = civil(days);
    let (s, milli) = (ms / 1000, ms % 1000);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{milli:03}Z", s / 3600, s / 60 % 60, s % 60)
}

/// Year, month and day of a day counted from 1970-01-01 in the Gregorian calendar.
fn civil(days: u64) -> (u64, u64, u64) {
    // Years are counted from March, so that the leap day is the last of its year.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

/// The part of a digest that people compare.
pub fn short_digest(digest: &str) -> &str {
    digest.get(..19).unwrap_or(digest)
}

/// The plain form: `kind key=value ...`, one line, stable. Output lines of workers are passed through with their
/// worker in front.
pub fn plain(at: Time, news: &News) -> String {
    let body = match news {
        News::Output { worker, line } => return format!("[worker-{worker}] {line}"),
        News::Job(job) => job_line(job),
        News::Worker(worker) => worker_line(worker),
        News::Decision(decision) => format!("decision {}", decision_line(decision)),
        News::Event { warning, reason, message } => {
            format!("event type={} reason={reason} message={message:?}", if *warning { "Warning" } else { "Normal" })
        }
        News::Policy(policy) => policy_line(policy),
    };
    format!("{} {body}", rfc3339(at))
}

fn job_line(job: &JobNews) -> String {
    let JobNews { job: name, phase, target, min, max, ready, round, failures, message } = job;
    let mut line = format!(
        "job name={name} phase={phase} target={target} ready={ready} min={min} max={max} round={round} \
         failures={failures}"
    );
    if let Some(message) = message {
        let _ = write!(line, " message={message:?}");
    }
    line
}

fn worker_line(worker: &WorkerNews) -> String {
    let WorkerNews { index, name, state, pid, round, world, restarts, note } = worker;
    let mut line = format!("worker index={index} name={name} state={state}");
    if let Some(pid) = pid {
        let _ = write!(line, " pid={pid}");
    }
    let _ = write!(line, " round={round} world={world} restarts={restarts}");
    if let Some(note) = note {
        let _ = write!(line, " note={note:?}");
    }
    line
}

fn policy_line(policy: &PolicyNews) -> String {
    let PolicyNews { name, version, digest, problem } = policy;
    match problem {
        // The digest says whether anything serves.
        None if digest.is_empty() => format!("policy name={name} served=false problem=\"there is no such module\""),
        None => format!("policy name={name} version={version} digest={digest} served=true"),
        Some(problem) if digest.is_empty() => format!("policy name={name} served=false problem={problem:?}"),
        Some(problem) => {
            format!("policy name={name} version={version} digest={digest} served=true newest-refused={problem:?}")
        }
    }
}

/// A decision on one line: what was asked for, what came of it, by whom and why.
pub fn decision_line(decision: &Decision) -> String {
    let mut line = format!("sequence={} from={} target={}", decision.sequence, decision.from, decision.target);
    match decision.proposed {
        Some(proposed) => {
            let _ = write!(line, " proposed={proposed}");
        }
        None => line.push_str(" proposed=hold"),
    }
    if let Some(policy) = &decision.policy {
        let digest = short_digest(&policy.digest);
        let _ = write!(line, " policy={}@{} digest={digest}", policy.name, policy.version);
    }
    if let Some(reason) = decision.reasons.first() {
        let _ = write!(line, " reason={} why={:?}", reason.code, reason.message);
    }
    if !decision.limits.is_empty() {
        let limits: Vec<String> = decision.limits.iter().map(|limit| format!("{:?}", limit.by)).collect();
        let _ = write!(line, " limits={}", limits.join(","));
    }
    for signal in &decision.signals {
        let mean = signal.mean.map_or_else(|| "absent".to_owned(), |mean| format!("{mean:.3}"));
        let _ = write!(line, " {}={mean}/{:?}", signal.name, signal.quality);
    }
    if let Some(failure) = &decision.failure {
        let _ = write!(line, " failure={:?} problem={:?}", failure.kind, failure.message);
    }
    line
}

/// What of a decision is worth a line of its own: while this stays the same, the plain form is silent.
#[derive(Clone, Debug, PartialEq)]
pub struct DecisionKey {
    sizes: (u32, u32, Option<u32>),
    policy: Option<PolicyId>,
    reason: Option<String>,
    limits: Vec<Limiter>,
    qualities: Vec<Quality>,
    failure: Option<FailureKind>,
}

impl DecisionKey {
    pub fn of(decision: &Decision) -> DecisionKey {
        DecisionKey {
            sizes: (decision.from, decision.target, decision.proposed),
            policy: decision.policy.clone(),
            reason: decision.reasons.first().map(|reason| reason.code.clone()),
            limits: decision.limits.iter().map(|limit| limit.by).collect(),
            qualities: decision.signals.iter().map(|signal| signal.quality).collect(),
            failure: decision.failure.as_ref().map(|failure| failure.kind),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_in_utc() {
        assert_eq!(rfc3339(Time(0)), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339(Time(951_782_400_123)), "2000-02-29T00:00:00.123Z");
        assert_eq!(rfc3339(Time(1_709_251_199_999)), "2024-02-29T23:59:59.999Z");
        assert_eq!(rfc3339(Time(4_102_444_800_000)), "2100-01-01T00:00:00.000Z");
    }

    #[test]
    fn lines_are_stable() {
        let worker = News::Worker(WorkerNews {
            index: 1,
            name: "demo-worker-1-2".to_owned(),
            state: "running".to_owned(),
            pid: Some(77),
            round: 1,
            world: 2,
            restarts: 0,
            note: None,
        });
        assert_eq!(
            plain(Time(0), &worker),
            "1970-01-01T00:00:00.000Z worker index=1 name=demo-worker-1-2 state=running pid=77 round=1 world=2 restarts=0"
        );
        let output = News::Output { worker: 3, line: "step=1".to_owned() };
        assert_eq!(plain(Time(0), &output), "[worker-3] step=1");
        let event = News::Event { warning: true, reason: "WorkerLost".to_owned(), message: "a \"b\"\nc".to_owned() };
        let line = plain(Time(0), &event);
        assert!(line.ends_with(r#"event type=Warning reason=WorkerLost message="a \"b\"\nc""#), "{line}");
    }

    #[test]
    fn a_refused_file_does_not_look_like_a_policy_that_is_gone() {
        let line = |digest: &str, problem: Option<&str>| {
            let (name, version, problem) = ("p".to_owned(), "1.0.0".to_owned(), problem.map(str::to_owned));
            policy_line(&PolicyNews { name, version, digest: digest.to_owned(), problem })
        };
        assert_eq!(line("sha256:a", None), "policy name=p version=1.0.0 digest=sha256:a served=true");
        let refused = "policy name=p version=1.0.0 digest=sha256:a served=true newest-refused=\"cut\"";
        assert_eq!(line("sha256:a", Some("cut")), refused);
        assert_eq!(line("", None), "policy name=p served=false problem=\"there is no such module\"");
        assert_eq!(line("", Some("cut")), "policy name=p served=false problem=\"cut\"");
    }

    #[test]
    fn json_has_the_kind_and_the_time() {
        let news = News::Output { worker: 3, line: "x".to_owned() };
        let text = serde_json::to_string(&Stamped { time: rfc3339(Time(0)), news: &news }).unwrap();
        assert_eq!(text, r#"{"time":"1970-01-01T00:00:00.000Z","kind":"output","worker":3,"line":"x"}"#);
    }
}
