//! Leader election by a Lease, and the fence that goes with it.
//!
//! A replica acts only while [`Leadership::may_act`] says so: it does from a successful renewal until `renew-deadline`
//! later, measured on this machine's monotonic clock, which ends before another replica may take the Lease
//! (`duration` after the last renewal that other replica saw). Clocks of different machines are never compared.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ObjectMeta, PostParams};
use tokio::sync::watch;

use crate::cache::version;
use crate::settings;
use crate::telemetry::Telemetry;
use crate::trouble;

/// Whether this replica may act, now.
#[derive(Clone, Debug)]
pub struct Leadership {
    began: Instant,
    /// Milliseconds since `began` until which this replica may act; 0 = it may not.
    until: Arc<AtomicU64>,
    leading: watch::Sender<bool>,
    /// How often the API server's store was seen to have gone back in time.
    restored: watch::Sender<u64>,
    lease: Arc<Mutex<Option<ObjectReference>>>,
}

impl Default for Leadership {
    fn default() -> Self {
        Leadership {
            began: Instant::now(),
            until: Arc::default(),
            leading: watch::Sender::new(false),
            restored: watch::Sender::new(0),
            lease: Arc::default(),
        }
    }
}

impl Leadership {
    /// Leadership for good, where a single replica runs.
    pub fn alone() -> Self {
        let alone = Leadership::default();
        alone.until.store(u64::MAX, Ordering::SeqCst);
        alone.leading.send_replace(true);
        alone
    }

    /// Asked right before every write.
    pub fn may_act(&self) -> bool {
        self.left().is_some()
    }

    /// Comes when this replica may not act any more: what is on its way then is given up. What it may do late all the same
    /// does no harm (`docs/decisions/0019-late-writes.md`).
    pub async fn ended(&self) {
        let mut leading = self.follow();
        while let Some(left) = self.left() {
            tokio::select! {
                () = tokio::time::sleep(left) => {}
                _ = leading.changed() => {}
            }
        }
    }

    /// For how long it may act if no renewal comes; `None` = it may not.
    fn left(&self) -> Option<Duration> {
        let left = self.until.load(Ordering::SeqCst).saturating_sub(self.now());
        (left > 0).then(|| Duration::from_millis(left))
    }

    /// Whether this replica is the leader as far as it knows. A leader whose renewal is late is one that may not act for
    /// the moment: work for it waits, and is not dropped.
    pub fn is_leading(&self) -> bool {
        *self.leading.borrow()
    }

    /// Follows the changes: true when this replica becomes the leader, false when it stops being it.
    pub fn follow(&self) -> watch::Receiver<bool> {
        self.leading.subscribe()
    }

    /// Changes when the Lease's version has gone back: the API server's store was restored from a backup, and watches that
    /// go on from a version of before it hear nothing.
    pub fn restorations(&self) -> watch::Receiver<u64> {
        self.restored.subscribe()
    }

