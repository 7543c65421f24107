//! From readings of workers to signals: the same [`SignalData`] that Prometheus gives for pods. Pure.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use eto_engine::signals::{Sample, SignalData, SignalId, builtin};
use eto_engine::time::Time;

/// What one look at one worker gave. What could not be read is absent, never zero.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reading {
    /// CPU time since the worker's process began, in seconds.
    pub cpu_seconds: Option<f64>,
    /// Memory in use, in bytes.
    pub memory_bytes: Option<f64>,
    /// GPU time in use, in whole GPUs' worth.
    pub gpu: Option<f64>,
    /// GPU memory in use, in whole GPUs' worth.
    pub gpu_memory: Option<f64>,
}

/// The readings of all workers, as far back as the longest window asks for.
#[derive(Debug)]
pub struct Usage {
    namespace: String,
    /// When the first reading was taken; a source that has just begun has no past.
    since: Option<Time>,
    keep: Duration,
    workers: HashMap<String, Track>,
    /// Why there are no GPU readings, for people.
    pub gpu_trouble: Option<String>,
}

#[derive(Debug, Default)]
struct Track {
    /// Which start of the worker the readings belong to; a new process counts from zero again.
    run: u64,
    readings: VecDeque<(Time, Reading)>,
}

/// Readings are kept for at least this long.
const KEEP: Duration = Duration::from_secs(60);

impl Usage {
    pub fn new(namespace: &str) -> Usage {
        Usage { namespace: namespace.to_owned(), since: None, keep: KEEP, workers: HashMap::new(), gpu_trouble: None }
    }

    /// Keeps readings for windows of this length too.
    pub fn keep_for(&mut self, window: Duration) {
        self.keep = self.keep.max(window);
    }

    /// Takes in one reading of the worker called `name` in its start number `run`.
    pub fn record(&mut self, name: &str, run: u64, at: Time, reading: Reading) {
        self.since.get_or_insert(at);
        let track = self.workers.entry(name.to_owned()).or_default();
        if track.run != run {
            *track = Track { run, readings: VecDeque::new() };
        }
        let newest = track.readings.back().map(|(at, _)| *at);
        if newest.is_some_and(|newest| newest >= at) {
            return; // the clock stepped back, or two looks fell into one millisecond
        }
        track.readings.push_back((at, reading));
        let horizon = at.minus(self.keep);
        // One reading from before the window stays: the window is measured from there.
        while track.readings.get(1).is_some_and(|(next, _)| *next <= horizon) {
            track.readings.pop_front();
        }
    }

    /// Forgets workers that are no more.
    pub fn retain(&mut self, is_there: impl Fn(&str) -> bool) {
        self.workers.retain(|name, _| is_there(name));
    }

    /// The signal `id` as this machine can answer it.
    pub fn signal(&self, id: &SignalId) -> SignalData {
        let window = Duration::from_secs(u64::from(id.window_s));
        let measure: fn(&Track, Duration) -> Option<Sample> = match (id.query.as_ref(), id.name.as_str()) {
            (None, builtin::CPU) => cpu_rate,
            (None, builtin::MEMORY) => memory,
            (None, builtin::GPU) => |track, window| mean(track, window, |r| r.gpu),
            (None, builtin::GPU_MEMORY) => |track, window| mean(track, window, |r| r.gpu_memory),
            (None, builtin::THROUGHPUT) => return self.untold(),
            _ => return self.unknown(id),
        };
        let samples: HashMap<String, Sample> =
            self.workers.iter().filter_map(|(name, track)| Some((name.clone(), measure(track, window)?))).collect();
        let is_gpu = matches!(id.name.as_str(), builtin::GPU | builtin::GPU_MEMORY);
        SignalData {
            // The newest reading of memory counts; all others are means.
            averaged_s: (id.name == builtin::MEMORY).then_some(0),
            per_pod: HashMap::from([(self.namespace.clone(), samples)]),
            trouble: self.gpu_trouble.clone().filter(|_| is_gpu),
            healthy_since: self.since,
            ..SignalData::default()
        }
    }

    /// What agents tell: there are none here.
    fn untold(&self) -> SignalData {
        let trouble = Some("agents in the pods tell it, and there are none here".to_owned());
        SignalData { trouble, healthy_since: self.since, ..SignalData::default() }
    }

    fn unknown(&self, id: &SignalId) -> SignalData {
        SignalData {
            trouble: Some(format!(
                "signal {} comes from a Prometheus query, and there is no Prometheus here: give its address with \
                 --prometheus",
                id.name
            )),
            healthy_since: self.since,
            ..SignalData::default()
        }
    }

    /// CPU in cores, memory in bytes, GPUs: the newest values of one worker over `window`, for the view.
    pub fn now(&self, name: &str, window: Duration) -> (Option<f64>, Option<f64>, Option<f64>) {
        let Some(track) = self.workers.get(name) else { return (None, None, None) };
        let value = |sample: Option<Sample>| sample.map(|s| s.value);
        (value(cpu_rate(track, window)), value(memory(track, window)), value(mean(track, window, |r| r.gpu)))
    }
}

#[allow(clippy::cast_precision_loss, reason = "milliseconds of a window")]
fn seconds(from: Time, to: Time) -> f64 {
    to.since(from).as_millis() as f64 / 1000.0
}

