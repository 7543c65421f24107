//! The commands of images whose templates name none: read from their registries, in the background, when a plan asks.
//!
//! A job never waits longer than [`IMAGE_PATIENCE`] for it, and nothing is asked of a registry while no new pods are to be
//! made. `docs/decisions/0017-image-commands.md` says why it is done so.

mod known;
mod read;
mod secrets;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use eto_api::ElasticJob;
use eto_cycle::image::{self, ImageConfig, ImageQuestion};
use eto_cycle::template::Role;
use eto_engine::job::{AgentChoice, JobKey, JobSpec};
use eto_engine::plan::{IMAGE_PATIENCE, ImageCommand};
use eto_registry::SetupError;
use tokio::sync::Semaphore;

use crate::queue::Queue;
use crate::settings::{self, Settings};
use crate::telemetry::Telemetry;
use known::{Known, State};
use read::Reader;

/// Images that are read at the same time.
const AT_ONCE: usize = 16;

/// Why images can't be read with these settings.
#[derive(Debug, thiserror::Error)]
pub enum ImagesError {
    #[error("images.ca-file {path} can't be read: {message}")]
    File { path: String, message: String },
    #[error("images: {0}")]
    Setup(#[from] SetupError),
    #[error("{0}")]
    Settings(String),
}

/// What the loops know of images; cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Images {
    inner: Option<Arc<Inner>>,
}

#[derive(Debug)]
struct Inner {
    reader: Reader,
    known: Mutex<Known>,
    permits: Semaphore,
    /// Where jobs are looked at again when their image is known.
    plans: Queue,
    telemetry: Telemetry,
}

/// What is known of the command of a job's image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    state: Option<State>,
    questions: Arc<[ImageQuestion]>,
}

impl Seen {
    /// As plans want to know it.
    pub fn fact(&self) -> ImageCommand<'_> {
        match &self.state {
            None => ImageCommand::Unread,
            Some(State::Known) => ImageCommand::Known,
            Some(State::Pending { last }) => ImageCommand::Pending { last: last.as_deref() },
            Some(State::Failed { why, .. }) => ImageCommand::Failed(why),
        }
    }
}

impl Images {
    /// What reads images with these settings: nothing, where there is no gateway that an agent could speak to.
    ///
    /// # Errors
    /// Settings that can't be used.
    pub fn new(
        settings: &Settings,
        client: kube::Client,
        plans: Queue,
        telemetry: Telemetry,
    ) -> Result<Self, ImagesError> {
        if !settings.images.read || !settings.gateway.is_on() {
            return Ok(Images::default());
        }
        let s = &settings.images;
        let file = Some(&s.ca_file).filter(|p| !p.as_os_str().is_empty());
        let ca = file.map(|path| {
            eto_signals::read_file(path)
                .map_err(|e| ImagesError::File { path: path.display().to_string(), message: e.to_string() })
        });
        let registry = eto_registry::Client::new(eto_registry::Settings {
            registries: settings::names(&s.registries),
            plain_http: settings::names(&s.plain_http),
            mirrors: s.mirrors().map_err(ImagesError::Settings)?,
            ca: ca.transpose()?,
            timeout: s.timeout.get(),
        })?;
        let reader = Reader {
            registry,
            secrets: s.pull_secrets.then_some(client),
            architecture: s.architecture.clone(),
            timeout: settings.kubernetes.request_timeout.get().min(s.timeout.get()),
        };
        let known = Mutex::default();
        Ok(Images {
            inner: Some(Arc::new(Inner { reader, known, permits: Semaphore::new(AT_ONCE), plans, telemetry })),
        })
    }

