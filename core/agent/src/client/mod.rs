//! The gateway's client: reports at changes and as a heartbeat, and the assignment as it changes.
//!
//! It gives up on nothing: while the gateway is away it tries again with a jittered back-off, and training goes on. A
//! [`Client`] is who to speak to and as whom; [`Client::connect`] gives a [`Link`], which keeps one connection for
//! reports and one for the watch. Many links may live in one process and share one TLS configuration.

mod backoff;
mod connection;
mod error;
mod link;
mod reports;
mod watch;

use std::path::PathBuf;
use std::sync::Arc;

use hyper::Uri;
use hyper::http::uri::{Authority, Scheme};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};

pub use error::ClientError;
pub use link::{Counts, Link};

/// What an agent proves itself with.
#[derive(Clone)]
pub enum Token {
    /// A file, read again for each request: the kubelet replaces the token before it expires.
    File(PathBuf),
    /// The token itself.
    Text(String),
}

impl std::fmt::Debug for Token {
    /// Never the token.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Token::File(path) => f.debug_tuple("File").field(path).finish(),
            Token::Text(_) => f.write_str("Text"),
        }
    }
}

impl Token {
    /// The value of the `Authorization` header.
    fn header(&self) -> Result<String, ClientError> {
        match self {
            Token::Text(token) => Ok(format!("Bearer {token}")),
            Token::File(path) => std::fs::read_to_string(path)
                .map(|token| format!("Bearer {}", token.trim()))
                .map_err(|source| ClientError::Token { path: path.clone(), source }),
        }
    }
}

/// A gateway, and as whom to speak to it.
#[derive(Clone, Debug)]
pub struct Client {
    host: String,
    port: u16,
    name: ServerName<'static>,
    authority: Authority,
    /// Before `/v1/...`; empty or with a leading and without a trailing slash.
    prefix: String,
    tls: Arc<ClientConfig>,
    token: Token,
}

impl Client {
    /// A client of the gateway at `url` (`https://host[:port]`), which must prove itself by one of the certificates in
    /// `ca_pem`.
    pub fn new(url: &str, ca_pem: &[u8], token: Token) -> Result<Client, ClientError> {
        Client::with_tls(url, Client::tls(ca_pem)?, token)
    }

    /// The same with a configuration of TLS that several clients share.
    pub fn with_tls(url: &str, tls: Arc<ClientConfig>, token: Token) -> Result<Client, ClientError> {
        let invalid = |why: &str| ClientError::Url { url: url.to_owned(), why: why.to_owned() };
        let uri: Uri = url.parse().map_err(|e: hyper::http::uri::InvalidUri| invalid(&e.to_string()))?;
        if uri.scheme() != Some(&Scheme::HTTPS) {
            return Err(invalid("it must begin with https://"));
        }
        let authority = uri.authority().cloned().ok_or_else(|| invalid("it names no host"))?;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host.clone()).map_err(|_| invalid("its host is no name and no address"))?;
        let port = authority.port_u16().unwrap_or(443);
        Ok(Client { host, port, name, authority, prefix: uri.path().trim_end_matches('/').to_owned(), tls, token })
    }

    /// A configuration of TLS that trusts the certificates in `ca_pem` and no others.
    pub fn tls(ca_pem: &[u8]) -> Result<Arc<ClientConfig>, ClientError> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(ca_pem) {
            let certificate = certificate.map_err(|e| ClientError::Certificate(format!("not PEM: {e}")))?;
            roots.add(certificate).map_err(|e| ClientError::Certificate(e.to_string()))?;
        }
        if roots.is_empty() {
            return Err(ClientError::Certificate("there is no certificate in it".to_owned()));
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| ClientError::Certificate(e.to_string()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Arc::new(config))
    }

    /// Begins to report and to watch, in tasks of the current runtime that end with the [`Link`].
    pub fn connect(self) -> Link {
        Link::begin(self)
    }
}
