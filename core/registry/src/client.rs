//! The requests: a manifest, that of the platform, the config; each checked by its digest.

use std::time::Duration;

use http_auth::ChallengeRef;
use oci_spec::distribution::Reference;
use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderMap, HeaderValue, WWW_AUTHENTICATE};
use reqwest::redirect;
use reqwest::{RequestBuilder, Response, StatusCode, Url};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::credentials::Credential;
use crate::manifest::{self, Next};
use crate::place::{Place, places, reference};
use crate::{Keyring, ReadError, Settings, SetupError, tls};

/// Registries must take manifests of this size, and need not take larger ones.
const MANIFEST_LIMIT: usize = 4 * 1024 * 1024;
const CONFIG_LIMIT: usize = 4 * 1024 * 1024;
const TOKEN_LIMIT: usize = 64 * 1024;
/// Registries send to where blobs are stored, and that at most once more.
const REDIRECTS: usize = 4;
/// Credentials that are tried of those that fit.
const TRIES: usize = 4;

/// An image's config.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Digest of the manifest, or of the index, that the name stood for.
    pub digest: String,
    /// The config, as the image has it.
    pub json: Vec<u8>,
}

/// Reads images' configs; cheap to clone.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    settings: Settings,
}

/// What is shown to a registry in one reading.
struct Session<'a> {
    place: &'a Place,
    credential: Option<&'a Credential>,
    authorization: Option<HeaderValue>,
}

#[derive(Deserialize)]
struct Token {
    token: Option<String>,
    access_token: Option<String>,
}

impl Client {
    /// A client with these settings.
    ///
    /// # Errors
    /// Authorities that can't be read.
    pub fn new(settings: Settings) -> Result<Self, SetupError> {
        let http = reqwest::Client::builder()
            .user_agent(concat!("elastic-training-operator/", env!("CARGO_PKG_VERSION")))
            .redirect(redirect::Policy::custom(follow))
            .connect_timeout(settings.timeout.min(Duration::from_secs(5)))
            .pool_max_idle_per_host(1)
            .pool_idle_timeout(Duration::from_secs(10))
            .tls_backend_preconfigured(tls::config(settings.ca.as_deref())?)
            .build()
            .map_err(|e| SetupError::Client(e.to_string()))?;
        Ok(Client { http, settings })
    }

    /// Reads the config of an image, for Linux on this architecture (as in Kubernetes' labels), with what fits of the
    /// keyring.
    ///
    /// # Errors
    /// Why it can't be had; of several places that were tried, what the last one said that answered.
    pub async fn config(&self, image: &str, architecture: &str, keyring: &Keyring) -> Result<Config, ReadError> {
        let name = reference(image)?;
        let places = places(&name, &self.settings)?;
        let after = self.settings.timeout;
        let late = ReadError::Late { registry: name.registry().to_owned(), after };
        let reading = async {
            let mut last = late.clone();
            for place in &places {
                match self.config_at(place, &name, architecture, keyring).await {
                    Ok(config) => return Ok(config),
                    Err(error) => {
                        tracing::debug!(image, registry = place.registry, %error, "not read here");
                        // What somebody said tells more than that nobody answered.
                        if error.is_answer() || !last.is_answer() {
                            last = error;
                        }
                    }
                }
            }
            Err(last)
        };
        tokio::time::timeout(after, reading).await.unwrap_or_else(|_| Err(late.clone()))
    }

    /// With the credentials that fit, one after the other; with none where there are none.
    async fn config_at(
        &self,
        place: &Place,
        name: &Reference,
        architecture: &str,
        keyring: &Keyring,
    ) -> Result<Config, ReadError> {
        let fitting = keyring.of(&place.registry, name);
        let mut tries: Vec<Option<&Credential>> = fitting.into_iter().take(TRIES).map(Some).collect();
        if tries.is_empty() {
            tries.push(None);
        }
        let mut last = None;
        for credential in tries {
            let mut session = Session { place, credential, authorization: None };
            match self.read(&mut session, name, architecture).await {
                Err(error) if error.is_refusal() => last = Some(error),
                outcome => return outcome,
            }
        }
        Err(last.unwrap_or_else(|| ReadError::NotFound { registry: place.registry.clone(), image: name.whole() }))
    }

