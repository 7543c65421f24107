//! `eto-agent`: the first process of a training container, around the user's command.
//!
//! What it does is decided by the pure machine in [`eto_membership::agent`]; this crate is the adapter around it:
//! processes and signals, the gateway's client ([`client`]), the API for scripts on localhost, and metrics. See
//! docs/agent.md.
#![warn(missing_docs)]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "adapter: processes, files, sockets, clock")]

mod api;
mod children;
pub mod client;
mod clock;
mod drain;
mod install;
mod memory;
mod metrics;
mod oom;
mod probe;
mod proc;
mod ready;
mod run;
mod serve;
mod settings;
mod signals;
mod store;
mod tail;

pub use install::{InstallError, install};
pub use ready::ready;
pub use run::{RunError, run};
pub use settings::{Settings, SettingsError};
