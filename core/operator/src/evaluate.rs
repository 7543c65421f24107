//! The evaluation loop: every job is sized once a period, from one gathering of signals for all jobs that are due.
//!
//! Jobs are spread over the period by a hash of their UID. What is due first is looked at first, so a cycle that takes
//! longer than its time delays jobs and never drops one. Jobs whose policy is swapped are due at once. An evaluation that changes nothing costs no request.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use eto_cycle::log::{DecisionLog, LogEntry};
use eto_cycle::wants::{WantsCache, questioned};
use eto_engine::job::JobSpec;
use eto_engine::signals::{Claims, SignalData, SignalId, SignalSet};
use eto_engine::time::Time;
use eto_policy_host::Snapshot;
use eto_signals::{Prometheus, Wants};
use tokio::sync::watch;

use crate::cache::jobs::Job;
use crate::context::{Context, now};
use crate::look::{self, Gathered, Looked};
use crate::overrun::{Change, Overrun};
use crate::placing::Room;
use crate::settings;
use crate::source::{SourceError, source};
use crate::spans::Cycle;
use crate::swaps::Swaps;

/// Jobs that a thread takes at a time.
const CHUNK: usize = 32;
/// A target that is not written for longer than this (an API server that is away, say) no longer keeps its job from being
/// evaluated.
const WRITTEN_WITHIN: Duration = Duration::from_secs(10);
/// A period is cut into at most this many gatherings.
const SLOTS: u32 = 5;

/// Why the loop can't run.
#[derive(Debug, thiserror::Error)]
pub enum EvaluatorError {
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error("the decision log in {path} can't be written: {message}")]
    Log { path: String, message: String },
}

/// Sizes jobs.
pub struct Evaluator {
    context: Context,
    source: Option<Prometheus>,
    threads: usize,
    began: Instant,
    wants: Arc<WantsCache>,
    swaps: Swaps,
    /// When each signal was last read whole, by name.
    read: Mutex<HashMap<String, Instant>>,
    overrun: Mutex<Overrun>,
}

impl Evaluator {
    pub fn new(context: Context) -> Result<Self, EvaluatorError> {
        let settings = &context.settings;
        let source = source(&settings.prometheus)?;
        if source.is_none() {
            tracing::warn!("prometheus.url is empty: there are no signals, and jobs with a scaling policy hold");
        }
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let threads = match settings.evaluation.threads {
            0 => cores,
            n => usize::try_from(n).unwrap_or(1),
        };
        Ok(Evaluator {
            swaps: Swaps::of(&context.registry),
            context,
            source,
            threads,
            began: Instant::now(),
            wants: Arc::default(),
            read: Mutex::default(),
            overrun: Mutex::default(),
        })
    }

    fn period(&self) -> Duration {
        self.context.settings.evaluation.period.get()
    }

    /// The time between two gatherings: three seconds or more, unless the period itself is shorter.
    fn step(&self) -> Duration {
        self.period() / u32::try_from(self.period().as_secs() / 3).unwrap_or(SLOTS).clamp(1, SLOTS)
    }

    /// Runs until `stop` turns true.
    pub async fn run(self, stop: watch::Receiver<bool>) {
        let mut told = stop.clone();
        let test = async {
            tokio::select! {
                () = self.test_source() => {}
                _ = told.wait_for(|s| *s) => {}
            }
        };
        tokio::join!(test, self.cycles(stop));
    }

    /// Says in the log which metrics and labels Prometheus has, for whoever looks for a signal that is absent.
    async fn test_source(&self) {
        let Some(source) = &self.source else { return };
        for line in source.check().await.to_string().lines() {
            tracing::info!("prometheus: {line}");
        }
    }

