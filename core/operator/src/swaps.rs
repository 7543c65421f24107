//! Jobs whose policy was swapped are evaluated at once and not a period later.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use eto_policy_host::{Registry, Snapshot};
use tokio::sync::Notify;

use crate::cache::jobs::Job;

/// Follows what is served.
pub(crate) struct Swaps {
    changed: Arc<Notify>,
    seen: Mutex<Arc<Snapshot>>,
}

impl Swaps {
    pub(crate) fn of(registry: &Registry) -> Swaps {
        let changed = Arc::new(Notify::new());
        let wake = Arc::clone(&changed);
        registry.on_change(move |_| wake.notify_one());
        Swaps { changed, seen: Mutex::new(registry.snapshot()) }
    }

    /// Waits for a change that was not waited for yet.
    pub(crate) async fn next(&self) {
        self.changed.notified().await;
    }

    /// Makes the jobs due whose policy is another than at the last call, or is served for the first time.
    pub(crate) fn hasten(&self, jobs: &[Arc<Job>], snapshot: &Arc<Snapshot>) {
        let seen = {
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *seen, Arc::clone(snapshot))
        };
        let names = swapped(&seen, snapshot);
        if names.is_empty() {
            return;
        }
        for job in jobs {
            let mut entry = job.entry();
            let Ok(spec) = &entry.spec else { continue };
            let asked = spec.scaling.iter().map(|s| &s.module).chain(spec.placement.iter().map(|p| &p.module));
            if asked.into_iter().any(|module| names.contains(module))
                && let Some(mind) = &mut entry.mind
            {
                mind.due = None;
            }
        }
    }
}

/// Names that another module, or the same with other settings, is served by. A refused one leaves the last good one in
/// its place.
fn swapped(before: &Snapshot, after: &Snapshot) -> BTreeSet<String> {
    let (before, after) = (before.policies(), after.policies());
    let is_other = |name: &&String| match (before.get(*name), after.get(*name)) {
        (Some(old), Some(new)) => !Arc::ptr_eq(old, new),
        (old, new) => old.is_some() != new.is_some(),
    };
    before.keys().chain(after.keys()).filter(is_other).cloned().collect()
}
