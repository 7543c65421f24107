use std::path::PathBuf;

use serde::Deserialize;

use crate::StoreError;

/// How to reach etcd.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct StoreSettings {
    /// Client addresses of its members, such as `https://etcd-0.etcd:2379`. One that answers is used; the others are
    /// for when it doesn't.
    pub endpoints: Vec<String>,
    /// What all keys begin with. Installations that share an etcd have one each.
    pub prefix: String,
    /// PEM bundle of the CAs to trust. Needed for `https`: the system's are not taken.
    pub ca_file: Option<PathBuf>,
    /// PEM client certificate; needs `key_file`.
    pub cert_file: Option<PathBuf>,
    /// PEM private key of the client certificate.
    pub key_file: Option<PathBuf>,
    /// The same three, where they are in no files.
    #[serde(skip)]
    pub pem: Option<StorePem>,
    /// User name, where etcd asks for one; needs `password_file`.
    pub username: Option<String>,
    /// File with the password; white space at its end does not count.
    pub password_file: Option<PathBuf>,
}

impl Default for StoreSettings {
    fn default() -> Self {
        StoreSettings {
            endpoints: Vec::new(),
            prefix: "/elastic-training".to_owned(),
            ca_file: None,
            cert_file: None,
            key_file: None,
            pem: None,
            username: None,
            password_file: None,
        }
    }
}

/// The CAs to trust, the client certificate and its key, PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct StorePem {
    /// CAs to trust.
    pub ca: String,
    /// Client certificate.
    pub cert: String,
    /// Its key; never printed.
    pub key: String,
}

impl std::fmt::Debug for StorePem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StorePem")
    }
}

impl StoreSettings {
    /// What is wrong with them, if anything is. Files are not looked at.
    pub fn check(&self) -> Result<(), StoreError> {
        let bad = |why: &str| Err(StoreError::Settings(why.to_owned()));
        if self.endpoints.is_empty() {
            return bad("endpoints: at least one is needed, such as https://etcd:2379");
        }
        for endpoint in &self.endpoints {
            if let Some((_, host)) = endpoint.rsplit_once('@') {
                return bad(&format!(
                    "endpoints: there is a user name or password before `{host}`: username and password-file are for those"
                ));
            }
            let rest = endpoint.strip_prefix("https://").or_else(|| endpoint.strip_prefix("http://"));
            if rest.is_none_or(|r| r.trim_end_matches('/').is_empty() || r.contains(char::is_whitespace)) {
                return bad(&format!("endpoints: `{endpoint}` is no address: write it as https://host:2379"));
            }
            if endpoint.starts_with("https://") && self.ca_file.is_none() && self.pem.is_none() {
                return bad("ca-file: needed to check the certificates of https endpoints");
            }
            let has_tls = self.ca_file.is_some() || self.cert_file.is_some() || self.pem.is_some();
            if endpoint.starts_with("http://") && has_tls {
                return bad(&format!("endpoints: `{endpoint}` has no TLS, and ca-file or cert-file are given"));
            }
        }
        if !self.prefix.starts_with('/') || self.prefix.len() < 2 || self.prefix.ends_with('/') {
            return bad("prefix: begins with a slash and doesn't end with one, such as /elastic-training");
        }
        if self.cert_file.is_some() != self.key_file.is_some() {
            return bad("cert-file and key-file: either both or none");
        }
        if self.username.is_some() != self.password_file.is_some() {
            return bad("username and password-file: either both or none");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_can_not_work_say_what_to_write() {
        let good = StoreSettings {
            endpoints: vec!["https://a:2379".into()],
            ca_file: Some("ca.pem".into()),
            ..StoreSettings::default()
        };
        assert_eq!(good.check(), Ok(()));
        for (broken, names) in [
            (StoreSettings { endpoints: vec![], ..good.clone() }, "endpoints"),
            (StoreSettings { endpoints: vec!["etcd:2379".into()], ..good.clone() }, "etcd:2379"),
            (StoreSettings { endpoints: vec!["https://u:pw@a:2379".into()], ..good.clone() }, "before `a:2379`"),
            (StoreSettings { endpoints: vec!["https:///".into()], ..good.clone() }, "https:///"),
            (StoreSettings { ca_file: None, ..good.clone() }, "ca-file"),
            (StoreSettings { endpoints: vec!["http://a:2379".into()], ..good.clone() }, "no TLS"),
            (StoreSettings { prefix: "x".into(), ..good.clone() }, "prefix"),
            (StoreSettings { prefix: "/x/".into(), ..good.clone() }, "prefix"),
            (StoreSettings { cert_file: Some("c".into()), ..good.clone() }, "key-file"),
            (StoreSettings { username: Some("u".into()), ..good.clone() }, "password-file"),
        ] {
            let why = broken.check().unwrap_err().to_string();
            assert!(why.contains(names), "{why} does not name {names}");
        }
    }
}
