//! Puts the parts together, and takes them apart in good order.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use tokio::sync::{Semaphore, watch};

use crate::apply::Writer;
use crate::cache::leases::Leases;
use crate::cache::nodes::Nodes;
use crate::cache::{self, Watches};
use crate::checkpoint::Checkpoints;
use crate::client::{ClientError, client};
use crate::context::Context;
use crate::evaluate::{Evaluator, EvaluatorError, open_log};
use crate::gateway::{self, Gateway};
use crate::images::{Images, ImagesError};
use crate::leader::{Leadership, elect, identity};
use crate::placing::Reserved;
use crate::queue::Queue;
use crate::server::{self, Readiness};
use crate::settings::Settings;
use crate::spans::{Spans, SpansError};
use crate::telemetry::Telemetry;
use crate::{act, checkpoint, events, policies, reconcile};

/// How long work in hand may take to end when the operator is told to stop.
const FINISH: Duration = Duration::from_secs(20);

/// Why the operator can't run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("the port {address} of /healthz, /readyz and /metrics (server.address) can't be opened: {message}")]
    Port { address: String, message: String },
    #[error("the port {address} of the gateway (gateway.address) can't be opened: {message}")]
    GatewayPort { address: String, message: String },
    #[error("policies can't be run: {0}")]
    Host(#[from] eto_policy_host::HostError),
    #[error(transparent)]
    Evaluator(#[from] EvaluatorError),
    #[error(transparent)]
    Images(#[from] ImagesError),
    #[error(transparent)]
    Spans(#[from] SpansError),
}

/// Runs the operator until `stop` turns true.
pub async fn run(settings: Settings, stop: watch::Receiver<bool>) -> Result<(), RunError> {
    let mut settings = settings;
    settings.leader.identity = identity(&settings.leader);
    let settings = Arc::new(settings);
    let telemetry = Telemetry::default();
    let readiness = Readiness::default();
    let address = settings.server.address;
    let listener = server::bind(address)
        .await
        .map_err(|e| RunError::Port { address: address.to_string(), message: e.to_string() })?;
    let gateway_port = match &settings.gateway {
        gateway if gateway.is_on() => {
            let failed = |e: std::io::Error| RunError::GatewayPort {
                address: gateway.address.to_string(),
                message: e.to_string(),
            };
            let port = server::bind(gateway.address).await.map_err(failed)?;
            Some(port.into_std().map_err(failed)?)
        }
        _ => None,
    };
    // What the loops stand on ends after them.
    let (finish, finished) = watch::channel(false);
    let server = tokio::spawn(server::serve(listener, readiness.clone(), telemetry.clone(), finished.clone()));
    let (client, own_namespace) = client(&telemetry).await?;
    let policies = policies::start(&settings.policies, &telemetry)?;

    let leadership = if settings.leader.enabled { Leadership::default() } else { Leadership::alone() };
    let (plans, acts) = (Queue::new("plans"), Queue::new("acts"));
    let caches = Watches {
        nodes: Arc::new(Nodes::new(&settings.nodes)),
        leases: Arc::new(Leases::new(settings.nodes.lease_grace.get())),
        ..Watches::default()
    };
    let (told, telling) = events::events(
        client.clone(),
        settings.reconcile.events_per_second,
        leadership.clone(),
        telemetry.clone(),
        finished.clone(),
    );
    let telling = tokio::spawn(telling);
    let anew = leadership.restorations();
    let synced = cache::start(&client, &settings.kubernetes, &caches, &plans, &telemetry, &finished, &anew);
    let timeout = settings.kubernetes.request_timeout.get();
    let context = Context {
        writer: Writer::new(client.clone(), timeout, leadership.clone(), telemetry.clone()),
        pod_permits: Arc::new(Semaphore::new(usize::try_from(settings.reconcile.pod_writers).unwrap_or(1))),
        registry: Arc::clone(&policies.registry),
        log: open_log(&settings.decision_log)?,
        settings: Arc::clone(&settings),
        caches,
        checkpoints: Checkpoints::default(),
        images: Images::new(&settings, client.clone(), plans.clone(), telemetry.clone())?,
        plans,
        acts,
        reserved: Reserved::default(),
        events: told,
        gateway: Gateway::new(&settings, leadership.clone(), telemetry.clone()),
        leadership: leadership.clone(),
        spans: Spans::open(&settings.traces, &settings.leader.identity, &telemetry)?,
        telemetry: telemetry.clone(),
    };
    let evaluator = Evaluator::new(context.clone())?;

    if all(synced, stop.clone()).await {
        readiness.set(true);
        tracing::info!(jobs = context.caches.jobs.len(), "caches filled");
        let serving = serve_agents(&context, &client, &own_namespace, gateway_port, &finished);
        let election = start_election(&settings, &client, &own_namespace, &leadership, &telemetry, &finished);
        work(&context, evaluator, stop).await;
        readiness.set(false);
        finish.send_replace(true);
        if let Some(election) = election {
            let _ = election.await;
        }
        if let Some(serving) = serving {
            let _ = serving.await;
        }
    }
    finish.send_replace(true);
    context.spans.close().await;
    let _ = telling.await;
    let _ = server.await;
    tracing::info!("stopped");
    Ok(())
}

/// Sets the gateway up, serves agents and follows what they tell, until `finished`; in every replica, leader or not.
fn serve_agents(
    context: &Context,
    client: &kube::Client,
    own_namespace: &str,
    port: Option<std::net::TcpListener>,
    finished: &watch::Receiver<bool>,
) -> Option<tokio::task::JoinHandle<()>> {
    let needs = gateway::Needs {
        client: client.clone(),
        namespace: own_namespace.to_owned(),
        settings: context.settings.gateway.clone(),
        pods: Arc::clone(&context.caches.pods),
        jobs: Arc::clone(&context.caches.jobs),
        listener: port?,
    };
    let (gateway, caches, plans) = (context.gateway.clone(), context.caches.clone(), context.plans.clone());
    let stop = finished.clone();
    Some(tokio::spawn(async move {
        if let Some(gateway::Serving { server, certificate }) = gateway::start(&gateway, needs, stop.clone()).await {
            let pods = Arc::clone(&caches.pods);
            tokio::join!(
                gateway::follow(gateway.clone(), caches, plans, stop.clone()),
                gateway::keep_small(gateway, stop.clone()),
                gateway::forget(&server, &pods, stop.clone()),
                certificate.keep(&server, stop),
            );
            server.shutdown().await;
        }
    }))
}

fn start_election(
    settings: &Settings,
    client: &kube::Client,
    own_namespace: &str,
    leadership: &Leadership,
    telemetry: &Telemetry,
    finished: &watch::Receiver<bool>,
) -> Option<tokio::task::JoinHandle<()>> {
    if !settings.leader.enabled {
        telemetry.leading(true);
        return None;
    }
    let namespace = match settings.leader.namespace.as_str() {
        "" => own_namespace.to_owned(),
        given => given.to_owned(),
    };
    let api: Api<Lease> = Api::namespaced(client.clone(), &namespace);
    let (settings, leadership) = (settings.leader.clone(), leadership.clone());
    Some(tokio::spawn(elect(api, namespace, settings, leadership, telemetry.clone(), finished.clone())))
}

/// The loops, until `stop`; then waits for the work in hand.
async fn work(context: &Context, evaluator: Evaluator, stop: watch::Receiver<bool>) {
    let writers = usize::try_from(context.settings.reconcile.status_writers).unwrap_or(1);
    let planning = {
        let context = context.clone();
        let (queue, telemetry) = (context.plans.clone(), context.telemetry.clone());
        let stop = stop.clone();
        tokio::spawn(async move {
            queue.work(writers, telemetry, stop, |key| reconcile::reconcile(context.clone(), key)).await;
        })
    };
    let acting = {
        let context = context.clone();
        let (queue, telemetry) = (context.acts.clone(), context.telemetry.clone());
        let stop = stop.clone();
        tokio::spawn(async move {
            queue.work(writers, telemetry, stop, |key| act::act(context.clone(), key)).await;
        })
    };
    let following = tokio::spawn(follow_leadership(context.clone(), stop.clone()));
    let evaluating = tokio::spawn(evaluator.run(stop.clone()));
    let keeping = tokio::spawn(checkpoint::keep(context.clone(), stop.clone()));
    let mut stop = stop;
    let _ = stop.wait_for(|s| *s).await;
    let ending = async {
        for task in [planning, acting, following, evaluating, keeping] {
            let _ = task.await;
        }
        checkpoint::finish(context).await;
    };
    if tokio::time::timeout(FINISH, ending).await.is_err() {
        tracing::warn!(?FINISH, "some work did not end in time; the next leader does it again");
    }
}

/// A new leader looks at every job, from what is stored; one that was forgets what it thought.
async fn follow_leadership(context: Context, mut stop: watch::Receiver<bool>) {
    let mut leading = context.leadership.follow();
    loop {
        let leads = *leading.borrow_and_update();
        context.caches.nodes.lead(leads);
        if leads {
            tokio::select! {
                () = checkpoint::read(&context) => {}
                changed = leading.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    leading.mark_changed();
                    continue;
                }
                _ = stop.wait_for(|s| *s) => return,
            }
            context.caches.jobs.all().into_iter().for_each(|job| context.plans.add(job.key.clone()));
        } else {
            context.plans.clear();
            context.acts.clear();
            context.checkpoints.forget();
            context.caches.jobs.forget();
            context.telemetry.stands_by();
        }
        tokio::select! {
            changed = leading.changed() => if changed.is_err() { return },
            _ = stop.wait_for(|s| *s) => return,
        }
    }
}

/// Waits for all caches; false if `stop` comes first.
async fn all(synced: Vec<watch::Receiver<bool>>, mut stop: watch::Receiver<bool>) -> bool {
    let waiting = async {
        for mut one in synced {
            let _ = one.wait_for(|s| *s).await;
        }
    };
    tokio::select! {
        () = waiting => true,
        _ = stop.wait_for(|s| *s) => false,
    }
}
