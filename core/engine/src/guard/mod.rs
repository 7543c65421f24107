//! The guard: asks the policy and has the last word.
//!
//! A policy only proposes. What comes out is a decision with everything that limited it; nothing that a policy, a
//! signal source or a lost state does can make a job smaller than its bounds, or shrink it for lack of data.

mod ask;
pub mod behavior;
mod brake;
pub(crate) mod circuit;
mod decide;
mod fill;
mod rules;
pub mod sizes;

pub(crate) use ask::carried;
pub use circuit::{CIRCUIT_AFTER, CIRCUIT_CAP, CIRCUIT_FIRST};
pub use decide::{accept, decide};
pub use rules::{MODULE_UP_WINDOW, Rules, rules};
