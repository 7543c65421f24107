//! A source that answers as the test says, to play what a real Prometheus does not do on demand.

use std::time::Duration;

use axum::extract::Request;
use axum::http::HeaderMap;
use axum::response::Response;
use eto_engine::signals::{SignalData, builtin as names};
use eto_signals::{Prometheus, PrometheusSettings};

use super::{builtin, now, wants};

pub const EMPTY: &str = r#"{"status":"success","data":{"resultType":"vector","result":[]}}"#;
pub const ONE: &str =
    r#"{"status":"success","data":{"resultType":"vector","result":[{"metric":{"namespace":"a"},"value":[1,"4"]}]}}"#;

/// A server that answers every request as the closure says.
pub async fn server<F, R>(answer: F) -> PrometheusSettings
where
    F: Fn(HeaderMap, String) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Response> + Send + 'static,
{
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let app = axum::Router::new().fallback(move |request: Request| {
        let answer = answer.clone();
        async move {
            let uri = request.uri().to_string();
            let headers = request.headers().clone();
            let body = axum::body::to_bytes(request.into_body(), 1 << 20).await.unwrap();
            answer(headers, format!("{uri} {}", String::from_utf8_lossy(&body))).await
        }
    });
    tokio::spawn(async move { axum::serve(listener, app).await });
    PrometheusSettings {
        url,
        retries: 0,
        timeout: Duration::from_millis(500),
        deadline: Duration::from_secs(2),
        ..PrometheusSettings::default()
    }
}

pub async fn always(response: impl Fn() -> Response + Clone + Send + Sync + 'static) -> PrometheusSettings {
    server(move |_, _| {
        let response = response();
        async move { response }
    })
    .await
}

pub async fn gather(settings: PrometheusSettings) -> SignalData {
    let prometheus = Prometheus::new(settings).unwrap();
    gather_once(&prometheus).await
}

pub async fn gather_once(prometheus: &Prometheus) -> SignalData {
    let id = builtin(names::CPU, 60);
    let mut set = prometheus.gather(&wants(&[&id], &["a"]), now()).await;
    set.signals.remove(&id).unwrap()
}

pub async fn trouble(settings: PrometheusSettings) -> String {
    let data = gather(settings).await;
    assert!(data.per_pod.is_empty() && data.per_namespace.is_empty(), "no number out of a failure: {data:?}");
    assert!(data.healthy_since.is_none(), "{data:?}");
    data.trouble.expect("a reason")
}
