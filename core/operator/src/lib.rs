//! The operator: watches ElasticJobs, asks policies, acts on Kubernetes.

pub mod settings;
pub mod client;
pub mod leader;
pub mod server;
pub mod telemetry;
