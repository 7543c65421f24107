//! Who this replica hears of, in memory: what is worth a write to etcd, and who has fallen silent. Pure; times are
//! given, monotonic ones in milliseconds from any fixed moment.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use eto_membership::{MemberRecord, PROGRESS_EVERY_MS, Report, ReportOrder, SUSPECT_AFTER_MS};

use crate::groups::Owner;
use crate::turns::Turns;
use crate::{Caller, Put};

/// With many members progress alone is written more seldom than [`PROGRESS_EVERY_MS`]: this many milliseconds for each. So
/// it is no more than 500 writes a second, however many tell it.
const PROGRESS_EACH_MS: u64 = 2;
/// An agent that was silent for this long is forgotten, and its record removed, in milliseconds.
const FORGET_AFTER_MS: u64 = 600_000;
/// Where nobody looked for this long, it was this replica that stood still, in milliseconds.
const STALLED_MS: u64 = 5_000;

#[derive(Debug)]
pub(crate) struct Sessions {
    pods: HashMap<String, Session>,
    jobs: HashMap<String, BTreeSet<String>>,
    due: Turns,
    most: usize,
    swept_ms: u64,
    /// Nobody is suspected before.
    grace_until_ms: u64,
}

#[derive(Debug)]
struct Session {
    job_uid: String,
    record: MemberRecord,
    order: ReportOrder,
    heard_ms: u64,
    /// Of the record in etcd, as far as is known; 0 = there is none.
    revision: i64,
    written: Option<(MemberRecord, u64)>,
    writing: bool,
    /// It is to be removed, unless it is heard again before.
    leaves: bool,
}

/// What became of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    Taken,
    /// An older one than the last, or of a run of the agent that has ended.
    Stale,
    /// There are more members than this replica keeps.
    Full,
}

/// A record to write.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Due {
    pub(crate) job_uid: String,
    pub(crate) pod_uid: String,
    pub(crate) record: MemberRecord,
    pub(crate) revision: i64,
    /// It is to be removed instead.
    pub(crate) leaves: bool,
}

/// A record as etcd has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen<'a> {
    pub(crate) owner: Owner,
    pub(crate) record: Option<&'a MemberRecord>,
}

