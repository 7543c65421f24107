//! Events, written after everything that matters more: queued, merged, and limited in rate.

use std::collections::HashMap;
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
    about: ObjectReference,
    warning: bool,
    reason: String,
    message: String,
}

impl Events {
    /// About a job.
    pub fn tell(&self, key: &JobKey, uid: &str, event: Event) {
        let Event { warning, reason, message } = event;
        self.put(Told { about: reference(key, uid), warning, reason: name(reason), message });
    }

    /// About the operator itself, told about the object that stands for it; without one it is in the log alone.
    pub fn tell_operator(&self, about: Option<ObjectReference>, warning: bool, reason: &str, message: String) {
        if let Some(about) = about {
            self.put(Told { about, warning, reason: reason.to_owned(), message });
        }
    }

    fn put(&self, told: Told) {
        if self.queue.try_send(told).is_err() {
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
        let event = record(&told);
        let error = match tokio::time::timeout(TIMEOUT, recorder.publish(&event, &told.about)).await {
            Ok(Ok(())) => continue,
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {TIMEOUT:?}"),
        };
        telemetry.write_failed("events");
        tracing::debug!(about = told.about.name, error, "an event was not written");
    }
}

/// What was told lately, so that a job in trouble does not tell the same every period.
#[derive(Default)]
struct Repeats {
    last: HashMap<(String, String, String), Instant>,
}

impl Repeats {
    fn is_repeat(&mut self, told: &Told, now: Instant) -> bool {
        if self.last.len() >= QUEUE {
            self.last.retain(|_, at| now.duration_since(*at) < REPEAT);
        }
        let key = (told.about.uid.clone().unwrap_or_default(), told.reason.clone(), told.message.clone());
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

fn reference(key: &JobKey, uid: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some(format!("{}/{}", eto_api::GROUP, eto_api::VERSION)),
        kind: Some("ElasticJob".into()),
        name: Some(key.name.clone()),
        namespace: Some(key.namespace.clone()),
        uid: Some(uid.to_owned()),
        ..ObjectReference::default()
    }
}

fn record(told: &Told) -> Record {
    let mut note = told.message.clone();
    if note.len() > NOTE {
        let end = (0..=NOTE).rev().find(|i| note.is_char_boundary(*i)).unwrap_or(0);
        note.truncate(end);
        note.push('…');
    }
    Record {
        type_: if told.warning { EventType::Warning } else { EventType::Normal },
        action: told.reason.clone(),
        reason: told.reason.clone(),
        note: Some(note),
        secondary: None,
    }
}

fn name(reason: EventReason) -> String {
    match reason {
        EventReason::Condition(reason) => format!("{reason:?}"),
        other => format!("{other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(message: &str) -> Told {
        let key = JobKey { namespace: "n".into(), name: "j".into() };
        let reason = name(EventReason::PolicyFailed);
        Told { about: reference(&key, "u"), warning: true, reason, message: message.into() }
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
        let note = record(&told(&"ü".repeat(2000))).note.unwrap_or_default();
        assert!(note.len() <= NOTE + '…'.len_utf8() && note.ends_with('…'));
    }

    #[test]
    fn reasons_are_named_as_conditions_name_them() {
        use eto_engine::state::ConditionReason;
        assert_eq!(name(EventReason::SuccessfulRescale), "SuccessfulRescale");
        assert_eq!(name(EventReason::Condition(ConditionReason::PodsRefused)), "PodsRefused");
        assert_eq!(record(&told("a")).reason, "PolicyFailed");
    }
}
