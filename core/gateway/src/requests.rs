//! What agents ask: `POST /v1/report` and `GET /v1/watch`.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use eto_membership::{HEARTBEAT_MS, MemberState, Notice, Report};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited, StreamBody};
use hyper::body::{Body, Frame, Incoming};
use hyper::header::{AUTHORIZATION, CONNECTION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use tokio::sync::watch;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, sleep_until};

use crate::connection::{NoPlace, Open, Peer};
use crate::etcd::lock;
use crate::server::{Shared, State, wall_ms};
use crate::sessions::Heard;
use crate::topics;
use crate::{AuthError, Authenticator, Caller};

/// The longest report, in bytes. They are below 1 KiB.
const MOST: usize = 16 * 1024;
/// The longest text in a report, in bytes.
const TEXT: usize = 256;
/// The highest generation or step in a report: the largest number that JSON carries everywhere, and far below where
/// the operator's arithmetic and the API server's numbers end.
const HIGHEST: u64 = 1 << 53;
/// How long a stream lives before its token is asked for again: up to twice as long, so that not all end at once.
const STREAM: Duration = Duration::from_secs(1800);

/// The body of an answer.
pub(crate) type Answer = UnsyncBoxBody<Bytes, Infallible>;

/// Answers one request.
pub(crate) async fn answer<A: Authenticator>(
    shared: &Shared<A>,
    peer: &Peer,
    request: Request<Incoming>,
) -> Response<Answer> {
    let method = request.method();
    match request.uri().path() {
        "/v1/report" if method == Method::POST => {}
        "/v1/watch" if method == Method::GET => {}
        "/v1/report" | "/v1/watch" => return refuse(StatusCode::METHOD_NOT_ALLOWED, "POST /v1/report, GET /v1/watch"),
        _ => return refuse(StatusCode::NOT_FOUND, "this is version 1: POST /v1/report, GET /v1/watch"),
    }
    let state = &shared.state;
    let caller = match caller(shared, peer, &request).await {
        Ok(caller) => caller,
        Err(refusal) => return refusal,
    };
    if method == Method::GET {
        return watch(state, &caller);
    }
    let limit = state.limits.patience;
    match tokio::time::timeout(limit, report(request.into_body())).await {
        Ok(Ok(report)) => take(state, &caller, report),
        Ok(Err(refusal)) => {
            state.metrics.report("invalid");
            refusal
        }
        Err(_) => {
            state.metrics.report("invalid");
            refuse(StatusCode::REQUEST_TIMEOUT, "the report did not arrive in time")
        }
    }
}

/// Whose request it is, if it may have this connection.
async fn caller<A: Authenticator>(
    shared: &Shared<A>,
    peer: &Peer,
    request: &Request<Incoming>,
) -> Result<Caller, Response<Answer>> {
    let metrics = &shared.state.metrics;
    let header = request.headers().get(AUTHORIZATION).and_then(|h| h.to_str().ok());
    let Some(token) = header.and_then(|h| h.strip_prefix("Bearer ")).map(str::trim).filter(|t| !t.is_empty()) else {
        metrics.refuse("token");
        return Err(refuse(StatusCode::UNAUTHORIZED, "a bearer token is needed"));
    };
    let caller = shared.tokens.caller(token).await.map_err(|error| {
        let (status, reason) = match error {
            AuthError::Invalid(_) => (StatusCode::UNAUTHORIZED, "token"),
            AuthError::Forbidden(_) => (StatusCode::FORBIDDEN, "pod"),
            AuthError::Unavailable(_) => (StatusCode::SERVICE_UNAVAILABLE, "review"),
        };
        metrics.refuse(reason);
        refuse(status, &error.to_string())
    })?;
    match peer.admit(&caller) {
        Ok(()) => Ok(caller),
        Err(NoPlace::TooMany) => {
            metrics.refuse("connections-of-pod");
            Err(refuse(StatusCode::TOO_MANY_REQUESTS, "this pod has too many connections"))
        }
        Err(NoPlace::Other) => {
            metrics.refuse("pod");
            Err(refuse(StatusCode::FORBIDDEN, "this connection is another pod's"))
        }
    }
}

/// Reads a report.
async fn report(body: Incoming) -> Result<Report, Response<Answer>> {
    let too_long = || refuse(StatusCode::PAYLOAD_TOO_LARGE, "a report has at most 16 KiB");
    if body.size_hint().lower() > MOST as u64 {
        return Err(too_long());
    }
    let bytes = match Limited::new(body, MOST).collect().await {
        Ok(collected) => collected.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => return Err(too_long()),
        Err(_) => return Err(refuse(StatusCode::BAD_REQUEST, "the report broke off")),
    };
    let report: Report = serde_json::from_slice(&bytes)
        .map_err(|error| refuse(StatusCode::BAD_REQUEST, &format!("this is no report: {error}")))?;
    let texts = [&report.agent, &report.incarnation, &report.address];
    if texts.iter().any(|t| t.len() > TEXT) {
        return Err(refuse(StatusCode::BAD_REQUEST, "a text in the report has more than 256 bytes"));
    }
    // It reaches the peers' hostfiles and scripts.
    if report.address.parse::<IpAddr>().is_err() {
        return Err(refuse(StatusCode::BAD_REQUEST, "the address in the report is no IP address"));
    }
    settled(report).ok_or_else(|| refuse(StatusCode::BAD_REQUEST, "the report names a generation that no round has"))
}

