//! The API for scripts and the page of metrics, asked from where the script and the kubelet are.

use std::net::SocketAddr;
use std::time::Duration;

use eto_membership::Order;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::gateway::Gateway;
use crate::pod::{Pod, UID, assignment};

/// Status and body of an answer.
pub(crate) async fn ask(address: SocketAddr, method: &str, path: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let length = body.len();
    let head =
        format!("{method} {path} HTTP/1.1\r\nhost: agent\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
    stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// A port that was free a moment ago.
pub(crate) fn free_port() -> u16 {
    std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

pub(crate) fn metric(page: &str, name: &str) -> Option<f64> {
    page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

#[tokio::test]
async fn a_script_tells_and_is_told() {
    let gateway = Gateway::start().await;
    let port = free_port();
    let script = r#"echo "$ETO_AGENT" > "$OUT/agent"; exec sleep 1000"#;
    let pod = Pod::with(&gateway, script, &[("ETO_METRICS_PORT", &port.to_string())]);
    gateway.until("joined", |_| true).await;
    let probes = SocketAddr::from(([127, 0, 0, 1], port));
    assert_eq!(ask(probes, "GET", "/healthz", "").await.0, 200);
    assert_eq!(ask(probes, "GET", "/readyz", "").await.0, 503);

    gateway.assign(assignment(2, Order::Run, &["other", UID]));
    let address: SocketAddr = pod.file("agent").await.strip_prefix("http://").unwrap().parse().unwrap();
    let round: Value = serde_json::from_str(&ask(address, "GET", "/v1/round", "").await.1).unwrap();
    assert_eq!((&round["generation"], &round["rank"], &round["worldSize"]), (&json!(2), &json!(1), &json!(2)));
    assert_eq!((&round["running"], &round["stopping"]), (&json!(2), &json!(false)));
    assert_eq!(ask(probes, "GET", "/readyz", "").await.0, 200);

    let told = r#"{"step": 10, "samples": 80, "epoch": 1, "loss": 0.25}"#;
    assert_eq!(ask(address, "POST", "/v1/progress", told).await.0, 200);
    let report = gateway.until("progress", |r| r.progress.is_some()).await;
    let (_, page) = ask(probes, "GET", "/metrics", "").await;
    assert_eq!(metric(&page, "eto_agent_loss"), Some(0.25));
    assert_eq!(metric(&page, "eto_agent_steps_per_second"), None, "one point is no speed");
    let progress = report.progress.unwrap();
    assert_eq!((progress.generation, progress.step, progress.samples), (2, 10, Some(80)));

    let told = r#"{"step": 10, "generation": 2}"#;
    assert_eq!(ask(address, "POST", "/v1/checkpointed", told).await.0, 200);
    gateway.until("checkpoint", |r| r.checkpoint.is_some_and(|c| c.step == 10)).await;
    assert_eq!(ask(probes, "POST", "/v1/checkpointed", r#"{"step": 99}"#).await.0, 403, "that is no place for scripts");
    let (status, why) = ask(address, "POST", "/v1/checkpointed", r#"{"step": 11, "generation": 1}"#).await;
    assert!(status == 409 && why.contains("does not run here"), "{status} {why}");
    assert_eq!(ask(address, "POST", "/v1/progress", "{}").await.0, 400);

    for (body, status) in [
        (r#"{"pid": 4000000, "signal": "SIGUSR1"}"#, 409),
        (r#"{"pid": 1, "signal": "SIGUSR1"}"#, 400),
        (r#"{"pid": 4000000, "signal": "SIGKILL"}"#, 400),
    ] {
        assert_eq!(ask(address, "POST", "/v1/on-hang", body).await.0, status, "{body}");
    }

    let told = r#"{"step": 11, "samples": 88}"#;
    assert_eq!(ask(address, "POST", "/v1/progress", told).await.0, 200);
    let (_, page) = ask(probes, "GET", "/metrics", "").await;
    for (name, value) in [
        ("eto_agent_round_generation", 2.0),
        ("eto_agent_ready", 1.0),
        ("eto_agent_step", 11.0),
        ("eto_agent_samples_total", 88.0),
        ("eto_agent_checkpoint_step", 10.0),
        ("eto_agent_refused_total", 1.0),
        ("eto_agent_restarts_total", 0.0),
        ("eto_agent_gateway_connected", 1.0),
    ] {
        assert_eq!(metric(&page, name), Some(value), "{name} in\n{page}");
    }
    let document = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/agent.md")).unwrap();
    for name in page.lines().filter_map(|l| l.strip_prefix("# HELP ")?.split(' ').next()) {
        assert!(document.contains(&format!("`{name}`")), "docs/agent.md does not speak of {name}");
    }
    for cause in page.lines().filter_map(|l| l.strip_prefix("eto_agent_lost_seconds_total{cause=\"")?.split('"').next())
    {
        assert!(document.contains(&format!("`{cause}`")), "docs/agent.md does not speak of the cause {cause}");
    }
    assert!(metric(&page, r#"eto_agent_lost_seconds_total{cause="join"}"#).unwrap() > 0.0);
    assert!(metric(&page, "eto_agent_steps_per_second").unwrap() > 0.0);
    assert_eq!(metric(&page, "eto_agent_loss"), None, "the last telling had none");
}

/// As many as the agent takes at once and some more, from somebody who says nothing.
#[tokio::test]
async fn connections_that_somebody_holds_keep_no_probe_out() {
    let gateway = Gateway::start().await;
    let port = free_port();
    let _pod = Pod::with(&gateway, "exec sleep 1000", &[("ETO_METRICS_PORT", &port.to_string())]);
    gateway.until("joined", |_| true).await;
    let probes = SocketAddr::from(([127, 0, 0, 1], port));
    let mut held = Vec::new();
    for _ in 0..300 {
        held.push(TcpStream::connect(probes).await.unwrap());
    }
    // Sooner than the agent would give up any of those that are held.
    let probe = tokio::time::timeout(Duration::from_secs(5), ask(probes, "GET", "/healthz", ""));
    assert_eq!(probe.await.expect("no answer").0, 200);
    // The oldest had to go for it, and no more than that.
    assert_eq!(held[0].read(&mut [0]).await.unwrap_or(0), 0);
    let last = held.last_mut().unwrap();
    last.write_all(b"GET /healthz HTTP/1.1\r\nhost: agent\r\n\r\n").await.unwrap();
    assert!(last.read(&mut [0]).await.unwrap() > 0, "one that was held is served when it asks");
}

/// What a probe in the pod says.
async fn is_ready(pod: &Pod) -> Option<i32> {
    let mut probe = tokio::process::Command::new(env!("CARGO_BIN_EXE_eto-agent"));
    probe.arg("ready").env("ETO_FOLDER", pod.path()).status().await.unwrap().code()
}

#[tokio::test]
async fn pods_in_one_network_do_without_each_others_port_and_each_knows_whether_it_is_ready() {
    let gateway = Gateway::start().await;
    // Another pod of the node has it.
    let taken = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let pod = Pod::with(&gateway, "echo up > \"$OUT/up\"; exec sleep 1000", &[("ETO_METRICS_PORT", &port)]);
    gateway.until("joined", |_| true).await;
    assert_eq!(is_ready(&pod).await, Some(1));
    gateway.assign(assignment(2, Order::Run, &["other", UID]));
    pod.file("up").await;
    assert_eq!(is_ready(&pod).await, Some(0));
    std::fs::write(pod.path().join("api"), format!("http://127.0.0.1:{}", free_port())).unwrap();
    assert_eq!(is_ready(&pod).await, Some(125), "where nobody answers nobody is ready");
}
