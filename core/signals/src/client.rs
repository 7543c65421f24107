//! Asking Prometheus: HTTP with a cap on everything (time, size, requests in flight, tries) and credentials from files.

use std::error::Error as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, LOCATION};
use reqwest::{Client, RequestBuilder, Response, Url};
use tokio::sync::{Mutex, Semaphore};
use tokio::time::Instant;

use crate::answer::{read, shorten};
use crate::error::{SettingsError, SourceError};
use crate::secrets::Secrets;
use crate::settings::{Method, PrometheusSettings};
use crate::tls::{self, TlsFiles};

/// A connection pool with what guards it.
pub(crate) struct Http {
    settings: Arc<PrometheusSettings>,
    url: Url,
    permits: Semaphore,
    /// The client built last, and the TLS files it was built from: it is built anew when they change.
    built: Mutex<Option<(TlsFiles, Client)>>,
}

/// What one gathering sends with: a client and the `Authorization` of now.
#[derive(Clone)]
pub(crate) struct Session {
    client: Client,
    credentials: Option<Credentials>,
    secrets: Secrets,
    deadline: Instant,
    /// Whether what was late is tried again.
    patient: bool,
}

impl Session {
    /// The same, but what is late is given up at once.
    pub(crate) fn impatient(&self) -> Session {
        Session { patient: false, ..self.clone() }
    }
}

/// As read from the files of now. Has no `Debug`: it must not be shown.
#[derive(Clone)]
enum Credentials {
    Bearer(String),
    Basic { username: String, password: String },
}

impl Credentials {
    fn put_on(&self, request: RequestBuilder) -> RequestBuilder {
        match self {
            Credentials::Bearer(token) => request.bearer_auth(token),
            Credentials::Basic { username, password } => request.basic_auth(username, Some(password)),
        }
    }
}

impl Http {
    pub(crate) fn new(settings: Arc<PrometheusSettings>) -> Result<Http, SettingsError> {
        let url = settings.check()?;
        let permits = Semaphore::new(settings.max_concurrency);
        Ok(Http { settings, url, permits, built: Mutex::new(None) })
    }

    /// Reads the credentials and gets a client ready, for the time of one gathering.
    pub(crate) async fn session(&self) -> Result<Session, SourceError> {
        let deadline = Instant::now() + self.settings.deadline;
        // Files may be on a volume that does not answer.
        let late = |_| SourceError::Timeout { after: self.settings.deadline };
        tokio::time::timeout_at(deadline, self.session_until(deadline)).await.map_err(late)?
    }

    async fn session_until(&self, deadline: Instant) -> Result<Session, SourceError> {
        let tls = &self.settings.tls;
        let files = TlsFiles {
            ca: read_optional(tls.ca_file.as_deref()).await?,
            cert: read_optional(tls.cert_file.as_deref()).await?,
            key: read_optional(tls.key_file.as_deref()).await?,
        };
        let credentials = self.credentials().await?;
        let mut built = self.built.lock().await;
        let client = match &*built {
            Some((known, client)) if *known == files => client.clone(),
            _ => {
                let client = self.build(&files)?;
                *built = Some((files, client.clone()));
                client
            }
        };
        let secrets = self.secrets(&client, credentials.as_ref());
        Ok(Session { client, credentials, secrets, deadline, patient: true })
    }

    /// All that is sent and not to be told, in each of its forms.
    fn secrets(&self, client: &Client, credentials: Option<&Credentials>) -> Secrets {
        let plain = credentials.map(|c| match c {
            Credentials::Bearer(secret) | Credentials::Basic { password: secret, .. } => secret.clone(),
        });
        let sent = credentials.and_then(|c| c.put_on(client.get(self.url.clone())).build().ok());
        let sent = sent.as_ref().and_then(|r| r.headers().get(AUTHORIZATION)?.to_str().ok()?.split_once(' '));
        let headers = self.settings.headers.values().cloned();
        Secrets::new(headers.chain(plain).chain(sent.map(|(_, secret)| secret.to_owned())))
    }

