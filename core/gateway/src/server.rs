//! The server that agents talk to.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::ServerConfig;
use rustls::crypto::ring;
use tokio::net::TcpListener;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;

use crate::connection;
use crate::etcd::lock;
use crate::identity::Shown;
use crate::metrics::Metrics;
use crate::sessions::Sessions;
use crate::tokens::Tokens;
use crate::topics::Topics;
use crate::writer::Writer;
use crate::{Authenticator, Groups, Identity, IdentityError, Store};

/// How much a gateway replica takes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections that are open at once. One more is closed as soon as it is opened; the agent tries again, maybe with
    /// another replica.
    pub connections: usize,
    /// Connections of one pod. An agent needs two: one for its reports and one to watch.
    pub connections_per_pod: usize,
    /// Connections that have not shown a good token yet.
    pub strangers: usize,
    /// Members whose records are kept.
    pub members: usize,
    /// How long a connection may take to show a good token.
    pub greeting: Duration,
    /// How long a request may take to arrive, and an answer to be taken.
    pub patience: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections: 100_000,
            connections_per_pod: 4,
            strangers: 4_096,
            members: 100_000,
            greeting: Duration::from_secs(10),
            patience: Duration::from_secs(30),
        }
    }
}

/// What all connections share.
#[derive(Debug)]
pub(crate) struct Shared<A> {
    pub(crate) tokens: Tokens<A>,
    pub(crate) state: Arc<State>,
}

/// What does not depend on who tells whose a token is.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) sessions: Mutex<Sessions>,
    pub(crate) topics: Topics,
    pub(crate) groups: Groups,
    pub(crate) limits: Limits,
    pub(crate) metrics: Metrics,
    /// Wakes the writer.
    pub(crate) due: Notify,
    pub(crate) stop: watch::Receiver<bool>,
    pub(crate) strangers: Arc<Semaphore>,
    /// Connections by pod UID.
    pub(crate) pods: Mutex<HashMap<String, usize>>,
    began: Instant,
}

impl State {
    /// Milliseconds on the monotonic clock.
    pub(crate) fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// Milliseconds since the Unix epoch.
pub(crate) fn wall_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX))
}

/// A gateway replica that serves. To be ended with [`Server::shutdown`]; dropped, it ends at once.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    identity: Arc<Shown>,
    state: Arc<State>,
    stop: watch::Sender<bool>,
    open: Arc<Semaphore>,
    tasks: Tasks,
}

#[derive(Debug)]
struct Tasks {
    accept: JoinHandle<()>,
    writer: JoinHandle<()>,
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.accept.abort();
        self.writer.abort();
    }
}

/// Why a server can't be started.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The listener.
    #[error("gateway: {0}")]
    Listener(#[from] std::io::Error),
    /// The identity.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// TLS.
    #[error("gateway: TLS: {0}")]
    Tls(#[from] rustls::Error),
}

impl Server {
    /// Serves agents on this listener, with members' records in `store` and assignments from `groups`, which follows it.
    /// etcd need not be there: agents are answered, and what they told is written when it is.
    pub fn start<A: Authenticator>(
        listener: TcpListener,
        identity: &Identity,
        authenticator: A,
        store: &Store,
        groups: &Groups,
        limits: Limits,
        metrics: &Metrics,
    ) -> Result<Self, ServerError> {
        let address = listener.local_addr()?;
        let shown = Arc::new(Shown::new(identity)?);
        let acceptor = acceptor(&shown)?;
        let (stop, stopped) = watch::channel(false);
        let state = Arc::new(State {
            sessions: Mutex::new(Sessions::new(limits.members, 0)),
            topics: Topics::default(),
            groups: groups.clone(),
            limits,
            metrics: metrics.clone(),
            due: Notify::new(),
            stop: stopped,
            strangers: Arc::new(Semaphore::new(limits.strangers)),
            pods: Mutex::default(),
            began: Instant::now(),
        });
        let shared = Arc::new(Shared {
            tokens: Tokens::new(authenticator, limits.connections, metrics.clone()),
            state: Arc::clone(&state),
        });
        let open = Arc::new(Semaphore::new(limits.connections));
        let writer = Writer::new(store.replica(), Arc::clone(&state));
        let tasks = Tasks {
            accept: tokio::spawn(accept(listener, acceptor, shared, Arc::clone(&open))),
            writer: tokio::spawn(writer.run()),
        };
        Ok(Server { address, identity: shown, state, stop, open, tasks })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Shows another certificate to connections from now on; those that are open stay.
    pub fn swap_identity(&self, identity: &Identity) -> Result<(), IdentityError> {
        self.identity.swap(identity)
    }

    /// The pod is gone: its record goes at once instead of after ten minutes of silence.
    pub fn forget_pod(&self, pod_uid: &str) {
        if lock(&self.state.sessions).leave(pod_uid) {
            self.state.due.notify_one();
        }
    }

    /// Members whose agents talk to this replica.
    pub fn members(&self) -> usize {
        lock(&self.state.sessions).len()
    }

    /// Ends it cleanly, within five seconds: streams end as they do where nothing is wrong, so that agents move to
    /// another replica at once, and what they told is written. Records stay until others have taken them over.
    pub async fn shutdown(self) {
        let Server { state, stop, open, mut tasks, .. } = self;
        stop.send_replace(true);
        let deadline = Instant::now() + Duration::from_secs(5);
        let all = u32::try_from(state.limits.connections).unwrap_or(u32::MAX);
        let _ = tokio::time::timeout_at(deadline, open.acquire_many(all)).await;
        let _ = tokio::time::timeout_at(deadline, &mut tasks.writer).await;
    }
}

fn acceptor(shown: &Arc<Shown>) -> Result<TlsAcceptor, rustls::Error> {
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(Arc::<Shown>::clone(shown));
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

async fn accept<A: Authenticator>(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    shared: Arc<Shared<A>>,
    open: Arc<Semaphore>,
) {
    let mut stop = shared.state.stop.clone();
    let mut sweep = tokio::time::interval(Duration::from_secs(30));
    loop {
        let accepted = tokio::select! {
            _ = stop.wait_for(|s| *s) => return,
            _ = sweep.tick() => {
                shared.state.topics.sweep();
                shared.tokens.sweep(Instant::now());
                continue;
            }
            accepted = listener.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of file descriptors, most likely: those that are open go on.
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let Ok(permit) = Arc::clone(&open).try_acquire_owned() else {
            shared.state.metrics.refuse("connections");
            continue;
        };
        let Ok(stranger) = Arc::clone(&shared.state.strangers).try_acquire_owned() else {
            shared.state.metrics.refuse("strangers");
            continue;
        };
        let (acceptor, shared) = (acceptor.clone(), Arc::clone(&shared));
        tokio::spawn(async move {
            connection::serve(stream, acceptor, shared, stranger).await;
            drop(permit);
        });
    }
}
