//! The policies that are served: host, registry, and the directories that are watched.

use std::path::PathBuf;
use std::sync::Arc;

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
    // What was told before, so that only what is new is told again.
    let mut known: std::collections::BTreeMap<String, String> = std::collections::BTreeMap::new();
    let known = std::sync::Mutex::new(std::mem::take(&mut known));
    registry.on_change(move |snapshot| {
        listener.registry_revision(snapshot.revision());
        let mut known = known.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        for (name, policy) in snapshot.policies() {
            let digest = policy.id().digest.clone();
            if known.insert(name.clone(), digest.clone()).as_ref() != Some(&digest) {
                listener.swapped("served");
                tracing::info!(policy = name, version = policy.id().version, digest, "policy served");
            }
        }
        for (name, failure) in snapshot.failures() {
            let key = format!("{name} refused");
            if known.insert(key, failure.digest.clone()).as_ref() != Some(&failure.digest) {
                listener.swapped("refused");
                tracing::warn!(policy = name, digest = failure.digest, error = %failure.error, "policy refused");
            }
        }
        known.retain(|k, _| {
            snapshot.policies().contains_key(k) || k.strip_suffix(" refused").is_some_and(|n| snapshot.failures().contains_key(n))
        });
    });
    let dirs = [some(&settings.builtin_dir), some(&settings.dir)].into_iter().flatten().collect();
    let watcher = Watcher::start(Arc::clone(&host), &registry, dirs)?;
    Ok(Policies { host, registry, _watcher: watcher })
}
