//! What etcd's files take on disk, with real members that fill up.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "runs a real etcd")]

mod support;

use std::cell::RefCell;
use std::collections::BTreeSet;

use eto_gateway::{AssignError, Store, StoreError};
use eto_membership::Order;
use support::etcd::Etcd;
use support::facts::assignment;
use support::until;

const MIB: usize = 1024 * 1024;

/// Writes over one key until so many MiB were written or etcd is full, and compacts all but the last.
async fn fill(etcd: &Etcd, mib: usize) {
    let mut client = etcd.client(0).await;
    for _ in 0..mib {
        if client.put("filler", vec![b'x'; MIB - 1024], None).await.is_err() {
            break;
        }
    }
    let revision = etcd.revision().await;
    client.compact(revision, Some(etcd_client::CompactionOptions::new().with_physical())).await.unwrap();
}

#[tokio::test]
async fn members_are_rewritten_one_at_a_time_and_only_while_all_answer() {
    let mut etcd = Etcd::start(3).await;
    let store = Store::connect(&etcd.settings()).unwrap();
    fill(&etcd, 40).await;
    let worth = i64::try_from(20 * MIB).unwrap();
    assert_eq!(store.defragment(5 * worth).await, Ok(None), "40 MiB are not worth it");
    etcd.kill(2);
    let away = store.defragment(worth).await;
    assert!(matches!(away, Err(StoreError::Unreached { .. })), "{away:?}");
    etcd.spawn(2);
    etcd.ready().await;
    let done = RefCell::new(BTreeSet::new());
    // Compaction frees pages behind the answer, on each member in its own time; they count as free with the next write.
    let writes = etcd.client(0).await;
    until("all three are small", || async {
        writes.clone().put("other", "", None).await.unwrap();
        if let Some(d) = store.defragment(worth).await.unwrap() {
            assert!(d.after < d.before / 2, "{d:?}");
            assert!(done.borrow_mut().insert(d.endpoint.clone()), "{} again", d.endpoint);
        }
        done.borrow().len() == 3
    })
    .await;
    assert_eq!(store.defragment(worth).await, Ok(None));
}

#[tokio::test]
async fn one_that_was_full_takes_writes_again() {
    let etcd = Etcd::start_with(1, &["--unsafe-no-fsync", "--quota-backend-bytes=16777216"]).await;
    let store = Store::connect(&etcd.settings()).unwrap();
    let fence = store.lead("leader").await.unwrap();
    fill(&etcd, 64).await;
    let full = store.assign(&fence, "job", &assignment(1, Order::Run)).await;
    assert!(matches!(full, Err(AssignError::Unreached(_))), "{full:?}");
    until("it has room", || async { store.defragment(i64::MAX).await.unwrap().is_some() }).await;
    store.assign(&fence, "job", &assignment(1, Order::Run)).await.unwrap();
}
