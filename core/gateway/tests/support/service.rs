//! What a Service is to agents: one address, any number of servers behind it. Also a wire that can be cut.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Forwards each connection to one of its servers, in turn; one that does not answer is passed over.
pub(crate) struct Service {
    address: SocketAddr,
    servers: Arc<Mutex<Vec<SocketAddr>>>,
    cut: watch::Sender<u64>,
    accept: JoinHandle<()>,
}

impl Service {
    pub(crate) async fn of(servers: &[SocketAddr]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let servers = Arc::new(Mutex::new(servers.to_vec()));
        let cut = watch::channel(0).0;
        let accept = tokio::spawn(accept(listener, Arc::clone(&servers), cut.clone()));
        Service { address, servers, cut, accept }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn url(&self) -> String {
        format!("https://localhost:{}", self.address.port())
    }

    /// Connections from now on go to these. Where there are none, they are closed at once.
    pub(crate) fn set(&self, servers: &[SocketAddr]) {
        *self.servers.lock().unwrap() = servers.to_vec();
    }

    /// Breaks all connections there are.
    pub(crate) fn cut(&self) {
        self.cut.send_modify(|n| *n += 1);
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.accept.abort();
        self.cut();
    }
}

async fn accept(listener: TcpListener, servers: Arc<Mutex<Vec<SocketAddr>>>, cut: watch::Sender<u64>) {
    let mut turn = 0;
    loop {
        let (mut from, _) = listener.accept().await.unwrap();
        turn += 1;
        let servers = servers.lock().unwrap().clone();
        let mut cut = cut.subscribe();
        tokio::spawn(async move {
            for at in 0..servers.len() {
                let Ok(mut to) = TcpStream::connect(servers[(turn + at) % servers.len()]).await else { continue };
                tokio::select! {
                    _ = tokio::io::copy_bidirectional(&mut from, &mut to) => {}
                    _ = cut.changed() => {}
                }
                return;
            }
        });
    }
}
