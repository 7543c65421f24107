//! Gateway replicas with agents' own clients, over a real etcd.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "runs a real etcd")]

mod support;

use std::sync::atomic::Ordering;
use std::time::Duration;

use eto_agent::client::Link;
use eto_membership::{Assignment, MemberRecord, MemberState, Order, Report};
use support::etcd::Etcd;
use support::facts::{assignment, report};
use support::raw::Raw;
use support::replica::{Replica, agent, identity};
use support::service::Service;
use support::until;

/// What the leader knows of a member.
fn member(replica: &Replica, job: &str, pod: &str) -> Option<MemberRecord> {
    replica.groups.get(job)?.members.get(pod).cloned()
}

async fn joined(replica: &Replica, job: &str, pod: &str) {
    until(&format!("{pod} has joined"), || async { member(replica, job, pod).is_some() }).await;
}

async fn told(link: &mut Link, generation: u64) -> Assignment {
    let next = async {
        loop {
            let assignment = link.next().await;
            if assignment.round.generation == generation {
                return assignment;
            }
        }
    };
    let limit = Duration::from_secs(30);
    tokio::time::timeout(limit, next).await.unwrap_or_else(|_| panic!("generation {generation} was not told in 30 s"))
}

fn running(generation: u64) -> Report {
    Report { generation, state: MemberState::Running { generation }, ..report(0) }
}

/// Both of the job's agents, with reports sent.
fn agents(url: &str, identity: &eto_gateway::Identity) -> [Link; 2] {
    ["pod-0", "pod-1"].map(|pod| {
        let link = agent(url, identity, pod, "job");
        link.send(report(0));
        link
    })
}

#[tokio::test]
async fn agents_join_and_are_told_their_round() {
    let etcd = Etcd::start(1).await;
    let identity = identity();
    let replica = Replica::start(&etcd.settings(), &identity).await;
    let url = format!("https://localhost:{}", replica.address().port());
    let [mut a, mut b] = agents(&url, &identity);
    joined(&replica, "job", "pod-0").await;
    joined(&replica, "job", "pod-1").await;
    assert_eq!(member(&replica, "job", "pod-0").unwrap().pod, "name-of-pod-0");
    let fence = replica.store.lead("leader").await.unwrap();
    for order in [Order::Stop, Order::Run] {
        replica.store.assign(&fence, "job", &assignment(1, order)).await.unwrap();
        assert_eq!(told(&mut a, 1).await, assignment(1, order));
        assert_eq!(told(&mut b, 1).await, assignment(1, order));
    }
    a.send(running(1));
    until("the leader sees it run", || async {
        member(&replica, "job", "pod-0").unwrap().report.state == MemberState::Running { generation: 1 }
    })
    .await;
    // One that comes later is told at once; one of another job is not.
    let mut late = agent(&url, &identity, "pod-2", "job");
    assert_eq!(told(&mut late, 1).await.order, Order::Run);
    let mut other = agent(&url, &identity, "pod-9", "other");
    other.send(report(0));
    joined(&replica, "other", "pod-9").await;
    replica.store.assign(&fence, "job", &assignment(2, Order::Stop)).await.unwrap();
    replica.store.assign(&fence, "other", &assignment(7, Order::Run)).await.unwrap();
    assert_eq!(tokio::time::timeout(Duration::from_secs(30), other.next()).await.unwrap().round.generation, 7);

    // Its pod was deleted: the operator says so.
    drop(b);
    replica.server().forget_pod("pod-1");
    until("its record is gone", || async { member(&replica, "job", "pod-1").is_none() }).await;
}

#[tokio::test]
async fn heartbeats_cost_etcd_nothing() {
    let etcd = Etcd::start(1).await;
    let identity = identity();
    let replica = Replica::start(&etcd.settings(), &identity).await;
    let mut raw = Raw::connect(replica.address(), &identity).await.unwrap();
    let send = |sequence| serde_json::to_vec(&report(sequence)).unwrap();
    assert_eq!(raw.post("pod-0@job", &send(1)).await, 200);
    joined(&replica, "job", "pod-0").await;
    let before = etcd.revision().await;
    for sequence in 2..500 {
        assert_eq!(raw.post("pod-0@job", &send(sequence)).await, 200);
    }
    assert_eq!(raw.post("pod-0@job", &send(17)).await, 409, "an older one");
    // What is material is written, and after it nothing else was waiting.
    assert_eq!(raw.post("pod-0@job", &serde_json::to_vec(&Report { sequence: 500, ..running(1) }).unwrap()).await, 200);
    until("it is written", || async { member(&replica, "job", "pod-0").unwrap().report.generation == 1 }).await;
    assert_eq!(etcd.revision().await, before + 1);
    assert_eq!(replica.tokens.asked.load(Ordering::SeqCst), 1, "and the token was looked up once");
}

