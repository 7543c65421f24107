//! Registries that users name: token servers, answers without end, lies.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "tests start processes, use files and sockets")]

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use eto_registry::{Client, Config, Keyring, ReadError, SecretKind, Settings};
use sha2::{Digest, Sha256};

const CONFIG: &str = r#"{"config": {"Cmd": ["train"]}}"#;

/// A server on the loopback, gone with this value. It keeps what it was asked.
struct Server {
    address: SocketAddr,
    task: tokio::task::JoinHandle<()>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

type Answer = Arc<dyn Fn(&str, &HeaderMap, SocketAddr) -> Response + Send + Sync>;

#[derive(Clone)]
struct Served {
    answer: Answer,
    asked: Arc<Mutex<Vec<String>>>,
    address: SocketAddr,
}

async fn serve(answer: impl Fn(&str, &HeaderMap, SocketAddr) -> Response + Send + Sync + 'static) -> Server {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let served = Served { answer: Arc::new(answer), asked: Arc::clone(&asked), address };
    let router = Router::new().fallback(one).with_state(served);
    let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    Server { address, task, asked }
}

async fn one(State(served): State<Served>, request: Request) -> Response {
    let path = request.uri().to_string();
    let shown = request.headers().get(header::AUTHORIZATION).and_then(|v| v.to_str().ok()).unwrap_or("-").to_owned();
    served.asked.lock().unwrap().push(format!("{path} {shown}"));
    (served.answer)(&path, request.headers(), served.address)
}

fn digest(text: &str) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(text.as_bytes())))
}

fn manifest(config: &str) -> String {
    format!(
        r#"{{"schemaVersion": 2, "config": {{"mediaType": "application/vnd.oci.image.config.v1+json", "digest": "{config}", "size": 1}}}}"#
    )
}

/// What an honest registry answers.
fn honest(path: &str) -> Response {
    match path {
        p if p.contains("/manifests/") => manifest(&digest(CONFIG)).into_response(),
        p if p.ends_with(&digest(CONFIG)) => CONFIG.into_response(),
        _ => StatusCode::NOT_FOUND.into_response(),
    }
}

fn endless() -> Response {
    let chunks = std::iter::repeat_with(|| Ok::<_, std::io::Error>(Bytes::from(vec![b' '; 1 << 16])));
    Response::new(Body::from_stream(futures::stream::iter(chunks)))
}

async fn read(server: &Server, keyring: &Keyring, timeout: Duration) -> Result<Config, ReadError> {
    let host = server.address.to_string();
    let settings = Settings { plain_http: vec![host.clone()], timeout, ..Settings::default() };
    Client::new(settings).unwrap().config(&format!("{host}/team/train:1"), "amd64", keyring).await
}

async fn fails(answer: impl Fn(&str) -> Response + Send + Sync + 'static) -> ReadError {
    let server = serve(move |path, _, _| answer(path)).await;
    read(&server, &Keyring::default(), Duration::from_secs(10)).await.unwrap_err()
}

fn robot(server: &Server) -> Keyring {
    let mut keyring = Keyring::default();
    let secret = format!(r#"{{"{}": {{"username": "robot", "password": "p"}}}}"#, server.address);
    keyring.add(SecretKind::DockerCfg, secret.as_bytes()).unwrap();
    keyring
}

#[tokio::test]
async fn a_token_is_fetched_with_the_credentials_and_shown_instead_of_them() {
    let server = serve(|path, headers, address| {
        if path.starts_with("/token") {
            return r#"{"token": "for-an-hour"}"#.into_response();
        }
        let shown = headers.get(header::AUTHORIZATION).map(|v| v.to_str().unwrap().to_owned());
        if shown.as_deref() == Some("Bearer for-an-hour") {
            return honest(path);
        }
        let challenge =
            format!(r#"Bearer realm="http://{address}/token",service="registry",scope="repository:team/train:pull""#);
        (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, challenge)]).into_response()
    })
    .await;
    let config = read(&server, &robot(&server), Duration::from_secs(10)).await.unwrap();
    assert_eq!(config.json, CONFIG.as_bytes());
    let asked = server.asked.lock().unwrap().clone();
    let tokens: Vec<&String> = asked.iter().filter(|a| a.starts_with("/token")).collect();
    // robot:p
    assert_eq!(tokens, ["/token?scope=repository%3Ateam%2Ftrain%3Apull&service=registry Basic cm9ib3Q6cA=="]);
    assert_eq!(asked.iter().filter(|a| a.contains("Basic")).count(), 1, "{asked:?}");
}

