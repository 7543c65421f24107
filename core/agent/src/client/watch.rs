//! The watch: a stream of notices, one JSON document per line.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use eto_membership::{Assignment, HEARTBEAT_MS, Notice};
use http_body_util::BodyExt;
use hyper::Method;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

use super::backoff::Backoff;
use super::connection::Connection;
use super::link::Counts;
use super::{Client, ClientError};

/// A stream that was silent for so long is dead.
const SILENCE: Duration = Duration::from_millis(3 * HEARTBEAT_MS);
/// A stream that lived for so long was a good one: the next pause is a short one.
const GOOD: Duration = Duration::from_millis(2 * HEARTBEAT_MS);
/// More than an assignment of 50,000 members takes.
const LONGEST_LINE: usize = 16 * 1024 * 1024;

/// Watches, and begins anew when the stream ends, until nobody wants assignments.
pub(super) async fn follow(client: Arc<Client>, assignments: mpsc::Sender<Assignment>, counts: Arc<Counts>) {
    let mut backoff = Backoff::default();
    loop {
        let began = Instant::now();
        let Err(error) = watch(&client, &assignments, &counts).await else { return };
        counts.watching.store(false, Ordering::Relaxed);
        counts.failed(&counts.watch_failures, &error);
        if began.elapsed() > GOOD {
            backoff.reset();
        }
        sleep(backoff.pause(rand::random())).await;
    }
}

/// Ends with an error, or because nobody listens.
async fn watch(client: &Client, assignments: &mpsc::Sender<Assignment>, counts: &Counts) -> Result<(), ClientError> {
    let mut connection = Connection::open(client).await?;
    let mut body = connection.ask(client, Method::GET, "/v1/watch", Vec::new()).await?.into_body();
    counts.watches.fetch_add(1, Ordering::Relaxed);
    counts.watching.store(true, Ordering::Relaxed);
    let mut lines = Lines::default();
    loop {
        let frame = timeout(SILENCE, body.frame()).await.map_err(|_| ClientError::Silence(SILENCE))?;
        let Ok(data) = frame.ok_or(ClientError::Ended)??.into_data() else { continue };
        for line in lines.take(&data)? {
            // A line that can't be read is of a later version.
            if let Ok(Notice::Assignment(assignment)) = serde_json::from_slice(&line)
                && assignments.send(*assignment).await.is_err()
            {
                return Ok(());
            }
        }
    }
}

/// Cuts what comes in pieces into lines.
#[derive(Debug, Default)]
struct Lines {
    rest: Vec<u8>,
}

impl Lines {
    /// The lines that `data` completes, without their ends.
    fn take(&mut self, data: &[u8]) -> Result<Vec<Vec<u8>>, ClientError> {
        let mut complete = Vec::new();
        for piece in data.split_inclusive(|byte| *byte == b'\n') {
            let end = piece.strip_suffix(b"\n");
            self.rest.extend_from_slice(end.unwrap_or(piece));
            if self.rest.len() > LONGEST_LINE {
                return Err(ClientError::TooLong(LONGEST_LINE));
            }
            if end.is_some() {
                complete.push(std::mem::take(&mut self.rest));
            }
        }
        Ok(complete)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn lines_come_in_any_pieces() {
        let mut lines = Lines::default();
        assert!(lines.take(b"{\"a\"").unwrap().is_empty());
        assert_eq!(lines.take(b":1}\n{}\n\nx").unwrap(), [b"{\"a\":1}".to_vec(), b"{}".to_vec(), Vec::new()]);
        assert_eq!(lines.take(b"\n").unwrap(), [b"x".to_vec()]);
        lines.take(&vec![b'a'; LONGEST_LINE]).unwrap();
        assert!(lines.take(b"bb").is_err());
    }
}
