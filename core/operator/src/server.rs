//! `/healthz`, `/readyz` and `/metrics`, on one port.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::telemetry::Telemetry;

/// What readiness depends on. A follower is ready too: its caches are warm.
#[derive(Clone, Debug, Default)]
pub struct Readiness {
    ready: Arc<AtomicBool>,
}

impl Readiness {
    pub fn set(&self, ready: bool) {
        self.ready.store(ready, Ordering::SeqCst);
    }

    pub fn get(&self) -> bool {
        self.ready.load(Ordering::SeqCst)
    }
}

#[derive(Clone)]
struct Shared {
    readiness: Readiness,
    telemetry: Telemetry,
}

/// Opens the port. Done before anything else, so that a taken port is an error at start.
pub async fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    TcpListener::bind(address).await
}

/// Serves until `stop` turns true.
pub async fn serve(listener: TcpListener, readiness: Readiness, telemetry: Telemetry, mut stop: watch::Receiver<bool>) {
    let app = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(Shared { readiness, telemetry });
    let served = axum::serve(listener, app).with_graceful_shutdown(async move {
        let _ = stop.wait_for(|s| *s).await;
    });
    if let Err(error) = served.await {
        tracing::error!(%error, "the server of /healthz, /readyz and /metrics has ended");
    }
}

async fn readyz(State(shared): State<Shared>) -> Response {
    if shared.readiness.get() {
        "ok\n".into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "the caches are not filled yet\n").into_response()
    }
}

async fn metrics(State(shared): State<Shared>) -> Response {
    match shared.telemetry.page() {
        Ok(page) => ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    async fn get(address: SocketAddr, path: &str) -> String {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn readiness_follows_the_caches_and_metrics_are_text() {
        let listener = bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = watch::channel(false);
        let readiness = Readiness::default();
        let telemetry = Telemetry::default();
        telemetry.api_request("patch", "pods", Some(200));
        let server = tokio::spawn(serve(listener, readiness.clone(), telemetry, stopped));
        assert!(get(address, "/healthz").await.starts_with("HTTP/1.1 200"));
        assert!(get(address, "/readyz").await.starts_with("HTTP/1.1 503"));
        readiness.set(true);
        assert!(get(address, "/readyz").await.starts_with("HTTP/1.1 200"));
        let page = get(address, "/metrics").await;
        assert!(page.contains(r#"eto_api_requests_total{verb="patch",resource="pods",code="200"} 1"#), "{page}");
        stop.send_replace(true);
        server.await.unwrap();
    }
}
