//! How to reach and read Prometheus.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Deserializer};

use crate::error::SettingsError;
use crate::promql::{is_label_name, is_metric_name};

/// The `[prometheus]` table of the settings. Durations are texts such as `"500ms"`, `"10s"`, `"2m"`, or whole seconds.
#[derive(Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PrometheusSettings {
    /// Base URL, with a path prefix where there is one: `/api/v1/query` is added to it. No user info in it: see `auth`.
    pub url: String,
    /// How queries are sent. POST, the default, has no limit of length; GET is for proxies that allow reading alone.
    pub method: Method,
    /// For one request, with its body. 100 ms to 5 min, default 5 s.
    #[serde(deserialize_with = "duration")]
    pub timeout: Duration,
    /// For one gathering, all queries and retries together. At least `timeout`, at most 10 min, default 10 s.
    #[serde(deserialize_with = "duration")]
    pub deadline: Duration,
    /// How often a request that failed for a passing reason is sent again within the deadline. 0 to 10, default 2.
    pub retries: u32,
    /// Requests in flight at once. 1 to 256, default 8 (Prometheus itself evaluates 20 at once by default).
    pub max_concurrency: usize,
    /// Cap on one answer's body in bytes. 1 KiB to 1 GiB, default 64 MiB (80,000 pods are about 10 MiB).
    pub max_response_bytes: u64,
    /// The scrape interval of cAdvisor and the GPU exporter. `rate` needs several scrapes in its window: windows shorter
    /// than four of these are widened to that. 0 (the default) leaves windows as they are.
    #[serde(deserialize_with = "duration")]
    pub scrape_interval: Duration,
    /// The label that custom queries are confined by, default `namespace`; `exported_namespace` where the applications'
    /// exporters are scraped with `honor_labels: false` and a `namespace` of their own.
    pub namespace_label: String,
    /// Further labels that every selector is confined by, such as `cluster = "a"` on a Prometheus of several clusters.
    pub matchers: BTreeMap<String, String>,
    /// Names of the GPU exporter's metrics.
    pub gpu: GpuMetrics,
    /// Credentials.
    pub auth: Auth,
    /// TLS.
    pub tls: Tls,
    /// Further request headers, such as `X-Scope-OrgID` of Mimir. Treated as secrets: never shown.
    pub headers: BTreeMap<String, String>,
}

/// HTTP method of a query.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Method {
    /// `POST` with a form body.
    #[default]
    Post,
    /// `GET` with the query in the URL.
    Get,
}

/// Names of the GPU exporter's metrics; the defaults are those of DCGM exporter.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GpuMetrics {
    /// Share of time in which any kernel ran, 0 to 100.
    pub utilisation: String,
    /// Share of time the graphics or compute engine was active, 0 to 1; preferred, and the only one that MIG has.
    pub engine_active: String,
    /// Frame buffer in use, in MiB.
    pub memory_used: String,
    /// Frame buffer free, in MiB.
    pub memory_free: String,
}

/// Credentials; at most one kind. Files are read again for every gathering, so a rotated secret is taken at once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Auth {
    /// File with a bearer token, such as a projected ServiceAccount token.
    pub bearer_token_file: Option<PathBuf>,
    /// Basic authentication.
    pub basic: Option<BasicAuth>,
}

/// Basic authentication.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BasicAuth {
    /// User name.
    pub username: String,
    /// File with the password; white space at its end does not count.
    pub password_file: PathBuf,
}

/// TLS of the connection. Files are looked at again for every gathering.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tls {
    /// PEM bundle of the CAs to trust, instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// PEM client certificate with its chain; needs `key_file`.
    pub cert_file: Option<PathBuf>,
    /// PEM private key of the client certificate.
    pub key_file: Option<PathBuf>,
    /// Name that the server's certificate has to be for, where it is not the URL's host.
    pub server_name: Option<String>,
    /// Takes any server certificate. For trials: whoever is in between can read the credentials and forge the signals.
    pub insecure_skip_verify: bool,
}

impl Default for PrometheusSettings {
    fn default() -> Self {
        PrometheusSettings {
            url: "http://prometheus-operated.monitoring.svc:9090".to_owned(),
            method: Method::Post,
            timeout: Duration::from_secs(5),
            deadline: Duration::from_secs(10),
            retries: 2,
            max_concurrency: 8,
            max_response_bytes: 64 << 20,
            scrape_interval: Duration::ZERO,
            namespace_label: "namespace".to_owned(),
            matchers: BTreeMap::new(),
            gpu: GpuMetrics::default(),
            auth: Auth::default(),
            tls: Tls::default(),
            headers: BTreeMap::new(),
        }
    }
}

impl Default for GpuMetrics {
    fn default() -> Self {
        GpuMetrics {
            utilisation: "DCGM_FI_DEV_GPU_UTIL".to_owned(),
            engine_active: "DCGM_FI_PROF_GR_ENGINE_ACTIVE".to_owned(),
            memory_used: "DCGM_FI_DEV_FB_USED".to_owned(),
            memory_free: "DCGM_FI_DEV_FB_FREE".to_owned(),
        }
    }
}

impl fmt::Debug for PrometheusSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrometheusSettings")
            .field("url", &without_user_info(&self.url))
            .field("method", &self.method)
            .field("timeout", &self.timeout)
            .field("deadline", &self.deadline)
            .field("retries", &self.retries)
            .field("max_concurrency", &self.max_concurrency)
            .field("max_response_bytes", &self.max_response_bytes)
            .field("scrape_interval", &self.scrape_interval)
            .field("namespace_label", &self.namespace_label)
            .field("matchers", &self.matchers)
            .field("gpu", &self.gpu)
            .field("auth", &self.auth)
            .field("tls", &self.tls)
            .field("headers", &self.headers.keys().collect::<Vec<_>>())
            .finish()
    }
}

