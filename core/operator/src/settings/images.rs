use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::Span;

/// `[images]`: how the command is found of images whose templates name none, so that an agent can be put around it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Images {
    pub read: bool,
    pub pull_secrets: bool,
    pub registries: String,
    pub plain_http: String,
    pub mirrors: String,
    pub ca_file: PathBuf,
    pub architecture: String,
    pub timeout: Span,
}

impl Default for Images {
    fn default() -> Self {
        Images {
            read: true,
            pull_secrets: false,
            registries: String::new(),
            plain_http: String::new(),
            mirrors: String::new(),
            ca_file: PathBuf::new(),
            architecture: "amd64".into(),
            timeout: Span::seconds(10),
        }
    }
}

impl Images {
    pub(super) fn check(&self) -> Result<(), String> {
        if self.architecture.is_empty() {
            return Err("images.architecture is empty; write that of your nodes, as in their label kubernetes.io/arch"
                .to_owned());
        }
        let patience = eto_engine::plan::IMAGE_PATIENCE;
        if self.timeout.get().is_zero() || self.timeout.get() > patience {
            return Err(format!(
                "images.timeout must be above 0 and at most {} s, the time that a job waits",
                patience.as_secs()
            ));
        }
        for (setting, list) in
            [("mirrors", &self.mirrors), ("registries", &self.registries), ("plain-http", &self.plain_http)]
        {
            // Nothing of it is repeated: it may be a password.
            if list.contains(['@', '/']) {
                return Err(format!(
                    "images.{setting} takes names of registries, such as mirror.example:5000, without a scheme, a path or \
                     credentials; those belong into pull secrets"
                ));
            }
        }
        self.mirrors().map(drop)
    }

    /// `docker.io=mirror.example:5000,...`, by the registry that is mirrored.
    pub fn mirrors(&self) -> Result<BTreeMap<String, Vec<String>>, String> {
        let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (n, pair) in (1..).zip(names(&self.mirrors)) {
            let Some((registry, mirror)) = pair.split_once('=').filter(|(r, m)| !r.is_empty() && !m.is_empty()) else {
                return Err(format!("images.mirrors: entry {n} is not of the form REGISTRY=MIRROR"));
            };
            all.entry(registry.trim().to_owned()).or_default().push(mirror.trim().to_owned());
        }
        Ok(all)
    }
}

/// The names in a list with commas.
pub fn names(list: &str) -> Vec<String> {
    list.split(',').map(str::trim).filter(|n| !n.is_empty()).map(str::to_owned).collect()
}
