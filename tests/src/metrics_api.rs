//! A metrics API for a real HPA: `external.metrics.k8s.io`, served by the test itself through the API server's
//! aggregation layer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse, Response};
use hyper_util::rt::TokioIo;
use kube::Client;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::{ServerConfig, crypto::ring, pki_types::PrivateKeyDer};

use crate::cluster::Cluster;
use crate::{Failure, Outcome};

/// The host's end of the cluster's bridge (tests/cluster/env.sh): the API server reaches the host there.
const HOST: &str = "10.192.0.1";
const GROUP: &str = "external.metrics.k8s.io";
const NAME: &str = "e2e-metrics";

/// The API, registered and available. [`MetricsApi::end`] takes the registration away.
pub struct MetricsApi {
    values: Arc<Mutex<BTreeMap<String, i64>>>,
    asked: Arc<Mutex<u64>>,
    task: JoinHandle<()>,
}

impl MetricsApi {
    /// Serves the group and registers it; back when the API server finds it available.
    pub async fn start(client: &Client, cluster: &Cluster, namespace: &str) -> Outcome<MetricsApi> {
        let listener = TcpListener::bind((HOST, 0)).await?;
        let port = listener.local_addr()?.port();
        let (values, asked) = (Arc::<Mutex<BTreeMap<String, i64>>>::default(), Arc::<Mutex<u64>>::default());
        let task = tokio::spawn(serve(listener, acceptor()?, Arc::clone(&values), Arc::clone(&asked)));
        let api = MetricsApi { values, asked, task };
        for object in objects(namespace, port) {
            let file = tempfile::NamedTempFile::new()?;
            serde_json::to_writer(file.as_file(), &object)?;
            cluster.kubectl(&["apply", "-f", &file.path().display().to_string()])?;
        }
        let available = async {
            let url = format!("/apis/{GROUP}/v1beta1/namespaces/{namespace}/e2e-probe");
            loop {
                let request = Request::get(&url).body(Vec::new()).map_err(|e| Failure(e.to_string()))?;
                if client.request::<Value>(request).await.is_ok() {
                    return Ok::<_, Failure>(());
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), available)
            .await
            .map_err(|_| Failure(format!("{GROUP} did not become available within 60 s")))??;
        Ok(api)
    }

    /// From now on the metric has this value, in every namespace.
    pub fn set(&self, metric: &str, value: i64) {
        self.values.lock().unwrap_or_else(PoisonError::into_inner).insert(metric.to_owned(), value);
    }

    /// How often a metric was asked for.
    pub fn asked(&self) -> u64 {
        *self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the registration away: an API that nobody serves would hold up the deletion of every namespace.
    pub fn end(self, cluster: &Cluster) -> Outcome {
        cluster.kubectl(&["delete", "apiservice", &format!("v1beta1.{GROUP}"), "--wait"])?;
        self.task.abort();
        Ok(())
    }
}

/// The registration, and a Service without a selector that leads to the host.
fn objects(namespace: &str, port: u16) -> [Value; 3] {
    let meta = json!({"name": NAME, "namespace": namespace});
    [
        json!({"apiVersion": "v1", "kind": "Service", "metadata": meta,
            "spec": {"ports": [{"name": "https", "port": 443, "targetPort": port}]}}),
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": NAME, "namespace": namespace, "labels": {"kubernetes.io/service-name": NAME}},
            "addressType": "IPv4", "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
            "endpoints": [{"addresses": [HOST], "conditions": {"ready": true}}]}),
        json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {"name": format!("v1beta1.{GROUP}")},
            "spec": {"group": GROUP, "version": "v1beta1", "groupPriorityMinimum": 100, "versionPriority": 100,
                "insecureSkipTLSVerify": true, "service": {"name": NAME, "namespace": namespace, "port": 443}}}),
    ]
}

fn acceptor() -> Outcome<TlsAcceptor> {
    let own = rcgen::generate_simple_self_signed(vec![HOST.to_owned()])?;
    let key = PrivateKeyDer::try_from(own.signing_key.serialize_der()).map_err(|e| Failure(e.to_owned()))?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![own.cert.der().clone()], key)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

async fn serve(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    values: Arc<Mutex<BTreeMap<String, i64>>>,
    asked: Arc<Mutex<u64>>,
) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        let (acceptor, values, asked) = (acceptor.clone(), Arc::clone(&values), Arc::clone(&asked));
        connections.spawn(async move {
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let service = hyper::service::service_fn(move |request: Request<hyper::body::Incoming>| {
                let answer = answer(request.uri().path(), &values, &asked);
                std::future::ready(Ok::<_, std::convert::Infallible>(answer))
            });
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

fn answer(path: &str, values: &Mutex<BTreeMap<String, i64>>, asked: &Mutex<u64>) -> Response<Body> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let body = match parts.as_slice() {
        ["apis", GROUP, "v1beta1"] => json!({"kind": "APIResourceList", "apiVersion": "v1",
            "groupVersion": format!("{GROUP}/v1beta1"), "resources": []}),
        ["apis", GROUP, "v1beta1", "namespaces", _, metric] => {
            let value = values.lock().unwrap_or_else(PoisonError::into_inner).get(*metric).copied();
            *asked.lock().unwrap_or_else(PoisonError::into_inner) += u64::from(value.is_some());
            let now = k8s_openapi::jiff::Timestamp::now().to_string();
            let item =
                |v: i64| json!({"metricName": metric, "metricLabels": {}, "timestamp": now, "value": v.to_string()});
            json!({"kind": "ExternalMetricValueList", "apiVersion": format!("{GROUP}/v1beta1"), "metadata": {},
                "items": value.into_iter().map(item).collect::<Vec<_>>()})
        }
        _ => return StatusCode::NOT_FOUND.into_response(),
    };
    ([("content-type", "application/json")], body.to_string()).into_response()
}
