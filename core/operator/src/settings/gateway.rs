use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// `[gateway]`: where agents in the pods report to and get their rounds from. Without etcd there is none: pods are
/// recreated for each round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Gateway {
    pub etcd_endpoints: String,
    pub etcd_prefix: String,
    pub etcd_secret: String,
    pub etcd_ca_file: PathBuf,
    pub etcd_cert_file: PathBuf,
    pub etcd_key_file: PathBuf,
    pub address: SocketAddr,
    pub url: String,
    pub secret: String,
    pub agent_image: String,
    pub agent_pull_policy: String,
}

impl Default for Gateway {
    fn default() -> Self {
        Gateway {
            etcd_endpoints: String::new(),
            etcd_prefix: "/elastic-training".into(),
            etcd_secret: String::new(),
            etcd_ca_file: PathBuf::new(),
            etcd_cert_file: PathBuf::new(),
            etcd_key_file: PathBuf::new(),
            address: SocketAddr::from(([0, 0, 0, 0], 8443)),
            url: String::new(),
            secret: "elastic-training-gateway".into(),
            agent_image: String::new(),
            agent_pull_policy: String::new(),
        }
    }
}

impl Gateway {
    /// Whether there is one.
    pub fn is_on(&self) -> bool {
        !self.endpoints().is_empty()
    }

    /// The members of etcd, as URLs.
    pub fn endpoints(&self) -> Vec<String> {
        self.etcd_endpoints.split(',').map(str::trim).filter(|e| !e.is_empty()).map(str::to_owned).collect()
    }

    pub(super) fn check(&self) -> Result<(), String> {
        let files = [&self.etcd_ca_file, &self.etcd_cert_file, &self.etcd_key_file];
        let given = files.iter().filter(|f| !f.as_os_str().is_empty()).count();
        if !self.is_on() {
            return Ok(());
        }
        if let Some(plain) = self.endpoints().iter().find(|e| !e.starts_with("https://")) {
            let plain = eto_signals::without_user_info(plain);
            return Err(format!("gateway.etcd-endpoints: {plain} is no https:// URL; etcd is spoken to by TLS alone"));
        }
        if self.etcd_secret.is_empty() == (given == 0) || !matches!(given, 0 | 3) {
            return Err("gateway: etcd is spoken to with a certificate; set etcd-secret, or etcd-ca-file, \
                        etcd-cert-file and etcd-key-file"
                .to_owned());
        }
        if !self.url.starts_with("https://") {
            return Err("gateway.url must be the https:// URL that pods reach the gateway by".to_owned());
        }
        if self.agent_image.is_empty() {
            return Err("gateway.agent-image is empty; pods get their agent from it".to_owned());
        }
        if !["", "Always", "IfNotPresent", "Never"].contains(&self.agent_pull_policy.as_str()) {
            return Err("gateway.agent-pull-policy must be Always, IfNotPresent, Never or empty".to_owned());
        }
        if self.secret.is_empty() {
            return Err("gateway.secret is empty; the gateway's authority is kept in it".to_owned());
        }
        Ok(())
    }
}