/// A URL as it may be shown: what stands before an `@` could be a password.
pub fn without_user_info(url: &str) -> String {
    match (url.find("://"), url.rfind('@')) {
        (Some(scheme), Some(at)) if at > scheme => format!("{}://[hidden]@{}", &url[..scheme], &url[at + 1..]),
        (None, Some(at)) => format!("[hidden]@{}", &url[at + 1..]),
        _ => url.to_owned(),
    }
}

impl PrometheusSettings {
    /// Checks everything that can be checked without touching files or the network.
    pub(crate) fn check(&self) -> Result<reqwest::Url, SettingsError> {
        self.check_ranges()?;
        self.check_names()?;
        let tls = &self.tls;
        if tls.cert_file.is_some() != tls.key_file.is_some() {
            return Err(conflict("tls", "cert_file and key_file go together"));
        }
        if tls.insecure_skip_verify && (tls.ca_file.is_some() || tls.server_name.is_some()) {
            return Err(conflict(
                "tls",
                "insecure_skip_verify makes ca_file and server_name meaningless: drop one or the other",
            ));
        }
        if self.auth.bearer_token_file.is_some() && self.auth.basic.is_some() {
            return Err(conflict("auth", "bearer_token_file and basic exclude each other"));
        }
        if let Some(basic) = &self.auth.basic
            && basic.username.contains(':')
        {
            return Err(conflict("auth.basic.username", "a colon can't be part of the user name"));
        }
        let url = self.query_url()?;
        if url.scheme() == "http" && self.tls != Tls::default() {
            return Err(conflict("tls", "has no effect with an http:// URL: make it https://"));
        }
        Ok(url)
    }

    fn check_ranges(&self) -> Result<(), SettingsError> {
        let range = |field, ok: bool, why: &str| {
            if ok { Ok(()) } else { Err(SettingsError::Range { field, why: why.to_owned() }) }
        };
        let minutes = |n: u64| Duration::from_secs(60 * n);
        range(
            "timeout",
            (Duration::from_millis(100)..=minutes(5)).contains(&self.timeout),
            "has to be from 100ms to 5m",
        )?;
        range(
            "deadline",
            self.deadline >= self.timeout && self.deadline <= minutes(10),
            "has to be from prometheus.timeout to 10m",
        )?;
        range("retries", self.retries <= 10, "has to be from 0 to 10")?;
        range("max_concurrency", (1..=256).contains(&self.max_concurrency), "has to be from 1 to 256")?;
        range(
            "max_response_bytes",
            (1024..=1 << 30).contains(&self.max_response_bytes),
            "has to be from 1024 to 1073741824",
        )?;
        range("scrape_interval", self.scrape_interval <= minutes(10), "has to be at most 10m")
    }

    fn check_names(&self) -> Result<(), SettingsError> {
        let labels = std::iter::once(("namespace_label", &self.namespace_label))
            .chain(self.matchers.keys().map(|k| ("matchers", k)));
        for (field, name) in labels {
            if !is_label_name(name) {
                return Err(SettingsError::Name { field, name: name.clone() });
            }
        }
        let metrics = [
            ("gpu.utilisation", &self.gpu.utilisation),
            ("gpu.engine_active", &self.gpu.engine_active),
            ("gpu.memory_used", &self.gpu.memory_used),
            ("gpu.memory_free", &self.gpu.memory_free),
        ];
        for (field, name) in metrics {
            if !is_metric_name(name) {
                return Err(SettingsError::Name { field, name: name.clone() });
            }
        }
        for (name, value) in &self.headers {
            let bad = |why: &str| SettingsError::Header { name: name.clone(), why: why.to_owned() };
            reqwest::header::HeaderName::from_bytes(name.as_bytes()).map_err(|_| bad("the name"))?;
            reqwest::header::HeaderValue::from_str(value).map_err(|_| bad("the value"))?;
            if name.eq_ignore_ascii_case("authorization") && self.auth != Auth::default() {
                return Err(bad("a bearer token or a user name sets it already"));
            }
        }
        Ok(())
    }

    fn query_url(&self) -> Result<reqwest::Url, SettingsError> {
        let bad = |why: &str| SettingsError::Url { url: without_user_info(&self.url), why: why.to_owned() };
        let mut url = reqwest::Url::parse(&self.url).map_err(|e| bad(&e.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(bad("it has to begin with http:// or https://"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(bad(
                "user name and password do not belong into it; the operator takes them from prometheus.username and \
                        prometheus.password-file",
            ));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(bad("it must not have a query or a fragment"));
        }
        let path = format!("{}/api/v1/query", url.path().trim_end_matches('/'));
        url.set_path(&path);
        Ok(url)
    }
}

fn conflict(field: &'static str, why: &str) -> SettingsError {
    SettingsError::Conflict { field, why: why.to_owned() }
}

fn duration<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Raw {
        Seconds(u64),
        Text(String),
    }
    match Raw::deserialize(from)? {
        Raw::Seconds(s) => Ok(Duration::from_secs(s)),
        Raw::Text(text) => parse_duration(&text).ok_or_else(|| {
            serde::de::Error::custom(format!(
                "{text:?} is not a duration: write a number with ms, s, m or h, as in \"10s\""
            ))
        }),
    }
}

fn parse_duration(text: &str) -> Option<Duration> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().ok()?;
    let factor = match &text[digits..] {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    number.checked_mul(factor).map(Duration::from_millis)
}

#[cfg(test)]
#[path = "settings_tests.rs"]
mod tests;
