//! One connection of an agent, from its handshake to its end.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio_rustls::TlsAcceptor;

use crate::etcd::lock;
use crate::metrics::count;
use crate::requests::{self, Answer};
use crate::server::{Shared, State};
use crate::slow::Bounded;
use crate::{Authenticator, Caller};

/// What hyper buffers of a connection, in bytes: enough for the headers of a request with a long token.
const BUFFER: usize = 16 * 1024;

/// A connection as its requests see it.
#[derive(Debug)]
pub(crate) struct Peer {
    state: Arc<State>,
    /// Whose it is, from its first good token on.
    place: OnceLock<Place>,
    /// Given back when it is known whose it is.
    stranger: Mutex<Option<OwnedSemaphorePermit>>,
    known: Notify,
}

/// One of the connections that a pod may have.
#[derive(Debug)]
struct Place {
    state: Arc<State>,
    pod_uid: String,
}

/// Why a connection is not for a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoPlace {
    /// The pod has as many as it may.
    TooMany,
    /// It is another pod's.
    Other,
}

impl Peer {
    /// Ties the connection to its pod, the first time.
    pub(crate) fn admit(&self, caller: &Caller) -> Result<(), NoPlace> {
        let place = if let Some(place) = self.place.get() {
            place
        } else {
            let place = Place::take(&self.state, &caller.pod_uid).ok_or(NoPlace::TooMany)?;
            self.place.get_or_init(|| place)
        };
        if place.pod_uid != caller.pod_uid {
            return Err(NoPlace::Other);
        }
        if lock(&self.stranger).take().is_some() {
            self.known.notify_one();
        }
        Ok(())
    }
}

impl Place {
    fn take(state: &Arc<State>, pod_uid: &str) -> Option<Place> {
        let mut pods = lock(&state.pods);
        let open = pods.entry(pod_uid.to_owned()).or_default();
        if *open >= state.limits.connections_per_pod {
            return None;
        }
        *open += 1;
        Some(Place { state: Arc::clone(state), pod_uid: pod_uid.to_owned() })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut pods = lock(&self.state.pods);
        if let Some(open) = pods.get_mut(&self.pod_uid) {
            *open = open.saturating_sub(1);
            if *open == 0 {
                pods.remove(&self.pod_uid);
            }
        }
    }
}

/// Serves a connection until it ends or the server does.
pub(crate) async fn serve<A: Authenticator>(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    shared: Arc<Shared<A>>,
    stranger: OwnedSemaphorePermit,
) {
    let state = Arc::clone(&shared.state);
    state.metrics.connections.inc();
    let limits = state.limits;
    if let Err(error) = prepare(&stream, limits.patience) {
        tracing::debug!(%error, "a connection's options could not be set");
    }
    let bounded = Bounded::new(stream, limits.patience);
    match tokio::time::timeout(limits.greeting, acceptor.accept(bounded)).await {
        Ok(Ok(tls)) => {
            let peer = Arc::new(Peer {
                state: Arc::clone(&state),
                place: OnceLock::new(),
                stranger: Mutex::new(Some(stranger)),
                known: Notify::new(),
            });
            let asked = Arc::clone(&peer);
            let service = service_fn(move |request: Request<Incoming>| {
                let (shared, peer) = (Arc::clone(&shared), Arc::clone(&asked));
                async move {
                    Ok::<Response<Answer>, std::convert::Infallible>(requests::answer(&shared, &peer, request).await)
                }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(limits.patience)
                .max_buf_size(BUFFER)
                .serve_connection(TokioIo::new(tls), service);
            run(connection, &peer, &state).await;
        }
        Ok(Err(_)) => state.metrics.refuse("handshake"),
        Err(_) => state.metrics.refuse("greeting"),
    }
    state.metrics.connections.dec();
}

/// Polls a connection until it ends, ends it cleanly with the server, and closes one that does not say who it is.
async fn run<C>(connection: C, peer: &Peer, state: &State)
where
    C: GracefulConnection,
{
    let mut stop = state.stop.clone();
    let mut connection = std::pin::pin!(connection);
    let mut greeting = std::pin::pin!(tokio::time::sleep(state.limits.greeting));
    let (mut stranger, mut stopping) = (true, false);
    loop {
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection broke");
                }
                return;
            }
            () = peer.known.notified(), if stranger => stranger = false,
            () = greeting.as_mut(), if stranger => return state.metrics.refuse("greeting"),
            _ = stop.wait_for(|s| *s), if !stopping => {
                stopping = true;
                connection.as_mut().graceful();
            }
        }
    }
}

/// What [`run`] needs of a connection: hyper's has many type parameters.
trait GracefulConnection: Future<Output = hyper::Result<()>> {
    fn graceful(self: std::pin::Pin<&mut Self>);
}

impl<I, S> GracefulConnection for http1::Connection<I, S>
where
    S: hyper::service::HttpService<Incoming, ResBody = Answer>,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    I: hyper::rt::Read + hyper::rt::Write + Unpin,
    Self: Future<Output = hyper::Result<()>>,
{
    fn graceful(self: std::pin::Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

/// A peer that is gone, or takes nothing, is noticed by the kernel too.
fn prepare(stream: &TcpStream, patience: Duration) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    let keepalive = TcpKeepalive::new().with_time(Duration::from_secs(30)).with_interval(Duration::from_secs(10));
    socket.set_tcp_keepalive(&keepalive)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(patience))?;
    Ok(())
}

/// Counts the streams that are open.
#[derive(Debug)]
pub(crate) struct Open(Arc<State>);

impl Open {
    pub(crate) fn new(state: &Arc<State>) -> Self {
        state.metrics.streams.inc();
        Open(Arc::clone(state))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.metrics.streams.dec();
        self.0.metrics.members.set(count(lock(&self.0.sessions).len()));
    }
}
