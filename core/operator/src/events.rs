//! Events, written after everything that matters more: queued, merged, and limited in rate.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use eto_engine::job::JobKey;
use eto_engine::plan::{Event, EventReason};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event as Record;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use tokio::sync::{mpsc, watch};

use crate::leader::Leadership;
use crate::telemetry::Telemetry;

/// More than this waiting are dropped (and counted): events are a summary, the decision log is the record.
const QUEUE: usize = 4096;
/// The same event of the same job within this time is written once.
const REPEAT: Duration = Duration::from_secs(300);
/// An event that takes longer is given up: an API server that hangs must not keep the operator from stopping.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long a server that is too busy is left alone.
const BUSY: Duration = Duration::from_millis(500);
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
    let instance = std::env::var("HOSTNAME").ok().filter(|name| !name.is_empty());
    let recorder = Recorder { client, instance: instance.unwrap_or_else(|| eto_api::labels::MANAGER.to_owned()) };
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
        let error = match tokio::time::timeout(TIMEOUT, recorder.write(&told)).await {
            Ok(Ok(())) => continue,
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("not taken within {TIMEOUT:?}"),
        };
        telemetry.write_failed("events");
        tracing::debug!(about = told.about.name, error, "an event was not written");
    }
}

/// Writes each event as an object of its own. The recorder of kube-runtime takes all events of one reason about one object
/// for a series, and keeps the first one's words: the second resize would read as the first.
struct Recorder {
    client: Client,
    instance: String,
}

impl Recorder {
    /// Tries again as long as the API server is only too busy (who calls sets a limit): nothing else tells the same event
    /// once more.
    async fn write(&self, told: &Told) -> Result<(), kube::Error> {
        loop {
            match self.create(told).await {
                Err(kube::Error::Api(status)) if matches!(status.code, 429 | 503 | 504) => {
                    tokio::time::sleep(BUSY).await;
                }
                done => return done,
            }
        }
    }

    async fn create(&self, told: &Told) -> Result<(), kube::Error> {
        let namespace = told.about.namespace.as_deref().unwrap_or("default");
        let events: Api<Record> = Api::namespaced(self.client.clone(), namespace);
        let event = record(told, &self.instance, Timestamp::now());
        events.create(&PostParams::default(), &event).await.map(drop)
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

fn record(told: &Told, instance: &str, now: Timestamp) -> Record {
    let mut note = told.message.clone();
    if note.len() > NOTE {
        let end = (0..=NOTE).rev().find(|i| note.is_char_boundary(*i)).unwrap_or(0);
        note.truncate(end);
        note.push('…');
    }
    Record {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-", told.about.name.as_deref().unwrap_or(eto_api::labels::MANAGER))),
            namespace: told.about.namespace.clone(),
            ..ObjectMeta::default()
        },
        event_time: Some(MicroTime(now)),
        type_: Some(if told.warning { "Warning" } else { "Normal" }.to_owned()),
        action: Some(told.reason.clone()),
        reason: Some(told.reason.clone()),
        note: Some(note),
        regarding: Some(told.about.clone()),
        reporting_controller: Some(eto_api::labels::MANAGER.to_owned()),
        reporting_instance: Some(instance.to_owned()),
        ..Record::default()
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
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU16, Ordering};

    use axum::http::{StatusCode, Uri};

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

    #[tokio::test]
    async fn an_event_that_a_busy_server_refuses_is_written_later() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url: Uri = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let asked = Arc::new(AtomicU16::new(0));
        let count = Arc::clone(&asked);
        let answer = move |body: String| async move {
            match count.fetch_add(1, Ordering::Relaxed) {
                0 => (StatusCode::TOO_MANY_REQUESTS, String::new()),
                _ => (StatusCode::CREATED, body),
            }
        };
        tokio::spawn(async move { axum::serve(listener, axum::Router::new().fallback(answer)).await });
        let mut config = kube::Config::new(url);
        config.default_retry = false;
        let client = Client::try_from(config).unwrap();
        let recorder = Recorder { client, instance: "i".into() };
        recorder.write(&told("a")).await.unwrap();
        assert_eq!(asked.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_long_note_is_cut_at_a_character() {
        let note = record(&told(&"ü".repeat(2000)), "i", Timestamp::UNIX_EPOCH).note.unwrap_or_default();
        assert!(note.len() <= NOTE + '…'.len_utf8() && note.ends_with('…'));
    }

    #[test]
    fn reasons_are_named_as_conditions_name_them() {
        use eto_engine::state::ConditionReason;
        assert_eq!(name(EventReason::SuccessfulRescale), "SuccessfulRescale");
        assert_eq!(name(EventReason::Condition(ConditionReason::PodsRefused)), "PodsRefused");
        let event = record(&told("a"), "i", Timestamp::UNIX_EPOCH);
        assert_eq!(event.reason.as_deref(), Some("PolicyFailed"));
        assert_eq!(event.metadata.generate_name.as_deref(), Some("j-"));
    }
}
