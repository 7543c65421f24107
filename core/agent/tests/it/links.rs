//! The gateway goes away and comes back; tokens change; many agents live in one process.

use std::net::SocketAddr;

use eto_agent::client::{Client, Token};
use eto_membership::{MemberState, Order, Report};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::api::{ask, free_port, metric};
use crate::gateway::{Gateway, PATIENCE};
use crate::pod::{Pod, UID, assignment, eventually, runs};

/// Waits until an agent has tried in vain to reach its gateway, a few times more than it had.
async fn tries_in_vain(port: u16) {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let failed = async || {
        let (_, page) = ask(address, "GET", "/metrics", "").await;
        metric(&page, r#"eto_agent_reports_total{outcome="failed"}"#).unwrap()
    };
    let tries = async {
        while TcpStream::connect(address).await.is_err() {}
        let before = failed().await;
        while failed().await < before + 3.0 {}
    };
    timeout(PATIENCE, tries).await.expect("an agent that tries again");
}

#[tokio::test]
async fn training_goes_on_without_a_gateway() {
    let mut gateway = Gateway::start().await;
    let port = free_port();
    let script = r#"echo $$ > "$OUT/pid.$ETO_ROUND"; exec sleep 1000"#;
    let pod = Pod::with(&gateway, script, &[("ETO_METRICS_PORT", &port.to_string())]);
    gateway.assign(assignment(1, Order::Run, &[UID]));
    let pid: i32 = pod.file("pid.1").await.parse().unwrap();
    gateway.close().await;
    tries_in_vain(port).await;
    assert!(runs(pid), "it was stopped because the gateway was");
    gateway.assign(assignment(2, Order::Run, &[UID]));
    gateway.open().await;
    let joined = gateway.until("back", |r| r.state == MemberState::Running { generation: 2 }).await;
    assert_eq!(joined.generation, 2);
    pod.file("pid.2").await;
    assert!(!runs(pid));
}

#[tokio::test]
async fn an_agent_waits_for_a_gateway_that_is_not_there_yet() {
    let mut gateway = Gateway::start().await;
    gateway.close().await;
    let port = free_port();
    let script = r#"echo > "$OUT/started"; exec sleep 1000"#;
    let pod = Pod::with(&gateway, script, &[("ETO_METRICS_PORT", &port.to_string())]);
    gateway.assign(assignment(1, Order::Run, &[UID]));
    tries_in_vain(port).await;
    assert!(!pod.has("started"));
    gateway.open().await;
    pod.file("started").await;
}

#[tokio::test]
async fn a_token_that_was_replaced_is_read_again() {
    let gateway = Gateway::start().await;
    let pod = Pod::start(&gateway, "exec sleep 1000");
    gateway.until("joined", |_| true).await;
    gateway.set_token("second");
    let before = gateway.reports().len();
    std::fs::write(pod.path().join("token"), "second").unwrap();
    eventually("a report with the new token", || (gateway.reports().len() > before).then_some(())).await;
}

#[tokio::test]
async fn a_gateway_that_is_somebody_else_is_not_told_anything() {
    let (gateway, other) = (Gateway::start().await, Gateway::start().await);
    let client = Client::new(&gateway.url(), other.ca.as_bytes(), Token::Text("first".into())).unwrap();
    let link = client.connect();
    link.send(Report::default());
    let trouble = eventually("trouble", || link.counts().trouble()).await;
    assert!(trouble.contains("certificate"), "{trouble}");
    assert_eq!(gateway.reports(), []);
}

#[tokio::test]
async fn many_links_share_one_process() {
    let gateway = Gateway::start().await;
    let tls = Client::tls(gateway.ca.as_bytes()).unwrap();
    let mut links: Vec<_> = (0..50)
        .map(|i| {
            let client = Client::with_tls(&gateway.url(), tls.clone(), Token::Text("first".into())).unwrap();
            let link = client.connect();
            link.send(Report { incarnation: i.to_string(), ..Report::default() });
            link
        })
        .collect();
    for link in &mut links {
        timeout(PATIENCE, link.delivered()).await.unwrap();
    }
    gateway.assign(assignment(4, Order::Run, &["a"]));
    for link in &mut links {
        assert_eq!(timeout(PATIENCE, link.next()).await.unwrap().round.generation, 4);
        assert!(link.counts().is_connected());
    }
    let mut seen: Vec<String> = gateway.reports().into_iter().map(|r| r.incarnation).collect();
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 50);
}
