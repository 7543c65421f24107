//! What a source can do wrong, and that each is told apart and leaves the rest alone.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use common::server::{EMPTY, ONE, always, gather, server, trouble};
use common::{builtin, custom, now, wants};
use eto_engine::signals::builtin as names;
use eto_engine::time::Time;
use eto_signals::{Prometheus, PrometheusSettings};

#[tokio::test]
async fn wrong_answers_are_told_apart() {
    let html = || {
        (StatusCode::OK, [(header::CONTENT_TYPE, "text/html")], "<!DOCTYPE html><html>Sign in</html>").into_response()
    };
    assert!(trouble(always(html).await).await.contains("HTML page"));
    let gateway = || (StatusCode::BAD_GATEWAY, "<html><h1>502</h1></html>").into_response();
    let text = trouble(always(gateway).await).await;
    assert!(text.contains("HTTP 502") && text.contains("HTML"), "{text}");
    let broken = || (StatusCode::INTERNAL_SERVER_ERROR, "out of\n   memory").into_response();
    assert!(trouble(always(broken).await).await.contains("HTTP 500 from Prometheus: out of memory"));
    let denied = || (StatusCode::UNAUTHORIZED, "who are you").into_response();
    assert!(trouble(always(denied).await).await.contains("prometheus.bearer-token-file"));
    let refused = || {
        let body = r#"{"status":"error","errorType":"bad_data","error":"1:2: parse error"}"#;
        (StatusCode::BAD_REQUEST, body).into_response()
    };
    assert!(trouble(always(refused).await).await.contains("(bad_data): 1:2: parse error"));
    let moved =
        || (StatusCode::FOUND, [(header::LOCATION, "https://u:hunter2@login.example/x?token=hunter2")]).into_response();
    let text = trouble(always(moved).await).await;
    assert!(text.contains("login.example/x") && !text.contains("hunter2"), "{text}");
    let cut = || (StatusCode::OK, r#"{"status":"success","data":{"resultType":"vec"#).into_response();
    assert!(trouble(always(cut).await).await.contains("not JSON"));
    let matrix = || r#"{"status":"success","data":{"resultType":"matrix","result":[]}}"#.into_response();
    assert!(trouble(always(matrix).await).await.contains("matrix"));
}

#[tokio::test]
async fn warnings_do_not_hide_and_do_not_stop() {
    let partial = || {
        r#"{"status":"success","warnings":["store node-3 unreachable"],"data":{"resultType":"vector","result":[
            {"metric":{"namespace":"a","pod":"w-0"},"value":[1700000000,"0.5"]},
            {"metric":{"namespace":"a","pod":"w-1"},"value":[1700000000,"NaN"]}]}}"#
            .into_response()
    };
    let data = gather(always(partial).await).await;
    assert!(data.trouble.as_ref().unwrap().contains("store node-3 unreachable"), "{data:?}");
    assert!((data.per_pod["a"]["w-0"].value - 0.5).abs() < f64::EPSILON);
    assert!(data.per_pod["a"]["w-1"].value.is_nan());
    assert!(data.healthy_since.is_none(), "a sum that lacks a part must not shrink a job");
    // A remark on the query itself is only shown.
    let remark = || {
        r#"{"status":"success","warnings":["PromQL warning: bucket label missing"],"infos":["PromQL info: not a counter"],
            "data":{"resultType":"vector","result":[]}}"#
            .into_response()
    };
    let data = gather(always(remark).await).await;
    assert!(data.healthy_since.is_some(), "{data:?}");
    assert!(data.trouble.as_ref().unwrap().contains("not a counter"), "{data:?}");
}

#[tokio::test]
async fn nobody_there_is_a_reason_and_not_a_wait() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let text = trouble(PrometheusSettings { url: url.clone(), retries: 1, ..PrometheusSettings::default() }).await;
    assert!(text.contains("can't be reached") && text.contains(&url), "{text}");
}

