//! The embedded mode: an `ElasticJob` on this machine, with no cluster.
//!
//! Workers are processes. The process table stands in for the API server and the kubelet: it is shown to the engine
//! as pods, and the engine's plans, the guard and the policies are the same that the operator uses. Use of CPU comes
//! from `/proc`, of GPUs through NVML.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "adapter: processes, /proc, the terminal")]
#![deny(clippy::print_stdout, clippy::print_stderr, reason = "they panic where nothing can be written")]

pub mod builtin;
mod decide;
pub mod display;
pub mod expand;
pub mod gpu;
pub mod load;
mod logs;
pub mod news;
mod notices;
mod options;
mod orphans;
pub mod pod;
pub mod ports;
pub mod process;
pub mod procfs;
mod reread;
mod runner;
pub mod screen;
mod slow;
pub mod sources;
mod stops;
pub mod supervise;
pub mod table;
pub mod usage;

pub use options::{Outcome, RunError, RunOptions};
pub use runner::run;