/// Cores used: the counter's rise over the window, or over what there is of it.
fn cpu_rate(track: &Track, window: Duration) -> Option<Sample> {
    let (at, newest) = track.readings.iter().rev().find_map(|(at, r)| Some((*at, r.cpu_seconds?)))?;
    let begin = at.minus(window);
    let known = || track.readings.iter().filter_map(|(at, r)| Some((*at, r.cpu_seconds?)));
    let (from, oldest) = known().take_while(|(at, _)| *at <= begin).last().or_else(|| known().next())?;
    let span = seconds(from, at);
    (span > 0.0 && newest >= oldest).then(|| Sample { value: (newest - oldest) / span, at })
}

fn memory(track: &Track, _window: Duration) -> Option<Sample> {
    track.readings.iter().rev().find_map(|(at, r)| Some(Sample { value: r.memory_bytes?, at: *at }))
}

#[allow(clippy::cast_precision_loss, reason = "a count of readings")]
fn mean(track: &Track, window: Duration, of: impl Fn(&Reading) -> Option<f64>) -> Option<Sample> {
    let at = track.readings.iter().rev().find_map(|(at, r)| of(r).map(|_| *at))?;
    let begin = at.minus(window);
    let values: Vec<f64> = track.readings.iter().filter(|(t, _)| *t >= begin).filter_map(|(_, r)| of(r)).collect();
    Some(Sample { value: values.iter().sum::<f64>() / values.len() as f64, at })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::float_cmp, clippy::cast_precision_loss)]
mod tests {
    use super::*;

    fn id(name: &str, window_s: u32) -> SignalId {
        SignalId { name: name.to_owned(), query: None, container: None, window_s }
    }

    fn cpu(seconds: f64) -> Reading {
        Reading { cpu_seconds: Some(seconds), ..Reading::default() }
    }

    fn value(usage: &Usage, id: &SignalId, worker: &str) -> Option<f64> {
        usage.signal(id).per_pod["team"].get(worker).map(|s| s.value)
    }

    #[test]
    fn cpu_is_the_rise_over_the_window() {
        let mut usage = Usage::new("team");
        // Half a core for 10 s, then two cores for 5 s.
        for s in 0..=10_u64 {
            usage.record("w", 1, Time(s * 1000), cpu(s as f64 * 0.5));
        }
        for s in 11..=15_u64 {
            usage.record("w", 1, Time(s * 1000), cpu(5.0 + (s - 10) as f64 * 2.0));
        }
        assert_eq!(value(&usage, &id(builtin::CPU, 5), "w"), Some(2.0));
        assert_eq!(value(&usage, &id(builtin::CPU, 15), "w"), Some(1.0));
        assert_eq!(value(&usage, &id(builtin::CPU, 600), "w"), Some(1.0), "over what there is");
        assert_eq!(usage.signal(&id(builtin::CPU, 5)).healthy_since, Some(Time(0)));
    }

    #[test]
    fn one_reading_is_no_rate_and_a_new_process_begins_anew() {
        let mut usage = Usage::new("team");
        usage.record("w", 1, Time(1000), cpu(100.0));
        assert_eq!(value(&usage, &id(builtin::CPU, 15), "w"), None);
        usage.record("w", 1, Time(2000), cpu(101.0));
        assert_eq!(value(&usage, &id(builtin::CPU, 15), "w"), Some(1.0));
        usage.record("w", 2, Time(3000), cpu(0.1));
        assert_eq!(value(&usage, &id(builtin::CPU, 15), "w"), None);
    }

    #[test]
    fn absent_is_absent() {
        let mut usage = Usage::new("team");
        usage.gpu_trouble = Some("no NVIDIA driver".to_owned());
        usage.record("w", 1, Time(1000), cpu(1.0));
        usage.record("w", 1, Time(2000), Reading::default());
        let gpu = usage.signal(&id(builtin::GPU, 15));
        assert!(gpu.per_pod["team"].is_empty());
        assert_eq!(gpu.trouble.as_deref(), Some("no NVIDIA driver"));
        assert_eq!(usage.signal(&id(builtin::CPU, 15)).trouble, None);
        let custom = SignalId { query: Some("up".to_owned()), ..id("up", 15) };
        assert!(usage.signal(&custom).trouble.unwrap().contains("--prometheus"));
    }

    #[test]
    fn gpu_is_averaged_over_the_window_and_memory_is_the_newest() {
        let mut usage = Usage::new("team");
        for (s, gpu) in [(1, 0.0), (2, 1.0), (3, 0.5)] {
            let reading = Reading { gpu: Some(gpu), memory_bytes: Some(f64::from(s) * 10.0), ..Reading::default() };
            usage.record("w", 1, Time(u64::try_from(s).unwrap() * 1000), reading);
        }
        assert_eq!(value(&usage, &id(builtin::GPU, 1), "w"), Some(0.75));
        assert_eq!(value(&usage, &id(builtin::GPU, 60), "w"), Some(0.5));
        assert_eq!(value(&usage, &id(builtin::MEMORY, 60), "w"), Some(30.0));
    }

    #[test]
    fn the_past_is_bounded_and_the_clock_may_step_back() {
        let mut usage = Usage::new("team");
        for s in 0..1000_u64 {
            usage.record("w", 1, Time(s * 1000), cpu(s as f64));
        }
        usage.record("w", 1, Time(5000), cpu(1000.0));
        assert!(usage.workers["w"].readings.len() <= 62);
        assert_eq!(value(&usage, &id(builtin::CPU, 60), "w"), Some(1.0));
        usage.retain(|name| name != "w");
        assert_eq!(value(&usage, &id(builtin::CPU, 60), "w"), None);
    }
}
