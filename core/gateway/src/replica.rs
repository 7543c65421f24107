//! The lease of a gateway replica, and the members that are bound to it.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Compare, CompareOp, PutOptions, Txn, TxnOp, TxnOpResponse};
use eto_membership::MemberRecord;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use crate::store::{Store, checked};
use crate::{StoreError, groups};

/// How long records outlive their replica, in seconds, before etcd removes them. Agents move to another replica, which
/// takes their records over, in a fraction of it.
pub(crate) const LEASE_TTL_S: i64 = 30;
/// How often the lease is renewed.
const RENEW: Duration = Duration::from_secs(5);

/// A gateway replica as etcd knows it: one lease, however many members. Dropped, the lease runs out.
#[derive(Debug)]
pub struct Replica {
    store: Store,
    lease: watch::Receiver<i64>,
    lost: Arc<Notify>,
    keeper: JoinHandle<()>,
}

/// What became of a member's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// It is there, with this revision.
    Written(i64),
    /// There is a newer one, which the replica wrote that the agent talks to now. Ours is to be forgotten.
    Theirs,
}

impl Replica {
    pub(crate) fn start(store: &Store) -> Self {
        let (tell, lease) = watch::channel(0);
        let lost = Arc::new(Notify::new());
        let keeper = tokio::spawn(keep(store.clone(), tell, Arc::clone(&lost)));
        Replica { store: store.clone(), lease, lost, keeper }
    }

    /// The lease, and news when it is another: what was bound to the old one is gone or will be. 0 = none yet.
    pub fn lease(&self) -> watch::Receiver<i64> {
        self.lease.clone()
    }

    /// Writes a member's record, bound to the lease. `seen` is the revision of the record that ours replaces, as far
    /// as is known here; 0 = there is none. `Err(LeaseLost)` while there is no lease.
    ///
    /// A record of the same run of the agent with a higher sequence stays. So does one that another replica wrote since
    /// `seen` where ours is no news of the agent but its silence (`suspected`).
    pub async fn put_member(
        &self,
        job_uid: &str,
        pod_uid: &str,
        record: &MemberRecord,
        seen: i64,
    ) -> Result<Put, StoreError> {
        let lease = *self.lease.borrow();
        if lease == 0 {
            return Err(StoreError::LeaseLost);
        }
        let key = self.store.inner.keys.member(checked(job_uid)?, checked(pod_uid)?);
        let value = serde_json::to_vec(record).map_err(|e| StoreError::Settings(e.to_string()))?;
        let mut seen = seen;
        for _ in 0..8 {
            let txn = Txn::new()
                .when([Compare::mod_revision(key.as_str(), CompareOp::Equal, seen)])
                .and_then([TxnOp::put(key.as_str(), value.as_slice(), Some(PutOptions::new().with_lease(lease)))])
                .or_else([TxnOp::get(key.as_str(), None)]);
            let answer = self.store.inner.etcd.txn(&txn).await;
            let answer = answer.inspect_err(|e| self.note(e))?;
            if answer.succeeded() {
                return Ok(Put::Written(answer.header().map_or(0, etcd_client::ResponseHeader::revision)));
            }
            let Some(TxnOpResponse::Get(got)) = answer.op_responses().into_iter().next() else { continue };
            let Some(current) = got.kvs().first() else {
                seen = 0;
                continue;
            };
            if current.lease() == lease && current.value() == value {
                return Ok(Put::Written(current.mod_revision()));
            }
            if current.lease() != lease && is_newer(current.value(), record) {
                return Ok(Put::Theirs);
            }
            seen = current.mod_revision();
        }
        let why = format!("{key} was changed by others at every try");
        Err(StoreError::Unreached { endpoint: "etcd".into(), why })
    }

    /// Removes a member's record, if it is still the one of this revision: the pod is gone, or silent for too long.
    pub async fn remove_member(&self, job_uid: &str, pod_uid: &str, seen: i64) -> Result<(), StoreError> {
        let key = self.store.inner.keys.member(checked(job_uid)?, checked(pod_uid)?);
        let txn = Txn::new()
            .when([Compare::mod_revision(key.as_str(), CompareOp::Equal, seen)])
            .and_then([TxnOp::delete(key.as_str(), None)]);
        self.store.inner.etcd.txn(&txn).await.map(drop)
    }

    fn note(&self, error: &StoreError) {
        if *error == StoreError::LeaseLost {
            self.lost.notify_one();
        }
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        // The lease is not given back: the records are to stand until other replicas have taken them over.
        self.keeper.abort();
    }
}

/// Whether the record that another replica wrote is newer than ours.
fn is_newer(theirs: &[u8], ours: &MemberRecord) -> bool {
    let Some(theirs) = groups::read::<MemberRecord>(theirs) else { return false };
    if theirs.report.incarnation == ours.report.incarnation && theirs.report.sequence != ours.report.sequence {
        return theirs.report.sequence > ours.report.sequence;
    }
    ours.suspected
}

/// Takes a lease and renews it; takes another where it is lost.
async fn keep(store: Store, tell: watch::Sender<i64>, lost: Arc<Notify>) {
    let etcd = &store.inner.etcd;
    let mut pause = Duration::from_millis(200);
    loop {
        let granted = etcd.grant(LEASE_TTL_S).await;
        let id = match granted {
            Ok(id) => id,
            Err(error) => {
                tracing::warn!(%error, "no lease for this gateway replica; it is tried again");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(Duration::from_secs(2));
                continue;
            }
        };
        pause = Duration::from_millis(200);
        tell.send_replace(id);
        tracing::info!(lease = format!("{id:x}"), "lease taken");
        loop {
            let told = tokio::time::timeout(RENEW, lost.notified()).await.is_ok();
            let renewed = etcd.renew(id).await;
            match renewed {
                Ok(()) => {}
                Err(StoreError::LeaseLost) => break,
                // A write may know better, and the next renewal finds out.
                Err(error) => tracing::warn!(%error, told, "the lease was not renewed; it is tried again"),
            }
        }
        tracing::warn!(lease = format!("{id:x}"), "the lease is gone; another is taken");
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use eto_membership::Report;

    use super::*;

    fn record(incarnation: &str, sequence: u64, suspected: bool) -> MemberRecord {
        let report = Report { incarnation: incarnation.into(), sequence, ..Report::default() };
        MemberRecord { pod: "p".into(), report, joined_ms: 1, suspected }
    }

    #[test]
    fn silence_does_not_replace_what_another_replica_heard() {
        let theirs = |i: &str, s: u64| serde_json::to_vec(&record(i, s, false)).unwrap();
        assert!(is_newer(&theirs("a", 5), &record("a", 4, false)));
        assert!(!is_newer(&theirs("a", 3), &record("a", 4, false)));
        assert!(!is_newer(&theirs("a", 4), &record("a", 4, false)), "another replica's is taken over");
        assert!(is_newer(&theirs("a", 4), &record("a", 4, true)));
        assert!(is_newer(&theirs("b", 1), &record("a", 4, true)), "a new run of the agent was heard elsewhere");
        assert!(!is_newer(&theirs("b", 1), &record("a", 4, false)), "who was heard last can't be told: ours was now");
        assert!(!is_newer(b"garbage", &record("a", 4, true)));
    }
}
