//! A gateway that keeps everything in memory: what the protocol asks for and no more.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use eto_membership::{Assignment, Notice, Report};
use rcgen::{CertificateParams, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// What any condition of these tests is waited for; far more than it takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Of this gateway's pings, so that tests of the stream are quick.
const PING: Duration = Duration::from_millis(500);

#[derive(Debug)]
struct Shared {
    token: Mutex<String>,
    assignment: watch::Sender<Option<Assignment>>,
    reports: watch::Sender<Vec<Report>>,
    /// Assignments written to a stream so far.
    told: watch::Sender<usize>,
}

/// The gateway. Its connections end with it.
#[derive(Debug)]
pub(crate) struct Gateway {
    pub(crate) ca: String,
    pub(crate) address: SocketAddr,
    tls: Arc<ServerConfig>,
    shared: Arc<Shared>,
    server: JoinSet<()>,
}

impl Gateway {
    pub(crate) async fn start() -> Gateway {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().self_signed(&key).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate.der().clone()],
                PrivateKeyDer::try_from(key.serialize_der()).expect("a key of ours"),
            )
            .unwrap();
        let shared = Shared {
            token: Mutex::new("first".to_owned()),
            assignment: watch::channel(None).0,
            reports: watch::channel(Vec::new()).0,
            told: watch::channel(0).0,
        };
        let mut gateway = Gateway {
            ca: certificate.pem(),
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            tls: Arc::new(tls),
            shared: Arc::new(shared),
            server: JoinSet::new(),
        };
        gateway.open().await;
        gateway
    }

    pub(crate) fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// Serves, on the address it had before if it had one.
    pub(crate) async fn open(&mut self) {
        let listener = TcpListener::bind(self.address).await.unwrap();
        self.address = listener.local_addr().unwrap();
        let (shared, acceptor) = (self.shared.clone(), TlsAcceptor::from(self.tls.clone()));
        self.server.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                let (shared, acceptor) = (shared.clone(), acceptor.clone());
                connections.spawn(async move {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        let _ = serve(stream, &shared).await;
                    }
                });
            }
        });
    }

    /// Goes away with all its connections.
    pub(crate) async fn close(&mut self) {
        self.server.shutdown().await;
    }

    pub(crate) fn assign(&self, assignment: Assignment) {
        self.shared.assignment.send_replace(Some(assignment));
    }

    /// Assigns, and waits until that is on its way to the one agent that watches.
    pub(crate) async fn tell(&self, assignment: Assignment) {
        let mut told = self.shared.told.subscribe();
        let before = *told.borrow_and_update();
        self.assign(assignment);
        timeout(PATIENCE, told.wait_for(|n| *n > before)).await.expect("the agent watches").unwrap();
    }

    /// Only this token counts from now on.
    pub(crate) fn set_token(&self, token: &str) {
        token.clone_into(&mut self.shared.token.lock().unwrap());
    }

    pub(crate) fn reports(&self) -> Vec<Report> {
        self.shared.reports.borrow().clone()
    }

    /// Waits for a report that comes after those seen so far or is the last of them.
    pub(crate) async fn until(&self, what: &str, wanted: impl Fn(&Report) -> bool) -> Report {
        let mut reports = self.shared.reports.subscribe();
        let seen = reports.borrow_and_update().len().saturating_sub(1);
        let found = timeout(PATIENCE, reports.wait_for(|all| all.iter().skip(seen).any(&wanted))).await;
        match found {
            Ok(Ok(all)) => all.iter().skip(seen).find(|r| wanted(r)).cloned().unwrap(),
            _ => panic!("no report came of: {what}; the last: {:?}", self.reports().last()),
        }
    }
}

async fn serve(stream: TlsStream<TcpStream>, shared: &Shared) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let (mut first, mut length, mut authorised) = (String::new(), 0, false);
        if stream.read_line(&mut first).await? == 0 {
            return Ok(());
        }
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).await?;
            let Some((name, value)) = line.trim().split_once(": ") else { break };
            match name.to_ascii_lowercase().as_str() {
                "content-length" => length = value.parse().unwrap(),
                "authorization" => authorised = value == format!("Bearer {}", shared.token.lock().unwrap()),
                _ => {}
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await?;
        let status = match first.rsplit_once(' ').unwrap().0 {
            _ if !authorised => "401 Unauthorized",
            "GET /v1/watch" => return notices(stream, shared).await,
            "POST /v1/report" => {
                let report = serde_json::from_slice(&body).expect("a report");
                shared.reports.send_modify(|all| all.push(report));
                "200 OK"
            }
            other => panic!("nobody asked for {other}"),
        };
        stream.write_all(format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n").as_bytes()).await?;
        stream.flush().await?;
    }
}

async fn notices(mut stream: BufReader<TlsStream<TcpStream>>, shared: &Shared) -> std::io::Result<()> {
    stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await?;
    stream.flush().await?;
    let mut assignment = shared.assignment.subscribe();
    assignment.mark_changed();
    loop {
        let notice = match timeout(PING, assignment.changed()).await {
            Ok(_) => assignment.borrow_and_update().clone().map(|a| Notice::Assignment(Box::new(a))),
            Err(_) => Some(Notice::Ping),
        };
        let Some(notice) = notice else { continue };
        let line = serde_json::to_string(&notice).unwrap();
        stream.write_all(format!("{:x}\r\n{line}\n\r\n", line.len() + 1).as_bytes()).await?;
        stream.flush().await?;
        if matches!(notice, Notice::Assignment(_)) {
            shared.told.send_modify(|n| *n += 1);
        }
    }
}
