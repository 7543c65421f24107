//! A real registry (distribution, Debian's package docker-registry) and images in it.
#![allow(dead_code, reason = "each test file uses a part")]

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use oci_client::Reference;
use oci_client::client::{Certificate, CertificateEncoding, ClientConfig, ClientProtocol, Config, ImageLayer};
use oci_client::manifest::{ImageIndexEntry, OciImageIndex, OciManifest};
use oci_client::secrets::RegistryAuth;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

/// Who may pull where credentials are asked for, and the line of htpasswd that says so.
pub(crate) const USER: &str = "robot";
pub(crate) const PASSWORD: &str = "open sesame";
const HTPASSWD: &str = "robot:$2b$05$C203QSyKbOGISCiWemRfUemHtZRNqUkxjIWAbgbA2UKmcJmaNWD1a\n";
const MISSING: &str = "these tests need the program `docker-registry` on PATH: tools/setup.sh registry";

/// What a registry asks of its clients.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Needs {
    pub(crate) tls: bool,
    pub(crate) credentials: bool,
}

/// A running registry, gone with this value.
pub(crate) struct Registry {
    child: Child,
    /// `127.0.0.1:PORT`, as in names of images.
    pub(crate) host: String,
    /// Of its certificate, where it has one.
    pub(crate) ca: Option<String>,
    needs: Needs,
    dir: tempfile::TempDir,
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Registry {
    pub(crate) fn start(needs: Needs) -> Registry {
        for _ in 0..5 {
            if let Some(registry) = Registry::attempt(needs) {
                return registry;
            }
        }
        panic!("docker-registry did not start on any of 5 free ports; its log is above");
    }

    fn attempt(needs: Needs) -> Option<Registry> {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        // Free at this moment; should another process be faster, the next attempt takes another.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let ca = needs.tls.then(|| certificate(dir.path()));
        let tls = format!("  tls: {{certificate: {}, key: {}}}\n", path("tls.crt"), path("tls.key"));
        std::fs::write(dir.path().join("htpasswd"), HTPASSWD).unwrap();
        let auth = format!("auth: {{htpasswd: {{realm: test, path: {}}}}}\n", path("htpasswd"));
        let config = format!(
            "version: 0.1\nlog: {{level: warn}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\n{}http:\n  addr: \
             127.0.0.1:{port}\n  secret: test\n{}",
            path("data"),
            if needs.credentials { auth.as_str() } else { "" },
            if needs.tls { tls.as_str() } else { "" },
        );
        std::fs::write(dir.path().join("config.yml"), config).unwrap();
        let child = Command::new("docker-registry")
            .args(["serve", &path("config.yml")])
            .env("OTEL_TRACES_EXPORTER", "none")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(dir.path().join("log")).unwrap())
            .spawn()
            .unwrap_or_else(|e| panic!("{MISSING}\n({e})"));
        let mut registry = Registry { child, host: format!("127.0.0.1:{port}"), ca, needs, dir };
        registry.listens().then_some(registry)
    }

    /// Whether it comes to listen; false if it ended instead.
    fn listens(&mut self) -> bool {
        let give_up = Instant::now() + Duration::from_secs(30);
        loop {
            if self.child.try_wait().unwrap().is_some() {
                eprintln!("{}", self.log());
                return false;
            }
            if std::net::TcpStream::connect(&self.host).is_ok() {
                return true;
            }
            assert!(Instant::now() < give_up, "the registry is not listening after 30 s:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// Ends it, as a node that fails does.
    pub(crate) fn stop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    pub(crate) fn image(&self, name: &str) -> String {
        format!("{}/{name}", self.host)
    }

    fn pusher(&self) -> oci_client::Client {
        // The library takes the process's.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let ca = |pem: &String| Certificate { encoding: CertificateEncoding::Pem, data: pem.clone().into_bytes() };
        oci_client::Client::new(ClientConfig {
            protocol: if self.needs.tls { ClientProtocol::Https } else { ClientProtocol::Http },
            tls_certs_only: self.ca.iter().map(ca).collect(),
            ..ClientConfig::default()
        })
    }

    fn auth(&self) -> RegistryAuth {
        if self.needs.credentials {
            RegistryAuth::Basic(USER.to_owned(), PASSWORD.to_owned())
        } else {
            RegistryAuth::Anonymous
        }
    }

    /// Pushes an image of one layer with this config; gives the digest of its manifest.
    pub(crate) async fn push(&self, name: &str, config: &str) -> String {
        let config = Config::oci_v1(config.to_owned().into_bytes(), None);
        let layer = ImageLayer::oci_v1(b"a layer that nobody unpacks".to_vec(), None);
        let reference: Reference = self.image(name).parse().unwrap();
        let pushed = self.pusher().push(&reference, &[layer], config, &self.auth(), None).await.unwrap();
        digest(&pushed.manifest_url)
    }

    /// Pushes an index of images that are there, each with its architecture.
    pub(crate) async fn push_index(&self, name: &str, images: &[(&str, &str)]) -> String {
        let entry = |(architecture, digest): &(&str, &str)| -> ImageIndexEntry {
            serde_json::from_value(serde_json::json!({
                "mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": digest, "size": 1,
                "platform": {"os": "linux", "architecture": architecture},
            }))
            .unwrap()
        };
        let index = OciImageIndex {
            schema_version: 2,
            media_type: Some("application/vnd.oci.image.index.v1+json".to_owned()),
            manifests: images.iter().map(entry).collect(),
            artifact_type: None,
            annotations: None,
        };
        let reference: Reference = self.image(name).parse().unwrap();
        let pusher = self.pusher();
        pusher.store_auth_if_needed(reference.resolve_registry(), &self.auth()).await;
        digest(&pusher.push_manifest(&reference, &OciManifest::ImageIndex(index)).await.unwrap())
    }
}

/// The digest at the end of the URL that a push was answered with.
fn digest(url: &str) -> String {
    url.rsplit('/').next().unwrap().to_owned()
}

/// A certificate for the loopback, and the authority that it is by.
fn certificate(dir: &Path) -> String {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = params.self_signed(&key).unwrap().pem();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().unwrap();
    let server = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
    std::fs::write(dir.join("tls.crt"), server.pem()).unwrap();
    std::fs::write(dir.join("tls.key"), key.serialize_pem()).unwrap();
    ca
}