/// The report with steps that a status can hold: those are the script's, and its mistake must not silence the agent.
/// `None`: it speaks of a generation that was never given out; the next round would have to be above it.
fn settled(mut report: Report) -> Option<Report> {
    let state = match report.state {
        MemberState::Idle => 0,
        MemberState::Running { generation } | MemberState::Exited { generation, .. } => generation,
    };
    let checkpoint = report.checkpoint.as_mut().map_or(0, |c| {
        c.step = c.step.min(HIGHEST);
        c.generation
    });
    let progress = report.progress.as_mut().map_or(0, |p| {
        p.step = p.step.min(HIGHEST);
        p.generation
    });
    [report.generation, state, checkpoint, progress].iter().all(|g| *g < HIGHEST).then_some(report)
}

/// Takes a report in.
fn take(state: &Arc<State>, caller: &Caller, report: Report) -> Response<Answer> {
    let known = state.groups.get(&caller.job_uid);
    let joined = known.and_then(|g| g.members.get(&caller.pod_uid).map(|m| m.joined_ms));
    let mut sessions = lock(&state.sessions);
    let heard = sessions.report(caller, report, state.now_ms(), joined.unwrap_or_else(wall_ms));
    let due = sessions.due() > 0;
    drop(sessions);
    if due {
        state.due.notify_one();
    }
    match heard {
        Heard::Taken => {
            state.metrics.report("taken");
            say(StatusCode::OK, "")
        }
        Heard::Stale => {
            state.metrics.report("stale");
            say(StatusCode::CONFLICT, "there was a newer report\n")
        }
        Heard::Full => {
            state.metrics.report("full");
            refuse(StatusCode::SERVICE_UNAVAILABLE, "this replica has as many members as it takes")
        }
    }
}

/// A stream of notices, from now on.
fn watch(state: &Arc<State>, caller: &Caller) -> Response<Answer> {
    let lines = state.topics.follow(&caller.job_uid);
    let group = state.groups.get(&caller.job_uid);
    state.topics.publish(&caller.job_uid, group.as_ref().and_then(|g| g.assignment.as_ref()));
    let period = Duration::from_millis(HEARTBEAT_MS);
    let mut ping = interval_at(Instant::now() + period, period);
    ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let extra = STREAM.mul_f64(rand::random::<f64>());
    let stream = Stream {
        lines,
        stop: state.stop.clone(),
        ping,
        ends: Instant::now() + STREAM + extra,
        first: true,
        _open: Open::new(state),
    };
    let frames = futures::stream::unfold(stream, |mut stream| async move {
        let line = stream.next().await?;
        Some((Ok::<_, Infallible>(Frame::data(line)), stream))
    });
    let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    response
}

/// What a watch stream tells next. Nothing is kept for a reader that is slow: it is told what is so when it reads.
#[derive(Debug)]
struct Stream {
    lines: watch::Receiver<Option<Bytes>>,
    stop: watch::Receiver<bool>,
    ping: Interval,
    ends: Instant,
    first: bool,
    _open: Open,
}

impl Stream {
    async fn next(&mut self) -> Option<Bytes> {
        let line = if std::mem::take(&mut self.first) {
            self.lines.borrow_and_update().clone()
        } else {
            tokio::select! {
                biased;
                _ = self.stop.wait_for(|s| *s) => return None,
                changed = self.lines.changed() => {
                    changed.ok()?;
                    self.lines.borrow_and_update().clone()
                }
                () = sleep_until(self.ends) => return None,
                _ = self.ping.tick() => None,
            }
        };
        line.or_else(|| topics::line(&Notice::Ping).ok())
    }
}

/// An answer after which the connection ends: who asks wrongly may begin anew.
fn refuse(status: StatusCode, why: &str) -> Response<Answer> {
    let mut response = say(status, &format!("{why}\n"));
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

fn say(status: StatusCode, text: &str) -> Response<Answer> {
    let mut response = Response::new(Full::from(text.to_owned()).boxed_unsync());
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use eto_membership::{Checkpoint, Progress};

    use super::*;

    #[test]
    fn numbers_that_nothing_could_go_on_from_are_kept_out() {
        let step = Report {
            checkpoint: Some(Checkpoint { step: u64::MAX, ..Checkpoint::default() }),
            progress: Some(Progress { step: u64::MAX, ..Progress::default() }),
            ..Report::default()
        };
        let kept = settled(step).map(|r| (r.checkpoint.map(|c| c.step), r.progress.map(|p| p.step)));
        assert_eq!(kept, Some((Some(HIGHEST), Some(HIGHEST))));
        for report in [
            Report { generation: u64::MAX, ..Report::default() },
            Report { state: MemberState::Running { generation: u64::MAX }, ..Report::default() },
            Report { state: MemberState::Exited { generation: HIGHEST, code: 0 }, ..Report::default() },
            Report {
                checkpoint: Some(Checkpoint { generation: HIGHEST, ..Checkpoint::default() }),
                ..Report::default()
            },
        ] {
            assert_eq!(settled(report), None);
        }
    }
}
