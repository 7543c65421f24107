//! One signal of one job: which samples count, how far they can be trusted, and what is kept as history.

use std::collections::{BTreeMap, HashMap};

use super::{Facts, Gauge, View, requests, should_have_sample};
use crate::contract::{Quality, Signal, SignalShape};
use crate::decision::SignalSeen;
use crate::job::JobKey;
use crate::observe::Pod;
use crate::signals::{JOB_LABEL, Sample, SignalData, SignalId, builtin, is_of_job, series_key};
use crate::state::Memory;
use crate::time::Time;
use crate::wants::Wanted;

/// A sample is stale when it is older than the signal's window, or 60 s if that is longer, plus this margin
/// (milliseconds): two scrapes of a usual interval.
pub const STALE_MARGIN_MS: u64 = 60_000;
/// Most points of history that are kept per signal.
const MAX_POINTS: u64 = 256;
/// More of a GPU than any node has: exporters' blank values (2^31 and up) that slipped through.
const MAX_GPUS: f64 = 4096.0;

pub(crate) struct Measured {
    pub(crate) signal: Signal,
    pub(crate) seen: SignalSeen,
    pub(crate) gauge: Gauge,
}

/// What became of the sample that a worker (or the job) should have.
#[derive(Clone, Copy, PartialEq)]
enum Found {
    Fresh(Sample),
    /// Fresh, but its window reaches back before the worker or the round was at work.
    Warming(Sample),
    Stale,
    Invalid,
    Missing,
    /// None is expected.
    NotDue,
}

pub(crate) fn measure(facts: &Facts<'_>, pods: &[&Pod], wanted: Wanted) -> Measured {
    let data = wanted.id.as_ref().and_then(|id| facts.signals.signals.get(id));
    let namespace = facts.job.key.namespace.as_str();
    let per_pod = data.and_then(|d| d.per_pod.get(namespace));
    let whole = data.map_or(Whole::Missing, |d| of_job(facts, &wanted, d));
    let known = per_pod.is_some_and(|m| pods.iter().any(|p| m.contains_key(&p.name)));
    let of_job = wanted.job_level || wanted.is_throughput() || (whole.is_there() && !known);
    let shape = if of_job { SignalShape::Job } else { SignalShape::PerWorker };
    let window = window_ms(wanted.id.as_ref(), data);
    let found = match shape {
        SignalShape::Job => vec![judge_job(facts, &wanted, whole.own(), window)],
        SignalShape::PerWorker => pods.iter().map(|p| judge_worker(facts, &wanted, p, per_pod, window)).collect(),
    };
    let requests = match shape {
        SignalShape::Job => vec![0.0],
        SignalShape::PerWorker => pods.iter().map(|p| requests::of(facts.job, p, &wanted)).collect(),
    };
    let why_none = whole.why_none().filter(|_| !known);
    assemble(facts, wanted, shape, &found, requests, (data, why_none))
}

/// What the source has of a job as a whole.
#[derive(PartialEq)]
enum Whole {
    Own(Sample),
    /// There is a sample, and no telling whose: why, and what to write instead.
    Unclear(String),
    /// There are series of other jobs alone.
    Others,
    Missing,
}

impl Whole {
    fn own(&self) -> Option<Sample> {
        if let Whole::Own(sample) = self { Some(*sample) } else { None }
    }

    fn is_there(&self) -> bool {
        matches!(self, Whole::Own(_) | Whole::Unclear(_))
    }

    fn why_none(&self) -> Option<&str> {
        match self {
            Whole::Unclear(why) => Some(why),
            Whole::Others => {
                Some("no series has this job's name in the label elastic_job, and others have another job's")
            }
            Whole::Own(_) | Whole::Missing => None,
        }
    }
}

/// The job-level sample: of the series that the metric selects; else of the one labelled as this job's; else of the only
/// one of the namespace, unless it is labelled as another job's, or may as well be of another that has the same query.
fn of_job(facts: &Facts<'_>, wanted: &Wanted, data: &SignalData) -> Whole {
    let key @ JobKey { namespace, name } = &facts.job.key;
    let keyed = data.per_key.get(namespace);
    let own = |sample: Option<&Sample>| sample.map_or(Whole::Missing, |s| Whole::Own(*s));
    if let Some(key) = &wanted.key {
        return own(keyed.and_then(|k| k.get(key)));
    }
    if let Some(sample) = keyed.and_then(|k| k.get(&series_key([(JOB_LABEL, name.as_str())]))) {
        return Whole::Own(*sample);
    }
    let only = data.per_namespace.get(namespace);
    // Of several series one that is of this job counts.
    let labelled = keyed.and_then(|k| k.keys().filter_map(|series| is_of_job(series, name)).max());
    let rival = wanted.claimed().and_then(|query| facts.signals.claims.rival(key, query));
    match (only, labelled, rival) {
        (_, Some(false), _) => Whole::Others,
        (None, ..) => Whole::Missing,
        (_, None, Some(rival)) => Whole::Unclear(format!(
            "the job {rival:?} of this namespace has the same query, whose answer does not say which job it is of: have one \
             series per job, as in sum by ({JOB_LABEL}) (...), or name the job in the query by $job"
        )),
        (only, ..) => own(only),
    }
}

