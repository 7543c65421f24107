//! Which signals the policies want with each job's config: asked once, not in each cycle.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use eto_engine::contract::SignalWant;
use eto_engine::job::{JobSpec, Mode, ScalingSpec};
use eto_engine::policy::CallFailure;
use eto_engine::time::Time;
use eto_engine::wants::signal_ids;
use eto_policy_host::Snapshot;
use eto_signals::Wants;
use sha2::{Digest, Sha256};

/// A failed answer is asked for again after this long.
const RETRY: Duration = Duration::from_secs(60);
/// Above this many answers, those not used lately are dropped. Well above the number of jobs that one replica is made
/// for, each with a config of its own: a cache that is too small for a cycle would ask each policy in every cycle.
const MANY: usize = 65_536;

/// Answers of `validate-config`, by module digest and config. Shared by the threads of a cycle.
#[derive(Debug, Default)]
pub struct WantsCache {
    known: Mutex<Answers>,
}

/// By module digest, then by the hash of the config: a config may be large, and those that are no more stay for a while.
type Answers = HashMap<String, HashMap<[u8; 32], Known>>;

#[derive(Debug)]
struct Known {
    wants: Result<Arc<[SignalWant]>, CallFailure>,
    asked: Time,
    used: Time,
}

/// The scaling policy of a job that is to be asked; `None` where the size is set by hand.
pub fn asked(job: &JobSpec) -> Option<&ScalingSpec> {
    job.scaling.as_ref().filter(|s| s.mode != Mode::Off)
}

impl WantsCache {
    /// What the job's policy wants; nothing where none is to be asked.
    ///
    /// # Errors
    /// The module is not served, refuses the config, or failed; the size is held then.
    pub fn of(&self, job: &JobSpec, policies: &Snapshot, now: Time) -> Result<Arc<[SignalWant]>, CallFailure> {
        let Some(scaling) = asked(job) else { return Ok(Arc::default()) };
        let policy = policies.scaling(&scaling.module)?;
        let digest = &policy.id().digest;
        let config: [u8; 32] = Sha256::digest(scaling.config.as_bytes()).into();
        let known = self.lock().get_mut(digest).and_then(|c| c.get_mut(&config)).and_then(|k| k.at(now));
        if let Some(known) = known {
            return known;
        }
        // Not under the lock: a slow module must not hold up the others.
        let wants: Result<Arc<[SignalWant]>, _> = policy.wants(&scaling.config).map(|a| a.value.into());
        let fresh = Known { wants: wants.clone(), asked: now, used: now };
        let mut all = self.lock();
        all.entry(digest.clone()).or_default().insert(config, fresh);
        if all.values().map(HashMap::len).sum::<usize>() > MANY {
            forget(&mut all, now);
        }
        wants
    }

    /// The signals to gather for these jobs, each with the namespaces it is wanted in.
    pub fn collect<'a>(&self, jobs: impl IntoIterator<Item = &'a JobSpec>, policies: &Snapshot, now: Time) -> Wants {
        let mut wants = Wants::new();
        for job in jobs {
            // Where the policy can't say what it wants, the job's own metrics are gathered all the same: the built-in
            // policy may have to decide by them.
            let own = self.of(job, policies, now).unwrap_or_default();
            for id in signal_ids(job, &own) {
                wants.entry(id).or_default().insert(job.key.namespace.clone());
            }
        }
        wants
    }

    fn lock(&self) -> MutexGuard<'_, Answers> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// The answer, unless it is a failure that is due to be tried again.
    fn at(&mut self, now: Time) -> Option<Result<Arc<[SignalWant]>, CallFailure>> {
        if self.wants.is_err() && now.since(self.asked) >= RETRY {
            return None;
        }
        self.used = now;
        Some(self.wants.clone())
    }
}

/// Drops what has not been used for ten minutes, and everything if that is not enough.
fn forget(all: &mut Answers, now: Time) {
    all.retain(|_, configs| {
        configs.retain(|_, k| now.since(k.used) < Duration::from_secs(600));
        !configs.is_empty()
    });
    if all.values().map(HashMap::len).sum::<usize>() > MANY {
        all.clear();
    }
}
