//! A client that can do wrong: bytes over TLS.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use eto_gateway::Identity;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

pub(crate) struct Raw(pub(crate) TlsStream<TcpStream>);

impl Raw {
    pub(crate) async fn connect(address: SocketAddr, identity: &Identity) -> std::io::Result<Self> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(identity.ca_pem.as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let tcp = TcpStream::connect(address).await?;
        let name = ServerName::try_from("localhost").unwrap();
        Ok(Raw(TlsConnector::from(Arc::new(config)).connect(name, tcp).await?))
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.0.write_all(bytes).await?;
        self.0.flush().await
    }

    pub(crate) async fn post(&mut self, token: &str, body: &[u8]) -> u16 {
        let head = format!(
            "POST /v1/report HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        // The server may have answered and closed before it has all.
        let _ = self.send(&[head.as_bytes(), body].concat()).await;
        self.status().await
    }

    pub(crate) async fn get(&mut self, token: &str, path: &str) -> std::io::Result<()> {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n").as_bytes()).await
    }

    /// The status of the next answer, with its body passed over; 0 where the connection was closed without one.
    pub(crate) async fn status(&mut self) -> u16 {
        let mut head = Vec::new();
        let limit = Duration::from_secs(30);
        while !head.ends_with(b"\r\n\r\n") {
            match tokio::time::timeout(limit, self.0.read_u8()).await.expect("an answer within 30 s") {
                Ok(byte) => head.push(byte),
                Err(_) => return 0,
            }
        }
        let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
        let length = head.lines().find_map(|l| l.strip_prefix("content-length: ")?.parse().ok()).unwrap_or(0);
        let mut body = vec![0; length];
        let _ = self.0.read_exact(&mut body).await;
        head.split(' ').nth(1).unwrap().parse().unwrap()
    }

    /// Waits until the server has closed the connection.
    pub(crate) async fn closed(&mut self) {
        let mut rest = [0; 4096];
        let end = async { while !matches!(self.0.read(&mut rest).await, Ok(0) | Err(_)) {} };
        tokio::time::timeout(Duration::from_secs(30), end).await.expect("closed within 30 s");
    }
}
