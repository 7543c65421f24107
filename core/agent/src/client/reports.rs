//! The sender of reports.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use eto_membership::{HEARTBEAT_MS, Report};
use http_body_util::{BodyExt, Limited};
use hyper::Method;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use super::backoff::Backoff;
use super::connection::{Connection, PATIENCE};
use super::link::{Counts, Outgoing};
use super::{Client, ClientError};

/// Most of an answer that is read.
const MOST_OF_ANSWER: usize = 64 * 1024;

/// Sends the report at each urgent change and as a heartbeat, until the other ends are gone.
pub(super) async fn send(
    client: Arc<Client>,
    mut outbox: watch::Receiver<Option<Outgoing>>,
    delivered: watch::Sender<u64>,
    counts: Arc<Counts>,
) {
    let mut connection = None;
    let mut backoff = Backoff::default();
    let mut sequence = 0u64;
    let mut due = Instant::now() + heartbeat();
    let mut well = true;
    loop {
        tokio::select! {
            // After a failure news don't hasten the next try: they go with it.
            changed = outbox.changed(), if well => if changed.is_err() { return },
            () = sleep_until(due) => {}
        }
        let Some(Outgoing { mut report, urgent }) = outbox.borrow_and_update().clone() else {
            due = Instant::now() + heartbeat();
            continue;
        };
        sequence += 1;
        report.sequence = sequence;
        let outcome = deliver(&client, &mut connection, &report).await;
        well = outcome.is_ok();
        counts.heard.store(well, Ordering::Relaxed);
        match outcome {
            Ok(()) => {
                backoff.reset();
                counts.reports.fetch_add(1, Ordering::Relaxed);
                delivered.send_replace(urgent);
                due = Instant::now() + heartbeat();
            }
            Err(error) => {
                connection = None;
                counts.failed(&counts.report_failures, &error);
                due = Instant::now() + backoff.pause(rand::random());
            }
        }
    }
}

/// A little less than the interval that the gateway counts on, and different each time, so that the beats of many
/// agents spread.
fn heartbeat() -> Duration {
    Duration::from_millis(HEARTBEAT_MS).mul_f64(0.8 + 0.2 * rand::random::<f64>())
}

async fn deliver(client: &Client, held: &mut Option<Connection>, report: &Report) -> Result<(), ClientError> {
    let body = serde_json::to_vec(report).unwrap_or_default();
    if let Some(connection) = held.as_mut().filter(|c| c.is_open()) {
        match post(client, connection, body.clone()).await {
            // The gateway may have closed it just now.
            Err(ClientError::Http(_)) => {}
            outcome => return outcome,
        }
    }
    let connection = held.insert(Connection::open(client).await?);
    post(client, connection, body).await
}

async fn post(client: &Client, connection: &mut Connection, body: Vec<u8>) -> Result<(), ClientError> {
    let answer = connection.ask(client, Method::POST, "/v1/report", body).await?;
    // Read to its end, so that the connection can be used again.
    let rest = Limited::new(answer.into_body(), MOST_OF_ANSWER).collect();
    timeout(PATIENCE, rest).await.map_err(|_| ClientError::Silence(PATIENCE))?.ok();
    Ok(())
}
