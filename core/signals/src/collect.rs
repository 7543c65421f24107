//! Folding answers into a signal's data.

use std::collections::{BTreeSet, HashMap};

use eto_engine::signals::{JOB_LABEL, Sample, SignalData, series_key};
use eto_engine::time::Time;

use crate::answer::{Notes, Row, read};
use crate::error::SourceError;
use crate::gpu;
use crate::plan::Shape;
use crate::promql::SELECTOR_LABEL;

/// The bodies of one request's answers.
pub(crate) struct Bodies {
    pub(crate) shape: Shape,
    pub(crate) values: Vec<u8>,
    pub(crate) times: Option<Vec<u8>>,
}

/// When something was sampled, in the caller's time: its age by Prometheus' own clock, counted back from `now`. So a clock
/// that differs between Prometheus and the operator makes nothing look old or new.
pub(crate) fn sampled(now: Time, evaluated: f64, at: f64) -> Time {
    let age = (evaluated - at).max(0.0) * 1000.0;
    if !age.is_finite() {
        return Time(0);
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "finite, not negative; casts saturate")]
    Time(now.0.saturating_sub(age as u64))
}

/// Whose sample a row is: namespace and pod, `exported_*` first.
pub(crate) fn owner<'r>(row: &'r Row<'_, '_>) -> Option<(&'r str, &'r str)> {
    let namespace = ["exported_namespace", "pod_namespace", "namespace"].iter().find_map(|l| row.label(l))?;
    Some((namespace, pod_of(row)?))
}

fn pod_of<'r>(row: &'r Row<'_, '_>) -> Option<&'r str> {
    ["exported_pod", "pod_name", "pod"].iter().find_map(|l| row.label(l))
}

/// Reads the answers of one request into `data`, of the namespaces in `wanted` alone. True if parts of the data were missing.
pub(crate) fn fold(
    data: &mut SignalData,
    bodies: &Bodies,
    wanted: &BTreeSet<String>,
    label: &str,
    now: Time,
) -> Result<bool, SourceError> {
    let notes = match &bodies.shape {
        Shape::Pods => fold_pods(data, bodies, wanted, now)?,
        Shape::Jobs => fold_jobs(data, bodies, wanted, label, now)?,
        Shape::Gpu | Shape::GpuMemory => gpu::fold(data, bodies, wanted, now)?,
        Shape::Custom { only } => fold_custom(data, bodies, only.as_deref(), wanted, label, now)?,
    };
    if let Some(text) = notes.iter().find_map(Notes::trouble) {
        data.trouble.get_or_insert(text);
    }
    Ok(notes.iter().any(Notes::is_partial))
}

fn fold_pods(
    data: &mut SignalData,
    bodies: &Bodies,
    wanted: &BTreeSet<String>,
    now: Time,
) -> Result<[Notes; 2], SourceError> {
    let values = read(&bodies.values, &mut |row| {
        let Some((namespace, pod)) = owner(row) else { return };
        let Some(pods) = pods_of(data, namespace, wanted) else { return };
        let sample = Sample { value: row.value, at: Time(0) };
        match pods.get_mut(pod) {
            // The same pod by two ways (plain and `exported_*`) is not twice the use.
            Some(known) => known.value = larger(known.value, sample.value),
            None => drop(pods.insert(pod.to_owned(), sample)),
        }
    })?;
    let mut notes = [values, Notes::default()];
    if let Some(times) = &bodies.times {
        notes[1] = read(times, &mut |row| {
            let Some((namespace, pod)) = owner(row) else { return };
            if let Some(known) = data.per_pod.get_mut(namespace).and_then(|pods| pods.get_mut(pod)) {
                known.at = known.at.max(sampled(now, row.evaluated, row.value));
            }
        })?;
    }
    Ok(notes)
}

fn fold_jobs(
    data: &mut SignalData,
    bodies: &Bodies,
    wanted: &BTreeSet<String>,
    label: &str,
    now: Time,
) -> Result<[Notes; 2], SourceError> {
    let key = |row: &Row<'_, '_>| Some(series_key([(JOB_LABEL, row.label(JOB_LABEL)?)]));
    let values = read(&bodies.values, &mut |row| {
        let Some(namespace) = row.label(label).filter(|n| wanted.contains(*n)) else { return };
        let Some(key) = key(row) else { return };
        entry(&mut data.per_key, namespace).insert(key, Sample { value: row.value, at: Time(0) });
    })?;
    let mut notes = [values, Notes::default()];
    if let Some(times) = &bodies.times {
        notes[1] = read(times, &mut |row| {
            let Some(jobs) = row.label(label).and_then(|n| data.per_key.get_mut(n)) else { return };
            if let Some(known) = key(row).and_then(|key| jobs.get_mut(&key)) {
                known.at = known.at.max(sampled(now, row.evaluated, row.value));
            }
        })?;
    }
    Ok(notes)
}

