//! The store over a real etcd: fences, order, and all the ways in which an etcd fails.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "runs a real etcd")]

mod support;

use std::collections::BTreeSet;

use eto_gateway::{AssignError, Put, Store, StoreError, StoreSettings};
use eto_membership::{Order, Refused};
use support::etcd::Etcd;
use support::facts::{assignment, record};
use support::look::{generation, lease, shows, synced};
use support::until;

#[tokio::test]
async fn assignments_move_forward_and_only_by_the_leader() {
    let etcd = Etcd::start(1).await;
    let store = Store::connect(&etcd.settings()).unwrap();
    let fence = store.lead("first").await.unwrap();
    store.assign(&fence, "job", &assignment(1, Order::Stop)).await.unwrap();
    store.assign(&fence, "job", &assignment(1, Order::Run)).await.unwrap();
    let written = etcd.revision().await;
    store.assign(&fence, "job", &assignment(1, Order::Run)).await.unwrap();
    assert_eq!(etcd.revision().await, written, "what is in force already is not written");

    let back = store.assign(&fence, "job", &assignment(1, Order::Stop)).await;
    assert!(matches!(back, Err(AssignError::Stale(Refused::Backward { generation: 1, .. }))), "{back:?}");
    let mut other = assignment(1, Order::Run);
    other.round.members.pop();
    let other = store.assign(&fence, "job", &other).await;
    assert_eq!(other, Err(AssignError::Stale(Refused::OtherRound { generation: 1 })));
    store.assign(&fence, "job", &assignment(4, Order::Stop)).await.unwrap();
    let older = store.assign(&fence, "job", &assignment(3, Order::Run)).await;
    assert_eq!(older, Err(AssignError::Stale(Refused::Older { current: 4, offered: 3 })));

    // Another replica becomes the leader; the first does not know it yet.
    let second = Store::connect(&etcd.settings()).unwrap();
    let newer = second.lead("second").await.unwrap();
    let late = store.assign(&fence, "job", &assignment(5, Order::Stop)).await;
    assert_eq!(late, Err(AssignError::NotLeading));
    assert_eq!(store.forget_job(&fence, "job").await, Err(AssignError::NotLeading));
    second.assign(&newer, "job", &assignment(5, Order::Stop)).await.unwrap();
    // What this replica wrote before is old by now; it finds out by itself.
    let again = store.lead("first").await.unwrap();
    assert!(matches!(store.assign(&again, "job", &assignment(4, Order::End)).await, Err(AssignError::Stale(_))));
    assert_eq!(second.assign(&newer, "job", &assignment(6, Order::Stop)).await, Err(AssignError::NotLeading));
}

#[tokio::test]
async fn followers_see_what_was_there_and_what_changes() {
    let etcd = Etcd::start(1).await;
    let store = Store::connect(&etcd.settings()).unwrap();
    let fence = store.lead("leader").await.unwrap();
    store.assign(&fence, "before", &assignment(1, Order::Run)).await.unwrap();
    let groups = store.follow();
    let mut changes = groups.subscribe();
    shows(&mut changes, "before", "what was there", |g| generation(g) == 1).await;
    synced(&groups).await;

    let replica = store.replica();
    lease(&replica).await;
    let Put::Written(revision) = replica.put_member("job", "pod-0", &record(1), 0).await.unwrap() else { panic!() };
    let told = shows(&mut changes, "job", "a member", |g| g.is_some_and(|g| g.members.contains_key("pod-0"))).await;
    assert_eq!(told.unwrap().members["pod-0"], record(1));
    store.assign(&fence, "job", &assignment(2, Order::Run)).await.unwrap();
    shows(&mut changes, "job", "an assignment", |g| generation(g) == 2).await;
    replica.remove_member("job", "pod-0", revision).await.unwrap();
    shows(&mut changes, "job", "no member", |g| g.is_some_and(|g| g.members.is_empty())).await;
    store.forget_job(&fence, "job").await.unwrap();
    shows(&mut changes, "job", "gone", |g| g.is_none()).await;
    assert_eq!(groups.get("job"), None);
    assert_eq!(generation(groups.get("before").as_deref()), 1);

    // A new subscriber is told all there is.
    let mut late = groups.subscribe();
    shows(&mut late, "before", "all there is", |g| generation(g) == 1).await;
}