    async fn read(&self, session: &mut Session<'_>, name: &Reference, architecture: &str) -> Result<Config, ReadError> {
        let image = name.whole();
        let tag = name.digest().or(name.tag()).unwrap_or("latest");
        let body = self.manifest(session, &image, tag).await?;
        let digest = digest_of(&body);
        let config = match manifest::next(&image, &body, architecture)? {
            Next::Config(config) => config,
            Next::Manifest(platform) => {
                let body = self.manifest(session, &image, &platform).await?;
                match manifest::next(&image, &body, architecture)? {
                    Next::Config(config) => config,
                    Next::Manifest(_) => {
                        return Err(ReadError::NoImage { image, why: "its index leads to another index".to_owned() });
                    }
                }
            }
        };
        check_digest(&image, &config)?;
        let json = self.get(session, &image, &format!("blobs/{config}"), "config", CONFIG_LIMIT).await?;
        verify(session.place, "config", &config, &json)?;
        Ok(Config { digest, json })
    }

    /// A manifest by tag or digest.
    async fn manifest(&self, session: &mut Session<'_>, image: &str, tag: &str) -> Result<Vec<u8>, ReadError> {
        let is_digest = tag.contains(':');
        if is_digest {
            check_digest(image, tag)?;
        }
        let body = self.get(session, image, &format!("manifests/{tag}"), "manifest", MANIFEST_LIMIT).await?;
        if is_digest {
            verify(session.place, "manifest", tag, &body)?;
        }
        Ok(body)
    }

    /// The body of an answer. Shows what the registry asks for, once.
    async fn get(
        &self,
        session: &mut Session<'_>,
        image: &str,
        path: &str,
        what: &'static str,
        limit: usize,
    ) -> Result<Vec<u8>, ReadError> {
        let place = session.place;
        let registry = place.registry.clone();
        let mut answer = self.send(place, self.request(session, path)).await?;
        if answer.status() == StatusCode::UNAUTHORIZED && session.authorization.is_none() {
            session.authorization = self.authorize(session, answer.headers()).await?;
            if session.authorization.is_some() {
                answer = self.send(place, self.request(session, path)).await?;
            }
        }
        match answer.status().as_u16() {
            200 => body(answer, place, what, limit).await,
            code @ (401 | 403) => Err(ReadError::Refused { registry, code, anonymous: session.credential.is_none() }),
            404 => Err(ReadError::NotFound { registry, image: image.to_owned() }),
            code => Err(ReadError::Status { registry, code }),
        }
    }

    fn request(&self, session: &Session<'_>, path: &str) -> RequestBuilder {
        let request = self.http.get(format!("{}/{path}", session.place.url)).header(ACCEPT, manifest::ACCEPT);
        // As containerd tells mirrors whose image it is.
        let request = match &session.place.mirrors {
            Some(registry) => request.query(&[("ns", registry)]),
            None => request,
        };
        match &session.authorization {
            Some(authorization) => request.header(AUTHORIZATION, authorization.clone()),
            None => request,
        }
    }

    async fn send(&self, place: &Place, request: RequestBuilder) -> Result<Response, ReadError> {
        request.send().await.map_err(|e| unreached(&place.registry, &e))
    }

    /// What the registry is to be shown: the credential itself, or a token that another server gives for it.
    async fn authorize(&self, session: &Session<'_>, headers: &HeaderMap) -> Result<Option<HeaderValue>, ReadError> {
        for header in headers.get_all(WWW_AUTHENTICATE) {
            let challenges = header.to_str().ok().and_then(|text| http_auth::parse_challenges(text).ok());
            for challenge in challenges.into_iter().flatten() {
                if challenge.scheme.eq_ignore_ascii_case("bearer") {
                    return self.token(session, &challenge).await;
                }
                if let Some(credential) = session.credential.filter(|_| challenge.scheme.eq_ignore_ascii_case("basic"))
                {
                    return Ok(basic(credential));
                }
            }
        }
        Ok(None)
    }

