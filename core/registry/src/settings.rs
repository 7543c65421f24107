use std::collections::BTreeMap;
use std::time::Duration;

/// How registries are spoken to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The only registries (host, and port if it is not the default) that are asked; empty = all.
    pub registries: Vec<String>,
    /// Registries and mirrors that are spoken to by plain HTTP.
    pub plain_http: Vec<String>,
    /// Registries that are asked before the one of the name, by that one.
    pub mirrors: BTreeMap<String, Vec<String>>,
    /// Certificate authorities (PEM) to trust beside the system's.
    pub ca: Option<Vec<u8>>,
    /// Time for all requests of one reading.
    pub timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            registries: Vec::new(),
            plain_http: Vec::new(),
            mirrors: BTreeMap::new(),
            ca: None,
            timeout: Duration::from_secs(15),
        }
    }
}

/// Why registries can't be spoken to with these settings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetupError {
    /// The file of authorities.
    #[error("the certificate authorities are not usable: {0}")]
    Authorities(String),
    /// TLS or HTTP can't be set up.
    #[error("the client can't be set up: {0}")]
    Client(String),
}