#[tokio::test]
async fn garbage_of_jobs_that_are_gone_is_removed() {
    let etcd = Etcd::start(1).await;
    let store = Store::connect(&etcd.settings()).unwrap();
    let fence = store.lead("leader").await.unwrap();
    for job in ["a", "a-b", "b", "c"] {
        store.assign(&fence, job, &assignment(1, Order::Run)).await.unwrap();
    }
    let live = BTreeSet::from(["a", "c"]);
    assert_eq!(store.collect_garbage(&fence, |job| live.contains(job)).await, Ok(2));
    assert_eq!(store.collect_garbage(&fence, |job| live.contains(job)).await, Ok(0));
    let groups = store.follow();
    synced(&groups).await;
    assert_eq!(groups.len(), 2);
    assert!(groups.get("a").is_some() && groups.get("c").is_some());
}

#[tokio::test]
async fn large_jobs_and_many_of_them_are_listed() {
    let etcd = Etcd::start(1).await;
    let store = Store::connect(&etcd.settings()).unwrap();
    let fence = store.lead("leader").await.unwrap();
    // 8 MiB in all, and more than a page of keys.
    let mut large = assignment(1, Order::Run);
    large.env.insert("PADDING".into(), "x".repeat(1 << 20));
    for job in 0..8 {
        store.assign(&fence, &format!("large-{job}"), &large).await.unwrap();
    }
    let small = assignment(1, Order::Run);
    let all = (0..1_200).map(|job| format!("small-{job}")).collect::<Vec<_>>();
    for some in all.chunks(50) {
        futures::future::join_all(some.iter().map(|job| store.assign(&fence, job, &small))).await;
    }
    let groups = store.follow();
    synced(&groups).await;
    assert_eq!(groups.len(), 1_208);
    assert_eq!(store.collect_garbage(&fence, |job| job.starts_with("large")).await, Ok(1_200));
    until("it follows", || async { groups.len() == 8 }).await;
}

#[tokio::test]
async fn a_uid_can_not_reach_other_keys() {
    let etcd = Etcd::start(1).await;
    let store = Store::connect(&etcd.settings()).unwrap();
    let fence = store.lead("leader").await.unwrap();
    for uid in ["", "a/members/x", "../leader"] {
        let refused = store.forget_job(&fence, uid).await;
        assert!(matches!(refused, Err(AssignError::Unreached(StoreError::Settings(_)))), "{uid}: {refused:?}");
    }
}

#[tokio::test]
async fn a_record_belongs_to_the_replica_that_heard_last() {
    let etcd = Etcd::start(1).await;
    let (a, b) = (Store::connect(&etcd.settings()).unwrap(), Store::connect(&etcd.settings()).unwrap());
    let (a, b) = (a.replica(), b.replica());
    assert_ne!(lease(&a).await, lease(&b).await);
    let Put::Written(first) = a.put_member("job", "pod", &record(1), 0).await.unwrap() else { panic!() };
    // The agent moves to `b`, which knows nothing of the record.
    let Put::Written(second) = b.put_member("job", "pod", &record(5), 0).await.unwrap() else { panic!() };
    assert!(second > first);
    // What `a` still has to write is old, and its silence is no news.
    assert_eq!(a.put_member("job", "pod", &record(4), first).await, Ok(Put::Theirs));
    let mut silent = record(5);
    silent.suspected = true;
    assert_eq!(a.put_member("job", "pod", &silent, first).await, Ok(Put::Theirs));
    a.remove_member("job", "pod", first).await.unwrap();
    let mut look = etcd.client(0).await;
    let key = "/elastic-training/v1/jobs/job/members/pod";
    let found = look.get(key, None).await.unwrap();
    assert_eq!(found.kvs()[0].mod_revision(), second, "still the record of `b`");
    assert_eq!(found.kvs()[0].lease(), lease(&b).await);
    // Back at `a`: heard again, so it is `a`'s.
    assert!(matches!(a.put_member("job", "pod", &record(6), 0).await, Ok(Put::Written(_))));
}

#[tokio::test]
async fn no_etcd_and_wrong_credentials_are_told_apart() {
    let nobody = StoreSettings { endpoints: vec!["http://127.0.0.1:9".into()], ..StoreSettings::default() };
    let store = Store::connect(&nobody).unwrap();
    let error = store.lead("x").await.unwrap_err();
    assert!(matches!(&error, StoreError::Unreached { endpoint, .. } if endpoint == "http://127.0.0.1:9"), "{error}");

    let etcd = Etcd::start(1).await;
    let missing = StoreSettings { ca_file: Some("/nowhere/ca.pem".into()), ..etcd.settings() };
    let error = Store::connect(&missing).unwrap().lead("x").await.unwrap_err();
    assert!(error.to_string().contains("/nowhere/ca.pem"), "{error}");
    let anonymous = StoreSettings { cert_file: None, key_file: None, ..etcd.settings() };
    let error = Store::connect(&anonymous).unwrap().lead("x").await.unwrap_err();
    assert!(matches!(error, StoreError::Unreached { .. }), "{error}");
}
