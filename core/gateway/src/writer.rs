//! Writes members' records to etcd, and compares what is here with what is there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, sleep_until};

use crate::etcd::lock;
use crate::groups::{Change, Changes};
use crate::metrics::count;
use crate::replica::{Put, Replica};
use crate::server::State;
use crate::sessions::{Due, Seen};

/// Writes at once. etcd groups what arrives together into one write to its disk.
const AT_ONCE: usize = 32;

#[derive(Debug)]
pub(crate) struct Writer {
    replica: Arc<Replica>,
    lease: watch::Receiver<i64>,
    state: Arc<State>,
    changes: Changes,
    writes: JoinSet<(Due, Option<Put>)>,
    /// Where etcd is away, nothing is tried before.
    pause: Option<Instant>,
    pauses: u32,
}

impl Writer {
    pub(crate) fn new(replica: Replica, state: Arc<State>) -> Self {
        let (lease, changes) = (replica.lease(), state.groups.subscribe());
        Writer { replica: Arc::new(replica), lease, state, changes, writes: JoinSet::new(), pause: None, pauses: 0 }
    }

    /// Runs until the server stops, and then until all is written, for at most two seconds.
    pub(crate) async fn run(mut self) {
        let mut stop = self.state.stop.clone();
        let mut sweep = tokio::time::interval(Duration::from_secs(1));
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.fill();
            let state = Arc::clone(&self.state);
            tokio::select! {
                _ = stop.wait_for(|s| *s) => break,
                Some(Ok((due, put))) = self.writes.join_next() => self.done(&due, put),
                change = self.changes.next() => self.changed(change),
                Ok(()) = self.lease.changed() => self.lease_changed(),
                _ = sweep.tick() => self.sweep(),
                () = state.due.notified() => {}
                () = sleep_until(self.pause.unwrap_or_else(Instant::now)), if self.pause.is_some() => self.pause = None,
            }
        }
        let deadline = Instant::now() + Duration::from_secs(2);
        loop {
            self.fill();
            match tokio::time::timeout_at(deadline, self.writes.join_next()).await {
                Ok(Some(Ok((due, put)))) => self.done(&due, put),
                Ok(Some(Err(_))) => {}
                Ok(None) | Err(_) => return,
            }
        }
    }

    /// Starts what is due and has room.
    fn fill(&mut self) {
        while self.writes.len() < AT_ONCE && self.pause.is_none() && *self.lease.borrow() != 0 {
            let Some(due) = lock(&self.state.sessions).next_due() else { return };
            let replica = Arc::clone(&self.replica);
            self.writes.spawn(async move {
                let put = if due.leaves {
                    let removed = replica.remove_member(&due.job_uid, &due.pod_uid, due.revision).await;
                    removed.map(|()| Put::Theirs)
                } else {
                    replica.put_member(&due.job_uid, &due.pod_uid, &due.record, due.revision).await
                };
                let put = put.inspect_err(|error| {
                    tracing::warn!(job = due.job_uid, pod = due.record.pod, %error, "a record was not written");
                });
                (due, put.ok())
            });
        }
    }

    fn done(&mut self, due: &Due, put: Option<Put>) {
        let outcome = match put {
            Some(Put::Written(_)) => "written",
            Some(Put::Theirs) if due.leaves => "removed",
            Some(Put::Theirs) => "left",
            None => "failed",
        };
        self.state.metrics.record(outcome);
        if put.is_some() {
            self.pauses = 0;
        } else {
            // 200 ms, 400 ms, ... 3.2 s
            let wait = Duration::from_millis(200 << self.pauses.min(4));
            self.pauses = self.pauses.saturating_add(1);
            self.pause = Some(Instant::now() + wait);
        }
        lock(&self.state.sessions).done(due, put, self.state.now_ms());
    }

    fn sweep(&mut self) {
        let now = self.state.now_ms();
        let mut sessions = lock(&self.state.sessions);
        sessions.sweep(now);
        self.state.metrics.members.set(count(sessions.len()));
        self.state.metrics.waiting.set(count(sessions.due()));
    }

    fn lease_changed(&mut self) {
        self.lease.borrow_and_update();
        lock(&self.state.sessions).lease_changed();
    }

    fn changed(&mut self, change: Change) {
        match change {
            Change::Group { job_uid, group, .. } => {
                self.state.topics.publish(&job_uid, group.as_ref().and_then(|g| g.assignment.as_ref()));
                self.compare(&job_uid, false);
            }
            Change::Synced(synced) => {
                self.state.metrics.synced.set(i64::from(synced));
                if synced {
                    let jobs = lock(&self.state.sessions).job_uids();
                    for job_uid in jobs {
                        self.compare(&job_uid, true);
                    }
                }
            }
        }
    }

    fn compare(&self, job_uid: &str, all: bool) {
        let lease = *self.lease.borrow();
        let (group, owners, as_of) = self.state.groups.shared.look(job_uid);
        let seen: BTreeMap<&str, Seen<'_>> = owners
            .iter()
            .map(|(pod, owner)| {
                let record = group.as_ref().and_then(|g| g.members.get(pod));
                (pod.as_str(), Seen { owner: *owner, record })
            })
            .collect();
        lock(&self.state.sessions).compare(job_uid, &seen, lease, as_of, all);
    }
}
