//! TLS with a real Prometheus that asks for client certificates.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod common;

use std::path::{Path, PathBuf};

use common::{Server, custom, now, until, wants};
use eto_signals::{Prometheus, PrometheusSettings, Tls};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

/// A certificate authority that exists for one test.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn new() -> Authority {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { issuer: Issuer::new(params, key), pem }
    }

    /// Writes NAME.crt and NAME.key.
    fn issue(&self, dir: &Path, name: &str, hosts: &[&str]) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().unwrap();
        let hosts: Vec<String> = hosts.iter().map(|h| (*h).to_owned()).collect();
        let cert = CertificateParams::new(hosts).unwrap().signed_by(&key, &self.issuer).unwrap();
        (write(dir, &format!("{name}.crt"), &cert.pem()), write(dir, &format!("{name}.key"), &key.serialize_pem()))
    }
}

fn write(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

/// The trouble of asking once with these settings; `None` if all is well.
async fn trouble(prometheus: &Prometheus) -> Option<String> {
    let id = custom("vector(1)");
    let mut set = prometheus.gather(&wants(&[&id], &["a"]), now()).await;
    let data = set.signals.remove(&id).unwrap();
    assert_eq!(data.trouble.is_none(), data.per_namespace.contains_key("a"), "{data:?}");
    data.trouble
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_of_both_sides() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (ours, other) = (Authority::new(), Authority::new());
    let ca = write(dir, "ca.crt", &ours.pem);
    let other_ca = write(dir, "other-ca.crt", &other.pem);
    let (server_cert, server_key) = ours.issue(dir, "server", &["127.0.0.1", "prometheus.test"]);
    let (cert, key) = ours.issue(dir, "client", &["operator"]);
    let web = format!(
        "tls_server_config:\n  cert_file: {}\n  key_file: {}\n  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: {}\n",
        server_cert.display(),
        server_key.display(),
        ca.display()
    );
    let server = Server::start_with(&[], Some(&web), "https");
    let with = |tls: Tls| Prometheus::new(PrometheusSettings { tls, retries: 0, ..server.settings() }).unwrap();
    let full = Tls { ca_file: Some(ca), cert_file: Some(cert.clone()), key_file: Some(key.clone()), ..Tls::default() };

    let good = with(full.clone());
    until(&good, &custom("vector(1)"), &["a"], |d| d.trouble.is_none()).await;

    let refused = |tls: Tls, needle: &'static str| {
        let prometheus = with(tls);
        async move {
            let text = trouble(&prometheus).await.expect(needle);
            assert!(text.to_lowercase().contains(needle), "{text}");
            assert!(!text.contains("PRIVATE"), "{text}");
        }
    };
    refused(Tls { ca_file: Some(other_ca), ..full.clone() }, "tls with prometheus at https://127.0.0.1").await;
    // The server's alert and the end of its connection race with the request: whichever is first, the text leads here.
    for _ in 0..30 {
        refused(Tls { cert_file: None, key_file: None, ..full.clone() }, "check prometheus.tls").await;
    }
    refused(Tls { ca_file: None, ..full.clone() }, "tls").await;
    refused(Tls { server_name: Some("elsewhere.test".to_owned()), ..full.clone() }, "not valid for name").await;
    assert_eq!(trouble(&with(Tls { server_name: Some("prometheus.test".to_owned()), ..full.clone() })).await, None);
    let any = Tls { ca_file: None, insecure_skip_verify: true, ..full.clone() };
    assert_eq!(trouble(&with(any)).await, None);

    // Files that change are taken at once, and mended ones too.
    let (cert_text, key_text) = (std::fs::read_to_string(&cert).unwrap(), std::fs::read_to_string(&key).unwrap());
    other.issue(dir, "client", &["operator"]);
    let text = trouble(&good).await.expect("a certificate by somebody else");
    assert!(text.contains("check prometheus.tls"), "{text}");
    std::fs::write(&key, "-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----\n").unwrap();
    let text = trouble(&good).await.expect("a broken key");
    assert!(text.contains("certificate and key") && !text.contains("hunter2"), "{text}");
    std::fs::remove_file(&cert).unwrap();
    let text = trouble(&good).await.expect("no certificate");
    assert!(text.contains("client.crt") && text.contains("No such file"), "{text}");
    std::fs::write(&cert, cert_text).unwrap();
    std::fs::write(&key, key_text).unwrap();
    assert_eq!(trouble(&good).await, None);
}
