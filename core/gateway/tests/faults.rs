//! An etcd that fails in each of its ways, as the store sees it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "runs a real etcd")]

mod support;

use eto_gateway::{AssignError, Put, Store, StoreError, StoreSettings};
use eto_membership::Order;
use support::etcd::Etcd;
use support::facts::{assignment, record};
use support::look::{generation, lease, shows, synced};
use support::service::Service;
use support::until;

#[tokio::test]
async fn a_watch_that_was_cut_while_history_was_compacted_lists_again() {
    let etcd = Etcd::start(1).await;
    let wire = Service::of(&[etcd.address(0)]).await;
    let settings = StoreSettings { endpoints: vec![format!("https://{}", wire.address())], ..etcd.settings() };
    let store = Store::connect(&settings).unwrap();
    let near = Store::connect(&etcd.settings()).unwrap();
    let fence = near.lead("leader").await.unwrap();
    for job in ["stays", "goes"] {
        near.assign(&fence, job, &assignment(1, Order::Run)).await.unwrap();
    }
    let groups = store.follow();
    let mut changes = groups.subscribe();
    synced(&groups).await;

    // Compacting beside a watch that is up to date does nothing to it.
    let revision = etcd.revision().await;
    etcd.client(0).await.compact(revision, None).await.unwrap();
    near.assign(&fence, "stays", &assignment(2, Order::Run)).await.unwrap();
    shows(&mut changes, "stays", "a change after compaction", |g| generation(g) == 2).await;

    wire.set(&[]);
    wire.cut();
    until("it is noticed", || async { !groups.synced() }).await;
    for generation in 3..20 {
        near.assign(&fence, "stays", &assignment(generation, Order::Run)).await.unwrap();
    }
    near.forget_job(&fence, "goes").await.unwrap();
    near.assign(&fence, "comes", &assignment(1, Order::Run)).await.unwrap();
    let revision = etcd.revision().await;
    etcd.client(0).await.compact(revision, None).await.unwrap();
    wire.set(&[etcd.address(0)]);
    synced(&groups).await;
    assert_eq!(generation(groups.get("stays").as_deref()), 19);
    assert_eq!(generation(groups.get("comes").as_deref()), 1);
    assert_eq!(groups.get("goes"), None);
    shows(&mut changes, "goes", "that it is gone", |g| g.is_none()).await;
}

#[tokio::test]
async fn etcd_killed_and_started_again_keeps_everything() {
    let mut etcd = Etcd::start(1).await;
    let store = Store::connect(&etcd.settings()).unwrap();
    let groups = store.follow();
    let replica = store.replica();
    let held = lease(&replica).await;
    let fence = store.lead("leader").await.unwrap();
    store.assign(&fence, "job", &assignment(1, Order::Run)).await.unwrap();
    let Ok(Put::Written(first)) = replica.put_member("job", "pod", &record(1), 0).await else { panic!() };
    // What is written may reach those that follow later than the one that wrote.
    until("it follows", || async { groups.get("job").is_some_and(|g| g.assignment.is_some() && g.members.len() == 1) })
        .await;

    etcd.kill(0);
    let away = store.assign(&fence, "job", &assignment(2, Order::Stop)).await;
    assert!(matches!(away, Err(AssignError::Unreached(StoreError::Unreached { .. }))), "{away:?}");
    until("it is noticed", || async { !groups.synced() }).await;
    assert_eq!(generation(groups.get("job").as_deref()), 1, "what was known stays");

    etcd.spawn(0);
    synced(&groups).await;
    assert_eq!(generation(groups.get("job").as_deref()), 1);
    assert!(groups.get("job").unwrap().members.contains_key("pod"));
    store.assign(&fence, "job", &assignment(2, Order::Stop)).await.unwrap();
    assert!(matches!(replica.put_member("job", "pod", &record(2), first).await, Ok(Put::Written(_))));
    assert_eq!(*replica.lease().borrow(), held, "the same lease");
    until("it follows", || async { generation(groups.get("job").as_deref()) == 2 }).await;
}