    async fn token(
        &self,
        session: &Session<'_>,
        challenge: &ChallengeRef<'_>,
    ) -> Result<Option<HeaderValue>, ReadError> {
        let place = session.place;
        let parameter = |name: &str| {
            let found = challenge.params.iter().find(|(n, _)| n.eq_ignore_ascii_case(name));
            found.map(|(_, value)| value.to_unescaped())
        };
        let realm = parameter("realm").and_then(|realm| Url::parse(&realm).ok());
        let safe = |url: &Url| url.scheme() == "https" || (place.plain && url.scheme() == "http");
        let Some(realm) = realm.filter(safe) else {
            let why = "it sends to a token server that has no https:// URL".to_owned();
            return Err(ReadError::Unreached { registry: place.registry.clone(), why });
        };
        let scope = parameter("scope").unwrap_or_else(|| format!("repository:{}:pull", place.repository));
        let mut request = self.http.get(realm).query(&[("scope", scope.as_str())]);
        if let Some(service) = parameter("service") {
            request = request.query(&[("service", service.as_str())]);
        }
        if let Some(credential) = session.credential.and_then(basic) {
            request = request.header(AUTHORIZATION, credential);
        }
        let answer = self.send(place, request).await?;
        let registry = place.registry.clone();
        match answer.status().as_u16() {
            200 => {}
            code @ (400 | 401 | 403) => {
                return Err(ReadError::Refused { registry, code, anonymous: session.credential.is_none() });
            }
            code => return Err(ReadError::Status { registry, code }),
        }
        let bytes = body(answer, place, "token", TOKEN_LIMIT).await?;
        let token: Option<Token> = serde_json::from_slice(&bytes).ok();
        let token = token.and_then(|t| t.token.or(t.access_token)).filter(|t| !t.is_empty());
        Ok(token.and_then(|token| sensitive(&format!("Bearer {token}"))))
    }
}

/// Follows to where a registry stores its blobs; never from TLS to plain HTTP.
fn follow(attempt: redirect::Attempt<'_>) -> redirect::Action {
    let falls =
        attempt.previous().last().is_some_and(|from| from.scheme() == "https") && attempt.url().scheme() != "https";
    if falls {
        attempt.error("it sends from https:// to http://")
    } else if attempt.previous().len() > REDIRECTS {
        attempt.error("it sends from one place to the next")
    } else {
        attempt.follow()
    }
}

fn basic(credential: &Credential) -> Option<HeaderValue> {
    use base64::Engine;
    let text = format!("{}:{}", credential.username, credential.password);
    sensitive(&format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(text)))
}

fn sensitive(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// The body, no longer than `limit`.
async fn body(mut answer: Response, place: &Place, what: &'static str, limit: usize) -> Result<Vec<u8>, ReadError> {
    let registry = &place.registry;
    let too_large = || ReadError::TooLarge { registry: registry.clone(), what, limit };
    let length = answer.content_length().map_or(0, |n| usize::try_from(n).unwrap_or(usize::MAX));
    if length > limit {
        return Err(too_large());
    }
    let mut bytes = Vec::with_capacity(length);
    while let Some(chunk) = answer.chunk().await.map_err(|e| unreached(registry, &e))? {
        if bytes.len() + chunk.len() > limit {
            return Err(too_large());
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

/// The innermost cause says what happened; the outer ones repeat the URL.
fn unreached(registry: &str, error: &reqwest::Error) -> ReadError {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    let why =
        if error.is_connect() && error.is_timeout() { "no connection in time".to_owned() } else { cause.to_string() };
    ReadError::Unreached { registry: registry.to_owned(), why }
}

fn digest_of(bytes: &[u8]) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(bytes)))
}

/// A digest comes from a registry and goes into a URL.
fn check_digest(image: &str, digest: &str) -> Result<(), ReadError> {
    let hex = |h: &str| h.len() == 64 && h.bytes().all(|b| b.is_ascii_hexdigit());
    if digest.strip_prefix("sha256:").is_some_and(hex) {
        return Ok(());
    }
    Err(ReadError::NoImage { image: image.to_owned(), why: "a digest in it is no sha256".to_owned() })
}

fn verify(place: &Place, what: &'static str, digest: &str, bytes: &[u8]) -> Result<(), ReadError> {
    if digest_of(bytes).eq_ignore_ascii_case(digest) {
        return Ok(());
    }
    Err(ReadError::Forged { registry: place.registry.clone(), what })
}