    async fn cycles(&self, mut stop: watch::Receiver<bool>) {
        let mut ticks = tokio::time::interval(self.step());
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = self.swaps.next() => {}
                _ = stop.wait_for(|s| *s) => break,
            }
            if self.context.may_begin() {
                tokio::select! {
                    () = self.cycle() => {}
                    _ = stop.wait_for(|s| *s) => break,
                }
            }
        }
    }

    async fn cycle(&self) {
        let began = Instant::now();
        let all = self.context.caches.jobs.all();
        self.count(&all);
        let snapshot = self.context.registry.snapshot();
        self.swaps.hasten(&all, &snapshot);
        // What comes due before the next gathering is looked at in this one: a job is never late by a gathering.
        let due = due(&all, began + self.step());
        if due.is_empty() {
            return;
        }
        let overdue = due.iter().filter(|(at, _)| at.is_some_and(|at| at + self.period() < began)).count();
        let jobs: Arc<[Arc<Job>]> = due.into_iter().map(|(_, job)| job).collect();
        let span = self.context.spans.cycle();
        let gathering = SystemTime::now();
        let signals = self.gather(&jobs, all, &snapshot).await;
        span.gathered(&signals, gathering);
        // Without the pods of others it is not known what is free on a node.
        let all_known = self.context.settings.kubernetes.watch_all_pods;
        let nodes = if all_known { self.context.caches.nodes.all() } else { Vec::new() };
        let gathered = Arc::new(Gathered { signals, room: Room::new(nodes) });
        self.look(&jobs, &snapshot, &gathered, (began, &span)).await;
        span.end(jobs.len(), overdue);
        let took = began.elapsed();
        self.context.telemetry.cycle(took, self.period(), overdue);
        if let Some(log) = &self.context.log {
            self.context.telemetry.logged(log.written(), log.dropped(), log.failed());
        }
        self.tell_overrun(jobs.len(), took, overdue);
    }

    /// An overrun concerns the operator, not one of its jobs: it is told about the Lease that this replica holds.
    fn tell_overrun(&self, jobs: usize, took: Duration, overdue: usize) {
        let period = self.period();
        let change = self.overrun.lock().unwrap_or_else(PoisonError::into_inner).cycle(took, period);
        if took > period {
            tracing::warn!(jobs, ?took, ?period, overdue, "the cycle took longer than its period");
        }
        let (warning, reason, message) = match change {
            None => return,
            Some(Change::Began) => (
                true,
                "CycleOverrun",
                format!(
                    "{jobs} jobs took {:.1} s to evaluate, longer than the period of {:.1} s; they are evaluated later, the \
                     oldest first, and none is left out: raise evaluation.period, or give the operator more CPU",
                    took.as_secs_f64(),
                    period.as_secs_f64()
                ),
            ),
            Some(Change::Ended) => {
                (false, "CycleInTime", format!("cycles end within the period of {:.1} s again", period.as_secs_f64()))
            }
        };
        self.context.events.tell_operator(self.context.leadership.lease(), warning, reason, message);
    }

    /// Asks for all signals of these jobs at once, and finds out which of `all` jobs the answers may be of.
    async fn gather(&self, jobs: &Arc<[Arc<Job>]>, all: Vec<Arc<Job>>, snapshot: &Arc<Snapshot>) -> SignalSet {
        let (jobs, snapshot, cache) = (Arc::clone(jobs), Arc::clone(snapshot), Arc::clone(&self.wants));
        let wants = tokio::task::spawn_blocking(move || asked(&cache, &jobs, &all, &snapshot, now()));
        let (wants, claims) = wants.await.unwrap_or_default();
        let at = now();
        let Some(source) = &self.source else {
            let trouble = Some("the operator has no Prometheus: its setting prometheus.url is empty".to_owned());
            let without =
                |id: &SignalId| (id.clone(), SignalData { trouble: trouble.clone(), ..SignalData::default() });
            return SignalSet { at, signals: wants.keys().map(without).collect(), ..SignalSet::default() };
        };
        if wants.is_empty() {
            return SignalSet { at, ..SignalSet::default() };
        }
        let began = Instant::now();
        let signals = source.gather(&wants, at).await;
        self.context.telemetry.gathered(began.elapsed());
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        for (id, data) in &signals.signals {
            // Users name custom signals; series for them would have no bound.
            let name = if id.query.is_some() { "custom" } else { id.name.as_str() };
            let last = read.entry(name.to_owned()).or_insert(began);
            if data.trouble.is_none() {
                *last = Instant::now();
            }
            self.context.telemetry.signal(name, last.elapsed(), data.trouble.is_some());
        }
        SignalSet { claims, ..signals }
    }

    /// Looks at the jobs, on threads that may block: the runtime stays free for requests.
    async fn look(
        &self,
        jobs: &Arc<[Arc<Job>]>,
        snapshot: &Arc<Snapshot>,
        gathered: &Arc<Gathered>,
        (cycle, span): (Instant, &Cycle),
    ) {
        let next = Arc::new(AtomicUsize::new(0));
        let threads: Vec<_> = (0..self.threads.min(jobs.len().div_ceil(CHUNK)))
            .map(|_| {
                let context = self.context.clone();
                let (jobs, next) = (Arc::clone(jobs), Arc::clone(&next));
                let (snapshot, gathered) = (Arc::clone(snapshot), Arc::clone(gathered));
                let (wants, span) = (Arc::clone(&self.wants), span.clone());
                let (period, began) = (self.period(), self.began);
                tokio::task::spawn_blocking(move || {
                    loop {
                        let from = next.fetch_add(CHUNK, Ordering::Relaxed);
                        let Some(chunk) = jobs.get(from..jobs.len().min(from + CHUNK)).filter(|c| !c.is_empty()) else {
                            break;
                        };
                        for job in chunk {
                            let began_at = SystemTime::now();
                            let looked = look::look(&context, job, &wants, &snapshot, &gathered, now());
                            if let Some(looked) = &looked {
                                span.decided(&job.key, &looked.decision, began_at);
                            }
                            schedule(job, looked.as_ref(), period, (began, cycle));
                            if let (Some(log), Some(looked)) = (&context.log, looked.filter(Looked::is_decided)) {
                                let Looked { decision, input, .. } = looked;
                                log.write(LogEntry { job: job.key.clone(), decision, input });
                            }
                        }
                    }
                })
            })
            .collect();
        for thread in threads {
            if let Err(error) = thread.await {
                tracing::error!(%error, "a thread of the evaluation ended; its jobs are looked at in the next cycle");
            }
        }
    }

    fn count(&self, jobs: &[Arc<Job>]) {
        let mut counts: HashMap<String, usize> = HashMap::new();
        for job in jobs {
            let phase = job.entry().stored.phase.clone();
            *counts.entry(if phase.is_empty() { "New".to_owned() } else { phase }).or_default() += 1;
        }
        let caches = &self.context.caches;
        self.context.telemetry.nodes(&caches.nodes.counts());
        self.context.telemetry.nodes(&[("silent", caches.leases.count())]);
        self.context.telemetry.phases(&counts.into_iter().collect::<Vec<_>>());
    }
}

