//! A gate between an operator and the API server, so that a case can stop the operator's requests at a chosen one.
//!
//! The operator speaks plain HTTP to the gate, and the gate speaks to the real API server as the operator's account. What
//! passes is untouched; what is answered is answered by the API server itself (but see [`Gate::be_busy`]).

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Body;
use axum::http::{Method, Request, Response, StatusCode};
use axum::response::IntoResponse;
use futures::{StreamExt, stream};
use kube::Client;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::{Failure, Outcome};

/// The gate; closed for good when dropped.
pub struct Gate {
    /// For an operator that is to pass through it.
    pub kubeconfig: PathBuf,
    address: SocketAddr,
    inner: Arc<Inner>,
    server: Mutex<Option<JoinHandle<()>>>,
}

struct Inner {
    upstream: Client,
    /// Somebody who may change jobs; the operator may not.
    other: Client,
    state: Mutex<State>,
    /// Writes held back so far.
    held: watch::Sender<u64>,
    /// Grows when all that is in flight is to be cut.
    cut: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    /// Writes that may still pass; `None` = all.
    left: Option<u64>,
    /// Writes of a status before which the job is to be changed by another hand.
    conflicts: u64,
    /// Writes that the API server is too busy for.
    refused: u64,
    /// What passed, as `METHOD resource`.
    passed: Vec<String>,
    closed: bool,
}

impl Gate {
    /// Opens a gate to the API server of `upstream`; its kubeconfig goes into `directory`. `other` is the other hand.
    pub async fn open(upstream: Client, other: Client, directory: &Path) -> Outcome<Gate> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let kubeconfig = directory.join(format!("gate-{}", address.port()));
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "gate",
            "contexts": [{"name": "gate", "context": {"cluster": "gate", "user": "gate"}}],
            "clusters": [{"name": "gate", "cluster": {"server": format!("http://{address}")}}],
            "users": [{"name": "gate", "user": {}}],
        });
        std::fs::write(&kubeconfig, serde_json::to_string(&config)?)?;
        let (held, cut) = (watch::Sender::new(0), watch::Sender::new(0));
        let inner = Arc::new(Inner { upstream, other, state: Mutex::default(), held, cut });
        let server = Mutex::new(Some(serve(listener, &inner)));
        Ok(Gate { kubeconfig, address, inner, server })
    }

    fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        self.inner.with(f)
    }

    /// Lets `n` more writes pass (Leases and events do not count, and always pass) and holds the following ones back.
    pub fn hold_after(&self, n: u64) {
        self.inner.held.send_replace(0);
        self.with(|s| {
            s.left = Some(n);
            s.passed.clear();
        });
    }

    /// Waits until a write is held back.
    pub async fn held(&self) {
        let mut held = self.inner.held.subscribe();
        // The sender lives as long as the gate.
        let _ = held.wait_for(|n| *n > 0).await;
    }

    /// What has passed since [`Gate::hold_after`].
    pub fn passed(&self) -> Vec<String> {
        self.with(|s| s.passed.clone())
    }

    /// Lets everything pass again. What was held back is lost: it never reaches the API server.
    pub fn release(&self) {
        self.with(|s| s.left = None);
        self.cut_all();
    }

    /// Breaks all requests and watches in flight, and says how many there were; new ones pass.
    pub fn cut_all(&self) -> usize {
        let open = self.inner.cut.receiver_count();
        self.inner.cut.send_modify(|n| *n += 1);
        open
    }

    /// Before each of the next `n` writes of a status the job is changed by another hand: the API server refuses them.
    pub fn make_conflicts(&self, n: u64) {
        self.with(|s| s.conflicts = n);
    }

    /// How many of these conflicts are still to come.
    pub fn conflicts_left(&self) -> u64 {
        self.with(|s| s.conflicts)
    }

    /// The next `n` writes (Leases and events do not count) are answered as by a server that is too busy for an hour. This answer
    /// alone is the gate's own: a server of a test has too little to do to give it.
    pub fn be_busy(&self, n: u64) {
        self.with(|s| s.refused = n);
    }

    /// From now on nobody answers at the address: connections are refused, open ones break.
    pub async fn close(&self) {
        if let Some(server) = self.shut() {
            // The port is let go of when the aborted task is next polled; its end is no news.
            let _ = server.await;
        }
    }

    fn shut(&self) -> Option<JoinHandle<()>> {
        self.with(|s| s.closed = true);
        let server = self.server.lock().unwrap_or_else(PoisonError::into_inner).take();
        server.iter().for_each(JoinHandle::abort);
        self.cut_all();
        server
    }

    /// Answers again, at the same address.
    pub async fn reopen(&self) -> Outcome {
        let listener = TcpListener::bind(self.address).await?;
        self.with(|s| s.closed = false);
        *self.server.lock().unwrap_or_else(PoisonError::into_inner) = Some(serve(listener, &self.inner));
        Ok(())
    }

    /// Fails unless connections to the gate are refused.
    pub async fn is_closed(&self) -> Outcome {
        match TcpStream::connect(self.address).await {
            Ok(_) => Err(Failure("the gate still answers".into())),
            Err(_) => Ok(()),
        }
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        let _ = self.shut();
    }
}

