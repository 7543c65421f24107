//! Which nodes come into question for the workers of a job, what placement policies are shown, and what their answers
//! amount to. Costs O(nodes) per job.

mod filter;
mod input;
mod kept;
mod noted;
mod reserve;
mod settle;

pub use filter::{Candidates, Constraints, Requirement, Term, Toleration, fits, prefilter};
pub use input::{Ask, Need, input, need};
pub use kept::{input_for, keep};
pub use noted::{Asked, MAX_PLACES, is_open, note};
pub use reserve::Reservations;
pub use settle::{NodeChoice, Settled, settle};