#[tokio::test]
async fn agents_move_to_another_replica_when_theirs_is_killed() {
    let etcd = Etcd::start(1).await;
    let identity = identity();
    let first = Replica::start(&etcd.settings(), &identity).await;
    let second = Replica::start(&etcd.settings(), &identity).await;
    let service = Service::of(&[first.address()]).await;
    let [mut a, mut b] = agents(&service.url(), &identity);
    joined(&second, "job", "pod-0").await;
    joined(&second, "job", "pod-1").await;
    let joined_ms = member(&second, "job", "pod-0").unwrap().joined_ms;
    service.set(&[second.address()]);
    first.kill();
    service.cut();
    until("both talk to the second", || async { second.server().members() == 2 }).await;
    // The leader, wherever it is, sees them all along, and reaches them.
    assert_eq!(member(&second, "job", "pod-0").unwrap().joined_ms, joined_ms);
    let fence = second.store.lead("second").await.unwrap();
    second.store.assign(&fence, "job", &assignment(1, Order::Run)).await.unwrap();
    told(&mut a, 1).await;
    told(&mut b, 1).await;
    let leases = || async {
        let mut client = etcd.client(0).await;
        let members = client
            .get("/elastic-training/v1/jobs/job/members/", Some(etcd_client::GetOptions::new().with_prefix()))
            .await
            .unwrap();
        members.kvs().iter().map(etcd_client::KeyValue::lease).collect::<Vec<_>>()
    };
    // Their records are bound to the second's lease, so they outlive the first's.
    until("the records are the second's", || async {
        let held = etcd.client(0).await.leases().await.unwrap();
        let bound = leases().await;
        bound.len() == 2 && bound[0] == bound[1] && held.leases().iter().any(|l| l.id() == bound[0])
    })
    .await;
    until("the lease of the killed one has run out", || async {
        etcd.client(0).await.leases().await.unwrap().leases().len() == 1
    })
    .await;
    assert_eq!(leases().await.len(), 2);
}

#[tokio::test]
async fn a_replica_that_is_shut_down_sends_its_agents_away() {
    let etcd = Etcd::start(1).await;
    let identity = identity();
    let mut first = Replica::start(&etcd.settings(), &identity).await;
    let second = Replica::start(&etcd.settings(), &identity).await;
    let service = Service::of(&[first.address()]).await;
    let [mut a, _b] = agents(&service.url(), &identity);
    joined(&second, "job", "pod-0").await;
    joined(&second, "job", "pod-1").await;
    service.set(&[second.address()]);
    first.server.take().unwrap().shutdown().await;
    until("both talk to the second", || async { second.server().members() == 2 }).await;
    let fence = second.store.lead("second").await.unwrap();
    second.store.assign(&fence, "job", &assignment(1, Order::Run)).await.unwrap();
    told(&mut a, 1).await;
}

#[tokio::test]
async fn etcd_away_agents_stay_and_what_they_tell_is_written_later() {
    let mut etcd = Etcd::start(1).await;
    let identity = identity();
    let replica = Replica::start(&etcd.settings(), &identity).await;
    let url = format!("https://localhost:{}", replica.address().port());
    let [mut a, mut b] = agents(&url, &identity);
    joined(&replica, "job", "pod-1").await;
    joined(&replica, "job", "pod-0").await;
    let fence = replica.store.lead("leader").await.unwrap();
    replica.store.assign(&fence, "job", &assignment(1, Order::Run)).await.unwrap();
    told(&mut a, 1).await;
    told(&mut b, 1).await;
    let watches = a.counts().watches.load(Ordering::SeqCst);

    etcd.kill(0);
    until("it is noticed", || async { !replica.groups.synced() }).await;
    a.send(running(1));
    a.delivered().await;
    let mut late = agent(&url, &identity, "pod-2", "job");
    late.send(report(0));
    late.delivered().await;
    assert_eq!(told(&mut late, 1).await.order, Order::Run, "what is known is told");
    etcd.spawn(0);
    joined(&replica, "job", "pod-2").await;
    until("it is written", || async {
        member(&replica, "job", "pod-0").unwrap().report.state == MemberState::Running { generation: 1 }
    })
    .await;
    replica.store.assign(&fence, "job", &assignment(2, Order::Stop)).await.unwrap();
    for link in [&mut a, &mut b, &mut late] {
        told(link, 2).await;
    }
    assert_eq!(a.counts().watches.load(Ordering::SeqCst), watches, "the streams were not touched");
}