    fn build(&self, files: &TlsFiles) -> Result<Client, SourceError> {
        let mut headers = HeaderMap::new();
        for (name, value) in &self.settings.headers {
            // Both were checked with the settings.
            if let (Ok(name), Ok(mut value)) = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(value)) {
                value.set_sensitive(true);
                headers.insert(name, value);
            }
        }
        Client::builder()
            .user_agent(concat!("elastic-training-operator/", env!("CARGO_PKG_VERSION")))
            .default_headers(headers)
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(self.settings.timeout)
            .pool_max_idle_per_host(self.settings.max_concurrency)
            .tls_backend_preconfigured(tls::config(&self.settings.tls, files)?)
            .build()
            .map_err(|e| self.unreachable(&e))
    }

    async fn credentials(&self) -> Result<Option<Credentials>, SourceError> {
        let auth = &self.settings.auth;
        let path = match (&auth.bearer_token_file, &auth.basic) {
            (Some(path), _) => path,
            (None, Some(basic)) => &basic.password_file,
            (None, None) => return Ok(None),
        };
        let bad = |why: &str| SourceError::File { path: path.clone(), why: why.to_owned() };
        let secret = String::from_utf8(read_file(path).await?).map_err(|_| bad("not UTF-8"))?.trim_end().to_owned();
        if secret.is_empty() {
            return Err(bad("empty; a token or password is expected in it"));
        }
        if secret.chars().any(char::is_control) {
            return Err(bad("it has control characters, which a header can't hold; is it the right file?"));
        }
        Ok(Some(match &auth.basic {
            Some(basic) => Credentials::Basic { username: basic.username.clone(), password: secret },
            None => Credentials::Bearer(secret),
        }))
    }

    /// The body of the answer to an instant query, which may still say `status: error`. Tries again where that may help and
    /// time allows.
    pub(crate) async fn query(&self, session: &Session, promql: &str) -> Result<Vec<u8>, SourceError> {
        let late = || SourceError::Timeout { after: self.settings.deadline };
        let permit = tokio::time::timeout_at(session.deadline, self.permits.acquire()).await;
        let _permit = permit.map_err(|_| late())?.map_err(|_| late())?;
        let mut tried = 0;
        loop {
            let left = session.deadline.saturating_duration_since(Instant::now()).min(self.settings.timeout);
            let outcome = match tokio::time::timeout(left, self.once(session, promql, left)).await {
                Ok(outcome) => outcome,
                Err(_) => Err(SourceError::Timeout { after: left }),
            };
            match outcome {
                Err(error) if error.is_late() && !session.patient => return Err(error),
                Err(error) if error.is_transient() && tried < self.settings.retries => {
                    let wait = backoff(tried);
                    if Instant::now() + wait >= session.deadline {
                        return Err(error);
                    }
                    tracing::debug!(%error, tried, "asking Prometheus again");
                    tokio::time::sleep(wait).await;
                    tried += 1;
                }
                outcome => return outcome,
            }
        }
    }

    async fn once(&self, session: &Session, promql: &str, limit: Duration) -> Result<Vec<u8>, SourceError> {
        let mut url = self.url.clone();
        // Prometheus stops evaluating when nobody waits any more.
        let limit = format!("{}ms", limit.as_millis().max(1));
        url.query_pairs_mut().append_pair("query", promql).append_pair("timeout", &limit);
        let request = match self.settings.method {
            Method::Get => session.client.get(url),
            Method::Post => {
                let form = url.query().unwrap_or_default().to_owned();
                url.set_query(None);
                session.client.post(url).header(CONTENT_TYPE, "application/x-www-form-urlencoded").body(form)
            }
        };
        let request = match &session.credentials {
            Some(credentials) => credentials.put_on(request),
            None => request,
        };
        let response = request.send().await.map_err(|e| self.unreachable(&e))?;
        let status = response.status().as_u16();
        if (300..400).contains(&status) {
            return Err(redirect(status, &response, &session.secrets));
        }
        let body = session.secrets.hide(self.body(response, status).await?);
        if (200..300).contains(&status) { Ok(body) } else { Err(http_error(status, &body)) }
    }

    /// The body, up to the cap; of an error's body the beginning is enough.
    async fn body(&self, mut response: Response, status: u16) -> Result<Vec<u8>, SourceError> {
        let limit = self.settings.max_response_bytes;
        let ok = (200..300).contains(&status);
        if ok && response.content_length().is_some_and(|length| length > limit) {
            return Err(SourceError::TooLarge { limit });
        }
        let mut body =
            Vec::with_capacity(usize::try_from(response.content_length().unwrap_or(0).min(limit)).unwrap_or(0));
        while let Some(chunk) = response.chunk().await.map_err(|e| self.unreachable(&e))? {
            body.extend_from_slice(&chunk);
            if !ok && body.len() > 4096 {
                break;
            }
            if body.len() as u64 > limit {
                return Err(SourceError::TooLarge { limit });
            }
        }
        Ok(body)
    }

    fn unreachable(&self, error: &reqwest::Error) -> SourceError {
        // The innermost cause says what happened; the outer ones repeat the URL.
        let (mut why, mut is_tls) = (error.to_string(), false);
        let mut source = error.source();
        while let Some(cause) = source {
            why = cause.to_string();
            is_tls |= cause.is::<rustls::Error>();
            // An I/O error carries its cause inside instead of as its source.
            source = match cause.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref) {
                Some(inner) => Some(inner),
                None => cause.source(),
            };
        }
        let mut base = self.url.clone();
        base.set_path(self.url.path().trim_end_matches("/api/v1/query"));
        let url = base.to_string();
        let connected = error.is_request() && !error.is_connect() && !error.is_timeout();
        match (is_tls, connected && base.scheme() == "https") {
            (true, _) => SourceError::Tls { url, why },
            (false, true) => SourceError::Ended { url, why },
            (false, false) => SourceError::Unreachable { url, why },
        }
    }
}

