//! Calls to etcd: one connection at a time, and the next endpoint when it fails.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::io::AsyncReadExt;

use etcd_client::{
    Certificate, Client, ConnectOptions, Error, GetOptions, GetResponse, Identity, PutResponse, TlsOptions, Txn,
    TxnResponse,
};

use crate::{StoreError, StoreSettings};

/// For one call to one member of several. One that takes longer is as good as gone.
const ATTEMPT: Duration = Duration::from_secs(2);
/// For one call to the only member: there is nobody else to ask.
const ONLY_ATTEMPT: Duration = Duration::from_secs(5);
/// A connection that could not be made is not tried again sooner: many calls ask for it at once.
const RETRY: Duration = Duration::from_millis(100);
/// The largest file with credentials, in bytes.
const MOST_OF_A_FILE: u64 = 1024 * 1024;
/// The longest answer, in bytes. Assignments of large jobs are long, and a page of a list may have many.
const MOST: usize = 256 * 1024 * 1024;

/// Connections to the members of one etcd. The one that answered last is used until it fails: a member that is dead or
/// has no quorum costs one attempt and not a share of all calls.
#[derive(Debug)]
pub(crate) struct Etcd {
    settings: StoreSettings,
    members: Vec<Member>,
    current: AtomicUsize,
}

/// A member, and the connection to it that all calls share.
#[derive(Default)]
struct Member {
    client: Mutex<Option<(Client, u64)>>,
    /// Held by the call that makes the connection; with why and when it could not be made.
    making: tokio::sync::Mutex<Option<(StoreError, Instant)>>,
    /// Connections made so far.
    made: AtomicU64,
}

impl std::fmt::Debug for Member {
    /// Without secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Member").field("made", &self.made).finish_non_exhaustive()
    }
}

/// A client, and which endpoint and connection it is of.
#[derive(Clone)]
pub(crate) struct Connection {
    pub(crate) client: Client,
    at: usize,
    number: u64,
}

impl Etcd {
    pub(crate) fn new(settings: &StoreSettings) -> Result<Self, StoreError> {
        settings.check()?;
        let members = settings.endpoints.iter().map(|_| Member::default()).collect();
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
        self.call(|c| {
            let (key, options) = (key.to_vec(), options.clone());
            let mut kv = c.kv_client().max_decoding_message_size(MOST);
            async move { kv.get(key, Some(options)).await }
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
                Ok(connection) => match tokio::time::timeout(self.attempt(), ask(connection.client.clone())).await {
                    Ok(Ok(value)) => Ok(value),
                    Ok(Err(error)) => Err(self.explain(&connection, &error)),
                    // The connection stays: others wait on it too, and if it is dead its own pings find out.
                    Err(_) => Err(self.unreached(connection.at, "no answer in time")),
                },
                Err(error) => Err(error),
            };
            match asked {
                Err(StoreError::Unreached { .. }) if tries > 0 => {}
                answer => return answer,
            }
        }
    }

    /// Members that there are.
    pub(crate) fn count(&self) -> usize {
        self.members.len()
    }

    pub(crate) fn endpoint(&self, at: usize) -> &str {
        self.settings.endpoints.get(at).map_or("", String::as_str)
    }

    /// A client of one member alone, beside the one that calls share.
    pub(crate) async fn member(&self, at: usize) -> Result<Client, StoreError> {
        self.make(at).await.map(|connection| connection.client)
    }

