//! What is served: the API for scripts, the kubelet's probes, and metrics.

use eto_membership::agent::{Agent, Event};
use eto_membership::{Order, Progress};
use hyper::StatusCode;
use nix::sys::signal::Signal;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::serve::Answer;

/// What is asked for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Wish {
    /// The agent's loop turns.
    Alive,
    /// The processes of the round in force run.
    Ready,
    Metrics,
    Round,
    /// The script tells something.
    Tell(Event),
    /// A process wants this signal when the job hangs, before it is asked to stop.
    Dump {
        generation: Option<u64>,
        pid: i32,
        signal: Signal,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Checkpointed {
    step: u64,
    generation: Option<u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Told {
    step: u64,
    samples: Option<u64>,
    epoch: Option<u64>,
    loss: Option<f64>,
    work_seconds: Option<f64>,
    next_seconds: Option<f64>,
    generation: Option<u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OnHang {
    pid: i32,
    signal: String,
    generation: Option<u64>,
}

/// Signals that a script can have sent: those by which it can be told to print something and go on, or to dump core.
const DUMPS: [Signal; 4] = [Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGQUIT, Signal::SIGABRT];

/// Reads a request; one that is not `local` gets probes and metrics only. `Err` is the answer to one that can't be read.
pub(crate) fn read(local: bool, method: &str, path: &str, body: &[u8]) -> Result<Wish, Answer> {
    match (method, path) {
        (_, path) if !local && path.starts_with("/v1/") => {
            Err(Answer::text(StatusCode::FORBIDDEN, "the API is for the pod's own processes, on localhost\n"))
        }
        ("GET" | "HEAD", "/healthz") => Ok(Wish::Alive),
        ("GET" | "HEAD", "/readyz") => Ok(Wish::Ready),
        ("GET", "/metrics") => Ok(Wish::Metrics),
        ("GET", "/v1/round") => Ok(Wish::Round),
        ("POST", "/v1/checkpointed") => {
            let told: Checkpointed = parse(body)?;
            Ok(Wish::Tell(Event::CheckpointTold { generation: told.generation, step: told.step }))
        }
        ("POST", "/v1/progress") => {
            let Told { step, samples, epoch, loss, work_seconds, next_seconds, generation } = parse(body)?;
            let generation = generation.unwrap_or(0);
            let (work_ms, next_ms) = (milliseconds(work_seconds), milliseconds(next_seconds));
            let told = Progress { generation, step, samples, epoch, loss, work_ms, next_ms, at_ms: 0 };
            Ok(Wish::Tell(Event::ProgressTold(told)))
        }
        ("POST", "/v1/on-hang") => {
            let OnHang { pid, signal, generation } = parse(body)?;
            let signal = DUMPS.into_iter().find(|s| s.as_str() == signal).filter(|_| pid > 1);
            let signal = signal.ok_or_else(|| {
                let names = DUMPS.map(Signal::as_str).join(", ");
                let error = format!("the body: pid is a process of yours, signal one of {names}");
                Answer::json(StatusCode::BAD_REQUEST, &json!({ "error": error }))
            })?;
            Ok(Wish::Dump { generation, pid, signal })
        }
        (
            _,
            "/healthz" | "/readyz" | "/metrics" | "/v1/round" | "/v1/checkpointed" | "/v1/progress" | "/v1/on-hang",
        ) => Err(Answer::text(StatusCode::METHOD_NOT_ALLOWED, format!("{path} does not take {method}\n"))),
        _ => Err(Answer::text(StatusCode::NOT_FOUND, format!("there is no {path}: see docs/agent.md\n"))),
    }
}

/// What is no time is none, and casts saturate.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn milliseconds(seconds: Option<f64>) -> Option<u64> {
    seconds.filter(|s| *s >= 0.0).map(|s| (s * 1000.0) as u64)
}

fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Answer> {
    serde_json::from_slice(body)
        .map_err(|e| Answer::json(StatusCode::BAD_REQUEST, &json!({ "error": format!("the body: {e}") })))
}

/// The document of `GET /v1/round`.
pub(crate) fn round(agent: &Agent) -> Value {
    let mut document = json!({
        "generation": agent.round_of_processes(),
        "running": agent.running_round(),
        "stopping": agent.is_stopping(),
        "deadlineMs": agent.next_deadline(),
        "checkpoint": agent.report().checkpoint,
        "rank": agent.rank(),
    });
    if let (Some(assignment), Some(map)) = (agent.assignment(), document.as_object_mut()) {
        let round = &assignment.round;
        let order = match assignment.order {
            Order::Stop => "stop",
            Order::Run => "run",
            Order::End => "end",
        };
        map.insert("job".into(), json!(round.job));
        map.insert("order".into(), json!(order));
        map.insert("worldSize".into(), json!(round.members.len()));
        map.insert("processes".into(), json!(round.processes()));
        map.insert("coordinator".into(), json!(round.members.get(round.coordinator).map(|m| &m.address)));
        map.insert("port".into(), json!(round.port));
        map.insert("members".into(), json!(round.members));
        map.insert("why".into(), json!(assignment.why));
    }
    document
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_or_answered_with_what_is_wrong() {
        let progress = read(true, "POST", "/v1/progress", br#"{"step": 7, "loss": 0.5, "later": 1}"#);
        let want = Progress { step: 7, loss: Some(0.5), ..Progress::default() };
        assert_eq!(progress, Ok(Wish::Tell(Event::ProgressTold(want))));
        for (told, next_ms) in [("1.5", Some(1_500)), ("1e300", Some(u64::MAX)), ("-1", None)] {
            let body = format!(r#"{{"step": 7, "nextSeconds": {told}}}"#);
            let want = Progress { step: 7, next_ms, ..Progress::default() };
            let read = read(true, "POST", "/v1/progress", body.as_bytes());
            assert_eq!(read, Ok(Wish::Tell(Event::ProgressTold(want))), "{told}");
        }
        let checkpoint = read(true, "POST", "/v1/checkpointed", br#"{"step": 7, "generation": 3}"#);
        assert_eq!(checkpoint, Ok(Wish::Tell(Event::CheckpointTold { generation: Some(3), step: 7 })));
        let status = |method, path, body| read(true, method, path, body).map_err(|a| a.status);
        for body in [&b"{}"[..], b"", b"{\"step\": -1}", b"{\"step\": 1.5}", b"\xff"] {
            assert_eq!(status("POST", "/v1/checkpointed", body), Err(StatusCode::BAD_REQUEST));
        }
        assert_eq!(status("GET", "/v1/progress", b""), Err(StatusCode::METHOD_NOT_ALLOWED));
        assert_eq!(status("GET", "/v2/round", b""), Err(StatusCode::NOT_FOUND));
        let foreign = read(false, "POST", "/v1/checkpointed", br#"{"step": 7}"#).map_err(|a| a.status);
        assert_eq!(foreign, Err(StatusCode::FORBIDDEN));
        assert_eq!(read(false, "GET", "/metrics", b""), Ok(Wish::Metrics));
    }

    #[test]
    fn a_fresh_agent_has_no_round() {
        let document = round(&Agent::new(eto_membership::agent::Identity::default()));
        assert_eq!((&document["generation"], &document["running"]), (&json!(0), &Value::Null));
    }
}