    /// The Lease that this replica held last; `None` where there is none.
    pub fn lease(&self) -> Option<ObjectReference> {
        self.lease.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn holds(&self, lease: Option<&Lease>) {
        let about = lease.map(|lease| ObjectReference {
            api_version: Some("coordination.k8s.io/v1".into()),
            kind: Some("Lease".into()),
            name: lease.metadata.name.clone(),
            namespace: lease.metadata.namespace.clone(),
            uid: lease.metadata.uid.clone(),
            ..ObjectReference::default()
        });
        *self.lease.lock().unwrap_or_else(PoisonError::into_inner) = about;
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn hold(&self, renewed: Instant, deadline: Duration) {
        let until = renewed.saturating_duration_since(self.began) + deadline;
        self.until.store(u64::try_from(until.as_millis()).unwrap_or(u64::MAX), Ordering::SeqCst);
        self.leading.send_if_modified(|l| !std::mem::replace(l, true));
    }

    fn lose(&self) {
        self.until.store(0, Ordering::SeqCst);
        self.leading.send_if_modified(|l| std::mem::replace(l, false));
    }
}

/// What a candidate has seen of the Lease, and when it last changed by this machine's clock.
#[derive(Clone, Debug)]
struct Observed {
    lease: Lease,
    since: Instant,
}

/// What to do about a Lease.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// Nobody holds it, its holder was silent for too long, or it is ours from before.
    Take,
    Renew,
    Wait,
}

/// The rule of the election. Pure.
fn step(spec: Option<&LeaseSpec>, me: &str, unchanged_for: Duration) -> Step {
    let Some(spec) = spec else { return Step::Take };
    match spec.holder_identity.as_deref() {
        None | Some("") => Step::Take,
        Some(holder) if holder == me => Step::Renew,
        Some(_) => {
            let duration = u64::try_from(spec.lease_duration_seconds.unwrap_or(0)).unwrap_or(0);
            if unchanged_for > Duration::from_secs(duration) { Step::Take } else { Step::Wait }
        }
    }
}

/// Takes part in the election until `stop` turns true; then gives the Lease back, if it is ours.
pub async fn elect(
    api: Api<Lease>,
    namespace: String,
    settings: settings::Leader,
    leadership: Leadership,
    telemetry: Telemetry,
    mut stop: watch::Receiver<bool>,
) {
    let identity = settings.identity.clone();
    let mut candidate = Candidate { api, namespace, identity, settings, observed: None, went_back: false };
    let mut renewed: Option<Instant> = None;
    loop {
        let asked = Instant::now();
        let deadline = candidate.settings.renew_deadline.get();
        let patience = candidate.settings.retry_period.get().max(Duration::from_secs(1)).min(deadline);
        let attempt = tokio::time::timeout(patience, candidate.attempt()).await;
        if std::mem::take(&mut candidate.went_back) {
            tracing::warn!("the API server's store has gone back in time, as after a restore: all is listed anew");
            leadership.restored.send_modify(|n| *n += 1);
        }
        match attempt {
            Ok(Ok(true)) => {
                if renewed.is_none() {
                    leadership.holds(candidate.observed.as_ref().map(|o| &o.lease));
                    tracing::info!(identity = candidate.identity, lease = candidate.settings.name, "leading");
                }
                renewed = Some(asked);
                leadership.hold(asked, deadline);
            }
            Ok(Ok(false)) => {
                if renewed.take().is_some() {
                    tracing::warn!("another replica holds the Lease; standing by");
                }
                leadership.lose();
            }
            Ok(Err(error)) => {
                tracing::warn!(error = trouble::of_request(&error), "the Lease could not be read or written");
            }
            Err(_) => tracing::warn!(?patience, "no answer about the Lease in time"),
        }
        if renewed.is_some_and(|r| r.elapsed() >= deadline) {
            tracing::error!(?deadline, "the Lease could not be renewed in time; this replica stops acting");
            renewed = None;
            leadership.lose();
        }
        telemetry.leading(leadership.may_act());
        let pause = jittered(candidate.settings.retry_period.get(), renewed.is_some());
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = stop.wait_for(|s| *s) => break,
        }
    }
    let held = leadership.may_act();
    leadership.lose();
    if held && let Err(error) = candidate.release().await {
        tracing::warn!(%error, "the Lease was not given back; the next leader waits for it to run out");
    }
    telemetry.leading(false);
}

/// Followers spread out; a leader renews on the beat.
fn jittered(period: Duration, leading: bool) -> Duration {
    if leading { period } else { period.mul_f64(1.0 + rand::random::<f64>() * 0.2) }
}

/// Who this replica is, to the Lease and to etcd: what the settings say, else its pod's name and a number.
pub fn identity(settings: &settings::Leader) -> String {
    if !settings.identity.is_empty() {
        return settings.identity.clone();
    }
    let host = std::env::var("HOSTNAME").unwrap_or_else(|_| "operator".into());
    format!("{host}-{:08x}", rand::random::<u32>())
}

struct Candidate {
    api: Api<Lease>,
    namespace: String,
    identity: String,
    settings: settings::Leader,
    observed: Option<Observed>,
    /// The Lease was seen at an older version than before.
    went_back: bool,
}

impl Candidate {
    /// One try: true if the Lease is ours now.
    async fn attempt(&mut self) -> kube::Result<bool> {
        // A leader writes at once, with the resourceVersion it got for its last write: no read is needed.
        if let Some(observed) = self.observed.clone()
            && step(observed.lease.spec.as_ref(), &self.identity, Duration::ZERO) == Step::Renew
        {
            match self.write(&observed.lease).await {
                Ok(()) => return Ok(true),
                Err(kube::Error::Api(s)) if s.is_conflict() || s.is_not_found() => {}
                Err(e) => return Err(e),
            }
        }
        let Some(lease) = self.api.get_opt(&self.settings.name).await? else {
            return self.create().await;
        };
        self.see(lease);
        let Some(observed) = self.observed.clone() else { return Ok(false) };
        match step(observed.lease.spec.as_ref(), &self.identity, observed.since.elapsed()) {
            Step::Wait => Ok(false),
            Step::Take | Step::Renew => match self.write(&observed.lease).await {
                Ok(()) => Ok(true),
                Err(kube::Error::Api(s)) if s.is_conflict() || s.is_not_found() => Ok(false),
                Err(e) => Err(e),
            },
        }
    }

