//! Signals from Prometheus: which queries to ask for all jobs at once, how to ask safely, and how to read the answers.
//!
//! The pure parts plan queries ([`promql`], `plan`) and fold answers into [`eto_engine::signals::SignalData`] (`answer`,
//! `collect`, `gpu`); the only parts that touch the world are `client` (HTTP, TLS, credential files) and the thin
//! [`Prometheus`] on top of it. Nothing here judges a value: age, coverage and validity are the engine's to weigh. What is
//! settled here is identity (labels, duplicates, shares of one GPU) and that a sentinel never passes for a number.

mod answer;
pub mod check;
mod client;
mod collect;
mod error;
mod files;
mod gpu;
mod plan;
pub mod promql;
mod secrets;
mod settings;
mod source;
mod tls;

pub use check::{Finding, SelfTest};
pub use error::{QueryError, SettingsError, SourceError};
pub use files::read_file;
pub use settings::{Auth, BasicAuth, GpuMetrics, Method, PrometheusSettings, Tls, without_user_info};
pub use source::{Prometheus, Wants};
pub use tls::tls_config;
