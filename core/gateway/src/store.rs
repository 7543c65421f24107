//! What the leader writes: who leads, and what the members of each job are to do.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use etcd_client::{Compare, CompareOp, DeleteOptions, GetOptions, Txn, TxnOp, TxnOpResponse};
use eto_membership::{Assignment, Refused};

use crate::etcd::{Etcd, lock};
use crate::keys::{Key, Keys, after, is_uid};
use crate::{AssignError, Groups, Replica, StoreError, groups};

/// Keys in one answer. 1,000 records are about half a MiB.
pub(crate) const PAGE: i64 = 1_000;

/// Groups in etcd. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Store {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) etcd: Etcd,
    pub(crate) keys: Keys,
    /// The assignments that were last written or seen here, so that a write needs one request.
    known: Mutex<BTreeMap<String, Found>>,
}

/// The right to write assignments, until another replica takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    claim: String,
}

/// A key as a transaction found it; revision 0 = there is none.
#[derive(Clone, Debug, Default)]
struct Found {
    revision: i64,
    value: Option<Arc<[u8]>>,
}

impl Store {
    /// A store by these settings. etcd need not be there: each call finds out for itself.
    pub fn connect(settings: &crate::StoreSettings) -> Result<Store, StoreError> {
        let etcd = Etcd::new(settings)?;
        let keys = Keys::new(&settings.prefix);
        Ok(Store { inner: Arc::new(Inner { etcd, keys, known: Mutex::default() }) })
    }

    /// Takes the fence: from now on the fences of all earlier calls, by whomever, are worth nothing. To be called on
    /// becoming the leader by the Lease, and while it is held after [`AssignError::NotLeading`] and after
    /// [`crate::Change::Synced`]`(true)`: an etcd that was away may have been restored, and know a former leader.
    ///
    /// `identity` is for people who look; that two have the same does no harm.
    pub async fn lead(&self, identity: &str) -> Result<Fence, StoreError> {
        let claim = format!("{identity} {:016x}{:016x}", rand::random::<u64>(), rand::random::<u64>());
        let key = self.inner.keys.leader();
        self.inner.etcd.put(&key, &claim).await?;
        lock(&self.inner.known).clear();
        Ok(Fence { claim })
    }

    /// Gives a job's members this assignment, unless the one in force is newer (see [`Assignment::may_follow`]).
    /// Writing what is in force already changes nothing and tells nobody.
    pub async fn assign(&self, fence: &Fence, job_uid: &str, next: &Assignment) -> Result<(), AssignError> {
        let key = self.inner.keys.assignment(checked(job_uid)?);
        let value: Arc<[u8]> = serde_json::to_vec(next).map_err(|e| StoreError::Settings(e.to_string()))?.into();
        let mut seen = lock(&self.inner.known).get(job_uid).cloned().unwrap_or_default();
        // What was known may be old, and a leader before us may still be writing: each turn has newer news.
        for _ in 0..8 {
            let verdict = judge(&seen, &value, next);
            let write = (verdict == Ok(true)).then_some(&*value);
            match self.assign_once(fence, &key, seen.revision, write).await? {
                Ok(revision) => {
                    if write.is_some() {
                        let written = Found { revision, value: Some(value) };
                        lock(&self.inner.known).insert(job_uid.to_owned(), written);
                    }
                    return verdict.map(drop).map_err(AssignError::Stale);
                }
                Err(found) => {
                    lock(&self.inner.known).insert(job_uid.to_owned(), found.clone());
                    seen = found;
                }
            }
        }
        let why = format!("{key} was changed by others at every try");
        Err(AssignError::Unreached(StoreError::Unreached { endpoint: "etcd".into(), why }))
    }

