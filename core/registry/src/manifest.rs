//! Manifests: which one of an index, and where the config is.

use serde::Deserialize;

use crate::ReadError;

/// What is asked for.
pub(crate) const ACCEPT: &str = "application/vnd.oci.image.index.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.v2+json";
const CONFIGS: [&str; 2] =
    ["application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json"];
/// Names of platforms that a message lists at most.
const LISTED: usize = 8;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Manifest {
    config: Option<Descriptor>,
    manifests: Option<Vec<Entry>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    media_type: String,
    digest: String,
}

#[derive(Debug, Deserialize)]
struct Entry {
    digest: String,
    platform: Option<Platform>,
}

#[derive(Debug, Deserialize)]
struct Platform {
    os: String,
    architecture: String,
}

/// What a manifest leads to, by digest.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The manifest of one platform.
    Manifest(String),
    Config(String),
}

/// Reads a manifest or an index of them.
pub(crate) fn next(image: &str, body: &[u8], architecture: &str) -> Result<Next, ReadError> {
    let no = |why: String| ReadError::NoImage { image: image.to_owned(), why };
    let manifest: Manifest = serde_json::from_slice(body).map_err(|e| no(unlike("manifest", &e)))?;
    if let Some(entries) = &manifest.manifests {
        return choose(image, entries, architecture).map(Next::Manifest);
    }
    let config = manifest.config.ok_or_else(|| no("its manifest names no config".to_owned()))?;
    if !CONFIGS.contains(&config.media_type.as_str()) {
        return Err(no(format!("its config is of the type {}", plain(&config.media_type))));
    }
    Ok(Next::Config(config.digest))
}

/// Where JSON is not as it should be; not what stands there.
fn unlike(what: &str, error: &serde_json::Error) -> String {
    format!("its {what} is not as it should be at line {}, column {}", error.line(), error.column())
}

/// A registry's word, fit for a message.
fn plain(word: &str) -> String {
    word.chars().filter(char::is_ascii_graphic).take(80).collect()
}

/// The wanted platform; where there is but one for Linux, that one: nodes can run no other.
fn choose(image: &str, entries: &[Entry], architecture: &str) -> Result<String, ReadError> {
    // Signatures and attestations have a platform that is unknown.
    let linux: Vec<(&Entry, &str)> = entries
        .iter()
        .filter_map(|e| Some((e, e.platform.as_ref().filter(|p| p.os == "linux")?.architecture.as_str())))
        .collect();
    let found = linux.iter().find(|(_, a)| *a == architecture).or_else(|| linux.first().filter(|_| linux.len() == 1));
    found.map(|(e, _)| e.digest.clone()).ok_or_else(|| {
        let mut there: Vec<String> = linux.iter().take(LISTED).map(|(_, a)| format!("linux/{}", plain(a))).collect();
        if there.is_empty() {
            there.push("nothing that runs on Linux".to_owned());
        }
        let (image, architecture) = (image.to_owned(), architecture.to_owned());
        ReadError::NoPlatform { image, architecture, there: there.join(", ") }
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn entry(os: &str, architecture: &str) -> String {
        format!(
            r#"{{"mediaType": "m", "digest": "sha256:{os}-{architecture}", "size": 1,
            "platform": {{"os": "{os}", "architecture": "{architecture}"}}}}"#
        )
    }

    fn chosen(entries: &[String], architecture: &str) -> Result<Next, ReadError> {
        let body = format!(r#"{{"schemaVersion": 2, "manifests": [{}]}}"#, entries.join(","));
        next("i", body.as_bytes(), architecture)
    }

    #[test]
    fn the_wanted_platform_is_taken() {
        let attested = [entry("unknown", "unknown"), entry("linux", "amd64"), entry("linux", "arm64")];
        assert_eq!(chosen(&attested, "arm64"), Ok(Next::Manifest("sha256:linux-arm64".into())));
        assert_eq!(chosen(&attested, "amd64"), Ok(Next::Manifest("sha256:linux-amd64".into())));
        let one = [entry("windows", "amd64"), entry("linux", "arm64"), entry("unknown", "unknown")];
        assert_eq!(chosen(&one, "amd64"), Ok(Next::Manifest("sha256:linux-arm64".into())), "it has no other");
        let said = chosen(&attested, "riscv64").unwrap_err().to_string();
        assert_eq!(said, "i has no image for linux/riscv64, but for linux/amd64, linux/arm64");
        assert!(chosen(&[entry("windows", "amd64")], "amd64").unwrap_err().to_string().contains("nothing that runs"));
    }

    #[test]
    fn other_artifacts_are_no_images() {
        let config = |kind: &str| {
            let body = format!(
                r#"{{"schemaVersion": 2, "config": {{"mediaType": "{kind}", "digest": "sha256:1", "size": 2}}}}"#
            );
            next("i", body.as_bytes(), "amd64")
        };
        assert_eq!(config(CONFIGS[0]), Ok(Next::Config("sha256:1".into())));
        assert_eq!(config(CONFIGS[1]), Ok(Next::Config("sha256:1".into())));
        let said = config("application/vnd.cncf.helm.config.v1+json").unwrap_err().to_string();
        assert!(said.contains("helm.config"), "{said}");
        for wrong in ["", "<html>", "[]", r#"{"schemaVersion": 1, "history": []}"#] {
            assert!(matches!(next("i", wrong.as_bytes(), "amd64"), Err(ReadError::NoImage { .. })), "{wrong}");
        }
    }
}
