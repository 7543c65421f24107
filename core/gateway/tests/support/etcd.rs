//! Real etcd members as processes, ended when they are dropped.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use etcd_client::{Certificate, Client, ConnectOptions, Identity, TlsOptions};
use eto_gateway::StoreSettings;
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

/// The binary: `ETO_ETCD`, else the one that `tools/setup.sh etcd` builds.
pub(crate) fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("ETO_ETCD") {
        return path.into();
    }
    let env = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/cluster/env.sh");
    let script = format!(". {} && printf %s \"$BIN/etcd\"", env.display());
    let out = Command::new("bash").args(["-c", &script]).output().expect("bash runs");
    let path = PathBuf::from(String::from_utf8(out.stdout).unwrap());
    assert!(path.exists(), "no etcd at {}: run tools/setup.sh etcd, or set ETO_ETCD", path.display());
    path
}

/// An etcd cluster with its certificates and data in a folder of its own.
pub(crate) struct Etcd {
    folder: TempDir,
    members: Vec<Member>,
    extra: Vec<String>,
}

struct Member {
    name: String,
    client: u16,
    peer: u16,
    process: Option<Child>,
}

impl Etcd {
    /// A running cluster of so many members.
    pub(crate) async fn start(members: usize) -> Self {
        Self::start_with(members, &["--unsafe-no-fsync"]).await
    }

    /// The same with further arguments. Without `--unsafe-no-fsync` it waits for the disk, as it should elsewhere.
    pub(crate) async fn start_with(members: usize, extra: &[&str]) -> Self {
        // A port that was free may be another's by the time that etcd opens it: then it ends, and others are taken.
        for _ in 0..5 {
            let folder = tempfile::tempdir().unwrap();
            certificates(folder.path());
            let extra = extra.iter().map(|&a| a.to_owned()).collect();
            let mut etcd = Etcd { folder, members: choose(members), extra };
            for at in 0..members {
                etcd.spawn(at);
            }
            if etcd.came_up().await {
                return etcd;
            }
        }
        panic!("etcd ended at its start, five times");
    }

