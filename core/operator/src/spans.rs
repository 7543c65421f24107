//! Spans of decisions, for a collector that speaks OTLP over HTTP: one for each cycle, with its gathering and its decisions,
//! and one for each question to a placement policy.
//!
//! They are a summary, as events are: of decisions only those have one that move a target or failed (all of them with
//! `traces.every-decision`), what does not fit into the queue is dropped, and a collector that is away holds nothing up.

use std::fmt::{self, Debug};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use eto_engine::contract::Reason;
use eto_engine::decision::{Decision, Failure, Placed};
use eto_engine::job::JobKey;
use eto_engine::policy::PolicyId;
use eto_engine::signals::SignalSet;
use opentelemetry::trace::{Span, SpanBuilder, Status, TraceContextExt, Tracer, TracerProvider};
use opentelemetry::{Array, KeyValue, StringValue, Value};
use opentelemetry_http::{HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use tokio::runtime::Handle;

use crate::settings::Traces;
use crate::source::headers_of;
use crate::telemetry::Telemetry;
use crate::trouble::innermost;

/// Where a collector takes spans, below its base URL.
const PATH: &str = "/v1/traces";
/// What is left of the queue when the operator stops is sent within this.
const LAST: Duration = Duration::from_secs(5);

/// Why there can be no spans with these settings.
#[derive(Debug, thiserror::Error)]
pub enum SpansError {
    #[error("traces.headers-file {path}: {message}")]
    Headers { path: PathBuf, message: String },
    #[error("traces.headers-file {path}: {name:?} is not a valid HTTP header")]
    Header { path: PathBuf, name: String },
    #[error("traces.ca-file: {0}")]
    Authorities(#[from] eto_signals::SourceError),
    #[error("traces.endpoint: {0}")]
    Client(#[from] reqwest::Error),
    #[error("traces.endpoint: {0}")]
    Exporter(#[from] ExporterBuildError),
}

/// Where spans are put; without an endpoint nowhere. Cheap to clone.
#[derive(Clone, Default)]
pub struct Spans {
    inner: Option<Arc<Inner>>,
}

struct Inner {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    every: bool,
}

impl Debug for Spans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spans").field("on", &self.inner.is_some()).finish()
    }
}

impl Spans {
    /// To be called within the runtime that is to send them. `instance` names this replica.
    pub fn open(settings: &Traces, instance: &str, telemetry: &Telemetry) -> Result<Self, SpansError> {
        if settings.endpoint.is_empty() {
            return Ok(Spans::default());
        }
        let given = |path: &PathBuf| Some(path.clone()).filter(|p| !p.as_os_str().is_empty());
        let headers = given(&settings.headers_file).map(|path| secret_headers(&path)).transpose()?.unwrap_or_default();
        let ca = given(&settings.ca_file);
        let client = reqwest::Client::builder()
            .default_headers(headers)
            .redirect(reqwest::redirect::Policy::none())
            .timeout(settings.timeout.get())
            .tls_backend_preconfigured(eto_signals::tls_config(ca.as_deref())?)
            .build()?;
        let (runtime, telemetry) = (Handle::current(), telemetry.clone());
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Sender { client, runtime, telemetry, fails: AtomicBool::new(false) })
            .with_endpoint(format!("{}{PATH}", settings.endpoint.trim_end_matches('/')))
            .with_timeout(settings.timeout.get())
            .build()?;
        let resource = Resource::builder_empty().with_service_name(eto_api::labels::MANAGER).with_attributes([
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("service.instance.id", instance.to_owned()),
        ]);
        let provider =
            SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource.build()).build();
        let tracer = provider.tracer("eto");
        Ok(Spans { inner: Some(Arc::new(Inner { provider, tracer, every: settings.every_decision })) })
    }

    /// A cycle begins.
    pub fn cycle(&self) -> Cycle {
        let begin = |inner: &Arc<Inner>| {
            let span = inner.tracer.start("cycle");
            (Arc::clone(inner), opentelemetry::Context::new().with_span(span))
        };
        Cycle { inner: self.inner.as_ref().map(begin) }
    }

    /// A placement policy was asked.
    pub fn placed(&self, job: &JobKey, placed: &Placed, began: SystemTime) {
        let Some(inner) = &self.inner else { return };
        let mut all = of_job(job);
        all.extend(of_policy(placed.policy.as_ref()));
        all.push(number("eto.generation", placed.generation));
        all.push(KeyValue::new("eto.apply", placed.apply));
        all.push(number("eto.fuel", placed.fuel));
        let on = placed.nodes.iter().map(|n| format!("{}: {:?}", n.node, n.workers));
        all.push(texts("eto.nodes", on));
        all.push(texts("eto.victims", placed.victims.iter().map(u32::to_string)));
        all.push(of_reasons(&placed.reasons));
        let builder = SpanBuilder::from_name("place").with_start_time(began).with_attributes(all);
        let span = inner.tracer.build_with_context(builder, &opentelemetry::Context::new());
        finish(span, placed.failure.as_ref());
    }

    /// Sends what waits, for a few seconds at most.
    pub async fn close(self) {
        let Some(inner) = self.inner else { return };
        let closed = tokio::task::spawn_blocking(move || inner.provider.shutdown_with_timeout(LAST)).await;
        if let Ok(Err(error)) = closed {
            tracing::warn!(%error, "the last spans were not sent");
        }
    }
}

/// The headers of a file, marked so that nothing that shows requests shows their values.
fn secret_headers(path: &Path) -> Result<HeaderMap, SpansError> {
    let read = headers_of(path).map_err(|message| SpansError::Headers { path: path.to_owned(), message })?;
    let header = |(name, value): (String, String)| {
        let key = HeaderName::from_bytes(name.as_bytes()).ok();
        let Some((key, mut value)) = key.zip(HeaderValue::from_str(&value).ok()) else {
            return Err(SpansError::Header { path: path.to_owned(), name });
        };
        value.set_sensitive(true);
        Ok((key, value))
    };
    read.into_iter().map(header).collect()
}

