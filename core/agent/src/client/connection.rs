//! One connection to the gateway: TLS, HTTP/1.1.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, lookup_host};
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::{Client, ClientError};

/// The most that a connection, and the head of an answer, may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// Who is there answers at once, or a second later where a packet was lost. A service goes on naming a replica whose node has
/// died until Kubernetes knows: the next try may find another.
const DIAL: Duration = Duration::from_secs(2);
/// Most of a refusal's text that is read.
const EXCERPT: usize = 4 * 1024;

/// An open connection; closed when it is dropped.
pub(super) struct Connection {
    sender: SendRequest<Full<Bytes>>,
    driver: AbortHandle,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// The first of the gateway's addresses that answers.
async fn dial(client: &Client) -> std::io::Result<TcpStream> {
    let mut failure = std::io::Error::from(std::io::ErrorKind::NotFound);
    for address in lookup_host((client.host.as_str(), client.port)).await? {
        match timeout(DIAL, TcpStream::connect(address)).await {
            Ok(Ok(tcp)) => return Ok(tcp),
            Ok(Err(error)) => failure = error,
            Err(_) => failure = std::io::ErrorKind::TimedOut.into(),
        }
    }
    Err(failure)
}

impl Connection {
    pub(super) async fn open(client: &Client) -> Result<Connection, ClientError> {
        let failed = |source| ClientError::Connect { address: format!("{}:{}", client.host, client.port), source };
        let open = async {
            let tcp = dial(client).await?;
            tcp.set_nodelay(true)?;
            TlsConnector::from(client.tls.clone()).connect(client.name.clone(), tcp).await
        };
        let stream = timeout(PATIENCE, open).await.map_err(|_| failed(std::io::ErrorKind::TimedOut.into()))?;
        let (sender, connection) = handshake(TokioIo::new(stream.map_err(failed)?)).await?;
        let driver = tokio::spawn(async move {
            // Why it ended is told by the request that it broke.
            let _ = connection.await;
        });
        Ok(Connection { sender, driver: driver.abort_handle() })
    }

    /// It can take a request: nobody has closed it.
    pub(super) fn is_open(&self) -> bool {
        self.sender.is_ready()
    }

    /// Sends a request and gives an answer that is a success.
    pub(super) async fn ask(
        &mut self,
        client: &Client,
        method: Method,
        path: &str,
        body: Vec<u8>,
    ) -> Result<Response<Incoming>, ClientError> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", client.prefix))
            .header(HOST, client.authority.as_str())
            .header(AUTHORIZATION, client.token.header()?);
        if !body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let request = request.body(Full::new(Bytes::from(body)))?;
        let answer = timeout(PATIENCE, self.sender.send_request(request));
        let answer = answer.await.map_err(|_| ClientError::Silence(PATIENCE))??;
        let status = answer.status();
        if status.is_success() {
            return Ok(answer);
        }
        let text = match timeout(PATIENCE, Limited::new(answer.into_body(), EXCERPT).collect()).await {
            Ok(Ok(body)) => String::from_utf8_lossy(&body.to_bytes()).trim().to_owned(),
            _ => String::new(),
        };
        Err(ClientError::Refused { status, text })
    }
}
