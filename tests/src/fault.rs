//! Stands between an operator and Prometheus, and misbehaves when told to.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::Outcome;

/// What the source does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing wrong: the real Prometheus answers.
    None,
    /// Connections are closed at once.
    Down,
    /// Takes the request and never answers.
    Slow,
    /// `500 Internal Server Error`.
    Error,
    /// A login page, with 200.
    Html,
    /// An answer that does not end.
    Huge,
}

/// The proxy; ends when dropped.
pub struct Source {
    pub address: SocketAddr,
    fault: Arc<watch::Sender<Fault>>,
    task: JoinHandle<()>,
}

impl Source {
    pub async fn start(prometheus: SocketAddr) -> Outcome<Source> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let fault = Arc::new(watch::Sender::new(Fault::None));
        let told = Arc::clone(&fault);
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                while connections.try_join_next().is_some() {}
                connections.spawn(connection(stream, prometheus, told.subscribe()));
            }
        });
        Ok(Source { address, fault, task })
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// From now on; connections that are open break.
    pub fn set(&self, fault: Fault) {
        self.fault.send_replace(fault);
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// One connection, for as long as the fault stays what it is.
async fn connection(mut client: TcpStream, prometheus: SocketAddr, mut fault: watch::Receiver<Fault>) {
    let now = *fault.borrow_and_update();
    let serving = async {
        match now {
            Fault::None => {
                if let Ok(mut server) = TcpStream::connect(prometheus).await {
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                }
            }
            Fault::Down => (),
            Fault::Slow => std::future::pending::<()>().await,
            Fault::Error => answer(&mut client, "500 Internal Server Error", "text/plain", "out of memory").await,
            Fault::Html => {
                answer(&mut client, "200 OK", "text/html", "<!doctype html><html><title>Sign in</title></html>").await;
            }
            Fault::Huge => endless(&mut client).await,
        }
    };
    tokio::select! {
        () = serving => {}
        _ = fault.changed() => {}
    }
}

async fn request(client: &mut TcpStream) {
    let (mut seen, mut part) = (Vec::new(), [0_u8; 4096]);
    while !seen.windows(4).any(|w| w == b"\r\n\r\n") {
        match client.read(&mut part).await {
            Ok(n) if n > 0 => seen.extend_from_slice(&part[..n]),
            _ => return,
        }
    }
}

async fn answer(client: &mut TcpStream, status: &str, kind: &str, body: &str) {
    request(client).await;
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let _ = client.write_all(format!("{head}{body}").as_bytes()).await;
    let _ = client.shutdown().await;
}

async fn endless(client: &mut TcpStream) {
    request(client).await;
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n{\"status\":\"success\",\"data\":\"";
    let _ = client.write_all(head.as_bytes()).await;
    let filler = vec![b'x'; 1 << 16];
    while client.write_all(&filler).await.is_ok() {}
}
