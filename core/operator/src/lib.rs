//! The operator: watches ElasticJobs, asks policies, acts on Kubernetes.
//!
//! Everything that decides is in the engine and asked through `eto_cycle`; here is what reaches the world: settings,
//! watches and their caches, the two loops ([`reconcile`] and [`evaluate`]), writes, events, leader election and the
//! operator's own metrics. `docs/decisions/0008-operator-loop.md` says how they fit together.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "adapter: clocks, environment, files, sockets")]

mod act;
mod apply;
mod cache;
mod client;
mod context;
mod evaluate;
mod events;
mod leader;
mod look;
mod policies;
mod queue;
mod reconcile;
mod run;
mod server;
pub mod settings;
mod telemetry;

pub use run::{RunError, run};
