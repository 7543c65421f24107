//! Credentials, as Kubernetes keeps them in pull secrets.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use oci_spec::distribution::Reference;
use serde::Deserialize;

use crate::place::DOCKER_HUB;

/// Names that Docker Hub goes by in credentials.
const HUB_NAMES: [&str; 3] = ["index.docker.io", "registry-1.docker.io", DOCKER_HUB];

/// A user and a password.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential {
    pub(crate) username: String,
    pub(crate) password: String,
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credential")
    }
}

/// How a secret is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretKind {
    /// `kubernetes.io/dockerconfigjson`, key `.dockerconfigjson`.
    DockerConfigJson,
    /// `kubernetes.io/dockercfg`, key `.dockercfg`.
    DockerCfg,
}

/// A secret that can't be read. What is in it is not told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is not written as a pull secret is (kubectl create secret docker-registry)")]
pub struct KeyringError;

#[derive(Deserialize)]
struct ConfigJson {
    #[serde(default)]
    auths: BTreeMap<String, Auth>,
}

#[derive(Deserialize)]
struct Auth {
    /// `user:password` in base64.
    #[serde(rename = "auth")]
    encoded: Option<String>,
    username: Option<String>,
    password: Option<String>,
}

/// Credentials by the registries, or parts of them, that they are for.
#[derive(Clone, Debug, Default)]
pub struct Keyring {
    entries: Vec<(Scope, Credential)>,
}

/// What credentials are for: a host, which may have `*` in its parts, and the beginning of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Scope {
    host: String,
    path: String,
}

impl Keyring {
    /// Adds what a secret has.
    ///
    /// # Errors
    /// Data of another form.
    pub fn add(&mut self, kind: SecretKind, data: &[u8]) -> Result<(), KeyringError> {
        let auths = match kind {
            SecretKind::DockerConfigJson => serde_json::from_slice::<ConfigJson>(data).map_err(|_| KeyringError)?.auths,
            SecretKind::DockerCfg => serde_json::from_slice(data).map_err(|_| KeyringError)?,
        };
        for (name, auth) in auths {
            if let Some(credential) = auth.credential()? {
                self.entries.push((Scope::parse(&name), credential));
            }
        }
        Ok(())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Those that are for this repository of this registry: the closest first.
    pub(crate) fn of(&self, registry: &str, reference: &Reference) -> Vec<&Credential> {
        let repository = reference.repository();
        let mut fit: Vec<_> = self.entries.iter().filter(|(scope, _)| scope.covers(registry, repository)).collect();
        fit.sort_by_key(|(scope, _)| (std::cmp::Reverse(scope.path.len()), scope.host.contains('*')));
        let mut all: Vec<&Credential> = Vec::new();
        for (_, credential) in fit {
            if !all.contains(&credential) {
                all.push(credential);
            }
        }
        all
    }
}

impl Auth {
    fn credential(self) -> Result<Option<Credential>, KeyringError> {
        if let Some(encoded) = self.encoded.filter(|a| !a.trim().is_empty()) {
            let bytes = STANDARD.decode(encoded.trim()).map_err(|_| KeyringError)?;
            let text = String::from_utf8(bytes).map_err(|_| KeyringError)?;
            let (username, password) = text.split_once(':').ok_or(KeyringError)?;
            // Some writers end the text with zeroes.
            let password = password.trim_end_matches('\0').to_owned();
            return Ok(Some(Credential { username: username.to_owned(), password }));
        }
        let Auth { username, password, .. } = self;
        Ok(username.zip(password).map(|(username, password)| Credential { username, password }))
    }
}

impl Scope {
    /// As docker and the kubelet write it: `https://index.docker.io/v1/`, `registry.example:5000`,
    /// `registry.example/team`, `*.registry.example`.
    fn parse(name: &str) -> Self {
        let rest = name.split_once("://").map_or(name, |(_, r)| r);
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        let path = path.trim_matches('/');
        let version = |v: &str| path == v || path.strip_prefix(v).is_some_and(|r| r.starts_with('/'));
        let path = if version("v1") || version("v2") { path[2..].trim_matches('/') } else { path };
        let host = if HUB_NAMES.contains(&host) { DOCKER_HUB } else { host };
        Scope { host: host.to_owned(), path: path.to_owned() }
    }

