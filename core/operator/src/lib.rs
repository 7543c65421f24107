//! The operator: watches `ElasticJob` objects, asks policies, acts on Kubernetes.
//!
//! Everything that decides is in the engine and asked through `eto_cycle`; here is what reaches the world: settings,
//! watches and their caches, the two loops ([`reconcile`] and [`evaluate`]), writes, events, leader election and the
//! operator's own metrics. `docs/decisions/0012-operator-loop.md` says how they fit together.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "adapter: clocks, environment, files, sockets")]
#![deny(clippy::print_stdout, clippy::print_stderr, reason = "they panic where nothing can be written")]

pub mod act;
pub mod apply;
mod blame;
mod budget;
pub mod cache;
pub mod checkpoint;
pub mod client;
pub mod constraints;
pub mod context;
pub mod evaluate;
pub mod events;
pub mod gateway;
pub mod images;
pub mod leader;
pub mod look;
mod node_facts;
pub mod overrun;
pub mod placing;
pub mod policies;
pub mod queue;
pub mod reconcile;
pub mod run;
pub mod server;
pub mod settings;
pub mod source;
pub mod spans;
mod swaps;
pub mod telemetry;
pub mod trouble;

pub use run::{RunError, run};