/// What to ask for the jobs that are due, and which of all jobs take the answers for their own: those of the namespaces alone
/// whose jobs ask for custom queries.
fn asked(cache: &WantsCache, due: &[Arc<Job>], all: &[Arc<Job>], snapshot: &Snapshot, now: Time) -> (Wants, Claims) {
    let specs: Vec<_> = due.iter().filter_map(|job| job.entry().spec.clone().ok()).collect();
    let wants = cache.collect(specs.iter().map(|s| &**s), snapshot, now);
    let namespaces = questioned(&wants);
    let of_these = all.iter().filter(|job| namespaces.contains(job.key.namespace.as_str()));
    let at_work: Vec<_> = of_these.filter_map(|job| at_work(job)).collect();
    let claims = cache.claims(at_work.iter().map(|s| &**s), snapshot, now);
    (wants, claims)
}

/// The spec of a job that has not ended. One that has asks for nothing any more.
fn at_work(job: &Job) -> Option<Arc<JobSpec>> {
    let entry = job.entry();
    let ended = entry.mind.as_ref().is_some_and(|m| m.state.phase.is_terminal());
    entry.spec.as_ref().ok().filter(|_| !ended).map(Arc::clone)
}

/// The jobs that are due by then, those due first in front; `None` = never looked at.
///
/// A job whose new target is still to be written is left until it is, and is then the first: where writing is what takes
/// time, another evaluation of it would hold up the writes.
fn due(jobs: &[Arc<Job>], by: Instant) -> Vec<(Option<Instant>, Arc<Job>)> {
    let mut due: Vec<_> = jobs
        .iter()
        .filter_map(|job| {
            let entry = job.entry();
            let at = entry.mind.as_ref()?.due;
            let waits = entry.is_target_on_its_way(WRITTEN_WITHIN);
            drop(entry);
            (!waits && at.is_none_or(|at| at < by)).then(|| (at, Arc::clone(job)))
        })
        .collect();
    due.sort_by_key(|(at, _)| *at);
    due
}

/// Sets when the job is due next: once a period, at the moment of the period that its UID gives it. Counted from the
/// start of the cycle, so that a long cycle does not cost its last jobs a turn.
fn schedule(job: &Job, looked: Option<&Looked>, period: Duration, (began, cycle): (Instant, Instant)) {
    let at = next_due(&job.uid, period, began, cycle);
    let sooner = looked.and_then(|l| l.next_look).map(|wait| Instant::now() + wait);
    if let Some(mind) = &mut job.entry().mind {
        mind.due = Some(sooner.map_or(at, |s| s.min(at)));
    }
}

/// The first moment at least half a period from now that has the phase of the UID.
fn next_due(uid: &str, period: Duration, began: Instant, now: Instant) -> Instant {
    let period_ns = period.as_nanos().max(1);
    // FNV-1a: spread evenly, and the same after a restart.
    let hash = uid.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    let phase = u128::from(hash) % period_ns;
    let earliest = (now.duration_since(began) + period / 2).as_nanos();
    let rounds = earliest.saturating_sub(phase).div_ceil(period_ns);
    began + Duration::from_nanos(u64::try_from(rounds * period_ns + phase).unwrap_or(u64::MAX))
}

/// Opens the decision log; `None` = there is to be none.
pub fn open_log(settings: &settings::DecisionLog) -> Result<Option<Arc<DecisionLog>>, EvaluatorError> {
    let Some(log) = settings.log() else { return Ok(None) };
    DecisionLog::open(log)
        .map(|log| Some(Arc::new(log)))
        .map_err(|e| EvaluatorError::Log { path: settings.dir.display().to_string(), message: e.to_string() })
}

#[cfg(test)]
#[path = "evaluate_tests.rs"]
mod tests;
