//! The client of the API server: every request through it is counted.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::http::{Method, Request, Response};
use futures::future::BoxFuture;
use kube::client::{Body, ClientBuilder};
use kube::{Client, Config};
use tower::{Layer, Service};

use crate::telemetry::Telemetry;

/// A client for the cluster the environment names: kubeconfig, or the pod's service account.
pub async fn client(telemetry: &Telemetry) -> Result<(Client, String), ClientError> {
    of(Config::infer().await.map_err(|e| ClientError::Config(e.to_string()))?, telemetry)
}

fn of(mut config: Config, telemetry: &Telemetry) -> Result<(Client, String), ClientError> {
    // A watch lives for minutes; a connection on which nothing arrives for longer than that is dead.
    config.read_timeout = Some(Duration::from_secs(330));
    // The library would try what is answered with 429, 503 or 504 again by itself, for minutes or as long as the server says:
    // the refusals would not be counted, and a request would meet its deadline without a word of why. Whoever asks knows
    // what a late answer is worth, and tries again.
    config.default_retry = false;
    let namespace = config.default_namespace.clone();
    let count = Count { telemetry: telemetry.clone() };
    let client =
        ClientBuilder::try_from(config).map_err(|e| ClientError::Build(e.to_string()))?.with_layer(&count).build();
    Ok((client, namespace))
}

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("no cluster to speak to: {0}; set KUBECONFIG, or run in a pod with a service account")]
    Config(String),
    #[error("the client of the API server can't be built: {0}")]
    Build(String),
}

#[derive(Clone)]
struct Count {
    telemetry: Telemetry,
}

impl<S> Layer<S> for Count {
    type Service = Counted<S>;

    fn layer(&self, inner: S) -> Counted<S> {
        Counted { inner, telemetry: Arc::new(self.telemetry.clone()) }
    }
}

struct Counted<S> {
    inner: S,
    telemetry: Arc<Telemetry>,
}

impl<S, B> Service<Request<Body>> for Counted<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
    S::Error: 'static,
    B: 'static,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<B>, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (verb, resource) = describe(request.method(), request.uri().path(), request.uri().query().unwrap_or(""));
        let telemetry = Arc::clone(&self.telemetry);
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await;
            telemetry.api_request(verb, &resource, answer.as_ref().ok().map(|r| r.status().as_u16()));
            answer
        })
    }
}

/// Verb and resource of a request, with Kubernetes' own names; the resource has its subresource, never a name.
fn describe(method: &Method, path: &str, query: &str) -> (&'static str, String) {
    let mut parts = path.split('/').filter(|p| !p.is_empty());
    let parts: Vec<&str> = match parts.next() {
        Some("api") => parts.skip(1).collect(),
        Some("apis") => parts.skip(2).collect(),
        _ => return ("get", "other".into()),
    };
    let parts: &[&str] = match parts.as_slice() {
        ["namespaces", _, rest @ ..] if !rest.is_empty() => rest,
        all => all,
    };
    let (resource, named) = match parts {
        [] => ("other".to_owned(), false),
        [resource] => ((*resource).to_owned(), false),
        [resource, _] => ((*resource).to_owned(), true),
        [resource, _, sub, ..] => (format!("{resource}/{sub}"), true),
    };
    let watching = query.split('&').any(|q| q == "watch=true" || q == "watch=1");
    let verb = match (method.as_str(), named) {
        ("GET", _) if watching => "watch",
        ("GET", true) => "get",
        ("GET", false) => "list",
        ("POST", _) => "create",
        ("PUT", _) => "update",
        ("PATCH", _) => "patch",
        ("DELETE", _) => "delete",
        _ => "other",
    };
    (verb, resource)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use axum::Router;
    use axum::http::{StatusCode, Uri};
    use k8s_openapi::api::core::v1::Pod;
    use kube::Api;
    use kube::api::DeleteParams;

    use super::*;

    #[tokio::test]
    async fn what_a_busy_server_refuses_is_told_at_once_and_counted() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url: Uri = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        // Pod `429` is answered so, and not before an hour is over.
        let refuse = |uri: Uri| async move {
            let code = uri.path().rsplit('/').next().unwrap().parse().unwrap();
            (StatusCode::from_u16(code).unwrap(), [("Retry-After", "3600")], "")
        };
        tokio::spawn(async move { axum::serve(listener, Router::new().fallback(refuse)).await });
        let telemetry = Telemetry::default();
        let (client, namespace) = of(Config::new(url), &telemetry).unwrap();
        let pods: Api<Pod> = Api::namespaced(client, &namespace);
        for code in ["429", "503", "504"] {
            let how = DeleteParams::default();
            let asked = tokio::time::timeout(Duration::from_secs(60), pods.delete(code, &how)).await;
            let answer = asked.expect("it is asked once");
            assert!(matches!(&answer, Err(kube::Error::Api(s)) if s.code.to_string() == code), "{code}: {answer:?}");
            let counted = format!("verb=\"delete\",resource=\"pods\",code=\"{code}\"}} 1");
            assert!(telemetry.page().unwrap().contains(&counted), "{counted}");
        }
    }

    #[test]
    fn requests_are_named_as_kubernetes_does() {
        let is = |m: Method, p: &str, q: &str| {
            let (verb, resource) = describe(&m, p, q);
            format!("{verb} {resource}")
        };
        assert_eq!(is(Method::GET, "/api/v1/pods", "limit=500"), "list pods");
        assert_eq!(is(Method::GET, "/api/v1/pods", "watch=true&x=1"), "watch pods");
        assert_eq!(is(Method::PATCH, "/api/v1/namespaces/a/pods/p-0", "fieldManager=x"), "patch pods");
        let job = "/apis/elastic.ai/v1alpha1/namespaces/a/elasticjobs/j";
        assert_eq!(is(Method::PATCH, &format!("{job}/status"), ""), "patch elasticjobs/status");
        assert_eq!(is(Method::GET, job, ""), "get elasticjobs");
        assert_eq!(is(Method::PUT, "/apis/coordination.k8s.io/v1/namespaces/n/leases/l", ""), "update leases");
        assert_eq!(is(Method::GET, "/api/v1/namespaces/n", ""), "get namespaces");
        assert_eq!(is(Method::GET, "/version", ""), "get other");
    }
}