fn redirect(status: u16, response: &Response, secrets: &Secrets) -> SourceError {
    let to = response.headers().get(LOCATION).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let to = crate::settings::without_user_info(to.split(['?', '#']).next().unwrap_or_default());
    SourceError::Redirect { status, to: shorten(&secrets.hide_text(&to)) }
}

/// Prometheus explains a refusal in JSON with a 4xx or 5xx; a proxy in front of it in its own words.
fn http_error(status: u16, body: &[u8]) -> SourceError {
    let text = shorten(&String::from_utf8_lossy(&body[..body.len().min(1024)]));
    match read(body, &mut |_| {}) {
        Err(refused @ SourceError::Refused { .. }) => refused,
        Err(SourceError::NotJson { what }) if what.contains("HTML") => {
            if matches!(status, 401 | 403) {
                SourceError::Denied { status, body: what }
            } else {
                SourceError::Http { status, body: what }
            }
        }
        _ if matches!(status, 401 | 403) => SourceError::Denied { status, body: text },
        _ => SourceError::Http { status, body: text },
    }
}

/// 100 ms, 200 ms, 400 ms ... at most 2 s, each cut by up to a half at random, so that replicas don't ask in step.
fn backoff(tried: u32) -> Duration {
    let full = Duration::from_millis(100 << tried.min(5)).min(Duration::from_secs(2));
    full.mul_f64(rand::random_range(0.5..=1.0))
}

async fn read_optional(path: Option<&Path>) -> Result<Option<Vec<u8>>, SourceError> {
    match path {
        Some(path) => read_file(path).await.map(Some),
        None => Ok(None),
    }
}

async fn read_file(path: &Path) -> Result<Vec<u8>, SourceError> {
    let path = path.to_owned();
    let bad = |why: String| SourceError::File { path: path.clone(), why };
    let from = path.clone();
    let read = tokio::task::spawn_blocking(move || crate::files::read_file(&from)).await;
    read.map_err(|e| bad(e.to_string()))?.map_err(|e| bad(e.to_string()))
}
