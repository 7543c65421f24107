//! What tests on a real control plane need: the cluster itself, the operator as a process, a real Prometheus with an
//! exporter that plays cAdvisor, and waiting on watches.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "adapter: tests start processes and use files")]

pub mod cluster;
pub mod exporter;
pub mod fault;
pub mod gate;
pub mod metrics_api;
pub mod operator;
pub mod prometheus;
pub mod rights;
pub mod run;
pub mod wait;
pub mod world;

/// What a case fails with: a sentence that says what was expected and what was seen.
#[derive(Clone, Debug)]
pub struct Failure(pub String);

impl<E: std::fmt::Display> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure(error.to_string())
    }
}

/// Result of a case or of a step of one.
pub type Outcome<T = ()> = Result<T, Failure>;

/// Fails the case unless the condition holds.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::Failure(format!($($message)+)));
        }
    };
}