#[tokio::test]
async fn a_token_server_without_tls_gets_no_credentials() {
    let elsewhere = serve(|_, _, _| r#"{"token": "t"}"#.into_response()).await;
    let realm = format!("ftp://{}/token", elsewhere.address);
    let server = serve(move |_, _, _| {
        let challenge = format!(r#"Bearer realm="{realm}""#);
        (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, challenge)]).into_response()
    })
    .await;
    let error = read(&server, &robot(&server), Duration::from_secs(10)).await.unwrap_err();
    assert!(matches!(&error, ReadError::Unreached { why, .. } if why.contains("token server")), "{error:?}");
    assert_eq!(elsewhere.asked.lock().unwrap().len(), 0);
}

#[tokio::test]
async fn credentials_do_not_follow_to_where_blobs_are_stored() {
    let store = serve(|path, _, _| honest(path)).await;
    let at = store.address;
    let server = serve(move |path, headers, _| {
        if !headers.contains_key(header::AUTHORIZATION) {
            return (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, "Basic realm=\"r\"")]).into_response();
        }
        if path.contains("/blobs/") {
            let to = format!("http://localhost:{}{path}", at.port());
            return (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, to)]).into_response();
        }
        honest(path)
    })
    .await;
    let config = read(&server, &robot(&server), Duration::from_secs(10)).await.unwrap();
    assert_eq!(config.json, CONFIG.as_bytes());
    let asked = store.asked.lock().unwrap().clone();
    assert!(asked.len() == 1 && asked[0].ends_with(" -"), "{asked:?}");
}

#[tokio::test]
async fn an_answer_without_end_is_given_up_at_its_limit() {
    let error = fails(|path| if path.contains("/manifests/") { endless() } else { honest(path) }).await;
    assert!(matches!(error, ReadError::TooLarge { what: "manifest", .. }), "{error:?}");
    let error = fails(|path| if path.contains("/blobs/") { endless() } else { honest(path) }).await;
    assert!(matches!(error, ReadError::TooLarge { what: "config", .. }), "{error:?}");
}

#[tokio::test]
async fn lies_and_nonsense_are_told_apart() {
    let error =
        fails(|path| if path.contains("/blobs/") { "another config".into_response() } else { honest(path) }).await;
    assert!(matches!(error, ReadError::Forged { what: "config", .. }), "{error:?}");
    let error = fails(|_| "<html>please log in to the hotel's network</html>".into_response()).await;
    assert!(matches!(&error, ReadError::NoImage { .. }) && !error.to_string().contains("hotel"), "{error:?}");
    let error = fails(|_| manifest("../../secrets").into_response()).await;
    assert!(matches!(&error, ReadError::NoImage { why, .. } if why.contains("sha256")), "{error:?}");
    let error = fails(|_| (StatusCode::SERVICE_UNAVAILABLE, "a long story").into_response()).await;
    assert!(matches!(error, ReadError::Status { code: 503, .. }), "{error:?}");
    let error =
        fails(|path| (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, path.to_owned())]).into_response()).await;
    assert!(
        matches!(&error, ReadError::Unreached { why, .. } if why.contains("from one place to the next")),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_registry_that_does_not_answer_is_given_up_in_time() {
    // It takes connections, and says nothing.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = listener.local_addr().unwrap().to_string();
    let timeout = Duration::from_millis(300);
    let settings = Settings { plain_http: vec![host.clone()], timeout, ..Settings::default() };
    let reading = Client::new(settings).unwrap().config(&format!("{host}/train"), "amd64", &Keyring::default()).await;
    assert_eq!(reading, Err(ReadError::Late { registry: host, after: timeout }));
}
