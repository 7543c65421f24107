//! The agent's two small HTTP servers: one on localhost for the script, one on the pod's address for probes and metrics.
//! What scripts tell is taken on localhost alone: the pod's address is everybody's. Both only carry calls to the agent's loop, so that an answer of `/healthz` says that the loop is alive.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::run::say;

/// Most of a body that is read.
const MOST_OF_BODY: usize = 64 * 1024;
/// The most that a request may take to come, head or body.
const PATIENCE: Duration = Duration::from_secs(10);
/// The most that a connection may last: what is asked is answered at once.
const LIFE: Duration = Duration::from_secs(30);
/// Connections of a listener at once. Beyond that the oldest is closed: clients that only hold theirs, from wherever they
/// come, must not keep the kubelet's probe out.
const MOST_CONNECTIONS: usize = 256;
/// Pause after a connection could not be taken (too many open files, say).
const PAUSE: Duration = Duration::from_millis(100);

/// A request that waits for its answer.
pub(crate) struct Call {
    /// It came from within the pod.
    pub(crate) local: bool,
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) body: Bytes,
    pub(crate) answer: oneshot::Sender<Answer>,
}

/// What is answered.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) kind: &'static str,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn text(status: StatusCode, body: impl Into<String>) -> Answer {
        Answer { status, kind: "text/plain; version=0.0.4; charset=utf-8", body: body.into() }
    }

    pub(crate) fn json(status: StatusCode, body: &serde_json::Value) -> Answer {
        Answer { status, kind: "application/json", body: body.to_string() }
    }
}

/// A listener at this address, or at another port: in the host's network another pod of the node may have it. Training
/// matters more, so that there may be none.
pub(crate) async fn listen(address: SocketAddr) -> Option<TcpListener> {
    let error = match TcpListener::bind(address).await {
        Ok(listener) => return Some(listener),
        Err(error) => error,
    };
    let other = TcpListener::bind((address.ip(), 0)).await.ok();
    let port = other.as_ref().and_then(|l| l.local_addr().ok()).map(|a| format!("metrics on port {}", a.port()));
    let what = port.as_deref().unwrap_or("no metrics");
    say(&format!("{what}: {address}: {error}; ETO_METRICS_PORT sets another port"));
    other
}

/// Takes connections until the calls' receiver is gone. `local` = the listener is on localhost.
pub(crate) async fn serve(listener: TcpListener, local: bool, calls: mpsc::Sender<Call>) {
    let mut open: VecDeque<AbortHandle> = VecDeque::new();
    while !calls.is_closed() {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        open.retain(|connection| !connection.is_finished());
        if open.len() >= MOST_CONNECTIONS
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
        }
        let calls = calls.clone();
        let connection = tokio::spawn(async move {
            let service = service_fn(|request| respond(request, local, calls.clone()));
            let mut server = http1::Builder::new();
            let server = server.timer(TokioTimer::new()).header_read_timeout(PATIENCE);
            // A client that goes away in the middle, or takes too long, is its own trouble.
            let _ = timeout(LIFE, server.serve_connection(TokioIo::new(stream), service)).await;
        });
        open.push_back(connection.abort_handle());
    }
}

async fn respond(
    request: Request<Incoming>,
    local: bool,
    calls: mpsc::Sender<Call>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let answer = ask(request, local, &calls).await;
    let mut response = Response::new(Full::new(Bytes::from(answer.body)));
    *response.status_mut() = answer.status;
    response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(answer.kind));
    Ok(response)
}

async fn ask(request: Request<Incoming>, local: bool, calls: &mpsc::Sender<Call>) -> Answer {
    let (head, body) = request.into_parts();
    let body = match timeout(PATIENCE, Limited::new(body, MOST_OF_BODY).collect()).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(_)) => return Answer::text(StatusCode::PAYLOAD_TOO_LARGE, "the body is cut or over 64 KiB\n"),
        Err(_) => return Answer::text(StatusCode::REQUEST_TIMEOUT, "the body did not come in time\n"),
    };
    let (answer, answered) = oneshot::channel();
    let call = Call { local, method: head.method, path: head.uri.path().to_owned(), body, answer };
    let ending = || Answer::text(StatusCode::SERVICE_UNAVAILABLE, "the agent is about to end\n");
    if calls.send(call).await.is_err() {
        return ending();
    }
    answered.await.unwrap_or_else(|_| ending())
}
