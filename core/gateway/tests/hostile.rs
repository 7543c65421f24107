//! Clients that do wrong, out of error or malice.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "runs a real etcd")]

mod support;

use std::sync::atomic::Ordering;
use std::time::Duration;

use eto_gateway::Limits;
use eto_membership::Order;
use support::etcd::Etcd;
use support::facts::{assignment, report};
use support::raw::Raw;
use support::replica::{Replica, identity};
use support::until;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const SHORT: Limits = Limits {
    connections: 64,
    connections_per_pod: 3,
    strangers: 16,
    members: 4,
    greeting: Duration::from_secs(2),
    patience: Duration::from_secs(2),
};

#[tokio::test]
async fn requests_that_are_wrong_are_refused_and_others_go_on() {
    let etcd = Etcd::start(1).await;
    let identity = identity();
    let replica = Replica::start(&etcd.settings(), &identity).await;
    let connect = || async { Raw::connect(replica.address(), &identity).await.unwrap() };
    let mut good = connect().await;
    let good_report = |sequence| serde_json::to_vec(&report(sequence)).unwrap();
    assert_eq!(good.post("pod-0@job", &good_report(1)).await, 200);

    let mut stranger = connect().await;
    stranger.send(b"POST /v1/report HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}").await.unwrap();
    assert_eq!(stranger.status().await, 401, "no token");
    stranger.closed().await;
    assert_eq!(connect().await.post("nonsense", b"{}").await, 401);
    assert_eq!(connect().await.post("pod-0@", b"{}").await, 403, "a pod of no job");
    assert_eq!(connect().await.post("../x@job", b"{}").await, 403, "a UID that would be another key");
    assert_eq!(connect().await.post("pod-1@job", b"garbage").await, 400);
    assert_eq!(connect().await.post("pod-1@job", b"{\"sequence\": -1}").await, 400);
    // Peers' scripts are made from it.
    let script = br#"{"sequence": 1, "address": "10.0.0.1\nEND\nreboot"}"#;
    assert_eq!(connect().await.post("pod-1@job", script).await, 400);
    let long = format!("{{\"incarnation\": \"{}\"}}", "x".repeat(300));
    assert_eq!(connect().await.post("pod-1@job", long.as_bytes()).await, 400);
    assert_eq!(connect().await.post("pod-1@job", &vec![b' '; 1 << 20]).await, 413);
    let mut chunks = connect().await;
    let head =
        "POST /v1/report HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer pod-1@job\r\nTransfer-Encoding: chunked\r\n\r\n";
    chunks.send(head.as_bytes()).await.unwrap();
    for _ in 0..32 {
        // 1 KiB each; it may be closed before all are sent.
        if chunks.send(format!("400\r\n{}\r\n", "y".repeat(1024)).as_bytes()).await.is_err() {
            break;
        }
    }
    assert_eq!(chunks.status().await, 413, "a body without a length");
    let mut path = connect().await;
    path.get("pod-1@job", "/v2/watch").await.unwrap();
    assert_eq!(path.status().await, 404);
    let mut method = connect().await;
    method.get("pod-1@job", "/v1/report").await.unwrap();
    assert_eq!(method.status().await, 405);
    let mut headers = connect().await;
    let many = format!("GET /v1/watch HTTP/1.1\r\nX: {}\r\n\r\n", "z".repeat(100_000));
    let _ = headers.send(many.as_bytes()).await;
    assert!(matches!(headers.status().await, 431 | 400 | 0));

    // Another pod's token on this connection, and not the first one's record.
    assert_eq!(good.post("pod-7@other", &good_report(9)).await, 403);
    good.closed().await;
    let mut good = connect().await;
    assert_eq!(good.post("pod-0@job", &good_report(2)).await, 200);
    until("only what was good is kept", || async { replica.groups.get("job").is_some_and(|g| g.members.len() == 1) })
        .await;
    assert_eq!(replica.groups.get("other"), None);
}

#[tokio::test]
async fn a_pods_job_is_its_tokens() {
    let etcd = Etcd::start(1).await;
    let identity = identity();
    let replica = Replica::start(&etcd.settings(), &identity).await;
    let fence = replica.store.lead("leader").await.unwrap();
    replica.store.assign(&fence, "secret", &assignment(1, Order::Run)).await.unwrap();
    until("it is known", || async { replica.groups.get("secret").is_some() }).await;
    // Whatever it asks for, it is told of its own job.
    for path in ["/v1/watch", "/v1/watch?job=secret"] {
        let mut raw = Raw::connect(replica.address(), &identity).await.unwrap();
        raw.get("pod-0@job", path).await.unwrap();
        let mut seen = vec![0; 4096];
        let mut text = String::new();
        while !text.contains("ping") {
            let n = tokio::time::timeout(Duration::from_secs(30), raw.0.read(&mut seen)).await.unwrap().unwrap();
            assert_ne!(n, 0);
            text.push_str(std::str::from_utf8(&seen[..n]).unwrap());
        }
        assert!(text.starts_with("HTTP/1.1 200") && !text.contains("assignment"), "{text}");
    }
}

