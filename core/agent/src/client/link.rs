//! What an agent holds of its client: where reports go in and assignments come out.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use eto_membership::{Assignment, Report};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::{Client, ClientError, reports, watch as stream};

/// A report on its way.
#[derive(Clone, Debug, Default)]
pub(super) struct Outgoing {
    pub(super) report: Report,
    /// Counts those that are to go at once.
    pub(super) urgent: u64,
}

/// What the client has done and seen so far.
#[derive(Debug, Default)]
pub struct Counts {
    /// Reports taken by the gateway.
    pub reports: AtomicU64,
    /// Reports that could not be delivered; each is tried again with what is true then.
    pub report_failures: AtomicU64,
    /// Watches begun.
    pub watches: AtomicU64,
    /// Watches that could not be begun, or broke.
    pub watch_failures: AtomicU64,
    /// The last report was taken.
    pub(super) heard: AtomicBool,
    /// A watch is open.
    pub(super) watching: AtomicBool,
    trouble: Mutex<Option<String>>,
}

impl Counts {
    /// The last report was taken and the watch is open.
    pub fn is_connected(&self) -> bool {
        self.heard.load(Ordering::Relaxed) && self.watching.load(Ordering::Relaxed)
    }

    /// What went wrong last, for people; stays until something else does.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn failed(&self, of: &AtomicU64, error: &ClientError) {
        of.fetch_add(1, Ordering::Relaxed);
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
    }
}

/// A client at work. Its tasks end with it.
#[derive(Debug)]
pub struct Link {
    outbox: watch::Sender<Option<Outgoing>>,
    delivered: watch::Receiver<u64>,
    assignments: mpsc::Receiver<Assignment>,
    counts: Arc<Counts>,
    _tasks: JoinSet<()>,
}

impl Link {
    pub(super) fn begin(client: Client) -> Link {
        let (outbox, reports) = watch::channel(None);
        let (delivered_in, delivered) = watch::channel(0);
        let (assignments_in, assignments) = mpsc::channel(4);
        let counts = Arc::new(Counts::default());
        let client = Arc::new(client);
        let mut tasks = JoinSet::new();
        tasks.spawn(reports::send(client.clone(), reports, delivered_in, counts.clone()));
        tasks.spawn(stream::follow(client, assignments_in, counts.clone()));
        Link { outbox, delivered, assignments, counts, _tasks: tasks }
    }

    /// Sends this report now, and from then on as the heartbeat. One that could not be delivered yet is replaced: a
    /// report tells the whole state. Its sequence number is the client's to give.
    pub fn send(&self, report: Report) {
        self.outbox.send_modify(|out| {
            let urgent = out.as_ref().map_or(0, |o| o.urgent) + 1;
            *out = Some(Outgoing { report, urgent });
        });
    }

    /// Has the next heartbeat tell this.
    pub fn update(&self, report: Report) {
        self.outbox.send_if_modified(|out| {
            let urgent = out.as_ref().map_or(0, |o| o.urgent);
            *out = Some(Outgoing { report, urgent });
            false
        });
    }

    /// Waits until the gateway has taken what was last given to [`Link::send`].
    pub async fn delivered(&mut self) {
        let urgent = self.outbox.borrow().as_ref().map_or(0, |o| o.urgent);
        // It fails only when the task is gone, and then nothing more is delivered.
        let _ = self.delivered.wait_for(|done| *done >= urgent).await;
    }

    /// The next assignment told. Safe to cancel.
    pub async fn next(&mut self) -> Assignment {
        match self.assignments.recv().await {
            Some(assignment) => assignment,
            None => std::future::pending().await,
        }
    }

    /// What it has done and seen so far.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }
}
