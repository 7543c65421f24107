use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::Span;

/// `[traces]`: spans of decisions, for a collector that speaks OTLP over HTTP.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Traces {
    pub endpoint: String,
    pub every_decision: bool,
    pub headers_file: PathBuf,
    pub ca_file: PathBuf,
    pub timeout: Span,
}

impl Default for Traces {
    fn default() -> Self {
        Traces {
            endpoint: String::new(),
            every_decision: false,
            headers_file: PathBuf::new(),
            ca_file: PathBuf::new(),
            timeout: Span::seconds(10),
        }
    }
}

impl Traces {
    pub(super) fn check(&self) -> Result<(), String> {
        if !self.endpoint.is_empty() {
            let url = reqwest::Url::parse(&self.endpoint).ok().filter(|u| matches!(u.scheme(), "http" | "https"));
            let url = url.ok_or("traces.endpoint must be a URL, as in http://collector.monitoring:4318")?;
            // URLs are shown in errors.
            if !url.username().is_empty() || url.password().is_some() {
                return Err("traces.endpoint has credentials; put them into traces.headers-file".to_owned());
            }
        }
        if self.timeout.get().is_zero() {
            return Err("traces.timeout must be above 0".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_url_without_credentials() {
        let check = |endpoint: &str| Traces { endpoint: endpoint.to_owned(), ..Traces::default() }.check();
        for good in ["", "http://collector.monitoring:4318", "https://collector/otlp"] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for bad in ["collector:4318", "http://", "grpc://collector", "http://me:hunter2@collector"] {
            let said = check(bad).err().unwrap_or_default();
            assert!(said.starts_with("traces.endpoint") && !said.contains("hunter2"), "{bad}: {said}");
        }
    }
}