#[tokio::test]
async fn connections_are_limited_in_number_and_in_time() {
    let etcd = Etcd::start(1).await;
    let identity = identity();
    let replica = Replica::with_limits(&etcd.settings(), &identity, SHORT).await;
    let connect = || async { Raw::connect(replica.address(), &identity).await.unwrap() };

    // Garbage instead of TLS, and nothing at all.
    let mut garbage = TcpStream::connect(replica.address()).await.unwrap();
    garbage.write_all(&[0xff; 512]).await.unwrap();
    let mut silent = TcpStream::connect(replica.address()).await.unwrap();
    let mut rest = Vec::new();
    let _ = tokio::time::timeout(Duration::from_secs(30), garbage.read_to_end(&mut rest)).await.unwrap();
    let _ = tokio::time::timeout(Duration::from_secs(30), silent.read_to_end(&mut rest)).await.unwrap();
    // A handshake, and then nothing; and half a request.
    let mut mute = connect().await;
    mute.closed().await;
    let mut half = connect().await;
    half.send(b"POST /v1/report HTTP/1.1\r\nAuthorization: Bearer pod-0@").await.unwrap();
    half.closed().await;
    // A body that never comes.
    let mut body = connect().await;
    let head = "POST /v1/report HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer pod-0@job\r\nContent-Length: 10\r\n\r\n{";
    body.send(head.as_bytes()).await.unwrap();
    assert_eq!(body.status().await, 408);

    // One pod can't take what is there for all.
    let mut open = Vec::new();
    for _ in 0..SHORT.connections_per_pod {
        let mut raw = connect().await;
        raw.get("pod-1@job", "/v1/watch").await.unwrap();
        assert_eq!(raw.status().await, 200);
        open.push(raw);
    }
    let mut more = connect().await;
    more.get("pod-1@job", "/v1/watch").await.unwrap();
    assert_eq!(more.status().await, 429);
    let mut other = connect().await;
    assert_eq!(other.post("pod-2@job", b"{\"sequence\": 1, \"address\": \"10.0.0.1\"}").await, 200);
    drop(open.pop());
    until("a place is free again", || async {
        let mut raw = connect().await;
        raw.get("pod-1@job", "/v1/watch").await.unwrap();
        raw.status().await == 200
    })
    .await;

    // Nor can members without end.
    for pod in 3..6 {
        assert_eq!(
            connect().await.post(&format!("pod-{pod}@job"), b"{\"sequence\": 1, \"address\": \"10.0.0.1\"}").await,
            200,
            "{pod}"
        );
    }
    assert_eq!(connect().await.post("pod-6@job", b"{\"sequence\": 1, \"address\": \"10.0.0.1\"}").await, 503);

    // Those who don't say who they are take places among themselves only.
    let mut crowd = Vec::new();
    for _ in 0..2 * SHORT.strangers {
        crowd.push(TcpStream::connect(replica.address()).await.unwrap());
    }
    until("some were turned away", || async { replica.metric("gateway_refused_total{reason=\"strangers\"}") >= 1.0 })
        .await;
    assert_eq!(
        other.post("pod-2@job", b"{\"sequence\": 2, \"address\": \"10.0.0.1\"}").await,
        200,
        "who is known is served"
    );
}

#[tokio::test]
async fn a_reader_that_does_not_read_costs_no_memory_and_ends() {
    let etcd = Etcd::start(1).await;
    let identity = identity();
    let replica = Replica::with_limits(&etcd.settings(), &identity, SHORT).await;
    let mut deaf = Raw::connect(replica.address(), &identity).await.unwrap();
    deaf.get("pod-0@job", "/v1/watch").await.unwrap();
    assert_eq!(deaf.status().await, 200);
    assert!(replica.metric("gateway_streams") >= 1.0);
    let fence = replica.store.lead("leader").await.unwrap();
    // Each is 256 KiB, so that the kernel's buffers are full soon.
    let mut generation = 0;
    until("it is given up", || {
        generation += 1;
        let mut large = assignment(generation, Order::Run);
        large.env.insert("PADDING".into(), "x".repeat(256 * 1024));
        let (store, fence) = (&replica.store, &fence);
        let replica = &replica;
        async move {
            store.assign(fence, "job", &large).await.unwrap();
            replica.metric("gateway_streams") == 0.0
        }
    })
    .await;
    drop(deaf);
}

#[tokio::test]
async fn tokens_that_were_good_stay_so_while_nobody_can_tell() {
    let etcd = Etcd::start(1).await;
    let identity = identity();
    let replica = Replica::start(&etcd.settings(), &identity).await;
    let mut known = Raw::connect(replica.address(), &identity).await.unwrap();
    assert_eq!(known.post("pod-0@job", b"{\"sequence\": 1, \"address\": \"10.0.0.1\"}").await, 200);
    replica.tokens.away.store(true, Ordering::SeqCst);
    assert_eq!(known.post("pod-0@job", b"{\"sequence\": 2, \"address\": \"10.0.0.1\"}").await, 200);
    let mut again = Raw::connect(replica.address(), &identity).await.unwrap();
    assert_eq!(again.post("pod-0@job", b"{\"sequence\": 3, \"address\": \"10.0.0.1\"}").await, 200);
    let mut unknown = Raw::connect(replica.address(), &identity).await.unwrap();
    assert_eq!(unknown.post("pod-1@job", b"{\"sequence\": 1, \"address\": \"10.0.0.1\"}").await, 503);
}