#[tokio::test]
async fn a_slow_source_is_left_at_the_timeout() {
    let settings = server(|_, _| async { std::future::pending::<Response>().await }).await;
    let begun = Instant::now();
    let text = trouble(settings).await;
    assert!(text.contains("did not answer within"), "{text}");
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    // One that drips its body for ever too.
    let drip = || {
        let stream = futures::stream::unfold(0, |n| async move {
            tokio::time::sleep(Duration::from_millis(20)).await;
            Some((Ok::<_, std::io::Error>(" "), n + 1))
        });
        Body::from_stream(stream).into_response()
    };
    assert!(trouble(always(drip).await).await.contains("did not answer within"));
}

#[tokio::test]
async fn a_huge_answer_is_cut_off() {
    let huge = || {
        Body::from_stream(futures::stream::repeat_with(|| Ok::<_, std::io::Error>("x".repeat(65536)))).into_response()
    };
    let settings = PrometheusSettings { max_response_bytes: 1 << 20, ..always(huge).await };
    assert!(trouble(settings).await.contains("larger than 1048576 bytes"));
    let announced = || (StatusCode::OK, "y".repeat(5000)).into_response();
    let settings = PrometheusSettings { max_response_bytes: 4096, ..always(announced).await };
    assert!(trouble(settings).await.contains("larger than 4096 bytes"));
}

#[tokio::test]
async fn passing_failures_are_tried_again_and_lasting_ones_are_not() {
    let count = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&count);
    let settings = always(move || {
        // Values and times are asked for at once: two requests fail, then all is well.
        if seen.fetch_add(1, Ordering::SeqCst) < 2 {
            StatusCode::SERVICE_UNAVAILABLE.into_response()
        } else {
            EMPTY.into_response()
        }
    })
    .await;
    let data = gather(PrometheusSettings { retries: 2, ..settings }).await;
    assert!(data.trouble.is_none(), "{data:?}");
    assert_eq!(count.load(Ordering::SeqCst), 4);

    let count = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&count);
    let settings = always(move || {
        seen.fetch_add(1, Ordering::SeqCst);
        StatusCode::NOT_FOUND.into_response()
    })
    .await;
    assert!(trouble(PrometheusSettings { retries: 5, ..settings }).await.contains("HTTP 404"));
    assert!(count.load(Ordering::SeqCst) <= 2);
}

