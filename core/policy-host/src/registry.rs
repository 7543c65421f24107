//! What is served, published whole: a reader sees one state of all policies, never half of a change.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use eto_engine::policy::{CallFailure, FailureKind, PlacementPolicy, ScalingPolicy};

use crate::error::LoadError;
use crate::policy::{Policy, PolicyKind};

/// A module that is there and can't be served. An older version of it may go on serving.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadFailure {
    /// Name that it would be served under.
    pub name: String,
    /// `sha256:` and 64 hex digits of the bytes that were refused; empty if they could not be read.
    pub digest: String,
    /// Why.
    pub error: LoadError,
    /// When it was first refused with these bytes, in milliseconds since the Unix epoch.
    pub since_ms: u64,
}

/// All policies at one moment. Immutable.
#[derive(Debug, Default)]
pub struct Snapshot {
    revision: u64,
    policies: BTreeMap<String, Arc<Policy>>,
    failures: BTreeMap<String, LoadFailure>,
}

impl Snapshot {
    /// Grows by one with each publication; 0 = nothing was published yet.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// What is served, by name.
    pub fn policies(&self) -> &BTreeMap<String, Arc<Policy>> {
        &self.policies
    }

    /// What was refused, by name. A name can be in both: then the last good version serves.
    pub fn failures(&self) -> &BTreeMap<String, LoadFailure> {
        &self.failures
    }

    /// The policy of that name, of either kind.
    pub fn get(&self, name: &str) -> Option<&Arc<Policy>> {
        self.policies.get(name)
    }

    /// The scaling policy of that name.
    ///
    /// # Errors
    /// [`FailureKind::Missing`], with the reason: it failed to load, is of the other kind, or is not there; then the
    /// nearest name that is.
    pub fn scaling(&self, name: &str) -> Result<Arc<dyn ScalingPolicy + Send + Sync>, CallFailure> {
        let policy = self.find(name, PolicyKind::Scaling)?;
        Ok(policy)
    }

    /// The placement policy of that name. Errors as [`scaling`](Self::scaling).
    pub fn placement(&self, name: &str) -> Result<Arc<dyn PlacementPolicy + Send + Sync>, CallFailure> {
        let policy = self.find(name, PolicyKind::Placement)?;
        Ok(policy)
    }

    fn find(&self, name: &str, kind: PolicyKind) -> Result<Arc<Policy>, CallFailure> {
        match self.policies.get(name) {
            Some(policy) if policy.kind() == kind => Ok(Arc::clone(policy)),
            Some(policy) => {
                let is = policy.kind();
                Err(missing(format!("module `{name}` is a {is} policy, but a {kind} policy is needed here")))
            }
            None => Err(missing(self.why_missing(name, kind))),
        }
    }

    fn why_missing(&self, name: &str, kind: PolicyKind) -> String {
        if let Some(failure) = self.failures.get(name) {
            return format!("module `{name}` can't be served: {}", failure.error);
        }
        let of_kind = || self.policies.values().filter(|policy| policy.kind() == kind).map(|policy| &policy.id().name);
        if let Some(other) = nearest(name, of_kind().map(String::as_str)) {
            return format!("there is no module `{name}`; did you mean `{other}`?");
        }
        let all: Vec<&str> = of_kind().map(String::as_str).collect();
        let all = if all.is_empty() { "none".to_owned() } else { all.join(", ") };
        format!("there is no module `{name}`; the {kind} policies served are: {all}")
    }
}

/// The name that was meant most likely; `None` = none is like it.
pub(crate) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let near = known.map(|other| (strsim::damerau_levenshtein(name, other), other));
    near.filter(|(distance, other)| *distance <= 1.max(other.len() / 3)).min().map(|(_, other)| other)
}

fn missing(message: String) -> CallFailure {
    CallFailure { kind: FailureKind::Missing, message }
}

/// One change of what is served.
#[derive(Clone, Debug)]
pub enum Change {
    /// Serve this version; whatever failed under the name is forgotten.
    Serve(Arc<Policy>),
    /// Say that a candidate was refused; what serves goes on serving.
    Refuse(LoadFailure),
    /// The module is gone: serve it no longer and forget its failures.
    Remove(String),
}

type Listener = Box<dyn Fn(&Arc<Snapshot>) + Send + Sync>;

/// The policies that are served now.
#[derive(Default)]
pub struct Registry {
    now: ArcSwap<Snapshot>,
    /// Writers come one by one; readers never wait. The listeners live under the same lock, so that each hears every
    /// revision in order.
    writer: Mutex<Vec<Listener>>,
    /// The revision published last, for those who wait.
    revision: Mutex<u64>,
    published: Condvar,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry").field("now", &self.now.load()).finish_non_exhaustive()
    }
}

impl Registry {
    /// An empty registry.
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// What is served now. Keep it for one pass of decisions: they are then all made by the same versions.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.now.load_full()
    }

    /// Publishes all `changes` as one new revision, and tells the listeners. Nothing is published for no changes.
    pub fn publish(&self, changes: Vec<Change>) -> Arc<Snapshot> {
        let listeners = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.now.load_full();
        if changes.is_empty() {
            return before;
        }
        let (mut policies, mut failures) = (before.policies.clone(), before.failures.clone());
        for change in changes {
            match change {
                Change::Serve(policy) => {
                    failures.remove(&policy.id().name);
                    policies.insert(policy.id().name.clone(), policy);
                }
                Change::Refuse(failure) => {
                    failures.insert(failure.name.clone(), failure);
                }
                Change::Remove(name) => {
                    policies.remove(&name);
                    failures.remove(&name);
                }
            }
        }
        let after = Arc::new(Snapshot { revision: before.revision + 1, policies, failures });
        self.now.store(Arc::clone(&after));
        for listener in listeners.iter() {
            listener(&after);
        }
        *self.revision.lock().unwrap_or_else(PoisonError::into_inner) = after.revision;
        self.published.notify_all();
        after
    }

    /// Calls `listener` with every later snapshot, on the thread that publishes it: hand over and return. It must not
    /// publish itself.
    pub fn on_change(&self, listener: impl Fn(&Arc<Snapshot>) + Send + Sync + 'static) {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(listener));
    }

    /// Waits until a snapshot satisfies `wanted`, at most `limit`; `None` if none did in time.
    pub fn wait_for(&self, limit: Duration, wanted: impl Fn(&Snapshot) -> bool) -> Option<Arc<Snapshot>> {
        let held = self.revision.lock().unwrap_or_else(PoisonError::into_inner);
        let (held, _) = self
            .published
            .wait_timeout_while(held, limit, |_| !wanted(&self.now.load()))
            .unwrap_or_else(PoisonError::into_inner);
        drop(held);
        Some(self.snapshot()).filter(|snapshot| wanted(snapshot))
    }
}