#[tokio::test]
async fn an_emptied_etcd_is_filled_again_and_nothing_older_is_told() {
    let mut etcd = Etcd::start(1).await;
    let identity = identity();
    let replica = Replica::start(&etcd.settings(), &identity).await;
    let url = format!("https://localhost:{}", replica.address().port());
    let [mut a, mut b] = agents(&url, &identity);
    joined(&replica, "job", "pod-1").await;
    let fence = replica.store.lead("leader").await.unwrap();
    replica.store.assign(&fence, "job", &assignment(6, Order::Run)).await.unwrap();
    told(&mut a, 6).await;
    told(&mut b, 6).await;
    a.send(running(6));
    until("it is written", || async { member(&replica, "job", "pod-0").is_some_and(|m| m.report.generation == 6) })
        .await;

    etcd.empty().await;
    until("members are written again, the assignment is lost", || async {
        replica.groups.get("job").is_some_and(|g| g.assignment.is_none() && g.members.len() == 2)
    })
    .await;
    let group = replica.groups.get("job").unwrap();
    assert_eq!(group.highest_generation(), 6, "which generations there were is known from the agents");
    // The fence was lost too: who led takes it again. An assignment of before the loss does not reach agents.
    let late = replica.store.assign(&fence, "job", &assignment(6, Order::Run)).await;
    assert_eq!(late, Err(eto_gateway::AssignError::NotLeading));
    let fence = replica.store.lead("leader").await.unwrap();
    replica.store.assign(&fence, "job", &assignment(5, Order::Stop)).await.unwrap();
    replica.store.assign(&fence, "job", &assignment(7, Order::Stop)).await.unwrap();
    for link in [&mut a, &mut b] {
        let next = tokio::time::timeout(Duration::from_secs(30), link.next()).await.unwrap();
        assert_eq!(next.round.generation, 7);
    }
}

#[tokio::test]
async fn silence_is_a_suspicion_that_ends_when_the_agent_is_heard() {
    let etcd = Etcd::start(1).await;
    let identity = identity();
    let replica = Replica::start(&etcd.settings(), &identity).await;
    let url = format!("https://localhost:{}", replica.address().port());
    let [a, b] = agents(&url, &identity);
    joined(&replica, "job", "pod-0").await;
    joined(&replica, "job", "pod-1").await;
    drop(a);
    until("the silent one is suspected", || async { member(&replica, "job", "pod-0").unwrap().suspected }).await;
    assert!(!member(&replica, "job", "pod-1").unwrap().suspected);
    let again = agent(&url, &identity, "pod-0", "job");
    again.send(Report { incarnation: "second".into(), ..report(0) });
    until("it is heard again", || async { !member(&replica, "job", "pod-0").unwrap().suspected }).await;
    assert!(b.counts().is_connected());
}

#[tokio::test]
async fn a_renewed_certificate_is_shown_without_a_restart() {
    let etcd = Etcd::start(1).await;
    let (old, new) = (identity(), identity());
    let replica = Replica::start(&etcd.settings(), &old).await;
    let mut open = Raw::connect(replica.address(), &old).await.unwrap();
    assert_eq!(open.post("pod-0@job", b"{\"sequence\": 1, \"address\": \"10.0.0.1\"}").await, 200);
    replica.server().swap_identity(&new).unwrap();
    assert_eq!(
        open.post("pod-0@job", b"{\"sequence\": 2, \"address\": \"10.0.0.1\"}").await,
        200,
        "what is open stays"
    );
    assert!(Raw::connect(replica.address(), &old).await.is_err());
    let mut fresh = Raw::connect(replica.address(), &new).await.unwrap();
    assert_eq!(fresh.post("pod-0@job", b"{\"sequence\": 3, \"address\": \"10.0.0.1\"}").await, 200);
}
