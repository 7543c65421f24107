//! Events, written after everything that matters more: queued, merged, and limited in rate.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use eto_engine::job::JobKey;
use eto_engine::plan::{Event, EventReason};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event as Record, EventType, Recorder, Reporter};
use tokio::sync::{mpsc, watch};

use crate::leader::Leadership;
use crate::telemetry::Telemetry;

/// More than this waiting are dropped (and counted): events are a summary, the decision log is the record.
const QUEUE: usize = 4096;
/// The same event of the same job within this time is written once.
const REPEAT: Duration = Duration::from_secs(300);
/// An event that takes longer is given up: an API server that hangs must not keep the operator from stopping.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The API's limit on a note is 1,024 bytes.
const NOTE: usize = 1000;

/// Where events are put; never waits.
#[derive(Clone)]
pub struct Events {
    queue: mpsc::Sender<Told>,
    telemetry: Telemetry,
}

struct Told {
    key: JobKey,
    uid: Arc<str>,
    event: Event,
}

impl Events {
    pub fn tell(&self, key: &JobKey, uid: &str, event: Event) {
        if self.queue.try_send(Told { key: key.clone(), uid: uid.into(), event }).is_err() {
            self.telemetry.events_dropped(1);
        }
    }
}

/// A place to put events, and the task that writes them until `stop` turns true.
pub fn events(
    client: Client,
    per_second: u32,
    leadership: Leadership,
    telemetry: Telemetry,
    stop: watch::Receiver<bool>,
) -> (Events, impl Future<Output = ()> + Send) {
    let (queue, told) = mpsc::channel(QUEUE);
    let reporter =
        Reporter { controller: eto_api::labels::MANAGER.to_owned(), instance: std::env::var("HOSTNAME").ok() };
    let recorder = Recorder::new(client, reporter);
    let writing = write(recorder, told, per_second.max(1), leadership, telemetry.clone(), stop);
    (Events { queue, telemetry }, writing)
}

async fn write(
    recorder: Recorder,
    mut told: mpsc::Receiver<Told>,
    per_second: u32,
    leadership: Leadership,
    telemetry: Telemetry,
    mut stop: watch::Receiver<bool>,
) {
    let mut pace = tokio::time::interval(Duration::from_secs(1) / per_second);
    pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut repeats = Repeats::default();
    loop {
        let next = tokio::select! {
            next = told.recv() => next,
            _ = stop.wait_for(|s| *s) => break,
        };
        let Some(told) = next else { break };
        if !leadership.may_act() || repeats.is_repeat(&told, Instant::now()) {
            telemetry.events_dropped(1);
            continue;
        }
        pace.tick().await;
        let (event, about) = (record(&told.event), reference(&told));
        let error = match tokio::time::timeout(TIMEOUT, recorder.publish(&event, &about)).await {
            Ok(Ok(())) => continue,
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {TIMEOUT:?}"),
        };
        telemetry.write_failed("events");
        tracing::debug!(job = %told.key, error, "an event was not written");
    }
}

/// What was told lately, so that a job in trouble does not tell the same every period.
#[derive(Default)]
struct Repeats {
    last: HashMap<(Arc<str>, &'static str, String), Instant>,
}

impl Repeats {
    fn is_repeat(&mut self, told: &Told, now: Instant) -> bool {
        if self.last.len() >= QUEUE {
            self.last.retain(|_, at| now.duration_since(*at) < REPEAT);
        }
        let key = (Arc::clone(&told.uid), name(told.event.reason), told.event.message.clone());
        match self.last.get(&key) {
            Some(at) if now.duration_since(*at) < REPEAT => true,
            _ => {
                // Still full of fresh ones: forget them rather than grow.
                if self.last.len() >= QUEUE {
                    self.last.clear();
                }
                self.last.insert(key, now);
                false
            }
        }
    }
}

fn reference(told: &Told) -> ObjectReference {
    ObjectReference {
        api_version: Some(format!("{}/{}", eto_api::GROUP, eto_api::VERSION)),
        kind: Some("ElasticJob".into()),
        name: Some(told.key.name.clone()),
        namespace: Some(told.key.namespace.clone()),
        uid: Some(told.uid.to_string()),
        ..ObjectReference::default()
    }
}

fn record(event: &Event) -> Record {
    let mut note = event.message.clone();
    if note.len() > NOTE {
        let end = (0..=NOTE).rev().find(|i| note.is_char_boundary(*i)).unwrap_or(0);
        note.truncate(end);
        note.push('…');
    }
    let reason = match event.reason {
        EventReason::Condition(reason) => format!("{reason:?}"),
        other => name(other).to_owned(),
    };
    Record {
        type_: if event.warning { EventType::Warning } else { EventType::Normal },
        action: reason.clone(),
        reason,
        note: Some(note),
        secondary: None,
    }
}

fn name(reason: EventReason) -> &'static str {
    match reason {
        EventReason::RoundStarted => "RoundStarted",
        EventReason::RoundRunning => "RoundRunning",
        EventReason::SuccessfulRescale => "SuccessfulRescale",
        EventReason::WorkerLost => "WorkerLost",
        EventReason::WorkerReleased => "WorkerReleased",
        EventReason::ContainersRestarted => "ContainersRestarted",
        EventReason::StartTimedOut => "StartTimedOut",
        EventReason::GrowthRefused => "GrowthRefused",
        EventReason::Suspended => "Suspended",
        EventReason::Resumed => "Resumed",
        EventReason::JobSucceeded => "JobSucceeded",
        EventReason::JobFailed => "JobFailed",
        EventReason::RankVariablesOverridden => "RankVariablesOverridden",
        EventReason::ScalingNotActive => "ScalingNotActive",
        EventReason::PolicyFailed => "PolicyFailed",
        EventReason::CircuitOpened => "CircuitOpened",
        EventReason::PolicySwapped => "PolicySwapped",
        EventReason::Condition(_) => "Condition",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(message: &str) -> Told {
        let key = JobKey { namespace: "n".into(), name: "j".into() };
        let event = Event { warning: true, reason: EventReason::PolicyFailed, message: message.into() };
        Told { key, uid: "u".into(), event }
    }

    #[test]
    fn the_same_event_is_written_once_in_a_while() {
        let mut repeats = Repeats::default();
        let now = Instant::now();
        assert!(!repeats.is_repeat(&told("a"), now));
        assert!(repeats.is_repeat(&told("a"), now));
        assert!(!repeats.is_repeat(&told("b"), now));
        assert!(!repeats.is_repeat(&told("a"), now + REPEAT));
    }

    #[test]
    fn a_long_note_is_cut_at_a_character() {
        let event = Event { warning: false, reason: EventReason::JobFailed, message: "ü".repeat(2000) };
        let note = record(&event).note.unwrap_or_default();
        assert!(note.len() <= NOTE + '…'.len_utf8() && note.ends_with('…'));
    }
}
