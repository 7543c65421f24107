#![allow(clippy::unwrap_used)]
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use eto_engine::decision::{Limit, Limiter, PlacedOn};
use eto_engine::policy::FailureKind;
use eto_engine::time::Time;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::Span as Sent;
use prost::Message;
use tokio::sync::mpsc;

use super::*;

type Batch = (HeaderMap, ExportTraceServiceRequest);

/// A collector on a free port, and what it was sent.
async fn collector() -> (String, mpsc::UnboundedReceiver<Batch>) {
    async fn take(State(to): State<mpsc::UnboundedSender<Batch>>, headers: HeaderMap, body: Bytes) -> StatusCode {
        to.send((headers, ExportTraceServiceRequest::decode(body).unwrap())).unwrap();
        StatusCode::OK
    }
    let (to, taken) = mpsc::unbounded_channel();
    let app = Router::new().route(PATH, post(take)).with_state(to);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    (endpoint, taken)
}

fn key() -> JobKey {
    JobKey { namespace: "team".into(), name: "train".into() }
}

fn decision(from: u32, target: u32) -> Decision {
    let limit = Limit { by: Limiter::ScaleUpLimit, from: 9, to: target, until: None, message: String::new() };
    Decision {
        at: Time(1),
        uid: "u".into(),
        sequence: 7,
        generation: 2,
        policy: Some(PolicyId { name: "hpa".into(), version: "1.0.0".into(), digest: "sha256:aa".into() }),
        answered: true,
        from,
        proposed: Some(9),
        target,
        apply: true,
        limits: vec![limit],
        reasons: vec![],
        signals: vec![],
        fuel: 77,
        failure: None,
        mend: None,
        placement: None,
        next_look: None,
    }
}

fn sent(batch: &ExportTraceServiceRequest) -> Vec<Sent> {
    batch.resource_spans.iter().flat_map(|r| &r.scope_spans).flat_map(|s| s.spans.clone()).collect()
}

fn attribute(span: &Sent, name: &str) -> String {
    let found = span.attributes.iter().find(|a| a.key == name).and_then(|a| a.value.clone());
    format!("{:?}", found.and_then(|v| v.value))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cycle_and_its_decisions_reach_the_collector() {
    let (endpoint, mut taken) = collector().await;
    let folder = tempfile::tempdir().unwrap();
    let headers_file = folder.path().join("headers");
    std::fs::write(&headers_file, "X-Scope-OrgID: team-a\n").unwrap();
    assert!(!format!("{:?}", secret_headers(&headers_file).unwrap()).contains("team-a"));
    let settings = Traces { endpoint, headers_file, ..Traces::default() };
    let spans = Spans::open(&settings, "replica-1", &Telemetry::default()).unwrap();
    let began = SystemTime::now();
    let cycle = spans.cycle();
    cycle.gathered(&SignalSet::default(), began);
    cycle.decided(&key(), &decision(2, 4), began);
    cycle.decided(&key(), &decision(4, 4), began);
    let failure = Failure { kind: FailureKind::Trap, message: "at src/lib.rs:3".into(), in_a_row: 1 };
    cycle.decided(&key(), &Decision { failure: Some(failure.clone()), ..decision(4, 4) }, began);
    cycle.end(3, 1);
    let placed = Placed {
        at: Time(1),
        generation: 2,
        policy: None,
        apply: true,
        nodes: vec![PlacedOn { node: "n-1".into(), required: false, workers: vec![3, 4] }],
        unlisted: 0,
        victims: vec![],
        reasons: vec![],
        fuel: 0,
        failure: None,
    };
    spans.placed(&key(), &placed, began);
    spans.close().await;
    let (headers, batch) = taken.recv().await.unwrap();
    assert_eq!(headers["x-scope-orgid"], "team-a");
    let resource = format!("{:?}", batch.resource_spans[0].resource);
    assert!(resource.contains("elastic-training-operator") && resource.contains("replica-1"), "{resource}");
    let all = sent(&batch);
    let names: Vec<&str> = all.iter().map(|s| s.name.as_str()).collect();
    assert_eq!(names, ["gather", "decide", "decide", "cycle", "place"], "a decision that holds has none");
    let cycle = &all[3];
    assert!(all[..3].iter().all(|s| s.parent_span_id == cycle.span_id && s.trace_id == cycle.trace_id));
    assert!(
        attribute(&all[1], "eto.target").contains('4') && attribute(&all[1], "eto.limits").contains("ScaleUpLimit")
    );
    assert!(attribute(&all[1], "k8s.namespace.name").contains("team"));
    assert!(all[2].status.as_ref().unwrap().message.contains("src/lib.rs:3"));
    assert!(attribute(&all[4], "eto.nodes").contains("n-1: [3, 4]"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_is_away_is_counted_and_holds_nothing_up() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let telemetry = Telemetry::default();
    let spans = Spans::open(&Traces { endpoint, ..Traces::default() }, "r", &telemetry).unwrap();
    spans.cycle().end(0, 0);
    spans.close().await;
    let page = telemetry.page().unwrap();
    assert!(page.contains(r#"eto_span_batches_total{outcome="failed"}"#), "{page}");
}

#[tokio::test]
async fn without_an_endpoint_there_are_none_and_a_wrong_file_is_named() {
    let none = Spans::open(&Traces::default(), "r", &Telemetry::default()).unwrap();
    none.cycle().end(0, 0);
    none.close().await;
    let said = |headers_file: &Path| {
        let (endpoint, headers_file) = ("http://127.0.0.1:1".into(), headers_file.to_owned());
        let settings = Traces { endpoint, headers_file, ..Traces::default() };
        Spans::open(&settings, "r", &Telemetry::default()).unwrap_err().to_string()
    };
    let none = said(Path::new("/none"));
    assert!(none.starts_with("traces.headers-file /none"), "{none}");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, "X-Token: s3\u{1}cret\n").unwrap();
    let bad = said(file.path());
    assert!(bad.contains("X-Token") && !bad.contains("cret"), "{bad}");
}
