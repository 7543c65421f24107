//! Sets the gateway up: its certificates, etcd behind it, agents before it.

use std::sync::Arc;

use eto_cycle::pod::AgentSetup;
use eto_gateway::{
    AuthError, Authenticator, Authority, Caller, IdentityError, Limits, Metrics, Server, ServerError, Store,
    StoreError, StorePem, StoreSettings,
};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::auth::{ReviewError, Reviewer};
use super::renewal::Certificate;
use super::secrets::{self, SecretError};
use super::{Gateway, Ready, lock};
use crate::cache::jobs::Jobs;
use crate::cache::pods::Pods;
use crate::context::back_off;
use crate::settings;

/// What a gateway is made of.
pub struct Needs {
    pub client: kube::Client,
    /// The operator's own.
    pub namespace: String,
    pub settings: settings::Gateway,
    pub pods: Arc<Pods>,
    pub jobs: Arc<Jobs>,
    /// Each try serves a copy of it, so that one that fails leaves it to the next.
    pub listener: std::net::TcpListener,
}

/// A gateway that serves, and what keeps it in good order.
pub struct Serving {
    pub server: Server,
    pub certificate: Certificate,
}

/// Why it is not set up.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Server(#[from] ServerError),
}

/// Sets it up, trying until it works, and serves agents from then on; `None` if `stop` comes first. Training goes on
/// without it, so that it is no reason for the operator to end.
pub async fn start(gateway: &Gateway, needs: Needs, mut stop: watch::Receiver<bool>) -> Option<Serving> {
    let inner = gateway.inner.as_ref()?;
    let mut failures = 0_u32;
    loop {
        match set_up(&needs, inner.telemetry.gateway()).await {
            Ok((ready, serving)) => {
                tracing::info!(url = needs.settings.url, "agents are served");
                // Set once: there is one start per process.
                let _ = inner.ready.set(ready);
                return Some(serving);
            }
            Err(error) => {
                failures = failures.saturating_add(1);
                tracing::error!(%error, failures, "the gateway is not set up; it is tried again");
                *lock(&inner.trouble) = error.to_string();
            }
        }
        tokio::select! {
            () = tokio::time::sleep(back_off(failures)) => {}
            _ = stop.wait_for(|s| *s) => return None,
        }
    }
}

async fn set_up(needs: &Needs, metrics: &Metrics) -> Result<(Ready, Serving), StartError> {
    let s = &needs.settings;
    let api: Api<Secret> = Api::namespaced(needs.client.clone(), &needs.namespace);
    let authority = secrets::authority(&api, &s.secret).await?;
    let store = Store::connect(&store_settings(&api, s, &authority).await?)?;
    let agents = AgentSetup {
        image: s.agent_image.clone(),
        pull_policy: s.agent_pull_policy.clone(),
        url: s.url.clone(),
        ca: authority.cert_pem.clone(),
    };
    let certificate = Certificate::issue(authority, secrets::host(&s.url))?;
    let groups = store.follow();
    let auth = PodTokens {
        reviewer: Reviewer::new(needs.client.clone()),
        pods: Arc::clone(&needs.pods),
        jobs: Arc::clone(&needs.jobs),
    };
    let listener = needs.listener.try_clone().and_then(TcpListener::from_std).map_err(ServerError::Listener)?;
    let server = Server::start(listener, certificate.shown(), auth, &store, &groups, Limits::default(), metrics)?;
    let own_etcd = !s.etcd_secret.is_empty();
    Ok((Ready { agents, store, groups, own_etcd }, Serving { server, certificate }))
}

async fn store_settings(
    api: &Api<Secret>,
    s: &settings::Gateway,
    authority: &Authority,
) -> Result<StoreSettings, StartError> {
    let endpoints = s.endpoints();
    let base = StoreSettings { prefix: s.etcd_prefix.clone(), ..StoreSettings::default() };
    if s.etcd_secret.is_empty() {
        return Ok(StoreSettings {
            endpoints,
            ca_file: Some(s.etcd_ca_file.clone()),
            cert_file: Some(s.etcd_cert_file.clone()),
            key_file: Some(s.etcd_key_file.clone()),
            ..base
        });
    }
    let hosts = secrets::hosts(endpoints.iter().map(String::as_str));
    let identity = secrets::etcd(api, &s.etcd_secret, authority, &hosts).await?;
    let pem = StorePem { ca: identity.ca_pem, cert: identity.cert_pem, key: identity.key_pem };
    Ok(StoreSettings { endpoints, pem: Some(pem), ..base })
}

/// Tokens of pods of jobs.
struct PodTokens {
    reviewer: Reviewer,
    pods: Arc<Pods>,
    jobs: Arc<Jobs>,
}

impl Authenticator for PodTokens {
    async fn authenticate(&self, token: &str) -> Result<Caller, AuthError> {
        let bearer = self.reviewer.bearer(token).await.map_err(|e| match e {
            ReviewError::Refused(why) => AuthError::Invalid(why),
            ReviewError::Unreached(why) => AuthError::Unavailable(why),
        })?;
        // Whoever may make pods may write any owner into them: one of another namespace is no owner.
        let is_near = |uid: &String| self.jobs.by_uid(uid).is_some_and(|job| job.key.namespace == bearer.namespace);
        let Some(job_uid) = self.pods.owner_of(&bearer.pod_uid).filter(is_near) else {
            return Err(AuthError::Forbidden(format!("{}/{}", bearer.namespace, bearer.pod)));
        };
        Ok(Caller { namespace: bearer.namespace, pod: bearer.pod, pod_uid: bearer.pod_uid, job_uid })
    }
}