    /// If the fence holds and the key has this revision, writes what there is to write; the revision then. Else what
    /// the key has instead.
    async fn assign_once(
        &self,
        fence: &Fence,
        key: &str,
        revision: i64,
        write: Option<&[u8]>,
    ) -> Result<Result<i64, Found>, AssignError> {
        let leader = self.inner.keys.leader();
        let txn = Txn::new()
            .when([
                Compare::value(leader.as_str(), CompareOp::Equal, fence.claim.as_str()),
                Compare::mod_revision(key, CompareOp::Equal, revision),
            ])
            .and_then(write.map(|value| TxnOp::put(key, value, None)).into_iter().collect::<Vec<_>>())
            .or_else([TxnOp::get(leader.as_str(), None), TxnOp::get(key, None)]);
        let answer = self.inner.etcd.txn(&txn).await?;
        if answer.succeeded() {
            return Ok(Ok(answer.header().map_or(0, etcd_client::ResponseHeader::revision)));
        }
        let mut found = answer.op_responses().into_iter().map(first);
        let leader = found.next().and_then(|f| f.value);
        if leader.as_deref() != Some(fence.claim.as_bytes()) {
            return Err(AssignError::NotLeading);
        }
        Ok(Err(found.next().unwrap_or_default()))
    }

    /// Removes all that is kept of a job that is gone.
    pub async fn forget_job(&self, fence: &Fence, job_uid: &str) -> Result<(), AssignError> {
        let prefix = self.inner.keys.job(checked(job_uid)?);
        let all = DeleteOptions::new().with_range(after(prefix.as_bytes()));
        let txn = Txn::new()
            .when([Compare::value(self.inner.keys.leader(), CompareOp::Equal, fence.claim.as_str())])
            .and_then([TxnOp::delete(prefix.as_str(), Some(all))]);
        let answer = self.inner.etcd.txn(&txn).await?;
        if !answer.succeeded() {
            return Err(AssignError::NotLeading);
        }
        lock(&self.inner.known).remove(job_uid);
        Ok(())
    }

    /// Removes what is kept of jobs that `exists` denies; how many there were. It is asked for each job right before
    /// that is removed, and has to know all jobs that have an assignment by this leader.
    pub async fn collect_garbage(&self, fence: &Fence, exists: impl Fn(&str) -> bool) -> Result<usize, AssignError> {
        let mut removed = 0;
        for job_uid in self.job_uids().await? {
            if !exists(&job_uid) {
                self.forget_job(fence, &job_uid).await?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    /// UIDs of all jobs that anything is kept of.
    async fn job_uids(&self) -> Result<Vec<String>, StoreError> {
        let jobs = self.inner.keys.jobs();
        let end = after(jobs.as_bytes());
        let mut from = jobs.into_bytes();
        let mut uids = Vec::new();
        loop {
            let options = GetOptions::new().with_range(end.as_slice()).with_keys_only().with_limit(PAGE);
            let page = self.inner.etcd.get(&from, &options).await?;
            for found in page.kvs() {
                // Keys come in order, so those of a job are together.
                match self.inner.keys.parse(found.key()).map(|key: Key<'_>| key.job_uid().to_owned()) {
                    Some(uid) if uids.last() != Some(&uid) => uids.push(uid),
                    _ => {}
                }
            }
            match page.kvs().last() {
                Some(last) if page.more() => from = [last.key(), &[0]].concat(),
                _ => return Ok(uids),
            }
        }
    }

    /// Follows all groups from now on, with one watch. Callers share it: one per process is enough.
    pub fn follow(&self) -> Groups {
        Groups::follow(self)
    }

    /// Takes the lease that this replica's members are bound to.
    pub fn replica(&self) -> Replica {
        Replica::start(self)
    }
}

/// Whether an assignment is to be written over what there is; `false` = it is there already.
fn judge(seen: &Found, value: &[u8], next: &Assignment) -> Result<bool, Refused> {
    let Some(current) = seen.value.as_deref() else { return Ok(true) };
    if current == value {
        return Ok(false);
    }
    match groups::read::<Assignment>(current) {
        Some(current) => next.may_follow(&current).map(|()| true),
        None => Ok(true),
    }
}

pub(crate) fn checked(uid: &str) -> Result<&str, StoreError> {
    if is_uid(uid) { Ok(uid) } else { Err(StoreError::Settings(format!("`{uid}` is no UID"))) }
}

fn first(answer: TxnOpResponse) -> Found {
    let TxnOpResponse::Get(mut got) = answer else { return Found::default() };
    match got.take_kvs().into_iter().next() {
        Some(kv) => Found { revision: kv.mod_revision(), value: Some(kv.into_key_value().1.into()) },
        None => Found::default(),
    }
}
