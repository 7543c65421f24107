//! The policies that are served: host, registry, and the directories that are watched.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use eto_policy_host::{HostError, HostSettings, PolicyHost, Registry, Watcher};

use crate::settings;
use crate::telemetry::Telemetry;

/// Keeps the policies served; dropped, it watches no more.
pub struct Policies {
    pub host: Arc<PolicyHost>,
    pub registry: Arc<Registry>,
    _watcher: Watcher,
}

/// Loads all modules and watches their directories. A module that can't be served stops nothing.
pub fn start(settings: &settings::Policies, telemetry: &Telemetry) -> Result<Policies, HostError> {
    let some = |p: &PathBuf| Some(p.clone()).filter(|p| !p.as_os_str().is_empty());
    let host = PolicyHost::new(HostSettings { cache_dir: some(&settings.cache_dir), ..HostSettings::default() })?;
    let registry = Registry::new();
    let listener = telemetry.clone();
    // What was counted before: name (of a policy, or of a refusal) and digest. The watcher itself writes the log.
    let known: Mutex<BTreeMap<String, String>> = Mutex::default();
    registry.on_change(move |snapshot| {
        listener.registry_revision(snapshot.revision());
        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, policy) in snapshot.policies() {
            let digest = policy.id().digest.clone();
            if known.insert(name.clone(), digest.clone()) != Some(digest) {
                listener.swapped("served");
            }
        }
        for (name, failure) in snapshot.failures() {
            let key = format!("{name} refused");
            if known.insert(key, failure.digest.clone()).as_ref() != Some(&failure.digest) {
                listener.swapped("refused");
            }
        }
        known.retain(|k, _| {
            snapshot.policies().contains_key(k)
                || k.strip_suffix(" refused").is_some_and(|n| snapshot.failures().contains_key(n))
        });
    });
    let dirs = [some(&settings.builtin_dir), some(&settings.dir)].into_iter().flatten().collect();
    let watcher = Watcher::start(Arc::clone(&host), &registry, dirs)?;
    Ok(Policies { host, registry, _watcher: watcher })
}