/// Milliseconds for which values reach back; as asked for, where there are none to ask.
fn averaged_ms(id: Option<&SignalId>, data: Option<&SignalData>) -> u64 {
    let seconds = |id: &SignalId| data.and_then(|d| d.averaged_s).unwrap_or(id.window_s);
    id.map_or(0, |id| u64::from(seconds(id)) * 1000)
}

/// Milliseconds after a start, or after the source came back, in which values may still be of the time before: those for
/// which they reach back, and no fewer than were asked for, since a query may average by itself.
fn window_ms(id: Option<&SignalId>, data: Option<&SignalData>) -> u64 {
    averaged_ms(id, data).max(averaged_ms(id, None))
}

/// `since`: when who is measured was at work; `None` = it is not yet.
fn judge(facts: &Facts<'_>, wanted: &Wanted, sample: Option<Sample>, since: Option<Time>, window: u64) -> Found {
    let Some(sample) = sample else { return Found::Missing };
    if !possible(wanted, sample.value) {
        return Found::Invalid;
    }
    if facts.now.0.saturating_sub(sample.at.0) > window.max(60_000) + STALE_MARGIN_MS {
        return Found::Stale;
    }
    match since {
        Some(since) if sample.at.0 >= since.0.saturating_add(window) => Found::Fresh(sample),
        _ => Found::Warming(sample),
    }
}

fn judge_worker(
    facts: &Facts<'_>,
    wanted: &Wanted,
    pod: &Pod,
    samples: Option<&HashMap<String, Sample>>,
    window: u64,
) -> Found {
    if !should_have_sample(pod) {
        return Found::NotDue;
    }
    // A sample from before the pod was made is of another pod that had its name.
    let sample = samples.and_then(|s| s.get(&pod.name)).copied().filter(|s| s.at >= pod.created);
    let round = facts.state.round.as_ref().and_then(|r| r.running_since);
    let since = round.zip(pod.started).map(|(round, pod)| round.max(pod));
    judge(facts, wanted, sample, since, window)
}

fn judge_job(facts: &Facts<'_>, wanted: &Wanted, sample: Option<Sample>, window: u64) -> Found {
    // What HPA calls Object and External metrics are not of the workers: a restart does not make them look idle.
    let others = wanted.job_level && !wanted.is_throughput();
    let since = if others { Some(Time(0)) } else { facts.state.round.as_ref().and_then(|r| r.running_since) };
    judge(facts, wanted, sample, since, window)
}

fn possible(wanted: &Wanted, value: f64) -> bool {
    let gpu = wanted
        .id
        .as_ref()
        .is_some_and(|id| id.query.is_none() && [builtin::GPU, builtin::GPU_MEMORY].contains(&id.name.as_str()));
    value.is_finite() && value >= wanted.floor && !(gpu && value > MAX_GPUS)
}

fn assemble(
    facts: &Facts<'_>,
    wanted: Wanted,
    shape: SignalShape,
    found: &[Found],
    requests: Vec<f64>,
    (data, why_none): (Option<&SignalData>, Option<&str>),
) -> Measured {
    let (quality, coverage) = quality(found);
    let sample = |f: &Found| match f {
        Found::Fresh(s) | Found::Warming(s) => Some(*s),
        _ => None,
    };
    let used: Vec<Option<Sample>> = found.iter().map(sample).collect();
    let age_ms = used.iter().flatten().map(|s| facts.now.0.saturating_sub(s.at.0)).max().unwrap_or(0);
    let history =
        wanted.id.as_ref().filter(|_| wanted.history_s > 0).and_then(|id| facts.memory.history.get(&id.key()));
    let history = history.map(Vec::as_slice).unwrap_or_default();
    let oldest = facts.now.0.saturating_sub(u64::from(wanted.history_s) * 1000);
    let history: Vec<(Time, f64)> =
        history.iter().copied().filter(|(t, _)| t.0 >= oldest && t.0 < facts.now.0).collect();
    let note = note(&facts.job.key.namespace, &wanted, quality, found, (data, why_none));
    let signal = Signal {
        name: wanted.name.clone(),
        shape,
        quality,
        coverage,
        age_ms,
        window_ms: averaged_ms(wanted.id.as_ref(), data),
        values: used.iter().map(|s| s.map_or(0.0, |s| s.value)).collect(),
        sampled_ms: used.iter().map(|s| s.map_or(0, |s| s.at.0)).collect(),
        history_ms: history.iter().map(|(t, _)| t.0).collect(),
        history: history.iter().map(|(_, v)| *v).collect(),
        requests,
    };
    let seen = SignalSeen {
        name: wanted.name.clone(),
        metric: wanted.metric,
        quality,
        coverage,
        age_ms,
        mean: mean(&signal),
        note,
    };
    let suspect = found.iter().map(|f| !matches!(f, Found::Fresh(_) | Found::NotDue)).collect();
    let window_ms = window_ms(wanted.id.as_ref(), data);
    let gauge = Gauge { wanted, suspect, healthy_since: data.and_then(|d| d.healthy_since), window_ms };
    Measured { signal, seen, gauge }
}