    /// What is known of the image of a job whose template names no command; nothing is asked of anyone.
    pub fn seen(&self, object: &ElasticJob, spec: &JobSpec) -> Seen {
        let Some(inner) = &self.inner else { return Seen::default() };
        let needs = spec.elasticity.agent == AgentChoice::Auto && spec.template.as_ref().is_some_and(|t| !t.command);
        let questions = if needs { image::questions(object).unwrap_or_default() } else { Vec::new() };
        if questions.is_empty() {
            return Seen::default();
        }
        let state = inner.known().all(&questions, Instant::now());
        Seen { state: Some(state), questions: questions.into() }
    }

    /// A plan needs the command: it is read, and the job is looked at again when that has ended. Gives when to look again
    /// at the latest.
    pub fn want(&self, job: &JobKey, seen: &Seen) -> Option<Duration> {
        let inner = self.inner.as_ref()?;
        match &seen.state {
            Some(State::Pending { .. }) => {}
            Some(State::Failed { until, .. }) => return Some(until.saturating_duration_since(Instant::now())),
            Some(State::Known) | None => return None,
        }
        for question in seen.questions.iter() {
            if inner.known().begin(question, job, Instant::now()) {
                let (inner, question) = (Arc::clone(inner), question.clone());
                tokio::spawn(async move { inner.read(question).await });
            }
        }
        // It may have been read since it was seen: nobody tells this job then.
        match inner.known().all(&seen.questions, Instant::now()) {
            State::Pending { .. } => Some(IMAGE_PATIENCE),
            State::Known | State::Failed { .. } => Some(Duration::ZERO),
        }
    }

    /// What the image of the job's pod of this index runs, as it was read last; `None` where the template says it.
    ///
    /// # Errors
    /// It is not known any more; the next plan asks for it.
    pub fn config(&self, object: &ElasticJob, index: u32) -> Result<Option<Arc<ImageConfig>>, String> {
        let Some(inner) = &self.inner else { return Ok(None) };
        let Some(question) = image::question(object, Role::of(object, index).0).ok().flatten() else { return Ok(None) };
        match inner.known().config(&question) {
            None => Err(format!("the command of the image {} is not known any more", question.image)),
            config => Ok(config),
        }
    }
}

