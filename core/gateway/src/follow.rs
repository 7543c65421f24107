//! One watch of all groups, from a list on, for as long as anybody wants to know.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{
    Error, Event, EventType, GetOptions, KeyValue, ResponseHeader, WatchOptions, WatchResponse, WatchStream,
};

use crate::StoreError;
use crate::groups::{Item, Owner, Shared};
use crate::keys::{Keys, after};
use crate::store::{PAGE, Store};

/// A watch that is silent for this long is asked whether it lives.
const QUIET: Duration = Duration::from_secs(10);
/// How long it may take to say so.
const ALIVE: Duration = Duration::from_secs(3);

/// Lists and watches until it is dropped. After each break everything is listed again: a member that was restored or
/// emptied counts its revisions from anew, so that to go on from a revision would miss what is there.
pub(crate) async fn run(store: Store, shared: Arc<Shared>) {
    let mut pause = Duration::from_millis(50);
    loop {
        let error = match list(&store, &shared).await {
            Ok(revision) => {
                shared.set_synced(true);
                pause = Duration::from_millis(50);
                watch(&store, &shared, revision).await
            }
            Err(error) => error,
        };
        if error != StoreError::Compacted {
            shared.set_synced(false);
        }
        tracing::warn!(%error, "the watch of the groups ended; they are listed again");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(2));
    }
}

/// Reads everything as of one revision, which it returns.
async fn list(store: &Store, shared: &Shared) -> Result<i64, StoreError> {
    let keys = &store.inner.keys;
    let jobs = keys.jobs();
    let end = after(jobs.as_bytes());
    let mut from = jobs.into_bytes();
    let mut revision = 0;
    let mut all: Vec<KeyValue> = Vec::new();
    loop {
        let options = GetOptions::new().with_range(end.as_slice()).with_limit(PAGE).with_revision(revision);
        let mut page = store.inner.etcd.get(&from, &options).await?;
        if revision == 0 {
            revision = page.header().map_or(0, ResponseHeader::revision);
        }
        let more = page.more();
        all.append(&mut page.take_kvs());
        match all.last() {
            Some(last) if more => from = [last.key(), &[0]].concat(),
            _ => break,
        }
    }
    shared.replace(revision, all.iter().filter_map(|kv| item(keys, kv, Some(kv.value()))));
    Ok(revision)
}

/// Applies what happens after a revision. Returns why it can't go on.
async fn watch(store: &Store, shared: &Shared, revision: i64) -> StoreError {
    let etcd = &store.inner.etcd;
    let jobs = store.inner.keys.jobs();
    let connection = match etcd.connect().await {
        Ok(connection) => connection,
        Err(error) => return error,
    };
    let options = WatchOptions::new()
        .with_range(after(jobs.as_bytes()))
        .with_start_revision(revision.saturating_add(1))
        .with_fragment();
    let mut client = connection.client.clone();
    let mut stream = match tokio::time::timeout(QUIET, client.watch(jobs, Some(options))).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return etcd.explain(&connection, &error),
        Err(_) => return etcd.broken(&connection, "no watch in 10 s"),
    };
    let mut seen = revision;
    loop {
        let Some(message) = message(&mut stream).await else {
            return etcd.broken(&connection, "the watch says nothing when it is asked");
        };
        match message {
            Ok(Some(message)) => match applied(&store.inner.keys, shared, &message, seen) {
                Ok(revision) => seen = revision,
                Err(StoreError::Unreached { why, .. }) => return etcd.broken(&connection, &why),
                Err(error) => return error,
            },
            Ok(None) => return etcd.broken(&connection, "the watch was closed"),
            Err(error) => return etcd.explain(&connection, &error),
        }
    }
}

/// The next message; `None` if the stream says nothing, not even when it is asked.
async fn message(stream: &mut WatchStream) -> Option<Result<Option<WatchResponse>, Error>> {
    if let Ok(message) = tokio::time::timeout(QUIET, stream.message()).await {
        return Some(message);
    }
    if let Err(error) = stream.request_progress().await {
        return Some(Err(error));
    }
    tokio::time::timeout(ALIVE, stream.message()).await.ok()
}

/// Takes in one message; the revision that is seen now.
fn applied(keys: &Keys, shared: &Shared, message: &WatchResponse, seen: i64) -> Result<i64, StoreError> {
    if message.canceled() {
        if message.compact_revision() > 0 {
            return Err(StoreError::Compacted);
        }
        let why = format!("the watch was cancelled: {}", message.cancel_reason());
        return Err(StoreError::Unreached { endpoint: String::new(), why });
    }
    let revision = message.header().map_or(seen, ResponseHeader::revision);
    if revision < seen {
        // It has less than was listed: its data was lost in between.
        return Err(StoreError::Compacted);
    }
    shared.apply(revision, message.events().iter().filter_map(|event| of_event(keys, event)));
    Ok(revision)
}

fn of_event<'a>(keys: &Keys, event: &'a Event) -> Option<Item<'a>> {
    let kv = event.kv()?;
    item(keys, kv, (event.event_type() == EventType::Put).then(|| kv.value()))
}

fn item<'a>(keys: &Keys, kv: &'a KeyValue, value: Option<&'a [u8]>) -> Option<Item<'a>> {
    let key = keys.parse(kv.key())?;
    Some(Item { key, value, owner: Owner { lease: kv.lease(), revision: kv.mod_revision() } })
}
