//! The pure core: what decides, and nothing of what acts.
//!
//! Every function here takes data and `now` and returns data with reasons. There is no clock, no client, no
//! randomness and no async. The operator, the embedded mode and (later) backtests and simulations call the same
//! functions, so a test of one is a test of all.
//!
//! The way of one decision: [`wants`] says what to measure -> [`view`] builds what a policy sees -> the policy proposes -> [`guard`] limits ->
//! [`placement`] chooses nodes -> [`plan`] says what to do, and [`conditions`] tells it to people.
#![warn(missing_docs)]

pub mod conditions;
pub mod contract;
pub mod decision;
pub mod guard;
pub mod job;
pub mod observe;
pub mod placement;
pub mod plan;
pub mod policy;
pub mod signals;
pub mod state;
pub mod time;
pub mod view;
pub mod wants;