    /// What a member of [`Etcd::member`] answers within this time.
    pub(crate) async fn ask<T>(
        &self,
        at: usize,
        patience: Duration,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, StoreError> {
        match tokio::time::timeout(patience, call).await {
            Ok(answer) => answer.map_err(|error| self.meaning(at, &error).0),
            Err(_) => Err(self.unreached(at, "no answer in time")),
        }
    }

    /// A client of the member that is in use.
    pub(crate) async fn connect(&self) -> Result<Connection, StoreError> {
        let at = self.current.load(Ordering::Relaxed) % self.members.len();
        let member = &self.members[at];
        let ready = || lock(&member.client).clone().map(|(client, number)| Connection { client, at, number });
        if let Some(connection) = ready() {
            return Ok(connection);
        }
        let mut making = member.making.lock().await;
        if let Some(connection) = ready() {
            return Ok(connection);
        }
        if let Some((error, when)) = &*making
            && when.elapsed() < RETRY
        {
            return Err(error.clone());
        }
        *making = None;
        let made = self.make(at).await;
        match &made {
            Ok(Connection { client, number, .. }) => *lock(&member.client) = Some((client.clone(), *number)),
            Err(error) => *making = Some((error.clone(), Instant::now())),
        }
        made
    }

    async fn make(&self, at: usize) -> Result<Connection, StoreError> {
        // Files are read for each connection that is made, so that renewed certificates and passwords are taken.
        let options = self.options().await?;
        let number = self.members[at].made.fetch_add(1, Ordering::Relaxed);
        match tokio::time::timeout(self.attempt(), Client::connect([&self.settings.endpoints[at]], Some(options))).await
        {
            Ok(Ok(client)) => Ok(Connection { client, at, number }),
            Ok(Err(error)) => Err(self.meaning(at, &error).0),
            Err(_) => Err(self.unreached(at, "no connection in time")),
        }
    }

    fn attempt(&self) -> Duration {
        if self.members.len() == 1 { ONLY_ATTEMPT } else { ATTEMPT }
    }

    /// What an error of a call means. One that another member may not have makes the next call go there.
    pub(crate) fn explain(&self, connection: &Connection, error: &Error) -> StoreError {
        let (meaning, broken) = self.meaning(connection.at, error);
        if broken {
            self.drop_connection(connection);
        }
        meaning
    }

    /// A stream of this connection broke without an error.
    pub(crate) fn broken(&self, connection: &Connection, why: &str) -> StoreError {
        self.drop_connection(connection);
        self.unreached(connection.at, why)
    }

    /// The connection is made anew when it is this member's turn again, unless somebody has done so already.
    fn drop_connection(&self, connection: &Connection) {
        let mut client = lock(&self.members[connection.at].client);
        if client.as_ref().is_some_and(|(_, number)| *number == connection.number) {
            *client = None;
        }
    }

    /// What an error means, and whether the connection is broken.
    fn meaning(&self, at: usize, error: &Error) -> (StoreError, bool) {
        let why = error.to_string();
        let Error::GRpcStatus(status) = error else {
            return match error {
                Error::LeaseKeepAliveError(said) if said.contains("lease not found") => (StoreError::LeaseLost, false),
                Error::InvalidArgs(_) | Error::InvalidUri(_) | Error::InvalidMetadataValue(_) => {
                    (StoreError::Settings(why), false)
                }
                _ => (self.unreached(at, &why), true),
            };
        };
        let said = status.message();
        if said.contains("requested lease not found") {
            return (StoreError::LeaseLost, false);
        }
        // A revision that is still to come is one of an etcd that lost its data, or of a member that lags behind.
        if said.contains("required revision has been compacted") || said.contains("is a future revision") {
            return (StoreError::Compacted, false);
        }
        match status.code() as i32 {
            3 | 5 | 7 | 8 | 9 | 12 | 16 => {
                (StoreError::Refused { endpoint: self.settings.endpoints[at].clone(), why: said.to_owned() }, false)
            }
            // What etcd itself says of its cluster came over a connection that is good.
            _ => (self.unreached(at, if said.is_empty() { &why } else { said }), !said.starts_with("etcdserver:")),
        }
    }

    fn unreached(&self, at: usize, why: &str) -> StoreError {
        let next = (at + 1) % self.members.len();
        let _ = self.current.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed);
        StoreError::Unreached { endpoint: self.settings.endpoints[at].clone(), why: why.to_owned() }
    }

    async fn options(&self) -> Result<ConnectOptions, StoreError> {
        let s = &self.settings;
        let mut options = ConnectOptions::new()
            .with_connect_timeout(self.attempt())
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
        if let Some(pem) = &s.pem {
            let tls = TlsOptions::new().ca_certificate(Certificate::from_pem(&pem.ca));
            options = options.with_tls(tls.identity(Identity::from_pem(&pem.cert, &pem.key)));
        }
        if let (Some(user), Some(file)) = (&s.username, &s.password_file) {
            let password = read(file).await?;
            options = options.with_user(user, String::from_utf8_lossy(&password).trim_end());
        }
        Ok(options)
    }
}

/// A certificate, key or password: of a regular file, since a device or a pipe would not end, and of so much at most.
async fn read(path: &Path) -> Result<Vec<u8>, StoreError> {
    let bad = |why: String| StoreError::File { path: path.display().to_string(), why };
    let failed = |e: std::io::Error| bad(e.to_string());
    if !tokio::fs::metadata(path).await.map_err(failed)?.is_file() {
        return Err(bad("it is not a regular file".to_owned()));
    }
    let mut bytes = Vec::new();
    let file = tokio::fs::File::open(path).await.map_err(failed)?;
    file.take(MOST_OF_A_FILE + 1).read_to_end(&mut bytes).await.map_err(failed)?;
    if bytes.len() as u64 > MOST_OF_A_FILE {
        return Err(bad(format!("it is larger than {MOST_OF_A_FILE} bytes")));
    }
    Ok(bytes)
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Nothing here panics while it holds one.
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
