//! The source of signals, as the settings describe it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use eto_signals::{Auth, BasicAuth, GpuMetrics, Method, Prometheus, PrometheusSettings, Tls};

use crate::settings;

/// Why signals can't be read with these settings.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error("prometheus: {0}")]
    Settings(#[from] eto_signals::SettingsError),
    #[error("prometheus.headers-file {path}: {message}")]
    Headers { path: PathBuf, message: String },
    #[error("prometheus.matchers: {0}")]
    Matchers(String),
}

/// The Prometheus of the settings; `None` where they name none.
pub fn source(settings: &settings::Prometheus) -> Result<Option<Prometheus>, SourceError> {
    if settings.url.is_empty() {
        return Ok(None);
    }
    let headers = match Some(&settings.headers_file).filter(|p| !p.as_os_str().is_empty()) {
        Some(path) => headers_of(path).map_err(|message| SourceError::Headers { path: path.clone(), message })?,
        None => BTreeMap::new(),
    };
    Ok(Some(Prometheus::new(PrometheusSettings { headers, ..resolved(settings)? })?))
}

/// What can be told of the settings without their files, which may be on another machine.
pub fn check(settings: &settings::Prometheus) -> Result<(), SourceError> {
    let resolved = resolved(settings)?;
    if settings.url.is_empty() { Ok(()) } else { Ok(Prometheus::new(resolved).map(drop)?) }
}

/// All but the headers.
fn resolved(settings: &settings::Prometheus) -> Result<PrometheusSettings, SourceError> {
    let file = |p: &PathBuf| Some(p.clone()).filter(|p| !p.as_os_str().is_empty());
    let text = |t: &String| Some(t.clone()).filter(|t| !t.is_empty());
    Ok(PrometheusSettings {
        url: settings.url.clone(),
        method: match settings.method {
            settings::Method::Post => Method::Post,
            settings::Method::Get => Method::Get,
        },
        timeout: settings.timeout.get(),
        deadline: settings.deadline.get(),
        retries: settings.retries,
        max_concurrency: usize::try_from(settings.concurrency).unwrap_or(usize::MAX),
        max_response_bytes: u64::from(settings.max_response_mebibytes) * 1024 * 1024,
        scrape_interval: settings.scrape_interval.get(),
        namespace_label: settings.namespace_label.clone(),
        matchers: matchers(&settings.matchers).map_err(SourceError::Matchers)?,
        gpu: GpuMetrics {
            utilisation: settings.gpu_utilisation.clone(),
            engine_active: settings.gpu_engine_active.clone(),
            memory_used: settings.gpu_memory_used.clone(),
            memory_free: settings.gpu_memory_free.clone(),
        },
        auth: Auth {
            bearer_token_file: file(&settings.bearer_token_file),
            basic: file(&settings.password_file)
                .map(|password_file| BasicAuth { username: settings.username.clone(), password_file }),
        },
        tls: Tls {
            ca_file: file(&settings.ca_file),
            cert_file: file(&settings.cert_file),
            key_file: file(&settings.key_file),
            server_name: text(&settings.server_name),
            insecure_skip_verify: settings.insecure_skip_verify,
        },
        headers: BTreeMap::new(),
    })
}

/// `cluster=a, env=prod`.
fn matchers(text: &str) -> Result<BTreeMap<String, String>, String> {
    let pairs = text.split(',').map(str::trim).filter(|p| !p.is_empty());
    pairs
        .map(|pair| {
            let (name, value) =
                pair.split_once('=').ok_or_else(|| format!("{pair:?} is not of the form label=value"))?;
            Ok((name.trim().to_owned(), value.trim().trim_matches('"').to_owned()))
        })
        .collect()
}

/// Headers that a file has, or what is wrong with it.
pub(crate) fn headers_of(path: &Path) -> Result<BTreeMap<String, String>, String> {
    let bytes = eto_signals::read_file(path).map_err(|e| e.to_string())?;
    let text = String::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned())?;
    headers(&text).map_err(|line| format!("line {line} is not of the form `Name: value`"))
}

/// `Name: value` lines; the number of the first line that is none. Values are secrets, and never part of an error.
fn headers(text: &str) -> Result<BTreeMap<String, String>, usize> {
    let lines = text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty());
    lines
        .map(|(at, line)| {
            let (name, value) = line.split_once(':').ok_or(at + 1)?;
            Ok((name.trim().to_owned(), value.trim().to_owned()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::settings::Prometheus as Of;

    #[test]
    fn the_defaults_are_those_of_the_source() {
        let ours = resolved(&Of { url: PrometheusSettings::default().url, ..Of::default() }).unwrap();
        assert_eq!(format!("{ours:?}"), format!("{:?}", PrometheusSettings::default()));
    }

    #[test]
    fn matchers_and_headers_are_read() {
        assert_eq!(
            matchers("cluster=a, env=\"prod\",").unwrap(),
            [("cluster", "a"), ("env", "prod")].map(owned).into()
        );
        assert!(matchers("cluster").unwrap_err().contains("label=value"));
        let read = headers("X-Scope-OrgID: team-a\n\nX-Token: s3:cret\n").unwrap();
        assert_eq!(read, [("X-Scope-OrgID", "team-a"), ("X-Token", "s3:cret")].map(owned).into());
    }

    #[test]
    fn what_is_wrong_is_told_without_files_too() {
        let of = |url: &str, matchers: &str| {
            let (url, matchers) = (url.to_owned(), matchers.to_owned());
            let headers_file = "/no/such/file".into();
            check(&Of { url, matchers, headers_file, ..Of::default() }).map_err(|e| e.to_string())
        };
        assert_eq!(of("http://localhost:9090", "a=b"), Ok(()));
        assert_eq!(of("", "a=b"), Ok(()));
        assert!(of("", "a").unwrap_err().contains("label=value"));
        assert!(of("http://localhost:9090", "1a=b").unwrap_err().contains("1a"));
        assert!(of("localhost", "").unwrap_err().starts_with("prometheus: "));
    }

    #[test]
    fn a_bad_header_is_found_by_its_line_and_not_shown() {
        let dir = tempfile::tempdir().unwrap();
        let headers_file = dir.path().join("headers");
        std::fs::write(&headers_file, "X-Ok: 1\nsecret\n").unwrap();
        let settings = Of { url: "http://localhost:9090".into(), headers_file, ..Of::default() };
        let said = source(&settings).err().unwrap().to_string();
        assert!(said.contains("line 2") && !said.contains("secret"), "{said}");
    }

    fn owned((name, value): (&str, &str)) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }
}
