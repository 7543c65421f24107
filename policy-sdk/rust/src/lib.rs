//! Write scaling and placement policies for the Elastic Training Operator.
//!
//! A policy is a type with a trait and one macro call. This one is complete:
//!
//! ```
//! use eto_policy_sdk::prelude::*;
//!
//! /// One worker more while the GPUs are busy.
//! struct Grow;
//!
//! impl ScalingPolicy for Grow {
//!     const NAME: &'static str = "grow";
//!     const VERSION: &'static str = env!("CARGO_PKG_VERSION");
//!     const SUMMARY: &'static str = "One worker more while the GPUs are busy.";
//!     type Config = NoConfig;
//!
//!     fn signals(_: &NoConfig) -> Vec<SignalWant> {
//!         vec![SignalWant::utilisation("gpu-utilisation").required()]
//!     }
//!
//!     fn evaluate(input: &ScalingInput, _: &NoConfig) -> Result<ScalingDecision, PolicyError> {
//!         let Some(gpu) = input.signal("gpu-utilisation").and_then(Signal::mean_ok) else {
//!             return Ok(ScalingDecision::hold(Reason::new("NoSignal", "no GPU utilisation to go by")));
//!         };
//!         let target = if gpu > 0.8 { input.sizes.target + 1 } else { input.sizes.target };
//!         Ok(ScalingDecision::to(input.clamp(target), Reason::new("Measured", format!("GPUs at {gpu:.2}"))))
//!     }
//! }
//!
//! export_policy!(Scaling: Grow);
//! ```
//!
//! Build it with `--target wasm32-unknown-unknown`, crate type `cdylib`; the operator makes a component of the module
//! when it loads it. `docs/policy-author.md` leads from `cargo new` to a served policy, `docs/contract.md` explains
//! every input and output.
//!
//! # What holds for every policy
//! - Each call gets a fresh instance: a `static` keeps nothing. What must survive goes through the decision's `state`
//!   ([`ScalingDecision::keep`], [`kept`]).
//! - There is no clock and no randomness but `now_ms` and `seed` of the input.
//! - A panic never harms the operator: the job keeps its size and the log says `panicked at FILE:LINE: MESSAGE`.
//! - On targets other than wasm the export macro does nothing, so `cargo test` runs policies as plain Rust. With the
//!   feature `testing`, [`testing`] reads fixtures that run natively and in the real host.
#![warn(missing_docs)]

#[doc(hidden)]
#[allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    reason = "generated; the documentation of the WIT file is carried over where it has some"
)]
pub mod bindings;
mod config;
mod decision;
mod guest;
mod input;
pub mod log;
mod nodes;
mod placing;
mod policy;
mod signal;
mod state;
#[cfg(feature = "testing")]
pub mod testing;

pub use bindings::placement::exports::elastic::policy::placement::{
    MemberColumns, NodeColumns, Place, PlacementDecision, PlacementInput, WorkerRequest,
};
pub use bindings::scaling::elastic::policy::types::{
    Description, Direction, Framework, JobFacts, KeptState, PolicyError, Reason, SignalWant,
};
pub use bindings::scaling::exports::elastic::policy::scaling::{
    Bounds, Capacity, Metric, MetricKind, MetricTarget, Quality, Readiness, ResizeFacts, ScalingDecision, ScalingInput,
    Signal, SignalShape, Sizes, WorkerColumns, WorkerPhase,
};
pub use config::{Config, NoConfig};
pub use input::{Step, Worker};
pub use nodes::{Member, Node};
pub use placing::{Crowd, Domain, Tally};
pub use policy::{PlacementPolicy, ScalingPolicy};
pub use schemars;
pub use serde;
pub use state::kept;

/// "Not there" in a column of ids (`node`, `zone`, `rack`), and an unknown `capacity.fits`.
pub const NONE: u32 = u32::MAX;
/// The largest target the host takes; a larger one is refused as a bad answer.
pub const MAX_TARGET: u32 = 100_000;

/// Everything a policy usually needs: `use eto_policy_sdk::prelude::*;`
pub mod prelude {
    pub use crate::{
        Config, Crowd, Direction, Domain, Framework, JobFacts, MAX_TARGET, Member, Metric, MetricKind, MetricTarget,
        NONE, NoConfig, Node, Place, PlacementDecision, PlacementInput, PlacementPolicy, PolicyError, Quality,
        Readiness, Reason, ScalingDecision, ScalingInput, ScalingPolicy, Signal, SignalShape, SignalWant, Step, Tally,
        Worker, WorkerPhase, export_policy, kept, log,
    };
}

/// Makes a type the policy that this crate exports: `export_policy!(Scaling: MyPolicy);` or
/// `export_policy!(Placement: MyPolicy);`. One per crate. Does nothing on targets other than wasm.
#[macro_export]
macro_rules! export_policy {
    (Scaling: $policy:ident) => {
        #[cfg(target_family = "wasm")]
        $crate::bindings::scaling::export_scaling!($policy with_types_in $crate::bindings::scaling);
    };
    (Placement: $policy:ident) => {
        #[cfg(target_family = "wasm")]
        $crate::bindings::placement::export_placement!($policy with_types_in $crate::bindings::placement);
    };
}
