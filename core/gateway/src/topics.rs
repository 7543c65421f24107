//! What the watch streams of each job tell: its assignment, written out once for all of them.

use std::collections::HashMap;
use std::sync::Mutex;

use bytes::Bytes;
use eto_membership::{Assignment, Notice};
use tokio::sync::watch;

use crate::etcd::lock;

/// The jobs that anybody watches.
#[derive(Debug, Default)]
pub(crate) struct Topics {
    jobs: Mutex<HashMap<String, Topic>>,
}

#[derive(Debug)]
struct Topic {
    tell: watch::Sender<Option<Bytes>>,
    told: Option<Assignment>,
}

impl Topics {
    /// Follows a job's assignment. What it is at present has to be published once more after this.
    pub(crate) fn follow(&self, job_uid: &str) -> watch::Receiver<Option<Bytes>> {
        let mut jobs = lock(&self.jobs);
        let topic = || Topic { tell: watch::channel(None).0, told: None };
        jobs.entry(job_uid.to_owned()).or_insert_with(topic).tell.subscribe()
    }

    /// Tells those who follow it. What may not follow what they were told is kept from them: an etcd that was restored
    /// has it.
    pub(crate) fn publish(&self, job_uid: &str, assignment: Option<&Assignment>) {
        let mut jobs = lock(&self.jobs);
        let (Some(topic), Some(next)) = (jobs.get_mut(job_uid), assignment) else { return };
        if let Some(told) = &topic.told {
            if told == next {
                return;
            }
            if let Err(refused) = next.may_follow(told) {
                tracing::warn!(job_uid, %refused, "an older assignment is in etcd; agents are not told");
                return;
            }
        }
        match line(&Notice::Assignment(Box::new(next.clone()))) {
            Ok(line) => {
                topic.told = Some(next.clone());
                topic.tell.send_replace(Some(line));
            }
            Err(error) => tracing::error!(job_uid, %error, "an assignment can't be written as JSON"),
        }
    }

    /// Lets go of jobs that nobody follows.
    pub(crate) fn sweep(&self) {
        lock(&self.jobs).retain(|_, topic| topic.tell.receiver_count() > 0);
    }
}

/// A notice as the stream has it.
pub(crate) fn line(notice: &Notice) -> Result<Bytes, serde_json::Error> {
    let mut line = serde_json::to_vec(notice)?;
    line.push(b'\n');
    Ok(line.into())
}