    fn see(&mut self, lease: Lease) {
        let at = |lease: &Lease| version(lease.metadata.resource_version.as_deref());
        if let Some(before) = self.observed.as_ref().map(|o| &o.lease) {
            self.went_back |= (1..at(before)).contains(&at(&lease));
            if before.metadata.resource_version == lease.metadata.resource_version {
                return;
            }
        }
        self.observed = Some(Observed { lease, since: Instant::now() });
    }

    fn spec(&self, before: Option<&LeaseSpec>) -> LeaseSpec {
        let now = MicroTime(Timestamp::now());
        let ours = before.and_then(|b| b.holder_identity.as_deref()) == Some(&self.identity);
        let transitions = before.and_then(|b| b.lease_transitions).unwrap_or(0);
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(self.settings.duration.get().as_secs()).ok(),
            acquire_time: if ours { before.and_then(|b| b.acquire_time.clone()) } else { Some(now.clone()) },
            renew_time: Some(now),
            lease_transitions: Some(if ours { transitions } else { transitions.saturating_add(1) }),
            ..LeaseSpec::default()
        }
    }

    async fn create(&mut self) -> kube::Result<bool> {
        let lease = Lease {
            metadata: ObjectMeta {
                name: Some(self.settings.name.clone()),
                namespace: Some(self.namespace.clone()),
                ..ObjectMeta::default()
            },
            spec: Some(self.spec(None)),
        };
        match self.api.create(&PostParams::default(), &lease).await {
            Ok(lease) => {
                self.see(lease);
                Ok(true)
            }
            Err(kube::Error::Api(s)) if s.is_already_exists() || s.is_conflict() => Ok(false),
            Err(e) => Err(e),
        }
    }

    async fn write(&mut self, before: &Lease) -> kube::Result<()> {
        let lease = Lease { metadata: before.metadata.clone(), spec: Some(self.spec(before.spec.as_ref())) };
        let lease = self.api.replace(&self.settings.name, &PostParams::default(), &lease).await?;
        self.see(lease);
        Ok(())
    }

    /// Lets the next replica take over at once.
    async fn release(&mut self) -> kube::Result<()> {
        let Some(observed) = self.observed.clone() else { return Ok(()) };
        let mut spec = self.spec(observed.lease.spec.as_ref());
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(1);
        let lease = Lease { metadata: observed.lease.metadata, spec: Some(spec) };
        self.api.replace(&self.settings.name, &PostParams::default(), &lease).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn held(by: &str) -> LeaseSpec {
        LeaseSpec { holder_identity: Some(by.into()), lease_duration_seconds: Some(15), ..LeaseSpec::default() }
    }

    #[test]
    fn a_lease_is_taken_only_when_free_or_silent_for_longer_than_its_duration() {
        let s = Duration::from_secs;
        assert_eq!(step(None, "a", s(0)), Step::Take);
        assert_eq!(step(Some(&held("")), "a", s(0)), Step::Take);
        assert_eq!(step(Some(&held("a")), "a", s(100)), Step::Renew);
        assert_eq!(step(Some(&held("b")), "a", s(15)), Step::Wait);
        assert_eq!(step(Some(&held("b")), "a", s(16)), Step::Take);
    }

    #[test]
    fn may_act_ends_at_the_deadline_by_itself() {
        let leadership = Leadership::default();
        assert!(!leadership.may_act());
        leadership.hold(Instant::now(), Duration::from_secs(60));
        assert!(leadership.may_act() && *leadership.follow().borrow());
        leadership.hold(leadership.began, Duration::ZERO);
        assert!(!leadership.may_act(), "a renewal that old gives no right to act");
        leadership.lose();
        assert!(!*leadership.follow().borrow());
        assert!(Leadership::alone().may_act());
    }

    #[tokio::test]
    async fn what_is_on_its_way_is_given_up_when_the_right_to_act_ends_and_no_sooner() {
        let leadership = Leadership::default();
        assert_eq!(leadership.ended().now_or_never(), Some(()));
        leadership.hold(Instant::now(), Duration::from_secs(60));
        let mut ended = std::pin::pin!(leadership.ended());
        assert_eq!(ended.as_mut().now_or_never(), None);
        leadership.hold(Instant::now(), Duration::from_secs(90));
        assert_eq!(ended.as_mut().now_or_never(), None, "it was renewed");
        leadership.lose();
        ended.await;
        assert_eq!(Leadership::alone().ended().now_or_never(), None);
    }
}