    fn covers(&self, registry: &str, repository: &str) -> bool {
        let (parts, others): (Vec<&str>, Vec<&str>) = (self.host.split('.').collect(), registry.split('.').collect());
        let hosts = parts.len() == others.len() && parts.iter().zip(others).all(|(p, o)| fits(p, o));
        hosts && (self.path.is_empty() || repository.starts_with(&self.path))
    }
}

/// Whether a text fits a pattern in which `*` stands for any text.
fn fits(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((before, after)) => text.strip_prefix(before).is_some_and(|rest| {
            (0..=rest.len()).filter(|at| rest.is_char_boundary(*at)).any(|at| fits(after, &rest[at..]))
        }),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::place::reference;

    fn user(keyring: &Keyring, image: &str) -> Vec<String> {
        let reference = reference(image).unwrap();
        keyring.of(reference.registry(), &reference).into_iter().map(|c| c.username.clone()).collect()
    }

    fn keyring(names: &[(&str, &str)]) -> Keyring {
        let entry = |(name, user): &(&str, &str)| {
            format!(r#""{name}": {{"auth": "{}"}}"#, STANDARD.encode(format!("{user}:p:w")))
        };
        let all: Vec<String> = names.iter().map(entry).collect();
        let mut keyring = Keyring::default();
        keyring.add(SecretKind::DockerConfigJson, format!(r#"{{"auths": {{{}}}}}"#, all.join(",")).as_bytes()).unwrap();
        keyring
    }

    #[test]
    fn credentials_are_shown_to_those_they_are_for() {
        let all = keyring(&[
            ("https://index.docker.io/v1/", "hub"),
            ("registry.example:5000", "port"),
            ("https://registry.example/v2/", "plain"),
            ("registry.example/team", "team"),
            ("*.dkr.ecr.*.amazonaws.com", "ecr"),
        ]);
        for (image, users) in [
            ("python", vec!["hub"]),
            ("docker.io/team/x", vec!["hub"]),
            ("registry.example:5000/x", vec!["port"]),
            ("registry.example/x", vec!["plain"]),
            ("registry.example/team/x", vec!["team", "plain"]),
            ("1.dkr.ecr.eu-central-1.amazonaws.com/x", vec!["ecr"]),
            ("1.dkr.ecr.eu-central-1.amazonaws.com.evil.example/x", vec![]),
            ("evil-registry.example/x", vec![]),
        ] {
            assert_eq!(user(&all, image), users, "{image}");
        }
    }

    #[test]
    fn both_forms_of_secrets_are_read() {
        let mut keyring = Keyring::default();
        keyring
            .add(SecretKind::DockerCfg, br#"{"old.example": {"username": "u", "password": "p", "email": "e"}}"#)
            .unwrap();
        keyring.add(SecretKind::DockerConfigJson, br#"{"auths": {"new.example": {}}, "credHelpers": {}}"#).unwrap();
        let old = reference("old.example/x").unwrap();
        let known = keyring.of("old.example", &old);
        assert_eq!((known[0].username.as_str(), known[0].password.as_str()), ("u", "p"));
        assert_eq!(user(&keyring, "new.example/x"), Vec::<String>::new(), "an entry without credentials is none");
        assert!(!format!("{keyring:?}").contains("\"p\""), "{keyring:?}");
        let with_colon = super::tests::keyring(&[("r.example", "u")]);
        assert_eq!(with_colon.of("r.example", &reference("r.example/x").unwrap())[0].password, "p:w");
        for wrong in ["", "7", r#"{"auths": {"r": {"auth": "%"}}}"#, r#"{"auths": {"r": {"auth": "bm9jb2xvbg=="}}}"#] {
            assert_eq!(
                Keyring::default().add(SecretKind::DockerConfigJson, wrong.as_bytes()),
                Err(KeyringError),
                "{wrong}"
            );
        }
    }

    #[test]
    fn a_star_stands_for_any_text() {
        for (pattern, text, want) in [
            ("*", "a", true),
            ("*", "", true),
            ("a*c", "abc", true),
            ("a*c", "ab", false),
            ("*-b", "a-b-b", true),
            ("a", "b", false),
        ] {
            assert_eq!(fits(pattern, text), want, "{pattern} {text}");
        }
    }
}
