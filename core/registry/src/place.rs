//! Where an image is asked for.

use oci_spec::distribution::Reference;

use crate::{ReadError, Settings};

/// The name that Docker Hub has in images, and the host that serves it.
pub(crate) const DOCKER_HUB: &str = "docker.io";
const DOCKER_HUB_HOST: &str = "registry-1.docker.io";

/// A registry or mirror that serves an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// As in names of images, and in credentials.
    pub(crate) registry: String,
    /// Up to the repository: `https://HOST/v2/REPOSITORY`.
    pub(crate) url: String,
    pub(crate) repository: String,
    /// The registry that this is a mirror of.
    pub(crate) mirrors: Option<String>,
    /// Plain HTTP is meant.
    pub(crate) plain: bool,
}

/// An image's name, understood.
pub(crate) fn reference(image: &str) -> Result<Reference, ReadError> {
    Reference::try_from(image).map_err(|e| ReadError::Name { image: image.to_owned(), why: e.to_string() })
}

/// Where the image may be had, the best first.
pub(crate) fn places(reference: &Reference, settings: &Settings) -> Result<Vec<Place>, ReadError> {
    let registry = reference.registry();
    let allowed = &settings.registries;
    if !allowed.is_empty() && !allowed.iter().any(|a| a == registry) {
        return Err(ReadError::NotAllowed { registry: registry.to_owned() });
    }
    let repository = reference.repository();
    let place = |name: &str, mirrors: Option<&str>| {
        let host = if name == DOCKER_HUB { DOCKER_HUB_HOST } else { name };
        let plain = settings.plain_http.iter().any(|p| p == name);
        let scheme = if plain { "http" } else { "https" };
        Place {
            registry: name.to_owned(),
            url: format!("{scheme}://{host}/v2/{repository}"),
            repository: repository.to_owned(),
            mirrors: mirrors.map(str::to_owned),
            plain,
        }
    };
    let mirrors = settings.mirrors.get(registry).into_iter().flatten().map(|m| place(m, Some(registry)));
    Ok(mirrors.chain([place(registry, None)]).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn urls(image: &str, settings: &Settings) -> Vec<String> {
        places(&reference(image).unwrap(), settings).unwrap().into_iter().map(|p| p.url).collect()
    }

    #[test]
    fn names_mean_what_they_mean_to_docker() {
        let settings = Settings { plain_http: vec!["localhost:5000".into()], ..Settings::default() };
        let digest = format!("sha256:{}", "a".repeat(64));
        for (image, url, tag) in [
            ("python", "https://registry-1.docker.io/v2/library/python", Some("latest")),
            ("python:3.12", "https://registry-1.docker.io/v2/library/python", Some("3.12")),
            ("team/train", "https://registry-1.docker.io/v2/team/train", Some("latest")),
            ("docker.io/team/train:1", "https://registry-1.docker.io/v2/team/train", Some("1")),
            ("index.docker.io/team/train:1", "https://registry-1.docker.io/v2/team/train", Some("1")),
            ("registry.example/a/b/c:x", "https://registry.example/v2/a/b/c", Some("x")),
            ("registry.example:8443/t", "https://registry.example:8443/v2/t", Some("latest")),
            ("localhost:5000/t:1", "http://localhost:5000/v2/t", Some("1")),
            (&format!("registry.example/t@{digest}"), "https://registry.example/v2/t", None),
            (&format!("registry.example/t:1@{digest}"), "https://registry.example/v2/t", Some("1")),
        ] {
            assert_eq!(urls(image, &settings), [url], "{image}");
            let read = reference(image).unwrap();
            assert_eq!((read.tag(), read.digest().is_some()), (tag, image.contains('@')), "{image}");
        }
        for wrong in ["", "UPPER", "a b", "http://registry.example/t", "t:", "t@sha256:12", "r.example/../t", "t?x"] {
            assert!(matches!(reference(wrong), Err(ReadError::Name { .. })), "{wrong}");
        }
    }

    #[test]
    fn mirrors_come_first_and_other_registries_can_be_shut_out() {
        let settings = Settings {
            mirrors: [(DOCKER_HUB.to_owned(), vec!["mirror.example".to_owned()])].into(),
            registries: vec![DOCKER_HUB.into(), "registry.example".into()],
            ..Settings::default()
        };
        let hub = ["https://mirror.example/v2/library/python", "https://registry-1.docker.io/v2/library/python"];
        assert_eq!(urls("python", &settings), hub);
        assert_eq!(urls("registry.example/t", &settings).len(), 1);
        let refused = places(&reference("10.0.0.1:80/t").unwrap(), &settings);
        assert_eq!(refused, Err(ReadError::NotAllowed { registry: "10.0.0.1:80".into() }));
    }
}
