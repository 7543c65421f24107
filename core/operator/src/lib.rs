//! The operator: watches ElasticJobs, asks policies, acts on Kubernetes.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "adapter: clocks, environment, files, sockets")]

pub mod settings;
pub mod client;
pub mod leader;
pub mod server;
pub mod telemetry;