impl Inner {
    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn read(&self, question: ImageQuestion) {
        let outcome = match self.permits.acquire().await {
            Ok(_permit) => self.reader.read(&question).await,
            Err(_) => Err("the operator is being stopped".to_owned()),
        };
        match &outcome {
            Ok(_) => tracing::debug!(image = question.image, namespace = question.namespace, "its command was read"),
            Err(why) => tracing::warn!(
                image = question.image,
                namespace = question.namespace,
                why,
                "the command of an image was not read"
            ),
        }
        self.telemetry.image_read(outcome.is_ok());
        let waiting = self.known().end(&question, outcome, Instant::now());
        for job in waiting {
            self.plans.add(job);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use axum::Router;
    use axum::http::StatusCode;
    use axum::response::{IntoResponse, Response};
    use serde_json::json;

    use super::*;

    /// SHA-256 of `{"config":{"Cmd":["train"]}}`.
    const DIGEST: &str = "sha256:79b4186d25aabfe7d0b89f9ac23770d75751ea67aa64e6a74730088c5ddb71c5";

    fn answer(path: &str) -> Response {
        let config = "application/vnd.oci.image.config.v1+json";
        match path {
            "/v2/team/train/manifests/1" => {
                json!({"schemaVersion": 2, "config": {"mediaType": config, "digest": DIGEST, "size": 28}})
                    .to_string()
                    .into_response()
            }
            p if p.ends_with(DIGEST) => r#"{"config":{"Cmd":["train"]}}"#.into_response(),
            "/v2/team/private/manifests/1" => StatusCode::UNAUTHORIZED.into_response(),
            _ => StatusCode::NOT_FOUND.into_response(),
        }
    }

    /// Images of a registry on the loopback, and its address.
    async fn images(plans: &Queue) -> (Images, String) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let router = Router::new().fallback(|uri: axum::http::Uri| async move { answer(uri.path()) });
        tokio::spawn(async move { axum::serve(listener, router).await });
        let settings = eto_registry::Settings { plain_http: vec![host.clone()], ..eto_registry::Settings::default() };
        let reader = Reader {
            registry: eto_registry::Client::new(settings).unwrap(),
            secrets: None,
            architecture: "amd64".into(),
            timeout: Duration::from_secs(5),
        };
        let inner = Inner {
            reader,
            known: Mutex::default(),
            permits: Semaphore::new(AT_ONCE),
            plans: plans.clone(),
            telemetry: Telemetry::default(),
        };
        (Images { inner: Some(Arc::new(inner)) }, host)
    }

    fn job(image: &str) -> (ElasticJob, JobSpec) {
        let object: ElasticJob = serde_json::from_value(json!({
            "apiVersion": "elastic.ai/v1alpha1", "kind": "ElasticJob",
            "metadata": {"namespace": "team", "name": "j", "uid": "u"},
            "spec": {"replicas": 2, "template": {"spec": {"containers": [{"name": "main", "image": image}]}}},
        }))
        .unwrap();
        let spec = eto_cycle::spec::job_spec(&object).unwrap();
        (object, spec)
    }

    /// Asks, and waits until the job is to be looked at again.
    async fn read(images: &Images, plans: &Queue, object: &ElasticJob, spec: &JobSpec) -> Seen {
        let seen = images.seen(object, spec);
        assert_eq!(seen.fact(), ImageCommand::Pending { last: None });
        assert_eq!(images.want(&spec.key, &seen), Some(IMAGE_PATIENCE));
        while plans.is_empty() {
            tokio::task::yield_now().await;
        }
        images.seen(object, spec)
    }

    #[tokio::test]
    async fn a_job_is_looked_at_again_when_its_images_command_is_known() {
        let plans = Queue::new("test");
        let (images, host) = images(&plans).await;
        let (object, spec) = job(&format!("{host}/team/train:1"));
        assert!(images.config(&object, 0).is_err(), "not known yet");
        let seen = read(&images, &plans, &object, &spec).await;
        assert_eq!(seen.fact(), ImageCommand::Known);
        assert_eq!(images.want(&spec.key, &seen), None);
        let config = images.config(&object, 1).unwrap().unwrap();
        assert_eq!(*config, ImageConfig::parse(br#"{"config":{"Cmd":["train"]}}"#).unwrap());
    }

    #[tokio::test]
    async fn what_is_missing_is_told_with_its_mend() {
        let plans = Queue::new("test");
        let (images, host) = images(&plans).await;
        let (object, spec) = job(&format!("{host}/team/private:1"));
        let seen = read(&images, &plans, &object, &spec).await;
        let ImageCommand::Failed(why) = seen.fact() else { panic!("{seen:?}") };
        let want = format!(
            "the registry {host} refuses whoever has no credentials (HTTP 401); the operator reads no pull secrets"
        );
        assert!(why.starts_with(&want) && why.ends_with("write the image's command into the template"), "{why}");
        assert!(images.want(&spec.key, &seen).is_some_and(|wait| wait > Duration::ZERO), "when to try again");
    }

    #[tokio::test]
    async fn jobs_with_a_command_or_without_agents_ask_nothing() {
        let plans = Queue::new("test");
        let (images, host) = images(&plans).await;
        let (mut object, mut spec) = job(&format!("{host}/team/train:1"));
        spec.elasticity.agent = AgentChoice::Off;
        assert_eq!(images.seen(&object, &spec).fact(), ImageCommand::Unread);
        object.spec.template.as_mut().unwrap()["spec"]["containers"][0]["command"] = json!(["train"]);
        let spec = eto_cycle::spec::job_spec(&object).unwrap();
        assert_eq!(images.seen(&object, &spec).fact(), ImageCommand::Unread);
        assert_eq!(images.config(&object, 0), Ok(None));
        assert_eq!(Images::default().seen(&object, &spec).fact(), ImageCommand::Unread);
    }
}
