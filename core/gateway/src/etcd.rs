//! Calls to etcd: one connection at a time, and the next endpoint when it fails.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use etcd_client::{
    Certificate, Client, ConnectOptions, Error, GetOptions, GetResponse, Identity, PutResponse, TlsOptions, Txn,
    TxnResponse,
};

use crate::{StoreError, StoreSettings};

/// For one call to one member. A member that takes longer is as good as gone.
const ATTEMPT: Duration = Duration::from_secs(2);

/// Connections to the members of one etcd. The one that answered last is used until it fails: a member that is dead or
/// has no quorum costs one attempt and not a share of all calls.
#[derive(Debug)]
pub(crate) struct Etcd {
    settings: StoreSettings,
    members: Vec<Mutex<Option<Shown>>>,
    current: AtomicUsize,
}

/// A client, without its secrets when it is printed.
#[derive(Clone)]
struct Shown(Client);

impl std::fmt::Debug for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Client")
    }
}

/// A client, and which endpoint it is of.
#[derive(Clone)]
pub(crate) struct Connection {
    pub(crate) client: Client,
    at: usize,
}

impl Etcd {
    pub(crate) fn new(settings: &StoreSettings) -> Result<Self, StoreError> {
        settings.check()?;
        let members = settings.endpoints.iter().map(|_| Mutex::default()).collect();
        Ok(Etcd { settings: settings.clone(), members, current: AtomicUsize::new(0) })
    }

    pub(crate) async fn put(&self, key: &str, value: &str) -> Result<PutResponse, StoreError> {
        self.call(|mut c| {
            let (key, value) = (key.to_owned(), value.to_owned());
            async move { c.put(key, value, None).await }
        })
        .await
    }

    pub(crate) async fn get(&self, key: &[u8], options: &GetOptions) -> Result<GetResponse, StoreError> {
        self.call(|mut c| {
            let (key, options) = (key.to_vec(), options.clone());
            async move { c.get(key, Some(options)).await }
        })
        .await
    }

    pub(crate) async fn txn(&self, txn: &Txn) -> Result<TxnResponse, StoreError> {
        self.call(|mut c| {
            let txn = txn.clone();
            async move { c.txn(txn).await }
        })
        .await
    }

    /// A new lease; its id.
    pub(crate) async fn grant(&self, ttl_s: i64) -> Result<i64, StoreError> {
        self.call(|mut c| async move { c.lease_grant(ttl_s, None).await }).await.map(|granted| granted.id())
    }

    /// Renews a lease.
    pub(crate) async fn renew(&self, lease: i64) -> Result<(), StoreError> {
        self.call(|mut c| async move { c.lease_keep_alive(lease).await }).await.map(drop)
    }

    /// Asks a member, and the next where that fails for a reason that another may not have. What was asked may have
    /// been done by one whose answer was lost: callers have to bear that.
    async fn call<T, F, Fut>(&self, ask: F) -> Result<T, StoreError>
    where
        F: Fn(Client) -> Fut,
        Fut: Future<Output = Result<T, Error>>,
    {
        let mut tries = self.members.len() + 1;
        loop {
            tries -= 1;
            let asked = match self.connect().await {
                Ok(Connection { client, at }) => match tokio::time::timeout(ATTEMPT, ask(client)).await {
                    Ok(Ok(value)) => Ok(value),
                    Ok(Err(error)) => Err(self.explain(at, &error)),
                    Err(_) => Err(self.unreached(at, "no answer in 2 s")),
                },
                Err(error) => Err(error),
            };
            match asked {
                Err(StoreError::Unreached { .. }) if tries > 0 => {}
                answer => return answer,
            }
        }
    }

    /// A client of the member that is in use.
    pub(crate) async fn connect(&self) -> Result<Connection, StoreError> {
        let at = self.current.load(Ordering::Relaxed) % self.members.len();
        if let Some(Shown(client)) = lock(&self.members[at]).clone() {
            return Ok(Connection { client, at });
        }
        // Files are read for each connection that is made, so that renewed certificates and passwords are taken.
        let options = self.options().await?;
        match tokio::time::timeout(ATTEMPT, Client::connect([&self.settings.endpoints[at]], Some(options))).await {
            Ok(Ok(client)) => {
                *lock(&self.members[at]) = Some(Shown(client.clone()));
                Ok(Connection { client, at })
            }
            Ok(Err(error)) => Err(self.explain(at, &error)),
            Err(_) => Err(self.unreached(at, "no connection in 2 s")),
        }
    }

    /// What an error of a call means. One that another member may not have makes the next call go there.
    pub(crate) fn of(&self, connection: &Connection, error: &Error) -> StoreError {
        self.explain(connection.at, error)
    }

    /// A stream of this connection broke without an error.
    pub(crate) fn broken(&self, connection: &Connection, why: &str) -> StoreError {
        self.unreached(connection.at, why)
    }

    fn explain(&self, at: usize, error: &Error) -> StoreError {
        let why = error.to_string();
        let Error::GRpcStatus(status) = error else {
            return match error {
                Error::LeaseKeepAliveError(said) if said.contains("lease not found") => StoreError::LeaseLost,
                Error::InvalidArgs(_) | Error::InvalidUri(_) | Error::InvalidMetadataValue(_) => {
                    StoreError::Settings(why)
                }
                _ => self.unreached(at, &why),
            };
        };
        let said = status.message();
        if said.contains("requested lease not found") {
            return StoreError::LeaseLost;
        }
        if said.contains("required revision has been compacted") {
            return StoreError::Compacted;
        }
        if said.contains("required revision is a future revision") {
            // It has less than we have seen: it lost its data, or lags behind.
            return StoreError::Compacted;
        }
        match status.code() as i32 {
            3 | 5 | 7 | 8 | 9 | 12 | 16 => {
                StoreError::Refused { endpoint: self.settings.endpoints[at].clone(), why: said.to_owned() }
            }
            _ => self.unreached(at, if said.is_empty() { &why } else { said }),
        }
    }

    fn unreached(&self, at: usize, why: &str) -> StoreError {
        // The connection is made anew when it is this member's turn again.
        *lock(&self.members[at]) = None;
        let next = (at + 1) % self.members.len();
        let _ = self.current.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed);
        StoreError::Unreached { endpoint: self.settings.endpoints[at].clone(), why: why.to_owned() }
    }

    async fn options(&self) -> Result<ConnectOptions, StoreError> {
        let s = &self.settings;
        let mut options = ConnectOptions::new()
            .with_connect_timeout(ATTEMPT)
            .with_keep_alive(Duration::from_secs(5), Duration::from_secs(3))
            .with_keep_alive_while_idle(false)
            .with_tcp_keepalive(Duration::from_secs(10))
            .with_require_leader(true)
            .with_auto_token_refresh(true);
        if let Some(ca) = &s.ca_file {
            let mut tls = TlsOptions::new().ca_certificate(Certificate::from_pem(read(ca).await?));
            if let (Some(cert), Some(key)) = (&s.cert_file, &s.key_file) {
                tls = tls.identity(Identity::from_pem(read(cert).await?, read(key).await?));
            }
            options = options.with_tls(tls);
        }
        if let (Some(user), Some(file)) = (&s.username, &s.password_file) {
            let password = read(file).await?;
            options = options.with_user(user, String::from_utf8_lossy(&password).trim_end());
        }
        Ok(options)
    }
}

async fn read(path: &Path) -> Result<Vec<u8>, StoreError> {
    let file = |e: std::io::Error| StoreError::File { path: path.display().to_string(), why: e.to_string() };
    tokio::fs::read(path).await.map_err(file)
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Nothing here panics while it holds one.
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