/// The span of one cycle, which those of its parts belong to. Cheap to clone.
#[derive(Clone)]
pub struct Cycle {
    inner: Option<(Arc<Inner>, opentelemetry::Context)>,
}

impl Cycle {
    /// The signals were read.
    pub fn gathered(&self, signals: &SignalSet, began: SystemTime) {
        let Some((inner, parent)) = &self.inner else { return };
        let trouble = signals.signals.values().find_map(|s| s.trouble.as_deref());
        let all = vec![number("eto.signals", signals.signals.len())];
        let builder = SpanBuilder::from_name("gather").with_start_time(began).with_attributes(all);
        let mut span = inner.tracer.build_with_context(builder, parent);
        if let Some(trouble) = trouble {
            span.set_status(Status::error(trouble.to_owned()));
        }
        span.end();
    }

    /// A decision was made.
    pub fn decided(&self, job: &JobKey, decision: &Decision, began: SystemTime) {
        let Some((inner, parent)) = &self.inner else { return };
        let d = decision;
        if !(inner.every || d.target != d.from || d.failure.is_some()) {
            return;
        }
        let mut all = of_job(job);
        all.extend(of_policy(d.policy.as_ref()));
        all.extend([number("eto.generation", d.generation), number("eto.sequence", d.sequence)]);
        all.extend([number("eto.from", d.from), number("eto.target", d.target), number("eto.fuel", d.fuel)]);
        all.extend(d.proposed.map(|proposed| number("eto.proposed", proposed)));
        all.push(KeyValue::new("eto.apply", d.apply));
        let limits = d.limits.iter().map(|l| format!("{:?}: {} -> {}", l.by, l.from, l.to));
        all.push(texts("eto.limits", limits));
        let seen = d.signals.iter().map(|s| match s.mean {
            Some(mean) => format!("{}: {mean} ({:?})", s.name, s.quality),
            None => format!("{}: {:?}", s.name, s.quality),
        });
        all.push(texts("eto.signals", seen));
        all.push(of_reasons(&d.reasons));
        let builder = SpanBuilder::from_name("decide").with_start_time(began).with_attributes(all);
        finish(inner.tracer.build_with_context(builder, parent), d.failure.as_ref());
    }

    /// It is over.
    pub fn end(self, jobs: usize, overdue: usize) {
        let Some((_, context)) = &self.inner else { return };
        let span = context.span();
        span.set_attributes([number("eto.jobs", jobs), number("eto.overdue", overdue)]);
        span.end();
    }
}

fn finish(mut span: impl Span, failure: Option<&Failure>) {
    if let Some(failure) = failure {
        span.set_status(Status::error(format!("{:?}: {}", failure.kind, failure.message)));
    }
    span.end();
}

/// The names of OpenTelemetry's conventions where there are any.
fn of_job(job: &JobKey) -> Vec<KeyValue> {
    vec![KeyValue::new("k8s.namespace.name", job.namespace.clone()), KeyValue::new("eto.job", job.name.clone())]
}

fn of_policy(policy: Option<&PolicyId>) -> Vec<KeyValue> {
    let Some(policy) = policy else { return Vec::new() };
    vec![
        KeyValue::new("eto.policy.name", policy.name.clone()),
        KeyValue::new("eto.policy.version", policy.version.clone()),
        KeyValue::new("eto.policy.digest", policy.digest.clone()),
    ]
}

fn of_reasons(reasons: &[Reason]) -> KeyValue {
    texts("eto.reasons", reasons.iter().map(|r| format!("{}: {}", r.code, r.message)))
}

fn number(name: &'static str, n: impl TryInto<i64>) -> KeyValue {
    KeyValue::new(name, n.try_into().unwrap_or(i64::MAX))
}

fn texts(name: &'static str, all: impl Iterator<Item = String>) -> KeyValue {
    KeyValue::new(name, Value::Array(Array::String(all.map(StringValue::from).collect())))
}

/// Sends batches. They are made on a thread of their own, which knows of no runtime.
struct Sender {
    client: reqwest::Client,
    runtime: Handle,
    telemetry: Telemetry,
    fails: AtomicBool,
}

impl Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sender")
    }
}

impl Sender {
    /// Tells when sending begins to fail and when it works again, not with each batch.
    fn note(&self, error: Option<&str>) {
        self.telemetry.spans_sent(error.is_none());
        let failed = self.fails.swap(error.is_some(), Ordering::Relaxed);
        match error {
            Some(error) if !failed => tracing::warn!(error, "spans can't be sent; deciding goes on"),
            None if failed => tracing::info!("spans are sent again"),
            _ => {}
        }
    }
}

#[async_trait::async_trait]
impl HttpClient for Sender {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let client = self.client.clone();
        let sending = async move { Ok::<_, reqwest::Error>(client.execute(request.try_into()?).await?.status()) };
        let sent: Result<_, HttpError> = match self.runtime.spawn(sending).await {
            Ok(Ok(status)) if status.is_success() => Ok(status),
            Ok(Ok(status)) => Err(format!("the collector answers {status}").into()),
            Ok(Err(error)) => Err(innermost(&error.without_url()).into()),
            Err(error) => Err(error.into()),
        };
        self.note(sent.as_ref().err().map(ToString::to_string).as_deref());
        // Its body has nothing to act on, and is not read.
        Ok(Response::builder().status(sent?).body(Bytes::new())?)
    }
}

#[cfg(test)]
#[path = "spans_tests.rs"]
mod tests;