/// The pods of a namespace that is wanted; the name is copied once per namespace, not once per row.
pub(crate) fn pods_of<'d>(
    data: &'d mut SignalData,
    namespace: &str,
    wanted: &BTreeSet<String>,
) -> Option<&'d mut HashMap<String, Sample>> {
    if !data.per_pod.contains_key(namespace) {
        if !wanted.contains(namespace) {
            return None;
        }
        data.per_pod.insert(namespace.to_owned(), HashMap::new());
    }
    data.per_pod.get_mut(namespace)
}

/// The larger of two; a number rather than NaN.
fn larger(a: f64, b: f64) -> f64 {
    a.max(b)
}

/// Times of the samples behind a custom query, in one namespace: for each selector the newest by pod, and of all.
#[derive(Default)]
struct Times {
    selectors: HashMap<String, Newest>,
}

#[derive(Default)]
struct Newest {
    any: Option<Time>,
    by_pod: HashMap<String, Time>,
}

impl Times {
    /// The sample is as old as the oldest of what it was made from; a selector without data says nothing.
    fn of(&self, pod: Option<&str>) -> Option<Time> {
        self.selectors.values().filter_map(|s| pod.and_then(|p| s.by_pod.get(p).copied()).or(s.any)).min()
    }
}

fn fold_custom(
    data: &mut SignalData,
    bodies: &Bodies,
    only: Option<&str>,
    wanted: &BTreeSet<String>,
    label: &str,
    now: Time,
) -> Result<[Notes; 2], SourceError> {
    let mut times: HashMap<String, Times> = HashMap::new();
    let mut notes = [Notes::default(), Notes::default()];
    if let Some(body) = &bodies.times {
        notes[1] = read(body, &mut |row| {
            let Some(namespace) = only.or_else(|| row.label(label)) else { return };
            let at = sampled(now, row.evaluated, row.value);
            let newest =
                entry(&mut entry(&mut times, namespace).selectors, row.label(SELECTOR_LABEL).unwrap_or_default());
            newest.any = newest.any.max(Some(at));
            if let Some(pod) = pod_of(row) {
                let known = entry(&mut newest.by_pod, pod);
                *known = at.max(*known);
            }
        })?;
    }
    let mut nameless: HashMap<String, usize> = HashMap::new();
    notes[0] = read(&bodies.values, &mut |row| {
        let Some(namespace) = only.or_else(|| row.label(label)).filter(|n| wanted.contains(*n)) else { return };
        let pod = pod_of(row);
        // Nothing read at all (`vector(1)`) is as of now.
        let at = times.get(namespace).map_or(Some(now), |t| t.of(pod)).unwrap_or(now);
        let sample = Sample { value: row.value, at };
        let Some(pod) = pod else {
            *entry(&mut nameless, namespace) += 1;
            data.per_namespace.insert(namespace.to_owned(), sample);
            let key = series_key(row.labels().filter(|(name, _)| *name != label && *name != "__name__"));
            if !key.is_empty() {
                entry(&mut data.per_key, namespace).insert(key, sample);
            }
            return;
        };
        let Some(pods) = pods_of(data, namespace, wanted) else { return };
        if pods.insert(pod.to_owned(), sample).is_some() {
            let text = format!(
                "the query gives several series for pod {pod}: aggregate them, as in sum by ({label}, pod) (...)"
            );
            data.namespace_trouble.entry(namespace.to_owned()).or_insert(text);
        }
    })?;
    for (namespace, count) in nameless.into_iter().filter(|(_, count)| *count > 1) {
        let text = format!(
            "the query gives {count} series without a pod label where one is expected: aggregate them, as in sum by ({label}) (...), \
             keep the pod label, or have one per job, as in sum by ({JOB_LABEL}) (...)"
        );
        data.namespace_trouble.insert(namespace, text);
    }
    // A value picked from several by chance is worse than none.
    for namespace in data.namespace_trouble.keys() {
        data.per_pod.remove(namespace);
        data.per_namespace.remove(namespace);
    }
    Ok(notes)
}

fn entry<'m, V: Default>(map: &'m mut HashMap<String, V>, key: &str) -> &'m mut V {
    map.entry(key.to_owned()).or_default()
}

#[cfg(test)]
#[path = "collect_tests.rs"]
mod tests;
