//! Sockets around a [`Store`].

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinSet;

use crate::store::{Full, Store, StoreError, WaiterId};
use crate::wire::{self, MAGIC, MAX_REQUEST, Malformed, Request};

/// All keys that were waited for are there.
const READY: u8 = 0;
const NOT_READY: u8 = 1;
const WAIT_CANCELED: u8 = 1;
/// Room for what is read at once, in bytes.
const CHUNK: usize = 4 * 1024;

/// What a server takes on.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes in the store, with an allowance for each key.
    pub bytes: usize,
    /// Bytes of requests that are not all there yet, over all connections.
    pub received: usize,
    /// Connections at once; more wait to be accepted.
    pub connections: usize,
    /// How long a new connection may take to show that it speaks the protocol.
    pub introduction: Duration,
    /// How long a reply may take to be read by its client.
    pub reply: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            bytes: 64 * 1024 * 1024,
            received: 128 * 1024 * 1024,
            connections: 4096,
            introduction: Duration::from_secs(10),
            reply: Duration::from_secs(30),
        }
    }
}

/// Why a connection ended before its client closed it.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Malformed(#[from] Malformed),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("it did not begin with torch's greeting")]
    Stranger,
    #[error("it did not take its replies in time")]
    Stuck,
    #[error("all connections together wait for the rest of too much")]
    Crowded,
}

/// A store that torch's `TCPStore` clients use.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    limits: Limits,
}

impl Server {
    /// Listens.
    ///
    /// # Errors
    /// The address can't be listened at.
    pub async fn bind(address: SocketAddr, limits: Limits) -> io::Result<Server> {
        Ok(Server { listener: TcpListener::bind(address).await?, limits })
    }

    /// On a socket that listens already.
    pub fn on(listener: TcpListener, limits: Limits) -> Server {
        Server { listener, limits }
    }

    /// Where it listens.
    ///
    /// # Errors
    /// The system does not tell.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until it is dropped, which ends all connections.
    pub async fn serve(self) {
        let shared = Arc::new(Shared::new(self.limits.bytes));
        let room = Arc::new(Semaphore::new(self.limits.connections));
        let mut connections = JoinSet::new();
        let mut id = 0;
        loop {
            // Never closed, so there is always a permit to come.
            let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
            let (stream, peer) = match self.listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Out of descriptors, say: give those that end a moment.
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            id += 1;
            let (shared, limits) = (Arc::clone(&shared), self.limits);
            connections.spawn(async move {
                let _permit = permit;
                if let Err(why) = Connection::new(id, stream, &shared, limits).run().await {
                    tracing::info!(%peer, %why, "a connection was ended");
                }
            });
            while connections.try_join_next().is_some() {}
        }
    }
}

struct Shared {
    store: Mutex<Store>,
    sleeping: Mutex<HashMap<WaiterId, oneshot::Sender<()>>>,
    /// Bytes in all connections' buffers.
    received: AtomicUsize,
}

/// A panic elsewhere leaves the data as it was after some whole operation.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn new(bytes: usize) -> Shared {
        Shared {
            store: Mutex::new(Store::new(bytes)),
            sleeping: Mutex::new(HashMap::new()),
            received: AtomicUsize::new(0),
        }
    }

    fn wake(&self, woken: Vec<WaiterId>) {
        let mut sleeping = lock(&self.sleeping);
        for id in woken {
            if let Some(sender) = sleeping.remove(&id) {
                let _ = sender.send(());
            }
        }
    }

    /// `None` = all keys are there.
    fn wait(&self, id: WaiterId, keys: Vec<Vec<u8>>) -> Result<Option<oneshot::Receiver<()>>, Full> {
        // The store's lock is held until the sleeper is known, so that no wake-up falls in between.
        let mut store = lock(&self.store);
        if store.wait(id, keys)? {
            return Ok(None);
        }
        let (sender, receiver) = oneshot::channel();
        lock(&self.sleeping).insert(id, sender);
        Ok(Some(receiver))
    }

    fn leave(&self, id: WaiterId) {
        lock(&self.store).forget(id);
        lock(&self.sleeping).remove(&id);
    }
}

struct Connection<'a> {
    id: WaiterId,
    stream: TcpStream,
    shared: &'a Shared,
    limits: Limits,
    received: Vec<u8>,
    greeted: bool,
    waiting: Option<oneshot::Receiver<()>>,
}