#[tokio::test]
async fn no_more_requests_at_once_than_allowed_and_one_query_per_signal() {
    let (inside, most, total) =
        (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (i, m, t) = (Arc::clone(&inside), Arc::clone(&most), Arc::clone(&total));
    let settings = server(move |_, _| {
        let (i, m, t) = (Arc::clone(&i), Arc::clone(&m), Arc::clone(&t));
        async move {
            t.fetch_add(1, Ordering::SeqCst);
            m.fetch_max(i.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(20)).await;
            i.fetch_sub(1, Ordering::SeqCst);
            EMPTY.into_response()
        }
    })
    .await;
    let settings = PrometheusSettings { max_concurrency: 3, deadline: Duration::from_secs(30), ..settings };
    let prometheus = Prometheus::new(settings).unwrap();
    let many: Vec<String> = (0..500).map(|i| format!("team-{i}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let ids = [builtin(names::CPU, 60), builtin(names::GPU, 60), custom("sum by (namespace) (x)")];
    prometheus.gather(&wants(&[&ids[0], &ids[1], &ids[2]], &many), now()).await;
    assert_eq!(total.load(Ordering::SeqCst), 6, "values and times of three signals, whatever the number of namespaces");
    prometheus.gather(&wants(&[&custom("scalar(sum(x))")], &many[..20]), now()).await;
    assert_eq!(total.load(Ordering::SeqCst), 6 + 40);
    assert!(most.load(Ordering::SeqCst) <= 3);
}

#[tokio::test]
async fn one_namespace_that_fails_is_its_own_trouble() {
    let settings = server(|_, request| async move {
        if request.contains("bad") {
            let body = r#"{"status":"error","errorType":"execution","error":"many-to-many matching not allowed"}"#;
            (StatusCode::UNPROCESSABLE_ENTITY, body).into_response()
        } else {
            ONE.into_response()
        }
    })
    .await;
    let prometheus = Prometheus::new(settings).unwrap();
    let id = custom("sum(x) or vector(0)");
    let mut set = prometheus.gather(&wants(&[&id], &["a", "bad"]), now()).await;
    let data = set.signals.remove(&id).unwrap();
    assert!((data.per_namespace["a"].value - 4.0).abs() < f64::EPSILON, "{data:?}");
    assert!(data.namespace_trouble["bad"].contains("many-to-many"), "{data:?}");
    assert!(data.trouble.is_none() && data.healthy_since.is_some(), "{data:?}");
}

/// Who shares a request with a namespace that is late is asked for by itself, at once, and for a while without trying the
/// shared request again.
#[tokio::test]
async fn one_namespace_that_is_late_is_its_own_trouble() {
    let shared = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&shared);
    let settings = server(move |_, request| {
        let (of_both, late) = (request.contains("good") && request.contains("late"), request.contains("late"));
        seen.fetch_add(usize::from(of_both), Ordering::SeqCst);
        async move {
            if late {
                return std::future::pending::<Response>().await;
            }
            ONE.replace("\"a\"", "\"good\"").into_response()
        }
    })
    .await;
    let settings = PrometheusSettings {
        retries: 1,
        timeout: Duration::from_millis(700),
        deadline: Duration::from_secs(5),
        ..settings
    };
    let prometheus = Prometheus::new(settings).unwrap();
    let id = custom("sum(x)");
    let gather = async |at: u64| {
        let mut set = prometheus.gather(&wants(&[&id], &["good", "late"]), Time(at)).await;
        set.signals.remove(&id).unwrap()
    };
    for at in [1000, 2000] {
        let data = gather(at).await;
        assert!((data.per_namespace["good"].value - 4.0).abs() < f64::EPSILON, "{data:?}");
        assert!(data.namespace_trouble["late"].contains("did not answer within"), "{data:?}");
        assert_eq!((data.trouble.clone(), data.healthy_since), (None, Some(Time(1000))), "{data:?}");
        assert_eq!(shared.load(Ordering::SeqCst), 2, "values and times, tried once");
    }
    gather(1_000_000).await;
    assert_eq!(shared.load(Ordering::SeqCst), 4, "it may be mended by now");
}

#[tokio::test]
async fn a_signal_that_failed_is_remembered_though_others_are_asked_for_in_between() {
    let fails = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let switch = Arc::clone(&fails);
    let settings = server(move |_, request| {
        let bad = request.contains("mine") && switch.load(Ordering::SeqCst);
        async move { if bad { StatusCode::INTERNAL_SERVER_ERROR.into_response() } else { EMPTY.into_response() } }
    })
    .await;
    let prometheus = Prometheus::new(settings).unwrap();
    let (mine, other) = (custom("mine"), builtin(names::CPU, 60));
    let ask = async |id: &eto_engine::signals::SignalId, at: u64| {
        let mut set = prometheus.gather(&wants(&[id], &["a"]), Time(at)).await;
        set.signals.remove(id).unwrap().healthy_since
    };
    assert_eq!(ask(&other, 1000).await, Some(Time(1000)));
    assert_eq!(ask(&mine, 2000).await, Some(Time(1000)), "the source has been there since then");
    fails.store(true, Ordering::SeqCst);
    assert_eq!(ask(&mine, 3000).await, None);
    assert_eq!(ask(&other, 4000).await, Some(Time(1000)), "one signal's failure is not another's");
    fails.store(false, Ordering::SeqCst);
    assert_eq!(ask(&other, 5000).await, Some(Time(1000)));
    assert_eq!(ask(&mine, 6000).await, Some(Time(6000)), "a window begins here");
    // What nobody has asked for in an hour is forgotten, and begins with the source.
    assert_eq!(ask(&other, 4_000_000).await, Some(Time(1000)));
    assert_eq!(ask(&mine, 4_000_001).await, Some(Time(4000)));
}