fn serve(listener: TcpListener, inner: &Arc<Inner>) -> JoinHandle<()> {
    let inner = Arc::clone(inner);
    let router = axum::Router::new().fallback(move |request: Request<Body>| {
        let inner = Arc::clone(&inner);
        async move { inner.pass(request).await }
    });
    tokio::spawn(async move {
        let _ = axum::serve(listener, router).await;
    })
}

impl Inner {
    fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        f(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    async fn pass(&self, request: Request<Body>) -> Response<Body> {
        let mut cut = self.cut.subscribe();
        if self.with(|s| s.closed) {
            return broken();
        }
        if let Some(what) = counted(request.method(), request.uri().path()) {
            if self.with(|s| one_of(&mut s.refused)) {
                return (StatusCode::TOO_MANY_REQUESTS, [("Retry-After", "3600")], "too busy").into_response();
            }
            let passes = self.with(|s| match &mut s.left {
                Some(0) => false,
                left => {
                    if let Some(n) = left {
                        *n -= 1;
                    }
                    s.passed.push(what);
                    true
                }
            });
            if !passes {
                self.held.send_modify(|n| *n += 1);
                let _ = cut.changed().await;
                return broken();
            }
        }
        tokio::select! {
            answer = self.forward(request, cut.clone()) => answer.unwrap_or_else(|Failure(why)| (StatusCode::BAD_GATEWAY, why).into_response()),
            _ = cut.changed() => broken(),
        }
    }

    async fn forward(&self, request: Request<Body>, mut cut: watch::Receiver<u64>) -> Outcome<Response<Body>> {
        let (mut head, body) = request.into_parts();
        if head.method == Method::PATCH
            && head.uri.path().ends_with("/status")
            && self.with(|s| one_of(&mut s.conflicts))
        {
            self.disturb(head.uri.path()).await?;
        }
        let body = axum::body::to_bytes(body, 16 << 20).await?;
        // The client sets them for the connection it has.
        head.headers.remove("host");
        head.headers.remove("connection");
        let answer = self.upstream.send(Request::from_parts(head, kube::client::Body::from(body.to_vec()))).await?;
        let (head, body) = answer.into_parts();
        let parts = Body::new(body).into_data_stream();
        let broken = async move {
            let _ = cut.changed().await;
            Err(axum::Error::new("the gate was cut"))
        };
        // Whichever comes first ends the body: its own end, or the cut as an error.
        let body = stream::select(parts.map(Some).chain(stream::iter([None])), stream::once(broken).map(Some))
            .take_while(|part| std::future::ready(part.is_some()))
            .filter_map(std::future::ready);
        Ok(Response::from_parts(head, Body::from_stream(body)))
    }

    /// Another hand changes the job of this status URL.
    async fn disturb(&self, status: &str) -> Outcome {
        let url = status.trim_end_matches("/status");
        let body = json!({"metadata": {"annotations": {"e2e/touched": format!("{:?}", std::time::Instant::now())}}});
        let request = Request::patch(url)
            .header("content-type", "application/merge-patch+json")
            .body(kube::client::Body::from(serde_json::to_vec(&body)?))?;
        let answer = self.other.send(request).await?;
        if answer.status().is_success() { Ok(()) } else { Err(Failure(format!("{url}: {}", answer.status()))) }
    }
}

/// Takes one of those that are still to come, if there are any.
fn one_of(left: &mut u64) -> bool {
    let due = *left > 0;
    *left = left.saturating_sub(1);
    due
}

/// A write that is counted: `PATCH pods`.
fn counted(method: &Method, path: &str) -> Option<String> {
    if method == Method::GET || path.contains("/leases") || path.contains("/events") {
        return None;
    }
    let kind = ["elasticjobs", "pods", "services"].into_iter().find(|k| path.contains(&format!("/{k}")))?;
    Some(format!("{method} {kind}{}", if path.ends_with("/status") { "/status" } else { "" }))
}

/// An answer that breaks off, as when the server dies.
fn broken() -> Response<Body> {
    let body = Body::from_stream(stream::iter([Err::<Vec<u8>, _>(std::io::Error::other("the gate is closed"))]));
    (StatusCode::SERVICE_UNAVAILABLE, body).into_response()
}
