//! A gateway replica in a runtime of its own, so that it can be killed with all it holds.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use eto_agent::client::{Client, Link, Token};
use eto_gateway::{AuthError, Authenticator, Caller, Groups, Identity, Limits, Metrics, Server, Store, StoreSettings};
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};

/// Tokens are `<pod uid>@<job uid>`.
#[derive(Clone, Default)]
pub(crate) struct Tokens {
    pub(crate) asked: Arc<AtomicUsize>,
    pub(crate) away: Arc<AtomicBool>,
}

impl Authenticator for Tokens {
    async fn authenticate(&self, token: &str) -> Result<Caller, AuthError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        if self.away.load(Ordering::SeqCst) {
            return Err(AuthError::Unavailable("the API server is away".into()));
        }
        match token.split_once('@') {
            Some((_, "")) => Err(AuthError::Forbidden("of no job".into())),
            Some((pod, job)) => Ok(Caller {
                namespace: "team".into(),
                pod: format!("name-of-{pod}"),
                pod_uid: pod.into(),
                job_uid: job.into(),
            }),
            None => Err(AuthError::Invalid("signature".into())),
        }
    }
}

/// The certificate that all replicas of these tests show.
pub(crate) fn identity() -> Identity {
    Identity::generate(&["localhost".to_owned()], 1).unwrap()
}

pub(crate) struct Replica {
    runtime: Option<Runtime>,
    pub(crate) server: Option<Server>,
    pub(crate) store: Store,
    pub(crate) groups: Groups,
    pub(crate) tokens: Tokens,
    metrics: Metrics,
}

impl Replica {
    pub(crate) async fn start(settings: &StoreSettings, identity: &Identity) -> Self {
        Self::with_limits(settings, identity, Limits::default()).await
    }

    pub(crate) async fn with_limits(settings: &StoreSettings, identity: &Identity, limits: Limits) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (settings, identity) = (settings.clone(), identity.clone());
        let (tokens, metrics) = (Tokens::default(), Metrics::default());
        let (authenticator, counted) = (tokens.clone(), metrics.clone());
        let (server, store, groups) = runtime
            .spawn(async move {
                let store = Store::connect(&settings).unwrap();
                let groups = store.follow();
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                let server =
                    Server::start(listener, &identity, authenticator, &store, &groups, limits, &counted).unwrap();
                (server, store, groups)
            })
            .await
            .unwrap();
        Replica { runtime: Some(runtime), server: Some(server), store, groups, tokens, metrics }
    }

    pub(crate) fn server(&self) -> &Server {
        self.server.as_ref().unwrap()
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.server().address()
    }

    /// A metric's line without its value.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let mut registry = Registry::default();
        self.metrics.register(&mut registry);
        let mut page = String::new();
        prometheus_client::encoding::text::encode(&mut page, &registry).unwrap();
        page.lines().find_map(|l| l.strip_prefix(name)?.trim().parse().ok()).unwrap_or(0.0)
    }

    /// Ends it without a word, as `kill -9` does.
    pub(crate) fn kill(mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// The client of an agent.
pub(crate) fn agent(url: &str, identity: &Identity, pod: &str, job: &str) -> Link {
    Client::new(url, identity.ca_pem.as_bytes(), Token::Text(format!("{pod}@{job}"))).unwrap().connect()
}