fn quality(found: &[Found]) -> (Quality, f64) {
    let due = found.iter().filter(|f| **f != Found::NotDue).count();
    let number = |of: fn(&Found) -> bool| found.iter().filter(|f| of(f)).count();
    let fresh = number(|f| matches!(f, Found::Fresh(_)));
    let warming = number(|f| matches!(f, Found::Warming(_)));
    let coverage = if due == 0 { 0.0 } else { as_f64(fresh + warming) / as_f64(due) };
    let quality = if due > 0 && fresh == due {
        Quality::Ok
    } else if warming > 0 {
        Quality::Warming
    } else if fresh > 0 {
        Quality::Partial
    } else if number(|f| *f == Found::Invalid) > 0 {
        Quality::Invalid
    } else if number(|f| *f == Found::Stale) > 0 {
        Quality::Stale
    } else {
        Quality::Absent
    };
    (quality, coverage)
}

/// Exact for every count of workers there can be (below 2^53).
#[allow(clippy::cast_precision_loss)]
fn as_f64(n: usize) -> f64 {
    n as f64
}

/// Why a signal is not Ok, for people. A source's trouble with this namespace comes before its trouble with all.
fn note(
    namespace: &str,
    wanted: &Wanted,
    quality: Quality,
    found: &[Found],
    (data, why_none): (Option<&SignalData>, Option<&str>),
) -> Option<String> {
    if let Some(why) = &wanted.unservable {
        return Some(why.clone());
    }
    let trouble =
        data.and_then(|d| d.namespace_trouble.get(namespace).filter(|_| quality != Quality::Ok).or(d.trouble.as_ref()));
    let own = match quality {
        Quality::Ok => return trouble.cloned(),
        Quality::Partial => "some workers have no fresh sample",
        Quality::Stale => "the newest sample is too old",
        Quality::Absent if found.iter().all(|f| *f == Found::NotDue) => "no worker is running",
        Quality::Absent => why_none.unwrap_or("there is no sample"),
        Quality::Invalid => "the source gave NaN, infinity or a blank value",
        Quality::Warming => "the window reaches back before the round was at work",
    };
    Some(trouble.map_or_else(|| own.to_owned(), |t| format!("{own}: {t}")))
}

/// Mean over the elements with a sample: of value/request where all of these have a request, else of the value.
fn mean(signal: &Signal) -> Option<f64> {
    let rows = || signal.values.iter().zip(&signal.requests).zip(&signal.sampled_ms).filter(|(_, at)| **at > 0);
    let n = rows().count();
    let shares = rows().all(|((_, request), _)| *request > 0.0);
    let sum: f64 = rows().map(|((value, request), _)| if shares { value / request } else { *value }).sum();
    (n > 0 && sum.is_finite()).then(|| sum / as_f64(n))
}

/// Adds the means of this view to the history of the signals that keep one, and forgets what nobody asks for any
/// more. At most 256 points per signal: a long history has its points further apart.
pub fn remember(memory: &mut Memory, view: &View) {
    let now = Time(view.input.now_ms);
    let mut kept = BTreeMap::new();
    for (gauge, seen) in view.gauges.iter().zip(&view.seen) {
        let length = u64::from(gauge.wanted.history_s) * 1000;
        let Some(key) = gauge.wanted.id.as_ref().filter(|_| length > 0).map(SignalId::key) else { continue };
        let mut points = memory.history.remove(&key).unwrap_or_default();
        if let (Quality::Ok | Quality::Partial, Some(mean)) = (seen.quality, seen.mean) {
            points.retain(|(t, _)| t.0 >= now.0.saturating_sub(length) && *t <= now);
            let due = points.last().is_none_or(|(t, _)| now.0 - t.0 >= (length / MAX_POINTS).max(1));
            if due {
                points.push((now, mean));
            }
        }
        if !points.is_empty() {
            kept.insert(key, points);
        }
    }
    memory.history = kept;
}
