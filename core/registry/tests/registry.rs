//! Against a real registry: by tag, by digest, of several platforms, with TLS and credentials.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "tests start processes, use files and sockets")]

mod support;

use eto_registry::{Client, Config, Keyring, ReadError, SecretKind, Settings, SetupError};
use support::{Needs, PASSWORD, Registry, USER};

const TRAIN: &str = r#"{"architecture": "amd64", "os": "linux", "config": {"Cmd": ["python", "train.py"]}, "rootfs": {"type": "layers", "diff_ids": []}}"#;
const OTHER: &str = r#"{"architecture": "arm64", "os": "linux", "config": {"Cmd": ["python3", "train.py"]}}"#;

fn settings(registry: &Registry) -> Settings {
    match &registry.ca {
        Some(ca) => Settings { ca: Some(ca.clone().into_bytes()), ..Settings::default() },
        None => Settings { plain_http: vec![registry.host.clone()], ..Settings::default() },
    }
}

fn keyring(host: &str, user: &str, password: &str) -> Keyring {
    let mut keyring = Keyring::default();
    let secret = format!(r#"{{"auths": {{"{host}": {{"username": "{user}", "password": "{password}"}}}}}}"#);
    keyring.add(SecretKind::DockerConfigJson, secret.as_bytes()).unwrap();
    keyring
}

async fn read(settings: Settings, image: &str, keyring: &Keyring) -> Result<Config, ReadError> {
    Client::new(settings).unwrap().config(image, "amd64", keyring).await
}

#[tokio::test]
async fn an_image_is_read_by_tag_and_by_digest() {
    let registry = Registry::start(Needs::default());
    let digest = registry.push("team/train:1", TRAIN).await;
    let none = Keyring::default();
    for name in ["team/train:1".to_owned(), format!("team/train@{digest}"), format!("team/train:9@{digest}")] {
        let config = read(settings(&registry), &registry.image(&name), &none).await.unwrap();
        assert_eq!((config.digest.as_str(), config.json.as_slice()), (digest.as_str(), TRAIN.as_bytes()), "{name}");
    }
    let missing = read(settings(&registry), &registry.image("team/train:2"), &none).await.unwrap_err();
    assert_eq!(missing, ReadError::NotFound { registry: registry.host.clone(), image: registry.image("team/train:2") });
}

#[tokio::test]
async fn of_several_platforms_the_nodes_own_is_read() {
    let registry = Registry::start(Needs::default());
    let amd = registry.push("train:amd64", TRAIN).await;
    let arm = registry.push("train:arm64", OTHER).await;
    let index = registry.push_index("train:1", &[("amd64", &amd), ("arm64", &arm)]).await;
    let client = Client::new(settings(&registry)).unwrap();
    let image = registry.image("train:1");
    for (architecture, want) in [("amd64", TRAIN), ("arm64", OTHER)] {
        let config = client.config(&image, architecture, &Keyring::default()).await.unwrap();
        assert_eq!((config.digest.as_str(), config.json.as_slice()), (index.as_str(), want.as_bytes()));
    }
    let none = client.config(&image, "s390x", &Keyring::default()).await.unwrap_err();
    assert!(matches!(&none, ReadError::NoPlatform { there, .. } if there == "linux/amd64, linux/arm64"), "{none:?}");
}

#[tokio::test]
async fn a_registry_with_tls_and_credentials_is_asked_with_those_that_are_for_it() {
    let registry = Registry::start(Needs { tls: true, credentials: true });
    let digest = registry.push("team/train:1", TRAIN).await;
    let image = registry.image("team/train:1");
    let host = registry.host.as_str();
    let config = read(settings(&registry), &image, &keyring(host, USER, PASSWORD)).await.unwrap();
    assert_eq!(config.digest, digest);
    let refused = |anonymous| ReadError::Refused { registry: host.to_owned(), code: 401, anonymous };
    let wrong = read(settings(&registry), &image, &keyring(host, USER, "guessed")).await;
    assert_eq!(wrong, Err(refused(false)));
    let none = read(settings(&registry), &image, &Keyring::default()).await;
    assert_eq!(none, Err(refused(true)));
    let others = read(settings(&registry), &image, &keyring("registry.example", USER, PASSWORD)).await;
    assert_eq!(others, Err(refused(true)), "what is for another registry is not shown to this one");
    // Of several the closest is tried first, and then the others.
    let mut both = keyring(&format!("{host}/team"), USER, "guessed");
    let secret = format!(r#"{{"{host}": {{"username": "{USER}", "password": "{PASSWORD}"}}}}"#);
    both.add(SecretKind::DockerCfg, secret.as_bytes()).unwrap();
    assert!(read(settings(&registry), &image, &both).await.is_ok());
}

#[tokio::test]
async fn a_certificate_of_nobody_known_is_not_trusted() {
    let registry = Registry::start(Needs { tls: true, credentials: false });
    registry.push("train:1", TRAIN).await;
    let image = registry.image("train:1");
    let unknown = read(Settings::default(), &image, &Keyring::default()).await.unwrap_err();
    assert!(matches!(&unknown, ReadError::Unreached { why, .. } if why.contains("certificate")), "{unknown:?}");
    let plain = Settings { plain_http: vec![registry.host.clone()], ..Settings::default() };
    let answered = read(plain, &image, &Keyring::default()).await.unwrap_err();
    assert!(matches!(answered, ReadError::Status { code: 400, .. } | ReadError::Unreached { .. }), "{answered:?}");
    let no_ca = Client::new(Settings { ca: Some(b"nothing".to_vec()), ..Settings::default() }).unwrap_err();
    assert!(matches!(no_ca, SetupError::Authorities(_)), "{no_ca:?}");
}

#[tokio::test]
async fn a_mirror_is_asked_first_and_the_registry_where_the_mirror_fails() {
    let mut mirror = Registry::start(Needs::default());
    let registry = Registry::start(Needs::default());
    let (at_mirror, at_home) = (mirror.push("train:1", OTHER).await, registry.push("train:1", TRAIN).await);
    let with_mirror = Settings {
        plain_http: vec![registry.host.clone(), mirror.host.clone()],
        mirrors: [(registry.host.clone(), vec![mirror.host.clone()])].into(),
        ..Settings::default()
    };
    let image = registry.image("train:1");
    let none = Keyring::default();
    assert_eq!(read(with_mirror.clone(), &image, &none).await.unwrap().digest, at_mirror);
    mirror.stop();
    assert_eq!(read(with_mirror.clone(), &image, &none).await.unwrap().digest, at_home);
    let missing = read(with_mirror, &registry.image("none:1"), &none).await.unwrap_err();
    assert!(matches!(&missing, ReadError::NotFound { registry: r, .. } if *r == registry.host), "{missing:?}");
}

#[tokio::test]
async fn what_a_mirror_says_counts_where_the_registry_says_nothing() {
    let mirror = Registry::start(Needs { tls: false, credentials: true });
    // A port that nobody serves while this holds it.
    let taken = tokio::net::TcpSocket::new_v4().unwrap();
    taken.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let gone = taken.local_addr().unwrap().to_string();
    let settings = Settings {
        plain_http: vec![gone.clone(), mirror.host.clone()],
        mirrors: [(gone.clone(), vec![mirror.host.clone()])].into(),
        ..Settings::default()
    };
    let said = read(settings, &format!("{gone}/train:1"), &Keyring::default()).await.unwrap_err();
    assert_eq!(said, ReadError::Refused { registry: mirror.host.clone(), code: 401, anonymous: true });
}