impl<'a> Connection<'a> {
    fn new(id: WaiterId, stream: TcpStream, shared: &'a Shared, limits: Limits) -> Connection<'a> {
        Connection { id, stream, shared, limits, received: Vec::new(), greeted: false, waiting: None }
    }

    async fn run(mut self) -> Result<(), Ended> {
        let _ = self.stream.set_nodelay(true);
        let introduction = self.limits.introduction;
        match tokio::time::timeout(introduction, self.serve(true)).await {
            Ok(done) if !self.greeted => return done,
            Ok(done) => done?,
            Err(_) => return Err(Ended::Stranger),
        }
        self.serve(false).await
    }

    /// Serves requests; `introduction`: only until the greeting has come.
    async fn serve(&mut self, introduction: bool) -> Result<(), Ended> {
        loop {
            let mut used = 0;
            while let Some((request, length)) = wire::decode(&self.received[used..])? {
                used += length;
                let reply = self.handle(request)?;
                self.reply(&reply).await?;
            }
            self.received.drain(..used);
            self.shared.received.fetch_sub(used, Ordering::Relaxed);
            if introduction && self.greeted {
                return Ok(());
            }
            self.received.reserve(CHUNK);
            let count = match &mut self.waiting {
                Some(waiting) => tokio::select! {
                    woken = waiting => {
                        self.waiting = None;
                        // The sender is dropped only when another wait took its place.
                        if woken.is_ok() {
                            self.reply(&[READY]).await?;
                        }
                        continue;
                    }
                    count = self.stream.read_buf(&mut self.received) => count?,
                },
                None => self.stream.read_buf(&mut self.received).await?,
            };
            if count == 0 {
                return Ok(());
            }
            if self.shared.received.fetch_add(count, Ordering::Relaxed) + count > self.limits.received {
                return Err(Ended::Crowded);
            }
        }
    }

    async fn reply(&mut self, bytes: &[u8]) -> Result<(), Ended> {
        let sent = tokio::time::timeout(self.limits.reply, self.stream.write_all(bytes)).await;
        Ok(sent.map_err(|_| Ended::Stuck)??)
    }

    /// Carries a request out and gives its reply, which may be empty.
    fn handle(&mut self, request: Request) -> Result<Vec<u8>, Ended> {
        if !self.greeted && request != Request::Validate(MAGIC) {
            return Err(Ended::Stranger);
        }
        let mut store = lock(&self.shared.store);
        let mut woken = Vec::new();
        let full = StoreError::Full;
        let reply = match request {
            Request::Validate(magic) => {
                self.greeted = magic == MAGIC;
                Vec::new()
            }
            Request::Set(key, value) => {
                woken = store.set(key, value).map_err(full)?;
                Vec::new()
            }
            Request::CompareSet(key, expected, new) => {
                let (value, more) = store.compare_set(key, expected, new).map_err(full)?;
                woken = more;
                wire::text(&value)
            }
            Request::Get(key) => wire::text(store.get(&key)),
            Request::Add(key, amount) => {
                let (sum, more) = store.add(key, amount)?;
                woken = more;
                sum.to_le_bytes().to_vec()
            }
            Request::Check(keys) => vec![if store.has_all(&keys) { READY } else { NOT_READY }],
            Request::Wait(keys) => {
                drop(store);
                self.waiting = self.shared.wait(self.id, keys).map_err(full)?;
                return Ok(if self.waiting.is_none() { vec![READY] } else { Vec::new() });
            }
            Request::CountKeys => count(store.len()),
            Request::Delete(key) => count(usize::from(store.delete(&key))),
            Request::Append(key, value) => {
                woken = store.append(key, &value).map_err(full)?;
                Vec::new()
            }
            Request::MultiGet(keys) => {
                let total = keys.iter().map(|key| 8 + store.get(key).len()).sum::<usize>();
                if total > MAX_REQUEST {
                    let claimed = u64::try_from(total).unwrap_or(u64::MAX);
                    return Err(Malformed::TooLong { what: "bytes of a reply", claimed, limit: MAX_REQUEST }.into());
                }
                keys.iter().flat_map(|key| wire::text(store.get(key))).collect()
            }
            Request::MultiSet(pairs) => {
                for (key, value) in pairs {
                    woken.extend(store.set(key, value).map_err(full)?);
                }
                Vec::new()
            }
            Request::CancelWait => {
                drop(store);
                self.shared.leave(self.id);
                self.waiting = None;
                return Ok(vec![WAIT_CANCELED]);
            }
            Request::Ping(nonce) => nonce.to_le_bytes().to_vec(),
        };
        drop(store);
        self.shared.wake(woken);
        Ok(reply)
    }
}

impl Drop for Connection<'_> {
    fn drop(&mut self) {
        self.shared.received.fetch_sub(self.received.len(), Ordering::Relaxed);
        self.shared.leave(self.id);
    }
}

fn count(n: usize) -> Vec<u8> {
    i64::try_from(n).unwrap_or(i64::MAX).to_le_bytes().to_vec()
}