    /// Waits as [`Etcd::ready`] does, and says no if a member ended instead.
    async fn came_up(&mut self) -> bool {
        let limit = tokio::time::Instant::now() + Duration::from_secs(60);
        let mut at = 0;
        while at < self.members.len() {
            if self.answers(at).await {
                at += 1;
                continue;
            }
            if self.members.iter_mut().flat_map(|m| &mut m.process).any(|p| p.try_wait().unwrap().is_some()) {
                return false;
            }
            assert!(tokio::time::Instant::now() < limit, "etcd member {at} did not answer within a minute");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        true
    }

    /// Whether a member answers with the word of a quorum.
    async fn answers(&self, at: usize) -> bool {
        let mut client = self.client(at).await;
        matches!(tokio::time::timeout(Duration::from_secs(2), client.get("none", None)).await, Ok(Ok(_)))
    }

    pub(crate) fn settings(&self) -> StoreSettings {
        let file = |name: &str| Some(self.folder.path().join(name));
        StoreSettings {
            endpoints: self.members.iter().map(|m| format!("https://127.0.0.1:{}", m.client)).collect(),
            ca_file: file("ca.pem"),
            cert_file: file("etcd.pem"),
            key_file: file("etcd.key"),
            ..StoreSettings::default()
        }
    }

    /// The process of a member that runs.
    pub(crate) fn pid(&self, at: usize) -> u32 {
        self.members[at].process.as_ref().unwrap().id()
    }

    /// Where a member answers clients.
    pub(crate) fn address(&self, at: usize) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.members[at].client))
    }

    /// A plain client of one member, to look from outside.
    pub(crate) async fn client(&self, at: usize) -> Client {
        let read = |name: &str| std::fs::read(self.folder.path().join(name)).unwrap();
        let tls = TlsOptions::new()
            .ca_certificate(Certificate::from_pem(read("ca.pem")))
            .identity(Identity::from_pem(read("etcd.pem"), read("etcd.key")));
        let options = ConnectOptions::new().with_tls(tls).with_connect_timeout(Duration::from_secs(2));
        let url = format!("https://127.0.0.1:{}", self.members[at].client);
        Client::connect([url], Some(options)).await.unwrap()
    }

    /// The revision of the newest write.
    pub(crate) async fn revision(&self) -> i64 {
        let mut client = self.client(0).await;
        client.get("none", None).await.unwrap().header().unwrap().revision()
    }

    /// Ends a member as `kill -9` does.
    pub(crate) fn kill(&mut self, at: usize) {
        if let Some(mut process) = self.members[at].process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// Starts a member that was killed.
    pub(crate) fn spawn(&mut self, at: usize) {
        let initial: Vec<String> =
            self.members.iter().map(|m| format!("{}=https://127.0.0.1:{}", m.name, m.peer)).collect();
        let path = |name: &str| self.folder.path().join(name);
        let log =
            std::fs::File::options().create(true).append(true).open(path(&self.members[at].name).with_extension("log"));
        let log = log.unwrap();
        let member = &mut self.members[at];
        let (client, peer) =
            (format!("https://127.0.0.1:{}", member.client), format!("https://127.0.0.1:{}", member.peer));
        let mut command = Command::new(binary());
        command
            .args(["--name", &member.name, "--initial-cluster", &initial.join(","), "--log-level", "warn"])
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--client-cert-auth", "--peer-client-cert-auth"])
            .arg("--data-dir")
            .arg(path(&member.name));
        for (option, file) in [("cert-file", "etcd.pem"), ("key-file", "etcd.key"), ("trusted-ca-file", "ca.pem")] {
            command.arg(format!("--{option}")).arg(path(file)).arg(format!("--peer-{option}")).arg(path(file));
        }
        command.args(&self.extra).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        member.process = Some(command.spawn().unwrap());
    }

    /// Ends a member and starts it with nothing in it, under the same name and addresses. With one member only: those
    /// of three find out that it is not who it was.
    pub(crate) async fn empty(&mut self) {
        assert_eq!(self.members.len(), 1);
        self.kill(0);
        std::fs::remove_dir_all(self.folder.path().join(&self.members[0].name)).unwrap();
        self.spawn(0);
        self.ready().await;
    }

    /// Keeps a copy of the only member's data, as a backup does.
    pub(crate) fn back_up(&mut self) {
        assert_eq!(self.members.len(), 1);
        self.kill(0);
        copy(&self.folder.path().join(&self.members[0].name), &self.folder.path().join("backup"));
        self.spawn(0);
    }

    /// Ends the only member and starts it with what was kept by [`Etcd::back_up`].
    pub(crate) async fn restore(&mut self) {
        self.kill(0);
        let data = self.folder.path().join(&self.members[0].name);
        std::fs::remove_dir_all(&data).unwrap();
        copy(&self.folder.path().join("backup"), &data);
        self.spawn(0);
        self.ready().await;
    }

    /// Waits until every member that runs answers with the word of a quorum.
    pub(crate) async fn ready(&self) {
        for (at, member) in self.members.iter().enumerate() {
            if member.process.is_none() {
                continue;
            }
            super::until(&format!("etcd member {at} answers"), || self.answers(at)).await;
        }
    }

    /// What a member has said, for a test that fails.
    pub(crate) fn log(&self, at: usize) -> String {
        std::fs::read_to_string(self.folder.path().join(format!("{}.log", self.members[at].name))).unwrap_or_default()
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for at in 0..self.members.len() {
            if std::thread::panicking() {
                eprintln!("etcd member {at} said:\n{}", self.log(at));
            }
            self.kill(at);
        }
    }
}

/// So many members with ports that are free now.
fn choose(members: usize) -> Vec<Member> {
    // Held until all are chosen, so that they differ.
    let held: Vec<TcpListener> = (0..2 * members).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let ports: Vec<u16> = held.iter().map(|l| l.local_addr().unwrap().port()).collect();
    ports
        .chunks(2)
        .enumerate()
        .map(|(i, p)| Member { name: format!("m{i}"), client: p[0], peer: p[1], process: None })
        .collect()
}

fn copy(from: &Path, to: &Path) {
    let done = Command::new("cp").arg("-a").args([from, to]).status().unwrap();
    assert!(done.success());
}

/// A CA, and one certificate that serves as server's, peer's and client's.
fn certificates(folder: &Path) {
    let ca_key = KeyPair::generate().unwrap();
    let mut ca = CertificateParams::new(Vec::new()).unwrap();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca_pem = ca.self_signed(&ca_key).unwrap().pem();
    let issuer = Issuer::new(ca, ca_key);
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let cert = params.signed_by(&key, &issuer).unwrap();
    for (name, pem) in [("ca.pem", ca_pem), ("etcd.pem", cert.pem()), ("etcd.key", key.serialize_pem())] {
        std::fs::write(folder.join(name), pem).unwrap();
    }
}