impl Sessions {
    /// For at most so many members.
    pub(crate) fn new(most: usize, now_ms: u64) -> Self {
        Sessions {
            pods: HashMap::new(),
            jobs: HashMap::new(),
            due: Turns::default(),
            most,
            swept_ms: now_ms,
            grace_until_ms: now_ms.saturating_add(SUSPECT_AFTER_MS),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.pods.len()
    }

    pub(crate) fn due(&self) -> usize {
        self.due.len()
    }

    /// Takes in a report. `joined_ms` (wall clock) is for a member that this replica has not heard of before.
    pub(crate) fn report(&mut self, caller: &Caller, report: Report, now_ms: u64, joined_ms: u64) -> Heard {
        if self.pods.get(&caller.pod_uid).is_some_and(|s| s.job_uid != caller.job_uid) {
            self.drop_session(&caller.pod_uid);
        }
        if !self.pods.contains_key(&caller.pod_uid) {
            if self.pods.len() >= self.most {
                return Heard::Full;
            }
            self.jobs.entry(caller.job_uid.clone()).or_default().insert(caller.pod_uid.clone());
            let record = MemberRecord { pod: caller.pod.clone(), report, joined_ms, suspected: false };
            let session = Session {
                job_uid: caller.job_uid.clone(),
                record,
                order: ReportOrder::default(),
                heard_ms: now_ms,
                revision: 0,
                written: None,
                writing: false,
                leaves: false,
            };
            self.pods.insert(caller.pod_uid.clone(), session);
        } else if let Some(session) = self.pods.get_mut(&caller.pod_uid)
            && !session.hear(report, now_ms)
        {
            return Heard::Stale;
        }
        self.consider(&caller.pod_uid, now_ms);
        Heard::Taken
    }

    /// Finds out who is silent, and which progress is due. To be called every second or so.
    pub(crate) fn sweep(&mut self, now_ms: u64) {
        if now_ms.saturating_sub(self.swept_ms) > STALLED_MS {
            // Reports may be waiting in the sockets that were read by nobody.
            self.grace_until_ms = now_ms.saturating_add(SUSPECT_AFTER_MS);
        }
        self.swept_ms = now_ms;
        let may_suspect = now_ms >= self.grace_until_ms;
        let every_ms = self.progress_every_ms();
        for (pod_uid, session) in &mut self.pods {
            let silent = now_ms.saturating_sub(session.heard_ms);
            if may_suspect && silent >= SUSPECT_AFTER_MS {
                session.record.suspected = true;
            }
            session.leaves |= silent >= FORGET_AFTER_MS;
            if session.is_due(now_ms, every_ms) {
                self.due.insert(pod_uid);
            }
        }
    }

    /// The next record to write. It is not given out again before [`Sessions::done`].
    pub(crate) fn next_due(&mut self) -> Option<Due> {
        let pod_uid = self.due.pop_first()?;
        let session = self.pods.get_mut(&pod_uid)?;
        session.writing = true;
        Some(session.due(&pod_uid))
    }

    /// A write has ended; `None`: it failed.
    pub(crate) fn done(&mut self, due: &Due, put: Option<Put>, now_ms: u64) {
        let Some(session) = self.pods.get_mut(&due.pod_uid) else { return };
        session.writing = false;
        if due.leaves && session.leaves && put.is_some() {
            return self.drop_session(&due.pod_uid);
        }
        match put {
            Some(Put::Written(revision)) => {
                session.revision = revision;
                session.written = Some((due.record.clone(), now_ms));
            }
            // Unless it was heard here again meanwhile.
            Some(Put::Theirs) if session.record == due.record => return self.drop_session(&due.pod_uid),
            Some(Put::Theirs) | None => session.written = None,
        }
        self.consider(&due.pod_uid, now_ms);
    }

    /// The lease is another: all records are gone with the old one, or will be.
    pub(crate) fn lease_changed(&mut self) {
        for (pod_uid, session) in &mut self.pods {
            session.written = None;
            session.revision = 0;
            if !session.writing {
                self.due.insert(pod_uid);
            }
        }
    }

    /// Compares the members of a job with what etcd has of them, as of a revision: another replica's are left to it,
    /// and those that etcd has lost are written again. `all`: everything was just read from etcd, so what differs is
    /// not news that has yet to arrive.
    pub(crate) fn compare(
        &mut self,
        job_uid: &str,
        seen: &BTreeMap<&str, Seen<'_>>,
        lease: i64,
        as_of: i64,
        all: bool,
    ) {
        for pod_uid in self.jobs.get(job_uid).cloned().unwrap_or_default() {
            let Some(session) = self.pods.get_mut(&pod_uid).filter(|s| !s.writing && s.revision != 0) else { continue };
            let arrived = all || as_of >= session.revision;
            match seen.get(pod_uid.as_str()) {
                None if arrived => session.revision = 0,
                Some(seen) if seen.owner.lease != lease && seen.owner.revision > session.revision => {
                    if !session.is_newer_than(seen.record) {
                        self.drop_session(&pod_uid);
                        continue;
                    }
                    session.revision = seen.owner.revision;
                }
                Some(seen) if arrived && seen.record != session.written.as_ref().map(|(r, _)| r) => {
                    session.revision = seen.owner.revision;
                }
                _ => continue,
            }
            session.written = None;
            self.due.insert(&pod_uid);
        }
    }

    /// The pod is gone: its record is to be removed. False: it is not known here.
    pub(crate) fn leave(&mut self, pod_uid: &str) -> bool {
        let Some(session) = self.pods.get_mut(pod_uid) else { return false };
        session.leaves = true;
        if !session.writing {
            self.due.insert(pod_uid);
        }
        true
    }

    /// Jobs of which there are members here.
    pub(crate) fn job_uids(&self) -> Vec<String> {
        self.jobs.keys().cloned().collect()
    }

    fn progress_every_ms(&self) -> u64 {
        let members = u64::try_from(self.pods.len()).unwrap_or(u64::MAX);
        members.saturating_mul(PROGRESS_EACH_MS).max(PROGRESS_EVERY_MS)
    }

    fn consider(&mut self, pod_uid: &str, now_ms: u64) {
        let every_ms = self.progress_every_ms();
        if self.pods.get(pod_uid).is_some_and(|s| s.is_due(now_ms, every_ms)) {
            self.due.insert(pod_uid);
        }
    }

    fn drop_session(&mut self, pod_uid: &str) {
        self.due.remove(pod_uid);
        let Some(session) = self.pods.remove(pod_uid) else { return };
        if let Some(pods) = self.jobs.get_mut(&session.job_uid) {
            pods.remove(pod_uid);
            if pods.is_empty() {
                self.jobs.remove(&session.job_uid);
            }
        }
    }
}

impl Session {
    /// Takes in a report; false: it is late.
    fn hear(&mut self, report: Report, now_ms: u64) -> bool {
        if !self.order.admits(&self.record.report, &report) {
            return false;
        }
        self.record.report = report;
        self.record.suspected = false;
        self.leaves = false;
        self.heard_ms = now_ms;
        true
    }

    fn is_due(&self, now_ms: u64, progress_every_ms: u64) -> bool {
        if self.writing {
            return false;
        }
        let Some((written, at_ms)) = self.written.as_ref().filter(|_| !self.leaves) else { return true };
        written.differs_materially(&self.record)
            || (written.report.progress != self.record.report.progress
                && now_ms.saturating_sub(*at_ms) >= progress_every_ms)
    }

    fn is_newer_than(&self, theirs: Option<&MemberRecord>) -> bool {
        let ours = &self.record.report;
        theirs.is_none_or(|t| t.report.incarnation == ours.incarnation && t.report.sequence < ours.sequence)
    }

    fn due(&self, pod_uid: &str) -> Due {
        Due {
            job_uid: self.job_uid.clone(),
            pod_uid: pod_uid.to_owned(),
            record: self.record.clone(),
            revision: self.revision,
            leaves: self.leaves,
        }
    }
}

#[cfg(test)]
#[path = "sessions_tests.rs"]
mod tests;
