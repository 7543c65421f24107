//! The short shell around the pure engine, the same for every adapter.
//!
//! The engine takes data and gives data. The operator (Kubernetes) and the embedded mode (processes) both have to turn
//! an `ElasticJob` into the engine's [`JobSpec`](eto_engine::job::JobSpec), ask the policy of a registry snapshot,
//! record the decision, and keep the state in `status`. That glue is here, once; `docs/decisions/0007-cycle-crate.md`
//! says why.

pub mod budget;
pub mod checkpoint;
pub mod evaluate;
pub mod image;
pub mod log;
pub mod pod;
mod problems;
mod processes;
pub mod quantity;
mod replicas;
pub mod resources;
pub mod service;
pub mod spec;
pub mod status;
pub mod template;
pub mod unknown;
pub mod wants;

pub use problems::{SpecProblem, SpecProblems};