#[tokio::test]
async fn an_emptied_etcd_is_noticed_and_another_lease_taken() {
    let mut etcd = Etcd::start(1).await;
    let store = Store::connect(&etcd.settings()).unwrap();
    let groups = store.follow();
    let replica = store.replica();
    let before = lease(&replica).await;
    let fence = store.lead("leader").await.unwrap();
    for i in 1..50 {
        store.assign(&fence, "job", &assignment(i, Order::Run)).await.unwrap();
    }
    until("it follows", || async { generation(groups.get("job").as_deref()) == 49 }).await;

    // Its revisions begin anew: a watch that went on from the old one would be silent for ever.
    etcd.empty().await;
    until("that all is gone is known", || async { groups.synced() && groups.is_empty() }).await;
    let mut leases = replica.lease();
    let after = *leases.wait_for(|l| *l != before).await.unwrap();
    assert!(matches!(replica.put_member("job", "pod", &record(1), 77).await, Ok(Put::Written(_))));
    assert_ne!(before, after);
    assert_eq!(store.assign(&fence, "job", &assignment(50, Order::Stop)).await, Err(AssignError::NotLeading));
    let fence = store.lead("leader").await.unwrap();
    store.assign(&fence, "job", &assignment(49, Order::Run)).await.unwrap();
    until("it follows again", || async {
        groups.get("job").is_some_and(|g| g.members.len() == 1 && generation(Some(&g)) == 49)
    })
    .await;
}

#[tokio::test]
async fn a_restored_backup_takes_no_former_leader_back() {
    let mut etcd = Etcd::start(1).await;
    let first = Store::connect(&etcd.settings()).unwrap();
    let old = first.lead("first").await.unwrap();
    first.assign(&old, "job", &assignment(3, Order::Run)).await.unwrap();
    etcd.back_up();
    etcd.ready().await;
    let second = Store::connect(&etcd.settings()).unwrap();
    let groups = second.follow();
    let new = second.lead("second").await.unwrap();
    second.assign(&new, "job", &assignment(5, Order::Run)).await.unwrap();
    until("it follows", || async { generation(groups.get("job").as_deref()) == 5 }).await;

    etcd.restore().await;
    until("what is in the backup is known", || async { generation(groups.get("job").as_deref()) == 3 }).await;
    // The one that leads finds out, takes the fence, and says what is so; with that the other's is worth nothing.
    assert_eq!(second.assign(&new, "job", &assignment(5, Order::Run)).await, Err(AssignError::NotLeading));
    let new = second.lead("second").await.unwrap();
    second.assign(&new, "job", &assignment(5, Order::Run)).await.unwrap();
    assert_eq!(first.assign(&old, "job", &assignment(4, Order::Run)).await, Err(AssignError::NotLeading));
    until("it follows", || async { generation(groups.get("job").as_deref()) == 5 }).await;
}

#[tokio::test]
async fn three_members_bear_the_loss_of_one_and_wait_for_a_quorum() {
    let mut etcd = Etcd::start(3).await;
    let store = Store::connect(&etcd.settings()).unwrap();
    let groups = store.follow();
    let replica = store.replica();
    lease(&replica).await;
    let fence = store.lead("leader").await.unwrap();
    store.assign(&fence, "job", &assignment(1, Order::Run)).await.unwrap();
    let Ok(Put::Written(_)) = replica.put_member("job", "pod", &record(1), 0).await else { panic!() };
    synced(&groups).await;

    // The one in use, which may lead the others as well.
    etcd.kill(0);
    until("the others take a write", || async {
        store.assign(&fence, "job", &assignment(2, Order::Run)).await.is_ok()
    })
    .await;
    until("it follows", || async { groups.synced() && generation(groups.get("job").as_deref()) == 2 }).await;

    etcd.kill(1);
    let away = store.assign(&fence, "job", &assignment(3, Order::Run)).await;
    assert!(matches!(away, Err(AssignError::Unreached(StoreError::Unreached { .. }))), "{away:?}");
    until("that there is no quorum is known", || async { !groups.synced() }).await;
    assert_eq!(generation(groups.get("job").as_deref()), 2, "what was known stays");

    etcd.spawn(1);
    until("with a quorum it is written", || async {
        store.assign(&fence, "job", &assignment(3, Order::Run)).await.is_ok()
    })
    .await;
    until("it follows", || async { groups.synced() && generation(groups.get("job").as_deref()) == 3 }).await;
    assert!(groups.get("job").unwrap().members.contains_key("pod"), "the lease was renewed in time");
    etcd.spawn(0);
    etcd.ready().await;
}
