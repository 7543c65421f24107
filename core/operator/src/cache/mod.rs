//! What is there, as the API server told: jobs, pods, nodes and volumes, watched and trimmed on the way in.
//!
//! The loops read nothing else: no object is fetched on its own. What this replica wrote itself is put in at once, from
//! the answer to the write, and later news that is older than that is passed over, so that a slow watch never makes the
//! operator create or delete anything twice. A list holds whatever its versions say: they begin anew where the API
//! server's store is restored from a backup.

pub mod budgets;
pub mod jobs;
pub mod leases;
pub mod nodes;
mod observe;
pub mod pods;
pub mod quarantine;
mod signs;
mod touched;
pub mod volumes;
mod watch;

#[cfg(test)]
pub(crate) use observe::observe as observed;
pub use watch::{Watches, start};
pub(crate) use watch::{scoped, seen};

/// `metadata.resourceVersion` as a number; versions of one kind are ordered (Kubernetes 1.35 says so, and all before
/// held to it). 0 where it is missing.
pub fn version(of: Option<&str>) -> u64 {
    of.and_then(|v| v.parse().ok()).unwrap_or(0)
}
