//! The host of WebAssembly policies: a thin wrapper of wasmtime, and the only crate that names it.
//!
//! - [`PolicyHost`] turns a module's bytes into a [`Policy`], or says in a [`LoadError`] why it can't.
//! - A [`Policy`] implements the engine's [`ScalingPolicy`](eto_engine::policy::ScalingPolicy) or
//!   [`PlacementPolicy`](eto_engine::policy::PlacementPolicy). Each call is a fresh instance under [`Limits`]: fuel,
//!   deadline, memory, tables, stack and size of the answer. What a guest does wrong is a typed failure of that call.
//! - A [`Registry`] publishes what is served as one immutable [`Snapshot`].
//! - A [`Watcher`] keeps a registry in step with directories of modules, while calls run.

mod cache;
mod call;
mod check;
mod config;
mod engine;
mod error;
mod gate;
mod golden;
mod host;
mod inspect;
mod log;
mod metadata;
mod policy;
mod registry;
mod scan;
mod schema;
mod settings;
mod v0_1;
mod watcher;

pub use error::{ConfigError, HostError, LoadError};
pub use host::{PolicyHost, PoolUse};
pub use inspect::VERSION_SECTION;
pub use policy::{Policy, PolicyKind};
pub use registry::{Change, LoadFailure, Registry, Snapshot};
pub use settings::{HostSettings, Limits, ModuleSettings};
pub use watcher::Watcher;
